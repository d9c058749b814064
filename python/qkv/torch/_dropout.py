# SPDX-License-Identifier: Apache-2.0
"""Dropout as PyTorch's modules do it: drawn from torch's generator, and visible in the weights."""

from typing import Any, Dict, Optional, Tuple

import torch

from ._attention import attention


def dropout_options(p: float) -> Dict[str, Any]:
    """The options of `attention` that drop weights with probability p, in [0,1).

    The seed is a tensor, so that a graph draws it when it runs.
    """
    if p == 0:
        return {}
    return {"dropout": p, "seed": torch.randint(0, 2**63 - 1, (), device="cpu")}


def attend(
    inputs: Tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    p: float,
    need_weights: bool,
    **options: Any,
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """`attention` of (q, k, v) with dropout p in [0,1], and its weights after dropout.

    The weights, of q's dtype, have a gradient; None if they are not needed.
    """
    if p == 0 and not need_weights:  # the shortest way: decoding calls this for every token
        return attention(*inputs, **options), None
    everything_dropped = p == 1
    if everything_dropped:
        p = 0.0
    options.update(dropout_options(p))
    if not need_weights:
        out = attention(*inputs, **options)
        return (out * 0 if everything_dropped else out), None
    got = attention(*inputs, **options, return_weights="both" if p > 0 else True)
    out, weights = got.out, got.weights
    if p > 0:
        # Of the two only the weights before dropout have a gradient.
        weights = torch.where(got.dropped_weights != 0, weights / (1 - p), 0)
    if everything_dropped:
        out, weights = out * 0, weights * 0
    return out, weights.to(out.dtype)
