# SPDX-License-Identifier: Apache-2.0
"""The records of `qkv.torch.look`: layers, their calls, and the results of each call."""

import math
import os
from abc import ABC, abstractmethod
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch

from .._picture import Picture
from .._show import show
from ._look_file import Labels, call_arrays, save_calls
from ._look_names import has_name, listed

# The most maps, and the most cells in all of them, that a notebook's picture shows in full.
_MOST_MAPS = 400
_MOST_CELLS = 400_000

# The argument of look() that requests each result.
ASKED_BY = {
    "weights": "rows=",
    "top": "top=",
    "column_sums": "column_sums=True",
    "entropy": "entropy=True",
    "value_sums": "value_sums=True",
    "pooled": "pool=(m, n)",
}


class Top(NamedTuple):
    """The largest weights of each query, in descending order, and their keys."""

    weights: torch.Tensor
    keys: torch.Tensor


class _Results(ABC):
    """The results as attributes; for one not recorded, AttributeError says how to request it."""

    @abstractmethod
    def _result(self, name: str) -> Any:
        """The result of this name."""

    @property
    def weights(self) -> torch.Tensor:
        """The weights of the requested rows, before dropout, [B,H,R,Tk]."""
        found: torch.Tensor = self._result("weights")
        return found

    @property
    def top(self) -> Top:
        """The largest weights of every query and their keys, [B,H,Tq,top] each.

        Weights 0 with keys -1 fill the rest if a query has fewer unmasked keys.
        """
        found: Top = self._result("top")
        return found

    @property
    def column_sums(self) -> torch.Tensor:
        """The weights summed over the requested queries, [B,H,Tk]."""
        found: torch.Tensor = self._result("column_sums")
        return found

    @property
    def entropy(self) -> torch.Tensor:
        """The entropy of every query's weights in nats, [B,H,Tq]."""
        found: torch.Tensor = self._result("entropy")
        return found

    @property
    def value_sums(self) -> torch.Tensor:
        """The column sums times the norm |v_j| of each value, [B,H,Tk]."""
        found: torch.Tensor = self._result("value_sums")
        return found

    @property
    def pooled(self) -> torch.Tensor:
        """The weights in m x n cells, [B,H,m,n]: means over queries of sums over keys."""
        found: torch.Tensor = self._result("pooled")
        return found


class Call(_Results):
    """One call of a layer's attention: its results for the requested heads.

    Attributes:
        heads: the indices of the recorded heads, the second axis of all results.
        rows: the indices of the queries whose weights were kept, the third axis of weights.
        queries, keys: the numbers of queries and keys, Tq and Tk.
    """

    def __init__(
        self,
        results: Dict[str, Any],
        heads: Tuple[int, ...],
        rows: Tuple[int, ...],
        sizes: Tuple[int, int],
    ) -> None:
        self.results = results
        self.heads = heads
        self.rows = rows
        self.queries, self.keys = sizes

    def _result(self, name: str) -> Any:
        if name not in self.results:
            raise AttributeError(f"{name} was not recorded: request it by {ASKED_BY[name]}")
        return self.results[name]

    def _attention_arrays_(self, queries: Any = None, keys: Any = None) -> Dict[str, Any]:
        """The arrays that `qkv.show` draws."""
        return _without_layers(arrays_of({"": self}, queries, keys))

    def __repr__(self) -> str:
        sizes = f"{len(self.heads)} heads, Tq = {self.queries}, Tk = {self.keys}"
        return f"Call({sizes}: {', '.join(self.results)})"


class Layer(_Results):
    """A module that attends, with its calls; the layer's results are those of the last call.

    Attributes:
        name: the module's name in the model.
        calls: every call, in the order of the calls.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: List[Call] = []

    @property
    def heads(self) -> Tuple[int, ...]:
        """The indices of the recorded heads, the second axis of all results."""
        return self.calls[-1].heads

    @property
    def rows(self) -> Tuple[int, ...]:
        """The indices of the queries whose weights were kept, the third axis of weights."""
        return self.calls[-1].rows

    def _result(self, name: str) -> Any:
        return self.calls[-1]._result(name)

    def _attention_arrays_(self, queries: Any = None, keys: Any = None) -> Dict[str, Any]:
        """The arrays that `qkv.show` draws: the last call."""
        return self.calls[-1]._attention_arrays_(queries, keys)

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, {len(self.calls)} calls, the last {self.calls[-1]!r})"


class Seen:
    """The layers that attended, in the order of their first calls.

    `seen[0]` is the first recorded layer, and `seen["layers.3"]` the one whose name contains these
    parts, such as "model.layers.3.self_attn".
    """

    def __init__(self) -> None:
        self._layers: Dict[str, Layer] = {}
        self._others: List[str] = []  # names of layers that attended but were not requested
        self._compiled: List[str] = []  # names of compiled modules
        self._ran_elsewhere = False  # whether another thread ran the model

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers.values())

    def __contains__(self, name: str) -> bool:
        return any(has_name(layer, name) for layer in self._layers)

    @property
    def names(self) -> Tuple[str, ...]:
        """The names of the recorded layers."""
        return tuple(self._layers)

    def __getitem__(self, which: Union[str, int]) -> Layer:
        if isinstance(which, int):
            every = list(self._layers.values())
            if not -len(every) <= which < len(every):
                raise IndexError(self._missing(which))
            return every[which]
        if which in self._layers:
            return self._layers[which]
        found = [layer for name, layer in self._layers.items() if has_name(name, which)]
        if len(found) == 1:
            return found[0]
        if found:
            names = listed(layer.name for layer in found)
            raise KeyError(f"{which!r} is the name of {len(found)} recorded layers: {names}")
        raise KeyError(self._missing(which))

    def _missing(self, which: Union[str, int]) -> str:
        compiled = f"; {self._uncompiled()}" if self._compiled and self._layers else ""
        return f"no layer {which!r} was recorded; {self._there_is()}{compiled}"

    def _there_is(self) -> str:
        if self._layers:
            return f"there are {listed(self._layers)}"
        if self._others:
            return f"layers= selects none of {listed(self._others)}, the layers that attended"
        if self._compiled:
            return f"there are none: {self._uncompiled()}"
        if self._ran_elsewhere:
            return (
                "there are none: the model ran on another thread; call look in the thread that "
                "runs the model"
            )
        return (
            "there are none: the model called no attention function of torch, Transformers or qkv, "
            "or only in compiled code"
        )

    def _uncompiled(self) -> str:
        """Advice, for a message, on how to record what runs compiled."""
        what = "the model" if "" in self._compiled else listed(self._compiled)
        return (
            f"torch.compile compiled {what}, and compiled code is not recorded: pass the original "
            "module (model._orig_mod of what torch.compile returned) to look and call it, or run "
            'the model uncompiled inside torch.compiler.set_stance("force_eager")'
        )

    def __repr__(self) -> str:
        return f"Seen({listed(self._layers) if self._layers else self._there_is()})"

    def save(
        self,
        path: Union[str, "os.PathLike[str]"],
        *,
        tokens: Optional[Sequence[Any]] = None,
        query_tokens: Optional[Sequence[Any]] = None,
        layers: Optional[Sequence[Union[str, int]]] = None,
        call: int = -1,
    ) -> None:
        """Writes one call of each layer as an attention file, for `qkv view` and `qkv stats`.

        The array `attn` is [B, layers, heads, R, Tk]: the recorded rows, in order, each once. The
        array `tgt` has the tokens of these rows and `src` those of the keys; without tokens, they
        have the indices of rows and keys. If no rows were recorded, `attn` is the pooled weights,
        [B, layers, heads, m, n], and `tgt` and `src` are the ranges of indices in the cells; if
        neither was recorded, `attn` is the largest weights of all queries, with 0 elsewhere. The
        arrays `layers` (names), `heads` and `rows` (indices) describe the axes of `attn`. The file
        also has the other results, each with an axis of layers.

        Args:
            path: a name that ends in .npz; an existing file is replaced.
            tokens: the tokens of the keys, [Tk], or one such list for each of the B examples.
            query_tokens: the tokens of all queries, [Tq]; by default the last Tq of `tokens`.
            layers: names or indices, as in `seen[...]`; None for all. The layers must have equal
                sizes.
            call: the index of the call to write of each layer; by default the last one.

        Raises:
            ValueError: none of rows, pool and top was requested, sizes of layers differ, or the
                number of tokens is not the number of keys; the message says which.
            KeyError, IndexError: there is no such layer or call.

        >>> import os, tempfile
        >>> import torch, qkv.torch
        >>> module = torch.nn.MultiheadAttention(8, 2)
        >>> x = torch.ones(3, 1, 8)
        >>> with qkv.torch.look(module, rows=slice(None)) as seen:
        ...     out = module(x, x, x)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     seen.save(os.path.join(folder, "a.npz"), tokens=["a", "b", "c"])
        """
        chosen = list(self) if layers is None else [self[which] for which in layers]
        if not chosen:
            raise ValueError(f"save: no layers; {self._there_is()}")
        calls = {}
        for layer in chosen:
            if not -len(layer.calls) <= call < len(layer.calls):
                count = len(layer.calls)
                raise IndexError(f"save: {layer.name!r} has {count} calls, got call = {call}")
            calls[layer.name] = layer.calls[call]
        save_calls(path, calls, Labels("save", "tokens", tokens, "query_tokens", query_tokens))

    def _attention_arrays_(self, queries: Any = None, keys: Any = None) -> Dict[str, Any]:
        """The arrays that `qkv.show` draws: the last call of every layer."""
        if not self._layers:
            raise ValueError(f"show: no layers; {self._there_is()}")
        return arrays_of({layer.name: layer.calls[-1] for layer in self}, queries, keys)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        """The forms that a notebook may show: a picture of the heads, and the text."""
        forms = {"text/plain": repr(self)}
        try:
            forms["image/svg+xml"] = picture_of(self).svg
        except (ValueError, RuntimeError) as error:
            forms["text/plain"] += f"\nno picture: {error}"
        return forms


def arrays_of(calls: Dict[str, Call], queries: Any, keys: Any) -> Dict[str, Any]:
    """The arrays that `qkv.show` draws of one call of each layer."""
    return call_arrays(calls, Labels("show", "keys", keys, "queries", queries))


def _without_layers(arrays: Dict[str, Any]) -> Dict[str, Any]:
    """The arrays of one layer as [B,heads,..], so that a picture does not number the layer."""
    return {**arrays, "attn": arrays["attn"][:, 0], "order": "examples,heads"}


def picture_of(seen: Seen) -> Picture:
    """The picture of all heads of all layers, or, where these are many, of the first ones."""
    maps = seen._attention_arrays_()["attn"].shape
    are_few = maps[1] * maps[2] <= _MOST_MAPS and math.prod(maps[1:]) <= _MOST_CELLS
    return show(seen, layers="all", heads="all") if are_few else show(seen)


def layer_of(seen: Seen, name: str, is_wanted: bool) -> Optional[Layer]:
    """The layer of this name, made if it is new; None if it is not requested."""
    if is_wanted:
        return seen._layers.setdefault(name, Layer(name))
    if name not in seen._others:
        seen._others.append(name)
    return None


def layers_that_attended(seen: Seen) -> int:
    """The number of layers that attended, requested or not."""
    return len(seen._layers) + len(seen._others)


def note_compiled(seen: Seen, name: str) -> None:
    """Notes that a module of the model is compiled."""
    if name not in seen._compiled:
        seen._compiled.append(name)


def note_thread(seen: Seen) -> None:
    """Notes that another thread ran a module of the model."""
    seen._ran_elsewhere = True
