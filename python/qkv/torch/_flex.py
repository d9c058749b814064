# SPDX-License-Identifier: Apache-2.0
"""`qkv.torch.flex_attention`: PyTorch's FlexAttention, with gradients on the CPU."""

from typing import Any, Callable, Dict, Optional, Tuple

import torch

from .._captured import Call
from .._mods import MaskMod, OfCall, check_takes
from .._words import in_words_of
from ._attention import attention
from ._kinds import FLAG, check_kinds
from ._questions import is_compiling, is_recorded
from ._recorded import call_of

__all__ = ["flex_attention"]

_WORD = "flex_attention"


def _score_mod(function: Any, call: Call) -> OfCall:
    if not is_compiling():
        check_takes(f"{_WORD}: score_mod", function, ("score", "b", "h", "q_idx", "kv_idx"))
    return OfCall(lambda s, at: function(s, at.b, at.h, at.i, at.j), call)


def _listed(count: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Whether each block of keys is listed, [B,H,blocks of queries,n]; a list has count indices."""
    n = indices.shape[-1]
    is_listed = torch.arange(n, device=indices.device) < count[..., None]
    dense = torch.zeros(*indices.shape[:-1], n + 1, dtype=torch.bool, device=indices.device)
    dense.scatter_(-1, torch.where(is_listed, indices.long(), n), True)
    return dense[..., :n].contiguous()


def _reach(listed: torch.Tensor, high: int, wide: int) -> Tuple[int, int]:
    """How far from the diagonal j = i the pairs of listed blocks are, to the left and the right.

    A window of this reach masks no pair of a listed block, but lets the library skip tiles.
    """
    i, j = listed.flatten(0, 1).any(0).nonzero().unbind(-1)
    if len(i) == 0:
        return -1, -1
    left = int(((i + 1) * high - 1 - j * wide).max())
    right = int(((j + 1) * wide - 1 - i * high).max())
    return max(left, 0), max(right, 0)


def of_block_mask(word: str, mask: Any, query: torch.Tensor, key: torch.Tensor) -> Dict[str, Any]:
    """The options of `attention` for a BlockMask: a mask, and a window around the listed blocks.

    The mask is true in full blocks, and in other listed blocks where the BlockMask's function is.

    Args:
        word: stands for the call in errors.
        mask: the BlockMask.
        query, key: [B,H,Tq,D] and [B,G,Tk,D].
    """
    from torch.nn.attention.flex_attention import BlockMask, noop_mask

    if not isinstance(mask, BlockMask):
        raise TypeError(
            f"{word}: block_mask must be a BlockMask, which PyTorch's create_block_mask makes, got "
            f"{type(mask).__name__}"
        )
    call = call_of(query, key)
    entries, heads, queries, keys = call.sizes
    if tuple(mask.seq_lengths) != (queries, keys):
        raise ValueError(
            f"{word}: block_mask must be for {queries} queries and {keys} keys, got "
            f"{tuple(mask.seq_lengths)}; create it for these lengths"
        )
    for size, wanted, of in zip(mask.shape[:2], (entries, heads), ("batch entries", "heads")):
        if size not in (1, wanted):
            raise ValueError(f"{word}: block_mask must be for 1 or {wanted} {of}, got {size}")
    high, wide = mask.BLOCK_SIZE
    partial = _listed(mask.kv_num_blocks, mask.kv_indices)
    full = torch.zeros_like(partial)
    if mask.full_kv_num_blocks is not None:
        full = _listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    has_function = mask.mask_mod is not noop_mask
    function = mask.mask_mod if has_function else None
    has_entries, has_heads = partial.shape[0] > 1, partial.shape[1] > 1

    def by_blocks(at: Any) -> Any:
        place = (at.b if has_entries else 0, at.h if has_heads else 0, at.i // high, at.j // wide)
        if not has_function:
            return partial[place] | full[place]
        return full[place] | (partial[place] & function(at.b, at.h, at.i, at.j))  # type: ignore

    def everywhere(at: Any) -> Any:
        return function(at.b, at.h, at.i, at.j)  # type: ignore[misc]

    if is_compiling() or is_recorded():  # which blocks are listed is not known
        return {"mask_mod": OfCall(by_blocks, call)}
    options: Dict[str, Any] = {
        "mask_mod": MaskMod(everywhere if has_function and bool(partial.all()) else by_blocks, call)
    }
    left, right = _reach(partial | full, high, wide)
    window = (left if left < queries - 1 else -1, right if right < keys - 1 else -1)
    if window != (-1, -1):
        options.update(window=window, causal_offset=0)
    return options


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Optional[Callable[..., Any]] = None,
    block_mask: Any = None,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """PyTorch's `flex_attention` (Dong et al. 2024) on the CPU, with gradients and no compiler.

    score_mod, and the mask_mod of block_mask, are called once with symbols, as by `qkv.score_mod`:
    they may use operators and most functions of tensors, and read CPU tensors, in which negative
    indices count from the end. Gradients flow to query, key, value and the tensors that score_mod
    reads. Memory is linear in the numbers of queries and keys.

    Args:
        query, key, value: [B,H,Tq,D], [B,G,Tk,D], [B,G,Tk,E]; G is H, or with enable_gqa a divisor.
        score_mod: None, or a function (score, b, h, q_idx, kv_idx) that returns the new score.
        block_mask: None, or a BlockMask of PyTorch for Tq queries and Tk keys.
        scale: multiplies the scores; 1/sqrt(D) by default.
        enable_gqa: whether key and value may have fewer heads than query.
        return_lse: whether to return the log-sum-exp of the scores, too.
        kernel_options: accepted without effect: they tune PyTorch's kernels.
        return_aux: None, or an AuxRequest of PyTorch; excludes return_lse.

    Returns:
        out [B,H,Tq,E]; (out, lse [B,H,Tq]) with return_lse; (out, AuxOutput) with return_aux.

    Raises:
        ValueError, TypeError: invalid argument, or a function that cannot be traced; the message
            names the operation.

    >>> import torch
    >>> x = torch.ones(1, 2, 4, 8, requires_grad=True)
    >>> slope = torch.tensor([0.5, 0.25], requires_grad=True)
    >>> def decay(score, b, h, q_idx, kv_idx):
    ...     return score - slope[h] * (q_idx - kv_idx).abs()
    >>> flex_attention(x, x, x, decay).sum().backward()
    >>> slope.grad.shape
    torch.Size([2])
    """
    check_kinds(_WORD, torch.Tensor, query=query, key=key, value=value)
    check_kinds(_WORD, FLAG, enable_gqa=enable_gqa, return_lse=return_lse)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4:
            raise ValueError(f"{_WORD}: {name} must have four axes, got {list(x.shape)}")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(
            f"{_WORD}: key must have the heads of query, {query.shape[1]}, got {key.shape[1]}; "
            "with enable_gqa=True it may have fewer"
        )
    if return_aux is not None and return_lse:
        raise ValueError(f"{_WORD}: return_lse and return_aux are given; one of them may be")
    options: Any = {"scale": scale}
    if score_mod is not None:
        options["score_mod"] = _score_mod(score_mod, call_of(query, key))
    if block_mask is not None:
        options.update(of_block_mask(_WORD, block_mask, query, key))
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    wants_max = return_aux is not None and return_aux.max_scores
    options.update(return_lse=wants_lse, return_row_max=wants_max)
    if is_compiling():
        got = attention(query, key, value, **options)
    else:
        try:
            got = attention(query, key, value, **options)
        except (TypeError, ValueError) as error:
            # An error that begins otherwise may name a user's array that is called q, k or v.
            is_of_input = str(error).startswith(("attention: q ", "attention: k ", "attention: v "))
            names = {"q": "query", "k": "key", "v": "value"} if is_of_input else {}
            raise in_words_of(error, _WORD, names) from None
    if return_aux is None:
        return (got.out, got.lse) if return_lse else got
    from torch.nn.attention.flex_attention import AuxOutput

    found = got._asdict() if wants_lse or wants_max else {"out": got}
    return found["out"], AuxOutput(lse=found.get("lse"), max_scores=found.get("row_max"))
