# SPDX-License-Identifier: Apache-2.0
"""Named tuples of the results of a call, and what pictures need to know of that call."""

from collections import namedtuple
from operator import itemgetter
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, cast

from . import _core

# Each result's name and the kind of its axes: "values" [..,Tq,E], "queries" [..,Tq], "keys"
# [..,Tk], "cells" [..,m,n], "top" [..,Tq,count] twice, "matrix" [..,Tq,Tk].
AXES: Dict[str, str] = _core.RESULT_AXES

# The arguments that request results, in the order of the results, then "rows".
REQUESTS: Tuple[str, ...] = _core.REQUESTS

_PREFIX = "return_"

# All results but out and the matrices; return_NAME requests the result NAME. Tuples of results end
# with these, in this order.
REQUESTED = tuple(
    request[len(_PREFIX) :]
    for request in REQUESTS
    if request.startswith(_PREFIX) and AXES.get(request[len(_PREFIX) :], "matrix") != "matrix"
)

# Results requested by True or False alone. return_column_sums may also be a list of queries.
FLAGS = tuple(
    name for name in REQUESTED if AXES[name] in ("queries", "keys") and name != "column_sums"
)

# The argument that requests each result, for messages.
_ASKED_BY = {
    **{name: f"{_PREFIX}{name}=True" for name in REQUESTED},
    "weights": "return_weights=True",
    "dropped_weights": 'return_weights="both"',
    "scores": 'return_scores="raw", "capped" or "masked"',
    "raw_scores": 'return_scores=("raw",)',
    "capped_scores": 'return_scores=("capped",)',
    "masked_scores": 'return_scores=("masked",)',
    "top": "return_top",
    "pooled": "return_pooled=(m, n)",
    "out": "v",
}


class Results:
    """The base of all named tuples of results."""

    __slots__ = ()
    _fields: Tuple[str, ...]

    def __getattr__(self, name: str) -> NoReturn:
        fields = ", ".join(self._fields)
        asked = f"; request it by {_ASKED_BY[name]}" if name in _ASKED_BY else ""
        raise AttributeError(f"these results have no {name!r}, but {fields}{asked}")

    def __reduce__(self) -> Tuple[Any, ...]:
        return results, (self._fields, tuple(cast(Any, self)))


_CLASSES: Dict[Tuple[str, ...], Any] = {}


def _class_of(names: Tuple[str, ...]) -> Any:
    if names not in _CLASSES:
        make: Any = namedtuple
        _CLASSES[names] = type("Results", (Results, make("Results", names)), {})
    return _CLASSES[names]


def results(names: Tuple[str, ...], values: Tuple[Any, ...]) -> Any:
    """The values as a tuple with these names."""
    return _class_of(tuple(names))(*values)


# ---- what pictures need to know of the call -----------------------------------------------------

# Options that may mask pairs, and options that shift the positions on which masks depend.
_MASKS = (
    "score_mod",
    "mask_mod",
    "mask",
    "padding_mask",
    "bias",
    "key_lengths",
    "causal",
    "window",
)
_POSITIONS = ("causal_offset", "shard")


class Call(NamedTuple):
    """A record of the call that gave results. It refers to the call's arrays without copies."""

    has_heads: bool  # whether the first axis of a three-axis result is the head axis
    queries: int  # Tq
    rows: Any  # the queries of weights and scores; None for all
    masks: Dict[str, Any]  # the given options among _MASKS, by name
    positions: Dict[str, Any]  # the given options among _POSITIONS, by name
    stage: Any  # the call's argument return_scores: a stage, several, or None


def of_call(found: Any, arrays: Sequence[Any], options: Dict[str, Any]) -> Any:
    """Returns `found`; if it is Results, stores a record of the call's arrays and options in it."""
    shapes: List[Any] = [getattr(array, "shape", None) for array in arrays if array is not None]
    if not isinstance(found, Results) or None in shapes:
        return found
    ranks = {len(shape) for shape in shapes}
    given = {n: options[n] for n in (*_MASKS, *_POSITIONS) if _is_given(options.get(n))}
    vars(found)["_call"] = Call(
        max(ranks) > 3 or len(ranks) > 1,
        shapes[0][1 if options.get("layout") == "bthd" else -2],
        options.get("rows"),
        {name: given[name] for name in _MASKS if name in given},
        {name: given[name] for name in _POSITIONS if name in given},
        options.get("return_scores"),
    )
    return found


def call_of(found: Results) -> Optional[Call]:
    """The record that of_call() stored; None without one, as in copied or unpickled results."""
    call: Optional[Call] = vars(found).get("_call")
    return call


def _is_given(option: Any) -> bool:
    return option is not None and option is not False


_requests = itemgetter(*REQUESTS)


def wanted_of(given: Dict[str, Any]) -> Tuple[Any, ...]:
    """The tuple that _core takes: the options in REQUESTS in order, then the function `results`."""
    return (*_requests(given), results)
