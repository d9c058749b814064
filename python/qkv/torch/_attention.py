# SPDX-License-Identifier: Apache-2.0
"""`qkv.torch.attention`: attention of tensors, with gradients by autograd."""

import inspect
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar, cast

import torch

from .. import _functions
from .._mods import ScoreMod, replace_functions
from .._results import of_call, results
from .._words import unknown_keyword
from . import _cuda
from ._kinds import FLAG, check_kinds
from ._operator import gradients_of, refuse_tangents
from ._questions import (
    any_autocast,
    has_autocast,
    is_batched,
    is_compiling,
    modes,
    require_operator,
    tracing,
    wants_operator,
)
from ._recorded import CAPTURED
from ._schema import (
    DIFFERENTIABLE,
    PLAIN,
    TENSORS,
    check_devices,
    has_tensors,
    operands,
    packaged,
    refuse_gradients,
    refuse_kinds,
    refuse_tensors,
    requests_of,
    returned_of,
)
from ._watch import WATCHERS, tell

__all__ = ["attention"]

_PAGES = ("block_tables", "context_lens")


class _Call:
    """The arguments of a call: the names of its tensors ("params.W"), and all other arguments.

    The tensors themselves are not kept: autograd saves them, and releases them after the backward
    pass.
    """

    def __init__(self, names: Iterable[str], others: Dict[str, Any]) -> None:
        self.names = tuple(names)
        self.others = others
        self.fields: List[str] = []  # the names of the results, set by the forward pass

    def arguments(self, tensors: Iterable[Any]) -> Dict[str, Any]:
        """All arguments, with these tensors detached: a tensor with history cannot be exported."""
        arguments = dict(self.others)
        if isinstance(arguments["params"], dict):
            arguments["params"] = dict(arguments["params"])
        if isinstance(arguments["score_mod"], ScoreMod):
            arguments["score_mod"] = arguments["score_mod"]._detached()
        for name, tensor in zip(self.names, tensors):
            if name.startswith(("captured.", "read.")):
                continue  # score_mod or mask_mod reads it
            if name.startswith("params."):
                arguments["params"][name[len("params.") :]] = tensor.detach()
            else:
                arguments[name] = tensor.detach()
        return arguments

    def differentiable(self) -> Tuple[str, ...]:
        """The names of the differentiable results; "weights" may be those after dropout, which are
        not differentiable.
        """
        if self.others["return_weights"] == "dropped":
            return ("out", "lse")
        return ("out", "weights", "lse")


def _split(arguments: Dict[str, Any]) -> Tuple[_Call, Tuple[torch.Tensor, ...]]:
    """Splits the arguments into a call and its tensors."""

    def is_input(name: str, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and not name.startswith(("params", "return_"))

    tensors = {name: value for name, value in arguments.items() if is_input(name, value)}
    others = {name: value for name, value in arguments.items() if name not in tensors}
    if isinstance(others["params"], dict):
        params = others["params"]
        others["params"] = {n: x for n, x in params.items() if not isinstance(x, torch.Tensor)}
        tensors.update((f"params.{n}", x) for n, x in params.items() if n not in others["params"])
    if isinstance(others["score_mod"], ScoreMod):
        tensors.update((f"captured.{n}", x) for n, x in others["score_mod"]._tensors.items())
    mods = [mod for mod in (others["score_mod"], others["mask_mod"]) if hasattr(mod, "_read")]
    known = {id(x) for x in tensors.values()}
    read = [x for mod in mods for x in mod._read if id(x) not in known and not x.is_inference()]
    tensors.update((f"read.{n}", x) for n, x in enumerate(read))
    return _Call(tensors, others), tuple(tensors.values())


def _flat(results: Any) -> Dict[str, torch.Tensor]:
    """Named results, with `top` split into its two arrays."""
    flat: Dict[str, torch.Tensor] = {}
    for name, value in zip(results._fields, results):
        if isinstance(value, tuple):
            flat[name], flat["top keys"] = value
        else:
            flat[name] = value
    return flat


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """The forward pass; saves its tensors, out and lse, but no result of size Tq x Tk."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> Any:
        arguments = call.arguments(tensors)
        arguments["return_lse"] = True
        attend = _cuda.attention if _cuda.is_on_gpu(arguments["q"]) else _functions.attention
        results = _flat(attend(**arguments))  # raises for invalid arguments
        ctx.call = call
        ctx.save_for_backward(*tensors, results.get("out"), results["lse"])
        ctx.set_materialize_grads(False)
        if not call.others["return_lse"]:
            del results["lse"]
        ctx.results = call.fields = list(results)
        ctx.mark_non_differentiable(
            *(x for name, x in results.items() if name not in call.differentiable())
        )
        return tuple(results.values())

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[torch.Tensor]) -> Any:
        given = dict(zip(ctx.results, gradients))
        needed = ctx.needs_input_grad[1:]
        if all(gradient is None for gradient in gradients):
            return (None,) * (1 + len(needed))
        of_results = (given.get("out"), given.get("lse"), given.get("weights"))
        given_ones = [x for x in of_results if x is not None]
        if any(map(is_batched, given_ones)) or wants_operator(given_ones, of_call=False):
            return (None, *_gradients_by_operator(ctx.call, needed, of_results, ctx.saved_tensors))
        return (None, *_Gradient.apply(ctx.call, needed, *of_results, *ctx.saved_tensors))


def _gradients_by_operator(call: _Call, needed: Any, of_results: Any, saved: Any) -> Any:
    """Computes the gradients of the call's tensors through qkv::attention_backward."""
    require_operator()
    *tensors, out, lse = saved
    arguments = call.arguments(tensors)
    given, plain = operands(arguments)
    slots = [_slot(name, call, given) for name in call.names]
    wants = [False] * len(DIFFERENTIABLE)
    for slot, needs, tensor in zip(slots, needed, tensors):
        if slot is not None and slot < len(wants):
            wants[slot], given[slot] = needs, tensor.detach()
    got = gradients_of(of_results, (*given, out, lse), plain, wants)
    return [None if slot is None else got[slot] for slot in slots]


def _slot(name: str, call: _Call, given: List[Any]) -> Optional[int]:
    """The index of the call's tensor `name` among the operator's tensors; None if it has none."""
    if not name.startswith("captured."):
        return TENSORS.index(name) if name in TENSORS else None
    tensor = call.others["score_mod"]._tensors[name[len("captured.") :]]
    for slot, x in enumerate(given):
        if x is tensor and TENSORS[slot] in CAPTURED:
            return slot
    if not tensor.requires_grad:
        return None
    raise ValueError(
        f"attention: score_mod computes {name[len('captured.') :]} from other tensors, which a "
        "batch of gradients does not take; compute it before, and read the result"
    )


class _Gradient(torch.autograd.Function):  # type: ignore[misc]
    """The backward pass as a separate function, so that its derivative can be rejected."""

    @staticmethod
    def forward(ctx: Any, call: _Call, needed: Tuple[bool, ...], *tensors: Any) -> Any:
        dout, dlse, dweights, *inputs, out, lse = (x if x is None else x.detach() for x in tensors)
        arguments = call.arguments(inputs)
        forward_only = ("return_", *_PAGES)
        options = {n: x for n, x in arguments.items() if not n.startswith(forward_only)}
        if dweights is None:
            options["rows"] = None
        # Tensors named read.*, such as those that mask_mod reads, have no gradient.
        needed = tuple(
            needs and not name.startswith("read.") for name, needs in zip(call.names, needed)
        )
        options["wanted"] = [f"d{name}" for name, needs in zip(call.names, needed) if needs]
        on_gpu = _cuda.is_on_gpu(options["q"])
        differentiate = _cuda.attention_backward if on_gpu else _functions.attention_backward
        got = differentiate(dout, out=out, lse=lse, dlse=dlse, dweights=dweights, **options)
        by_name = {name[1:]: gradient for name, gradient in got._asdict().items()}
        for name, gradient in (got.dparams or {}).items():
            by_name[f"params.{name}"] = gradient
        for name, gradient in (got.dcaptured or {}).items():
            by_name[f"captured.{name}"] = gradient
        return tuple(by_name[name] if needs else None for name, needs in zip(call.names, needed))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("attention: there is no second derivative of qkv.torch.attention")


_F = TypeVar("_F", bound=Callable[..., Any])


def _with_arguments_of(function: _F) -> Callable[[Callable[..., Any]], _F]:
    """Gives a function the signature of another, for type checkers and help()."""

    def shown(inner: Callable[..., Any]) -> _F:
        inner.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return cast(_F, inner)

    return shown


@_with_arguments_of(_functions.attention)
def attention(q: torch.Tensor, k: torch.Tensor, v: Optional[torch.Tensor], **options: Any) -> Any:
    """Attention of PyTorch tensors, with gradients; computes `qkv.attention`.

    Gradients flow from out, lse and weights (before dropout) to q, k, v, bias, alibi_slopes, sinks,
    the tensors in params and those that score_mod reads; the other results are not differentiable.
    The arguments, out and lse are kept from the forward pass to the backward pass.

    In graphs (torch.compile, torch.export), under torch.func, with fake or meta tensors and under
    autocast, the operator qkv::attention computes the call, which needs PyTorch 2.5 or newer.

    CUDA tensors are computed on their device, in PyTorch's current stream, without waiting for it:
    bfloat16, float16 and float32 with product scores, float32 with additive ones (docs/cuda.md
    lists options, results and gradients). Gradients flow from out and lse alone. All tensors are on
    one device.

    Args:
        q, k, v, options: as in `qkv.attention`; seed may also be a tensor of one integer, so that a
            graph draws a new seed each time it runs.

    Returns:
        The results of `qkv.attention`, as tensors.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        RuntimeError: a second derivative was requested.

    >>> import torch
    >>> W = torch.eye(3, dtype=torch.float64, requires_grad=True)
    >>> x = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    >>> attention(x, x, x, score="bilinear", params={"W": W}).sum().backward()
    >>> W.grad.shape
    torch.Size([3, 3])
    """
    if is_compiling():
        return _operator_call({"q": q, "k": k, "v": v, **options})
    if WATCHERS:
        tell(q, k, v, options)
    Tensor = torch.Tensor
    if (callable(options.get("score_mod")) or callable(options.get("mask_mod"))) and not (
        wants_operator([x for x in (q, k, v) if isinstance(x, Tensor)])
    ):
        replace_functions(options)
    if (  # fast path: the overhead matters for small calls
        isinstance(q, Tensor)
        and isinstance(k, Tensor)
        and isinstance(v, Tensor)
        and not q.is_cuda
        and not (q.requires_grad or k.requires_grad or v.requires_grad or modes() or tracing())
        and not (options and _may_want_gradients(options))
        and not (any_autocast() and has_autocast(q))
    ):
        try:
            return _bare(q, k, v, **options)
        except TypeError:  # an invalid argument, or a tensor without memory of its own
            pass
    tensors = [x for x in (q, k, v) if isinstance(x, Tensor)]
    if len(tensors) < 3:
        check_kinds("attention", torch.Tensor, q=q, k=k)
        if v is not None:
            check_kinds("attention", torch.Tensor, v=v)
    if options:
        if torch.is_grad_enabled():
            refuse_gradients(options)
        tensors += [x for x in options.values() if isinstance(x, torch.Tensor)]
        if isinstance(options.get("params"), dict):
            tensors += [x for x in options["params"].values() if isinstance(x, torch.Tensor)]
        if isinstance(options.get("score_mod"), ScoreMod):
            tensors += options["score_mod"]._tensors.values()
    if wants_operator(tensors):
        return _operator_call({"q": q, "k": k, "v": v, **options})
    on_gpu = _cuda.is_on_gpu(q)
    attend = _cuda.attention if on_gpu else _functions.attention
    needs_gradients = any([x.requires_grad for x in tensors])
    if on_gpu or needs_gradients:
        refuse_tangents(tensors)
    if not needs_gradients or options.keys() - _functions.DEFAULTS.keys():
        return attend(q=q, k=k, v=v, **options)  # raises for unknown options
    call, inputs = _split({"q": q, "k": k, "v": v, **_functions.DEFAULTS, **options})
    check_kinds("attention", FLAG, return_lse=call.others["return_lse"])  # forward() overwrites it
    if not torch.is_grad_enabled():
        return attend(**call.arguments(inputs))
    if on_gpu:
        needing = [name for name, x in zip(call.names, inputs) if x.requires_grad]
        _cuda.refuse_gradients(call.others, (q, k, v), needing)
    _refuse_pages(options, "have no backward pass; use torch.no_grad()")
    values = list(_Attention.apply(call, *inputs))
    names = [name for name in call.fields if name != "top keys"]
    if names == ["out"]:
        return values[0]
    if len(names) < len(values):
        at = names.index("top")
        values[at : at + 2] = [tuple(values[at : at + 2])]
    return of_call(results(tuple(names), tuple(values)), (q, k, v), options)


def _refuse_pages(options: Dict[str, Any], rule: str) -> None:
    for name in _PAGES:
        if options.get(name) is not None:
            raise ValueError(f"attention: {name} is given, but keys in pages {rule}")


def _operator_call(arguments: Dict[str, Any]) -> Any:
    """Calls the operator qkv::attention, for code that records or transforms the call."""
    require_operator()
    for name in arguments:
        if name not in _KNOWN:
            if is_compiling():  # torch.compile cannot trace the search for a similar name
                raise TypeError(f"attention() got an unexpected keyword argument '{name}'")
            raise unknown_keyword("attention", name, _KNOWN)
    if is_compiling():
        return _through_operator(arguments)
    try:
        return _through_operator(arguments)
    except Exception as error:
        if not str(error).startswith("attention: "):
            refuse_kinds(arguments)
        raise


def _through_operator(arguments: Dict[str, Any]) -> Any:
    refuse_tensors(arguments)
    if torch.is_grad_enabled():
        refuse_gradients(arguments)
    _refuse_pages(arguments, "are not available in compiled or transformed code")
    tensors, plain = operands(arguments)
    check_devices(tensors)
    refuse_tangents(tensors)
    if _cuda.is_on_gpu(tensors[0]) and torch.is_grad_enabled():
        needing = [name for name, x in zip(TENSORS, tensors) if x is not None and x.requires_grad]
        _cuda.refuse_gradients(dict(zip(PLAIN, plain)), tensors[:3], needing)
    fields = returned_of(arguments)
    every = (*tensors, *plain, *requests_of(arguments, fields))
    return packaged(fields, arguments["v"] is not None, torch.ops.qkv.attention(*every))


# qkv.attention without its decorator near_words. After a TypeError, attention() tries its other
# paths.
_bare = _functions.attention.__wrapped__  # type: ignore[attr-defined]
_KNOWN = {"q", "k", "v", *_functions.DEFAULTS}

_NUMBERS_AND_WORDS = frozenset({bool, float, int, str, type(None)})


def _may_want_gradients(options: Dict[str, Any]) -> bool:
    for x in options.values():
        if type(x) in _NUMBERS_AND_WORDS:
            continue
        if isinstance(x, dict) or (isinstance(x, torch.Tensor) and x.requires_grad):
            return True
        if isinstance(x, ScoreMod) and any(t.requires_grad for t in x._tensors.values()):
            return True
        if has_tensors(x):  # a list or tuple that holds tensors
            return True
    return False
