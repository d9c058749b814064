# SPDX-License-Identifier: Apache-2.0
"""Modules for PyTorch whose attention is computed by qkv.

>>> import torch
>>> import qkv.torch
>>> module = qkv.torch.nn.MultiheadAttention(8, 2, batch_first=True)
>>> x = torch.ones(1, 5, 8)
>>> out, weights = module(x, x, x)
>>> out.shape, weights.shape
(torch.Size([1, 5, 8]), torch.Size([1, 5, 5]))
"""

from ._multihead import MultiheadAttention
from ._scores import AdditiveAttention, BilinearAttention, DotProductAttention

__all__ = [
    "AdditiveAttention",
    "BilinearAttention",
    "DotProductAttention",
    "MultiheadAttention",
]
