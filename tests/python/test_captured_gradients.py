# SPDX-License-Identifier: Apache-2.0
"""Gradients of the arrays that score_mod reads, through attention_backward."""

import numpy as np
import pytest

import qkv

B, H, G, T, D = 2, 4, 2, 37, 8


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def arrays():
    q, k, v = normal(1, B, H, T, D), normal(2, B, G, T, D), normal(3, B, G, T, D)
    return q, k, v, normal(4, B, H, T, D)


def backward(arrays, mod, **options):
    q, k, v, dout = arrays
    out, lse = qkv.attention(q, k, v, score_mod=mod, return_lse=True, **of_forward(options))
    return qkv.attention_backward(dout, q, k, v, out, lse, score_mod=mod, **options)


def of_forward(options):
    """The options without those that only attention_backward takes."""
    return {name: x for name, x in options.items() if name not in ("wanted", "add_to")}


def test_gradients_equal_differences_of_the_loss(arrays):
    q, k, v, dout = arrays
    gain, table = 1 + 0.3 * normal(5, H), normal(6, H, 2 * T - 1)
    mod = qkv.score_mod(
        lambda s, at: 4 * np.tanh(s * gain[at.h] / 4) + table[at.h, at.i - at.j + T - 1]
    )
    got = backward(arrays, mod, causal=True).dcaptured
    assert list(got) == ["gain", "table"]

    def loss():
        return np.sum(dout * qkv.attention(q, k, v, score_mod=mod, causal=True))

    for name, array in (("gain", gain), ("table", table)):
        assert got[name].shape == array.shape
        for at in list(np.ndindex(array.shape))[:: max(1, array.size // 12)]:
            before = array[at]
            array[at] = before + 1e-5
            above = loss()
            array[at] = before - 1e-5
            below = loss()
            array[at] = before
            assert got[name][at] == pytest.approx((above - below) / 2e-5, rel=1e-6, abs=1e-7)


def test_the_gradient_of_a_table_sums_dbias(arrays):
    table = normal(6, H, 2 * T - 1)
    mod = qkv.score_mod(lambda s, at: s + table[at.h, at.i - at.j + T - 1])
    got = backward(arrays, mod, bias=np.zeros((B, H, T, T)), window=(9, 4))
    want = np.zeros_like(table)
    i, j = np.indices((T, T))
    for h in range(H):
        np.add.at(want[h], i - j + T - 1, got.dbias[:, h].sum(0))
    np.testing.assert_allclose(got.dcaptured["table"], want, rtol=1e-10, atol=1e-12)


def test_gradients_have_the_arrays_dtype_and_equal_bits_for_any_threads(arrays):
    arrays = [x.astype(np.float32) for x in arrays]
    table = normal(6, H, 2 * T - 1).astype(np.float32)
    mod = qkv.score_mod(lambda s, at: s * table[at.h, at.i - at.j + T - 1])
    one = backward(arrays, mod, threads=1).dcaptured["table"]
    several = backward(arrays, mod, threads=3).dcaptured["table"]
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, several)


def test_wanted_names_select_and_repeated_names_get_a_number(arrays):
    first, other, document = normal(5, H), normal(6, H), np.arange(T) // 9
    again = qkv.captured(other, "first")
    mod = qkv.score_mod(
        lambda s, at: s * first[at.h] + again[at.h] * (document[at.i] == document[at.j])
    )
    got = backward(arrays, mod)
    assert list(got.dcaptured) == ["first", "first_2"]  # integers have no gradient
    one = backward(arrays, mod, wanted=["dcaptured.first_2"])
    assert one.dq is None and list(one.dcaptured) == ["first_2"]
    np.testing.assert_array_equal(one.dcaptured["first_2"], got.dcaptured["first_2"])
    assert list(backward(arrays, mod, wanted=["dcaptured"]).dcaptured) == ["first", "first_2"]
    assert backward(arrays, mod, wanted=["dq"]).dcaptured is None
    twice = backward(arrays, mod, add_to=got)
    assert twice.dcaptured["first"] is got.dcaptured["first"]
    np.testing.assert_allclose(twice.dcaptured["first_2"], 2 * one.dcaptured["first_2"])


def test_wanted_gradients_that_do_not_exist_are_errors(arrays):
    plain = qkv.score_mod(lambda s, at: s * 2)
    assert backward(arrays, plain).dcaptured is None
    with pytest.raises(ValueError, match="wanted names dcaptured, but the call has no captured"):
        backward(arrays, plain, wanted=["dcaptured"])
    with pytest.raises(ValueError, match="wanted names dcaptured.x, but the call has no"):
        backward(arrays, plain, wanted=["dcaptured.x"])
    with pytest.raises(ValueError, match="may name dq, .* and dcaptured"):
        backward(arrays, plain, wanted=["captured"])


def test_a_relative_bias_is_learned(arrays):
    q, k, v, _ = (x.astype(np.float32) for x in arrays)
    expected = np.linspace(-1.5, 1.5, 2 * T - 1, dtype=np.float32)
    table = np.zeros_like(expected)
    mod = qkv.score_mod(lambda s, at: s + table[at.i - at.j + T - 1])
    target = qkv.attention(q, k, v, score_mod=lambda s, at: s + expected[at.i - at.j + T - 1])
    losses = []
    for _ in range(150):
        out, lse = qkv.attention(q, k, v, score_mod=mod, return_lse=True)
        losses.append(float(np.square(out - target).sum()))
        got = qkv.attention_backward(
            2 * (out - target), q, k, v, out, lse, score_mod=mod, wanted=["dcaptured"]
        )
        table -= 0.06 * got.dcaptured["table"]  # in place: the next call reads it
    assert losses[-1] < losses[0] / 50


# ---- through layers -----------------------------------------------------------------------------


def test_gradients_of_a_layer_are_those_of_the_function(arrays):
    q, k, v, dout = arrays
    table = normal(6, H, 2 * T - 1)
    mod = qkv.score_mod(lambda s, at: s + table[at.h, at.i - at.j + T - 1])
    layer = qkv.DotProductAttention()
    layer.forward(q, k, v, score_mod=mod, causal=True)
    got = layer.backward(dout)
    want = backward(arrays, mod, causal=True)
    assert list(got.dcaptured) == ["table"]
    assert np.array_equal(got.dcaptured["table"], want.dcaptured["table"])
    assert np.array_equal(got.dq, want.dq)
    layer.forward(q, k, v)
    assert layer.backward(dout).dcaptured is None


@pytest.mark.parametrize("name", ["MultiHeadAttention", "SelfAttention", "AdditiveAttention"])
def test_gradients_of_layers_equal_differences_of_the_loss(name):
    slope, dout = np.array([0.5, 0.25]), normal(7, 2, 5, 6)
    x = normal(8, 2, 5, 6)
    layer = {
        "MultiHeadAttention": lambda: qkv.MultiHeadAttention(6, 2, seed=3, dtype="float64"),
        "SelfAttention": lambda: qkv.SelfAttention(6, seed=3, dtype="float64"),
        "AdditiveAttention": lambda: qkv.AdditiveAttention(6, 6, 4, seed=3, dtype="float64"),
    }[name]()
    inputs = (x,) if name == "SelfAttention" else (x, x, x)

    def out():
        return layer.forward(*inputs, score_mod=lambda s, at: s - slope[at.h] * abs(at.i - at.j))

    out()
    got = layer.backward(dout).dcaptured["slope"]
    for head in range(2 if name == "MultiHeadAttention" else 1):
        slope[head] += 1e-5
        above = np.sum(dout * out())
        slope[head] -= 2e-5
        below = np.sum(dout * out())
        slope[head] += 1e-5
        assert got[head] == pytest.approx((above - below) / 2e-5, rel=1e-6, abs=1e-8)
        assert abs(got[head]) > 1e-3
