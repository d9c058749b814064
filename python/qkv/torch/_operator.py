# SPDX-License-Identifier: Apache-2.0
"""The operators qkv::attention and qkv::attention_backward of torch.library.

Graphs hold these operators: torch.compile, torch.export and make_fx record one node per call, fake
and meta tensors get shapes from the operator, vmap batches it, and autocast chooses its dtype. The
kernels of the operators call `qkv.attention` and `qkv.attention_backward`.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.autograd import forward_ad

from .. import _functions
from .._results import FLAGS
from . import _cuda
from ._questions import AVAILABLE, has_autocast, kind_of
from ._recorded import CAPTURED, check, gradient_names
from ._schema import (
    DIFFERENTIABLE,
    PLAIN,
    SLOTS,
    TENSORS,
    WITH_GRADIENT,
    arguments_of,
    backward_schema,
    forward_schema,
)
from ._shapes import empty_results
from ._vmap import backward_rule, forward_rule

_SECOND_DERIVATIVE = "attention: there is no second derivative of qkv.torch.attention"

_N = len(TENSORS)
_P = len(PLAIN)


def refuse_tangents(tensors: Any) -> None:
    """Rejects tensors with tangents, which detach() would lose without an error."""
    if forward_ad._current_level < 0:
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        _no_forward_mode()


def _no_forward_mode(*_: Any) -> Any:
    raise RuntimeError(
        "attention: there is no forward-mode derivative of qkv.torch.attention, got a dual "
        "tensor; gradients come from the backward pass"
    )


# ---- kernels ------------------------------------------------------------------------------------


def _names(text: str) -> List[str]:
    return [name for name in text.split(",") if name]


def _forward(
    tensors: Any, plain: Any, returned: str, return_top: int, sum_rows: Any, pooled: Any
) -> Tuple[Any, ...]:
    """Computes the operator's results in the order of its slots; lse is always computed."""
    refuse_tangents(tensors)
    names = _names(returned)
    scores = [name[: -len("_scores")] for name in names if name.endswith("_scores")]
    weights: Any = {
        (False, False): False,
        (True, False): True,
        (False, True): "dropped",
        (True, True): "both",
    }["weights" in names, "dropped_weights" in names]
    flags: Dict[str, Any] = {f"return_{name}": name == "lse" or name in names for name in FLAGS}
    arguments = arguments_of(tensors, plain)
    compute = _cuda.attention if _cuda.is_on_gpu(tensors[0]) else _functions.attention
    got = compute(
        **arguments,
        return_weights=weights,
        return_scores=scores or None,
        return_column_sums="column_sums" in names if sum_rows is None else sum_rows.detach(),
        return_top=return_top,
        return_pooled=pooled,
        **flags,
    )
    found = got._asdict()
    if weights == "dropped":
        found["dropped_weights"] = found.pop("weights")
    if "top" in found:
        found["top_weights"], found["top_keys"] = found.pop("top")
    like = dict(zip(TENSORS, tensors))
    return tuple(
        x if x is not None else empty
        for x, empty in zip(
            (found.get(name) for name in SLOTS),
            empty_results(like, dict(zip(PLAIN, plain)), ()),
        )
    )


def _backward(gradients: Any, tensors: Any, plain: Any, wanted: str) -> Tuple[Any, ...]:
    """Gradients in the order of DIFFERENTIABLE; those that `wanted` does not name are empty."""
    dout, dlse, dweights, out, lse = (None if x is None else x.detach() for x in gradients)
    options = arguments_of(tensors, plain)
    if dweights is None:
        options.pop("rows", None)
    names = _names(wanted)
    of_captured = gradient_names(options["score_mod"])
    on_gpu = _cuda.is_on_gpu(tensors[0])
    differentiate = _cuda.attention_backward if on_gpu else _functions.attention_backward
    got = differentiate(
        dout,
        out=None if options["v"] is None else out,
        lse=lse,
        dlse=dlse,
        dweights=dweights,
        wanted=[
            f"dcaptured.{of_captured[name]}" if name in of_captured else f"d{name}"
            for name in names
            if name in of_captured or name not in CAPTURED
        ],
        **options,
    )
    found = {name[1:]: x for name, x in got._asdict().items()}
    found.update((f"params.{name}", x) for name, x in (got.dparams or {}).items())
    for name in set(names) & set(CAPTURED):  # an array that is read but not used gets zeros
        x = None if got.dcaptured is None else got.dcaptured.get(of_captured.get(name, ""))
        found[name] = torch.zeros_like(tensors[TENSORS.index(name)]) if x is None else x
    nothing = tensors[0].new_empty
    return tuple(found[name] if name in names else nothing((0,)) for name in DIFFERENTIABLE)


# ---- autograd -----------------------------------------------------------------------------------


def gradients_of(
    of_results: Tuple[Any, ...], saved: Tuple[Any, ...], plain: Any, needed: Any
) -> Tuple[Optional[torch.Tensor], ...]:
    """The gradients of the tensors, in the order of TENSORS.

    Args:
        of_results: gradients with respect to out, lse and weights; None for zero.
        saved: the call's tensors in the order of TENSORS, then out and lse.
        needed: for each tensor, whether it needs a gradient.
    """
    *tensors, out, lse = saved
    dout, dlse, dweights = of_results
    if dweights is not None and dweights.dim() == 1:  # shape [0]: no weights were requested
        dweights = None
    if tensors[2] is None:
        dout = None
    wanted = [name for name, needs in zip(DIFFERENTIABLE, needed) if needs]
    if not wanted or (dout is None and dlse is None and dweights is None):
        return (None,) * _N
    got = torch.ops.qkv.attention_backward(
        dout, dlse, dweights, out, lse, *tensors, *plain, ",".join(wanted)
    )
    found = dict(zip(DIFFERENTIABLE, got))
    return tuple(found[name] if name in wanted else None for name in TENSORS)


def _setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Any, ...]) -> None:
    """Keeps the arguments, out and lse for the backward pass."""
    if _cuda.is_on_gpu(inputs[0]):
        needing = [name for name, needs in zip(TENSORS, ctx.needs_input_grad) if needs]
        _cuda.refuse_gradients(dict(zip(PLAIN, inputs[_N:])), inputs[:3], needing)
    ctx.plain = inputs[_N : _N + _P]
    ctx.save_for_backward(*inputs[:_N], *output[:2])
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(x for name, x in zip(SLOTS, output) if name not in WITH_GRADIENT))


def _backward_of(ctx: Any, *gradients: Any) -> Tuple[Any, ...]:
    count = len(ctx.needs_input_grad)
    got = gradients_of(gradients[:3], ctx.saved_tensors, ctx.plain, ctx.needs_input_grad)
    return (*got, *((None,) * count))[:count]


def _no_second_derivative(ctx: Any, *_: Any) -> Any:
    raise RuntimeError(_SECOND_DERIVATIVE)


# ---- torch.func ---------------------------------------------------------------------------------


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """qkv::attention with the operator's arguments, for use inside transforms of torch.func.

    torch.func rejects the Function that register_autograd makes (PyTorch 2.13, issue 170834). It
    accepts a Function with setup_context and vmap, whose forward then runs the inner transforms.
    """

    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward_of)
    jvp = staticmethod(_no_forward_mode)

    @staticmethod
    def forward(*every: Any) -> Any:
        return torch.ops.qkv.attention(*every)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *every: Any) -> Any:
        return forward_rule(info, in_dims, list(every), torch.ops.qkv.attention)


class _TransformedGradient(torch.autograd.Function):  # type: ignore[misc]
    """qkv::attention_backward with the operator's arguments, for use inside torch.func."""

    backward = staticmethod(_no_second_derivative)
    jvp = staticmethod(_no_second_derivative)

    @staticmethod
    def forward(*every: Any) -> Any:
        return torch.ops.qkv.attention_backward(*every)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
        wanted = _names(inputs[-1])
        ctx.mark_non_differentiable(
            *(x for name, x in zip(DIFFERENTIABLE, output) if name not in wanted)
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *every: Any) -> Any:
        return backward_rule(info, in_dims, list(every), torch.ops.qkv.attention_backward)


# ---- registration -------------------------------------------------------------------------------


def _every(op: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[Any]:
    """All arguments of an operator in order; the dispatcher omits those equal to their defaults."""
    rest = op.default._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(x.name, x.default_value) for x in rest)]


def _forward_kernel(*args: Any, **kwargs: Any) -> Any:
    every = _every(torch.ops.qkv.attention, args, kwargs)
    return _forward(every[:_N], every[_N : _N + _P], *every[_N + _P :])


def _forward_fake(*args: Any, **kwargs: Any) -> Any:
    every = _every(torch.ops.qkv.attention, args, kwargs)
    asked, return_top, _, pooled = every[_N + _P :]
    returned = ["out", "lse", *_names(asked)]
    if return_top:
        returned += ["top_weights", "top_keys"]
    tensors, plain = dict(zip(TENSORS, every)), dict(zip(PLAIN, every[_N:]))
    check({**tensors, **plain})
    return empty_results(tensors, plain, returned, return_top, pooled)


def _forward_transformed(*args: Any, **kwargs: Any) -> Any:
    if has_autocast(
        args[0]
    ):  # before autograd, so that saved tensors have the dtype of the computation
        return _forward_autocast(*args, **kwargs)
    return _Transformed.apply(*_every(torch.ops.qkv.attention, args, kwargs))


def _backward_kernel(*args: Any, **kwargs: Any) -> Any:
    every = _every(torch.ops.qkv.attention_backward, args, kwargs)
    return _backward(every[:5], every[5 : 5 + _N], every[5 + _N : -1], every[-1])


def _backward_fake(*args: Any, **kwargs: Any) -> Any:
    every = _every(torch.ops.qkv.attention_backward, args, kwargs)
    sources, wanted = dict(zip(TENSORS, every[5:])), _names(every[-1])
    q = sources["q"]
    return tuple(
        sources[name].new_empty(sources[name].shape) if name in wanted else q.new_empty((0,))
        for name in DIFFERENTIABLE
    )


def _backward_transformed(*args: Any, **kwargs: Any) -> Any:
    return _TransformedGradient.apply(*_every(torch.ops.qkv.attention_backward, args, kwargs))


def _cast(name: str, x: Any, dtype: torch.dtype) -> Any:
    """Casts float32 q, k and v, and 16-bit differentiable tensors that no function captures."""
    if not isinstance(x, torch.Tensor) or name not in DIFFERENTIABLE:
        return x
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    narrow = narrow and name not in CAPTURED
    casts = narrow or (name in ("q", "k", "v") and x.dtype == torch.float32)
    return x.to(dtype) if casts else x


def _forward_autocast(*args: Any, **kwargs: Any) -> Any:
    every = _every(torch.ops.qkv.attention, args, kwargs)
    kind = kind_of(every[0])
    dtype = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        tensors = [_cast(name, x, dtype) for name, x in zip(TENSORS, every)]
        return torch.ops.qkv.attention(*tensors, *every[_N:])


def _register() -> Any:
    """Defines both operators; returns the Library that holds rules for torch.func and autocast."""

    def define(name: str, schema: str, kernel: Any, fake: Any, devices: Any) -> Any:
        options = {"mutates_args": (), "schema": schema, "device_types": devices}
        op = torch.library.custom_op(name, kernel, **options)
        op.register_fake(fake)
        return op

    forward = define(
        "qkv::attention", forward_schema(), _forward_kernel, _forward_fake, ("cpu", "cuda")
    )
    forward.register_autograd(_backward_of, setup_context=_setup_context)
    backward = define(
        "qkv::attention_backward",
        backward_schema(),
        _backward_kernel,
        _backward_fake,
        ("cpu", "cuda"),
    )
    backward.register_autograd(
        _no_second_derivative, setup_context=lambda ctx, inputs, output: None
    )
    library = torch.library.Library("qkv", "FRAGMENT")
    library.impl("attention", _forward_autocast, "AutocastCPU")
    library.impl("attention", _forward_autocast, "AutocastCUDA")
    transformations = "FuncTorchDynamicLayerFrontMode"  # torch.func dispatches to this key first
    library.impl("attention", _forward_transformed, transformations)
    library.impl("attention_backward", _backward_transformed, transformations)
    return library


# The module keeps the Library, because its registrations end when it is deleted.
_LIBRARY = _register() if AVAILABLE else None
