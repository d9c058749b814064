# SPDX-License-Identifier: Apache-2.0
"""Which pairs of queries and keys a call masked, for pictures of its results."""

from typing import Any, Dict, Tuple

import numpy as np

from ._functions import attention
from ._results import Call


def unmasked(call: Call, shape: Tuple[int, ...], weights: Any) -> Any:
    """True for each pair that the call did not mask, in the shape of a result [..,rows,Tk].

    Args:
        call: what is known of the call.
        shape: the shape of its weights or scores.
        weights: the call's weights, or None; score_mod masks pairs of weight 0 and score -inf.

    Returns:
        A bool array, or None if nothing is masked.
    """
    masks = dict(call.masks)
    bias, score_mod = masks.pop("bias", None), masks.pop("score_mod", None)
    masked = _minus_infinite(call, shape, masks) if masks else np.zeros(shape, bool)
    if bias is not None:
        every = np.broadcast_to(np.isneginf(_floats(bias)), (*shape[:-2], call.queries, shape[-1]))
        masked |= every if call.rows is None else every[..., np.asarray(call.rows), :]
    if score_mod is not None and weights is not None:
        masked |= _minus_infinite(call, shape, {"score_mod": score_mod}) & (weights == 0)
    return ~masked if masked.any() else None


def _minus_infinite(call: Call, shape: Tuple[int, ...], options: Dict[str, Any]) -> Any:
    """True for each pair whose score these options change from 0 to -inf."""
    q = np.zeros((*shape[:-2], call.queries, 1))
    k = np.zeros((*shape[:-2], shape[-1], 1))
    if call.has_heads and k.ndim == 3:
        k = k[0]  # now ranks differ, so that the first axis of q is the head axis
    (scores,) = attention(
        q, k, None, score="dot", return_scores="masked", rows=call.rows, **options, **call.positions
    )  # fmt: skip
    return np.isneginf(scores)


def _floats(array: Any) -> Any:
    if hasattr(array, "detach"):  # a tensor of PyTorch
        array = array.detach().cpu().double().numpy()
    return np.asarray(array).astype(np.float64)
