# SPDX-License-Identifier: Apache-2.0
"""Compares entropy, column sums, value sums and pooled weights with the full matrix in NumPy."""

import numpy as np
import pytest

import qkv

Q, K, E = 150, 530, 5  # Q exceeds a block of 128 queries, K a chunk of 512 keys


def arrays(dtype=np.float64):
    r = np.random.default_rng(7)
    return tuple(r.normal(size=s).astype(dtype) for s in ((2, 4, Q, 8), (2, 2, K, 8), (2, 2, K, E)))


def entropy(w):
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(w > 0, w * np.log(w), 0.0).sum(-1)


def pooled(w, m, n):
    """For m x n cells: the mean over a cell's queries of its weights' sum over keys."""
    rows, columns = (
        np.arange(w.shape[-2]) * m // w.shape[-2],
        np.arange(w.shape[-1]) * n // w.shape[-1],
    )
    of_rows = np.eye(m)[:, rows]  # [m,Tq]
    counts = np.maximum(of_rows.sum(1), 1)[:, None]
    return of_rows @ w @ np.eye(n)[columns] / counts


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window and sinks": {"window": (40, 3), "sinks": np.array([0.5, -1, 2, 0])},
    "dropout": {"dropout": 0.3, "seed": 3},
    "lengths": {"key_lengths": [K, 0]},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("cells", [(1, 1), (4, 7), (Q, 3), (2, K), (Q + 9, K + 9)])
def test_results_equal_sums_of_the_matrix(name, cells):
    q, k, v = arrays()
    found = qkv.attention(
        q, k, v, **OPTIONS[name], return_weights=True, return_column_sums=True, return_top=1,
        return_entropy=True, return_value_sums=True, return_pooled=cells,
    )  # fmt: skip
    order = ("out", "weights", "column_sums", "top", "entropy", "value_sums", "pooled")
    assert found._fields == order
    w = found.weights
    norms = np.repeat(np.linalg.norm(v, axis=-1), 2, axis=1)
    near = {"rtol": 1e-12, "atol": 1e-13}
    np.testing.assert_allclose(found.entropy, entropy(w), **near)
    np.testing.assert_allclose(found.column_sums, w.sum(-2), **near)
    np.testing.assert_allclose(found.value_sums, w.sum(-2) * norms, **near)
    np.testing.assert_allclose(found.pooled, pooled(w, *cells), **near)


@pytest.mark.parametrize("rows", [[3, 3, 149], np.array([0], np.int16), (), np.arange(Q)])
def test_sums_over_named_queries(rows):
    q, k, v = arrays()
    named = np.array(rows, np.int64)
    found = qkv.attention(
        q, k, v, return_weights=True, return_column_sums=named if len(rows) == 0 else rows,
        return_value_sums=True,
    )  # fmt: skip
    sums = found.weights[:, :, named].sum(-2)
    norms = np.repeat(np.linalg.norm(v, axis=-1), 2, axis=1)
    np.testing.assert_allclose(found.column_sums, sums, rtol=1e-12)
    np.testing.assert_allclose(found.value_sums, sums * norms, rtol=1e-12)


def test_types_shapes_and_layouts():
    q, k, v = (x.astype(np.float32).swapaxes(1, 2) for x in arrays())
    options = {"return_entropy": True, "return_pooled": (2, 3), "return_value_sums": True}
    found = qkv.attention(q, k, v, layout="bthd", **options)
    assert found.entropy.shape == (2, 4, Q) and found.value_sums.shape == (2, 4, K)
    assert found.pooled.shape == (2, 4, 2, 3) and found.pooled.dtype == np.float32
    alone = qkv.attention(q[0, :, 0], k[0, :, 0], None, return_entropy=True, return_pooled=(2, 3))
    assert alone._fields == ("entropy", "pooled")
    np.testing.assert_array_equal(alone.entropy, found.entropy[0, 0])
    np.testing.assert_array_equal(alone.pooled, found.pooled[0, 0])
    with pytest.raises(AttributeError, match="return_value_sums=True"):
        alone.value_sums  # noqa: B018


def test_each_packed_sequence_has_its_own_cells():
    q, k = np.ones((7, 4, 8)), np.ones((9, 2, 8))
    packed = {"cu_seqlens_q": [0, 3, 7], "cu_seqlens_k": [0, 4, 9]}
    found = qkv.attention(q, k, None, **packed, return_pooled=(2, 2), return_entropy=True)
    assert found.pooled.shape == (2, 4, 2, 2)
    np.testing.assert_allclose(found.pooled[0], 0.5)
    np.testing.assert_allclose(found.pooled[1], [[[0.6, 0.4]] * 2] * 4)
    np.testing.assert_allclose(found.entropy, np.log([[4.0] * 3 + [5.0] * 4] * 4))
    with pytest.raises(ValueError, match="return_column_sums is not available with packed"):
        qkv.attention(q, k, None, **packed, return_column_sums=[0])


def test_layers_give_the_same_sums():
    layer = qkv.MultiHeadAttention(width=6, heads=2, seed=1)
    x = np.random.default_rng(1).normal(size=(2, 5, 6)).astype(np.float32)
    found = layer.forward(x, x, x, return_weights=True, return_entropy=True,
                          return_column_sums=[4], return_pooled=(5, 5))  # fmt: skip
    np.testing.assert_allclose(found.entropy, entropy(found.weights), rtol=1e-5)
    np.testing.assert_allclose(found.column_sums, found.weights[:, :, 4], rtol=1e-6)
    np.testing.assert_array_equal(found.pooled, found.weights)


def test_an_additive_memory_gives_entropy():
    params = {"Wq": np.ones((8, 3)), "Wk": np.ones((8, 4)), "v": np.ones(8)}
    k = np.random.default_rng(2).normal(size=(2, 5, 4))
    memory = qkv.AdditiveMemory(k, params)
    found = memory.attention(np.zeros((2, 1, 3)), None, return_entropy=True, return_weights=True)
    np.testing.assert_allclose(found.entropy, entropy(found.weights), rtol=1e-12)
