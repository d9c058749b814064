# SPDX-License-Identifier: Apache-2.0
"""How many of the random calls to make.

QKV_TEST_SCALE in the environment is a percentage, as in tests/support/scale.h; without it, all.
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
    """So many of `count`."""
    return max(least, count * SCALE // 100)


def some(things: Sequence[T]) -> Sequence[T]:
    """The first of them."""
    return things[: scaled(len(things))]
