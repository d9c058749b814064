# SPDX-License-Identifier: Apache-2.0
"""Keys and values of 8 bits: blocks of 32 numbers and a scale."""

from typing import Any

import numpy as np

from . import _core

__all__ = ["dequantize_q8", "q8", "quantize_q8"]

# A block, 34 bytes: number n is scale * values[n]. The layout that ggml calls Q8_0.
q8 = np.dtype([("scale", "<f2"), ("values", "i1", (32,))])


def quantize_q8(x: Any) -> Any:
    """Numbers as blocks of 32 int8 and a float16 scale, for k and v of `attention` (ggml's Q8_0).

    With a the largest |x| of a block, the scale is a / 127 and a value x / (a / 127), rounded to
    the nearest integer, halves away from zero. A number is off by at most
    a / 254 + max(a / 2048, 2^-18), the latter from rounding the scale.

    Args:
        x: [..,D], D a multiple of 32, such as keys [B,G,Tk,D]; float32, bfloat16 or float16.

    Returns:
        A NumPy array [..,D/32] of the dtype `qkv.q8`.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value. NaN,
            infinity and numbers above 65519 * 127 are invalid.

    >>> blocks = quantize_q8(np.linspace(-1, 1, 64, dtype=np.float32))
    >>> blocks.shape, blocks["values"][:, -1].tolist()
    ((2,), [-2, 127])
    """
    return _core.quantize_q8(x)


def dequantize_q8(x: Any) -> Any:
    """The numbers of blocks, exactly: scale * values.

    Args:
        x: [..,D/32] of the dtype `qkv.q8`.

    Returns:
        A NumPy array [..,D] of float32.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> numbers = dequantize_q8(quantize_q8(np.full((2, 32), 254, np.float32)))
    >>> numbers.shape, numbers.max().item()
    ((2, 32), 254.0)
    """
    return _core.dequantize_q8(x)
