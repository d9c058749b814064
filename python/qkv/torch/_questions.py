# SPDX-License-Identifier: Apache-2.0
"""Decides which calls must go through the operator: those recorded, transformed or faked.

All other calls are passed directly to `qkv.attention`. Each check takes tens of nanoseconds.
"""

from typing import Any, Callable, Iterable

import torch

# torch.library.custom_op came with PyTorch 2.4, its register_vmap with 2.5.
AVAILABLE = all(
    hasattr(getattr(torch, "library", None), name) for name in ("custom_op", "register_vmap")
)


def _either(holder: Any, name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch, or `otherwise` in a PyTorch that does not have it."""
    found: Callable[..., Any] = getattr(holder, name, otherwise)
    return found


# True while torch.compile or torch.export traces this code.
is_compiling = _either(getattr(torch, "compiler", None), "is_compiling", lambda: False)
# True while Dynamo traces this code, for torch.compile or a strict torch.export.
is_dynamo = _either(getattr(torch, "compiler", None), "is_dynamo_compiling", lambda: False)
# The number of active modes that intercept every operator (make_fx, FakeTensorMode, counters).
modes = _either(torch._C, "_len_torch_dispatch_stack", lambda: 0)
# True inside torch.func.grad, vmap and other transforms of torch.func.
transforms = _either(torch._C, "_are_functorch_transforms_active", lambda: False)
# True for a tensor that is_grads_batched made, which uses torch's older vmap.
is_batched = _either(
    getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda x: False
)
# The graph that torch.jit.trace has recorded so far; None outside of it.
tracing = _either(torch._C, "_get_tracing_state", lambda: None)
# True while autocast is on for any device, and always in a PyTorch that cannot tell.
any_autocast = _either(torch._C, "_is_any_autocast_enabled", lambda: True)


def _classes() -> Any:
    """Tensor classes without memory of their own, which only the operator can take."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return (FakeTensor, FunctionalTensor)


_WITHOUT_MEMORY = _classes() if AVAILABLE else ()


def kind_of(x: Any) -> str:
    """The kind of the tensor's device, as autocast names it."""
    return "cuda" if x.is_cuda else "cpu"


def autocasts(kind: str = "cpu") -> bool:
    """Whether autocast is on for this kind of device."""
    if not hasattr(torch, "get_autocast_dtype"):  # before PyTorch 2.4
        on = torch.is_autocast_enabled() if kind == "cuda" else torch.is_autocast_cpu_enabled()
        return bool(on)
    return bool(torch.is_autocast_enabled(kind))


def has_autocast(x: torch.Tensor) -> bool:
    """Whether a call of x must go through the operator because autocast chooses the dtype."""
    return AVAILABLE and autocasts(kind_of(x))


def is_recorded() -> bool:
    """Whether all calls are recorded or transformed now, whatever their tensors."""
    return bool(modes() or transforms() or tracing())


def wants_operator(tensors: Iterable[Any], of_call: bool = True) -> bool:
    """Whether a call of these tensors is recorded, transformed or faked, or autocast changes it.

    Autocast does not change a backward pass, for which `of_call` is False.
    """
    if is_recorded():
        return True
    if of_call and any_autocast() and any(map(has_autocast, tensors)):
        return True
    for x in tensors:  # a loop is faster than any(), and every call with gradients runs it
        if x.is_meta or (type(x) is not torch.Tensor and isinstance(x, _WITHOUT_MEMORY)):
            return True
    return False


def require_operator() -> None:
    """Raises RuntimeError if this PyTorch cannot register the operator."""
    if not AVAILABLE:
        raise RuntimeError(
            "qkv.torch: torch.compile, torch.jit.trace, torch.func, vmap, autocast, fake and meta "
            "tensors need an operator registered with torch.library.custom_op and register_vmap, "
            f"of PyTorch 2.5 or newer; this is {torch.__version__}"
        )
