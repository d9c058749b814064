# SPDX-License-Identifier: Apache-2.0
"""How long to wait for what seems to hang: many times what the slowest machine needs."""

PATIENCE = 1800  # seconds
