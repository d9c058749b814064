# SPDX-License-Identifier: Apache-2.0
"""How long is waited for what seems to hang: many times what the slowest machine needs."""

PATIENCE = 1800  # seconds
