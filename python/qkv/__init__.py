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
from ._captured import captured
from ._core import __version__
from ._expression import Expression, maximum, minimum, where
from ._functions import (
    Gradients,
    Shard,
    attention,
    attention_backward,
    batch_dot,
    masked_softmax,
    merge,
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
from ._mods import At, MaskMod, ScoreMod, mask_mod, score_mod
from ._picture import Picture, Row, Steps
from ._q8 import dequantize_q8, q8, quantize_q8
from ._show import show
from ._translator import Translation, Translator
from ._word_vectors import WordVectors, read_word_vectors

__all__ = [
    "GRU",
    "AdditiveAttention",
    "AdditiveMemory",
    "At",
    "BilinearAttention",
    "CrossEntropy",
    "DotProductAttention",
    "Dropout",
    "Embedding",
    "EmbeddingGradients",
    "Expression",
    "GRUCell",
    "GRUCellGradients",
    "GRUGradients",
    "Gradients",
    "KvCache",
    "LayerGradients",
    "Linear",
    "LinearGradients",
    "MLPAttention",
    "MaskMod",
    "MultiHeadAttention",
    "Picture",
    "Row",
    "ScoreMod",
    "SelfAttention",
    "SelfAttentionGradients",
    "Shard",
    "Steps",
    "Translation",
    "Translator",
    "WordVectors",
    "__version__",
    "attention",
    "attention_backward",
    "batch_dot",
    "captured",
    "dequantize_q8",
    "info",
    "mask_mod",
    "masked_softmax",
    "maximum",
    "merge",
    "minimum",
    "q8",
    "quantize_q8",
    "read_word_vectors",
    "score_mod",
    "set_threads",
    "show",
    "softmax",
    "where",
]
