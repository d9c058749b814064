# SPDX-License-Identifier: Apache-2.0
"""Converts a call in the caller's shapes to the equivalent [B,H,T,.] problems.

Letters: B batch, H query heads, G key heads, Tq queries, Tk keys, D and E widths. Ranks, heads
and packing follow the documentation of `attention`, and not the code of the library.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Optional

from judge import torch


@dataclass
class Call:
    """The arguments of `qkv.attention` by the same names; arrays are torch tensors."""

    q: Any
    k: Any
    v: Any = None
    score: str = "scaled_dot"
    params: dict[str, Any] = field(default_factory=dict)
    scale: Optional[float] = None
    softcap: float = 0.0
    mask: Any = None
    padding_mask: Any = None
    bias: Any = None
    key_lengths: Any = None
    causal: Any = False
    causal_offset: Any = None
    window: Optional[tuple[int, int]] = None
    alibi_slopes: Any = None
    sinks: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    dropout: float = 0.0
    seed: Optional[int] = None
    layout: str = "bhtd"

    def map(self, change: Any) -> Call:
        """The call, each array x replaced by `change(name, x)`; parameter W is named "params.W"."""
        new = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, x in new.items():
            if isinstance(x, torch.Tensor):
                new[name] = change(name, x)
        new["params"] = {n: change(f"params.{n}", x) for n, x in self.params.items()}
        return Call(**new)


# The arguments that are differentiated, in addition to the arrays of `params`.
LEAVES = ("q", "k", "v", "bias", "alibi_slopes", "sinks")


def leaves(call: Call) -> dict[str, Any]:
    """The differentiated arrays of a call by name; the parameter W is named "params.W"."""
    found = {name: getattr(call, name) for name in LEAVES}
    found.update({f"params.{name}": x for name, x in call.params.items()})
    return {name: x for name, x in found.items() if x is not None}


@dataclass
class Problem:
    """A call, or one packed sequence, as q [B,H,Tq,Dq], k [B,H,Tk,Dk], v [B,H,Tk,E] or None."""

    call: Call
    q: Any
    k: Any
    v: Any
    allowed: Any  # bool [B,H,Tq,Tk]: allowed by all masks, without the bias
    distance: Any  # int [B,1,Tq,Tk]: |i + o - j|
    bias: Any  # [B,H,Tq,Tk] or None
    first_b: int = 0  # the first batch entry's index in the call (the packed sequence's index)


def lay_out(call: Call) -> list[Problem]:
    """The problems of a call: one, or one per packed sequence."""
    if call.cu_seqlens_q is not None:
        return _packed(call)
    q, k, v = call.q, call.k, call.v
    if call.layout == "bthd":
        q, k, v = (None if x is None else x.transpose(1, 2) for x in (q, k, v))
    lead, q, k, v = _heads(q, k, v)
    return [_problem(call, (lead, q, k, v), 0)]


def gather(call: Call, name: str, parts: list[Any]) -> Any:
    """Joins the results of the problems, each [B,H,...], to one result in the caller's shape."""
    if call.cu_seqlens_q is not None:
        joined = torch.cat([x[0] for x in parts], dim=1)  # [H, sum T, ...]
        return joined.transpose(0, 1) if name == "out" else joined
    x = parts[0]
    if call.layout == "bthd":
        return x.transpose(1, 2) if name == "out" else x
    return x.reshape(lead_of(call) + tuple(x.shape[2:]))


def lead_of(call: Call) -> tuple[int, ...]:
    """The axes of lse before Tq, heads last if there is a head axis; not for packed sequences."""
    if call.layout == "bthd":
        return (call.q.shape[0], call.q.shape[2])
    return _heads(call.q, call.k, call.v)[0]


def _packed(call: Call) -> list[Problem]:
    problems = []
    cu_q, cu_k = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    for b in range(len(cu_q) - 1):
        q, k, v = (
            None if x is None else x[cu[b] : cu[b + 1]].transpose(0, 1).unsqueeze(0)
            for x, cu in ((call.q, cu_q), (call.k, cu_k), (call.v, cu_k))
        )
        lead, q, k, v = _heads(q, k, v)
        problems.append(_problem(call, (lead, q, k, v), b))
    return problems


def _heads(q: Any, k: Any, v: Any) -> tuple[tuple[int, ...], Any, Any, Any]:
    """The result's leading axes, and q, k, v as [B,H,T,.] with key heads repeated."""
    given = [x for x in (q, k, v) if x is not None]
    widest = max(x.ndim for x in given)
    mixed = len({x.ndim for x in given}) > 1
    has_head_axis = widest > 3 or mixed  # if not, there is one head
    if mixed:
        q, k, v = _stretch(q, k, v, widest)
    elif not has_head_axis:
        q, k, v = (None if x is None else x.unsqueeze(-3) for x in (q, k, v))
    shapes = [x.shape for x in (q, k, v) if x is not None]
    batch = tuple(torch.broadcast_shapes(*(shape[:-3] for shape in shapes)))
    lead = batch + ((q.shape[-3],) if has_head_axis else ())
    q, k, v = (_as_problem(x, batch, q.shape[-3]) for x in (q, k, v))
    return lead, q, k, v


def _stretch(q: Any, k: Any, v: Any, widest: int) -> tuple[Any, Any, Any]:
    """Equalises ranks: missing axes become 1, and a head axis of 1 expands to the key heads."""

    def widen(x: Any, heads: int) -> Any:
        if x is None:
            return None
        x = x.reshape((1,) * (widest - x.ndim) + tuple(x.shape))
        if x.shape[-3] != 1:
            return x
        return x.expand((*x.shape[:-3], heads, *x.shape[-2:]))

    key_heads = max([1] + [x.shape[-3] for x in (k, v) if x is not None and x.ndim > 2])
    return widen(q, key_heads), widen(k, key_heads), widen(v, key_heads)


def _as_problem(x: Any, batch: tuple[int, ...], heads: int) -> Any:
    """x [batch or 1...,G,T,.] as [B,heads,T,.]; query head h reads key head floor(h*G/heads)."""
    if x is None:
        return None
    x = x.expand(batch + tuple(x.shape[-3:]))
    x = x.reshape((_product(batch), *x.shape[-3:]))
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _product(sizes: Any) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total


def _problem(call: Call, shaped: tuple[Any, Any, Any, Any], first_b: int) -> Problem:
    lead, q, k, v = shaped
    batch, heads, queries, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    full = (batch, heads, queries, keys)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    o = _diagonal(call, queries, keys, (first_b, batch))
    allowed = torch.ones(full, dtype=torch.bool)
    if call.causal:
        allowed = allowed & (j <= i + o)
    if call.window is not None:
        left, right = call.window
        if left >= 0:
            allowed = allowed & (j >= i + o - left)
        if right >= 0:
            allowed = allowed & (j <= i + o + right)
    if call.key_lengths is not None:
        lengths = call.key_lengths[first_b : first_b + batch].long()
        lengths = lengths[:, None] if lengths.ndim == 1 else lengths  # [B,1] or [B,Tq]
        allowed = allowed & (j < lengths[:, None, :, None])
    if call.padding_mask is not None:
        allowed = allowed & (call.padding_mask == 0)[:, None, None, :]
    wide = (*lead, queries, keys)
    if call.mask is not None:
        allowed = allowed & (call.mask != 0).expand(wide).reshape(full)
    bias = None if call.bias is None else call.bias.expand(wide).reshape(full)
    return Problem(call, q, k, v, allowed, (i + o - j).abs(), bias, first_b)


def _diagonal(call: Call, queries: int, keys: int, entries: tuple[int, int]) -> Any:
    """The diagonal's offset o, int [B,1,1,1] or [1,1,1,1]."""
    if call.causal_offset is not None:
        o = torch.as_tensor(call.causal_offset).long()
        first, batch = entries
        return o.reshape(-1, 1, 1, 1) if o.ndim == 0 else o[first : first + batch, None, None, None]
    o = 0 if call.causal == "top_left" else keys - queries
    return torch.full((1, 1, 1, 1), o)
