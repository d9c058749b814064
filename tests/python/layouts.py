# SPDX-License-Identifier: Apache-2.0
"""Arrays with the same numbers and other strides, alignment or byte order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
ARRAYS = {name: np.dtype(name) for name in ("float64", "float32", "float16", "bool", *INTEGERS)}
ARRAYS["bfloat16"] = np.dtype(ml_dtypes.bfloat16)

STYLES = ("plain", "permuted", "sliced", "reversed", "repeated", "read-only", "odd", "swapped")
STYLE_ODDS = (0.34, 0.18, 0.12, 0.1, 0.08, 0.06, 0.06, 0.06)


def styled(x: Any, style: str) -> Any:
    """A NumPy array or torch tensor laid out in a style, or unchanged if it cannot have the style.

    Tensors can be "plain", "permuted", "sliced" or "repeated". "repeated": axes along which
    the numbers do not change have stride 0. "odd": the memory has an odd address. "swapped": the
    other byte order, which bfloat16 does not have.
    """
    numpy = isinstance(x, np.ndarray)
    if style == "repeated":
        return _repeated(x, numpy)
    if x.ndim == 0 or style == "plain" or not (numpy or style in STYLES[:3]):
        return x
    if style == "permuted":
        axes = list(range(x.ndim))[::-1]
        if numpy:
            return np.ascontiguousarray(x.transpose(axes)).transpose(axes)
        return x.permute(axes).contiguous().permute(axes)
    if style == "reversed":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    if style == "sliced":
        shape = tuple(2 * n + 1 for n in x.shape)
        wide = np.zeros(shape, x.dtype) if numpy else x.new_zeros(shape)
        inside = wide[tuple(slice(1, None, 2) for _ in shape)]
        inside[...] = x
        return inside
    return _in_other_bytes(x, style)


def _in_other_bytes(x: np.ndarray, style: str) -> np.ndarray:
    if style == "read-only":
        x = x.copy()
        x.flags.writeable = False
    elif style == "odd" and x.size > 0 and x.dtype.kind != "O":
        memory = np.zeros(x.nbytes + 1, np.uint8)
        odd = np.frombuffer(memory.data, x.dtype, x.size, offset=1).reshape(x.shape)
        odd[...] = x
        return odd
    elif style == "swapped" and x.dtype.kind in "fiu" and x.dtype != ARRAYS["bfloat16"]:
        return x.astype(x.dtype.newbyteorder("S"))
    return x


def _repeated(x: Any, numpy: bool) -> Any:
    one = x
    for axis in range(x.ndim):
        first = one[(slice(None),) * axis + (slice(0, 1),)]
        if one.shape[axis] > 1 and bool((first == one).all()):
            one = first
    if one is x:
        return x
    return np.broadcast_to(one, x.shape) if numpy else one.expand(x.shape)
