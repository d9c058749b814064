# SPDX-License-Identifier: Apache-2.0
"""Dropout as in PyTorch's modules: drawn from torch's generator, applied to returned weights."""

from typing import Any, Dict, Optional, Tuple

import torch

from ._attention import attention


def dropout_options(p: float) -> Dict[str, Any]:
    """The options of `attention` that drop weights with probability p, in [0,1).

    The seed is a tensor, so that a compiled graph draws a new one each time it runs.
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
    """Calls `attention` of (q, k, v) with dropout p in [0,1]; returns out and weights.

    The weights are those after dropout, in q's dtype, and have a gradient; they are None if not
    needed.
    """
    if p == 0 and not need_weights:  # a short path, since decoding calls this for every token
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
        # The result is made from the weights before dropout, since only they have a gradient.
        weights = torch.where(got.dropped_weights != 0, weights / (1 - p), 0)
    if everything_dropped:
        out, weights = out * 0, weights * 0
    return out, weights.to(out.dtype)
