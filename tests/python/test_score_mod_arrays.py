# SPDX-License-Identifier: Apache-2.0
"""Tests what functions of qkv.score_mod and qkv.mask_mod may be, and the arrays that they read."""

import functools
import gc
import weakref

import numpy as np
import pytest

import qkv

B, H, TQ, TK, D = 2, 4, 11, 13, 8
RANDOM = np.random.default_rng(45)
Q, K, V = (RANDOM.standard_normal((B, H, T, D)) for T in (TQ, TK, TK))
SLOPE = np.array([0.5, 0.25, 0.125, 0.0625])
TABLE = RANDOM.standard_normal((H, TQ + TK))  # read at i - j + TK - 1


def alibi(s, at):
    return s - SLOPE[at.h] * abs(at.i - at.j)


def attended(score):
    return qkv.attention(Q, K, V, score_mod=score)


def test_functions_stay_as_they_are():
    slope = SLOPE.copy()
    local = slope

    def helper(at, table=slope):
        return local[at.h] + table[at.h]

    def f(s, at, *, table=slope):
        return s + helper(at) + TABLE[at.h, at.i] + table[at.h]

    f.mark, before = 1, (f.__closure__, f.__defaults__, f.__kwdefaults__["table"])
    mod = qkv.score_mod(f)
    assert (
        repr(mod) == "ScoreMod(s + (local[h] + local[h]) + TABLE[h, i] + local[h])"
        or repr(mod) == "ScoreMod(s + (table[h] + table[h]) + TABLE[h, i] + table[h])"
    )
    assert (f.__closure__, f.__defaults__, f.__kwdefaults__["table"]) == before
    assert helper.__defaults__[0] is slope and local is slope
    assert f.__globals__["TABLE"] is TABLE and type(TABLE) is np.ndarray
    with pytest.raises(TypeError):
        TABLE[at_symbols().h, 0]
    with pytest.raises(TypeError):
        slope[at_symbols().h]


def at_symbols():
    symbols = []
    qkv.mask_mod(lambda at: symbols.append(at) or at.i == 0)
    return symbols[0]


def test_kinds_of_functions():
    class Slopes:
        def __init__(self):
            self.slope = SLOPE

        def __call__(self, s, at):
            return s + TABLE[at.h, at.i] + qkv.captured(self.slope, "slope")[at.h]

        def method(self, s, at):
            return self(s, at) + SLOPE[at.h]

    def partial(table, s, at):
        return s + table[at.h, at.j]

    def recursive(s, at, n=2):
        return s if n == 0 else recursive(s, at, n - 1) + SLOPE[at.h]

    own = Slopes()
    call = "s + TABLE[h, i] + slope[h]"
    assert repr(qkv.score_mod(own)) == f"ScoreMod({call})"
    assert repr(qkv.score_mod(own.__call__)) == f"ScoreMod({call})"
    assert repr(qkv.score_mod(functools.partial(partial, TABLE))) == "ScoreMod(s + array[h, j])"
    assert repr(qkv.score_mod(recursive)) == "ScoreMod(s + SLOPE[h] + SLOPE[h])"
    with pytest.raises(TypeError, match="qkv.captured"):
        qkv.score_mod(lambda s, at: s + own.slope[at.h])


def test_arrays_are_kept_and_released():
    arrays = []

    def made():
        table = RANDOM.standard_normal(64)

        def f(s, at):
            double = qkv.captured(table * 2, "double")  # a view of a new array
            arrays.append(weakref.ref(double))
            return s + table[at.i] + double[at.j]

        arrays.append(weakref.ref(table))
        return qkv.score_mod(f)

    mod = made()
    [np.zeros(64) for _ in range(100)]  # new arrays would reuse freed memory
    numbers = arrays[0]().copy()
    want = attended(lambda s, at: s + numbers[at.i] + 2 * numbers[at.j])
    np.testing.assert_allclose(attended(mod), want, rtol=1e-12)
    del mod
    gc.collect()
    assert all(array() is None for array in arrays)


def test_later_changes_of_an_array_are_seen():
    slope = np.zeros(H)
    mod = qkv.score_mod(lambda s, at: s - slope[at.h] * abs(at.i - at.j))
    np.testing.assert_allclose(attended(mod), qkv.attention(Q, K, V))
    slope[:] = SLOPE
    np.testing.assert_array_equal(attended(mod), attended(alibi))


def test_captured_arrays_may_be_indexed_in_steps():
    captured = []
    qkv.score_mod(lambda s, at: captured.append(SLOPE) or s)
    assert type(captured[0]).__name__ == "CapturedArray" and captured[0].base is SLOPE
    # An element read in two steps equals the one read by all indices at once.
    first = qkv.score_mod(lambda s, at: s + TABLE[at.h][at.i] + TABLE[at.h, at.i])
    assert repr(first) == "ScoreMod(s + TABLE[h, i] + TABLE[h, i])"


def test_captured():
    attribute = qkv.captured(SLOPE, "slope")
    assert np.shares_memory(attribute, SLOPE) and qkv.captured(attribute) is attribute
    of_list = qkv.captured([1.0, 2.0, 3.0, 4.0], name="of list")
    mod = qkv.score_mod(lambda s, at: s + attribute[at.h] + of_list[at.h])
    assert repr(mod) == "ScoreMod(s + slope[h] + of list[h])"
    for wrong in ("abc", None, {}, 1j, np.ma.masked_array([1.0], [True])):
        with pytest.raises(TypeError, match="captured: array must"):
            qkv.captured(wrong)
    matrix = np.matrix(TABLE)  # its * is a matrix product
    mod = qkv.score_mod(lambda s, at: s + qkv.captured(matrix)[at.h, at.i])
    assert repr(mod) == "ScoreMod(s + array[h, i])"
    with pytest.raises(TypeError, match="of a class derived from NumPy's, write"):
        qkv.score_mod(lambda s, at: s + matrix[at.h, at.i])
    with pytest.raises(TypeError, match="captured: name must be a text, got int"):
        qkv.captured(SLOPE, 3)


def test_bfloat16_arrays():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    table = SLOPE.astype(ml_dtypes.bfloat16)  # exact
    got = attended(lambda s, at: s - table[at.h] * abs(at.i - at.j))
    np.testing.assert_array_equal(got, attended(alibi))


def test_tensors():
    torch = pytest.importorskip("torch")
    table, learned = torch.from_numpy(TABLE), torch.ones(H, requires_grad=True)
    mod = qkv.score_mod(lambda s, at: s + table[at.h, at.i - at.j + TK - 1])
    assert repr(mod) == "ScoreMod(s + table[h, i - j + 13 - 1])"
    want = attended(lambda s, at: s + TABLE[at.h, at.i - at.j + TK - 1])
    np.testing.assert_array_equal(attended(mod), want)
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    got = qkv.attention(q, k, v, score_mod=mod)
    np.testing.assert_array_equal(got.numpy(), want)
    assert type(table) is torch.Tensor
    rows = qkv.score_mod(lambda s, at: s + (2 * table)[at.h][3] * 0 + table[0][at.j])
    assert repr(rows) == "ScoreMod(s + array[h, 3] * 0.0 + array[j])"
    rule = "score_mod reads learned, a tensor that requires a gradient, .* pass its detach"
    with pytest.raises(TypeError, match=rule):
        qkv.attention(q, k, v, score_mod=lambda s, at: s + learned[at.h])


def test_other_variables_of_the_module_are_not_kept():
    names = {"qkv": qkv, "slope": SLOPE, "other": Q.copy()}
    other = weakref.ref(names["other"])
    exec("def used(at): return slope[at.h]\ndef f(s, at): return s + used(at)", names)
    mod = qkv.score_mod(names["f"])
    del names["other"]
    gc.collect()
    assert other() is None
    assert repr(mod) == "ScoreMod(s + slope[h])"


def test_extremes_of_rows():
    expected = attended(lambda s, at: s + LARGEST[at.h] - SMALLEST[at.h])
    for score in (
        lambda s, at: s + TABLE[at.h].max() - TABLE[at.h].min(),
        lambda s, at: s + np.max(TABLE[at.h]) - np.min(TABLE[at.h]),
        lambda s, at: s + TABLE[at.h].amax() - TABLE[at.h].amin(),
    ):
        assert np.array_equal(attended(score), expected)


LARGEST, SMALLEST = TABLE.max(-1), TABLE.min(-1)


@pytest.mark.parametrize("function", [np.sum, np.mean, np.max, np.min])
def test_reductions_along_an_axis_of_numpy(function):
    cube = RANDOM.standard_normal((TK, 2, 3))
    column = function(cube, axis=1)[:, 2]
    got = attended(lambda s, at: s + function(cube[at.j], axis=0)[2])
    np.testing.assert_allclose(got, attended(lambda s, at: s + column[at.j]), rtol=1e-14)
    kept = attended(lambda s, at: s + function(cube[at.j], axis=0, keepdims=True)[0, 2])
    assert np.array_equal(kept, got)
    with pytest.raises(TypeError, match="dtype"):
        attended(lambda s, at: s + np.sum(cube[at.j][0], dtype=np.float32))
