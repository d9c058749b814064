# SPDX-License-Identifier: Apache-2.0
"""Arrays that can be read at expressions, as in `array[at.i]`, and functions that read them.

`array[at.i]` calls a method of the array, and NumPy's and PyTorch's methods take no expressions. A
function that reads arrays is therefore copied. The copy reads views of the arrays, of derived
classes whose methods do take expressions. The function itself is unchanged.
"""

import functools
import math
import sys
from contextvars import ContextVar
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from . import _core
from ._expression import Expression, expression_of, maximum, minimum, tape_of, where
from ._integers import ANY, Known, known, within
from ._rows import MAX_ELEMENTS, Row, elementwise

__all__ = ["captured"]

_NAME = "array"  # stands in texts and errors for an array without a name


class CapturedArray(np.ndarray):
    """A view of a NumPy array that can be read at expressions; see `captured`."""

    _qkv_name = _NAME

    def __getitem__(self, index: Any) -> Any:
        return indexed(self, index, super().__getitem__)


def indexed(array: Any, index: Any, own_item: Callable[[Any], Any]) -> Any:
    """array[index] of a captured array; own_item(index) if the index has no expressions."""
    indices = index if isinstance(index, tuple) else (index,)
    if any(isinstance(x, Expression) for x in indices):
        return read(array, indices)
    return own_item(index)


def is_inlined() -> bool:
    """Whether torch.compile traces this code; functions are then called as they are."""
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    asks = getattr(compiler, "is_dynamo_compiling", None)
    return asks is not None and bool(asks())


def _is_recorded() -> bool:
    """Whether PyTorch records or transforms this code; it would then lose views of tensors."""
    questions = sys.modules.get("qkv.torch._questions")
    return questions is not None and bool(questions.is_recorded())


def is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _is_array(x: Any) -> bool:
    """Whether x is an array whose operations are NumPy's own; a derived class has others."""
    return type(x) in (np.ndarray, np.memmap, CapturedArray)


def _view(array: Any, name: str) -> Any:
    """A view of the array, over the same memory, that can be read at expressions."""
    view: Any
    if is_tensor(array):
        from ._captured_tensor import CapturedTensor  # imports torch

        view = array.as_subclass(CapturedTensor)
        view._qkv_tensor = array
    else:
        view = array.view(CapturedArray)
    view._qkv_name = name
    return view


def captured(array: Any, name: Optional[str] = None) -> Any:
    """Returns a view of an array that the functions of `score_mod` and `mask_mod` can index.

    Arrays that are variables of such a function (global, of an enclosing function, or defaults of
    its arguments) are captured automatically. Other arrays, such as attributes, need this function.

    Args:
        array: a NumPy array or CPU tensor, of real numbers, integers or bool; any CPU array that
            supports DLPack, or a list of numbers.
        name: stands for the array in texts and errors; "array" by default.

    Returns:
        A view of the array: a tensor if the array is one, else a NumPy array. (While PyTorch
        records or compiles, a tensor is returned as it is.) An expression as the index of each axis
        gives an Expression. Each call reads the array's values at that time; an index outside of
        the array, or a negative one, is an error of the call. Other indices and operations give
        arrays, which are computed once.

    Raises:
        ValueError: name is empty or not printable.
        TypeError: name is not a str, or array is a masked array or a list of other values. The
            dtype of a NumPy array or tensor is checked when a function first reads it.

    >>> import numpy as np
    >>> import qkv
    >>> class Model:
    ...     slopes = np.array([0.5, 0.25])
    >>> qkv.score_mod(lambda s, at: s - qkv.captured(Model.slopes, "slopes")[at.h] * at.j)
    ScoreMod(s - slopes[h] * float(j))
    """
    if name is None:
        name = _NAME if is_inlined() else getattr(array, "_qkv_name", _NAME)
    if not isinstance(name, str):
        raise TypeError(f"captured: name must be a text, got {type(name).__name__}")
    if not name or not name.isprintable():
        raise ValueError(f"captured: name must be printable text, got {name!r}")
    if is_inlined() or (is_tensor(array) and _is_recorded()):
        return array
    if is_tensor(array) or _is_array(array):
        is_named = getattr(array, "_qkv_name", None) == name
        return array if is_named else _view(array, name)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("captured: array must not be a masked array; read its data and its mask")
    if not isinstance(array, (np.ndarray, np.generic)) and hasattr(array, "__dlpack__"):
        return _view(np.from_dlpack(array), name)
    converted = np.asarray(array)
    if converted.dtype.kind not in "fiub" and converted.dtype.name != "bfloat16":
        kind = f"{type(array).__name__} of {converted.dtype}"
        raise TypeError(f"captured: array must hold real numbers, integers or bool, got {kind}")
    return _view(converted, name)


class Call(NamedTuple):
    """What is known of a call before a function is traced for this call only.

    In such a trace, negative indices count from the end, as in PyTorch. Wrapping them needs the
    ranges of the indices, from `sizes`, and of captured integers. A function that is traced for all
    calls has no Call.
    """

    sizes: Tuple[int, int, int, int]  # B, H, Tq, Tk
    dtype: Any  # of the score, a torch.dtype


class _Trace:
    """The state of tracing one function.

    `read` has the arrays that were read, by id, each with its reader. An array has only one reader,
    because the library considers two reads of an element equal only if they have the same reader.
    The array itself does not hold its reader, since the reader holds the array.
    """

    def __init__(self, call: Optional[Call], is_of_torch: bool = False) -> None:
        self.call = call
        self.is_of_torch = is_of_torch  # whether errors give advice in PyTorch's words
        self.read: Dict[int, Tuple[Any, _core.Captured]] = {}
        self.views: Dict[int, Tuple[Any, Any]] = {}  # tensors with their views, by their ids
        self.ranges: Dict[int, Known] = {}  # the range of each captured array of integers, by id


_TRACE: ContextVar[Optional[_Trace]] = ContextVar("qkv_trace", default=None)


def traced(
    function: Any, symbols: Tuple[Any, ...], call: Optional[Call], is_of_torch: bool
) -> Tuple[Any, List[Tuple[Any, Any]]]:
    """Calls a function with symbols; returns its result and the (array, reader) pairs it read."""
    trace = _Trace(call, is_of_torch)
    token = _TRACE.set(trace)
    try:
        return function(*symbols), list(trace.read.values())
    finally:
        _TRACE.reset(token)


def present_call() -> Optional[Call]:
    """The one call for which a function is being traced now; None if there is no such call."""
    trace = _TRACE.get()
    return None if trace is None else trace.call


def is_traced_of_torch() -> bool:
    """Whether the function being traced uses PyTorch, or was passed to a call of qkv.torch."""
    trace = _TRACE.get()
    return trace is not None and trace.is_of_torch


def view_of_tensor(tensor: Any) -> Any:
    """A view of a tensor that can be read at expressions; the same one for all of a trace."""
    trace = _TRACE.get()
    if hasattr(tensor, "_qkv_name") or trace is None:
        return captured(tensor)
    if id(tensor) not in trace.views:
        trace.views[id(tensor)] = (tensor, captured(tensor))
    return trace.views[id(tensor)][1]


class _Part(Row):
    """An array indexed in its first axes only, such as `bias[at.h]` of `bias[at.h][at.i]`."""

    __slots__ = ("_array", "_indices")

    def __init__(self, array: Any, indices: Tuple[Any, ...]) -> None:
        self._array = array
        self._indices = indices

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if all(_selects_one(x) for x in indices):
            return read(self._array, (*self._indices, *indices))
        return super().__getitem__(index)

    @property
    def shape(self) -> Tuple[int, ...]:
        return tuple(self._array.shape[len(self._indices) :])

    @property
    def _items(self) -> Any:
        return elements_of(self._array, self._indices)


def _selects_one(index: Any) -> bool:
    """Whether an index removes its axis: it is neither a slice nor None nor Ellipsis."""
    return not isinstance(index, (slice, type(None), type(Ellipsis)))


def elements_of(array: Any, indices: Tuple[Any, ...]) -> Any:
    """The elements of a captured array at the indices of its first axes, as an array of objects."""
    shape = tuple(array.shape[len(indices) :])
    if math.prod(shape) > MAX_ELEMENTS:
        raise TypeError(
            f"expression: {array._qkv_name} is used with {len(indices)} of its {array.ndim} "
            f"indices, which leaves values of the shape {list(shape)}; at most {MAX_ELEMENTS} are "
            "allowed"
        )
    items = np.empty(shape, object)
    for rest in np.ndindex(*shape):
        items[rest] = element_of(array, (*indices, *rest))
    return items


def read(array: Any, indices: Tuple[Any, ...]) -> Any:
    """The element of a captured array, or a _Part if the last axes have no index yet."""
    if len(indices) > array.ndim:
        name = getattr(array, "_qkv_name", _NAME)
        raise IndexError(f"expression: {name} has {array.ndim} axes, got {len(indices)} indices")
    tape = tape_of(indices)
    if tape is not None:
        return tape.element(array, indices)
    rows = [x for x in indices if isinstance(x, Row)]
    if rows:
        return elementwise(lambda *each: read(array, each), *indices)
    if len(indices) < array.ndim:
        return _Part(array, indices)
    return element_of(array, indices)


def element_of(array: Any, indices: Tuple[Any, ...]) -> Expression:
    """The element of a captured array, given an index for each of its axes."""
    trace = _TRACE.get() or _Trace(None)
    if id(array) not in trace.read:
        trace.read[id(array)] = (array, _core.Captured(_plain(array), array._qkv_name))
    operands = [_index(array, axis, x)._of for axis, x in enumerate(indices)]
    element = Expression(trace.read[id(array)][1].at(operands))
    if trace.call is not None and element._of.type() == "integer":
        if id(array) not in trace.ranges:
            trace.ranges[id(array)] = _range_of(_plain(array))
        element._known = trace.ranges[id(array)]
    return element


def _range_of(array: Any) -> Known:
    """The range of the integers of an array."""
    numbers = array.numpy() if is_tensor(array) else array
    return within(int(numbers.min()), int(numbers.max())) if numbers.size else ANY


def _plain(array: Any) -> Any:
    """A view of a captured array, as a NumPy array or a tensor that takes no expressions."""
    return tensor_of(array).detach() if is_tensor(array) else array.view(np.ndarray)


def tensor_of(array: Any) -> Any:
    """The tensor that a captured tensor is a view of; the tensor itself if it was computed."""
    found = getattr(array, "_qkv_tensor", None)
    return array.as_subclass(sys.modules["torch"].Tensor) if found is None else found


def _index(array: Any, axis: int, index: Any) -> Expression:
    """The index of an axis as an expression. Constants are checked here and may be negative."""
    size = array.shape[axis]
    if isinstance(index, Expression):
        return index if present_call() is None else _from_the_end(index, size)
    if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
        if not -size <= index < size:
            raise IndexError(
                f"expression: {array._qkv_name} is read at index {index} of axis {axis}, which has "
                f"{size} elements"
            )
        return expression_of(int(index) + (size if index < 0 else 0))
    if getattr(index, "shape", None) == ():  # an array without axes
        return _index(array, axis, expression_of(index))
    raise TypeError(
        f"expression: {array._qkv_name} takes an integer as the index of each of its {array.ndim} "
        f"axes, got {index!r}"
    )


def _from_the_end(index: Expression, size: int) -> Expression:
    """An index that counts from the end where it is negative, as in PyTorch.

    `where` does not narrow the range of an index, so minimum and maximum state what the condition
    implies. An index below -size stays negative, which is an error of the call.
    """
    least, largest, _ = known(index)
    if least >= 0:
        return index
    if largest < 0:
        return index + size
    return where(index < 0, minimum(index, -1) + size, maximum(index, 0))


# ---- functions -----------------------------------------------------------------------------------

# Packages whose functions are not copied.
_AS_THEY_ARE = ("numpy", "qkv", "torch")
# Modules of these packages whose functions are copied, because some, such as and_masks, call
# functions of the user.
_CALLING_USERS = ("torch.nn.attention.flex_attention", "qkv.torch._flex")


def _names_of(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes that a function, or one nested in it, looks up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def uses_torch(function: Any) -> bool:
    """Whether a variable of the function is PyTorch, a module of PyTorch or a tensor."""
    if not isinstance(function, (FunctionType, MethodType)):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    if code is None or "torch" not in sys.modules:
        return False
    variables = [function.__globals__.get(name) for name in _names_of(code)]
    variables += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return any(is_tensor(x) or _is_of_torch(x) for x in variables)


def _is_of_torch(x: Any) -> bool:
    return isinstance(x, ModuleType) and x.__name__.partition(".")[0] == "torch"


def _is_filled(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # not assigned yet
        return False
    return True


class _Copies:
    """Copies functions, and the functions that they call; the copies read captured arrays.

    If functions share a closure's cell or a module's globals, their copies share one copy of it.
    """

    def __init__(self, has_tensors: bool) -> None:
        self._has_tensors = has_tensors
        self._copies: Dict[int, Any] = {}  # by the ids of the originals
        self._originals: Any = []  # kept alive, so that no new object gets one of these ids

    def _remember(self, original: Any, copy: Any) -> Any:
        self._copies[id(original)] = copy
        self._originals.append(original)
        return copy

    def of(self, x: Any, name: str = _NAME) -> Any:
        """The replacement of a variable x: the captured array, the copied function, or x itself."""
        if id(x) in self._copies:
            return self._copies[id(x)]
        if _is_array(x) or (self._has_tensors and is_tensor(x)):
            return self._remember(x, x if hasattr(x, "_qkv_name") else _view(x, name))
        if isinstance(x, FunctionType):
            module = x.__module__ or ""
            stays = module.split(".")[0] in _AS_THEY_ARE and module not in _CALLING_USERS
            return x if stays else self.copied(x)
        if type(x) is tuple and any(map(callable, x)):
            return tuple(map(self.of, x))
        if isinstance(x, MethodType):
            return MethodType(self.of(x.__func__), x.__self__)
        if type(x) is functools.partial:
            words = {word: self.of(value, word) for word, value in x.keywords.items()}
            return functools.partial(self.of(x.func), *map(self.of, x.args), **words)
        return x

    def copied(self, function: FunctionType) -> Any:
        """A copy of a function, even of one that of() does not copy."""
        code = function.__code__
        variables = self._globals(function.__globals__)
        cells = tuple(map(self._cell, function.__closure__ or ()))
        copy = FunctionType(code, variables, function.__name__, None, cells)
        self._remember(function, copy)  # first, because a variable may refer to the function
        copy.__qualname__ = function.__qualname__
        copy.__dict__.update(function.__dict__)
        names = code.co_varnames[: code.co_argcount]
        if function.__defaults__:
            last = names[len(names) - len(function.__defaults__) :]
            copy.__defaults__ = tuple(map(self.of, function.__defaults__, last))
        if function.__kwdefaults__:
            copy.__kwdefaults__ = {n: self.of(x, n) for n, x in function.__kwdefaults__.items()}
        for name, cell, from_cell in zip(code.co_freevars, cells, function.__closure__ or ()):
            self._fill(cell, from_cell, name)
        for name in _names_of(code):
            if name in function.__globals__:
                variables[name] = self.of(function.__globals__[name], name)
        return copy

    def _globals(self, of_module: Dict[str, Any]) -> Dict[str, Any]:
        variables: Optional[Dict[str, Any]] = self._copies.get(id(of_module))
        if variables is None:
            # copied() adds the names that a function uses, and no others, because whatever is in
            # the copy stays alive as long as the copy.
            names = {name: x for name, x in of_module.items() if name.startswith("__")}
            variables = self._remember(of_module, names)
        return variables

    def _cell(self, cell: CellType) -> CellType:
        copy: CellType = self._copies.get(id(cell)) or self._remember(cell, CellType())
        return copy

    def _fill(self, cell: CellType, from_cell: CellType, name: str) -> None:
        if _is_filled(from_cell):
            cell.cell_contents = self.of(from_cell.cell_contents, name)


def with_captured_arrays(function: Any, has_tensors: bool = True) -> Any:
    """A copy of a function that can read its arrays at expressions; see `captured`.

    If has_tensors is false, only NumPy arrays are captured.
    """
    copies = _Copies(has_tensors)
    if isinstance(function, FunctionType):
        return copies.copied(function)
    call = type(function).__call__
    if isinstance(call, FunctionType):  # an object with a method __call__
        return MethodType(copies.of(call), function)
    return copies.of(function)
