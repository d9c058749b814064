# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for valid calls of the functions and for arbitrary arguments."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
import strange
from hypothesis import strategies as st
from judge import torch as judges_torch
from layouts import ARRAYS, INTEGERS, STYLE_ODDS, STYLES, styled

if judges_torch is not None:
    from judge_calls import right_arguments

try:
    import torch
except ImportError:  # without torch no tensors are drawn, and their tests are skipped
    torch = None

# Hypothesis writes the constants that it finds in sources to a folder that git ignores.
ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / "build" / "hypothesis"))

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not here")

FLOATS = {name: ARRAYS[name] for name in ("float32", "float64", "float16", "bfloat16")}
WHOLE = [ARRAYS[name] for name in INTEGERS]


# ---- random arrays -------------------------------------------------------------------------------


def as_tensor(array: np.ndarray) -> Any:
    """The array as a torch tensor; unchanged if torch has no such dtype."""
    try:
        if array.dtype == FLOATS["bfloat16"]:
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(array.copy())
    except (TypeError, ValueError):
        return array


@dataclass
class Random:
    """Draws the parts of a valid call: sizes, numbers, layouts."""

    draw: Any
    generator: np.random.Generator
    tensors: bool = False

    def chance(self) -> bool:
        return bool(self.generator.random() < 0.3)

    def pick(self, *values: Any) -> Any:
        return values[self.generator.integers(len(values))]

    def reals(self, dtype: np.dtype, *shape: int) -> Any:
        array = self.generator.standard_normal(shape).astype(dtype)
        if array.size and self.generator.random() < 0.1:
            array.flat[self.generator.integers(array.size)] = self.pick(np.nan, np.inf, -np.inf)
        return self.place(array)

    def integers(self, low: int, high: int, *shape: int) -> Any:
        dtype = self.pick(*WHOLE)
        low, high = max(low, np.iinfo(dtype).min), min(high, np.iinfo(dtype).max)
        return self.place(self.generator.integers(low, high, shape, endpoint=True).astype(dtype))

    def flags(self, *shape: int) -> Any:
        array = self.generator.random(shape) < 0.7
        return self.place(array if self.chance() else array.astype(self.pick(*WHOLE)))

    def place(self, array: np.ndarray) -> Any:
        if self.tensors:
            return as_tensor(array)
        return styled(array, str(self.generator.choice(STYLES, p=STYLE_ODDS)))


# ---- valid calls ---------------------------------------------------------------------------------


def new_random(draw: Any) -> Random:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tensors = torch is not None and bool(generator.random() < 0.3)
    return Random(draw, generator, tensors)


@st.composite
def right_calls(draw: Any, function: str, kind: Optional[str] = None) -> dict[str, Any]:
    """Valid arguments of qkv.`function`; `kind` is the type of arrays for attention functions."""
    if function.startswith("attention"):
        return right_arguments(function, draw(st.integers(0, 2**32 - 1)), kind)
    r = new_random(draw)
    dtype = FLOATS[r.pick(*FLOATS)]
    shape = tuple(int(n) for n in r.generator.integers(0, 5, r.generator.integers(2, 5)))
    if function == "softmax":
        return {"x": r.reals(dtype, *shape)}
    if function == "masked_softmax":
        return {"x": r.reals(dtype, *shape), "valid_len": r.integers(0, shape[-1], *shape[:-1])}
    return {"a": r.reals(dtype, *shape), "b": r.reals(dtype, *shape[:-2], shape[-1], 3)}


# ---- arbitrary arguments -------------------------------------------------------------------------

# Integers are small, or so large that no machine has memory for results of this size.
NUMBERS = [0, 1, -1, 2, 3, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 2**70, -(2**70)]
NUMBERS += [0.0, -0.0, 0.5, 1.0, 1e-320, 1e39, -1e308, float("nan"), float("inf"), -float("inf")]
NUMBERS += [1j, True, False, np.int64(2), np.float32(0.5), np.bool_(True), np.uint64(2**64 - 1)]
WORDS = ["", "dot", "scaled_dot", "bilinear", "additive", "Dot", "raw", "capped", "masked"]
WORDS += ["dropped", "top_left", "bottom_right", "bhtd", "bthd"]
WORDS += ["\0", "\ud800", "x" * 10000, "W", "q\n\t"]
CONTAINERS = [(), [], {}, (1,), (1, 2), [1, 2], (-1, -1), (1, 2, 3), (2**70, 0), ("a", None)]
CONTAINERS += [[[1.0, 2.0], [3.0]], {"W": 1}, {"W": None}, {1: 2}, {"Wq": []}, {1, 2}, range(4)]
CONTAINERS += [b"", b"abcdefgh", bytearray(8), memoryview(b"12345678"), [None] * 3]
DTYPES = ["?", "b", "H", "<i4", ">i4", "q", "Q", "e", ">f2", "f", ">f4", "d", ">f8", "g", "F", "D"]
DTYPES += ["G", "O", "S3", "U2", "M8[s]", "m8[ns]", "V4", "i4,f4", "f4,", "(2,)f4"]


def strange_objects() -> list[Any]:
    """Objects that misbehave, created anew by each call, since some have state."""
    objects = [strange.RaisingDlpack(), strange.RaisingDevice(), strange.OnGpu()]
    objects += [strange.NoCapsule(None), strange.NoCapsule(3), strange.NoCapsule("capsule")]
    objects += [strange.RaisingAttributes(), strange.EveryAttribute(), strange.WrongArray()]
    objects += [strange.RaisingLength(), strange.RaisingNumber(), strange.RaisingText("dot")]
    objects += [strange.RaisingRepr(), strange.ClearingParams(v=np.ones(3, np.float32))]
    objects += [object(), object, len, lambda: 1, NotImplemented, ..., np, np.ndarray, slice(1)]
    objects += [strange.Exporter(device=device) for device in DEVICES]
    return objects


DEVICES = [None, (), (1,), (2, 0), (1, 0, 0), ("cpu", 0), (2**70, 0), (1.5, 0), [1, 0], 1]


@st.composite
def exporters(draw: Any) -> strange.Exporter:
    """Objects with hand-made DLPack methods, most of them invalid and some valid."""
    rank = draw(st.sampled_from([0, 1, 2, 3, 4, 9, 33]))
    shape = tuple(draw(st.sampled_from([0, 1, 2, 3, -1])) for _ in range(rank))
    strides = None
    if draw(st.booleans()):
        strides = tuple(draw(st.sampled_from([0, 1, 2, 6, -1])) for _ in range(rank))
    return strange.Exporter(
        shape,
        strides,
        dtype=(
            draw(st.integers(0, 18)),
            draw(st.sampled_from([1, 4, 8, 16, 32, 64, 128, 255])),
            draw(st.sampled_from([0, 1, 1, 1, 4])),
        ),
        place=draw(st.sampled_from([1, 1, 1, 2])),
        byte_offset=draw(st.sampled_from([0, 0, 0, 4, 1])),
        data=draw(st.sampled_from(["aligned", "aligned", "odd", "null"])),
        name=draw(st.sampled_from([b"dltensor", b"dltensor", b"used_dltensor", b"x"])),
    )


@st.composite
def any_array(draw: Any) -> Any:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(int(n) for n in generator.integers(0, 4, generator.choice([0, 1, 2, 3, 4, 5, 9])))
    dtype = np.dtype(DTYPES[generator.integers(len(DTYPES))])
    if generator.random() < 0.1:
        dtype = FLOATS["bfloat16"]
    array = styled(np.zeros(shape, dtype), str(generator.choice(STYLES, p=STYLE_ODDS)))
    if generator.random() < 0.5:
        values = generator.standard_normal(array.shape) * 3
        if array.dtype.kind in "fiu" and array.flags.writeable:
            array[...] = values.astype(array.dtype)
    if generator.random() < 0.1:
        array = np.ma.masked_array(array)
    if torch is not None and generator.random() < 0.3:
        return as_tensor(array) if array.dtype.kind not in "OSUMmV" else strange_tensor(generator)
    return array


def strange_tensor(generator: np.random.Generator) -> Any:
    makers = [
        lambda: torch.ones(2, 3, device="meta"),
        lambda: torch.ones(2, 3, requires_grad=True),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),
        lambda: torch.complex(torch.ones(2, 2), torch.ones(2, 2)).conj(),
        lambda: torch._neg_view(torch.ones(2, 2)),
        lambda: torch.nn.Parameter(torch.ones(2, 3)),
        lambda: torch.ones(2, 3, dtype=torch.complex64),
        lambda: torch.empty(0),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that quantized tensors are deprecated
        return makers[generator.integers(len(makers))]()


def anything() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.none(),
        st.sampled_from(NUMBERS),
        st.sampled_from(WORDS),
        st.sampled_from(CONTAINERS),
        st.integers(0, len(strange_objects()) - 1).map(lambda n: strange_objects()[n]),
        any_array(),
        any_array(),
        exporters(),
    )
