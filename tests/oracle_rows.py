# SPDX-License-Identifier: Apache-2.0
"""The row maps of q and k before the score: a norm with a gain, then rotation by position.

Rows are x [B,H,T,D]; a gain is [H,D]. As in oracle_attention.py the forward pass takes complex
numbers too.
"""
from dataclasses import dataclass
from typing import Optional

import numpy as np


@dataclass
class RowMaps:
    """The maps of q, or of k; each may be absent."""
    eps: Optional[float] = None           # of the norm; None: no norm
    gain: Optional[np.ndarray] = None     # [H,D]
    angles: Optional[np.ndarray] = None   # [B,T,pairs]
    halves: bool = False


def scale_of(maps, x):
    """1 / sqrt(mean of squares + eps) of each row, [B,H,T,1]; 0 where the root is 0."""
    square = (x * x).mean(axis=-1, keepdims=True) + maps.eps
    return np.where(square == 0, 0, 1 / np.sqrt(np.where(square == 0, 1, square)))


def rotated(maps, x, direction):
    """Rows as complex numbers, one per pair of channels, times e^(i angle direction).

    direction: 1, or -1 for the inverse.
    """
    pairs = maps.angles.shape[-1]
    first = np.arange(pairs) if maps.halves else 2 * np.arange(pairs)
    second = first + pairs if maps.halves else first + 1
    cos, sin = np.cos(maps.angles)[:, None], direction * np.sin(maps.angles)[:, None]
    y = np.array(x)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def apply(maps, x):
    """Applies the maps to x."""
    if maps.eps is not None:
        x = x * scale_of(maps, x)
        if maps.gain is not None:
            x = x * maps.gain[:, None]
    return x if maps.angles is None else rotated(maps, x, 1)


def back(maps, x, dy, used):
    """dx and the gain's gradient [H,D] from dy; rows where used [B,H,T] is false add nothing."""
    dgain = np.zeros((x.shape[1], x.shape[3]))
    if maps.angles is not None:
        dy = rotated(maps, dy, -1)
    if maps.eps is not None:
        x = np.where(used[..., None], x, 0.0)
        scale = scale_of(maps, x)
        normed = x * scale
        dgain = np.where(used[..., None], dy * normed, 0.0).sum(axis=(0, 2))
        if maps.gain is not None:
            dy = dy * maps.gain[:, None]
        dy = scale * (dy - normed * (dy * normed).mean(axis=-1, keepdims=True))
    return np.where(used[..., None], dy, 0.0), dgain
