# SPDX-License-Identifier: Apache-2.0
"""Tests results and gradients with qkv.score_mod and qkv.mask_mod.

NumPy evaluates the functions on whole matrices of scores for the expected values.
"""

import math

import numpy as np
import pytest

import qkv

B, H, TQ, TK, D, E = 2, 4, 11, 13, 8, 5
RANDOM = np.random.default_rng(45)
Q = RANDOM.standard_normal((B, H, TQ, D))
K = RANDOM.standard_normal((B, H, TK, D))
V = RANDOM.standard_normal((B, H, TK, E))
DOUT = RANDOM.standard_normal((B, H, TQ, E))
DLSE = RANDOM.standard_normal((B, H, TQ))

SLOPE = np.array([0.5, 0.25, 0.125, 0.0625])
TABLE = RANDOM.standard_normal((H, 2 * TK))  # read at i - j + TK - 1
POSITIVE = RANDOM.uniform(0.5, 2, (TQ, TK))
SINGLE = TABLE.astype(np.float32)
STRIDED = RANDOM.standard_normal((2 * TK, 3))[::-2, 1]
DOCUMENT = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3])
BYTES = DOCUMENT.astype(np.uint8)
ALLOWED = RANDOM.random((H, TK)) < 0.7
TEMPERATURE = np.array(0.75)
PREFIX = np.array([3, 7])


def places():
    """The indices of all query-key pairs, as arrays that broadcast to [B,H,Tq,Tk]."""
    sizes = (B, H, TQ, TK)
    return qkv.At(*(np.arange(n).reshape([-1 if m == axis else 1 for m in range(4)])
                    for axis, n in enumerate(sizes)), TQ, TK)  # fmt: skip


def scores():
    return Q @ K.swapaxes(-1, -2) / math.sqrt(D)


def expected(score, slope, keep):
    """out, lse, dq, dk, dv of softmax(score) v, whose scores have the derivative `slope`."""
    with np.errstate(invalid="ignore"):
        s = np.broadcast_to(np.where(keep, score, -np.inf), (B, H, TQ, TK))
        largest = np.maximum(s.max(-1, keepdims=True), -1e300)
        e = np.exp(s - largest)
    total = e.sum(-1, keepdims=True)
    w = e / np.where(total == 0, 1, total)
    out = w @ V
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, largest + np.log(total), -np.inf)[..., 0]
    dw = DOUT @ V.swapaxes(-1, -2)
    ds = w * (dw - (w * dw).sum(-1, keepdims=True) + DLSE[..., None]) * slope / math.sqrt(D)
    return out, lse, ds @ K, ds.swapaxes(-1, -2) @ Q, w.swapaxes(-1, -2) @ DOUT


def computed(**options):
    out, lse = qkv.attention(Q, K, V, **options, return_lse=True)
    dlse = np.where(np.isfinite(lse), DLSE, 0)
    got = qkv.attention_backward(DOUT, Q, K, V, out, lse, dlse=dlse, **options)
    return out, lse, got.dq, got.dk, got.dv


def assert_near(got, want):
    for one, other in zip(got, want):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def slope_of(f, s):
    """The derivative of f at s, by a complex step."""
    return np.broadcast_to(f(s + 1e-30j, places()), s.shape).imag / 1e-30


# ---- scores --------------------------------------------------------------------------------------

ONE = np.ones((1, 1, 1, 1))

# {name: (f, its derivative, or None to take it by a complex step)}
SCORES = {
    "s": (lambda s, at: s, None),
    "add": (lambda s, at: s + at.i, None),
    "add to a constant": (lambda s, at: 3 + s, None),
    "subtract": (lambda s, at: s - 0.5 * at.j, None),
    "subtract from": (lambda s, at: at.h - s, None),
    "multiply": (lambda s, at: s * s * 0.3, None),
    "multiply a constant": (lambda s, at: 2 * s, None),
    "divide": (lambda s, at: s / (1 + at.j), None),
    "divide a constant": (lambda s, at: 2 / (s * s + 1), None),
    "divide integers": (lambda s, at: s + (at.i - 5) / (at.j + 1), None),
    "floor-divide integers": (lambda s, at: s + (at.i - 5) // 3 + (at.i - 5) // (-2 - at.j), None),
    "floor-divide numbers": (lambda s, at: s + (s // 0.25), lambda s, at: ONE),
    "floor-divide a constant": (lambda s, at: s + 7 // (at.j + 1), None),
    "remainder of integers": (lambda s, at: s + (at.i - at.j) % 4 + (at.i - at.j) % -3, None),
    "remainder of numbers": (lambda s, at: s % 0.7 + s % -0.4, lambda s, at: 2 * ONE),
    "remainder of a constant": (lambda s, at: s + 17 % (at.j + 1), None),
    "negative": (lambda s, at: -s, None),
    "positive": (lambda s, at: +s + +(at.i > at.j).astype(int), None),
    "absolute": (lambda s, at: abs(s) + abs(at.i - at.j), lambda s, at: np.sign(s)),
    "power": (lambda s, at: s**3 - s**2 + (at.i - at.j) ** 2 * 0.1, None),
    "power 0": (lambda s, at: s**0 + s + (at.i**0), None),
    "power of a constant": (lambda s, at: s - 2 ** (-0.5 * (at.h + 1)) * abs(at.i - at.j), None),
    "negative power": (lambda s, at: s + (1 + s * s) ** -2, None),
    "square root": (lambda s, at: (1 + s * s) ** 0.5 + (1 + s * s) ** -0.5, None),
    "shifts": (lambda s, at: s + ((at.i - 6) << 2) * 0.1 + ((at.i - 6) >> 2), None),
    "bits": (lambda s, at: s + ((at.i - 6) & 3) + (1 & at.j), None),
    "inverted integer": (lambda s, at: s + 0.1 * ~at.j, None),
    "comparisons": (
        lambda s, at: (
            s
            + (at.i < at.j) * 1.0
            + (at.i <= at.j) * 2.0
            + (at.i > 5) * 4.0
            + (at.i >= 5) * 8.0
            + (at.i == at.j) * 16.0
            + (at.i != at.h) * 32.0
        ),
        None,
    ),
    "truth values": (
        lambda s, at: np.where(((at.i < at.j) & ~(at.h == 1)) | ((at.b > 0) ^ (at.j > 4)), s, -s),
        None,
    ),
    "truth values of constants": (
        lambda s, at: (
            s + (False | (at.i < at.j)) * 1.0 + (True ^ (at.i < 5)) * 2.0 + (True & (at.j > 4))
        ),
        None,
    ),
    "where": (lambda s, at: np.where(at.j <= at.i, s, 0.5 * s), None),
    "where of s": (lambda s, at: np.where(s > 0, s * s, 3 * s), None),
    "where -inf": (lambda s, at: np.where(at.j <= at.i, s, -np.inf), lambda s, at: ONE),
    "minimum": (lambda s, at: np.minimum(s, 0.1 * at.j), None),
    "maximum": (lambda s, at: np.maximum(s, 0) + np.maximum(at.i, at.j), None),
    "clip": (lambda s, at: np.clip(s, -0.5, 0.5), lambda s, at: abs(s) < 0.5),
    **(
        {"clip by keywords": (lambda s, at: np.clip(s, min=-0.5, max=at.j), None)}
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0"
        else {}
    ),
    "powers": (lambda s, at: np.float_power(2.0, s / 4) + np.power(s, np.int8(2)), None),
    "exp": (lambda s, at: np.exp(s / 4) + np.exp2(s / 4), None),
    "log": (
        lambda s, at: np.log(1 + s * s) + np.log2(2 + s * s) + np.log10(3 + s * s),
        None,
    ),
    "sqrt": (lambda s, at: np.sqrt(1 + s * s), None),
    "tanh": (lambda s, at: 2 * np.tanh(s / 2), None),
    "sin": (lambda s, at: np.sin(s) + np.cos(2 * s), None),
    "tan and sinh": (lambda s, at: np.tan(s / 4) + np.sinh(s) - np.cosh(s / 2), None),
    "log1p": (lambda s, at: np.log1p(s * s) + np.expm1(s / 4), None),
    "rounding": (
        lambda s, at: s + np.round(3 * s) + np.rint(at.i / 2) + np.trunc(2 * s) + np.fix(5 * s),
        lambda s, at: ONE,
    ),
    "sign": (
        lambda s, at: s * np.sign(at.i - at.j) * np.isfinite(s),
        lambda s, at: np.sign(at.i - at.j),
    ),
    "floor": (lambda s, at: s + np.floor(2 * s) + np.ceil(3 * s), lambda s, at: ONE),
    "square": (lambda s, at: np.square(s) * np.reciprocal(1 + s * s), None),
    "NumPy operators": (
        lambda s, at: (
            np.add(s, 1)
            + np.subtract(s, at.i)
            + np.multiply(s, 2)
            + np.divide(s, 3)
            + np.floor_divide(at.i, 2)
            + np.remainder(at.i, 3)
            + np.power(s, 2)
            + np.negative(s)
            + np.positive(s)
            + np.float_power(s, 2)
        ),
        None,
    ),
    "NumPy conditions": (
        lambda s, at: np.where(
            np.logical_or(np.logical_and(np.less(at.i, at.j), np.logical_not(at.h == 1)), at.j == 3)
            | np.logical_xor(np.greater(at.i, 4), np.greater_equal(at.j, 4))
            | np.bitwise_and(np.equal(at.i, 2), np.not_equal(at.j, 2)),
            s,
            np.where(np.bitwise_or(np.less_equal(at.j, 1), at.i == 9), 2 * s, 3 * s),
        ),
        None,
    ),
    "NumPy bits": (
        lambda s, at: (
            s
            + np.left_shift(at.i, 1)
            + np.right_shift(at.j, 1)
            + np.invert(at.h)
            + np.bitwise_xor(at.i > 3, at.j > 3)
        ),
        None,
    ),
    "NumPy absolutes": (
        lambda s, at: np.absolute(s) + np.fabs(at.i - at.j),
        lambda s, at: np.sign(s),
    ),
    "NumPy scalars": (lambda s, at: np.float64(2) * s + np.int64(3) + s * np.float32(0.5), None),
    "casts": (
        lambda s, at: (
            s
            + (2.5 * at.i - 7).astype(int)
            + (at.i - at.j).astype(float) * 0.5
            + (at.i - at.j).astype(bool) * 1.0
        ),
        None,
    ),
    "ALiBi": (lambda s, at: s - SLOPE[at.h] * abs(at.i - at.j), None),
    "soft-cap": (lambda s, at: 1.5 * np.tanh(s / 1.5), None),
    "relative table": (lambda s, at: s + TABLE[at.h, at.i - at.j + TK - 1], None),
    "float32 table": (lambda s, at: s + SINGLE[at.h, at.i - at.j + TK - 1], None),
    "table of tables": (lambda s, at: s * POSITIVE[at.i, at.j] + STRIDED[at.j], None),
    "gathered": (lambda s, at: s + TABLE[at.h, DOCUMENT[at.j] + BYTES[at.i]], None),
    "constant index": (lambda s, at: s + TABLE[0, at.i] + TABLE[-1, at.j] + TABLE[at.h, 2], None),
    "derived array": (lambda s, at: s + (2 * SLOPE[:3])[at.h // 2] + TABLE[:, 3][at.h], None),
    "array without axes": (lambda s, at: s * TEMPERATURE + TEMPERATURE * s, None),
    "no s": (lambda s, at: 0.3 * at.i - 0.2 * at.j, lambda s, at: 0 * ONE),
    "T5": (
        lambda s, at: (
            s
            + TABLE[
                at.h,
                np.where(
                    at.j > at.i,
                    8,
                    np.where(
                        at.i - at.j < 4,
                        at.i - at.j,
                        np.minimum(4 + (np.log(abs(at.i - at.j) / 4 + 1e-9) * 3).astype(int), 7),
                    ),
                ),
            ]
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    f, slope = SCORES[name]
    s = scores()
    with np.errstate(invalid="ignore", divide="ignore"):
        want = f(s, places())
        derivative = slope_of(f, s) if slope is None else slope(s, places())
        keep = want > -np.inf
    assert_near(computed(score_mod=qkv.score_mod(f)), expected(want, derivative, keep))


def test_numpys_functions_at_the_edges():
    # From 2^23 = 8388608 on, all float32 numbers are integers, which rounding must keep.
    numbers = [8388609.0, 16777215.0, -8388609.0, 2.5, 3.5, -0.5, np.nan, np.inf, -np.inf, 0.3]
    table = np.array(numbers, np.float32)

    def result_of(f):
        call = qkv.attention(
            np.zeros((1, 1), np.float32), np.zeros((len(table), 1), np.float32), None,
            score_mod=lambda s, at: f(qkv.captured(table, "table")[at.j]), return_scores="masked",
        )  # fmt: skip
        return call.scores[0]

    np.testing.assert_array_equal(result_of(np.round), np.round(table))
    np.testing.assert_array_equal(result_of(lambda x: qkv.minimum(x, 1.0)), np.minimum(table, 1))
    both = np.logaddexp(table, table)
    np.testing.assert_array_equal(result_of(lambda x: np.logaddexp(x, x))[6:9], both[6:9])
    rows = qkv.captured(np.arange(6.0).reshape(2, 3), "rows")
    # The 0 of max(0) is an axis, not a number to compare with.
    assert "0.0" not in repr(qkv.score_mod(lambda s, at: s + rows[at.h].max(0)))


def test_float32():
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    f = SCORES["ALiBi"][0]
    want = expected(f(scores(), places()), 1, True)[0]
    np.testing.assert_allclose(qkv.attention(q, k, v, score_mod=f), want, rtol=1e-4, atol=1e-5)


# ---- masks ---------------------------------------------------------------------------------------


def causal(at):
    return at.j <= at.i + 2


def window(at):
    return abs(at.i - at.j) <= 3


def document(at):
    return DOCUMENT[at.i] == DOCUMENT[at.j]


def prefix(at):
    return at.j < PREFIX[at.b]


MASKS = {
    "causal": causal,
    "window": window,
    "prefix": lambda at: prefix(at) | causal(at),
    "document": document,
    "document of bytes": lambda at: BYTES[at.i] == BYTES[at.j],
    "dilated": lambda at: window(at) & ((at.i - at.j) % 2 == 0),
    "block-causal": lambda at: at.j // 4 <= at.i // 4,
    # A neighbourhood of 3 x 3 in pictures of 4 columns (Hassani et al. 2023).
    "neighbourhood": lambda at: (
        (abs(np.clip(at.i // 4, 1, 2) - at.j // 4) <= 1)
        & (abs(np.clip(at.i % 4, 1, 2) - at.j % 4) <= 1)
    ),
    "of heads": lambda at: ALLOWED[at.h, at.j],
    "one head": lambda at: (at.h != 2) | (at.j == 0),
    "random": lambda at: (at.i * 7 + at.j * 13 + at.b) % 5 < 3,
    "all of them": lambda at: causal(at) & window(at) & document(at) | ~prefix(at) & (at.h == 1),
    "last keys": lambda at: at.j > at.i + at.Tk - at.Tq - 3,
    "empty rows": lambda at: at.i > 3,
    "constant": lambda at: True,
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    keep = MASKS[name](places())
    got = computed(mask_mod=qkv.mask_mod(MASKS[name]))
    assert_near(got, expected(scores(), 1, keep))
    as_array = np.broadcast_to(keep, (B, H, TQ, TK))
    for one, other in zip(got, computed(mask=as_array)):
        np.testing.assert_array_equal(one, other)


def test_score_and_masks_together():
    f = SCORES["ALiBi"][0]
    options = dict(score_mod=f, mask_mod=document, mask=ALLOWED[:, None], window=(4, None),
                   causal_offset=0, bias=POSITIVE)  # fmt: skip
    at = places()
    keep = document(at) & ALLOWED[:, None] & (at.j >= at.i - 4)
    assert_near(computed(**options), expected(f(scores(), at) + POSITIVE, 1, keep))


def test_mods_in_functions():
    same, before = qkv.mask_mod(document), qkv.mask_mod(causal)
    both = qkv.mask_mod(lambda at: same(at) & before(at))
    assert repr(both) == "MaskMod(DOCUMENT[i] == DOCUMENT[j] and j <= i + 2)"
    decay = qkv.score_mod(SCORES["ALiBi"][0])
    masked = qkv.score_mod(lambda s, at: qkv.where(both(at), decay(s, at), -np.inf))
    want = computed(score_mod=decay, mask_mod=both)
    assert_near(computed(score_mod=masked), want)


def test_plain_functions_are_traced():
    for one, other in zip(computed(score_mod=SCORES["ALiBi"][0], mask_mod=causal),
                          computed(score_mod=qkv.score_mod(SCORES["ALiBi"][0]),
                                   mask_mod=qkv.mask_mod(causal))):  # fmt: skip
        np.testing.assert_array_equal(one, other)
    mod = qkv.score_mod(SCORES["ALiBi"][0])
    assert qkv.score_mod(mod) is mod


def test_packed_sequences():
    q, k, v = (np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (Q, K, V))  # [T,H,.]
    starts_q, starts_k = [0, 4, TQ], [0, 6, TK]
    got = qkv.attention(q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k,
                        score_mod=lambda s, at: s - SLOPE[at.h] * abs(at.i - at.j) + PREFIX[at.b],
                        mask_mod=lambda at: at.j < PREFIX[at.b])  # fmt: skip
    for n in range(2):
        rows, keys = slice(starts_q[n], starts_q[n + 1]), slice(starts_k[n], starts_k[n + 1])
        one = (x[part].swapaxes(0, 1)[None] for x, part in ((q, rows), (k, keys), (v, keys)))
        want = qkv.attention(*one, score_mod=SCORES["ALiBi"][0],
                             mask_mod=lambda at, n=n: at.j < PREFIX[n])  # fmt: skip
        np.testing.assert_allclose(got[rows], want[0].swapaxes(0, 1), rtol=1e-12)


# ---- caches, memories and layers -----------------------------------------------------------------


def test_cache():
    cache = qkv.KvCache(B, H, D, E, dtype="float64", page=16)
    past = np.zeros(B, np.int64)
    decay = qkv.score_mod(lambda s, at: s - SLOPE[at.h] * (past[at.b] + at.i - at.j))
    same = qkv.mask_mod(lambda at: DOCUMENT[past[at.b] + at.i] == DOCUMENT[at.j])
    q = Q[:, :, :1]
    for first, last in [(0, 4), (4, 5), (5, 6), (6, 12)]:
        cache.append(K[:, :, first:last], V[:, :, first:last])
        past[:] = last - 1
        got = cache.attention(q, score_mod=decay, mask_mod=same, return_lse=True)
        want = qkv.attention(q, K[:, :, :last], V[:, :, :last], score_mod=decay, mask_mod=same,
                             return_lse=True)  # fmt: skip
        for one, other in zip(got, want):
            np.testing.assert_array_equal(one, other)


def test_additive_memory():
    params = {"Wq": np.ones((3, D)), "Wk": np.ones((3, D)), "v": SLOPE[:3]}
    memory = qkv.AdditiveMemory(K, params)
    options = dict(score_mod=SCORES["ALiBi"][0], mask_mod=causal)
    want = qkv.attention(Q, K, V, score="additive", params=params, **options)
    np.testing.assert_array_equal(memory.attention(Q, V, **options), want)


def layer_and_inputs(name):
    x = RANDOM.standard_normal((B, TK, 8))
    if name == "SelfAttention":
        return qkv.SelfAttention(8, dtype="float64", seed=3), (x,), 1
    if name == "MultiHeadAttention":
        return qkv.MultiHeadAttention(8, H, dtype="float64", dropout=0, seed=3), (x, x, x), H
    if name == "AdditiveAttention":
        return qkv.AdditiveAttention(8, 8, 4, dtype="float64", seed=3), (x, x, x), 1
    if name == "BilinearAttention":
        return qkv.BilinearAttention(8, 8, dtype="float64", seed=3), (x, x, x), 1
    return qkv.DotProductAttention(), (x, x, x), 1


LAYERS = (
    "SelfAttention",
    "MultiHeadAttention",
    "AdditiveAttention",
    "BilinearAttention",
    "DotProductAttention",
)


def numbers_of(results):
    """The arrays in a list of arrays, None and dicts of arrays."""
    parts = [list(x.values()) if isinstance(x, dict) else [x] for x in results if x is not None]
    return sum(parts, [])


@pytest.mark.parametrize("name", LAYERS)
def test_masks_of_layers(name):
    layer, inputs, _ = layer_and_inputs(name)
    keep = document(qkv.At(0, 0, np.arange(TK)[:, None], np.arange(TK), TK, TK))
    results = []
    for options in (dict(mask_mod=document), dict(mask=keep)):
        out = layer.forward(*inputs, **options)
        results.append([out, *layer.backward(np.cos(out))])
    one, other = map(numbers_of, results)
    assert len(one) == len(other) > 1
    for got, want in zip(one, other):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", LAYERS)
def test_scores_of_layers(name):
    layer, inputs, heads = layer_and_inputs(name)
    f = SCORES["relative table"][0]
    mods = dict(score_mod=lambda s, at: 0.5 * np.tanh(2 * f(s, at)))
    before = layer.forward(*inputs, return_scores="raw").scores
    got = layer.forward(*inputs, **mods, return_scores="masked")
    at = qkv.At(0, np.arange(heads)[:, None, None], np.arange(TK)[:, None], np.arange(TK), TK, TK)
    want = 0.5 * np.tanh(2 * f(before, at if heads > 1 else at._replace(h=0)))
    np.testing.assert_allclose(got.scores, want, rtol=1e-12, atol=1e-14)

    # All inputs are x, whose gradient is compared with a difference quotient.
    step = 1e-5 * RANDOM.standard_normal(inputs[0].shape)

    def loss(x):
        return (np.sin(layer.forward(*[x] * len(inputs), **mods))).sum()

    layer.forward(*inputs, **mods)
    gradients = layer.backward(np.cos(got.out))
    dx = gradients.dx if name == "SelfAttention" else gradients.dq + gradients.dk + gradients.dv
    quotient = (loss(inputs[0] + step) - loss(inputs[0] - step)) / 2
    np.testing.assert_allclose((dx * step).sum(), quotient, rtol=1e-7, atol=1e-13)


def test_functions_are_refused_with_a_learned_key():
    layer = qkv.MultiHeadAttention(8, 2, bias_kv=True)
    x = np.ones((1, 3, 8), np.float32)
    for options in (dict(score_mod=lambda s, at: s), dict(mask_mod=causal)):
        rule = rf"forward: {next(iter(options))} is not available with bias_kv"
        with pytest.raises(ValueError, match=rule):
            layer.forward(x, x, x, **options)


@pytest.mark.parametrize("operation", [np.bitwise_and, np.bitwise_or, np.bitwise_xor])
def test_bits_of_integers_are_numpys(operation):
    integers = np.array([0, 1, -1, 5, -8, 2**31 - 1, -(2**31), 123456789, -987654321], np.int32)
    count = len(integers)
    q, v = np.zeros((count, 1)), np.eye(count)
    pairs = operation(integers[:, None], integers)
    constants = (0, 1, 7, 5, -1, -8, 0x33333333, 2**31 - 1, -(2**31), 2**30, 0x7FF0)
    each = [(c, operation(integers, np.int32(c))) for c in constants]

    def is_equal(at):
        equal = operation(integers[at.i], integers[at.j]) == pairs[at.i, at.j]
        for c, wanted in each:
            equal &= operation(integers[at.i], c) == qkv.captured(wanted)[at.i]
            equal &= operation(c, integers[at.j]) == qkv.captured(wanted)[at.j]
        return equal

    weights = qkv.attention(q, q, v, mask_mod=is_equal, return_weights=True).weights
    assert (weights > 0).all()
