# SPDX-License-Identifier: Apache-2.0
"""Computes from a problem how far its results may be from the oracle's.

The *naive* composition holds sums in float32 and rounds scores, weights and out once to the input
type (in the backward pass, their gradients). A result's error may be twice that of the naive one
(gradients: three times) plus 4 units in the last place; in float64, it may be 1e-11 of the largest
terms. Where terms cancel, "largest" refers to the terms that are added, not to their sum.
"""

from __future__ import annotations

import math
from typing import Any

from judge import torch
from oracle_layout import Call, Problem, gather, lay_out, leaves
from oracle_torch import (
    EXACT,
    Arithmetic,
    dropout_factor,
    over_length,
    per_head,
    projections,
    scale_of,
    scores,
    slopes_of,
    softmax,
    sums,
)

FLOAT64 = 1e-11
# The unit in the last place of numbers from 1 to 2, and the smallest positive number, by dtype.
UNIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LEAST = {"float64": 0.0, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
# The number of rounding errors of the accumulator, each relative to the terms added, that a sum may
# have beyond the naive error (which may be 0 by chance on small problems).
TERMS = 8


def ulp(x: float, dtype: str) -> float:
    return max(x * UNIT[dtype], LEAST[dtype])


def largest(x: Any) -> float:
    """The largest finite magnitude in x; 0 if there is none."""
    x = x.detach()
    x = x[torch.isfinite(x)]
    return float(x.abs().max()) if x.numel() else 0.0


def reduced(dtype: str, draw: int) -> Arithmetic:
    """float32 arithmetic whose scores, weights and outs are rounded to `dtype`.

    Draw 0 rounds to nearest, all others round up or down at random. The additive score has
    an error of up to 1.5 x 2^-22 sum_u |v_u|, from the errors of all tanh of a pair together.
    """
    kind = getattr(torch, dtype)
    chance = torch.Generator().manual_seed(draw)

    def rounded(x: Any) -> Any:
        if dtype == "float32":
            return x
        if draw:
            x = x * (1 + UNIT[dtype] * (torch.rand(x.shape, generator=chance) - 0.5))
        return x.to(kind).to(torch.float32)

    def tanh(x: Any, v: Any) -> Any:
        side = torch.ones(x.shape[:-1])
        side.view(-1)[::2] = -1
        return torch.tanh(x) + 1.5 * 2.0**-22 * side[..., None] * torch.sign(v)

    return Arithmetic(rounded, tanh)


class Pass:
    """One problem computed forward and backward by formula, in the dtype of its arrays."""

    def __init__(self, p: Problem, how: Arithmetic) -> None:
        self.p, self.how = p, how
        self.scores = scores(p, how)
        self.soft = softmax(p.call, self.scores)
        self.z = dropout_factor(p)
        self.weights = how.rounded(self.soft.weights)
        self.out = None if p.v is None else how.rounded((self.weights * self.z) @ p.v)

    def weights_again(self) -> Any:
        """exp(s - lse): the weights in the backward pass; lse is rounded at its own magnitude."""
        s, lse = self.scores, self.soft.lse
        shift = lse.masked_fill(lse == -math.inf, 0)[..., None]
        return self.how.rounded(torch.exp(torch.where(s.live, s.final - shift, 0)) * s.live)

    def outputs(self) -> dict[str, Any]:
        s, w = self.scores, self.soft.weights
        found = {
            "weights": w,
            "dropped": w * self.z,
            "raw": s.raw,
            "capped": s.capped,
            "masked": s.final.masked_fill(~s.live, -math.inf),
            "lse": self.soft.lse,
            "row_max": self.soft.row_max,
            **sums(self.p, w),
        }
        return found if self.out is None else {"out": self.out, **found}

    def score_gradient(self, into: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Returns ds, the sum of the magnitudes of its terms, and (delta, its magnitude).

        delta = dout . out + sum_j w_j dweights_j - dlse,  ds_j = w_j (dw_j - delta).
        """
        r, w = self.how.rounded, self.weights_again()
        dout, dlse = into["out"], into["lse"]
        dw = r(self.z * (dout @ self.p.v.transpose(-1, -2)))
        size = self.z * (dout.abs() @ self.p.v.abs().transpose(-1, -2)) + into["weights"].abs()
        dw = dw + into["weights"]
        empty = self.soft.lse == -math.inf
        delta = (dout * self.out).sum(-1) + (w * into["weights"]).sum(-1)
        delta = (delta - dlse).masked_fill(empty, 0)
        delta_size = (w * size).sum(-1) + dlse.abs().masked_fill(empty, 0)
        ds = r(w * (dw - delta[..., None]))
        return ds, w * (size + delta_size[..., None]), (delta, delta_size)


def _surrogate(p: Problem) -> Any:
    """A score made of magnitudes, whose derivatives bound those of the score term by term."""
    call = p.call
    if call.score in ("dot", "scaled_dot"):
        s = p.q.abs() @ p.k.abs().transpose(-1, -2)
    elif call.score == "cosine":  # ds/dq = (k / |k| - s q / |q|) / |q|
        q, k = (over_length(x.abs(), x.detach()) for x in (p.q, p.k))
        fixed_q, fixed_k = q.detach(), k.detach()
        cosines = fixed_q @ fixed_k.transpose(-1, -2)
        along_q, along_k = (q * fixed_q).sum(-1)[..., :, None], (k * fixed_k).sum(-1)[..., None, :]
        s = q @ fixed_k.transpose(-1, -2) + fixed_q @ k.transpose(-1, -2)
        s = s + (along_q + along_k) * cosines
    elif call.score == "bilinear":
        s = (p.q.abs() @ per_head(call.params["W"], 2).abs()) @ p.k.abs().transpose(-1, -2)
    else:  # |tanh| <= 1 and |tanh'| <= 1
        a, r = projections(p)
        v = per_head(call.params["v"], 1)[:, None, :].abs()
        a, r = (a - a.detach()), (r - r.detach())
        s = ((1 + a) * v).sum(-1)[..., :, None] + (r * v).sum(-1)[..., None, :]
    s = abs(scale_of(call)) * s
    if p.bias is not None:
        s = s + p.bias.abs()
    if call.alibi_slopes is not None:
        s = s + slopes_of(p).abs() * p.distance
    return s


def _abs_sources(call: Call) -> Call:
    """The call with absolute values of the arrays that the score is linear in: no terms cancel."""

    def change(name: str, x: Any) -> Any:
        if not x.is_floating_point() or name == "sinks":
            return x
        return x.masked_fill(x == -math.inf, 0).abs()

    return call.map(change)


def _tracked(call: Call, dtype: Any) -> Call:
    def change(_name: str, x: Any) -> Any:
        return x.detach().to(dtype).requires_grad_(True) if x.is_floating_point() else x

    return call.map(change)


def naive(
    call: Call, into: dict[str, Any], dtype: str, draw: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients of the naive composition of `dtype`, as the oracle names them."""
    call = _tracked(call, torch.float32)
    how = reduced(dtype, draw)
    passes = [Pass(p, how) for p in lay_out(call)]
    packed = call.cu_seqlens_q is not None
    outputs: dict[str, list[Any]] = {}
    for one in passes:
        for name, x in one.outputs().items():
            outputs.setdefault(name, []).append(x.detach())
    found = {
        name: gather(call, name, x)
        for name, x in outputs.items()
        if not (packed and x[0].ndim == 4 and name != "out")
    }
    return found, (_backward(call, passes, into) if into else {})


def _backward(call: Call, passes: list[Pass], into: dict[str, Any]) -> dict[str, Any]:
    sources = leaves(call)
    names = [name for name in sources if name not in ("v", "sinks")]
    total = {name: torch.zeros_like(x) for name, x in sources.items()}
    for one, flow in zip(passes, _split(passes, call, into)):
        with torch.no_grad():
            ds, _, (delta, _) = one.score_gradient(flow)
        s = one.scores.final
        pulled = torch.autograd.grad(
            s, [sources[name] for name in names], ds, retain_graph=True, allow_unused=True
        )
        for name, g in zip(names, pulled):
            if g is not None:
                total[name] = total[name] + g
        w = one.weights_again() * one.z
        total["v"] = total["v"] + _pull(one.p.v, sources["v"], w, flow["out"])
        if "sinks" in sources:
            total["sinks"] = total["sinks"] - (one.soft.sink * delta).detach().sum((0, 2))
    return total


def _pull(v: Any, source: Any, w: Any, dout: Any) -> Any:
    """Returns dv = w^T dout in the shape of its source."""
    (g,) = torch.autograd.grad(
        v, [source], (w.detach().transpose(-1, -2) @ dout), retain_graph=True
    )
    return g


def _split(passes: list[Pass], call: Call, into: dict[str, Any]) -> list[dict[str, Any]]:
    """The incoming gradients of each problem: out [B,H,Tq,E], lse [B,H,Tq], weights [B,H,Tq,Tk]."""
    flows = []
    first = 0
    for one in passes:
        shape = one.scores.final.shape
        rows = shape[2]
        out, lse, weights = (into.get(name) for name in ("out", "lse", "weights"))
        if call.cu_seqlens_q is not None:
            out = None if out is None else out[first : first + rows].transpose(0, 1)[None]
            lse = None if lse is None else lse[None, :, first : first + rows]
            first += rows
        elif call.layout == "bthd" and out is not None:
            out = out.transpose(1, 2)
        like = one.scores.final.detach()
        wide = tuple(shape[:3])
        flow = {
            "out": _fit(out, like, (*wide, one.p.v.shape[-1])),
            "lse": _fit(lse, like, wide),
            "weights": _fit(weights, like, tuple(shape)),
        }
        flows.append(flow)
    return flows


def _fit(x: Any, like: Any, shape: tuple[int, ...]) -> Any:
    return like.new_zeros(shape) if x is None else x.to(like.dtype).reshape(shape)


def magnitudes(call: Call, into: dict[str, Any]) -> dict[str, float]:
    """The magnitude of the terms that each gradient sums, computed in float64."""
    call = _tracked(call, torch.float64)
    exact = [Pass(p, EXACT) for p in lay_out(call)]
    sizes = _tracked(_abs_sources(call), torch.float64)
    sources = leaves(sizes)
    names = [name for name in sources if name not in ("v", "sinks")]
    total = {name: torch.zeros_like(x) for name, x in sources.items()}
    for one, rough, flow in zip(exact, lay_out(sizes), _split(exact, call, into)):
        with torch.no_grad():
            _, size, (_, delta) = one.score_gradient(flow)
        pulled = torch.autograd.grad(
            _surrogate(rough),
            [sources[name] for name in names],
            size,
            allow_unused=True,
            retain_graph=True,
        )
        for name, g in zip(names, pulled):
            if g is not None:
                total[name] = total[name] + g.abs()
        total["v"] = total["v"] + _pull(
            rough.v, sources["v"], one.soft.weights * one.z, flow["out"].abs()
        )
        if "sinks" in sources:
            total["sinks"] = total["sinks"] + (one.soft.sink * delta).detach().sum((0, 2))
    return {name: largest(x) for name, x in total.items()}


def score_size(call: Call) -> float:
    """The largest score there would be if none of its terms cancelled."""
    sizes = _abs_sources(call)
    return max([0.0] + [largest(_surrogate(p)) for p in lay_out(sizes)])
