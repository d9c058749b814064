# SPDX-License-Identifier: Apache-2.0
"""Writes recorded calls to an attention file, in the format of docs/pictures.md."""

import math
import pathlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from .._files import replaced

# The most numbers in maps made from the largest weights of each query: 1 GiB in float32.
_MOST_NUMBERS = 1 << 28


class Labels(NamedTuple):
    """The tokens of keys and queries, and the names of their arguments for messages."""

    function: str
    keys_name: str
    keys: Optional[Sequence[Any]]
    queries_name: str
    queries: Optional[Sequence[Any]]


def save_calls(path: Any, calls: Dict[str, Any], labels: Labels) -> None:
    """Writes one call of each layer, {name: call}; see Seen.save."""
    target = pathlib.Path(path)
    if target.suffix != ".npz":
        raise ValueError(f"{labels.function}: path must end in .npz, got {str(path)!r}")
    arrays = call_arrays(calls, labels)
    with replaced(target) as file:
        np.savez(file, **arrays)


def call_arrays(calls: Dict[str, Any], labels: Labels) -> Dict[str, Any]:
    """The arrays of an attention file with one call of each layer, {name: call}."""
    first = next(iter(calls.values()))
    drawn = _drawn(first, labels.function)
    arrays = _results(calls, drawn, labels.function)
    arrays["axes"] = np.array(["queries", "keys"])
    arrays["layers"] = np.array(list(calls))
    arrays["heads"] = np.array(first.heads)
    # Pictures number heads from 0, so the quantity names the heads if only some were recorded.
    is_part = first.heads != tuple(range(len(first.heads)))
    limits = [f"heads {', '.join(map(str, first.heads))} of the layer"] if is_part else []
    if drawn == "pooled":
        if labels.keys is not None or labels.queries is not None:
            raise ValueError(
                f"{labels.function}: tokens are for rows, and only pooled weights were recorded"
            )
        m, n = first.pooled.shape[2:]
        arrays["tgt"], arrays["src"] = _ranges(first.queries, m), _ranges(first.keys, n)
    else:
        rows = sorted(set(first.rows))  # a file has rows in order, each once
        if drawn == "top":
            rows = list(range(first.queries))
            arrays["attn"] = _whole(arrays["top_weights"], arrays["top_keys"], first.keys, labels)
            if first.top.keys.shape[-1] < first.keys:
                limits.insert(0, f"{first.top.keys.shape[-1]} largest of a row, others as 0")
        else:
            arrays["attn"] = arrays["attn"][..., [first.rows.index(row) for row in rows], :]
        arrays["rows"] = np.array(rows, np.int64)
        arrays["tgt"], arrays["src"] = _token_arrays(first, rows, labels)
    if limits:
        arrays["quantity"] = np.array([f"weight ({'; '.join(limits)})"])
    return arrays


def _whole(weights: Any, keys: Any, count: int, labels: Labels) -> Any:
    """Maps [..,Tq,count] with the largest weights of each query at their keys, and 0 elsewhere."""
    shape = (*weights.shape[:-1], count)
    if math.prod(shape) > _MOST_NUMBERS:
        raise ValueError(
            f"{labels.function}: maps of shape {list(shape)} are too large; request a few rows by "
            "look(..., rows=...) or cells by pool=(m, n)"
        )
    # A query with fewer unmasked keys than requested has weights 0 at key -1, the extra column.
    maps = np.zeros((*shape[:-1], count + 1), weights.dtype)
    np.put_along_axis(maps, keys, weights, -1)
    maps[np.isnan(weights).any(-1)] = np.nan
    return maps[..., :count]


def _token_arrays(first: Any, rows: List[int], labels: Labels) -> Tuple[Any, Any]:
    """The tokens of the rows and of the keys; where none are given, their indices as text.

    Without tokens of the queries, the queries are taken to be the last of the keys.
    """
    sizes = (first.queries, first.keys)
    B = len(first.weights if "weights" in first.results else first.top.keys)
    src = _texts(labels.function, labels.keys_name, labels.keys, B, first.keys)
    if labels.queries is not None:
        name = labels.queries_name
        of_queries = _texts(labels.function, name, labels.queries, B, first.queries)
    else:
        of_queries = None if src is None else _last(src, sizes)
    if src is None:
        src = np.array([str(j) for j in range(first.keys)])
    if of_queries is None:
        of_queries = np.array([str(i) for i in range(first.queries)])
    return of_queries[..., rows], src


def _ranges(count: int, cells: int) -> Any:
    """The range of indices in each cell, as text: all i with floor(i cells / count) = cell."""
    starts = [-(-cell * count // cells) for cell in range(cells + 1)]
    pairs = zip(starts, starts[1:])
    return np.array([f"{a}-{b - 1}" if b - a > 1 else str(a) if a < b else "" for a, b in pairs])


def _drawn(first: Any, function: str) -> str:
    """The name of the result that becomes the file's array attn."""
    for name in ("weights", "pooled", "top"):
        value = first.results.get(name)
        if value is not None and (value.keys if name == "top" else value).numel():
            return name
    raise ValueError(
        f"{function}: an attention file holds weights, and none were recorded: request rows by "
        "look(..., rows=...), where slice(None) is all, the largest by top= or cells by pool="
    )


def _results(calls: Dict[str, Any], drawn: str, function: str) -> Dict[str, Any]:
    """The results by name, each stacked over layers in its second axis: [B,layers,..]."""
    first_name, first = next(iter(calls.items()))
    for name, call in calls.items():
        if _layout(call, drawn) != _layout(first, drawn):
            raise ValueError(
                f"{function}: all layers of a file must have the same sizes, rows and heads, but "
                f"{first_name!r} has {_shown(first, drawn)} and {name!r} {_shown(call, drawn)}; "
                "choose the layers to save by layers="
            )
    arrays: Dict[str, Any] = {}
    for name, value in first.results.items():
        parts = {"": value} if isinstance(value, torch.Tensor) else value._asdict()
        for part in parts:
            every = [
                call.results[name] if part == "" else getattr(call.results[name], part)
                for call in calls.values()
            ]
            key = f"{name}_{part}" if part else "attn" if name == drawn else name
            arrays[key] = torch.stack(every, 1).numpy()
    return arrays


def _layout(call: Any, drawn: str) -> Tuple[Any, ...]:
    return tuple(_shape(call, drawn)), call.heads, call.rows, call.queries, call.keys


def _shape(call: Any, drawn: str) -> Any:
    value = call.results[drawn]
    return (value.keys if drawn == "top" else value).shape


def _shown(call: Any, drawn: str) -> str:
    shape = ",".join(str(size) for size in _shape(call, drawn))
    return f"{drawn} [{shape}] of Tq = {call.queries}, Tk = {call.keys}"


def _texts(function: str, name: str, tokens: Optional[Sequence[Any]], B: int, count: int) -> Any:
    """The tokens as an array of text, [count] or [B,count]; None if they are None."""
    if tokens is None:
        return None
    if isinstance(tokens, str) or len(tokens) == 0:
        raise ValueError(f"{function}: {name} must be a list of {count} strings, got {tokens!r}")
    nested = not isinstance(tokens[0], str)
    lists: List[Any] = list(tokens) if nested else [tokens]
    if nested and len(lists) != B:
        raise ValueError(f"{function}: {name} must be a list for each of B = {B}, got {len(lists)}")
    for one in lists:
        if len(one) != count or not all(isinstance(token, str) for token in one):
            raise ValueError(f"{function}: {name} must have {count} strings, got {_counted(one)}")
    return np.array([list(one) for one in lists] if nested else list(tokens))


def _counted(one: Sequence[Any]) -> str:
    others = [token for token in one if not isinstance(token, str)]
    return f"one of type {type(others[0]).__name__}" if others else str(len(one))


def _last(src: Any, sizes: Tuple[int, int]) -> Any:
    """The tokens of the queries, if these are the last keys; None if queries outnumber keys."""
    queries, keys = sizes
    return src[..., keys - queries :] if queries <= keys else None
