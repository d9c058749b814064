# SPDX-License-Identifier: Apache-2.0
"""Shapes of the results of a call of tensors without memory: fake tensors and meta tensors.

Only the shapes are checked here; the call that computes checks all arguments. Sizes may be symbols.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .._results import AXES
from ._schema import SLOTS

Shape = Sequence[Any]


def _heads_first(x: torch.Tensor, layout: str, heads: Any, packed: bool) -> List[Any]:
    """The shape [..,H,T,X] of x, which is [..,T,H*X], [B,T,H,X], packed [T,H,X] or [..,T,X]."""
    shape = list(x.shape)
    if heads is not None:
        rows, width = shape[-2], shape[-1] // heads
        if packed or len(shape) > 2:
            return [*shape[:-2], heads, rows, width]
        return [1, heads, rows, width]
    if packed:
        return [shape[1], shape[0], shape[2]]
    if layout == "bthd":
        return [shape[0], shape[2], shape[1], shape[3]]
    return shape


def _leading(q: Shape, others: Sequence[Shape]) -> List[Any]:
    """The axes of the result before its rows; the last of them is the head axis, if there is one.

    The head axis has q's size; if ranks differ and q has at most one head, it has the largest size.
    """
    ranks = {len(q), *(len(x) for x in others)}
    if ranks == {3}:  # [B,T,.], no heads
        return list(torch.broadcast_shapes(*(tuple(x[:-2]) for x in (q, *others))))
    rank = max(ranks)
    if rank == 2:
        return []
    lead = torch.broadcast_shapes(*(tuple(x[:-3]) for x in (q, *others)))
    lead = (1,) * (rank - 3 - len(lead)) + tuple(lead)
    heads = q[-3] if len(q) > 2 else 1
    if len(ranks) > 1 and heads == 1:
        heads = max([1, *(x[-3] for x in others if len(x) > 2)])
    return [*lead, heads]


def _check(q: torch.Tensor, k: torch.Tensor, v: Optional[torch.Tensor], rank: int) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x is not None and x.dim() < rank:
            raise ValueError(
                f"attention: {name} must have at least {rank} axes, got {list(x.shape)}"
            )


def result_shapes(
    tensors: Dict[str, Any], plain: Dict[str, Any], return_top: Any, pooled: Any
) -> Dict[str, List[Any]]:
    """The shape of each result that a call can return, by the names of SLOTS."""
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    packed, heads = tensors["cu_seqlens_q"] is not None, plain["heads"]
    _check(q, k, v, 2 if heads is not None else 3 if packed else 4 * (plain["layout"] == "bthd"))
    _check(q, k, v, 2)
    H = None if heads is None else heads[0]
    G = None if heads is None else heads[1] if len(heads) > 1 else _groups(q, k, H, plain["score"])
    layout = plain["layout"]
    of_q = _heads_first(q, layout, H, packed)
    of_k = _heads_first(k, layout, G, packed)
    of_v = None if v is None else _heads_first(v, layout, G, packed)
    others = [of_k] if of_v is None else [of_k, of_v]
    lead = [of_q[0]] if packed else _leading(of_q, others)
    Tq, Tk = of_q[-2], of_k[-2]
    rows = Tq if tensors["rows"] is None else tensors["rows"].shape[0]
    tails = {"matrix": [rows, Tk], "queries": [Tq], "keys": [Tk]}
    shapes = {name: [*lead, *tails[axes]] for name, axes in AXES.items() if axes in tails}
    shapes.update(top_weights=[*lead, Tq, return_top], top_keys=[*lead, Tq, return_top])
    if pooled is not None:
        sequences = [tensors["cu_seqlens_q"].shape[0] - 1] if packed else []
        shapes["pooled"] = [*sequences, *lead, *pooled]
    if of_v is not None:
        rank = max(x.dim() for x in (q, k, v))
        shapes["out"] = _in_memory([*lead, Tq, of_v[-1]], layout, heads is not None, rank)
    return shapes if not packed else {**shapes, **_packed_out(shapes, heads is not None)}


def _groups(q: torch.Tensor, k: torch.Tensor, heads: Any, score: str) -> Any:
    """The number of key heads, which follows from the widths of q and k."""
    if score in ("bilinear", "additive"):
        return heads
    return k.shape[-1] // (q.shape[-1] // heads)


def _in_memory(heads_first: List[Any], layout: str, merged: bool, rank: int) -> List[Any]:
    """The shape of a result in its memory layout: the inverse of _heads_first."""
    *lead, H, Tq, E = heads_first if len(heads_first) > 2 else (1, *heads_first)
    if merged:
        return [*lead, Tq, H * E] if rank > 2 else [Tq, H * E]
    return [*lead, Tq, H, E] if layout == "bthd" else heads_first


def _packed_out(shapes: Dict[str, List[Any]], merged: bool) -> Dict[str, List[Any]]:
    if "out" not in shapes or merged:
        return {}
    H, Tq, E = shapes["out"]
    return {"out": [Tq, H, E]}


def empty_results(
    tensors: Dict[str, Any],
    plain: Dict[str, Any],
    returned: Sequence[str],
    return_top: Any = 0,
    pooled: Any = None,
) -> Tuple[torch.Tensor, ...]:
    """The operator's results without values; results not requested have one axis of size 0."""
    q = tensors["q"]
    shapes = result_shapes(tensors, plain, return_top, pooled)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    made = []
    for name in SLOTS:
        dtype = {"out": q.dtype, "top_keys": torch.int64}.get(name, wide)
        is_there = name in returned and name in shapes
        made.append(q.new_empty(shapes[name] if is_there else (0,), dtype=dtype))
    return tuple(made)
