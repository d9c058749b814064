# SPDX-License-Identifier: Apache-2.0
"""Rules of torch.vmap for the operators: one call if the batch can be an axis, else one per entry.

A call over a further leading axis is bit-identical to one call per entry. Dropout, and options that
are given per batch entry, would mean something else with that axis; such calls are made one by one.
"""

from typing import Any, Dict, List, Optional, Sequence

import torch

from .._results import AXES
from ._schema import DIFFERENTIABLE, PLAIN, SLOTS, TENSORS

_N = len(TENSORS)

# Tensors that may have the batch as a further axis. Tensors in _OF_HEADS are shared by all entries.
_FOLDED = ("q", "k", "v", "bias", "mask")
# Results [..,H,Tq] or [..,H,Tk].
_OF_ROWS = tuple(name for name in SLOTS if AXES.get(name) in ("queries", "keys"))
_OF_HEADS = tuple(name for name in TENSORS if name.startswith(("params", "alibi", "sinks")))


def _first(x: Any, axis: Optional[int], size: int) -> Any:
    """The tensor with the batch as its first axis, repeated if it has none."""
    if x is None:
        return None
    return x.movedim(axis, 0) if axis is not None else x.expand(size, *x.shape)


def _one_by_one(op: Any, info: Any, in_dims: Any, every: Sequence[Any]) -> Any:
    def of(n: int) -> List[Any]:
        return [
            x.select(d, n) if isinstance(x, torch.Tensor) and d is not None else x
            for x, d in zip(every, in_dims)
        ]

    parts = [op(*of(n)) for n in range(info.batch_size)]
    stacked = tuple(torch.stack(slot) for slot in zip(*parts))
    return stacked, (0,) * len(stacked)


class _Folded:
    """A call with the batch as a further axis of tensors and results.

    If the call has no heads, a head axis is added to tensors and removed from results.
    """

    def __init__(self, tensors: Dict[str, Any], axes: Dict[str, Any], size: int) -> None:
        self.tensors, self.axes, self.size = tensors, axes, size
        ranks = {self._rank(name) for name in ("q", "k", "v") if tensors[name] is not None}
        self.rank = max(ranks)
        self.without_heads = self.rank == 2 or ranks == {3}

    @staticmethod
    def fits(tensors: Dict[str, Any], axes: Dict[str, Any], plain: Dict[str, Any]) -> bool:
        if plain["layout"] != "bhtd" or plain["heads"] is not None:
            return False
        if plain["score_mod"] is not None or plain["mask_mod"] is not None:  # may read b and h
            return False
        if any(axes[name] is not None for name in TENSORS if name not in _FOLDED):
            return False
        slopes = tensors["alibi_slopes"]
        if slopes is not None and slopes.dim() > 1:  # [B,H]
            return False
        shapes = {}
        for n, x in tensors.items():
            if x is not None:
                shapes[n] = list(x.shape)
                if axes[n] is not None:
                    del shapes[n][axes[n]]
        ranks = {n: len(shape) for n, shape in shapes.items()}
        heads = {n: shapes[n][-3] for n in ("q", "k", "v") if n in shapes and ranks[n] > 2}
        if len({ranks[n] for n in heads}) > 1 and 1 == heads["q"] < max(heads.values()):
            return False  # q's head broadcasts, since the ranks differ
        if ranks["q"] < max(ranks["k"], ranks.get("v", 0)):  # q takes its heads from k or v
            return False
        known = {*_FOLDED, *_OF_HEADS}
        return all(x is None or name in known for name, x in tensors.items())

    def _rank(self, name: str) -> int:
        return int(self.tensors[name].dim()) - (self.axes[name] is not None)

    def with_axis(self, x: Any, axis: Optional[int]) -> Any:
        """Returns x as [V,..,H,.,.]: the batch axis, then the call's axes; H = 1 without heads."""
        x = _first(x, axis, self.size)
        if x is None:
            return None
        x = x.reshape(self.size, *((1,) * (self.rank - x.dim() + 1)), *x.shape[1:])
        return x.unsqueeze(-3) if self.without_heads else x

    def every(self) -> List[Any]:
        return [
            self.with_axis(x, self.axes[name]) if name in _FOLDED else x
            for name, x in self.tensors.items()
        ]

    def row_axis(self, x: Any, axis: Optional[int]) -> Any:
        """lse or its gradient, [..,Tq], with the batch axis first and a head axis."""
        x = _first(x, axis, self.size)
        return x.unsqueeze(-2) if x is not None and self.without_heads else x

    def result(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 1:  # not requested
            return x
        if not self.without_heads:
            return x
        return x.squeeze(-2 if name in _OF_ROWS else -3)

    def gradient(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if name not in _FOLDED or self.tensors[name] is None:
            return x
        source = _first(self.tensors[name], self.axes[name], self.size)
        return x.reshape(source.shape)


def forward_rule(info: Any, in_dims: Any, every: List[Any], op: Any) -> Any:
    """qkv::attention under vmap, by calls of `op`; returns the results and their batch axes."""
    in_dims = (*in_dims, *((None,) * (len(every) - len(in_dims))))
    tensors, axes = dict(zip(TENSORS, every)), dict(zip(TENSORS, in_dims))
    further = zip(every[_N:], in_dims[_N:])  # includes the queries of the column sums
    batched = any(isinstance(x, torch.Tensor) and axis is not None for x, axis in further)
    if batched or not _Folded.fits(tensors, axes, dict(zip(PLAIN, every[_N:]))):
        return _one_by_one(op, info, in_dims, every)
    call = _Folded(tensors, axes, info.batch_size)
    got = op(*call.every(), *every[_N:])
    results = tuple(call.result(name, x) for name, x in zip(SLOTS, got))
    return results, tuple(None if x.dim() == 1 else 0 for x in got)


def backward_rule(info: Any, in_dims: Any, every: List[Any], op: Any) -> Any:
    """qkv::attention_backward under vmap, by calls of `op`; returns gradients and batch axes."""
    in_dims = (*in_dims, *((None,) * (len(every) - len(in_dims))))
    given, tensors, plain = every[:5], every[5 : 5 + _N], every[5 + _N :]
    by_name, axes = dict(zip(TENSORS, tensors)), dict(zip(TENSORS, in_dims[5:]))
    wanted = set(plain[-1].split(","))
    fits = wanted <= set(_FOLDED) and _Folded.fits(by_name, axes, dict(zip(PLAIN, plain)))
    if not fits:
        return _one_by_one(op, info, in_dims, every)
    call = _Folded(by_name, axes, info.batch_size)
    dout, dlse, dweights, out, lse = zip(given, in_dims)
    results = (
        call.with_axis(*dout),
        call.row_axis(*dlse),
        call.with_axis(*dweights),
        call.with_axis(*out) if by_name["v"] is not None else given[3],
        call.row_axis(*lse),
    )
    got = op(*results, *call.every(), *plain)
    gradients = tuple(
        call.gradient(name, x) if name in wanted else x for name, x in zip(DIFFERENTIABLE, got)
    )
    return gradients, tuple(0 if name in wanted else None for name in DIFFERENTIABLE)
