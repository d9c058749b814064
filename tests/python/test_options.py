# SPDX-License-Identifier: Apache-2.0
"""Tests options and results, each against an equivalent call that does not use it."""

import pickle
import re

import numpy as np
import pytest
from random_calls import needs_torch, torch

import qkv

B, H, G, TQ, TK, D, E = 2, 4, 2, 3, 5, 4, 6


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


Q, K, V = draw(B, H, TQ, D), draw(B, G, TK, D, seed=1), draw(B, G, TK, E, seed=2)


def saved(**options):
    return qkv.attention(Q, K, V, return_lse=True, **options)


def backward(out, lse, q=Q, k=K, v=V, **options):
    return qkv.attention_backward(draw(*out.shape, seed=3), q, k, v, out, lse, **options)


def assert_equal(got, want):
    assert got._fields == want._fields
    for name, x, y in zip(got._fields, got, want):
        assert (x is None) == (y is None), name
        if isinstance(x, dict):
            assert x.keys() == y.keys()
            for key, array in x.items():
                np.testing.assert_array_equal(array, y[key], err_msg=key)
        elif x is not None:
            np.testing.assert_array_equal(x, y, err_msg=name)


# ---- results -------------------------------------------------------------------------------------


def test_results_have_names():
    results = qkv.attention(Q, K, V, return_weights=True, return_lse=True, return_top=2)
    assert results._fields == ("out", "weights", "lse", "top")
    assert results.weights is results[1] and results.top[1].dtype == np.int64
    out, weights, lse, (top_weights, top_keys) = results
    assert top_keys is results.top[1] and lse.shape == (B, H, TQ)
    assert qkv.attention(Q, K, None, return_lse=True)._fields == ("lse",)
    assert isinstance(qkv.attention(Q, K, V), np.ndarray)
    again = pickle.loads(pickle.dumps(results))
    assert type(again) is type(results)
    np.testing.assert_array_equal(again.weights, weights)
    assert results._asdict().keys() == set(results._fields)
    layer = qkv.DotProductAttention()
    assert layer.forward(Q, K, V, return_lse=True)._fields == ("out", "lse")


def test_an_absent_result_says_how_to_request_it():
    results = qkv.attention(Q, K, V, return_lse=True)
    text = "these results have no 'weights', but out, lse; request it by return_weights=True"
    with pytest.raises(AttributeError, match=f"^{text}$"):
        _ = results.weights
    with pytest.raises(AttributeError, match="^these results have no 'wieghts', but out, lse$"):
        _ = results.wieghts
    assert not hasattr(results, "shape")


def test_weights_before_and_after_dropout_together():
    options = {"dropout": 0.5, "seed": 7}
    both = qkv.attention(Q, K, V, **options, return_weights="both")
    assert both._fields == ("out", "weights", "dropped_weights")
    np.testing.assert_array_equal(both.weights, qkv.attention(Q, K, V, return_weights=True).weights)
    dropped = qkv.attention(Q, K, V, **options, return_weights="dropped")
    np.testing.assert_array_equal(both.dropped_weights, dropped.weights)
    assert np.any(both.weights != both.dropped_weights)


def test_several_stages_of_scores():
    options = {"softcap": 1.5, "causal": True}
    got = qkv.attention(Q, K, V, **options, return_scores=("masked", "raw"))
    assert got._fields == ("out", "raw_scores", "masked_scores")
    for kind in ("raw", "masked"):
        want = qkv.attention(Q, K, V, **options, return_scores=kind).scores
        np.testing.assert_array_equal(getattr(got, f"{kind}_scores"), want)
    assert qkv.attention(Q, K, V, return_scores=["capped"])._fields == ("out", "capped_scores")
    assert isinstance(qkv.attention(Q, K, V, return_scores=()), np.ndarray)
    with pytest.raises(ValueError, match="must name a stage once, got str 'raw' twice"):
        qkv.attention(Q, K, V, return_scores=("raw", "raw"))
    with pytest.raises(ValueError, match='return_scores must be None, "raw", "capped" or "masked"'):
        qkv.attention(Q, K, V, return_scores=("raw", "row"))


@pytest.mark.parametrize("rows", [[2, 0, 2], np.array([1]), (), np.array([], np.int32)])
def test_rows_are_those_of_the_matrix(rows):
    asked = {"return_weights": "both", "return_scores": ("raw", "masked"), "causal": True}
    whole = qkv.attention(Q, K, V, **asked)
    some = qkv.attention(Q, K, V, **asked, rows=rows)
    index = np.asarray(rows, int)
    for name in ("weights", "dropped_weights", "raw_scores", "masked_scores"):
        np.testing.assert_array_equal(getattr(some, name), getattr(whole, name)[:, :, index])
    np.testing.assert_array_equal(some.out, whole.out)
    layer = qkv.DotProductAttention().forward(Q, K, V, return_weights=True, causal=True, rows=rows)
    np.testing.assert_array_equal(layer.weights, some.weights)


def test_gradients_of_the_weights_of_rows():
    out, lse = saved()
    rows = [2, 0, 2]
    dweights = draw(B, H, 3, TK, seed=5)
    whole = np.zeros((B, H, TQ, TK))
    np.add.at(whole, (slice(None), slice(None), rows), dweights)
    got = backward(out, lse, dweights=dweights, rows=rows)
    for x, y in zip(got[:3], backward(out, lse, dweights=whole)[:3]):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)

    layer = qkv.DotProductAttention()
    layer.forward(Q, K, V, return_weights=True, rows=rows)
    of_layer = layer.backward(draw(*out.shape, seed=3), dweights=dweights)
    for x, y in zip(got[:3], of_layer):
        np.testing.assert_array_equal(x, y)


def test_rows_without_a_matrix_are_refused():
    with pytest.raises(
        ValueError, match="rows names the queries of weights or scores, but neither"
    ):
        qkv.attention(Q, K, V, rows=[0])
    out, lse = saved()
    with pytest.raises(ValueError, match="attention_backward: rows is given but dweights is not"):
        backward(out, lse, rows=[0])


# ---- the diagonal, windows, slopes ---------------------------------------------------------------

ROW, J = np.arange(TQ)[:, None], np.arange(TK)


@pytest.mark.parametrize("offset", [1, np.array([0, -2]), [3, 1]])
def test_an_offset_without_causal(offset):
    o = np.broadcast_to(np.asarray(offset), (B,))[:, None, None, None]
    inside = (ROW + o - 1 <= J) & (ROW + o + 2 >= J)
    got = qkv.attention(Q, K, V, window=(1, 2), causal_offset=offset)
    np.testing.assert_array_equal(got, qkv.attention(Q, K, V, mask=inside))
    slopes = np.array([0.5, 0.25, 0.125, 2.0])
    bias = -slopes[:, None, None] * np.abs(ROW + o - J)
    got = qkv.attention(Q, K, V, alibi_slopes=slopes, causal_offset=offset)
    np.testing.assert_array_equal(got, qkv.attention(Q, K, V, bias=bias))
    np.testing.assert_array_equal(
        qkv.attention(Q, K, V, causal_offset=offset), qkv.attention(Q, K, V)
    )


@pytest.mark.parametrize("causal", [False, True, "top_left"])
def test_slopes_of_each_batch_entry(causal):
    slopes = np.abs(draw(B, H, seed=4))
    options = {"causal": causal}
    out, lse = saved(alibi_slopes=slopes, **options)
    got = backward(out, lse, alibi_slopes=slopes, **options)
    assert got.dalibi_slopes.shape == (B, H)
    for b in range(B):
        one = [x[b : b + 1] for x in (Q, K, V)]
        part = {"alibi_slopes": slopes[b], **options}
        want, lse_b = qkv.attention(*one, return_lse=True, **part)
        np.testing.assert_array_equal(out[b : b + 1], want)
        dout = draw(*out.shape, seed=3)[b : b + 1]
        d = qkv.attention_backward(dout, *one, want, lse_b, **part)
        np.testing.assert_array_equal(got.dq[b : b + 1], d.dq)
        np.testing.assert_array_equal(got.dalibi_slopes[b], d.dalibi_slopes)
    with pytest.raises(
        ValueError, match=r"shape \[H\] = \[4\] or \[B,H\] = \[2,4\], got .* \[4,2\]"
    ):
        qkv.attention(Q, K, V, alibi_slopes=slopes.T)


@pytest.mark.parametrize(
    "window",
    [(1, None), [1, None], (1, -1), np.array([1, -1]), (np.int8(1), None), [np.array(1), -1]],
    ids=repr,
)
def test_forms_of_a_window(window):
    want = qkv.attention(Q, K, V, mask=J >= ROW + TK - TQ - 1)
    np.testing.assert_array_equal(qkv.attention(Q, K, V, window=window), want)
    np.testing.assert_array_equal(
        qkv.attention(Q, K, V, window=(None, None)), qkv.attention(Q, K, V)
    )


@needs_torch
def test_windows_of_tensors():
    want = qkv.attention(Q, K, V, window=(1, 0))
    for window in (torch.tensor([1, 0]), (torch.tensor(1), torch.tensor(0))):
        np.testing.assert_array_equal(qkv.attention(Q, K, V, window=window), want)
    with pytest.raises(TypeError, match=r"window\[0\] must be an integer, got float 1.0"):
        qkv.attention(Q, K, V, window=torch.tensor([1.0, 0.0]))


# ---- heads side by side --------------------------------------------------------------------------


def merged(x):
    """x [..,H,T,D] as [..,T,H*D]."""
    return np.ascontiguousarray(x.swapaxes(-2, -3)).reshape(*x.shape[:-3], x.shape[-2], -1)


@pytest.mark.parametrize("heads", [H, (H, G), np.int64(H), [H, G]], ids=repr)
@pytest.mark.parametrize("batch", [True, False])
def test_heads_side_by_side(heads, batch):
    arrays = (Q, K, V) if batch else (Q[0], K[0], V[0])
    apart = arrays if batch else tuple(x[None] for x in arrays)
    options = {"causal": True, "key_lengths": [5, 2] if batch else [4]}
    want = qkv.attention(*apart, **options, return_weights=True, return_lse=True)
    flat = [merged(x) for x in arrays]
    got = qkv.attention(*flat, **options, heads=heads, return_weights=True, return_lse=True)
    assert got.out.shape == (*((B,) if batch else ()), TQ, H * E)
    np.testing.assert_array_equal(got.out, merged(want.out if batch else want.out[0]))
    np.testing.assert_array_equal(got.weights, want.weights)
    np.testing.assert_array_equal(got.lse, want.lse)

    dout = draw(*want.out.shape, seed=3)
    d = qkv.attention_backward(dout, *apart, want.out, want.lse, **options)
    dmerged = merged(dout if batch else dout[0])
    e = qkv.attention_backward(dmerged, *flat, got.out, got.lse, heads=heads, **options)
    for x, y, like in zip(e[:3], d[:3], flat):
        assert x.shape == like.shape
        np.testing.assert_array_equal(x, merged(y if batch else y[0]))


def test_heads_side_by_side_of_packed_sequences():
    arrays = [x.swapaxes(1, 2).reshape(-1, *x.shape[1:2], x.shape[3]) for x in (Q, K, V)]
    starts = {"cu_seqlens_q": [0, TQ, 2 * TQ], "cu_seqlens_k": [0, TK, 2 * TK]}
    out, lse = qkv.attention(*arrays, **starts, return_lse=True)
    flat = [x.reshape(len(x), -1) for x in arrays]
    got = qkv.attention(*flat, **starts, heads=H, return_lse=True)
    np.testing.assert_array_equal(got.out, out.reshape(len(out), -1))
    np.testing.assert_array_equal(got.lse, lse)
    dout = draw(*out.shape, seed=3)
    d = qkv.attention_backward(dout, *arrays, out, lse, **starts)
    e = qkv.attention_backward(dout.reshape(got.out.shape), *flat, *got, heads=H, **starts)
    for x, y in zip(e[:3], d[:3]):
        np.testing.assert_array_equal(x, y.reshape(len(y), -1))


def test_heads_of_scores_with_parameters():
    W = draw(D, 3, seed=6)
    k = draw(B, G, TK, 3, seed=7)
    want = qkv.attention(Q, k, V, score="bilinear", params={"W": W})
    flat = [merged(x) for x in (Q, k, V)]
    got = qkv.attention(*flat, score="bilinear", params={"W": W}, heads=(H, G))
    np.testing.assert_array_equal(got, merged(want))


@pytest.mark.parametrize(
    "heads, change, text",
    [
        (3, {}, r"width that 3 heads divide where heads is given, for \[..,T,H\*D\], got f"),
        (4, {"k": draw(B, TK, 6)}, r"k must have a width that is a multiple of D = 4, a head's"),
        ((4, 2), {"v": draw(B, TK, 5)}, "v must have a width that 2 heads divide where"),
        (0, {}, "heads must be 1 or more, got int 0"),
        ((4,), {}, r"heads must be H or a pair \(H, G\), got tuple of length 1"),
        (4.0, {}, "heads must be an integer, got float 4.0"),
        (4, {"layout": "bthd"}, r"heads is for heads side by side, \[B,T,H\*D\], but layout is"),
        (4, {"q": draw(4)}, r"q must be \[..,T,H\*D\] where heads is given, got float64 \[4\]"),
        (
            (4, 3),
            {"k": draw(B, TK, 12), "v": draw(B, TK, 12)},
            "H = 4, which is not a multiple of G = 3",
        ),
    ],
)
def test_wrong_heads(heads, change, text):
    call = {"q": merged(Q), "k": merged(K), "v": merged(V), **change}
    with pytest.raises((TypeError, ValueError), match=f"^attention: .*{text}"):
        qkv.attention(**call, heads=heads)


# ---- gradients -----------------------------------------------------------------------------------

PARAMS = {"Wq": draw(3, D, seed=8), "Wk": draw(3, D, seed=9), "v": draw(3), "b": draw(3, seed=1)}
ALL = {
    "score": "additive",
    "params": PARAMS,
    "bias": draw(TQ, TK, seed=10),
    "alibi_slopes": draw(H, seed=11),
    "sinks": draw(H, seed=12),
}


@pytest.mark.parametrize(
    "wanted",
    [
        ("dq",),
        ["dv", "dk"],
        ("dparams",),
        ("dparams.Wk", "dparams.b"),
        ("dbias", "dsinks"),
        ("dalibi_slopes",),
    ],
    ids=repr,
)
def test_only_wanted_gradients_are_computed(wanted):
    out, lse = saved(**ALL)
    whole = backward(out, lse, **ALL)
    got = backward(out, lse, **ALL, wanted=wanted)
    params = {n: x for n, x in whole.dparams.items() if {"dparams", f"dparams.{n}"} & set(wanted)}
    want = {name: x if name in wanted else None for name, x in whole._asdict().items()}
    want["dparams"] = params or None
    assert_equal(got, qkv.Gradients(**want))


@pytest.mark.parametrize(
    "wanted, text",
    [
        (("dx",), "wanted may name dq, dk, dv, dbias, dparams .*, got str 'dx'"),
        (("dbias",), "wanted names dbias, but the call has no bias"),
        (("dparams",), "wanted names dparams, but the call has no params"),
        (("dparams.W",), "wanted names dparams.W, but the call has no params.W"),
        ("dq", "wanted must be a tuple or list of names, got str 'dq'"),
        ((1,), "wanted must be names, got int 1"),
        ((), "wanted names no gradient, so there is nothing to compute$"),
    ],
)
def test_wrong_names_of_gradients(wanted, text):
    out, lse = saved()
    with pytest.raises((TypeError, ValueError), match=f"^attention_backward: {text}"):
        backward(out, lse, wanted=wanted)


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_torch)])
def test_gradients_are_added_to_others(kind):
    of_kind = torch.from_numpy if kind == "torch" else np.copy
    out, lse = saved(**ALL)
    whole = backward(out, lse, **ALL)
    add_to = qkv.Gradients(
        dq=of_kind(whole.dq.copy()),
        dk=None,
        dv=of_kind(np.asfortranarray(whole.dv).copy(order="F")),
        dbias=of_kind(whole.dbias.copy()),
        dparams={"Wk": of_kind(whole.dparams["Wk"].copy())},
        dalibi_slopes=None,
        dsinks=of_kind(whole.dsinks.copy()),
    )
    got = backward(out, lse, **ALL, add_to=add_to)
    assert got.dq is add_to.dq and got.dk is None and list(got.dparams) == ["Wk"]
    for x, y in [
        (got.dq, whole.dq),
        (got.dv, whole.dv),
        (got.dbias, whole.dbias),
        (got.dparams["Wk"], whole.dparams["Wk"]),
        (got.dsinks, whole.dsinks),
    ]:
        np.testing.assert_array_equal(np.asarray(x), 2 * y)


def test_gradients_are_added_with_heads_side_by_side():
    flat = [merged(x) for x in (Q, K, V)]
    out, lse = qkv.attention(*flat, heads=H, return_lse=True)
    first = backward(out, lse, *flat, heads=H)
    before = [x.copy() for x in first[:3]]
    second = backward(out, lse, *flat, heads=H, add_to=first)
    for x, y, z in zip(second[:3], before, first[:3]):
        assert x is z
        np.testing.assert_array_equal(x, 2 * y)


def test_wrong_arrays_to_add_to_are_refused():
    out, lse = saved()
    good = backward(out, lse)

    def changed(**change):
        return good._replace(**change)

    frozen = good.dq.copy()
    frozen.flags.writeable = False
    for add_to, text in [
        (changed(dq=frozen), "add_to dq must be an array of NumPy or PyTorch that can be written"),
        (changed(dq=good.dq.astype(">f8")), "add_to dq must be an array .* that can be written to"),
        (
            changed(dq=good.dq[:, :1].copy()),
            r"add_to dq must have the shape and dtype of its source, f",
        ),
        (changed(dk=good.dk.astype("f4")), "add_to dk must have the shape and dtype of its source"),
        (changed(dbias=np.ones(3)), "add_to names dbias, but the call has no bias"),
        (qkv.Gradients(*[None] * 7), "add_to must hold at least one array"),
        (changed(dparams=[1]), "add_to must have a dict of arrays as dparams, got list"),
        ({"dq": good.dq}, "add_to must be Gradients, got dict"),
        (changed(dq=[1.0]), "add_to dq must be an array"),
    ]:
        with pytest.raises((TypeError, ValueError), match=f"^attention_backward: {text}"):
            backward(out, lse, add_to=add_to)
    with pytest.raises(ValueError, match="wanted is given, but add_to already names the requested"):
        backward(out, lse, add_to=good, wanted=("dq",))
    with pytest.raises(ValueError, match=r"input_gradients\.q must not share memory with q \("):
        backward(out, lse, add_to=changed(dq=Q))


# ---- advice in errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: qkv.attention(Q, K, V, maks=None),
            r"attention\(\) .* 'maks'. Did you mean 'mask'\?",
        ),
        (lambda: qkv.attention(Q, K, V, is_causal=True), r"'is_causal'. Did you mean 'causal'\?"),
        (lambda: qkv.attention(Q, K, V, valid_len=[1]), r"Did you mean 'key_lengths'\?"),
        (
            lambda: qkv.attention(Q, K, V, attn_mask=1),
            r"Did you mean 'mask' \(bool\) or 'bias' \(numbers\)\?$",
        ),
        (lambda: qkv.attention(Q, K, V, enable_gqa=True), r"mean 'k' with .* option is needed\?$"),
        (lambda: qkv.attention(Q, K, V, zzz=1), r"unexpected keyword argument 'zzz'$"),
        (lambda: qkv.softmax(Q, axis=1), r"softmax\(\) got an unexpected keyword argument 'axis'"),
        (lambda: qkv.masked_softmax(Q, valid_lens=1), r"Did you mean 'valid_len'\?"),
        (lambda: qkv.batch_dot(Q, K, tranpose_b=True), r"Did you mean 'transpose_[ab]'\?"),
        (lambda: qkv.MultiHeadAttention(8, num_heads=2), r"__init__\(\) .* Did you mean 'heads'\?"),
        (lambda: qkv.DotProductAttention().forward(Q, K, V, valid_len=1), "mean 'key_lengths'"),
        (lambda: qkv.GRU(2, 3, bidirect=True), r"Did you mean 'bidirectional'\?"),
    ],
)
def test_errors_of_unknown_keywords_name_the_one_that_was_meant(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_other_type_errors_stay_as_they_are():
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'v'$"):
        qkv.attention(Q, K)
    with pytest.raises(TypeError, match="^attention: scale must be a number, got str 'a'$"):
        qkv.attention(Q, K, V, scale="a")


@pytest.mark.parametrize(
    "options, text",
    [
        (
            {"mask": np.ones((B, TK), bool)},
            r"; for one row .* write mask\[:, None, None\], or padding_",
        ),
        ({"mask": np.ones((B, TQ, TK), bool)}, r"; for one matrix .* write mask\[:, None\]$"),
        ({"bias": np.ones((B, TK))}, r"write bias\[:, None, None\], or padding_mask"),
        ({"mask": np.ones((9, 9), bool)}, r"got bool \[9,9\]$"),
    ],
)
def test_masks_that_do_not_fit_get_advice(options, text):
    with pytest.raises(ValueError, match=text):
        qkv.attention(Q, K, V, **options)


def test_masks_of_calls_without_heads_get_advice():
    q, k, v = (draw(B, t, D) for t in (TQ, TK, TK))
    with pytest.raises(
        ValueError, match=r"write mask\[:, None\], or padding_mask \(true where pad"
    ):
        qkv.attention(q, k, v, mask=np.ones((B, TK), bool))


def test_arrays_with_the_heads_third_get_advice():
    q, k, v = (draw(B, t, h, D) for t, h in ((10, 4), (12, 2), (12, 2)))
    with pytest.raises(ValueError, match=r'not a multiple of G = 12 .*; arrays .* layout="bthd"$'):
        qkv.attention(q, k, v)
    q, k, v = (draw(B, h, t, D) for t, h in ((10, 3), (12, 2), (12, 2)))
    with pytest.raises(ValueError, match=r"not a multiple of G = 2 \(q .*\)$"):
        qkv.attention(q, k, v)


def scores_of_the_library():
    """The names of scores in the error for an unknown score."""
    with pytest.raises(ValueError, match="score must be") as caught:
        qkv.attention(Q, K, V, score="?")
    return set(re.findall(r'"(\w+)"', str(caught.value)))


@needs_torch
def test_the_judge_draws_every_score():
    import judge_cases

    assert scores_of_the_library() == set(judge_cases.SCORES)
