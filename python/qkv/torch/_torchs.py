# SPDX-License-Identifier: Apache-2.0
"""What PyTorch itself has of scaled dot product attention, in versions that have it."""

from typing import Any, Tuple

import torch

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import CausalBias, CausalVariant
except ImportError:  # before PyTorch 2.3
    CausalBias = CausalVariant = None
    SDPBackend = sdpa_kernel = None

from ._questions import is_compiling

NAME = "scaled_dot_product_attention"

# PyTorch's own, whatever replaced() puts in its place; None before PyTorch 2.0.
FUNCTION = getattr(torch.nn.functional, NAME, None)


def as_torch(query: Any, key: Any, value: Any, mask: Any, *options: Any) -> Any:
    """PyTorch's own result, or its error. `options`: dropout_p, is_causal, scale, enable_gqa."""
    dropout_p, is_causal, scale, enable_gqa = options
    if FUNCTION is None:
        raise RuntimeError(
            f"{NAME}: these arguments are invalid, or ones that qkv does not take; PyTorch "
            f"{torch.__version__} has no {NAME} that says which"
        )
    further = {"scale": scale} if scale is not None else {}  # came with PyTorch 2.1
    if enable_gqa is not False:
        further["enable_gqa"] = enable_gqa  # with 2.5
    given = (query, key, value, mask, dropout_p, is_causal)
    if CausalBias and isinstance(mask, CausalBias):  # it asks for the function that stands there
        function = getattr(torch.nn.functional, NAME)
        return CausalBias.__torch_function__(function, (CausalBias,), given, further)
    if sdpa_kernel is None or is_compiling() or _has_other_backends(query):
        return FUNCTION(*given, **further)
    with sdpa_kernel(SDPBackend.MATH):
        return FUNCTION(*given, **further)


def as_called(*arguments: Any, **options: Any) -> Any:
    """PyTorch's own, while another function stands in its place."""
    mask = arguments[3] if len(arguments) > 3 else options.get("attn_mask")
    if CausalBias and isinstance(mask, CausalBias):  # it asks for the function that stands there
        function = getattr(torch.nn.functional, NAME)
        return CausalBias.__torch_function__(function, (CausalBias,), arguments, options)
    own: Any = FUNCTION
    return own(*arguments, **options)


def scripted_as(stands_there: Any, original: Any) -> None:
    """Lets torch.jit.script compile the original where a function of this library stands.

    PyTorch keeps what it compiled, and writes it to files: that must not depend on what stood there
    at that moment. The function must live as long as the process, which remembers its address.
    """
    builtins: Any = getattr(torch.jit, "_builtins", None)  # where torch.jit.script looks first
    operator = builtins and builtins._find_builtin(original)
    if operator:
        builtins._register_builtin(stands_there, operator)
    else:
        stands_there.__original_fn = original
        stands_there.__script_if_tracing_wrapper = True


def _has_other_backends(query: Any) -> bool:
    return not isinstance(query, torch.Tensor) or query.is_nested or query.device.type != "cpu"


def without_square_corner(mask: Any, is_causal: Any) -> Tuple[Any, Any]:
    """attn_mask and is_causal; of CausalBias only lower right ones that are not square remain.

    As PyTorch's own _dispatch in torch.nn.attention.bias: the others are is_causal, whatever their
    sizes.
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
    """Whether it is the lower right mask of this many queries and keys."""
    if CausalBias is None or not isinstance(mask, CausalBias):
        return False
    return (mask.seq_len_q, mask.seq_len_kv) == sizes


def as_plain(mask: Any) -> Any:
    """A lower right mask as a tensor of booleans."""
    return mask._materialize() if CausalBias and isinstance(mask, CausalBias) else mask
