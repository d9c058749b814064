# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions of expressions; imported when the first one is called."""

import functools
from typing import Any, Callable, Dict, Optional

import torch

from ._captured import present_call, view_of_tensor
from ._composed import COMPOSED, trunc
from ._expression import (
    _FUNCTIONS,
    _UFUNCS,
    Expression,
    _power,
    expression_of,
    maximum,
    minimum,
    where,
)
from ._rows import REDUCTIONS, Row, elementwise
from ._words import with_names


def _clamp(x: Any, min: Any = None, max: Any = None) -> Expression:
    clipped = expression_of(x)
    if min is not None:
        clipped = maximum(clipped, min)
    return clipped if max is None else minimum(clipped, max)


def _plus(x: Any, y: Any, *, alpha: Any = 1) -> Expression:
    return _UFUNCS["add"](x, y if alpha == 1 else alpha * expression_of(y))


def _minus(x: Any, y: Any, *, alpha: Any = 1) -> Expression:
    return _UFUNCS["subtract"](x, y if alpha == 1 else alpha * expression_of(y))


def _quotient(x: Any, y: Any, *, rounding_mode: Optional[str] = None) -> Expression:
    if rounding_mode is None:
        return _UFUNCS["divide"](x, y)
    if rounding_mode == "floor":
        return _UFUNCS["floor_divide"](x, y)
    if rounding_mode == "trunc":
        a, b = expression_of(x), expression_of(y)
        if "number" not in (a._of.type(), b._of.type()):
            return where((a < 0) ^ (b < 0), -(abs(a) // abs(b)), abs(a) // abs(b))
        return trunc(_UFUNCS["divide"](a, b))
    raise TypeError(
        "torch.div of an expression takes rounding_mode None, 'floor' or 'trunc', got "
        f"{rounding_mode!r}"
    )


def _swapped(function: Callable[..., Expression]) -> Callable[..., Expression]:
    return lambda a, b: function(b, a)


def _of_type(dtype: Any) -> Callable[[Any], Expression]:
    return lambda x: expression_of(x).astype(dtype)


def _to(x: Expression, to: Any = None, *, dtype: Any = None, **others: Any) -> Expression:
    """x.to(to): `to` is a torch.dtype, the CPU, or a tensor or expression, whose type x takes."""
    unknown = others.keys() - {"device", "copy", "non_blocking"}
    if unknown:
        raise TypeError(f"to() of an expression takes no {min(unknown)}")
    for device in (to, others.get("device")):
        if isinstance(device, (str, torch.device)) and torch.device(device).type != "cpu":
            raise TypeError(f"to() of an expression takes the CPU as the device, got {device}")
    if isinstance(to, (str, torch.device)) or (to is None and dtype is None and "device" in others):
        return x if dtype is None else _to(x, dtype)
    wanted = to if dtype is None else dtype
    if isinstance(wanted, Expression):
        return x.astype({"truth": bool, "integer": int, "number": float}[wanted._of.type()])
    if isinstance(wanted, torch.Tensor):
        wanted = wanted.dtype
    if not isinstance(wanted, torch.dtype):
        raise TypeError(f"to() of an expression takes a torch.dtype, got {type(wanted).__name__}")
    if wanted == torch.bool:
        return x.astype(bool)
    return x.astype(float if wanted.is_floating_point else int)


def _masked_fill(x: Any, mask: Any, value: Any) -> Expression:
    return where(mask, value, x)


def _constant(value: Any) -> Callable[..., Expression]:
    """Returns a function such as ones_like or new_ones, which gives a constant without axes."""

    def like(x: Expression, size: Any = (), *, dtype: Any = None, device: Any = None) -> Expression:
        if tuple(size) != ():
            raise TypeError(f"an expression makes values of no axes, got the size {tuple(size)}")
        y = expression_of(value)
        if dtype is None:
            return y.astype(float) if x._of.type() == "number" else y
        return _to(y, dtype)

    return like


def _full_like(x: Expression, value: Any, *, dtype: Any = None, device: Any = None) -> Expression:
    return _constant(value)(x, dtype=dtype)


# PyTorch's functions and methods without a namesake in NumPy, or with another signature.
_TORCH: Dict[str, Callable[..., Expression]] = {
    "add": _plus,
    "sub": _minus,
    "subtract": _minus,
    "mul": _UFUNCS["multiply"],
    "div": _quotient,
    "divide": _quotient,
    "pow": _power,
    "neg": _UFUNCS["negative"],
    "abs": _UFUNCS["absolute"],
    "lt": _UFUNCS["less"],
    "le": _UFUNCS["less_equal"],
    "gt": _UFUNCS["greater"],
    "ge": _UFUNCS["greater_equal"],
    "eq": _UFUNCS["equal"],
    "ne": _UFUNCS["not_equal"],
    "bitwise_not": _UFUNCS["invert"],
    "clamp": _clamp,
    "clip": _clamp,
    "rsqrt": lambda x: _power(expression_of(x), -0.5),
    "max": maximum,
    "min": minimum,
    "clamp_min": lambda x, min: maximum(x, min),
    "clamp_max": lambda x, max: minimum(x, max),
    "rsub": lambda x, y, *, alpha=1: _minus(y, x, alpha=alpha),
    "masked_fill": _masked_fill,
    **COMPOSED,
    "zeros_like": _constant(0),
    "ones_like": _constant(1),
    "full_like": _full_like,
}
_OF_NUMPY = {name: _UFUNCS[name] for name in _UFUNCS if hasattr(torch, name)}
_KNOWN = {**_OF_NUMPY, **_FUNCTIONS, **_TORCH}

# Operators of tensors with expressions, by name without underscores. "r" before a name swaps the
# operands.
_OPERATORS: Dict[str, Callable[..., Expression]] = {
    "truediv": _UFUNCS["divide"],
    "floordiv": _UFUNCS["floor_divide"],
    "mod": _UFUNCS["remainder"],
    "and": _UFUNCS["bitwise_and"],
    "or": _UFUNCS["bitwise_or"],
    "xor": _UFUNCS["bitwise_xor"],
    "lshift": _UFUNCS["left_shift"],
    "rshift": _UFUNCS["right_shift"],
}
_OPERATORS.update({name: _TORCH[name] for name in ("add", "sub", "mul", "pow")})
_OPERATORS.update({name: _TORCH[name] for name in ("lt", "le", "gt", "ge", "eq", "ne")})
_OPERATORS.update(
    {f"r{name}": _swapped(of) for name, of in list(_OPERATORS.items()) if name != "rshift"}
)
_OPERATORS["rdiv"] = _swapped(_UFUNCS["divide"])

_METHODS: Dict[str, Callable[..., Expression]] = {
    **_KNOWN,
    "float": _of_type(float),
    "double": _of_type(float),
    "int": _of_type(int),
    "long": _of_type(int),
    "bool": _of_type(bool),
    "to": _to,
    "type_as": _to,
    "where": lambda x, condition, other: where(condition, x, other),
    "contiguous": lambda x: x,
    "clone": lambda x: x,
    "new_ones": _constant(1),
    "new_zeros": _constant(0),
    **{name: REDUCTIONS[name] for name in ("sum", "any", "all", "squeeze", "unsqueeze")},
}


def _dtype(x: Expression) -> Any:
    """The dtype that an expression has in the call for which it is traced."""
    kind, call = x._of.type(), present_call()
    if kind != "number":
        return torch.bool if kind == "truth" else torch.int64
    if call is None:
        raise AttributeError("the score of a function that is traced for any call has no dtype")
    return call.dtype


_ATTRIBUTES: Dict[str, Callable[[Expression], Any]] = {
    "device": lambda x: torch.device("cpu"),
    "dtype": _dtype,
    "dim": lambda x: lambda: 0,
    "ndim": lambda x: 0,
    "shape": lambda x: torch.Size([]),
}


def of_torch(function: Any, inputs: Any, options: Dict[str, Any]) -> Any:
    """Calls a function of PyTorch some of whose arguments are expressions.

    Raises:
        TypeError: the function does not take expressions; the message names functions that do.
    """
    name = getattr(function, "__name__", str(function))
    if name == "__getitem__" and isinstance(inputs[0], torch.Tensor):
        return view_of_tensor(inputs[0])[inputs[1]]
    return of_torch_name(name, inputs, options)


def of_torch_name(name: str, inputs: Any, options: Dict[str, Any]) -> Any:
    """Calls the function of PyTorch that has this name, as of_torch() does."""
    options = dict(options)
    if options.pop("inplace", False):
        raise TypeError(f"torch.{name} of an expression takes inplace False, got True")
    has_rows = any(isinstance(x, Row) for x in inputs)
    ours = _OPERATORS.get(name.strip("_")) if name.startswith("__") else None
    has_axis = "dim" in options or (len(inputs) > 1 and isinstance(inputs[1], int))
    if name in ("max", "min") and has_rows and has_axis:
        raise TypeError(
            f"torch.{name} of a row and an axis gives indices, too, which expressions do not have: "
            f"write row.a{name}()"
        )
    if (has_rows and len(inputs) == 1) or name in ("dot", "matmul", "unsqueeze", "squeeze"):
        ours = REDUCTIONS.get({"max": "amax", "min": "amin"}.get(name, name))
        if ours is not None:
            return ours(*inputs, **options)
    ours = ours or _KNOWN.get(name)
    if ours is None:
        start = f"torch.{name} does not take expressions; functions that do: "
        raise TypeError(with_names(start, {*_KNOWN, *REDUCTIONS}))
    return (
        elementwise(functools.partial(ours, **options), *inputs)
        if has_rows
        else ours(*inputs, **options)
    )


def method_of(x: Expression, name: str) -> Any:
    """An expression's version of the tensor method or attribute with this name.

    Raises:
        AttributeError: expressions do not have it; the message names methods that they have.
    """
    if name in _ATTRIBUTES:
        return _ATTRIBUTES[name](x)
    ours = _METHODS.get(name)
    if ours is None:
        start = f"an expression has no attribute {name!r}; methods of tensors that it has: "
        raise AttributeError(with_names(start, _METHODS))
    return functools.partial(ours, x)
