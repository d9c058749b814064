# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own function, with this library's kernels."""

import math
from typing import Any, Dict, Optional, Tuple

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

from ._attention import attention
from ._kinds import FLAG, check_kinds

__all__ = ["scaled_dot_product_attention"]

_SDPA = "scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention with this library's kernels.

    Args:
        query, key, value: [..,Tq,D], [..,Tk,D], [..,Tk,E]; leading axes broadcast.
        attn_mask: bool, true where a query may attend, or numbers added to the scores, of query's
            dtype or float32; broadcasts to [..,Tq,Tk]. Or the result of
            torch.nn.attention.bias.causal_upper_left or causal_lower_right.
        dropout_p: always applied, as in PyTorch; the seed is drawn from torch's generator. 1 gives
            all zeros.
        is_causal: the first query sees only the first key (not with attn_mask).
        scale: 1/sqrt(D) by default.
        enable_gqa: the axis before the sequence is the head axis; key and value may each have
            fewer heads, a divisor of query's.

    Returns:
        [..,Tq,E] of query's dtype. A row that sees no key gives zeros. Gradients flow to query,
        key, value and a mask of numbers. D = 0 makes all scores 0, E = 0 gives an empty result.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        RuntimeError: a second or a forward-mode derivative was requested.

    >>> import torch
    >>> q, k, v = (torch.ones(1, 4, 3, 8) for _ in range(3))
    >>> scaled_dot_product_attention(q, k, v, is_causal=True).shape
    torch.Size([1, 4, 3, 8])
    """
    check_kinds(_SDPA, torch.Tensor, query=query, key=key, value=value)
    check_kinds(_SDPA, FLAG, is_causal=is_causal, enable_gqa=enable_gqa)
    check_kinds(_SDPA, (int, float), dropout_p=dropout_p)
    if attn_mask is not None:
        check_kinds(_SDPA, torch.Tensor, attn_mask=attn_mask)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{_SDPA}: dropout_p must be in [0,1], got {dropout_p}")
    if is_causal and attn_mask is not None:
        raise ValueError(f"{_SDPA}: attn_mask must be None where is_causal is True")
    options: Dict[str, Any] = {"scale": scale, "causal": "top_left" if is_causal else False}
    if isinstance(attn_mask, CausalBias):
        options["causal"] = _corner_of(attn_mask, query, key)
    elif attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            options["mask"] = attn_mask
        else:
            wider = query.dtype == torch.float64 and attn_mask.dtype == torch.float32
            options["bias"] = attn_mask.double() if wider else attn_mask
    if 0 < dropout_p < 1:
        options.update(dropout=dropout_p, seed=torch.randint(0, 2**63 - 1, ()))
    if value.dim() > 0 and value.size(-1) == 0:
        return query[..., :0]  # PyTorch's shape, even if heads or batches would broadcast
    q, k, v, shape = _aligned(query, key, value, enable_gqa)
    if q.size(-1) == 0 == k.size(-1):  # one channel of zeros gives the same scores
        options["scale"] = 1
        q, k = (torch.nn.functional.pad(x, (0, 1)) for x in (q, k))
    out: torch.Tensor = attention(q, k, v, **options)
    if dropout_p == 1:
        out = out * 0
    whole = (*shape, value.size(-1))
    return out if out.shape == whole else out.reshape(whole)


def _corner_of(bias: CausalBias, query: torch.Tensor, key: torch.Tensor) -> str:
    """The diagonal of a PyTorch causal bias."""
    sizes = (bias.seq_len_q, bias.seq_len_kv)
    if sizes != (query.size(-2), key.size(-2)):
        raise ValueError(
            f"{_SDPA}: attn_mask is for {sizes[0]} queries and {sizes[1]} keys but there are "
            f"{query.size(-2)} and {key.size(-2)}"
        )
    corners = {
        CausalVariant.UPPER_LEFT: "top_left",
        CausalVariant.LOWER_RIGHT: "bottom_right",
    }
    return corners[bias.variant]


def _aligned(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tuple[int, ...]]:
    """The three with equal leading axes, except for fewer key and value heads; and [..,Tq]."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 2:
            raise ValueError(f"{_SDPA}: {name} must have at least 2 axes, got {x.dim()}")
    if grouped:
        return _aligned_groups(query, key, value)
    if query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return query, key, value, tuple(query.shape[:-1])
    leading = _broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (x.expand((*leading, *x.shape[-2:])) for x in (query, key, value))
    return q, k, v, (*leading, query.size(-2))


def _aligned_groups(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tuple[int, ...]]:
    """As _aligned; the last leading axis is the head axis, with rank 3 too."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 3:
            raise ValueError(
                f"{_SDPA}: {name} must have an axis of heads with enable_gqa=True, "
                f"got {list(x.shape)}"
            )
    H, groups = query.size(-3), (key.size(-3), value.size(-3))
    for name, G in zip(("key", "value"), groups):
        if G == 0 or H % G != 0:
            raise ValueError(
                f"{_SDPA}: {name} has {G} heads, which do not divide query's {H} (enable_gqa=True)"
            )
    # The least common number of heads; repeating a head does not change the result.
    G = math.lcm(*groups)
    k, v = (
        x if x.size(-3) == G else x.repeat_interleave(G // x.size(-3), -3) for x in (key, value)
    )
    leading = _broadcast(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    q, k, v = (x.expand((*leading, *x.shape[-3:])) for x in (query, k, v))
    shape = (*leading, H, query.size(-2))
    return (q[None], k[None], v[None], shape) if q.dim() == 3 else (q, k, v, shape)


def _broadcast(*leading: Tuple[int, ...]) -> Tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(*leading))
    except RuntimeError:
        shapes = ", ".join(str(list(x)) for x in leading)
        raise ValueError(
            f"{_SDPA}: the leading axes of query, key and value must broadcast, got {shapes}; "
            "fewer heads of keys need enable_gqa=True"
        ) from None
