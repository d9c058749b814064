# SPDX-License-Identifier: Apache-2.0
"""Scores and masks that users write as Python functions, traced once to expressions."""

import inspect
import sys
from typing import (
    Any,
    Callable,
    Dict,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Union,
    cast,
)

from . import _core
from ._captured import (
    Call,
    is_inlined,
    is_tensor,
    tensor_of,
    traced,
    uses_torch,
    with_captured_arrays,
)
from ._expression import Expression, expression_of, tape_of
from ._integers import LARGEST, within

__all__ = ["At", "MaskMod", "ScoreMod", "mask_mod", "score_mod"]


class At(NamedTuple):
    """The indices of a query-key pair, as integer expressions.

    Args:
        b: batch entry; with packed sequences, the index of the sequence.
        h: query head.
        i: query.
        j: key.
        Tq: number of queries; with packed sequences, of the pair's sequence.
        Tk: number of keys.

    >>> import qkv
    >>> qkv.mask_mod(lambda at: (at.j <= at.i) & (at.b + at.h > 0))
    MaskMod(j <= i and 0 < b + h)
    """

    b: Any
    h: Any
    i: Any
    j: Any
    Tq: Any
    Tk: Any

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            "at has b, h, i (the query), j (the key), Tq (the number of queries) and Tk (the "
            f"number of keys), got {name!r}"
        )


def _symbols(call: Optional[Call]) -> At:
    if call is None:
        known = [within(0, LARGEST)] * len(At._fields)
    else:
        known = [within(0, max(0, size - 1)) for size in call.sizes]
        known += [within(size, size) for size in call.sizes[2:]]
    return At(*(Expression(_core.symbol(name), (), of) for name, of in zip(At._fields, known)))


def _traced(
    word: str, function: Any, symbols: Tuple[Any, ...], call: Optional[Call], is_of_torch: bool
) -> Tuple[Any, Expression, List[Tuple[Any, Any]]]:
    """The function with captured arrays, its result, and the (array, reader) pairs it reads."""
    check_takes(f"{word}: f", function, ("s", "at")[2 - len(symbols) :])
    capturing = with_captured_arrays(function)
    in_torch = is_of_torch or call is not None or uses_torch(function)
    result, read = traced(capturing, symbols, call, in_torch)
    if result is None:
        raise TypeError(f"{word}: f must return an expression, got None")
    return capturing, expression_of(result), read


# {number of arguments f must take: {number it takes: the function that accepts such functions}}.
_ELSEWHERE = {
    2: {5: "qkv.torch.flex_attention"},
    1: {4: "create_block_mask, for qkv.torch.flex_attention,"},
    5: {2: "qkv.torch.attention", 4: "create_block_mask, for block_mask,"},
}


def check_takes(name: str, function: Any, takes: Sequence[str]) -> None:
    """Raises TypeError unless the argument `name` is a function of len(takes) arguments."""
    wanted = f"({', '.join(takes)})"
    if not callable(function):
        raise TypeError(
            f"{name} must be a function that takes {wanted}, got {type(function).__name__}"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C
        return
    if not _binds(signature, len(takes)):
        elsewhere = [of for n, of in _ELSEWHERE[len(takes)].items() if _binds(signature, n)]
        hint = f"; {elsewhere[0]} takes functions like that" if elsewhere else ""
        raise TypeError(f"{name} must take {wanted}, got {_without_types(signature)}{hint}")


def _binds(signature: inspect.Signature, count: int) -> bool:
    """Whether a function takes this number of arguments."""
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _without_types(signature: inspect.Signature) -> str:
    """The parameters, without annotations."""
    empty = inspect.Parameter.empty
    each = [x.replace(annotation=empty) for x in signature.parameters.values()]
    return str(inspect.Signature(each))


def _called(mod: Any, *symbols: Any) -> Any:
    """Evaluates a mod at symbols, such as those of another mod whose function calls this mod."""
    tape = tape_of((symbols[-1].i,))
    if tape is None:
        return mod._capturing(*symbols)
    if tape.is_inlined:  # torch.compile records tensors as they are
        return mod._function(*symbols)
    return with_captured_arrays(mod._function, has_tensors=False)(*symbols)


class OfCall:
    """A function f(s, at) or f(at) that is traced for one call, whose sizes are known."""

    def __init__(self, function: Callable[..., Any], call: Call) -> None:
        self.function = function
        self.call = call

    def __call__(self, *symbols: Any) -> Any:
        return self.function(*symbols)


class ScoreMod:
    """A change to the scores, made by `score_mod`.

    The function of another ScoreMod may call it: `mod(s, at)` is an expression.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        call: Optional[Call] = None,
        is_of_torch: bool = False,
    ) -> None:
        self._function = function
        self._is_of_call = call is not None
        symbols = (Expression(_core.symbol("s")), _symbols(call))
        self._capturing, expression, read = _traced(
            "score_mod", function, symbols, call, is_of_torch
        )
        self._mod = _core.ScoreMod(expression._of)
        named = ((self._mod.gradient_name(reader), array) for array, reader in read)
        # All tensors that are read: autograd keeps them, to notice changes before a backward pass.
        self._read = [tensor_of(x) for x, _ in read if is_tensor(x)]
        # The tensors that may have a gradient, by the gradient's name.
        self._tensors = {name: tensor_of(x) for name, x in named if name and is_tensor(x)}

    @property
    def _of(self) -> _core.ScoreMod:
        """The object that the library takes, for calls that give tensors no gradient."""
        for name, tensor in self._tensors.items():
            if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
                raise TypeError(
                    f"score_mod reads {name}, a tensor that requires a gradient, which only "
                    "qkv.torch.attention gives it; pass its detach()"
                )
        return self._mod

    def __call__(self, s: Any, at: At) -> Any:
        return _called(self, s, at)

    def _detached(self) -> "Detached":
        return Detached(self)

    def __repr__(self) -> str:
        return f"ScoreMod({self._mod.text()})"


class Detached:
    """A ScoreMod whose tensors may require gradients, for calls that autograd does not see."""

    def __init__(self, mod: ScoreMod) -> None:
        self.mod = mod
        self._of = mod._mod


class MaskMod:
    """A mask, made by `mask_mod`.

    The function of another mod may call it: `causal(at) & document(at)`.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        call: Optional[Call] = None,
        is_of_torch: bool = False,
    ) -> None:
        self._function = function
        self._is_of_call = call is not None
        self._capturing, expression, read = _traced(
            "mask_mod", function, (_symbols(call),), call, is_of_torch
        )
        # All tensors that are read: autograd keeps them, to notice changes before a backward pass.
        self._read = [tensor_of(x) for x, _ in read if is_tensor(x)]
        self._of = _core.MaskMod(expression._of)

    def __call__(self, at: At) -> Any:
        return _called(self, at)

    def __repr__(self) -> str:
        return f"MaskMod({self._of.text()})"


ScoreFunction = Union[ScoreMod, Callable[[Any, Any], Any]]
MaskFunction = Union[MaskMod, Callable[[Any], Any]]


def score_mod(f: ScoreFunction) -> ScoreMod:
    """Makes a change to the scores from a function of a score s and its position.

    f is called once, with an `Expression` for s and `At` for its position, and returns an
    expression: no Python code runs while attention is computed. f may read arrays at expressions,
    as in `slope[at.h]`. NumPy arrays and CPU tensors that are variables of f, or of a Python
    function that f calls, are captured; `captured` captures others. `if`, `and`, `or`, `not`, `min`
    and `max` do not take expressions: write `where`, &, |, ~, `minimum` and `maximum` instead.

    Args:
        f: a function f(s, at): s is the score after the soft-cap, at.b, at.h, at.i and at.j are the
            indices of batch entry, query head, query and key, at.Tq and at.Tk the numbers of
            queries and keys.

    Returns:
        A ScoreMod, for `score_mod=` of `attention`; it holds the arrays, and reads their present
        values in each call. `attention_backward` gives the gradients of arrays of real numbers; in
        `qkv.torch.attention`, autograd gives those of tensors.

    Raises:
        TypeError, ValueError: f takes other arguments or returns no number, or an operation does
            not take its operands; the message names them.

    >>> import numpy as np
    >>> import qkv
    >>> slope = np.array([0.5, 0.25])
    >>> mod = qkv.score_mod(lambda s, at: s - slope[at.h] * abs(at.i - at.j))
    >>> mod
    ScoreMod(s - slope[h] * float(abs(i - j)))
    >>> q = np.ones((2, 3, 4), np.float32)
    >>> qkv.attention(q[None], q[None], q[None], score_mod=mod).shape
    (1, 2, 3, 4)
    """
    if is_inlined():  # a graph takes the function, which qkv.torch records
        return cast(ScoreMod, f)
    return cast(ScoreMod, _mod_from(ScoreMod, f))


def mask_mod(f: MaskFunction) -> MaskMod:
    """Makes a mask from a function of a position, true where query at.i may attend to key at.j.

    Args:
        f: a function f(at), called once and traced like the function of `score_mod`.

    Returns:
        A MaskMod, for `mask_mod=` of `attention`; it holds its arrays as a ScoreMod does.

    Raises:
        TypeError, ValueError: f takes other arguments or returns no truth value, or an operation
            does not take its operands; the message names them.

    >>> import numpy as np
    >>> import qkv
    >>> document = np.array([0, 0, 1])
    >>> qkv.mask_mod(lambda at: (document[at.i] == document[at.j]) & (at.j <= at.i))
    MaskMod(document[i] == document[j] and j <= i)
    """
    if is_inlined():
        return cast(MaskMod, f)
    return cast(MaskMod, _mod_from(MaskMod, f))


def replace_functions(options: Dict[str, Any]) -> None:
    """Replaces functions in options of qkv.torch by mods; errors give advice in PyTorch's words."""
    for name, mod in (("score_mod", ScoreMod), ("mask_mod", MaskMod)):
        f = options.get(name)
        if callable(f) and not isinstance(f, (ScoreMod, MaskMod)):
            options[name] = _mod_from(mod, f, is_of_torch=True)


def _mod_from(mod: Any, f: Any, is_of_torch: bool = False) -> Any:
    if isinstance(f, OfCall):
        return mod(f.function, f.call)
    return f if isinstance(f, mod) else mod(f, is_of_torch=is_of_torch)
