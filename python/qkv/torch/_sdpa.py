# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.scaled_dot_product_attention, computed by qkv's kernels."""

import math
from typing import Any, Dict, Optional, Tuple

import torch

from .._core import torch_attention
from ._attention import attention
from ._cuda import takes
from ._dropout import dropout_options
from ._jagged import attend_jagged
from ._questions import any_autocast, has_autocast, is_compiling, kind_of, modes, tracing
from ._sizes import perhaps, surely, surely_equal
from ._torchs import FUNCTION, as_plain, as_torch, is_lower_right, without_square_corner
from ._watch import WATCHERS

__all__ = ["scaled_dot_product_attention"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_PLAIN_NUMBERS = (float, int)
_LARGEST = torch.finfo(torch.float32).max  # the limit of |scale|, as scores may be float32
_NUMBERS = (float, int, torch.SymFloat) if hasattr(torch, "SymFloat") else (float, int)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by qkv's kernels.

    Invalid calls, and calls that the kernels do not compute, are passed to PyTorch's own function,
    with its results and errors. The kernels do not take strided nested tensors, empty tensors
    (except with D = 0), or a scale that is NaN or overflows float32. Tensors must be on the CPU;
    or on a GPU of `qkv.info()`, if they are bfloat16 or float16, have at most 256 channels and need
    no gradients.

    Args:
        query, key, value: [..,Tq,D], [..,Tk,D], [..,Tk,E]; leading axes broadcast. Or jagged nested
            tensors [B,H,Tq,D], [B,H,Tk,D], [B,H,Tk,E], computed as packed sequences, if neither
            attn_mask nor is_causal is given.
        attn_mask: bool, true where a query may attend, or numbers of query's dtype or float32,
            which are added to the scores; either broadcasts to [..,Tq,Tk]. Or the result of
            torch.nn.attention.bias.causal_upper_left or causal_lower_right.
        dropout_p: probability of dropping a weight, also in evaluation, as in PyTorch; the seed is
            drawn from torch's generator. 1 gives all zeros.
        is_causal: whether query i attends to keys 0 to i only (not with attn_mask).
        scale: factor of the scores; None for 1/sqrt(D).
        enable_gqa: whether key and value may each have fewer heads, a divisor of query's number.
            The axis before the sequence is then the head axis.

    Returns:
        [..,Tq,E] of query's dtype. A row that attends to no key is zero. Gradients flow to query,
        key, value and a mask of numbers. D = 0 makes all scores 0, E = 0 gives an empty result.

    Raises:
        RuntimeError: a second or a forward-mode derivative was requested. For invalid arguments,
            the errors of PyTorch's function.

    >>> import torch
    >>> q, k, v = (torch.ones(1, 4, 3, 8) for _ in range(3))
    >>> scaled_dot_product_attention(q, k, v, is_causal=True).shape
    torch.Size([1, 4, 3, 8])
    """
    out = attend_bare(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if out is not None:
        return out
    attn_mask, is_causal = without_square_corner(attn_mask, is_causal)
    given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    try:
        out = _attend(*given)
    except TypeError:  # a tensor of a class whose memory is not its value
        out = None
    return as_torch(*given) if out is None else out


def attend_bare(  # the arguments of PyTorch's function
    query: Any, key: Any, value: Any, mask: Any, dropout_p: Any, is_causal: Any, scale: Any,
    enable_gqa: Any
) -> Optional[torch.Tensor]:  # fmt: skip
    """Computes a call by a path that is fast for small calls; None for calls it does not take.

    It takes [B,H,Tq,D], [B,G,Tk,D] and [B,G,Tk,E] without gradients, dropout or autocast, in calls
    that are not compiled, traced, intercepted by a dispatch mode or reported to watchers.
    """
    if is_compiling() or WATCHERS or modes() or tracing():
        return None
    if any_autocast() and isinstance(query, torch.Tensor) and has_autocast(query):
        return None
    return torch_attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)


def attend_as_sdpa(  # the arguments of PyTorch's function
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0,
    is_causal: Any = False, scale: Any = None, enable_gqa: Any = False
) -> None:  # fmt: skip
    """Calls `attention` with what `scaled_dot_product_attention` would pass it, without dropout.

    Does nothing if that function would leave the call to PyTorch.
    """
    mask, causal = without_square_corner(attn_mask, is_causal)
    _attend(query, key, value, mask, 0.0, causal, scale, enable_gqa)


def _attend(  # the arguments of PyTorch's function
    query: Any, key: Any, value: Any, mask: Any, dropout_p: Any, is_causal: Any, scale: Any,
    enable_gqa: Any
) -> Optional[torch.Tensor]:  # fmt: skip
    """The result, or None for a call that qkv's kernels do not compute."""
    Tensor = torch.Tensor
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        return None
    if not _are_plain(dropout_p, is_causal, scale, enable_gqa):
        return None
    options: Dict[str, Any] = {"scale": float(scale) if scale is True or scale is False else scale}
    if is_causal:
        options["causal"] = "top_left"
    if 0 < dropout_p < 1:
        options.update(dropout_options(float(dropout_p)))
    elif dropout_p > 1:
        return None
    if query.is_nested or key.is_nested or value.is_nested:
        return _without_dropped(attend_jagged(query, key, value, mask, options), dropout_p)
    if any_autocast() and has_autocast(query):
        query, key, value, mask = (as_autocast(x) for x in (query, key, value, mask))
    if not _agree(query, key, value) or (query.is_cuda and not takes(query, key, value, mask)):
        return None
    if surely(value.numel() == 0) or any([surely(size == 0) for size in query.shape[:-1]]):
        zeros = query.new_zeros((*query.shape[:-1], value.size(-1)))
        return None if FUNCTION is not None else zeros  # PyTorch's function chooses the shape
    aligned = _aligned_groups(query, key, value) if enable_gqa else _aligned(query, key, value)
    if aligned is None:
        return None
    if mask is None:
        pass
    elif is_lower_right(mask, (query.size(-2), key.size(-2))):
        options["causal"] = "bottom_right"
    else:
        mask = as_plain(mask)
        scores = (*aligned[3], query.size(-2), key.size(-2))
        if is_causal or not _fits(mask, query.dtype, scores):
            return None
        wider = query.dtype == torch.float64 and mask.dtype == torch.float32
        options["mask" if mask.dtype == torch.bool else "bias"] = mask.double() if wider else mask
    return _without_dropped(_computed(*aligned[:3], options, aligned[4]), dropout_p)


def _are_plain(dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any) -> bool:
    """Whether the arguments have types that PyTorch's function takes, and scale is in range."""
    if type(is_causal) is not bool or type(enable_gqa) is not bool:
        return False
    if not isinstance(dropout_p, _NUMBERS):
        return False
    if scale is None or isinstance(scale, _PLAIN_NUMBERS):
        return scale is None or -_LARGEST <= scale <= _LARGEST
    return isinstance(scale, _NUMBERS) and -math.inf < scale < math.inf


def as_autocast(x: Any) -> Any:
    """An argument in the dtype that autocast gives it."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind_of(x)))


def _agree(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether dtypes, devices and the last two axes of the inputs fit together."""
    dtype = query.dtype
    if dtype not in _DTYPES or key.dtype != dtype or value.dtype != dtype:
        return False
    if not (query.is_cpu and key.is_cpu and value.is_cpu) and not _are_of(
        "meta", query, key, value
    ):
        return _are_of("cuda", query, key, value) and _widths_agree(query, key, value)
    return _widths_agree(query, key, value)


def _widths_agree(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    of_q, of_k, of_v = query.shape, key.shape, value.shape
    if len(of_q) < 2 or len(of_k) < 2 or len(of_v) < 2:
        return False
    return perhaps(of_q[-1] == of_k[-1]) and perhaps(of_k[-2] == of_v[-2])


def _are_of(kind: str, *tensors: torch.Tensor) -> bool:
    return all(x.device.type == kind for x in tensors)


def _fits(mask: Any, dtype: torch.dtype, scores: Tuple[int, ...]) -> bool:
    """Whether the kernels take a mask's dtype, and the mask broadcasts to the shape `scores`."""
    if not isinstance(mask, torch.Tensor) or mask.is_nested:
        return False
    if mask.dtype not in (torch.bool, torch.float32, dtype) or mask.dim() > len(scores):
        return False
    sizes = scores[len(scores) - mask.dim() :]
    return all(
        surely(size == 1) or perhaps(size == whole) for size, whole in zip(mask.shape, sizes)
    )


def _computed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Dict[str, Any], rows: Any
) -> torch.Tensor:
    """Attention of aligned tensors, in the shape [*rows,E]."""
    if surely(q.size(-1) == 0):  # one channel of zeros gives the same scores
        options["scale"] = 1.0
        q, k = (torch.nn.functional.pad(x, (0, 1)) for x in (q, k))
    out: torch.Tensor = attention(q, k, v, **options)
    # If out has the expected rank, it also has the expected shape.
    return out if out.dim() == len(rows) + 1 else out.reshape((*rows, v.size(-1)))


def _without_dropped(out: Optional[torch.Tensor], dropout_p: float) -> Optional[torch.Tensor]:
    return out * 0 if out is not None and dropout_p == 1 else out


# The tuple (q, k, v, leading axes of the scores, axes of the result except E), in which q, k and v
# have equal leading axes, but k and v may have fewer heads; None if the tensors do not fit.
_Aligned = Optional[Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tuple[int, ...], Any]]


def _aligned(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> _Aligned:
    of_q = query.shape
    lead, of_key, of_value = of_q[:-2], key.shape[:-2], value.shape[:-2]
    if surely_equal(lead, of_key) and surely_equal(lead, of_value):
        return query, key, value, lead, of_q[:-1]
    of_scores = _broadcast(lead, of_key)
    whole = _broadcast(of_scores, of_value)
    if of_scores is None or whole is None:
        return None
    q, k, v = (x.expand((*whole, *x.shape[-2:])) for x in (query, key, value))
    return q, k, v, of_scores, (*whole, query.size(-2))


def _aligned_groups(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> _Aligned:
    """Aligns tensors as `_aligned` does, but their last leading axis is the head axis."""
    if min(query.dim(), key.dim(), value.dim()) < 3:
        return None
    H, of_key, of_value = (x.size(-3) for x in (query, key, value))
    if surely(of_key == H) and surely(of_value == H):
        return _aligned(query, key, value)
    if of_key == 0 or of_value == 0:  # PyTorch's function would divide by zero
        raise RuntimeError(
            "Number of heads in key and value must divide the number of heads in query"
        )
    if H % of_key != 0 or H % of_value != 0:
        return None
    # Repeating key and value heads until both have G does not change the result.
    G = math.lcm(of_key, of_value)
    if H == 0:
        G = H
        key, value = key[..., :0, :, :], value[..., :0, :, :]
    else:
        key, value = (
            x if x.size(-3) == G else x.repeat_interleave(G // x.size(-3), -3) for x in (key, value)
        )
    of_scores = _broadcast(query.shape[:-3], key.shape[:-3])
    whole = _broadcast(of_scores, value.shape[:-3])
    if of_scores is None or whole is None:
        return None
    q, k, v = (x.expand((*whole, *x.shape[-3:])) for x in (query, key, value))
    rows = (*whole, H, query.size(-2))
    if q.dim() == 3:
        q, k, v = q[None], k[None], v[None]
    return q, k, v, (*of_scores, H), rows


def _broadcast(first: Any, second: Any) -> Optional[Tuple[int, ...]]:
    """The broadcast shape, or None if there is none. Sizes not known yet are taken to be equal."""
    if first is None:
        return None
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    shorter = (1,) * (len(longer) - len(shorter)) + tuple(shorter)
    sizes = []
    for a, b in zip(longer, shorter):
        if surely(a == 1):
            sizes.append(b)
        elif surely(b == 1) or perhaps(a == b):
            sizes.append(a)
        else:
            return None
    return tuple(sizes)
