# SPDX-License-Identifier: Apache-2.0
"""Attention of nested tensors of jagged layout, as packed sequences."""

from typing import Any, Dict, Optional, Tuple

import torch

from ._attention import attention
from ._questions import is_compiling


def attend_jagged(
    query: Any, key: Any, value: Any, mask: Any, options: Dict[str, Any]
) -> Optional[torch.Tensor]:
    """Attention of [B,H,Tq,D], [B,H,Tk,D] and [B,H,Tk,E], each sequence with its own Tq and Tk.

    Returns:
        A nested tensor [B,H,Tq,E] with query's offsets. None for strided nested tensors, and for
        masks, is_causal and shapes that PyTorch's own math backend does not take either.
    """
    tensors = (query, key, value)
    if mask is not None or "causal" in options or not all(map(_is_jagged, tensors)):
        return None
    if not _have_equal_sizes(*tensors) or not _have_equal_offsets(key, value):
        return None
    q, k, v = (_packed(x) for x in tensors)
    out = attention(
        q, k, v, cu_seqlens_q=query.offsets(), cu_seqlens_k=key.offsets(), **options
    )  # [sum Tq,H,E]
    made = torch.nested.nested_tensor_from_jagged(out, query.offsets())
    nested: torch.Tensor = made.transpose(1, 2)
    return nested


def _is_jagged(x: Any) -> bool:
    """Whether x is a CPU tensor [B,H,T,X], T jagged without holes, contiguous as [B,T,H,X]."""
    return (
        x.is_nested
        and x.layout == torch.jagged
        and x.dim() == 4
        and x._ragged_idx == 2
        and x.device.type == "cpu"
        and x.lengths() is None
        and x.transpose(1, 2).is_contiguous()
    )


def _have_equal_sizes(query: Any, key: Any, value: Any) -> bool:
    """Whether dtypes, batch sizes, heads and widths fit together."""

    def of(x: Any) -> Tuple[Any, ...]:
        return x.dtype, x.size(0), x.size(1)

    return of(query) == of(key) == of(value) and query.size(-1) == key.size(-1) > 0


def _have_equal_offsets(key: Any, value: Any) -> bool:
    if key.offsets() is value.offsets():
        return True
    return not is_compiling() and torch.equal(key.offsets(), value.offsets())


def _packed(x: Any) -> torch.Tensor:
    """The values of x as packed sequences, [sum T,H,X]."""
    packed: torch.Tensor = x.transpose(1, 2).values()
    return packed
