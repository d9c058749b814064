# SPDX-License-Identifier: Apache-2.0
"""Expressions: what a score or a mask written in Python becomes when it is called with symbols.

The C++ library checks and evaluates them (qkv/expression.h). Here they get Python's operators with
Python's meaning, and NumPy's functions.
"""

import math
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._hints import hint
from ._integers import LEAST, Known, known, runs, within
from ._words import with_names

__all__ = ["Expression", "maximum", "minimum", "where"]

_MOST_TEXT = 26  # characters of an expression in a message


class Expression:
    """A value that is computed for every query and key: a number, an integer or a truth value.

    The functions given to `score_mod` and `mask_mod` are called once with expressions and return
    one. Operators have Python's meaning for numbers (x // y is floor(x / y)) and for integers of 32
    bits, which wrap around. There are + - * / // %, abs(), comparisons, & | ^ ~ of truth values or
    of integers (which cost several operations for each bit that both may have), and << >> by a
    constant. x ** n takes a constant n: an integer from -16 to 16, 0.5 or -0.5; a positive constant
    may be raised to an expression. NumPy's functions take expressions: np.where, np.clip, np.exp
    and others. astype(int) rounds towards 0.

    >>> import numpy as np
    >>> import qkv
    >>> qkv.score_mod(lambda s, at: np.tanh(s / 2) - (at.i - at.j) ** 2)
    ScoreMod(tanh(s / 2.0) - float((i - j) * (i - j)))
    """

    __slots__ = ("_known", "_made", "_of")
    _tape: Any = None  # the Tape of qkv.torch that records this value, if any

    def __init__(
        self, of: _core.Expression, made: Tuple[Any, ...] = (), known: Optional[Known] = None
    ) -> None:
        self._of = of  # the library's expression
        self._made = made  # the operation and its operands, from which `known` computes _known
        self._known = known

    def __repr__(self) -> str:
        return f"Expression({self._of.text()})"

    # ---- operations that need a value ------------------------------------------------------------

    def _refusal(self, what: str, about: str) -> TypeError:
        text = self._of.text()
        shown = text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."
        return TypeError(
            f"expression: {shown} has no value while it is traced; {what} needs one. {hint(about)}"
        )

    def __bool__(self) -> bool:
        raise self._refusal("if, and, or, not, in, min() or max()", "truth")

    def __index__(self) -> int:
        raise self._refusal("an index, or range()", "index")

    def __int__(self) -> int:
        raise self._refusal("int()", "integer")

    def __float__(self) -> float:
        raise self._refusal("float(), or a function of math", "float")

    def __len__(self) -> int:
        raise self._refusal("len()", "value")

    def __iter__(self) -> Any:
        raise self._refusal("iteration", "value")

    def __hash__(self) -> int:
        raise self._refusal("a key of a dict or set", "key")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self._refusal("an array", "index")

    # ---- operators -------------------------------------------------------------------------------

    def __add__(self, other: Any) -> "Expression":
        return _of_two("+", self, other)

    def __radd__(self, other: Any) -> "Expression":
        return _of_two("+", other, self)

    def __sub__(self, other: Any) -> "Expression":
        return _of_two("-", self, other)

    def __rsub__(self, other: Any) -> "Expression":
        return _of_two("-", other, self)

    def __mul__(self, other: Any) -> "Expression":
        return _of_two("*", self, other)

    def __rmul__(self, other: Any) -> "Expression":
        return _of_two("*", other, self)

    def __truediv__(self, other: Any) -> "Expression":
        return _quotient(self, other)

    def __rtruediv__(self, other: Any) -> "Expression":
        return _quotient(other, self)

    def __floordiv__(self, other: Any) -> "Expression":
        return _floor_quotient(self, other)

    def __rfloordiv__(self, other: Any) -> "Expression":
        return _floor_quotient(other, self)

    def __mod__(self, other: Any) -> "Expression":
        return _of_two("%", self, other)

    def __rmod__(self, other: Any) -> "Expression":
        return _of_two("%", other, self)

    def __pow__(self, other: Any) -> "Expression":
        return _power(self, other)

    def __rpow__(self, other: Any) -> "Expression":
        return _power(other, self)

    def __and__(self, other: Any) -> "Expression":
        return _and(self, other)

    def __rand__(self, other: Any) -> "Expression":
        return _and(other, self)

    def __or__(self, other: Any) -> "Expression":
        return _or(self, other)

    def __ror__(self, other: Any) -> "Expression":
        return _or(other, self)

    def __xor__(self, other: Any) -> "Expression":
        return _xor(self, other)

    def __rxor__(self, other: Any) -> "Expression":
        return _xor(other, self)

    def __lshift__(self, other: Any) -> "Expression":
        return _of_two("*", *_shifted("<<", self, other))

    def __rlshift__(self, other: Any) -> "Expression":
        return _of_two("*", *_shifted("<<", other, self))

    def __rshift__(self, other: Any) -> "Expression":
        return _floor_quotient(*_shifted(">>", self, other))

    def __rrshift__(self, other: Any) -> "Expression":
        return _floor_quotient(*_shifted(">>", other, self))

    def __neg__(self) -> "Expression":
        return _of_one("negative", self)

    def __pos__(self) -> "Expression":
        return self * 1 if _type(self) == "truth" else self

    def __abs__(self) -> "Expression":
        return _of_one("abs", self)

    def __invert__(self) -> "Expression":
        if _type(self) == "truth":
            return _of_one("not", self)
        if _type(self) == "integer":
            return -self - 1
        raise TypeError(
            f"expression: ~ takes a truth value or an integer, got a number: {self._of.text()}"
        )

    def __lt__(self, other: Any) -> "Expression":
        return _of_two("<", self, other)

    def __le__(self, other: Any) -> "Expression":
        return _of_two("<=", self, other)

    def __gt__(self, other: Any) -> "Expression":
        return _of_two(">", self, other)

    def __ge__(self, other: Any) -> "Expression":
        return _of_two(">=", self, other)

    def __eq__(self, other: Any) -> "Expression":  # type: ignore[override]
        return _of_two("==", self, other)

    def __ne__(self, other: Any) -> "Expression":  # type: ignore[override]
        return _of_two("!=", self, other)

    def __floor__(self) -> "Expression":
        return _floor(self).astype(int)

    def __ceil__(self) -> "Expression":
        return _ceil(self).astype(int)

    def __trunc__(self) -> "Expression":
        return self.astype(int)

    def astype(self, dtype: Any) -> "Expression":
        """Returns the value as another type.

        Args:
            dtype: float, int (rounds towards 0; a number that does not fit in 32 bits becomes the
                nearest integer that does, NaN becomes 0) or bool (whether the value is not 0).

        Returns:
            The converted Expression.

        Raises:
            TypeError: dtype is none of these.
        """
        if dtype is float:
            return _of_one("to_number", self)
        if dtype is int:
            return _of_one("to_integer", self)
        if dtype is bool:
            return self if _type(self) == "truth" else self != 0
        raise TypeError(f"astype: dtype must be float, int or bool, got {dtype!r}")

    # ---- NumPy -----------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        ours = _UFUNCS.get(ufunc.__name__) or _composed().get(ufunc.__name__)
        return _of_numpy(ufunc, ours, method, inputs, options)

    def __array_function__(self, function: Any, _: Any, inputs: Any, options: Any) -> Any:
        name = function.__name__
        ours = _FUNCTIONS.get(name) or (_composed().get(name) if name in _ROUNDING else None)
        return _of_numpy(function, ours, "__call__", inputs, options)

    # ---- PyTorch ---------------------------------------------------------------------------------

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, inputs: Any, options: Any = None) -> Any:
        from ._expression_torch import of_torch  # imports PyTorch

        return of_torch(function, inputs, options or {})

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and "torch" in sys.modules:
            from ._expression_torch import method_of

            return method_of(self, name)
        raise AttributeError(f"an expression has no attribute {name!r}")


Operand = Union[Expression, bool, int, float, Any]


def expression_of(x: Any) -> Expression:
    """The operand x, an expression, a constant or an array without axes, as an expression.

    Raises:
        TypeError: x is something else, such as an array with axes.
        ValueError: x is an integer that does not fit in 32 bits.
    """
    if isinstance(x, Expression):
        return x
    if isinstance(x, (bool, np.bool_)):
        return Expression(_core.truth(bool(x)))
    if isinstance(x, (int, np.integer)) and not isinstance(x, np.timedelta64):
        if not -(2**31) <= x < 2**31:
            raise ValueError(f"expression: an integer must fit in 32 bits, got {x}")
        return Expression(_core.integer(int(x)), (), within(int(x), int(x)))
    if isinstance(x, (float, np.floating)):
        return Expression(_core.number(float(x)))
    shape = getattr(x, "shape", None)
    if shape is None or isinstance(x, np.complexfloating):
        raise TypeError(f"expression: an operand must be a number, got {type(x).__name__}")
    if len(shape) > 0:
        from ._captured import present_call

        index = "at.h" if present_call() is None else "h"
        raise TypeError(
            "expression: an operand must be a number, got an array of the shape "
            f"{list(shape)}; read it at an index, such as array[{index}]"
        )
    if isinstance(x, np.generic):
        if not hasattr(type(x), "__float__") or x.dtype.kind in "USmMO":
            raise TypeError(f"expression: an operand must be a number, got {type(x).__name__}")
        return Expression(_core.number(float(x)))  # such as bfloat16 of ml_dtypes
    from ._captured import captured, element_of  # here, since _captured imports this module

    return element_of(captured(x), ())


def tape_of(operands: Sequence[Any]) -> Any:
    """The Tape of the first operand that has one; None if the operands are not recorded."""
    for x in operands:
        if isinstance(x, Expression) and x._tape is not None:
            return x._tape
    return None


def _type(x: Expression) -> str:
    return x._of.type()


def _of_one(name: str, a: Operand) -> Expression:
    x = expression_of(a)
    return Expression(_core.of_one(name, x._of), (name, x))


def _of_two(name: str, a: Operand, b: Operand) -> Expression:
    x, y = expression_of(a), expression_of(b)
    return Expression(_core.of_two(name, x._of, y._of), (name, x, y))


def _quotient(a: Operand, b: Operand) -> Expression:
    return _of_two("/", _of_one("to_number", a), b)


def _floor_quotient(a: Operand, b: Operand) -> Expression:
    x, y = expression_of(a), expression_of(b)
    quotient = _of_two("/", x, y)
    return _floor(quotient) if _type(quotient) == "number" else quotient


def _floor(a: Operand) -> Expression:
    return _of_one("floor", a)


def _ceil(a: Operand) -> Expression:
    return -_floor(-expression_of(a))


# ---- powers and bits -----------------------------------------------------------------------------

_LARGEST_POWER = 16


def _power(base: Any, exponent: Any) -> Expression:
    if not isinstance(exponent, Expression):
        return _constant_power(base, exponent)
    if isinstance(base, (bool, int, float, np.integer, np.floating)) and base > 0:
        return _of_one("exp", exponent * math.log(base))
    raise TypeError(
        f"expression: ** takes a constant exponent, or a positive constant as its base, got "
        f"{base!r} ** {exponent!r}; write {hint('exp')}(b * {hint('log')}(a))"
    )


def _constant_power(base: Expression, exponent: Any) -> Expression:
    if isinstance(exponent, (float, np.floating)) and abs(exponent) == 0.5:
        root = _of_one("sqrt", base)
        return root if exponent > 0 else 1 / root
    is_number = isinstance(exponent, (int, float, np.integer, np.floating))
    # abs() of a NumPy integer may wrap around.
    if not is_number or exponent != exponent // 1 or abs(float(exponent)) > _LARGEST_POWER:
        raise TypeError(
            f"expression: ** takes an integer from -{_LARGEST_POWER} to {_LARGEST_POWER}, 0.5 or "
            f"-0.5 as its exponent, got {exponent!r}; write {hint('exp')}({exponent!r} * "
            f"{hint('log')}(x))"
        )
    as_integer = isinstance(exponent, (int, np.integer)) and exponent >= 0
    x = +base if as_integer else base.astype(float)
    product = expression_of(1) if _type(x) == "integer" else expression_of(1.0)
    for n in range(abs(int(exponent))):
        product = x if n == 0 else product * x
    return product if exponent >= 0 else 1 / product


def _of_truths(name: str, sign: str, a: Any, b: Any) -> Expression:
    x, y = expression_of(a), expression_of(b)
    if _type(x) == _type(y) == "truth":
        return _of_two(sign, x, y)
    raise TypeError(f"expression: {name} takes truth values, got {x._of.text()} and {y._of.text()}")


def _are_integers(sign: str, x: Expression, y: Expression) -> bool:
    """Whether the operands of a bitwise operation are integers; if not, they are truth values."""
    types = {_type(x), _type(y)}
    if len(types) == 1 and "number" not in types:
        return "integer" in types
    raise TypeError(
        f"expression: {sign} takes two truth values or two integers, got {x._of.text()} {sign} "
        f"{y._of.text()}; comparisons in it need brackets"
    )


def _and(a: Any, b: Any) -> Expression:
    x, y = expression_of(a), expression_of(b)
    return _common_bits(x, y) if _are_integers("&", x, y) else _of_two("and", x, y)


def _or(a: Any, b: Any) -> Expression:
    x, y = expression_of(a), expression_of(b)
    if not _are_integers("|", x, y):
        return _of_two("or", x, y)
    return x + y if known(x).bits & known(y).bits == 0 else x + y - _common_bits(x, y)


def _xor(a: Any, b: Any) -> Expression:
    x, y = expression_of(a), expression_of(b)
    if not _are_integers("^", x, y):
        return _of_two("!=", x, y)
    return x + y if known(x).bits & known(y).bits == 0 else x + y - 2 * _common_bits(x, y)


def _common_bits(x: Expression, y: Expression) -> Expression:
    """x & y of integers, as a sum over the bits that both may have, or over runs of bits if x or y
    is constant.
    """
    if known(x).low == known(x).high:
        x, y = y, x
    both = known(x).bits & known(y).bits
    parts = []
    if known(y).low == known(y).high:
        for start, end in runs(both):
            parts.append(_bits(x, start, end) if end < 32 else _high_bits(x, start))
    else:
        for n in range(31):
            if both >> n & 1:
                parts.append((x // 2**n % 2) * (y // 2**n % 2) * 2**n)
        if both >> 31:
            parts.append(where((x < 0) & (y < 0), LEAST, 0))
    total = parts[0] if parts else expression_of(0)
    for part in parts[1:]:
        total = total + part
    return total


def _bits(x: Expression, start: int, end: int) -> Expression:
    """The integer x with all bits but start .. end - 1 cleared; end is at most 31."""
    part = x if start == 0 else x // 2**start
    if known(part).bits >> (end - start):
        # The divisor 2^31 does not fit in 32 bits. Adding the least integer wraps around, which
        # clears the sign bit.
        is_long = end - start == 31
        part = where(x < 0, x + LEAST, x) if is_long else part % 2 ** (end - start)
    return part if start == 0 else part * 2**start


def _high_bits(x: Expression, start: int) -> Expression:
    """The integer x with all bits below `start` cleared."""
    if start == 31:
        return where(x < 0, LEAST, 0)
    return x if start == 0 else x // 2**start * 2**start


def _shifted(sign: str, a: Any, by: Any) -> Any:
    """An integer and the power of 2 that multiplies (<<) or divides (>>) it."""
    is_constant = isinstance(by, (int, np.integer)) and not isinstance(by, bool)
    if is_constant and 0 <= by <= 30 and _type(expression_of(a)) == "integer":
        return a, 1 << int(by)
    shown = by._of.text() if isinstance(by, Expression) else repr(by)
    raise TypeError(
        f"expression: {sign} takes an integer and a constant from 0 to 30, got "
        f"{expression_of(a)._of.text()} {sign} {shown}"
    )


# ---- functions -----------------------------------------------------------------------------------


def where(condition: Operand, a: Operand, b: Operand) -> Expression:
    """Returns a where the condition is true, else b, as `np.where` does; always computes a and b.

    Args:
        condition: a truth value.
        a, b: expressions or numbers.

    Returns:
        An Expression.

    Raises:
        TypeError, ValueError: an argument is neither an expression nor a number, or condition is
            not a truth value.

    >>> import qkv
    >>> qkv.score_mod(lambda s, at: qkv.where(at.j <= at.i, s, -np.inf))
    ScoreMod(where(j <= i, s, -inf))
    """
    tape = tape_of((condition, a, b))
    if tape is not None:
        return tape.step("qkv where", (condition, a, b), {})  # type: ignore[no-any-return]
    x, y, z = map(expression_of, (condition, a, b))
    return Expression(_core.where(x._of, y._of, z._of), ("where", x, y, z))


def minimum(a: Operand, b: Operand) -> Expression:
    """Returns the smaller of two values, as `np.minimum`, but returns a where b is NaN.

    Args:
        a, b: expressions or numbers.

    Returns:
        An Expression.

    Raises:
        TypeError, ValueError: an argument is neither an expression nor a number.

    >>> import qkv
    >>> qkv.score_mod(lambda s, at: s - qkv.minimum(abs(at.i - at.j), 8))
    ScoreMod(s - float(min(abs(i - j), 8)))
    """
    return _extreme("minimum", a, b)


def maximum(a: Operand, b: Operand) -> Expression:
    """Returns the larger of two values, as `np.maximum`, but returns a where b is NaN.

    Args:
        a, b: expressions or numbers.

    Returns:
        An Expression.

    Raises:
        TypeError, ValueError: an argument is neither an expression nor a number.

    >>> import qkv
    >>> qkv.score_mod(lambda s, at: qkv.maximum(s, 0))
    ScoreMod(max(s, 0.0))
    """
    return _extreme("maximum", a, b)


def _extreme(name: str, a: Operand, b: Operand) -> Expression:
    tape = tape_of((a, b))
    if tape is not None:
        return tape.step("qkv " + name, (a, b), {})  # type: ignore[no-any-return]
    return _of_two(name, a, b)


def _clip(
    x: Operand, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> Expression:
    # NumPy 2.1 also names the bounds min and max.
    clipped = expression_of(x)
    least, most = (a_min if min is None else min), (a_max if max is None else max)
    if least is not None:
        clipped = maximum(clipped, least)
    return clipped if most is None else minimum(clipped, most)


def _as_float(x: Any) -> Any:
    return x.astype(float) if isinstance(x, Expression) else float(x)


def _applied(sign: str) -> Callable[[Any, Any], Expression]:
    return lambda a, b: _of_two(sign, a, b)


def _named(name: str) -> Callable[[Any], Expression]:
    return lambda a: _of_one(name, a)


# NumPy's functions of expressions, by their names.
_UFUNCS: Dict[str, Callable[..., Expression]] = {
    "add": _applied("+"),
    "subtract": _applied("-"),
    "multiply": _applied("*"),
    "divide": _quotient,
    "true_divide": _quotient,
    "floor_divide": _floor_quotient,
    "remainder": _applied("%"),
    "power": _power,
    "float_power": lambda a, b: _power(_as_float(a), _as_float(b)),
    "negative": _named("negative"),
    "positive": lambda a: +expression_of(a),
    "absolute": _named("abs"),
    "fabs": lambda a: abs(expression_of(a).astype(float)),
    "square": lambda a: _power(a, 2),
    "reciprocal": lambda a: _quotient(1, a),
    "sqrt": _named("sqrt"),
    "exp": _named("exp"),
    "exp2": lambda a: _power(2, expression_of(a)),
    "log": _named("log"),
    "log2": lambda a: _of_one("log", a) * (1 / math.log(2)),
    "log10": lambda a: _of_one("log", a) * (1 / math.log(10)),
    "tanh": _named("tanh"),
    "sin": _named("sin"),
    "cos": _named("cos"),
    "floor": _floor,
    "ceil": _ceil,
    "minimum": minimum,
    "maximum": maximum,
    "less": _applied("<"),
    "less_equal": _applied("<="),
    "greater": _applied(">"),
    "greater_equal": _applied(">="),
    "equal": _applied("=="),
    "not_equal": _applied("!="),
    "logical_and": lambda a, b: _of_truths("logical_and", "and", a, b),
    "logical_or": lambda a, b: _of_truths("logical_or", "or", a, b),
    "logical_xor": lambda a, b: _of_truths("logical_xor", "!=", a, b),
    "logical_not": _named("not"),
    "bitwise_and": _and,
    "bitwise_or": _or,
    "bitwise_xor": _xor,
    "invert": lambda a: ~expression_of(a),
    "left_shift": lambda a, b: _of_two("*", *_shifted("<<", a, b)),
    "right_shift": lambda a, b: _floor_quotient(*_shifted(">>", a, b)),
}
_FUNCTIONS: Dict[str, Callable[..., Expression]] = {"where": where, "clip": _clip}
_ROUNDING = ("round", "fix")  # functions of NumPy that are not ufuncs


def _composed() -> Dict[str, Callable[..., Expression]]:
    """NumPy's functions that are composed of several operations, by their names."""
    from ._composed import COMPOSED  # here, since _composed imports this module

    composed = {name: of for name, of in COMPOSED.items() if hasattr(np, name)}
    return {**composed, "rint": composed["round"]}


def _of_numpy(
    function: Any, ours: Any, method: str, inputs: Sequence[Any], options: Dict[str, Any]
) -> Expression:
    name = f"np.{function.__name__}" + ("" if method == "__call__" else f".{method}")
    if ours is None or method != "__call__":
        start = f"{name} does not take expressions; NumPy functions that do: "
        raise TypeError(with_names(start, {**_UFUNCS, **_composed(), **_FUNCTIONS}))
    unknown = options.keys() - ({"a_min", "a_max", "min", "max"} if ours is _clip else set())
    if unknown:
        raise TypeError(f"{name} of an expression takes no {min(unknown)}")
    result: Expression = ours(*inputs, **options)
    return result
