# SPDX-License-Identifier: Apache-2.0
"""Draws random calls, each from one seed: shapes, ranks, strides, dtypes, kinds, options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from judge import torch
from layouts import INTEGERS, STYLE_ODDS, STYLES
from oracle_layout import Call, lead_of

ACCUMULATOR = {"float64": "float64"}  # all other dtypes have float32
FAMILIES = ("two", "three", "four", "five", "mixed", "packed", "bthd")
FAMILY_ODDS = (0.10, 0.15, 0.33, 0.10, 0.12, 0.12, 0.08)
SCORES = {"scaled_dot": 0.35, "dot": 0.1, "cosine": 0.1, "bilinear": 0.2, "additive": 0.25}


@dataclass
class Case:
    """One call: float64 tensors with values that `dtypes` can hold, and how they are passed.

    `into` has incoming gradients of out, lse and weights (float64, with values of their dtypes).
    """

    seed: int
    dtype: str  # q's dtype
    call: Call
    dtypes: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)  # "numpy", "torch"; integers: "list"
    styles: dict[str, str] = field(default_factory=dict)
    into: dict[str, Any] = field(default_factory=dict)
    returns: dict[str, Any] = field(default_factory=dict)
    threads: Optional[int] = None
    family: str = ""

    @property
    def accumulator(self) -> str:
        return ACCUMULATOR.get(self.dtype, "float32")

    def __str__(self) -> str:
        call = self.call
        shapes = ", ".join(
            f"{name} {list(getattr(call, name).shape)}"
            for name in ("q", "k", "v")
            if getattr(call, name) is not None
        )
        options = [call.score, self.family, self.dtype, f"k {self.dtypes['k']}"]
        for name in ("scale", "softcap", "causal", "window", "dropout", "layout"):
            if getattr(call, name) not in (None, False, 0.0, "bhtd"):
                options.append(f"{name}={getattr(call, name)}")
        for name in (
            "mask",
            "padding_mask",
            "bias",
            "key_lengths",
            "causal_offset",
            "alibi_slopes",
            "sinks",
        ):
            x = getattr(call, name)
            if x is not None:
                options.append(f"{name} {list(getattr(x, 'shape', ()))}")
        return f"case {self.seed}: {shapes}; {', '.join(options)}"


def rounded(x: Any, dtype: str) -> Any:
    """x in float64, rounded to values that `dtype` can hold."""
    return x.to(getattr(torch, dtype)).to(torch.float64)


class Maker:
    """Draws one case; each method draws one part of it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([0x71, 0x6B, seed])
        self.seed = seed

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def normal(self, *shape: int) -> Any:
        return torch.from_numpy(self.rng.standard_normal(shape))

    def whole_dtype(self, x: Any) -> str:
        """An integer dtype that can hold x."""
        low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
        fits = [np.iinfo(name).min <= low and high <= np.iinfo(name).max for name in INTEGERS]
        return self.pick(*np.array(INTEGERS)[fits])

    def size(self) -> int:
        if self.chance(0.04):
            return 0
        return int(self.rng.integers(1, 6)) if self.chance(0.3) else int(self.rng.integers(1, 20))

    def case(self) -> Case:
        dtype, key_dtype = self.dtype_pair()
        family = str(self.rng.choice(FAMILIES, p=FAMILY_ODDS))
        self.lengths()
        call = self.arrays(family)
        if self.chance(0.04) and family != "mixed":  # without v, ranks could be equal
            call.v = None
        case = Case(self.seed, dtype, call, family=family)
        case.dtypes = {"q": dtype, "k": key_dtype, "v": key_dtype}
        self.score(call)
        self.numbers(call)
        if family == "packed":
            self.sequence_masks(call, self.entries(call), call.cu_seqlens_k.diff())
        else:
            self.broadcast_masks(call)
        self.presentation(case)
        self.demands(case)
        return case

    def dtype_pair(self) -> tuple[str, str]:
        dtype = str(
            self.rng.choice(["float64", "float32", "bfloat16", "float16"], p=[0.3, 0.4, 0.18, 0.12])
        )
        if dtype == "float32" and self.chance(0.2):
            return dtype, self.pick("bfloat16", "float16")
        return dtype, dtype

    def lengths(self) -> None:
        """Draws Tq and Tk: small, across panels of 64, blocks of 128 or a chunk of 512."""
        kind = self.rng.random()
        self.small = kind >= 0.14
        if kind < 0.04:
            self.tq, self.tk = self.pick(1, 3, 9), int(self.rng.integers(500, 1100))
        elif kind < 0.06:
            self.tq, self.tk = int(self.rng.integers(100, 300)), self.pick(2, 17)
        elif kind < 0.14:
            self.tq, self.tk = (int(n) for n in self.rng.integers(30, 140, 2))
        else:
            self.tq, self.tk = self.size(), self.size()
            if self.chance(0.15):
                self.tq, self.tk = (int(n) for n in self.rng.integers(20, 41, 2))
            if self.chance(0.3):
                self.tk = self.tq

    def width(self) -> int:
        if self.small and self.chance(0.15):
            return self.pick(32, 64, 65, 80, 130)
        return int(self.rng.integers(1, 18))

    def arrays(self, family: str) -> Call:
        score = str(self.rng.choice(list(SCORES), p=list(SCORES.values())))
        self.d = self.width()
        self.dk = self.width() if score in ("bilinear", "additive") else self.d
        self.e = self.width()
        shapes = getattr(self, "shapes_" + family)()
        size = self.pick(0.3, 1.0, 1.0, 2.0) / (self.d**0.25 if score == "dot" else 1)
        q, k, v = (self.normal(*shape) for shape in shapes)
        call = Call(q * size, k * size, v, score=score)
        if family == "bthd":
            call.layout = "bthd"
        if family == "packed":
            call.cu_seqlens_q = torch.tensor(self.cuts[0])
            call.cu_seqlens_k = torch.tensor(self.cuts[1])
        return call

    # ---- shapes of q, k, v ------------------------------------------------------------------

    def batch(self) -> int:
        return int(self.rng.integers(0 if self.chance(0.1) else 1, 4)) if self.small else 1

    def heads(self, least: int = 0) -> tuple[int, int]:
        """Draws H and G."""
        if not self.small:
            return self.pick((1, 1), (2, 1))
        if least == 0 and self.chance(0.03):
            return 0, 0
        return self.pick((1, 1), (2, 2), (2, 1), (4, 2), (6, 3), (3, 1), (3, 3))

    def shapes_two(self) -> list[tuple[int, ...]]:
        return [(self.tq, self.d), (self.tk, self.dk), (self.tk, self.e)]

    def shapes_three(self) -> list[tuple[int, ...]]:
        return self.with_batch([(), (), ()], (self.batch(),))

    def shapes_four(self) -> list[tuple[int, ...]]:
        h, g = self.heads()
        return self.with_batch([(h,), (g,), (g,)], (self.batch(),))

    def shapes_five(self) -> list[tuple[int, ...]]:
        h, g = self.pick((1, 1), (2, 1), (2, 2))
        more = (2,) if self.chance(0.2) else ()
        return self.with_batch([(h,), (g,), (g,)], (*more, self.pick(1, 2), self.pick(1, 2, 3)))

    def with_batch(
        self, heads: list[tuple[int, ...]], batch: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """Adds batch axes in front; in each array some of them may have size 1."""
        shapes = []
        for own, last in zip(heads, self.shapes_two()):
            axes = tuple(1 if self.chance(0.12) else n for n in batch)
            shapes.append(axes + own + last)
        return shapes

    def shapes_mixed(self) -> list[tuple[int, ...]]:
        """Shapes whose ranks are from 2 to 5 and not all equal."""
        h, g = self.heads(least=1)
        lead = (self.pick(1, 2), self.pick(1, 2))
        while True:
            ranks = [int(n) for n in self.rng.integers(2, 6, 3)]
            if len(set(ranks)) > 1:
                break
        shapes = []
        for rank, own, last in zip(ranks, (h, g, g), self.shapes_two()):
            axes = tuple(1 if self.chance(0.15) else n for n in (*lead, own))
            shapes.append((axes[5 - rank :] if rank > 2 else ()) + last)
        return shapes

    def shapes_bthd(self) -> list[tuple[int, ...]]:
        h, g = self.heads()
        b = self.batch()
        return [(b, self.tq, h, self.d), (b, self.tk, g, self.dk), (b, self.tk, g, self.e)]

    def shapes_packed(self) -> list[tuple[int, ...]]:
        h, g = self.heads()
        count = int(self.rng.integers(1, 5))
        self.cuts = [
            [0, *np.cumsum(self.rng.integers(0, max(2, t), count)).tolist()]
            for t in (self.tq, self.tk)
        ]
        tq, tk = (cut[-1] for cut in self.cuts)
        return [(tq, h, self.d), (tk, g, self.dk), (tk, g, self.e)]

    # ---- options ----------------------------------------------------------------------------

    def query_heads(self, call: Call) -> int:
        if call.cu_seqlens_q is not None:
            return int(call.q.shape[1])
        lead = lead_of(call)
        ranks = {x.ndim for x in (call.q, call.k, call.v) if x is not None}
        return lead[-1] if max(ranks) > 3 or len(ranks) > 1 else 1

    def entries(self, call: Call) -> int:
        """B, or the number of packed sequences."""
        if call.cu_seqlens_k is not None:
            return len(call.cu_seqlens_k) - 1
        lead, heads = lead_of(call), self.query_heads(call)
        return int(np.prod(lead)) // heads if heads else int(np.prod(lead[:-1]))

    def score(self, call: Call) -> None:
        """Draws the score and its parameters, each with or without a head axis."""
        heads = self.query_heads(call)

        def parameter(*shape: int) -> Any:
            return self.normal(*((heads,) if self.chance(0.35) else ()), *shape)

        if call.score == "bilinear":
            call.params = {"W": parameter(self.d, self.dk) / max(1, self.d * self.dk) ** 0.5}
        if call.score == "additive":
            units = self.pick(1, 2, 5, 8, 31, 33, 40) if self.small else self.pick(1, 3, 8)
            call.params = {
                "Wq": parameter(units, self.d) / self.d**0.5,
                "Wk": parameter(units, self.dk) / self.dk**0.5,
                "v": parameter(units),
            }
            if self.chance(0.5):
                call.params["b"] = parameter(units)

    def numbers(self, call: Call) -> None:
        heads = self.query_heads(call)
        if self.chance(0.25):
            call.scale = self.pick(0.2, 0.7, 1.3, -0.5)
        if self.chance(0.25):
            call.softcap = self.pick(0.8, 5.0, 30.0)
        if self.chance(0.2):
            call.window = self.pick((2, 1), (0, 3), (-1, 2), (4, -1), (0, 0), (-1, -1))
        if self.chance(0.35):
            call.causal = self.pick(True, True, "bottom_right", "top_left")
        if self.chance(0.2):
            call.alibi_slopes = self.normal(heads).abs() * 0.3
            if self.seed % 2:  # [B,H]
                factors = torch.linspace(0.5, 1.5, self.entries(call), dtype=torch.float64)
                call.alibi_slopes = factors[:, None] * call.alibi_slopes
        if self.chance(0.25):
            call.sinks = self.normal(heads) * 2
            if heads and self.chance(0.1):
                call.sinks[0] = -np.inf
        if self.chance(0.25):
            call.dropout = self.pick(0.1, 0.3, 0.75)
            call.seed = int(self.rng.integers(0, 2**63, dtype=np.uint64)) * self.pick(1, 2)

    def sequence_masks(self, call: Call, batch: int, limits: Any) -> None:
        """Draws options per batch entry: key lengths [B] up to `limits` [B], and offsets."""
        if self.chance(0.3):
            drawn = self.rng.integers(0, limits.numpy() + 1, batch)
            call.key_lengths = torch.from_numpy(drawn)
        if call.causal is True and self.chance(0.8):
            offset = torch.from_numpy(self.rng.integers(-3, 6, batch))
            call.causal_offset = offset if self.chance(0.5) else int(self.rng.integers(-3, 6))

    def broadcast_masks(self, call: Call) -> None:
        lead, batch = lead_of(call), self.entries(call)
        self.sequence_masks(call, batch, torch.full((batch,), self.tk))
        if call.key_lengths is not None and self.chance(0.4):
            drawn = self.rng.integers(0, self.tk + 1, (batch, self.tq))
            call.key_lengths = torch.from_numpy(drawn)
        wide = (*lead, self.tq, self.tk)
        if self.chance(0.2):
            call.mask = torch.from_numpy(self.rng.random(self.some_axes(wide)) < 0.7)
        if self.chance(0.2):
            call.padding_mask = torch.from_numpy(self.rng.random((batch, self.tk)) < 0.3)
        if self.chance(0.3):
            call.bias = self.normal(*self.some_axes(wide))
            if self.chance(0.4):
                where = torch.from_numpy(self.rng.random(tuple(call.bias.shape)) < 0.2)
                call.bias = call.bias.masked_fill(where, -np.inf)

    def some_axes(self, wide: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to `wide`: some axes are 1, some leading axes are omitted."""
        shape = tuple(1 if self.chance(0.3) else n for n in wide)
        return shape[int(self.rng.integers(0, len(wide))) if self.chance(0.4) else 0 :]

    # ---- presentation -----------------------------------------------------------------------

    def presentation(self, case: Case) -> None:
        """Draws dtype, kind and strides of each array, and rounds its values to the dtype."""
        kind = self.pick("numpy", "numpy", "torch", "any")

        def change(name: str, x: Any) -> Any:
            case.kinds[name] = self.pick("numpy", "torch") if kind == "any" else kind
            case.styles[name] = str(self.rng.choice(STYLES, p=STYLE_ODDS))
            if case.family == "packed" and not x.is_floating_point():
                case.styles[name] = "sliced"  # repeated lengths might be invalid
            if case.styles[name] == "repeated":
                axis = int(self.rng.integers(x.ndim))
                for n in {axis, (axis + self.seed % 3) % x.ndim}:  # one axis, or two
                    x = x.narrow(n, 0, min(1, x.shape[n])).expand(x.shape)
            if not x.is_floating_point():
                yes_no = x.dtype == torch.bool
                case.dtypes[name] = self.pick("bool", self.whole_dtype(x))
                if not yes_no:
                    case.dtypes[name] = self.whole_dtype(x)
                if not yes_no and self.chance(0.2):
                    case.kinds[name] = "list"
                return x
            if name not in case.dtypes:
                case.dtypes[name] = self.pick(case.dtype, case.accumulator)
            return rounded(x, case.dtypes[name])

        case.call = case.call.map(change)

    def demands(self, case: Case) -> None:
        packed = case.family == "packed"
        flags = {
            "return_weights": False if packed else self.pick(False, True, "dropped"),
            "return_scores": None if packed else self.pick(None, None, "raw", "capped", "masked"),
            "return_row_max": self.chance(0.3),
            "return_column_sums": self.chance(0.3),
            "return_top": self.pick(0, 0, 1, 3, 7),
            "return_entropy": self.chance(0.3),
            "return_value_sums": self.chance(0.3) and case.call.v is not None,
            "return_pooled": False if packed else self.pick(False, False, (1, 3), (4, 2), (30, 30)),
        }
        case.returns = {name: value for name, value in flags.items() if value}
        case.threads = self.pick(None, 1, 2)


def make_case(seed: int) -> Case:
    return Maker(seed).case()


def draw_into(case: Case, outputs: dict[str, Any]) -> None:
    """Draws incoming gradients of some of out, lse and weights; dout nearly always."""
    rng = np.random.default_rng([0x71, 0x6B, case.seed, 1])
    dtypes = {"out": case.dtype, "lse": case.accumulator, "weights": case.accumulator}
    odds = {"out": 1.0, "lse": 0.3, "weights": 0.3}
    if rng.random() < 0.06:
        odds = {"out": 0.0, "lse": 1.0, "weights": 0.5}
    for name, dtype in dtypes.items():
        if name in outputs and rng.random() < odds[name]:
            shape = tuple(outputs[name].shape)
            case.into[name] = rounded(torch.from_numpy(rng.standard_normal(shape)), dtype)
