# SPDX-License-Identifier: Apache-2.0
"""Compares softmax, masked_softmax and batch_dot with torch, on random arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judge import as_float64, check, needs_torch, torch, worst
from scale import some

if torch is not None:
    from bounds_torch import FLOAT64, UNIT
    from layouts import ARRAYS, STYLES, styled

    import qkv

pytestmark = needs_torch
DTYPES = ("float64", "float32", "bfloat16", "float16")


class Draw:
    """Draws arrays of one dtype, of NumPy or torch, with any strides."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([7, seed])
        self.dtype = DTYPES[seed % 4]
        self.torch = bool(seed // 4 % 2)

    def shape(self, rank: int) -> tuple[int, ...]:
        sizes = [int(n) for n in self.rng.integers(self.rng.random() > 0.1, 6, rank - 1)]
        return (*sizes, int(self.rng.choice([0, 1, 3, 17, 64, 600])))

    def array(self, shape: tuple[int, ...], size: float = 1.0) -> tuple[Any, Any]:
        """An array, and its values as a float64 tensor."""
        values = torch.from_numpy(self.rng.standard_normal(shape) * size)
        values = values.to(getattr(torch, self.dtype))
        exact = values.to(torch.float64)
        style = STYLES[int(self.rng.integers(len(STYLES)))]
        if self.torch:
            return styled(values, style), exact
        return styled(exact.numpy().astype(ARRAYS[self.dtype]), style), exact

    def complain(self, name: str, got: Any, want: Any, size: float) -> list[str]:
        """Complaints about type, dtype, shape, numbers of `got`; tolerance grows with `size`."""
        kind = torch.Tensor if self.torch else np.ndarray
        dtype = getattr(torch, self.dtype) if self.torch else ARRAYS[self.dtype]
        if type(got) is not kind or got.dtype != dtype:
            return [f"{name}: {type(got)} of {got.dtype}"]
        if self.dtype == "float64":
            limit = FLOAT64 * size
        else:
            limit = (UNIT[self.dtype] + 8 * UNIT["float32"]) * size
        line = check(name, got, want, limit)
        return [line] if line else []


def zero_empty(w: Any) -> Any:
    return torch.nan_to_num(w, nan=0.0)


@pytest.mark.parametrize("block", range(16))
def test_softmax(block: int) -> None:
    wrong = []
    for seed in some(range(block * 8, block * 8 + 8)):
        draw = Draw(seed)
        rank = int(draw.rng.integers(1, 5))
        x, exact = draw.array(draw.shape(rank), 3.0)
        wrong += draw.complain(f"softmax {seed}", qkv.softmax(x), exact.softmax(-1), 1.0)
        for dim in range(-rank, rank):
            got, want = qkv.softmax(x, dim=dim), exact.softmax(dim)
            wrong += draw.complain(f"softmax {seed} dim {dim}", got, want, 1.0)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("block", range(16))
def test_masked_softmax(block: int) -> None:
    wrong = []
    for seed in some(range(block * 8, block * 8 + 8)):
        draw = Draw(seed)
        x, exact = draw.array(draw.shape(2 + seed % 2), 3.0)
        rows = exact.shape[:1] if seed % 3 else exact.shape[:-1]
        lengths = torch.from_numpy(draw.rng.integers(0, exact.shape[-1] + 1, tuple(rows)))
        wide = lengths.reshape(tuple(rows) + (1,) * (exact.ndim - len(rows)))
        masked = exact.masked_fill(torch.arange(exact.shape[-1]) >= wide, -np.inf)
        given = lengths if draw.torch else lengths.numpy()
        got = qkv.masked_softmax(x, given)
        want = zero_empty(masked.softmax(-1))
        wrong += draw.complain(f"masked_softmax {seed}", got, want, 1.0)
        assert not as_float64(got)[as_float64(masked) == -np.inf].any()
        got = qkv.masked_softmax(x)
        wrong += draw.complain(f"masked_softmax {seed} whole", got, exact.softmax(-1), 1.0)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("block", range(16))
def test_batch_dot(block: int) -> None:
    wrong = []
    for seed in some(range(block * 8, block * 8 + 8)):
        draw = Draw(seed)
        n, depth, m = (int(size) for size in draw.rng.integers(0, (4, 40)[seed % 8 > 0], 3))
        batch = tuple(int(size) for size in draw.rng.integers(1, 4, draw.rng.integers(0, 3)))
        left = tuple(1 if draw.rng.random() < 0.3 else size for size in batch)
        transposed = [bool(flag) for flag in draw.rng.integers(0, 2, 2)]
        a, a_exact = draw.array(left + ((depth, n) if transposed[0] else (n, depth)))
        b, b_exact = draw.array(batch + ((m, depth) if transposed[1] else (depth, m)))
        x = a_exact.transpose(-1, -2) if transposed[0] else a_exact
        y = b_exact.transpose(-1, -2) if transposed[1] else b_exact
        got = qkv.batch_dot(a, b, transpose_a=transposed[0], transpose_b=transposed[1])
        size = float((x.abs() @ y.abs()).max()) if n * m * x.numel() else 0.0
        wrong += draw.complain(f"batch_dot {seed}", got, x @ y, size)
    assert not wrong, "\n".join(wrong)


def test_rows_with_nan_or_infinity_and_empty_arrays() -> None:
    x = np.array([[-np.inf, -np.inf], [np.nan, 0], [np.inf, 0], [-np.inf, 1]])
    want = [[0, 0], [np.nan, np.nan], [np.nan, np.nan], [0, 1]]
    assert worst(qkv.softmax(x), want) == 0
    masked = np.array([[1.0, np.nan], [np.inf, 0]])
    assert worst(qkv.masked_softmax(masked, np.array([1, 0])), [[1, 0], [0, 0]]) == 0
    for shape in ((0,), (3, 0), (0, 3)):
        assert qkv.softmax(np.zeros(shape)).shape == shape
    assert not qkv.batch_dot(np.zeros((2, 3, 0)), np.zeros((2, 0, 4))).any()
    assert qkv.batch_dot(np.zeros((0, 3, 2)), np.zeros((0, 2, 4))).shape == (0, 3, 4)
