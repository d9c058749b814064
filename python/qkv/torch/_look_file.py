# SPDX-License-Identifier: Apache-2.0
"""Writes recorded calls to an attention file, in the format of docs/pictures.md."""

import os
import pathlib
import tempfile
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

_NAME = "save"


def save_calls(
    path: Any, calls: Dict[str, Any], tokens: Optional[Sequence[Any]], query_tokens: Any
) -> None:
    """Writes one call of each layer, {name: call}; see Seen.save."""
    target = pathlib.Path(path)
    if target.suffix != ".npz":
        raise ValueError(f"{_NAME}: path must end in .npz, got {str(path)!r}")
    first = next(iter(calls.values()))
    drawn = _drawn(first)
    arrays = _results(calls, drawn)
    arrays["axes"] = np.array(["queries", "keys"])
    arrays["layers"] = np.array(list(calls))
    arrays["heads"] = np.array(first.heads)
    if drawn == "pooled":
        if tokens is not None or query_tokens is not None:
            raise ValueError(f"{_NAME}: tokens are for rows, and only pooled weights were recorded")
        m, n = first.pooled.shape[2:]
        arrays["tgt"], arrays["src"] = _ranges(first.queries, m), _ranges(first.keys, n)
    else:
        rows = sorted(set(first.rows))  # in a file rows are in order and occur once
        arrays["attn"] = arrays["attn"][..., [first.rows.index(row) for row in rows], :]
        arrays["rows"] = np.array(rows, np.int64)
        arrays["tgt"], arrays["src"] = _labels(first, rows, tokens, query_tokens)
    _write(target, arrays)


def _labels(
    first: Any, rows: List[int], tokens: Optional[Sequence[Any]], query_tokens: Any
) -> Tuple[Any, Any]:
    """The tokens of the rows and of the keys; where none are given, their indices as text.

    Without query_tokens, the queries are taken to be the last of the keys.
    """
    B, sizes = len(first.weights), (first.queries, first.keys)
    src = _texts("tokens", tokens, B, first.keys)
    if query_tokens is not None:
        of_queries = _texts("query_tokens", query_tokens, B, first.queries)
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


def _drawn(first: Any) -> str:
    """The name of the result that becomes the file's array attn."""
    for name in ("weights", "pooled"):
        if name in first.results and first.results[name].numel():
            return name
    raise ValueError(
        f"{_NAME}: an attention file holds weights, and none were recorded: request rows by "
        "look(..., rows=...), where slice(None) is all, or cells by pool="
    )


def _results(calls: Dict[str, Any], drawn: str) -> Dict[str, Any]:
    """The results by name, each stacked over layers in its second axis: [B,layers,..]."""
    first_name, first = next(iter(calls.items()))
    for name, call in calls.items():
        if _layout(call, drawn) != _layout(first, drawn):
            raise ValueError(
                f"{_NAME}: all layers of a file must have the same sizes, rows and heads, but "
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
            key = "attn" if name == drawn else f"{name}_{part}" if part else name
            arrays[key] = torch.stack(every, 1).numpy()
    return arrays


def _layout(call: Any, drawn: str) -> Tuple[Any, ...]:
    return tuple(call.results[drawn].shape), call.heads, call.rows, call.queries, call.keys


def _shown(call: Any, drawn: str) -> str:
    shape = ",".join(str(size) for size in call.results[drawn].shape)
    return f"{drawn} [{shape}] of Tq = {call.queries}, Tk = {call.keys}"


def _texts(name: str, tokens: Optional[Sequence[Any]], B: int, count: int) -> Any:
    """The tokens as an array of text, [count] or [B,count]; None if they are None."""
    if tokens is None:
        return None
    if isinstance(tokens, str) or len(tokens) == 0:
        raise ValueError(f"{_NAME}: {name} must be a list of {count} strings, got {tokens!r}")
    nested = not isinstance(tokens[0], str)
    lists: List[Any] = list(tokens) if nested else [tokens]
    if nested and len(lists) != B:
        raise ValueError(f"{_NAME}: {name} must be a list for each of B = {B}, got {len(lists)}")
    for one in lists:
        if len(one) != count or not all(isinstance(token, str) for token in one):
            raise ValueError(f"{_NAME}: {name} must have {count} strings, got {_counted(one)}")
    return np.array([list(one) for one in lists] if nested else list(tokens))


def _counted(one: Sequence[Any]) -> str:
    others = [token for token in one if not isinstance(token, str)]
    return f"one of type {type(others[0]).__name__}" if others else str(len(one))


def _last(src: Any, sizes: Tuple[int, int]) -> Any:
    """The tokens of the queries, if these are the last keys; None if queries outnumber keys."""
    queries, keys = sizes
    return src[..., keys - queries :] if queries <= keys else None


def _write(target: pathlib.Path, arrays: Dict[str, Any]) -> None:
    """Writes `target` atomically: on an error an existing file is unchanged."""
    handle, temporary = tempfile.mkstemp(dir=target.parent or ".", suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        os.chmod(temporary, _permissions(target))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _permissions(target: pathlib.Path) -> int:
    """The permissions of an existing target, or those that a new file gets."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
