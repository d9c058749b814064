# SPDX-License-Identifier: Apache-2.0
"""Short arrays of expressions, such as a captured array that is indexed in its first axes only.

The library evaluates single values, so operations on a row are written out, element by element.
"""

import functools
import operator
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, Tuple

import numpy as np

from ._expression import Expression, expression_of, maximum, minimum

MAX_ELEMENTS = 256


class Row(Expression):
    """An array of expressions, on which operators and functions work element by element.

    sum(), mean(), any(), all(), amax(), amin() and dot() reduce it to an expression.
    """

    __slots__ = ("_values",)

    def __init__(self, items: Any) -> None:
        self._values = items

    @property
    def _items(self) -> Any:
        """The expressions, as an array of objects."""
        return self._values

    @property
    def _of(self) -> NoReturn:  # type: ignore[override]
        raise TypeError(
            f"expression: one value is needed, got values of the shape {list(self.shape)}; reduce "
            "them by sum(), any() or all(), or read one at an index"
        )

    @property
    def shape(self) -> Tuple[int, ...]:
        return tuple(self._items.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Row(values of the shape {list(self.shape)})"

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("expression: one value has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[n] for n in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if any(isinstance(x, Expression) for x in indices):
            raise TypeError("expression: computed values are read at constants, not expressions")
        return _of_items(self._items[index])

    def __getattr__(self, name: str) -> Any:
        if name in REDUCTIONS:
            return functools.partial(REDUCTIONS[name], self)
        if name in _EXTREMES:
            return functools.partial(_extreme, name, self)
        if name.startswith("_") or self._items.size == 0:
            raise AttributeError(f"an expression has no attribute {name!r}")
        method = getattr(self._items.flat[0], name)
        if not callable(method):
            return method
        return lambda *others, **options: elementwise(
            lambda x, *operands: getattr(x, name)(*operands, **options), self, *others
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return elementwise(lambda *xs: getattr(ufunc, method)(*xs, **options), *inputs)

    def __array_function__(self, function: Any, _: Any, inputs: Any, options: Any) -> Any:
        name = _EXTREMES.get(function.__name__, function.__name__)
        if name in REDUCTIONS:
            return REDUCTIONS[name](*inputs, **options)
        return elementwise(lambda *xs: function(*xs, **options), *inputs)

    def __matmul__(self, other: Any) -> Any:
        return _dot(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _dot(other, self)


def _operator(name: str) -> Callable[..., Any]:
    of_two = getattr(operator, name)

    def of_rows(self: Row, other: Any) -> Any:
        return elementwise(of_two, self, other)

    return of_rows


def _operator_of_one(name: str) -> Callable[..., Any]:
    of_one = getattr(operator, name)

    def of_row(self: Row) -> Any:
        return elementwise(of_one, self)

    return of_row


def _swapped_operator(name: str) -> Callable[..., Any]:
    of_two = getattr(operator, name)

    def of_rows(self: Row, other: Any) -> Any:
        return elementwise(of_two, other, self)

    return of_rows


_OF_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift")
for _name in (*_OF_TWO, "and", "or", "xor"):
    setattr(Row, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(Row, f"__r{_name}__", _swapped_operator(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Row, f"__{_name}__", _operator(f"__{_name}__"))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Row, f"__{_name}__", _operator_of_one(f"__{_name}__"))


def _of_items(items: Any) -> Any:
    """A Row of an array of expressions; a single expression is returned as it is."""
    if not isinstance(items, np.ndarray):
        return items
    return items[()] if items.ndim == 0 else Row(items)


def _items_of(x: Any) -> Any:
    """The elements of an operand, a Row, an array or one value, as an array of objects."""
    if isinstance(x, Row):
        return x._items
    one = np.empty((), object)
    shape = () if isinstance(x, Expression) else tuple(getattr(x, "shape", ()))
    if shape == ():
        one[()] = x
        return one
    from ._captured import captured, elements_of  # here, since _captured imports _rows

    return elements_of(captured(x), ())


def elementwise(function: Callable[..., Any], *operands: Any) -> Any:
    """Calls a function with the elements of rows, arrays and single values, which broadcast."""
    arrays = [_items_of(x) for x in operands]
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    arrays = [np.broadcast_to(x, shape) for x in arrays]
    items = np.empty(shape, object)
    for index in np.ndindex(*shape):
        items[index] = function(*(x[index] for x in arrays))
    return _of_items(items)


# ---- reductions ----------------------------------------------------------------------------------


def _of_numpy(reduced: Callable[..., Any]) -> Callable[..., Any]:
    """Accepts NumPy's names of a reduction's arguments, axis and keepdims, besides PyTorch's."""

    @functools.wraps(reduced)
    def renamed(x: Any, *arguments: Any, **options: Any) -> Any:
        for name, others in (("axis", "dim"), ("keepdims", "keepdim")):
            if name in options and others not in options:
                options[others] = options.pop(name)
        return reduced(x, *arguments, **options)

    return renamed


def _reduction(
    of_two: Callable[[Any, Any], Any], convert: Callable[[Any], Any], of_none: Any
) -> Callable[..., Any]:
    """Makes sum, any and others: combines converted elements by of_two(x, y), in ascending order.

    The result for no elements is of_none; None makes that an error.
    """

    @_of_numpy
    def reduced(x: Any, dim: Optional[int] = None, keepdim: bool = False) -> Any:
        items = _items_of(x)
        axis = 0 if dim is None else dim
        if dim is None:
            items = items.reshape(-1)
        moved = np.moveaxis(items, axis, 0)
        if len(moved) == 0 and of_none is None:
            raise TypeError("expression: the largest or least of no values is undefined")
        results = np.empty(moved.shape[1:], object)
        for index in np.ndindex(*results.shape):
            values = [convert(moved[(n, *index)]) for n in range(len(moved))]
            results[index] = functools.reduce(of_two, values) if values else expression_of(of_none)
        if keepdim and dim is not None:
            results = np.expand_dims(results, axis)
        return _of_items(results)

    return reduced


def _as_truth(x: Any) -> Any:
    return x.astype(bool)


def _as_it_is(x: Any) -> Any:
    return +x


_sum = _reduction(operator.add, _as_it_is, 0)


@_of_numpy
def _mean(x: Any, dim: Optional[int] = None, keepdim: bool = False) -> Any:
    shape = _items_of(x).shape
    return _sum(x, dim, keepdim) / float(np.prod(shape) if dim is None else shape[dim])


def _dot(x: Any, y: Any) -> Any:
    a, b = _items_of(x), _items_of(y)
    if a.ndim != 1 or a.shape != b.shape:
        raise TypeError(
            "expression: the dot product takes two rows of equal length, got the shapes "
            f"{list(a.shape)} and {list(b.shape)}"
        )
    return _sum(Row(a) * Row(b))


def _unsqueeze(x: Any, dim: int) -> Any:
    return _of_items(np.expand_dims(_items_of(x), dim))


def _squeeze(x: Any, dim: Optional[int] = None) -> Any:
    items = _items_of(x)
    if dim is not None and (items.ndim == 0 or items.shape[dim] != 1):
        return _of_items(items)
    return _of_items(np.squeeze(items, dim))


_EXTREMES = {"max": "amax", "min": "amin"}


def _extreme(name: str, x: Row, *others: Any, **options: Any) -> Any:
    """x.max() or x.min() over elements of a row, or element by element with another operand."""
    if others and isinstance(others[0], (int, np.integer)):  # the axis
        return REDUCTIONS[_EXTREMES[name]](x, *others, **options)
    if others:
        return elementwise({"max": maximum, "min": minimum}[name], x, *others)
    return REDUCTIONS[_EXTREMES[name]](x, **options)


# Functions and methods that do not work on each element alone.
REDUCTIONS: Dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "any": _reduction(operator.or_, _as_truth, False),
    "all": _reduction(operator.and_, _as_truth, True),
    "amax": _reduction(maximum, _as_it_is, None),
    "amin": _reduction(minimum, _as_it_is, None),
    "dot": _dot,
    "matmul": _dot,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
}
