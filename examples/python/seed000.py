# SPDX-License-Identifier: Apache-2.0
"""Dot-product attention step by step, after "The Annotated Transformer" (document 000).

One query attends to two keys: first by hand, then in one call. The last part shows why scores are
divided by the square root of the width.
"""

import numpy as np

import qkv


def ones(*shape):
    return np.ones(shape, dtype=np.float32)


def show(name, array):
    print(f"{name} =", np.array2string(array, formatter={"float_kind": "{:.4f}".format}))


# ---- one query, two keys with their values, by hand ----------------------------------------------
q1 = ones(2)
k1, v1 = 2 * ones(2), 3 * ones(2)
k2, v2 = ones(2), 4 * ones(2)
for name, array in [("q1", q1), ("k1", k1), ("v1", v1), ("k2", k2), ("v2", v2)]:
    show(name, array)

# How well does the query fit each key? The simplest measure is the dot product.
C1 = q1 @ k1
C2 = q1 @ k2
print(f"C1 = {C1:.4f}")
print(f"C2 = {C2:.4f}")

# Softmax turns the scores into weights: positive numbers with sum 1.
scores = np.array([C1, C2])
p_attn = qkv.softmax(scores)
show("scores", scores)
show("p_attn", p_attn)
print(f"sum of p_attn = {p_attn.sum():.4f}")

# Smaller scores with the same ratio give flatter weights, which matters for the scale below.
show("halved scores", scores / 2)
show("softmax of them", qkv.softmax(scores / 2))

# The output is the sum of the values, each times its weight.
print(f"p_attn[0] = {p_attn[0]:.4f}")
show("p_attn[0] * v1", p_attn[0] * v1)
print(f"p_attn[1] = {p_attn[1]:.4f}")
show("p_attn[1] * v2", p_attn[1] * v2)
show("output", p_attn[0] * v1 + p_attn[1] * v2)

# ---- everything in one call: queries [Tq,D], keys [Tk,D], values [Tk,E] --------------------------
Q, K, V = q1[np.newaxis], np.stack([k1, k2]), np.stack([v1, v2])
show("Q", Q)
show("K", K)
show("V", V)
requested: dict = {"return_weights": True, "return_scores": "raw"}
out, weights, scores = qkv.attention(Q, K, V, score="dot", **requested)
show("dot product: scores", scores)
show("  output", out)
show("  weights", weights)

# ---- wider vectors have larger dot products, and the weights become extreme ----------------------
Q, K, V = ones(1, 8), np.stack([2 * ones(8), ones(8)]), np.stack([3 * ones(8), 4 * ones(8)])
out, weights, scores = qkv.attention(Q, K, V, score="dot", **requested)
show("width 8: scores", scores)
show("  output", out)
show("  weights", weights)
print(f"C(q1, k1) = {scores[0, 0]:.0f} and C(q1, k2) = {scores[0, 1]:.0f}; they were 4 and 2")

# For this reason scores are divided by sqrt(width), as qkv.attention does by default.
out, weights, scores = qkv.attention(Q, K, V, **requested)
show("width 8, scaled: scores", scores)
show("  output", out)
show("  weights", weights)

# A mask has 0 for the keys to which a query may not attend.
out, weights = qkv.attention(Q, K, V, mask=np.array([1, 0]), return_weights=True)
show("  weights with the second key masked", weights)

# ---- leading axes broadcast ----------------------------------------------------------------------
Q, K, V = ones(3, 8, 4), ones(3, 3, 8, 4), ones(3, 3, 8, 4)
print(f"{Q.shape} attends to {K.shape}: {qkv.attention(Q, K, V).shape}")
