# SPDX-License-Identifier: Apache-2.0
"""One call of attention, recorded: computed beside it, in memory that grows with Tq + Tk."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from ._attention import attention
from ._look_seen import Call, Top
from ._questions import transforms

Rows = Union[slice, Tuple[int, ...]]

# The axes of each result after [B,H].
_AXES = {"weights": 2, "top": 2, "column_sums": 1}


class Asked(NamedTuple):
    """What is recorded of every call. Indices may be negative: from the end."""

    heads: Optional[Tuple[int, ...]]  # None: all
    rows: Optional[Rows]  # None: no weights
    top: int
    column_sums: bool


def record(
    name: str, asked: Asked, q: torch.Tensor, k: torch.Tensor, v: Any, options: Dict[str, Any]
) -> Call:
    """The results that were asked for, of `attention(q, k, v, **options)`.

    Weights are those before dropout.
    """
    _refuse_without_values(name, (q, k))
    options = {n: x for n, x in options.items() if not n.startswith("return_") and n != "rows"}
    H, Tq = _heads_and_queries(q, options)
    heads = _resolved("heads", asked.heads, H, name)
    rows = _resolved_rows(asked.rows, Tq, name)
    packed = options.get("cu_seqlens_q") is not None
    if asked.rows is not None and packed:
        raise ValueError(
            "look: rows cannot be recorded of packed sequences (cu_seqlens, jagged tensors), as in "
            f"layer {name!r}; top and column_sums can"
        )
    wanted: Dict[str, Any] = {"return_top": asked.top, "return_column_sums": asked.column_sums}
    if asked.rows is not None:
        wanted.update(return_weights=True, rows=list(rows))
    with torch.no_grad():
        got = attention(q, k, None, **options, **wanted)
    results: Dict[str, Any] = {}
    for field, value in zip(got._fields, got):
        if field == "top":
            pair = [_of_heads(x, _AXES[field], asked.heads, heads, packed) for x in value]
            results[field] = Top(*pair)
        else:
            results[field] = _of_heads(value, _AXES[field], asked.heads, heads, packed)
    return Call(results, heads, rows, (Tq, int(k.size(_sequence_axis(options)))))


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
    """H and Tq; packed: all queries."""
    heads, axis = options.get("heads"), _sequence_axis(options)
    if heads is not None:
        H = heads[0] if isinstance(heads, (list, tuple)) else heads
    elif axis == -2:
        H = q.size(-3) if q.dim() > 3 else 1
    else:
        H = q.size(axis + 1)
    return int(H), int(q.size(axis))


def _sequence_axis(options: Dict[str, Any]) -> int:
    """The axis of q and k along which their rows stand."""
    if options.get("heads") is not None:
        return -2
    if options.get("cu_seqlens_q") is not None:
        return 0
    return 1 if options.get("layout") == "bthd" else -2


def _resolved(what: str, indices: Any, count: int, name: str) -> Tuple[int, ...]:
    """The indices from 0 on."""
    if indices is None:
        return tuple(range(count))
    for index in indices:
        if not -count <= index < count:
            letter = {"heads": "H", "rows": "Tq"}[what]
            raise ValueError(
                f"look: {what} must be at least -{letter} and below {letter} = {count} in layer "
                f"{name!r}, got {index}"
            )
    return tuple(index % count for index in indices)


def _resolved_rows(rows: Optional[Rows], Tq: int, name: str) -> Tuple[int, ...]:
    if rows is None:
        return ()
    if isinstance(rows, slice):
        return tuple(range(*rows.indices(Tq)))
    return _resolved("rows", rows, Tq, name)


def _of_heads(
    x: torch.Tensor, axes: int, asked: Any, heads: Tuple[int, ...], packed: bool
) -> torch.Tensor:
    """[B,H,..] of what `attention` returns: with other leading axes, or none."""
    lead, rest = x.shape[: x.dim() - axes], x.shape[x.dim() - axes :]
    if len(lead) < 2:
        x = x.reshape((1, *lead, *rest) if packed or not lead else (*lead, 1, *rest))
        x = x.reshape((1, 1, *rest)) if not lead else x
    elif len(lead) > 2:
        x = x.reshape((-1, lead[-1], *rest))
    return x if asked is None else x[:, list(heads)]
