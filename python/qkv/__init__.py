# SPDX-License-Identifier: Apache-2.0
"""Attention on CPUs, forward and backward: dot, scaled dot, cosine, bilinear, additive.

NumPy arrays, and any CPU arrays that support DLPack (such as those of PyTorch), are passed
without a copy. Results have the array type of the inputs: NumPy in, NumPy out.

>>> import numpy as np
>>> import qkv
>>> q, k, v = np.ones((1, 2)), np.array([[2.0, 2.0], [1.0, 1.0]]), np.array([[3.0], [4.0]])
>>> qkv.attention(q, k, v, score="dot").round(4)
array([[3.1192]])
"""

from ._additive_memory import AdditiveMemory
from ._core import __version__
from ._functions import (
    Gradients,
    attention,
    attention_backward,
    batch_dot,
    masked_softmax,
    softmax,
)
from ._gru import GRU, GRUCell, GRUCellGradients, GRUGradients
from ._kv_cache import KvCache
from ._layers import (
    AdditiveAttention,
    BilinearAttention,
    DotProductAttention,
    LayerGradients,
    MLPAttention,
    MultiHeadAttention,
    SelfAttention,
    SelfAttentionGradients,
)
from ._machine import info, set_threads
from ._model_layers import (
    CrossEntropy,
    Dropout,
    Embedding,
    EmbeddingGradients,
    Linear,
    LinearGradients,
)
from ._q8 import dequantize_q8, q8, quantize_q8

__all__ = [
    "GRU",
    "AdditiveAttention",
    "AdditiveMemory",
    "BilinearAttention",
    "CrossEntropy",
    "DotProductAttention",
    "Dropout",
    "Embedding",
    "EmbeddingGradients",
    "GRUCell",
    "GRUCellGradients",
    "GRUGradients",
    "Gradients",
    "KvCache",
    "LayerGradients",
    "Linear",
    "LinearGradients",
    "MLPAttention",
    "MultiHeadAttention",
    "SelfAttention",
    "SelfAttentionGradients",
    "__version__",
    "attention",
    "attention_backward",
    "batch_dot",
    "dequantize_q8",
    "info",
    "masked_softmax",
    "q8",
    "quantize_q8",
    "set_threads",
    "softmax",
]
