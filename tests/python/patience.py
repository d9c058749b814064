# SPDX-License-Identifier: Apache-2.0
"""The time to wait before a process counts as hung: many times what the slowest machine needs."""

PATIENCE = 1800  # seconds
