# SPDX-License-Identifier: Apache-2.0
"""Multiple results of a call: a named tuple of those requested."""

from collections import namedtuple
from operator import itemgetter
from typing import Any, Dict, NoReturn, Tuple, cast

from . import _core

# The axes of each result of the library, by its name: "values" [..,Tq,E], "queries" [..,Tq], "keys"
# [..,Tk], "cells" [..,m,n], "top" [..,Tq,count] twice, "matrix" [..,Tq,Tk].
AXES: Dict[str, str] = _core.RESULT_AXES

# The arguments that request results, in the order of the results.
REQUESTS: Tuple[str, ...] = _core.REQUESTS

_PREFIX = "return_"

# The results that are requested by an argument return_NAME, in the order of the named tuples, in
# which out and the matrices precede them.
REQUESTED = tuple(
    request[len(_PREFIX) :]
    for request in REQUESTS
    if request.startswith(_PREFIX) and AXES.get(request[len(_PREFIX) :], "matrix") != "matrix"
)

# The results whose request is True or False: not column_sums, which may take a list of queries.
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
        _CLASSES[names] = type("Results", (Results, make("Results", names)), {"__slots__": ()})
    return _CLASSES[names]


def results(names: Tuple[str, ...], values: Tuple[Any, ...]) -> Any:
    """The values as a tuple with these names."""
    return _class_of(tuple(names))(*values)


_requests = itemgetter(*REQUESTS)


def wanted_of(given: Dict[str, Any]) -> Tuple[Any, ...]:
    """The tuple that _core takes: the values of the requests in order, and the function results."""
    return (*_requests(given), results)
