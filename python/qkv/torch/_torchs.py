# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own scaled dot product attention and its masks, in the versions that have them."""

import os
import threading
from typing import Any, Tuple

import torch

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import CausalBias, CausalVariant
except ImportError:  # before PyTorch 2.3
    CausalBias = CausalVariant = None
    SDPBackend = sdpa_kernel = None

from ._questions import is_compiling

# sdpa_kernel() saves and restores flags of the process, so only one thread at a time may use it.
# A thread that holds the lock may take it again: a tensor class may call PyTorch's function itself.
_ONE_AT_A_TIME = threading.RLock()


def _after_fork() -> None:
    """Makes a lock for the child process, where the thread that holds the old one does not run."""
    global _ONE_AT_A_TIME
    _ONE_AT_A_TIME = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

NAME = "scaled_dot_product_attention"

# PyTorch's own function, also while replaced() is active; None before PyTorch 2.0.
FUNCTION = getattr(torch.nn.functional, NAME, None)


def as_torch(query: Any, key: Any, value: Any, mask: Any, *options: Any) -> Any:
    """PyTorch's result or error; `options` are dropout_p, is_causal, scale, enable_gqa."""
    dropout_p, is_causal, scale, enable_gqa = options
    if FUNCTION is None:
        raise RuntimeError(
            f"{NAME}: these arguments are invalid, or ones that qkv does not take; PyTorch "
            f"{torch.__version__} has no {NAME} that says which"
        )
    further = {"scale": scale} if scale is not None else {}  # scale came with PyTorch 2.1
    if enable_gqa is not False:
        further["enable_gqa"] = enable_gqa  # enable_gqa came with PyTorch 2.5
    given = (query, key, value, mask, dropout_p, is_causal)
    # CausalBias compares the function with the one that torch.nn.functional has at present.
    if CausalBias and isinstance(mask, CausalBias):
        function = getattr(torch.nn.functional, NAME)
        return CausalBias.__torch_function__(function, (CausalBias,), given, further)
    if sdpa_kernel is None or is_compiling() or _has_other_backends(query):
        return FUNCTION(*given, **further)
    with _ONE_AT_A_TIME, sdpa_kernel(SDPBackend.MATH):
        return FUNCTION(*given, **further)


def as_called(*arguments: Any, **options: Any) -> Any:
    """Calls PyTorch's own function while torch.nn.functional has another one in its place."""
    mask = arguments[3] if len(arguments) > 3 else options.get("attn_mask")
    if CausalBias and isinstance(mask, CausalBias):  # see as_torch()
        function = getattr(torch.nn.functional, NAME)
        return CausalBias.__torch_function__(function, (CausalBias,), arguments, options)
    own: Any = FUNCTION
    return own(*arguments, **options)


def scripted_as(replacement: Any, original: Any) -> None:
    """Lets torch.jit.script compile `original` where it finds `replacement`.

    PyTorch keeps compiled code and writes it to files, so the code must not depend on whether the
    replacement was active when it was compiled. The replacement must live as long as the process,
    since PyTorch remembers its address.
    """
    builtins: Any = getattr(torch.jit, "_builtins", None)  # torch.jit.script looks here first
    operator = builtins and builtins._find_builtin(original)
    if operator:
        builtins._register_builtin(replacement, operator)
    else:
        replacement.__original_fn = original
        replacement.__script_if_tracing_wrapper = True


def _has_other_backends(query: Any) -> bool:
    return not isinstance(query, torch.Tensor) or query.is_nested or query.device.type != "cpu"


def without_square_corner(mask: Any, is_causal: Any) -> Tuple[Any, Any]:
    """Returns attn_mask, is_causal; is_causal replaces a CausalBias that is square or upper left.

    PyTorch's own _dispatch in torch.nn.attention.bias does this too, whatever the sizes of the
    mask. A lower right CausalBias that is not square stays.
    """
    if CausalBias is None or not isinstance(mask, CausalBias):
        return mask, is_causal
    if is_causal:
        raise ValueError("CausalBias should not be used with causal=True")
    square = mask.seq_len_q == mask.seq_len_kv
    if square or mask.variant == CausalVariant.UPPER_LEFT:
        return None, True
    return mask, False


def is_lower_right(mask: Any, sizes: Tuple[int, int]) -> bool:
    """Whether mask is a CausalBias of these sizes, (Tq, Tk); call after without_square_corner()."""
    if CausalBias is None or not isinstance(mask, CausalBias):
        return False
    return (mask.seq_len_q, mask.seq_len_kv) == sizes


def as_plain(mask: Any) -> Any:
    """The mask, with a CausalBias converted to a tensor of booleans."""
    return mask._materialize() if CausalBias and isinstance(mask, CausalBias) else mask
