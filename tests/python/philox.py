# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 in NumPy and the dropout mask made of it.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import numpy as np

_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: list[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Four arrays of 32-bit words (as uint64) for four arrays of counters and one key."""
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) & _LOW for c in counter)
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (b >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            b & _LOW,
            (a >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            a & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def kept(seed: int, p: float, shape: tuple[int, int, int, int], first_b: int = 0) -> np.ndarray:
    """bool [B,H,Tq,Tk]: which weights stay. `first_b` is the number of the first batch entry."""
    batch, heads, queries, keys = shape
    groups = -(-keys // 4)
    b, h, i, group = np.meshgrid(
        np.arange(first_b, first_b + batch),
        np.arange(heads),
        np.arange(queries),
        np.arange(groups),
        indexing="ij",
    )
    words = philox([group, i, h, b], (seed & 0xFFFFFFFF, seed >> 32))
    drawn = np.stack(words, axis=-1).reshape(batch, heads, queries, 4 * groups)[..., :keys]
    return drawn >= np.uint64(int(p * 2**32))
