# SPDX-License-Identifier: Apache-2.0
"""Tests the errors for functions that qkv.score_mod and qkv.mask_mod do not take."""

import math

import numpy as np
import pytest

import qkv

Q = np.linspace(-1, 1, 2 * 4 * 11 * 8).reshape(2, 4, 11, 8)
K = np.linspace(-1, 1, 2 * 4 * 13 * 8).reshape(2, 4, 13, 8)
DLSE = np.zeros((2, 4, 11))
SLOPE = np.array([0.5, 0.25, 0.125, 0.0625])
TABLE = np.ones((4, 24))
DOCUMENT = np.arange(13) // 4
ALLOWED = TABLE > 0


def causal(at):
    return at.j <= at.i + 2


NO_VALUE = "has no value while it is traced"
NAMES, NUMBERS, OBJECTS = ["a", "b"], {0: 1.0}, np.array([{}], object)


class Holder:
    array = SLOPE


def refused_score(s, at):
    return s if at.i < at.j else -s


WRONG_SCORES = {
    "if": (refused_score, TypeError, rf"i < j {NO_VALUE}.* qkv.where\(c, a, b\) for if"),
    "and": (lambda s, at: (s > 0 and s < 1) * s, TypeError, rf"{NO_VALUE}.* & \| ~ for and, or"),
    "or": (lambda s, at: (s > 0 or s < 1) * s, TypeError, f"0.0 < s {NO_VALUE}"),
    "not": (lambda s, at: (not s > 0) * s, TypeError, f"0.0 < s {NO_VALUE}"),
    "chain": (lambda s, at: (0 < at.i < at.j) * s, TypeError, r"\(a < b\) & \(b < c\)"),
    "in": (lambda s, at: (at.i in [1, 2]) * s, TypeError, f"i == 1 {NO_VALUE}; if, .* in,"),
    "max": (lambda s, at: max(s, 0), TypeError, "qkv.minimum, qkv.maximum"),
    "int": (lambda s, at: int(s), TypeError, r"s has no .* int\(\) needs one. Write x.astype"),
    "float": (lambda s, at: float(at.i), TypeError, r"float\(\), or a function of math needs"),
    "math": (lambda s, at: math.exp(s), TypeError, r"float\(\), or a function of math .* np.exp"),
    "len": (lambda s, at: len(s), TypeError, r"s has no value .* len\(\) needs one. It is one"),
    "iteration": (lambda s, at: sum(s), TypeError, "iteration needs one. It is one value"),
    "range": (lambda s, at: range(at.i), TypeError, r"i has no .* an index, or range\(\) needs"),
    "list": (lambda s, at: NAMES[at.h], TypeError, "h has no value .* qkv.captured"),
    "dict": (lambda s, at: NUMBERS[at.h], TypeError, "a key of a dict or set .* Put the values"),
    "attribute": (lambda s, at: Holder.array[at.h], TypeError, r"attribute.* qkv.captured\(array"),
    "asarray": (lambda s, at: np.array([s, s]), TypeError, "an array needs one"),
    "array": (lambda s, at: s + SLOPE, TypeError, r"got an array of the shape \[4\]; read it at"),
    "array, left": (lambda s, at: SLOPE * s, TypeError, r"got an array of the shape \[4\]"),
    "part": (lambda s, at: s + TABLE[at.h], TypeError, r"got values of the shape \[24\]; redu"),
    "slice": (lambda s, at: TABLE[at.h, :], TypeError, "TABLE takes an integer as .* 2 axes, got"),
    "too many": (lambda s, at: SLOPE[at.h, 0], IndexError, "SLOPE has 1 axes, got 2 indices"),
    "number": (lambda s, at: SLOPE[s], ValueError, "SLOPE takes integers as indices, got a number"),
    "truth": (lambda s, at: SLOPE[at.h > 0], ValueError, "takes integers as indices, got a truth"),
    "True": (lambda s, at: TABLE[at.h, True], TypeError, "TABLE takes an integer .* got True"),
    "constant": (lambda s, at: TABLE[4, at.i], IndexError, "index 4 of axis 0, which has 4"),
    "negative": (lambda s, at: TABLE[-5, at.i], IndexError, "TABLE is read at index -5 of axis 0"),
    "objects": (lambda s, at: OBJECTS[at.h], TypeError, "OBJECTS must be real, integer or bool"),
    "complex": (lambda s, at: s + 1j, TypeError, "an operand must be a number, got complex"),
    "text": (lambda s, at: s * "a", TypeError, "an operand must be a number, got str"),
    "NumPy's text": (lambda s, at: s + np.str_("1"), TypeError, "must be a number, got str_"),
    "duration": (lambda s, at: s + np.timedelta64(3), TypeError, "a number, got timedelta64"),
    "int8 as power": (lambda s, at: s ** np.int8(-128), TypeError, "from -16 to 16"),
    "equals": (lambda s, at: (s == "a") * s, TypeError, "an operand must be a number, got str"),
    "differs": (lambda s, at: (s != None) * s, TypeError, "number, got NoneType"),  # noqa: E711
    "integer": (lambda s, at: s + 2**31, ValueError, "fit in 32 bits, got 2147483648"),
    "&": (lambda s, at: (s & True) * s, TypeError, r"& takes two truth values or two .* got s &"),
    "|": (lambda s, at: (at.i | True) * s, TypeError, r"\| takes two .* got i \| True; comp"),
    "^": (lambda s, at: (1 ^ s) * s, TypeError, r"\^ takes two truth values or .*, got 1 \^ s"),
    "logical": (lambda s, at: np.logical_or(at.i, at.j) * s, TypeError, "logical_or takes truth v"),
    "rows": (lambda s, at: (WIDE[at.h] * s).sum(), TypeError, "WIDE is used with 1 of its 2 ind"),
    "~": (lambda s, at: ~s, TypeError, "~ takes a truth value or an integer, got a number: s"),
    "<<": (lambda s, at: s + (1 << at.h), TypeError, "<< takes an integer and a constant .* 1 <<"),
    ">>": (lambda s, at: s + (at.h >> 31), TypeError, ">> takes an integer .* from 0 to 30, .* 31"),
    "** s": (lambda s, at: s**s, TypeError, r"\*\* takes a constant exponent, .* np.exp\(b \* np"),
    "** 2.5": (lambda s, at: s**2.5, TypeError, r"integer from -16 to 16, .* got 2.5; write"),
    "** 17": (lambda s, at: s**17, TypeError, "from -16 to 16, .* got 17"),
    "(-2) **": (lambda s, at: (-2) ** s, TypeError, "a positive constant as its base"),
    "sum": (lambda s, at: np.sum(s), TypeError, "np.sum does not take expressions; .* absol"),
    "arctan": (lambda s, at: np.arctan(s), TypeError, "np.arctan does not take expressions"),
    "dtype": (lambda s, at: np.exp(s, dtype=float), TypeError, "np.exp of an .* takes no dtype"),
    "astype": (lambda s, at: s.astype("f4"), TypeError, "dtype must be float, int or bool, got"),
    "place": (lambda s, at: at.q_idx, AttributeError, r"at has b, h, i .* got 'q_idx'"),
    "arguments": (lambda s, b, h, i, j: s, TypeError, r"f must take \(s, at\), got \(s, b, h, i"),
    "result": (lambda s, at: None, TypeError, "score_mod: f must return an expression, got None"),
    "results": (lambda s, at: (s, s), TypeError, "an operand must be a number, got tuple"),
    "condition": (lambda s, at: s > 0, ValueError, "^score_mod: the result of f must"),
    "where": (lambda s, at: qkv.where(at.i, s, 0), ValueError, "where takes truth values, got"),
}  # fmt: skip


WIDE = np.ones((4, 257))  # a row has one element more than expressions allow


@pytest.mark.parametrize("name", WRONG_SCORES)
def test_refused_scores(name):
    f, kind, text = WRONG_SCORES[name]
    with pytest.raises(kind, match=text):
        qkv.score_mod(f)


def test_refused_functions_have_short_messages():
    with pytest.raises(TypeError, match=r"do: absolute, add, .* and \d+ more$") as caught:
        qkv.score_mod(lambda s, at: np.nextafter(s, s))
    assert len(str(caught.value)) <= 220


INSIDE = qkv.score_mod(lambda s, at: s)
WRONG_CALLS = {
    "no function": (lambda: qkv.score_mod(3), TypeError, r"f must be a function that takes \(s"),
    "arguments": (
        lambda: qkv.mask_mod(lambda s, at: s),
        TypeError,
        r"^mask_mod: f must take \(at\), got \(s, at\)$",
    ),
    "a score of FlexAttention": (
        lambda: call(score_mod=lambda score, b, h, i, j: score),
        TypeError,
        r"got \(score, b, h, i, j\); qkv.torch.flex_attention takes functions like that$",
    ),
    "a mask of FlexAttention": (
        lambda: call(mask_mod=lambda b, h, i, j: i >= j),
        TypeError,
        r"got \(b, h, i, j\); create_block_mask, for qkv.torch.flex_attention, takes functions l",
    ),
    "no truth": (lambda: qkv.mask_mod(lambda at: at.i), ValueError, "mod: the result of f must be"),
    "a score": (lambda: call(mask_mod=INSIDE), TypeError, "mask_mod must be .* got ScoreMod"),
    "a mask": (
        lambda: call(score_mod=qkv.mask_mod(causal)),
        TypeError,
        r"attention: score_mod must be a function f\(s, at\) or qkv.score_mod\(f\), got MaskMod",
    ),
    "a number": (lambda: call(score_mod=3), TypeError, "score_mod must be a function .* got int 3"),
    "mask": (lambda: call(mask=causal), TypeError, "mask must be .* got function; a function"),
    "a mod as mask": (lambda: call(mask=qkv.mask_mod(causal)), TypeError, "got MaskMod; a f"),
    "block_mask": (lambda: call(block_mask=causal), TypeError, r"Did you mean 'mask_mod'\?"),
    "index": (
        lambda: call(score_mod=lambda s, at: s + TABLE[at.h, at.i - at.j]),
        ValueError,
        r"attention: score_mod reads TABLE at index -1 of axis 1, which has 24 elements, at b = 0, "
        r"h = 0, i = 0, j = 1",
    ),
    "index of a mask": (
        lambda: call(mask_mod=lambda at: DOCUMENT[at.i + 3] == 0),
        ValueError,
        "attention: mask_mod reads DOCUMENT at index 13 of axis 0, .* i = 10, j = 0",
    ),
    "division": (
        lambda: call(mask_mod=lambda at: at.i % at.j == 0),
        ValueError,
        "attention: mask_mod divides an integer by 0 at b = 0, h = 0, i = 0, j = 0",
    ),
    "in backward": (
        lambda: qkv.attention_backward(
            Q, Q, K, K, Q, DLSE, score_mod=lambda s, at: SLOPE[at.j]
        ),
        ValueError,
        "attention_backward: score_mod reads SLOPE at index 4",
    ),
    "in a cache": (
        lambda: cache_of_all().attention(Q[:, :, :1], mask_mod=lambda at: ALLOWED[at.j, 0]),
        ValueError,
        "KvCache.attention: mask_mod reads ALLOWED at index 4 of axis 0",
    ),
    "in a layer": (
        lambda: qkv.DotProductAttention().forward(Q, K, K, score_mod=lambda s, at: SLOPE[at.j]),
        ValueError,
        "DotProductAttention.forward: score_mod reads SLOPE at index 4",
    ),
}  # fmt: skip


def call(**options):
    return qkv.attention(Q, K, K, **options)


def cache_of_all():
    cache = qkv.KvCache(2, 4, 8, dtype="float64")
    cache.append(K, K)
    return cache


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_refused_calls(name):
    wrong, kind, text = WRONG_CALLS[name]
    with pytest.raises(kind, match=text):
        wrong()


def test_texts():
    assert repr(qkv.score_mod(lambda s, at: qkv.minimum(s, 1) - qkv.maximum(at.i, at.j))) == (
        "ScoreMod(min(s, 1.0) - float(max(i, j)))"
    )
    with_symbols = []
    qkv.mask_mod(lambda at: with_symbols.append(at) or at.i == 0)
    assert repr(with_symbols[0].i - 3) == "Expression(i - 3)"
    assert repr(math.floor(with_symbols[0].i / 3)) == "Expression(int(floor(float(i) / 3.0)))"
    assert repr(math.ceil(with_symbols[0].i / 3)) == ("Expression(int(-floor(-(float(i) / 3.0))))")
    assert repr(math.trunc(with_symbols[0].i / 3)) == "Expression(int(float(i) / 3.0))"


def test_names_of_captured_arrays_are_printable():
    for name in ("", "a\0b", "\udc80"):
        with pytest.raises(ValueError, match="captured: name must be printable text"):
            qkv.captured(np.ones(3), name)


def test_texts_of_large_expressions_are_short():
    mask = qkv.mask_mod(lambda at: (at.i < at.j) == (at.j < 5))
    assert repr(mask) == "MaskMod((i < j) == (j < 5))"

    def doubled(s, at):
        for _ in range(100):
            s = s * s
        return s

    assert len(repr(qkv.score_mod(doubled))) < 20_000
