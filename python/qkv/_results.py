# SPDX-License-Identifier: Apache-2.0
"""Multiple results of a call: a named tuple of those requested."""

from collections import namedtuple
from typing import Any, Dict, NoReturn, Tuple, cast

# How to request each result.
_ASKED_BY = {
    "weights": "return_weights=True",
    "dropped_weights": 'return_weights="both"',
    "scores": 'return_scores="raw", "capped" or "masked"',
    "raw_scores": 'return_scores=("raw",)',
    "capped_scores": 'return_scores=("capped",)',
    "masked_scores": 'return_scores=("masked",)',
    "lse": "return_lse=True",
    "row_max": "return_row_max=True",
    "column_sums": "return_column_sums=True",
    "top": "return_top",
    "entropy": "return_entropy=True",
    "value_sums": "return_value_sums=True",
    "pooled": "return_pooled=(m, n)",
    "out": "v",
}

# The arguments that request results, in the order in which the extension takes them.
REQUESTS = (
    "return_weights",
    "return_scores",
    "return_lse",
    "return_row_max",
    "return_column_sums",
    "return_top",
    "return_entropy",
    "return_value_sums",
    "return_pooled",
    "rows",
)


class Results:
    """The base of all named tuples of results."""

    __slots__ = ()
    _fields: Tuple[str, ...]

    def __getattr__(self, name: str) -> NoReturn:
        fields = ", ".join(self._fields)
        asked = f"; ask for it with {_ASKED_BY[name]}" if name in _ASKED_BY else ""
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
