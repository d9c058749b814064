# SPDX-License-Identifier: Apache-2.0
"""The attention section of a textbook (document 002): masked softmax, batched products, two layers.

Both layers give the same numbers on the toy example at the end: all its keys are equal, so each
query gets the mean of the values it attends to, whatever the score and its parameters are.
"""

import numpy as np

import qkv


def show(name, array):
    print(f"{name}:")
    print(np.array2string(array, formatter={"float_kind": "{:.4f}".format}))


# ---- masked softmax: only the first `valid_len` entries of a row count ---------------------------
rows = np.random.default_rng(2).random((2, 2, 4), dtype=np.float32)
valid_len = np.array([2, 3])  # for each entry of the batch
weights = qkv.masked_softmax(rows, valid_len)
beyond = np.arange(4) >= valid_len[:, np.newaxis, np.newaxis]
print("weights beyond the valid lengths:", weights[np.broadcast_to(beyond, weights.shape)])
show("masked softmax of random rows", weights)

# ---- batched products ----------------------------------------------------------------------------
a, b = np.ones((2, 1, 3), dtype=np.float32), np.ones((2, 3, 2), dtype=np.float32)
show("products of ones", qkv.batch_dot(a, b))
show(
    "the same, the second one given transposed",
    qkv.batch_dot(a, np.ones((2, 2, 3), dtype=np.float32), transpose_b=True),
)

# ---- the toy -------------------------------------------------------------------------------------
# Two batch entries with one query and ten keys each: the first query attends to 2 keys, the second
# to 6.
queries = np.ones((2, 1, 2), dtype=np.float32)
keys = np.ones((2, 10, 2), dtype=np.float32)
values = np.broadcast_to(np.arange(40, dtype=np.float32).reshape(1, 10, 4), (2, 10, 4))
valid_len = np.array([2, 6])

dot_product = qkv.DotProductAttention(dropout=0.5)  # dropout acts in training only
show("DotProductAttention", dot_product.forward(queries, keys, values, valid_len))
show("the same as a function", qkv.attention(queries, keys, values, key_lengths=valid_len))

# The score is v^T tanh(Wq q + Wk k), so that queries and keys may differ in width.
mlp = qkv.MLPAttention(query_width=2, key_width=2, units=8, dropout=0.1)
show("MLPAttention", mlp.forward(queries, keys, values, valid_len))
random = np.random.default_rng(8)
params = {
    "Wq": random.standard_normal((8, 2), dtype=np.float32),
    "Wk": random.standard_normal((8, 2), dtype=np.float32),
    "v": random.standard_normal(8, dtype=np.float32),
}
show(
    "the same as a function, with other parameters",
    qkv.attention(queries, keys, values, score="additive", params=params, key_lengths=valid_len),
)
