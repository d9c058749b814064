# SPDX-License-Identifier: Apache-2.0
"""Attention for PyTorch tensors, with gradients, in eager mode and in compiled graphs.

`import qkv` does not import torch; `import qkv.torch` does.

>>> import torch
>>> import qkv.torch
>>> q, k, v = (torch.ones(1, 2, 5, 8, requires_grad=True) for _ in range(3))
>>> qkv.torch.attention(q, k, v, causal=True).sum().backward()
>>> q.grad.shape
torch.Size([1, 2, 5, 8])
"""

from . import nn
from ._attention import attention
from ._flex import flex_attention
from ._look import look
from ._replaced import replaced
from ._ring import ring_attention
from ._ring_model import ring_model, ring_positions
from ._sdpa import scaled_dot_product_attention
from ._threads import share_workers
from ._transformers import register

__all__ = [
    "attention",
    "flex_attention",
    "look",
    "nn",
    "register",
    "replaced",
    "ring_attention",
    "ring_model",
    "ring_positions",
    "scaled_dot_product_attention",
    "share_workers",
]

share_workers()
