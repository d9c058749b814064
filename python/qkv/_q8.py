# SPDX-License-Identifier: Apache-2.0
"""Keys and values of 8 bits: blocks of 32 int8 numbers with one float16 scale."""

from typing import Any

import numpy as np

from . import _core

__all__ = ["dequantize_q8", "q8", "quantize_q8"]

# A block has 34 bytes, and number n of it is scale * values[n]. ggml calls this layout Q8_0.
q8 = np.dtype([("scale", "<f2"), ("values", "i1", (32,))])


def quantize_q8(x: Any) -> Any:
    """Quantizes to blocks of 32 int8 and a float16 scale (ggml's Q8_0), for k, v of `attention`.

    If a is the largest |x| of a block, its scale is a / 127, and each value is x / (a / 127)
    rounded to the nearest integer, halves away from zero. The error of a number is at most
    a / 254 + max(a / 2048, 2^-18), in which the second term comes from rounding the scale.

    Args:
        x: [..,D], D a multiple of 32, such as keys [B,G,Tk,D]; float32, bfloat16 or float16.

    Returns:
        A NumPy array [..,D/32] of the dtype `qkv.q8`.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value. NaN,
            infinity and numbers of 65520 * 127 or more are invalid.

    >>> blocks = quantize_q8(np.linspace(-1, 1, 64, dtype=np.float32))
    >>> blocks.shape, blocks["values"][:, -1].tolist()
    ((2,), [-2, 127])
    """
    return _core.quantize_q8(x)


def dequantize_q8(x: Any) -> Any:
    """Converts blocks to the numbers they stand for, exactly: scale * values.

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
