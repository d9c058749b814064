# SPDX-License-Identifier: Apache-2.0
"""Attention in general, and multi-head self-attention (document 003).

Attention always has three steps: energies (scores) of a query s and the vectors h, softmax, and the
weighted sum. Kinds of attention differ only in the energy.
"""

import numpy as np

import qkv

random = np.random.default_rng(3)


def draw(*shape):
    return random.standard_normal(shape, dtype=np.float32)


# ---- four energies; the weights always sum to 1 --------------------------------------------------
s = draw(1, 5)  # one query, 5 wide
h = draw(7, 5)  # seven vectors to attend to

# The additive energy is v^T tanh(W [h; s]): the columns of W for h are Wk, those for s are Wq.
W = draw(4, 10)
additive = {"Wk": W[:, :5], "Wq": W[:, 5:], "v": draw(4)}
energies = [
    ("additive", additive),
    ("dot", None),
    ("bilinear", {"W": draw(5, 5)}),  # s^T W h
]
for score, params in energies:
    out, weights = qkv.attention(s, h, h, score=score, params=params, return_weights=True)
    print(f"{score}: {weights.size} weights with the sum {weights.sum():.4f}, output {out.shape}")

# ---- projections: 10000 books, read or not, become 100 numbers -----------------------------------
books = (random.random((1, 10000)) < 0.01).astype(np.float32)
taste = qkv.batch_dot(books, draw(10000, 100))
print(f"a reader: {books.shape[1]} books, projected to {taste.shape[1]} numbers")

# ---- the scaled dot product: dot / sqrt(width) ---------------------------------------------------
(weights,) = qkv.attention(s, h, None, return_weights=True)
print(f"scaled dot: {weights.size} weights with the sum {weights.sum():.4f}")

# ---- multi-head self-attention as in the original transformer ------------------------------------
width, heads = 512, 8
layer = qkv.MultiHeadAttention(width, heads)
print(f"each head is {width // heads} of {width} wide, {heads} results are merged")

x = draw(2, 6, width)  # two sentences of six words
padding_mask = np.zeros((2, 6), dtype=bool)
padding_mask[1, 4:] = True  # the second sentence has four words and two of padding
out, weights = layer.forward(x, x, x, padding_mask=padding_mask, return_weights=True)
print(f"sentences {x.shape} -> {out.shape}, matrices of weights {weights.shape}")
print("weight on padding:", weights[1, :, :, 4:].max())

# Dropout acts in training only.
print("dropout, unless told otherwise:", layer.config["dropout"])
