# SPDX-License-Identifier: Apache-2.0
"""score_mod and mask_mod as arguments of the operator, which takes no functions.

A function is called with symbols, as by `qkv.score_mod`, but what it does is recorded as text: one
step a line, such as "operator sub %2 %3". The arrays and numbers that it takes become tensors and
lists that the operator takes. The operator's kernels replay the text with expressions.
torch.compile traces the recording itself, so that tensors of its graph can be captured.
"""

import math
import operator
from typing import Any, Callable, Dict, List, NoReturn, Tuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from .. import _expression
from .._captured import _NAME, Call, _view, read, tensor_of, with_captured_arrays
from .._expression import Expression, expression_of
from .._expression_torch import of_torch_name
from .._hints import hint
from .._mods import At, Detached, MaskMod, OfCall, ScoreMod, check_takes
from .._rows import REDUCTIONS, Row, elementwise
from ._questions import is_dynamo

# How many arrays the functions of a call may read.
SLOTS = 16
CAPTURED = tuple(f"captured_{n}" for n in range(SLOTS))

_CLASSES: Dict[str, Any] = {"score_mod": ScoreMod, "mask_mod": MaskMod}
_FORMS = {
    "score_mod": "a function f(s, at) or qkv.score_mod(f)",
    "mask_mod": "a function f(at) or qkv.mask_mod(f)",
}

# The first line of the text of a function that is traced for one call.
_OF_CALL = "of call"

# Attributes whose values are known when the text is replayed.
_ATTRIBUTES = ("device", "dtype", "ndim", "shape")


class Tape:
    """The steps of the functions of a call, and the arrays and numbers that they take."""

    def __init__(self, is_inlined: bool) -> None:
        self.is_inlined = is_inlined  # by torch.compile, which calls the functions as they are
        self.steps: List[str] = []
        self.arrays: List[Any] = []
        self.integers: List[Any] = []
        self.numbers: List[Any] = []

    def step(self, name: str, inputs: Tuple[Any, ...], options: Dict[str, Any]) -> "Recorded":
        """Adds a step, the kind and name of a function and its arguments; returns its value."""
        words = [name]
        for x in inputs:
            words.append(self._operand(x))
        for word, x in options.items():
            words.append(word + "=" + self._operand(x))
        self.steps.append(" ".join(words))
        return Recorded(self, len(self.steps) - 1)

    def element(self, array: Any, indices: Tuple[Any, ...]) -> "Recorded":
        return self.step("read", (array, *indices), {})

    def finish(self, result: Any, is_of_call: bool) -> str:
        """The text of the steps so far; the next function starts anew."""
        steps = [_OF_CALL] if is_of_call else []
        steps += [*self.steps, "return " + self._operand(result)]
        self.steps = []
        return "\n".join(steps)

    def _operand(self, x: Any) -> str:
        """An argument in the text: %step, @array, $integer, #number, a slice of them, or a word."""
        if isinstance(x, Recorded):
            return f"%{x._number}"
        if isinstance(x, (torch.Tensor, np.ndarray)):
            return f"@{self._array(x)}"
        if x is None or isinstance(x, bool):
            return str(x)
        if isinstance(x, (int, torch.SymInt)):
            self.integers.append(x)
            return f"${len(self.integers) - 1}"
        if isinstance(x, (float, torch.SymFloat)):
            self.numbers.append(x)
            return f"#{len(self.numbers) - 1}"
        if isinstance(x, np.generic) and not isinstance(x, np.complexfloating):
            return self._operand(float(x) if x.dtype.kind not in "iub" else x.item())
        if isinstance(x, (torch.dtype, torch.device)):
            return ":" + str(x)
        if x is float or x is int or x is bool:
            return ":" + x.__name__
        if isinstance(x, str) and x.isidentifier():
            return ":" + x
        if isinstance(x, tuple) and len(x) == 0:
            return "()"
        if x is Ellipsis:
            return "..."
        if isinstance(x, slice):
            return "/".join(["slice", *map(self._operand, (x.start, x.stop, x.step))])
        raise TypeError(f"expression: an operand must be a number, got {type(x).__name__}")

    def _array(self, x: Any) -> int:
        for n, other in enumerate(self.arrays):
            if other is x:
                return n
        self.arrays.append(x)
        return len(self.arrays) - 1


# Advice for operations that a symbol rejects, if the symbol may be a row.
_OF_ROWS = {
    "len()": "The length of a row is that of the array's last axes",
    "iteration": "Read the elements of a row one by one, such as row[0]",
}


class Recorded(Expression):
    """A value of a function that is recorded: the result of a step, which may be a row."""

    __slots__ = ("_tape", "_number")

    def __init__(self, tape: Tape, number: int) -> None:
        self._tape = tape
        self._number = number  # of the step

    @property
    def _of(self) -> NoReturn:  # type: ignore[override]
        raise TypeError("expression: this operation cannot be recorded for graphs")

    def __repr__(self) -> str:
        return "Expression(recorded)"

    def _refusal(self, what: str, about: str) -> TypeError:
        instead = _OF_ROWS.get(what) or hint(about, is_of_torch=True)
        return TypeError(
            f"expression: a symbol has no value while the function is traced, and {what} needs "
            f"one. {instead}"
        )

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        return self._tape.step("item", (self, *indices), {})

    def astype(self, dtype: Any) -> Any:
        return self._tape.step("method astype", (self, dtype), {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            return super().__array_ufunc__(ufunc, method, *inputs, **options)
        return self._tape.step("numpy " + ufunc.__name__, inputs, options)

    def __array_function__(self, function: Any, _: Any, inputs: Any, options: Any) -> Any:
        return self._tape.step("numpy " + function.__name__, inputs, options)

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, inputs: Any, options: Any = None) -> Any:
        tape = _tape_in(inputs)
        return _of_torch(tape, function, inputs, options or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"an expression has no attribute {name!r}")
        if name in _ATTRIBUTES:
            return self._tape.step("attribute " + name, (self,), {})

        def method(*inputs: Any, **options: Any) -> Any:
            return self._tape.step("method " + name, (self, *inputs), options)

        return method


def _binary(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Recorded, other: Any) -> Any:
        return self._tape.step("operator " + name, (self, other), {})

    return method


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Recorded, other: Any) -> Any:
        return self._tape.step("operator " + name, (other, self), {})

    return method


def _unary(name: str) -> Callable[[Any], Any]:
    def method(self: Recorded) -> Any:
        return self._tape.step("operator " + name, (self,), {})

    return method


def _rounding(name: str) -> Callable[[Any], Any]:
    def method(self: Recorded) -> Any:
        return self._tape.step("math " + name, (self,), {})

    return method


_ARITHMETIC = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor",
    "lshift", "rshift", "matmul",
)  # fmt: skip
for _name in _ARITHMETIC:
    setattr(Recorded, f"__{_name}__", _binary(_name))
    setattr(Recorded, f"__r{_name}__", _reflected(_name))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Recorded, f"__{_name}__", _binary(_name))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Recorded, f"__{_name}__", _unary(_name))
for _name in ("floor", "ceil", "trunc"):
    setattr(Recorded, f"__{_name}__", _rounding(_name))


def _tape_in(inputs: Any) -> Any:
    """The tape of the symbols among the arguments of a function; None if there are none."""
    for x in inputs:
        if isinstance(x, Recorded):
            return x._tape
        if isinstance(x, (tuple, list)):
            tape = _tape_in(x)
            if tape is not None:
                return tape
    return None


# Python's operators that PyTorch has by other names. torch.export(strict=True) passes these to
# __torch_function__.
_OPERATORS = ("truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift")


def _of_torch(tape: Tape, function: Any, inputs: Any, options: Dict[str, Any]) -> Any:
    name = function.__name__
    if name == "__getitem__" or name == "getitem":
        array, index = inputs
        if isinstance(array, Recorded):
            return array[index]
        return read(array, index if isinstance(index, tuple) else (index,))
    if name in _OPERATORS:
        return tape.step("operator " + name.strip("_"), inputs, options)
    return tape.step("torch " + name, inputs, options)


class _Recording(TorchFunctionMode):  # type: ignore[misc]
    """Records PyTorch's functions of symbols; tensor[symbol] reaches only a mode."""

    def __torch_function__(
        self, function: Any, types: Any, inputs: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        tape = _tape_in((*inputs, *options.values()))
        if tape is None:
            return function(*inputs, **options)
        return _of_torch(tape, function, inputs, options)


def _recorded(tape: Tape, name: str, function: Any) -> str:
    """The text of a function, which is the option `name`, score_mod or mask_mod."""
    mod_class = _CLASSES[name]
    if isinstance(function, Detached):  # of a backward pass
        function = function.mod
    is_of_call = isinstance(function, OfCall)
    if isinstance(function, OfCall):
        function = function.function
    if isinstance(function, mod_class):
        is_of_call = function._is_of_call
    if not callable(function) or (
        isinstance(function, (ScoreMod, MaskMod)) and not isinstance(function, mod_class)
    ):
        raise TypeError(f"attention: {name} must be {_FORMS[name]}, got {type(function).__name__}")
    at = At(*[tape.step("symbol " + field, (), {}) for field in At._fields])
    symbols = (tape.step("symbol s", (), {}), at) if name == "score_mod" else (at,)
    f = function._function if isinstance(function, mod_class) else function
    if not tape.is_inlined:
        check_takes(f"{name}: f", f, ("s", "at")[2 - len(symbols) :])
        f = with_captured_arrays(f, has_tensors=False)
    with _Recording():
        result = f(*symbols)
    if result is None:
        raise TypeError(f"{name}: f must return an expression, got None")
    return tape.finish(result, is_of_call)


def recorded(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """score_mod and mask_mod of a call as arguments of the operator, by name."""
    given = [name for name in _CLASSES if arguments.get(name) is not None]
    if not given:
        return {}
    tape = Tape(is_dynamo())
    made: Dict[str, Any] = {}
    of_scores = 0
    for name in given:
        made[name] = _recorded(tape, name, arguments[name])
        if name == "score_mod":
            of_scores = len(tape.arrays)
    if tape.is_inlined and _varies():
        raise ValueError(
            "attention: score_mod and mask_mod are not available in a graph with sizes or numbers "
            "that vary between runs; compile it with dynamic=False"
        )
    if len(tape.arrays) > SLOTS:
        raise ValueError(
            f"attention: score_mod and mask_mod may read {SLOTS} arrays in graphs, under "
            f"torch.func and autocast, got {len(tape.arrays)}"
        )
    for n, array in enumerate(tape.arrays):
        x = _tensor(array, tape.is_inlined)
        made[CAPTURED[n]] = x if n < of_scores else x.detach()
    made["mod_integers"] = tape.integers or None
    made["mod_numbers"] = tape.numbers or None
    return made


def _varies() -> bool:
    """Whether the graph that torch.compile records has a size or a number that varies.

    torch.compile takes a symbol's comparison with such a number, symbol == n, for False.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    fake_mode = None if context is None else context.fake_mode
    shapes = getattr(fake_mode, "shape_env", None)
    symbols, sources = (getattr(shapes, of, None) for of in ("var_to_range", "var_to_sources"))
    if symbols is None or sources is None:
        return True
    # Tensors without axes have symbols, too, for calls of item().
    kinds = (type(source).__name__ for x in symbols for source in sources.get(x, [None]))
    return any(kind != "CallMethodItemSource" for kind in kinds)


if hasattr(getattr(torch, "compiler", None), "assume_constant_result"):
    _varies = torch.compiler.assume_constant_result(_varies)


def _tensor(array: Any, is_inlined: bool) -> torch.Tensor:
    """A captured array as a tensor; a tensor that is not a view by `captured` stays as it is."""
    if isinstance(array, torch.Tensor):
        return array if is_inlined or not hasattr(array, "_qkv_name") else tensor_of(array)
    if is_inlined:
        return torch.as_tensor(array)
    x = array.view(np.ndarray)
    if x.dtype.name == "bfloat16":
        x = x.astype(np.float32)
    return torch.from_numpy(x if x.flags.writeable else x.copy())


def call_of(query: torch.Tensor, key: torch.Tensor) -> Call:
    """What is known of a call of query [B,H,Tq,D] and key [B,G,Tk,D]."""
    score_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return Call((*query.shape[:3], key.shape[2]), score_dtype)


# ---- in the kernels -----------------------------------------------------------------------------


class _Replay:
    """A function for `qkv.score_mod` or `qkv.mask_mod` that does the steps of a text."""

    def __init__(self, text: str, arrays: List[Any], integers: Any, numbers: Any) -> None:
        self._lines = text.split("\n")
        self.is_of_call = self._lines[0] == _OF_CALL
        if self.is_of_call:
            del self._lines[0]
        self._arrays = [None if x is None else _view(x, _NAME) for x in arrays]
        self._integers = integers
        self._numbers = numbers

    def __call__(self, *symbols: Any) -> Any:
        at = symbols[-1]
        known = {**at._asdict(), "s": symbols[0]}
        values: List[Any] = []
        for line in self._lines:
            kind, *words = line.split(" ")
            if kind == "return":
                return self._value(words[0], values)
            if kind == "symbol":
                values.append(known[words[0]])
                continue
            if kind == "read":
                array, *indices = (self._value(word, values) for word in words)
                values.append(read(array, tuple(indices)))
                continue
            if kind == "item":
                x, *indices = (self._value(word, values) for word in words)
                values.append(x[tuple(indices) if len(indices) > 1 else indices[0]])
                continue
            name, *words = words
            inputs = [self._value(word, values) for word in words if "=" not in word]
            named = (word.split("=") for word in words if "=" in word)
            options = {word: self._value(x, values) for word, x in named}
            values.append(_KINDS[kind](name, inputs, options))
        raise AssertionError("a recorded function without a result")

    def _value(self, word: str, values: List[Any]) -> Any:
        sign, rest = word[0], word[1:]
        if sign == "%":
            return values[int(rest)]
        if sign == "@":
            return self._arrays[int(rest)]
        if sign == "$":
            return self._integers[int(rest)]
        if sign == "#":
            return self._numbers[int(rest)]
        if sign == ":":
            return _word(rest)
        if word.startswith("slice/"):
            return slice(*(self._value(part, values) for part in word.split("/")[1:]))
        return {"None": None, "()": (), "...": Ellipsis, "True": True}.get(word, False)


def _word(text: str) -> Any:
    if text.startswith("torch."):
        return getattr(torch, text[len("torch.") :])
    return {"float": float, "int": int, "bool": bool}.get(text, text)


def _by_operator(name: str, inputs: List[Any], options: Dict[str, Any]) -> Any:
    function = getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))
    if any(isinstance(x, Row) for x in inputs):
        if name == "matmul":
            return REDUCTIONS[name](*inputs)
        return elementwise(lambda *each: _by_operator(name, list(each), {}), *inputs)
    if not any(isinstance(x, Expression) for x in inputs):
        inputs[0] = expression_of(inputs[0])
    # A captured tensor's operator would run first, and look up a function by its method's name.
    return function(*(x if _is_plain(x) else expression_of(x) for x in inputs))


def _is_plain(x: Any) -> bool:
    return isinstance(x, (Expression, bool, int, float))


_KINDS: Dict[str, Callable[[str, List[Any], Dict[str, Any]], Any]] = {
    "operator": _by_operator,
    "torch": of_torch_name,
    "method": lambda name, inputs, options: _attribute(inputs[0], name)(*inputs[1:], **options),
    "attribute": lambda name, inputs, _: _attribute(inputs[0], name),
    "math": lambda name, inputs, _: getattr(math, name)(*inputs),
    "numpy": lambda name, inputs, options: getattr(np, name)(*inputs, **options),
    "qkv": lambda name, inputs, options: getattr(_expression, name)(*inputs),
}


def _attribute(x: Any, name: str) -> Any:
    """An attribute or method of an expression, also of one that is a constant."""
    return getattr(x if isinstance(x, Expression) else expression_of(x), name)


def _mod_of(mod_class: Any, replayed: _Replay, arguments: Dict[str, Any]) -> Any:
    """A ScoreMod or MaskMod; a text traced for one call takes that call's sizes from q and k."""
    if not replayed.is_of_call:
        return mod_class(replayed, is_of_torch=True)
    q, k = arguments["q"], arguments["k"]
    if arguments["layout"] == "bthd":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    return mod_class(replayed, call_of(q, k))


def replay(arguments: Dict[str, Any]) -> None:
    """Replaces the texts among the arguments of a kernel by functions."""
    arrays = [arguments.pop(name, None) for name in CAPTURED]
    integers, numbers = arguments.pop("mod_integers"), arguments.pop("mod_numbers")
    for name, mod_class in _CLASSES.items():
        if arguments[name] is not None:
            replayed = _Replay(arguments[name], arrays, integers, numbers)
            arguments[name] = _mod_of(mod_class, replayed, arguments)


def check(named: Dict[str, Any]) -> None:
    """Replays the texts of a call on arrays without values: errors come when a graph is recorded.

    Sizes or numbers that are known only later leave the check to the first run.
    """
    given = [named[name] for name in CAPTURED]
    integers = named["mod_integers"]
    sized = [x for x in given if x is not None]
    if any((named[name] or "").startswith(_OF_CALL) for name in _CLASSES):
        sized += [named["q"], named["k"]]
    numbers = [*(integers or ()), *(n for x in sized for n in x.shape)]
    if not all(isinstance(n, int) for n in numbers):
        return
    arrays = [None if x is None else _without_values(x) for x in given]
    for name, mod_class in _CLASSES.items():
        if named[name] is not None:
            replayed = _Replay(named[name], arrays, integers, named["mod_numbers"])
            _mod_of(mod_class, replayed, named)


def _without_values(x: torch.Tensor) -> Any:
    """Zeros with the shape of a tensor and a type of its kind, in the memory of one number."""
    kind = np.bool_ if x.dtype == torch.bool else np.int64
    kind = np.float32 if x.dtype.is_floating_point else kind
    return np.broadcast_to(np.zeros((), kind), tuple(x.shape))


def gradient_names(mod: Any) -> Dict[str, str]:
    """{name in CAPTURED: name in dcaptured} of the tensors that a replayed score_mod reads."""
    if mod is None:
        return {}
    by_id = {id(x): name for name, x in mod._tensors.items()}
    ids = (
        (name, id(tensor_of(x)))
        for name, x in zip(CAPTURED, mod._function._arrays)
        if x is not None
    )
    return {name: by_id[of_tensor] for name, of_tensor in ids if of_tensor in by_id}
