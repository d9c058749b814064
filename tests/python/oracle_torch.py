# SPDX-License-Identifier: Apache-2.0
"""The oracle: attention in plain torch operations, with gradients by autograd.

    raw -> soft-cap -> + bias - ALiBi -> masks -> sink -> softmax -> dropout -> weighted sum

`evaluate` gives every output and `gradients` every gradient in the dtype of the call's arrays
(float64 for the oracle). Arrays must be finite, except -inf in a bias or a sink.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
from judge import torch
from oracle_layout import Call, Problem, gather, lay_out, leaves
from oracle_philox import dropout_factors

MATRICES = ("weights", "dropped", "raw", "capped", "masked")


@dataclass
class Arithmetic:
    """How raw scores are rounded (in `Pass`, weights and out, too), and the additive score's tanh.

    `tanh` takes its argument and the parameter v, on which the sign of its error may depend.
    """

    rounded: Callable[[Any], Any] = lambda x: x
    tanh: Callable[[Any, Any], Any] = lambda x, v: torch.tanh(x)


EXACT = Arithmetic()


def per_head(x: Any, own_rank: int) -> Any:
    """The parameter x as [1 or H, ...]; `own_rank` is its rank without a head axis."""
    return x[None] if x.ndim == own_rank else x


def slopes_of(p: Problem) -> Any:
    """ALiBi's slopes, with or without an axis of batch entries, as [1 or B,H,1,1]."""
    slopes = p.call.alibi_slopes
    slopes = slopes[None] if slopes.ndim == 1 else slopes[p.first_b : p.first_b + p.q.shape[0]]
    return slopes[..., None, None]


def scale_of(call: Call) -> float:
    if call.scale is not None:
        return call.scale
    return 1 / math.sqrt(call.q.shape[-1]) if call.score == "scaled_dot" else 1.0


def projections(p: Problem) -> tuple[Any, Any]:
    """The projections of the additive score, Wq q + b [B,H,Tq,U] and Wk k [B,H,Tk,U]."""
    params = p.call.params
    a = p.q @ per_head(params["Wq"], 2).transpose(-1, -2)
    r = p.k @ per_head(params["Wk"], 2).transpose(-1, -2)
    if params.get("b") is not None:
        a = a + per_head(params["b"], 1)[:, None, :]
    return a, r


def over_length(x: Any, by: Any) -> Any:
    """Each row of x divided by the norm |by|; a row of zeros gives 0."""
    length = by.norm(dim=-1, keepdim=True)
    return x / length.masked_fill(length == 0, math.inf)


def raw_scores(p: Problem, how: Arithmetic = EXACT) -> Any:
    """The raw scores (with the scale), [B,H,Tq,Tk]."""
    call = p.call
    if call.score in ("dot", "scaled_dot"):
        s = p.q @ p.k.transpose(-1, -2)
    elif call.score == "cosine":
        s = over_length(p.q, p.q) @ over_length(p.k, p.k).transpose(-1, -2)
    elif call.score == "bilinear":
        s = (p.q @ per_head(call.params["W"], 2)) @ p.k.transpose(-1, -2)
    else:
        a, r = projections(p)
        v = per_head(call.params["v"], 1)[:, None, None, :]
        s = (how.tanh(a[..., :, None, :] + r[..., None, :, :], v) * v).sum(-1)
    return how.rounded(scale_of(call) * s)


@dataclass
class Scores:
    """Scores [B,H,Tq,Tk]. `live` is true for unmasked pairs; `final` is 0 for masked ones."""

    raw: Any
    capped: Any
    final: Any
    live: Any


def scores(p: Problem, how: Arithmetic = EXACT) -> Scores:
    call = p.call
    raw = raw_scores(p, how)
    capped = call.softcap * torch.tanh(raw / call.softcap) if call.softcap else raw
    s, live = capped, p.allowed
    if p.bias is not None:
        masks = p.bias == -math.inf
        s, live = s + p.bias.masked_fill(masks, 0), live & ~masks
    if call.alibi_slopes is not None:
        s = s - slopes_of(p) * p.distance
    return Scores(raw, capped, torch.where(live, s, 0), live)


@dataclass
class Softmax:
    """The weights [B,H,Tq,Tk], and lse, row_max and sink (the sink's weight) [B,H,Tq]."""

    weights: Any
    lse: Any
    row_max: Any
    sink: Any


def softmax(call: Call, s: Scores) -> Softmax:
    shape = s.final.shape
    sinks = None if call.sinks is None else call.sinks[None, :, None].expand(shape[:3])
    m = s.final.new_full(shape[:3], -math.inf)
    if shape[3] > 0:
        m = s.final.detach().masked_fill(~s.live, -math.inf).amax(-1)
    if sinks is not None:
        m = torch.maximum(m, sinks.detach())
    shift = m.masked_fill(m == -math.inf, 0)
    e = torch.exp(torch.where(s.live, s.final - shift[..., None], 0)) * s.live
    sink = torch.zeros_like(m) if sinks is None else torch.exp(sinks - shift)
    total = e.sum(-1) + sink
    empty = total == 0
    total = total.masked_fill(empty, 1)
    lse = torch.where(empty, -math.inf, shift + torch.log(total))
    return Softmax(e / total[..., None], lse, m, sink / total)


def dropout_factor(p: Problem) -> Any:
    """The factor of each weight, 0 or 1/(1-p), [B,H,Tq,Tk]."""
    shape = (p.q.shape[0], p.q.shape[1], p.q.shape[2], p.k.shape[2])
    if not p.call.dropout:
        return p.q.new_ones(shape)
    batches, *others = (np.arange(size) for size in shape)
    factors = dropout_factors(p.call.dropout, p.call.seed or 0, p.first_b + batches, *others)
    return torch.from_numpy(factors != 0).to(p.q.dtype) / (1 - p.call.dropout)


def sums(p: Problem, weights: Any) -> dict[str, Any]:
    """The results that sum weights [B,H,Tq,Tk] over queries or keys, except pooled weights."""
    found = {
        "column_sums": weights.sum(-2),
        "entropy": -torch.special.xlogy(weights, weights).sum(-1),
    }
    if p.v is not None:
        found["value_sums"] = weights.sum(-2) * p.v.norm(dim=-1)
    return found


def pooled(weights: Any, cells: tuple[int, int]) -> Any:
    """For m x n cells, [..,m,n]: the mean over a cell's queries of its weights' sum over keys."""
    queries, keys = weights.shape[-2:]
    rows, columns = (
        torch.eye(n, dtype=weights.dtype)[torch.arange(t) * n // max(t, 1)]
        for n, t in zip(cells, (queries, keys))
    )
    return rows.T @ weights @ columns / rows.sum(0).clamp(min=1)[:, None]


def evaluate(call: Call) -> dict[str, Any]:
    """Outputs except top and pooled, in the caller's shapes, and "live", true for unmasked pairs.

    For packed calls, the lists "weights of each" and "live of each" replace all matrices.
    """
    parts: dict[str, list[Any]] = {}
    for p in lay_out(call):
        s = scores(p)
        w = softmax(call, s)
        dropped = w.weights * dropout_factor(p)
        found = {
            "weights": w.weights,
            "dropped": dropped,
            "raw": s.raw,
            "capped": s.capped,
            "masked": s.final.masked_fill(~s.live, -math.inf),
            "live": s.live,
            "lse": w.lse,
            "row_max": w.row_max,
            **sums(p, w.weights),
        }
        if p.v is not None:
            found["out"] = dropped @ p.v
        for name, x in found.items():
            parts.setdefault(name, []).append(x)
    packed = call.cu_seqlens_q is not None
    skipped = (*MATRICES, "live") if packed else ()
    results = {name: gather(call, name, x) for name, x in parts.items() if name not in skipped}
    if packed:
        for name in ("weights", "live"):
            results[f"{name} of each"] = [x[0] for x in parts[name]]  # [H,Tq,Tk] for each sequence
    return results


def loss(outputs: dict[str, Any], into: dict[str, Any]) -> Any:
    """The sum of outputs times their incoming gradients; an output of -inf does not contribute."""
    total = 0.0
    for name, gradient in into.items():
        x = outputs[name]
        total = total + torch.where(x == -math.inf, 0, x * gradient).sum()
    return total


def gradients(call: Call, into: dict[str, Any]) -> dict[str, Any]:
    """Gradients by name ("q", "params.W", ...), each with the shape of its array.

    `into` has gradients of the loss with respect to "out", "lse", "weights"; absent ones are zero.
    """
    tracked = call.map(_track)
    sources = leaves(tracked)
    value = loss(evaluate(tracked), into)
    found = torch.autograd.grad(value, list(sources.values()), allow_unused=True)
    return {
        name: torch.zeros_like(x) if g is None else g
        for (name, x), g in zip(sources.items(), found)
    }


def _track(name: str, x: Any) -> Any:
    return x.detach().clone().requires_grad_(True) if x.is_floating_point() else x
