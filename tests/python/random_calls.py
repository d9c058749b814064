# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies: valid calls of the functions, and arbitrary arguments."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import ml_dtypes
import numpy as np
import pytest
import strange
from hypothesis import strategies as st

try:
    import torch
except ImportError:  # then no tensors are drawn, and their tests are skipped
    torch = None

# Hypothesis writes what it finds in the sources to a file; not into the source tree.
ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / "build" / "hypothesis"))

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not here")

FLOATS = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
SCORES = ("scaled_dot", "scaled_dot", "dot", "cosine", "bilinear", "additive")
INTEGERS = [np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8)]


def accumulator(dtype: str) -> np.dtype:
    return FLOATS["float64" if dtype == "float64" else "float32"]


# ---- memory --------------------------------------------------------------------------------------


def laid_out(array: np.ndarray, how: int) -> np.ndarray:
    """The same numbers in other memory: transposed, with gaps, reversed, read-only, misaligned."""
    if how == 1:
        return np.asfortranarray(array)
    if how == 2 and array.ndim > 0:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if how == 3:
        return np.flip(np.ascontiguousarray(np.flip(array)))
    if how == 4:
        array = array.copy()
        array.flags.writeable = False
        return array
    if how == 5 and array.size > 0 and array.dtype.kind != "O":
        memory = np.zeros(array.nbytes + 1, np.uint8)
        odd = np.frombuffer(memory.data, array.dtype, array.size, offset=1).reshape(array.shape)
        odd[...] = array
        return odd
    if how == 6 and array.dtype.kind in "fiu" and array.dtype != FLOATS["bfloat16"]:
        return array.astype(array.dtype.newbyteorder("S"))
    return array


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
        dtype = self.pick(*INTEGERS)
        low, high = max(low, np.iinfo(dtype).min), min(high, np.iinfo(dtype).max)
        return self.place(self.generator.integers(low, high, shape, endpoint=True).astype(dtype))

    def flags(self, *shape: int) -> Any:
        array = self.generator.random(shape) < 0.7
        return self.place(array if self.chance() else array.astype(self.pick(*INTEGERS)))

    def place(self, array: np.ndarray) -> Any:
        if self.tensors:
            return as_tensor(array)
        return laid_out(array, int(self.generator.integers(12)))


# ---- right calls ---------------------------------------------------------------------------------


@dataclass
class Call:
    """A call of qkv.`function`; `results` are the shapes and dtypes that it must give."""

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    results: list[tuple[tuple[int, ...], Any]] = field(default_factory=list)
    tensors: bool = False


@dataclass
class Sizes:
    """Of a call with `lead` = B and H as far as the rank has them."""

    B: int
    H: int
    G: int
    Tq: int
    Tk: int
    D: int
    Dk: int
    E: int
    rank: int

    def lead(self, heads: int) -> tuple[int, ...]:
        return {2: (), 3: (self.B,), 4: (self.B, heads), 5: (1, self.B, heads)}[self.rank]


def draw_sizes(r: Random, rank: int, score: str) -> Sizes:
    n = r.generator.integers
    heads = int(n(0, 3)) if rank > 3 else 1
    B = int(n(0, 4)) if rank > 2 else 1
    D = int(n(1, 7))
    Dk = int(n(1, 7)) if score in ("bilinear", "additive") else D
    group = int(n(1, 4)) if rank > 3 else 1
    return Sizes(B, heads * group, heads, int(n(0, 6)), int(n(0, 7)), D, Dk, int(n(1, 6)), rank)


def params_of(r: Random, s: Sizes, score: str, dtype: np.dtype) -> Any:
    units = int(r.generator.integers(1, 6))
    head = (s.H,) if r.chance() else ()
    if score == "bilinear":
        return {"W": r.reals(dtype, *head, s.D, s.Dk)}
    if score == "additive":
        params = {
            "Wq": r.reals(dtype, *head, units, s.D),
            "Wk": r.reals(dtype, *head, units, s.Dk),
            "v": r.reals(dtype, units),
        }
        if r.chance():
            params["b"] = r.reals(dtype, units)
        return params
    return None


def options_of(r: Random, s: Sizes, dtype: str, score: str) -> dict[str, Any]:
    element = FLOATS[dtype]
    matrix = (*s.lead(s.H), s.Tq, s.Tk)
    maybe = {
        "scale": lambda: float(r.generator.random()),
        "softcap": lambda: r.pick(0, 0.5, 30.0),
        "bias": lambda: r.reals(element, *matrix[int(r.generator.integers(len(matrix))) :]),
        "mask": lambda: r.flags(*matrix[int(r.generator.integers(len(matrix))) :]),
        "padding_mask": lambda: r.flags(s.B, s.Tk),
        "key_lengths": lambda: r.integers(0, s.Tk, s.B, *r.pick((), (s.Tq,))),
        "causal": lambda: r.pick(False, True, "bottom_right", "top_left"),
        "window": lambda: (r.pick(-1, 0, 2), r.pick(-1, 0, 1)),
        "alibi_slopes": lambda: r.reals(element, s.H),
        "sinks": lambda: r.reals(element, s.H),
    }
    options = {name: make() for name, make in maybe.items() if r.chance()}
    params = params_of(r, s, score, element)
    if params is not None:
        options["params"] = params
    if options.get("causal") is True and r.chance():
        options["causal_offset"] = r.pick(-1, 2, r.integers(-2, 3, s.B))
    if r.chance():
        options.update(dropout=r.pick(0.0, 0.25), seed=int(r.generator.integers(2**63)))
    if r.chance():
        options["threads"] = r.pick(1, 2)
    return options


def kept_values(r: Random, dtype: str) -> str:
    """The dtype of keys and values for queries of `dtype`."""
    if dtype == "float32" and r.chance():
        return str(r.pick("bfloat16", "float16"))
    return dtype


def qkv_of(r: Random, s: Sizes, dtype: str) -> tuple[Any, Any, Any]:
    element, kept = FLOATS[dtype], FLOATS[kept_values(r, dtype)]
    return (
        r.reals(element, *s.lead(s.H), s.Tq, s.D),
        r.reals(kept, *s.lead(s.G), s.Tk, s.Dk),
        r.reals(kept, *s.lead(s.G), s.Tk, s.E),
    )


def new_random(draw: Any) -> Random:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tensors = torch is not None and bool(generator.random() < 0.3)
    return Random(draw, generator, tensors)


def packed_options(r: Random, s: Sizes, dtype: str, score: str) -> dict[str, Any]:
    """Those that packed sequences have."""
    options = options_of(r, s, dtype, score)
    for name in ("bias", "mask", "padding_mask", "key_lengths"):
        options.pop(name, None)
    return options


@dataclass
class Drawn:
    """A call and the shapes of what it gives."""

    call: Call
    out: tuple[int, ...]
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    matrix: Optional[tuple[int, ...]]
    dtype: str


def draw_padded(r: Random, call: Call, dtype: str, score: str) -> Drawn:
    s = draw_sizes(r, r.pick(2, 3, 4, 5), score)
    q, k, v = qkv_of(r, s, dtype)
    out = (*s.lead(s.H), s.Tq, s.E)
    call.arguments.update(q=q, k=k, v=v, score=score, **options_of(r, s, dtype, score))
    if s.rank == 4 and r.chance():
        call.arguments.update(layout="bthd", q=turned(q), k=turned(k), v=turned(v))
        out = (s.B, s.Tq, s.H, s.E)
    row = s.lead(s.H)
    return Drawn(call, out, (*row, s.Tq), (*row, s.Tk), (*row, s.Tq, s.Tk), dtype)


def turned(array: Any) -> Any:
    """[B,H,T,.] as [B,T,H,.], the same memory."""
    return array.swapaxes(1, 2)


def draw_packed(r: Random, call: Call, dtype: str, score: str) -> Drawn:
    s = draw_sizes(r, 4, score)
    cuts = [np.concatenate([[0], r.generator.integers(0, 5, s.B).cumsum()]) for _ in range(2)]
    sum_q, sum_k = (int(cut[-1]) for cut in cuts)
    element, kept = FLOATS[dtype], FLOATS[kept_values(r, dtype)]
    call.arguments.update(
        q=r.reals(element, sum_q, s.H, s.D),
        k=r.reals(kept, sum_k, s.G, s.Dk),
        v=r.reals(kept, sum_k, s.G, s.E),
        cu_seqlens_q=r.place(cuts[0].astype(r.pick(*INTEGERS))),
        cu_seqlens_k=r.place(cuts[1].astype(r.pick(*INTEGERS))),
        score=score,
        **packed_options(r, s, dtype, score),
    )
    return Drawn(call, (sum_q, s.H, s.E), (s.H, sum_q), (s.H, sum_k), None, dtype)


def draw_call(r: Random, function: str) -> Drawn:
    call = Call(function, tensors=r.tensors)
    score = r.pick(*SCORES)
    make = draw_packed if r.generator.random() < 0.2 else draw_padded
    return make(r, call, r.pick(*FLOATS), score)


@st.composite
def attention_calls(draw: Any) -> Call:
    r = new_random(draw)
    drawn = draw_call(r, "attention")
    call, sums = drawn.call, accumulator(drawn.dtype)
    call.results.append((drawn.out, FLOATS[drawn.dtype]))
    count = r.pick(1, 3)
    wanted = [
        ("return_weights", r.pick(True, "dropped"), drawn.matrix),
        ("return_scores", r.pick("raw", "capped", "masked"), drawn.matrix),
        ("return_lse", True, drawn.rows),
        ("return_row_max", True, drawn.rows),
        ("return_column_sums", True, drawn.keys),
        ("return_top", count, (*drawn.rows, count)),
        ("return_entropy", True, drawn.rows),
        ("return_value_sums", True, drawn.keys),
        ("return_pooled", (3, count), drawn.matrix and (*drawn.rows[:-1], 3, count)),
    ]
    for name, value, shape in wanted:
        if shape is not None and r.chance():
            call.arguments[name] = value
            call.results.append((shape, sums))
            if name == "return_top":
                call.results.append((shape, "integer"))
    return call


@st.composite
def backward_calls(draw: Any) -> Call:
    r = new_random(draw)
    drawn = draw_call(r, "attention_backward")
    call, element, sums = drawn.call, FLOATS[drawn.dtype], accumulator(drawn.dtype)
    call.arguments.update(
        dout=r.reals(element, *drawn.out),
        out=r.reals(element, *drawn.out),
        lse=r.reals(sums, *drawn.rows),
    )
    if r.chance():
        call.arguments["dlse"] = r.reals(sums, *drawn.rows)
    if drawn.matrix is not None and r.chance():
        call.arguments["dweights"] = r.reals(sums, *drawn.matrix)
    return call


@st.composite
def softmax_calls(draw: Any) -> Call:
    r = new_random(draw)
    shape = tuple(int(n) for n in r.generator.integers(0, 5, r.generator.integers(1, 5)))
    dtype = FLOATS[r.pick(*FLOATS)]
    return Call("softmax", {"x": r.reals(dtype, *shape)}, [(shape, dtype)], r.tensors)


@st.composite
def masked_softmax_calls(draw: Any) -> Call:
    r = new_random(draw)
    shape = tuple(int(n) for n in r.generator.integers(0, 5, r.generator.integers(2, 4)))
    dtype = FLOATS[r.pick(*FLOATS)]
    call = Call("masked_softmax", {"x": r.reals(dtype, *shape)}, [(shape, dtype)], r.tensors)
    if not r.chance():
        lengths = shape[: int(r.generator.integers(1, len(shape)))]
        call.arguments["valid_len"] = r.integers(0, shape[-1], *lengths)
    return call


@st.composite
def batch_dot_calls(draw: Any) -> Call:
    r = new_random(draw)
    n, inner, m = (int(size) for size in r.generator.integers(0, 5, 3))
    lead = tuple(int(size) for size in r.generator.integers(0, 4, r.generator.integers(0, 3)))
    dtype = FLOATS[r.pick(*FLOATS)]
    turn_a, turn_b = r.pick(False, True), r.pick(False, True)
    a = (*lead, inner, n) if turn_a else (*lead, n, inner)
    b = (*lead[1:], m, inner) if turn_b else (*lead[1:], inner, m)
    arguments = {"a": r.reals(dtype, *a), "b": r.reals(dtype, *b)}
    arguments.update(transpose_a=turn_a, transpose_b=turn_b)
    return Call("batch_dot", arguments, [((*lead, n, m), dtype)], r.tensors)


# ---- anything ------------------------------------------------------------------------------------

# Small, or so large that no machine has memory for so many results.
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
    """New each time: some keep state."""
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
    """Handmade DLPack: most of it invalid, some of it valid."""
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
    array = laid_out(np.zeros(shape, dtype), int(generator.integers(12)))
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
        warnings.simplefilter("ignore")  # quantized tensors will go one day
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
