# SPDX-License-Identifier: Apache-2.0
"""Records one call of attention by a second call, in memory that grows with Tq + Tk."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from .._functions import attention
from .._results import AXES
from ._look_seen import ASKED_BY, Call, Top
from ._questions import any_autocast, has_autocast, transforms
from ._sdpa import as_autocast

Rows = Union[slice, Tuple[int, ...]]

# The number of axes that each result has after [B,H].
_AXES = {name: 1 if AXES[name] in ("queries", "keys") else 2 for name in ASKED_BY}


class Asked(NamedTuple):
    """The results to record of every call. Negative indices count from the end."""

    heads: Optional[Tuple[int, ...]]  # None for all
    rows: Optional[Rows]  # None for no weights
    top: int
    column_sums: Union[bool, Rows]
    entropy: bool
    value_sums: bool  # over the queries of column_sums
    pool: Optional[Tuple[int, int]]

    def is_nothing(self) -> bool:
        """Whether no result was requested."""
        return self.rows is None and not any(self[2:])


def record(
    name: str, asked: Asked, q: torch.Tensor, k: torch.Tensor, v: Any, options: Dict[str, Any]
) -> Call:
    """Computes the requested results of `qkv.torch.attention(q, k, v, **options)`.

    Weights are those before dropout. `name` is the layer's, for messages.
    """
    _refuse_without_values(name, (q, k))
    options = {n: x for n, x in options.items() if not n.startswith("return_") and n != "rows"}
    sinks = options.get("sinks")
    if isinstance(sinks, torch.Tensor) and sinks.dim() > 1:
        raise TypeError(
            f"look: layer {name!r} has sinks that differ by query, {list(sinks.shape)}, which are "
            "not recorded: select other layers"
        )
    H, Tq = _heads_and_queries(q, options)
    heads = _resolved("heads", asked.heads, H, name)
    rows = _resolved_rows("rows", asked.rows, Tq, name)
    packed = options.get("cu_seqlens_q") is not None
    if packed and (asked.rows is not None or not isinstance(asked.column_sums, bool)):
        raise ValueError(
            "look: rows, also those of column_sums, cannot be named in packed sequences "
            f"(cu_seqlens, jagged tensors), as in layer {name!r}"
        )
    sums = asked.column_sums
    wanted: Dict[str, Any] = {
        "return_top": asked.top,
        "return_column_sums": sums
        if isinstance(sums, bool)
        else list(_resolved_rows("column_sums", sums, Tq, name)),
        "return_entropy": asked.entropy,
        "return_value_sums": asked.value_sums,
        "return_pooled": asked.pool,
    }
    if asked.rows is not None:
        wanted.update(return_weights=True, rows=list(rows))
    tensors = [_detached(x) for x in (q, k, v if asked.value_sums else None)]
    if any_autocast() and has_autocast(tensors[0]):
        tensors = [as_autocast(x) for x in tensors]
    with torch.no_grad():  # functions may read tensors that require gradients
        got = attention(tensors[0], tensors[1], tensors[2], **_detached(options), **wanted)
    results: Dict[str, Any] = {}
    for field, value in zip(got._fields, got):
        if field == "top":
            pair = [_of_heads(x, _AXES[field], asked.heads, heads, packed) for x in value]
            results[field] = Top(*pair)
        elif field in _AXES:  # all results except out
            results[field] = _of_heads(value, _AXES[field], asked.heads, heads, packed)
    return Call(results, heads, rows, (Tq, int(k.size(_sequence_axis(options)))))


def _detached(x: Any) -> Any:
    """x with tensors detached, also those in a dict; other values are unchanged."""
    if isinstance(x, dict):
        return {name: _detached(value) for name, value in x.items()}
    return x.detach() if isinstance(x, torch.Tensor) else x


def _refuse_without_values(name: str, tensors: Sequence[Any]) -> None:
    if transforms() or any(
        isinstance(x, torch.Tensor) and (x.is_meta or type(x).__name__ == "FakeTensor")
        for x in tensors
    ):
        raise RuntimeError(
            f"look: layer {name!r} was called under torch.func or with tensors that have no values "
            "(fake, meta)"
        )


def _heads_and_queries(q: torch.Tensor, options: Dict[str, Any]) -> Tuple[int, int]:
    """H and Tq; for packed sequences Tq counts the queries of all of them."""
    heads, axis = options.get("heads"), _sequence_axis(options)
    if heads is not None:
        H = heads[0] if isinstance(heads, (list, tuple)) else heads
    elif axis == -2:
        H = q.size(-3) if q.dim() > 3 else 1
    else:
        H = q.size(axis + 1)
    return int(H), int(q.size(axis))


def _sequence_axis(options: Dict[str, Any]) -> int:
    """The axis of q and k that runs over queries or keys."""
    if options.get("heads") is not None:
        return -2
    if options.get("cu_seqlens_q") is not None:
        return 0
    return 1 if options.get("layout") == "bthd" else -2


def _resolved(what: str, indices: Any, count: int, name: str) -> Tuple[int, ...]:
    """The indices with negative ones counted from the end; all indices for None."""
    if indices is None:
        return tuple(range(count))
    for index in indices:
        if not -count <= index < count:
            letter = "H" if what == "heads" else "Tq"
            raise ValueError(
                f"look: {what} must be at least -{letter} and below {letter} = {count} in layer "
                f"{name!r}, got {index}"
            )
    return tuple(index % count for index in indices)


def _resolved_rows(what: str, rows: Optional[Rows], Tq: int, name: str) -> Tuple[int, ...]:
    if rows is None:
        return ()
    if isinstance(rows, slice):
        return tuple(range(*rows.indices(Tq)))
    return _resolved(what, rows, Tq, name)


def _of_heads(
    x: torch.Tensor, axes: int, asked: Any, heads: Tuple[int, ...], packed: bool
) -> torch.Tensor:
    """A result of `attention`, whose leading axes vary, as [B,H,..] with the requested heads."""
    lead, rest = x.shape[: x.dim() - axes], x.shape[x.dim() - axes :]
    if len(lead) < 2:
        x = x.reshape((1, *lead, *rest) if packed or not lead else (*lead, 1, *rest))
        x = x.reshape((1, 1, *rest)) if not lead else x
    elif len(lead) > 2:
        x = x.reshape((-1, lead[-1], *rest))
    return x if asked is None else x[:, list(heads)]
