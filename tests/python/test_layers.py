# SPDX-License-Identifier: Apache-2.0
"""Tests the layers' values by NumPy formulas, gradients by differences, and dropout."""

import numpy as np
import pytest
from layer_formulas import CASES, DROPPING, of_inputs

EPS = np.finfo(np.float64).eps


def masks_of(arrays, which):
    """The options of a forward pass, and the pairs that they do not mask, bool [B,Tq,Tk]."""
    tq, tk = arrays[0].shape[-2], arrays[-1].shape[-2]
    batch = arrays[0].shape[:-2]
    i, j = np.arange(tq)[:, None] + tk - tq, np.arange(tk)
    keep = np.ones((*batch, tq, tk), bool)
    if which == "none":
        return {}, keep
    if which == "key_lengths":
        lengths = np.array([4, 2])
        return {"key_lengths": lengths}, keep & (j < lengths[:, None, None])
    if which == "causal":
        return {"causal": True}, keep & (j <= i)
    if which == "window":
        return {"window": (1, 0)}, keep & (j >= i - 1) & (j <= i)
    if which == "padding_mask":
        padding = np.zeros((*batch, tk), bool)
        padding[0, -2:] = True
        return {"padding_mask": padding}, keep & ~padding[:, None, :]
    some = np.random.default_rng(9).random(keep.shape[-2:]) < 0.7
    return {"mask": some, "key_lengths": [5, 3]}, keep & some & (j < np.array([[[5]], [[3]]]))


@pytest.mark.parametrize(
    "which", ["none", "key_lengths", "causal", "window", "padding_mask", "mask and lengths"]
)
@pytest.mark.parametrize("name", CASES)
def test_forward_is_the_formula(name, which):
    case = CASES[name]
    layer, arrays = case.make(), case.arrays(7)
    options, keep = masks_of(arrays, which)
    out, weights = layer.forward(*arrays, **options, return_weights=True)
    want_out, want_weights = case.formula(layer.parameters(), arrays, keep)
    # The errors are those of sums of at most 12 numbers near 1.
    np.testing.assert_allclose(weights, want_weights, rtol=0, atol=50 * EPS)
    np.testing.assert_allclose(out, want_out, rtol=0, atol=100 * EPS)
    np.testing.assert_array_equal(layer.forward(*arrays, **options), out)


@pytest.mark.parametrize("name", CASES)
def test_rank_2_is_a_batch_of_one(name):
    case = CASES[name]
    layer, arrays = case.make(), case.arrays(7, batch=(1,))
    flat = [array[0] for array in arrays]
    np.testing.assert_array_equal(layer.forward(*flat), layer.forward(*arrays)[0])
    want = layer.backward(np.ones_like(layer.forward(*arrays)))
    got = layer.backward(np.ones_like(layer.forward(*flat)))
    for one, other in zip(of_inputs(got), of_inputs(want)):
        np.testing.assert_array_equal(one, other[0])
    for parameter, gradient in got.parameters.items():
        np.testing.assert_array_equal(gradient, want.parameters[parameter])


def test_leading_axes_broadcast():
    layer = CASES["split"].make()
    q, k, v = CASES["split"].arrays(7, batch=(2, 3))
    want = layer.forward(q, np.broadcast_to(k[1, 2], k.shape), np.broadcast_to(v[1], v.shape))
    assert want.shape == (2, 3, 3, 6)
    np.testing.assert_array_equal(layer.forward(q, k[1, 2], v[1]), want)


def test_requested_results_agree_with_each_other():
    layer = CASES["split"].make()
    arrays = CASES["split"].arrays(7)
    out, weights, scores, lse, row_max, sums, top = layer.forward(
        *arrays, return_weights=True, return_scores="masked", return_lse=True,
        return_row_max=True, return_column_sums=True, return_top=2,
    )  # fmt: skip
    assert out.shape == (2, 3, 6)
    np.testing.assert_allclose(np.exp(scores - lse[..., None]), weights, rtol=1e-14)
    np.testing.assert_array_equal(scores.max(-1), row_max)
    np.testing.assert_allclose(weights.sum(-2), sums, rtol=1e-14)
    np.testing.assert_array_equal(np.sort(weights, -1)[..., :2:-1], top[0])
    np.testing.assert_array_equal(np.take_along_axis(weights, top[1], -1), top[0])


# ---- gradients --------------------------------------------------------------------------------


def differences(loss, x):
    """Central differences; with h = cbrt(eps), rounding and truncation errors are near 4e-11."""
    result = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        at = x[place]
        h = EPS ** (1 / 3) * max(1.0, abs(at))
        x[place] = at + h
        high = loss()
        x[place] = at - h
        low = loss()
        x[place] = at
        result[place] = (high - low) / (2 * h)
    return result


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences(name, train):
    case = CASES[name]
    layer = case.make() if name == "self" else case.make(dropout=0.3)
    arrays = case.arrays(11)
    options = {"key_lengths": [4, 5], "return_weights": True, "return_lse": True}
    options.update({"train": True, "seed": 5} if train else {})
    rng = np.random.default_rng(3)
    factors = [rng.normal(size=r.shape) for r in layer.forward(*arrays, **options)]

    def loss():
        results = layer.forward(*arrays, **options)
        return sum((f * r).sum() for f, r in zip(factors, results))

    loss()
    dout, dweights, dlse = factors
    gradients = layer.backward(dout, dlse=dlse, dweights=dweights)
    parameters = gradients.parameters
    for array, gradient in zip(arrays, of_inputs(gradients)):
        np.testing.assert_allclose(gradient, differences(loss, array), rtol=0, atol=2e-8)
    assert list(parameters) == list(layer.parameters())
    for parameter, value in layer.parameters().items():
        want = differences(loss, value)
        np.testing.assert_allclose(parameters[parameter], want, rtol=0, atol=2e-8)
        # The gradient of the keys' bias is 0: the softmax cancels this bias.
        assert np.abs(want).max() > 1e-6 or parameter == "fc_k.bias"


def test_one_array_for_three_gives_three_gradients():
    layer = CASES["split"].make()
    (x, *_) = CASES["split"].arrays(7)
    out = layer.forward(x, x, x)
    shared = layer.backward(np.ones_like(out))
    layer.forward(x, x.copy(), x.copy())
    for got, want in zip(shared[:3], layer.backward(np.ones_like(out))[:3]):
        np.testing.assert_array_equal(got, want)


# ---- dropout ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_drawn_from_seed_and_step(name):
    case = CASES[name]
    layer, arrays = case.make(dropout=0.5), case.arrays(13, tq=8, tk=16)

    def dropped(layer, **options):
        return layer.forward(*arrays, **options, return_weights="dropped")[1]

    undropped = layer.forward(*arrays, return_weights=True)[1]
    first, second = dropped(layer, train=True, seed=7), dropped(layer, train=True)
    assert 0.3 < np.mean(first == 0) < 0.7
    np.testing.assert_allclose(first, np.where(first == 0, 0, 2 * undropped), rtol=1e-14)
    assert np.any(first != second)
    np.testing.assert_array_equal(dropped(layer), undropped)  # evaluation does not advance the step
    np.testing.assert_array_equal(dropped(layer, seed=3), undropped)  # evaluation ignores the seed
    third = dropped(layer, train=True)

    again = case.make(dropout=0.5)
    np.testing.assert_array_equal(dropped(again, train=True, seed=7), first)
    np.testing.assert_array_equal(dropped(again, train=True, threads=1), second)
    np.testing.assert_array_equal(dropped(again, train=True), third)
    np.testing.assert_array_equal(dropped(again, train=True, seed=7), first)
    assert np.any(dropped(again, train=True, seed=8) != first)


@pytest.mark.parametrize("name", DROPPING)
def test_the_first_training_pass_needs_a_seed(name):
    case = CASES[name]
    layer, arrays = case.make(dropout=0.5), case.arrays(13)
    with pytest.raises(ValueError, match=r"\.forward: seed must be given with the first train=T"):
        layer.forward(*arrays, train=True)
    with pytest.raises(ValueError, match="key_lengths"):
        layer.forward(*arrays, [99, 1], train=True, seed=1)
    with pytest.raises(ValueError, match="seed must be given"):  # a failed pass sets no seed
        layer.forward(*arrays, train=True)
    case.make(dropout=0.0).forward(*arrays, train=True)  # without dropout no seed is needed


def test_the_default_dropout_depends_on_the_form():
    assert CASES["split"].make().config["dropout"] == 0.1
    assert CASES["wide"].make().config["dropout"] == 0
    assert CASES["wide"].make(dropout=0.4).config["dropout"] == 0.4


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_absent_gradients_of_results_count_as_zero(name, train):
    case = CASES[name]
    layer = case.make() if name == "self" else case.make(dropout=0.3)
    options = {"key_lengths": [4, 5], "return_weights": True, "return_lse": True}
    options.update({"train": True, "seed": 5} if train else {})
    results = layer.forward(*case.arrays(11), **options)
    rng = np.random.default_rng(3)
    dout, dweights, dlse = (rng.normal(size=r.shape) for r in results)
    nothing = [np.zeros_like(r) for r in results]
    for given in ({"dlse": dlse}, {"dweights": dweights}, {"dlse": dlse, "dweights": dweights}):
        got = layer.backward(None, **given)
        want = layer.backward(nothing[0], **{"dweights": nothing[1], "dlse": nothing[2], **given})
        assert np.abs(got[0]).max() > 1e-6
        for one, other in zip(of_inputs(got), of_inputs(want)):
            np.testing.assert_array_equal(one, other)
        for parameter, gradient in got.parameters.items():
            np.testing.assert_array_equal(gradient, want.parameters[parameter])
    with pytest.raises(ValueError, match="backward: dout, dlse and dweights are absent"):
        layer.backward(None)
