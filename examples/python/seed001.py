# SPDX-License-Identifier: Apache-2.0
"""Self-attention over a sentence, with one head and with several wide ones (document 001).

The notebook reads GloVe vectors and draws random weights. It prints sizes and strides, which depend
on neither, so each word gets random numbers here that depend on its letters.
"""

import numpy as np

import qkv

WIDTH, HEADS = 50, 8


def word_vector(word):
    return np.random.default_rng(list(word.encode())).standard_normal(WIDTH, dtype=np.float32)


def strides(array):
    return tuple(size // array.itemsize for size in array.strides)  # in elements, as torch counts


words = ["the", "cat", "walks", "on", "the", "street"]

# ---- one head ------------------------------------------------------------------------------------
X = np.stack([word_vector(word) for word in words])
print("words:", X.shape)
X = X.reshape(1, *X.shape)
print("sentence:", X.shape)

# Each word is projected to a query, a key and a value; scores are divided by sqrt(50).
layer = qkv.SelfAttention(WIDTH)
out, weights = layer.forward(X, return_weights=True)
print("weights:", weights.shape)

# A transposed array is the same memory read in another order, until it is copied.
g = weights.transpose(0, 2, 1)
print("transposed: strides", strides(g), "contiguous", g.flags.c_contiguous)
g = np.ascontiguousarray(g)
print("copied: strides", strides(g), "contiguous", g.flags.c_contiguous)

# ---- eight heads, each as wide as the words ------------------------------------------------------
X = np.stack([word_vector(word) for word in words])
print("words:", X.shape)
X = X.reshape(1, *X.shape)
print("sentence:", X.shape)

multi_head = qkv.MultiHeadAttention(WIDTH, HEADS, form="wide")
parameters = multi_head.parameters()
queries = X @ parameters["queries.weight"].T
keys = X @ parameters["keys.weight"].T
print("queries before:", queries.shape)
queries = queries.reshape(1, len(words), HEADS, WIDTH)
keys = keys.reshape(1, len(words), HEADS, WIDTH)
print("queries after:", queries.shape)

print("queries before:", queries.shape)
queries = queries.transpose(0, 2, 1, 3).reshape(HEADS, len(words), WIDTH)
keys = keys.transpose(0, 2, 1, 3).reshape(HEADS, len(words), WIDTH)
print("queries after:", queries.shape)
(weights,) = qkv.attention(queries, keys, None, return_weights=True)
print("weights:", weights.shape)

# The layer does all of this and merges the heads word by word. The notebook's own code mixes words
# with heads, so that its two rows of "the" differ, although they have to be equal.
y, layer_weights = multi_head.forward(X, X, X, return_weights=True)
print("the weights of the layer are these:", np.allclose(layer_weights[0], weights, atol=1e-6))
print('the two rows of "the" are equal:', np.array_equal(y[0, 0], y[0, 4]))
print("out:", y.shape)
