# SPDX-License-Identifier: Apache-2.0
"""Scales the number of random calls that tests make.

The environment variable QKV_TEST_SCALE is a percentage, as in tests/support/scale.h; default 100.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SCALE = int(os.environ.get("QKV_TEST_SCALE", "100"))
if not 1 <= SCALE <= 100:
    raise ValueError(f"QKV_TEST_SCALE must be from 1 to 100, not {SCALE}")


def scaled(count: int, least: int = 1) -> int:
    """The scaled `count`, at least `least`."""
    return max(least, count * SCALE // 100)


def some(things: Sequence[T]) -> Sequence[T]:
    """The first scaled(len(things)) things."""
    return things[: scaled(len(things))]
