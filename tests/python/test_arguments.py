# SPDX-License-Identifier: Apache-2.0
"""Tests that lists, NumPy scalars and arrays as arguments give equal results, or are refused.

The last tests check that every argument reaches the extension at the right index.
"""

import inspect
from functools import partial

import numpy as np
import pytest
from random_calls import needs_torch, torch

import qkv
from qkv import _core

RANDOM = np.random.default_rng(0)
Q, K, V = (RANDOM.standard_normal((2, 3, 6, 4)).astype(np.float32) for _ in range(3))


@pytest.mark.parametrize(
    ("plain", "dressed"),
    [
        ({"window": (1, 2)}, {"window": np.array([1, 2])}),
        ({"window": (1, 2)}, {"window": [np.int8(1), np.int64(2)]}),
        ({"causal": True}, {"causal": np.True_}),
        ({"causal": True, "causal_offset": 1}, {"causal": True, "causal_offset": np.int32(1)}),
        ({"causal": True, "causal_offset": 1}, {"causal": True, "causal_offset": np.array(1)}),
        ({"causal": True, "causal_offset": [1, 2]},
         {"causal": True, "causal_offset": np.array([1, 2], np.uint8)}),
        ({"key_lengths": np.array([2, 5])}, {"key_lengths": (2, 5)}),
        ({"mask": np.tri(6, dtype=bool)}, {"mask": np.ma.array(np.tri(6, dtype=bool))}),
        ({"alibi_slopes": np.array([1, 2, 0.5], np.float32)}, {"alibi_slopes": [1, 2, 0.5]}),
        ({"sinks": np.array([1, 2, 3], np.float32)}, {"sinks": [1, 2, 3]}),
        ({"mask": np.tri(6, dtype=bool)}, {"mask": np.tri(6, dtype=bool).tolist()}),
        ({"mask": np.tri(6, dtype=bool)}, {"mask": np.tri(6, dtype=np.int32)}),
        ({"bias": np.tri(6, dtype=np.float32)}, {"bias": np.tri(6).tolist()}),
        ({"scale": 0.25}, {"scale": np.float32(0.25)}),
        ({"scale": 0.25}, {"scale": np.array(0.25)}),
        ({"dropout": 0.5, "seed": 2**64 - 1}, {"dropout": 0.5, "seed": np.uint64(2**64 - 1)}),
        ({"threads": 1}, {"threads": np.int16(1)}),
    ],
)  # fmt: skip
def test_other_forms_of_an_argument_give_equal_results(plain, dressed):
    np.testing.assert_array_equal(
        qkv.attention(Q, K, V, **dressed), qkv.attention(Q, K, V, **plain), strict=True
    )


@pytest.mark.parametrize(
    "mask",
    [
        np.where(np.tri(6) > 0, 0, -10000),
        np.broadcast_to(np.array([[0], [2], [1], [0], [0], [0]], np.uint8), (2, 3, 6, 6)),
        np.full((2, 1, 1, 1), 7)[::-1],
    ],
)
def test_an_integer_mask_of_other_numbers_is_refused(mask):
    with pytest.raises(ValueError, match="mask must be bool, or of 0 and 1, got (-10000|2|7) in "):
        qkv.attention(Q, K, V, mask=mask)


def test_an_empty_list_counts_as_integers():
    # NumPy makes a float64 array of an empty list, but lengths must be integers.
    empty = np.zeros((0, 3, 4), np.float32)
    assert qkv.attention(empty, empty, empty, key_lengths=[]).shape == (0, 3, 4)


def test_a_masked_array_of_records_is_refused_by_its_type():
    x = np.ma.masked_array(np.zeros(3, dtype=[("a", "<i4"), ("b", "<f4")]))
    with pytest.raises(TypeError, match="softmax: x must be float64"):
        qkv.softmax(x)


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2])
def test_softmax_of_an_axis_equals_that_of_the_axis_moved_last(dim):
    got = qkv.softmax(Q[0], dim)
    assert got.shape == Q[0].shape and got.flags.c_contiguous
    want = np.moveaxis(qkv.softmax(np.ascontiguousarray(np.moveaxis(Q[0], dim, -1))), -1, dim)
    np.testing.assert_array_equal(got, want, strict=True)
    wide = qkv.softmax(Q[0].astype(np.float64), dim=dim)
    np.testing.assert_array_equal(qkv.softmax(Q[0].tolist(), dim=dim), wide, strict=True)


class WithArray:
    """An object with `__array__` but without DLPack."""

    def __array__(self, dtype=None, copy=None):
        return np.array([4, 2], np.float32)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        ([4, 2], float),
        ((4.0, 2.0), float),
        ([np.float32(4), np.float32(2)], float),
        (range(4, 1, -2), float),
        (WithArray(), np.float32),
    ],
)
def test_softmax_takes_what_numpy_converts_to_an_array(x, dtype):
    got = qkv.softmax(x)
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, qkv.softmax(np.array([4, 2], dtype)), strict=True)


@pytest.mark.parametrize("dtype", [float, np.float32, np.float16])
def test_functions_take_lists(dtype):
    x, y = Q[0].astype(dtype), K[0].astype(dtype)
    lists = x.tolist(), y.tolist()
    wide = x.astype(float), y.astype(float)
    got = qkv.masked_softmax(lists[0], [1, 3, 4])
    np.testing.assert_array_equal(got, qkv.masked_softmax(wide[0], [1, 3, 4]), strict=True)
    product = partial(qkv.batch_dot, transpose_b=True)
    np.testing.assert_array_equal(product(*lists), product(*wide), strict=True)
    np.testing.assert_array_equal(product(lists[0], y), product(x, y), strict=True)
    np.testing.assert_array_equal(product(x, lists[1]), product(x, y), strict=True)
    assert qkv.batch_dot([range(2)], ((3,), (4,))).tolist() == [[4.0]]


@needs_torch
def test_functions_take_lists_beside_tensors():
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    for got in (qkv.batch_dot([[1, 2]], x), qkv.batch_dot(x, [[1], [2], [3]])):
        assert isinstance(got, torch.Tensor) and got.dtype == torch.bfloat16
    assert qkv.batch_dot([[1, 2]], x).tolist() == [[3.0] * 3]


@needs_torch
def test_softmax_of_an_axis_of_a_tensor():
    x = torch.from_numpy(Q)
    assert torch.equal(qkv.softmax(x, 1), torch.from_numpy(qkv.softmax(Q, 1)))


@pytest.mark.parametrize(
    ("x", "options", "kind", "text"),
    [
        (Q, {"dim": 4}, ValueError,
         "softmax: dim must be in -4 to 3, got 4 (x float32 [2,3,6,4])"),
        (Q, {"dim": -5}, ValueError,
         "softmax: dim must be in -4 to 3, got -5 (x float32 [2,3,6,4])"),
        (Q, {"dim": 1.0}, TypeError, "softmax: dim must be an integer, got float 1.0"),
        (Q, {"dim": True}, TypeError, "softmax: dim must be an integer, got bool True"),
        (Q, {"dim": None}, TypeError, "softmax: dim must be an integer, got None"),
        (Q, {"axis": 0}, TypeError,
         "softmax() got an unexpected keyword argument 'axis'. Did you mean 'dim'?"),
        (np.float32(3), {}, ValueError, "softmax: x must have at least one axis, got float32 []"),
        (3.0, {}, TypeError,
         "softmax: x must be an array (of NumPy, or one that supports DLPack), got float 3.0"),
        ("ab", {}, TypeError,
         "softmax: x must be an array (of NumPy, or one that supports DLPack), got str 'ab'"),
        (["a"], {}, TypeError,
         "softmax: x must be float64, float32, bfloat16 or float16, got <U1 [1]"),
        ([True], {}, TypeError,
         "softmax: x must be float64, float32, bfloat16 or float16, got bool [1]"),
        (None, {}, ValueError, "softmax: x is absent"),
    ],
)  # fmt: skip
def test_softmax_refuses_what_it_cannot_take(x, options, kind, text):
    with pytest.raises(kind) as caught:
        qkv.softmax(x, **options)
    assert str(caught.value) == text


def test_softmax_refuses_lists_that_are_no_array():
    with pytest.raises(ValueError, match="^softmax: x must be an array or a list of numbers, got "):
        qkv.softmax([[1.0], [1.0, 2.0]])


def test_entries_that_a_masked_array_hides_are_not_read():
    x = np.ma.array([[1.0, 1.0, 1.0]], mask=[[0, 1, 0]])
    with pytest.raises(TypeError, match="^softmax: x must have no masked entries, got "):
        qkv.softmax(x)


def test_errors_say_when_their_shapes_are_not_the_callers():
    q, k = np.ones((2, 5, 8, 16), np.float32), np.ones((2, 7, 4, 3), np.float32)
    with pytest.raises(ValueError, match=r"k has D = 3 .*\(axes as \[B,H,T,.\]\)$"):
        qkv.attention(q, k, k, layout="bthd")
    v = np.ones((2, 7, 4, 16), np.float32)
    out, lse = qkv.attention(q, v, v, layout="bthd", return_lse=True)
    with pytest.raises(ValueError, match=r"dout must have .*\(axes as \[B,H,T,.\]\)$"):
        qkv.attention_backward(out[:, 1:], q, v, v, out, lse, layout="bthd")
    with pytest.raises(ValueError, match=r"got nan$"):
        qkv.attention(q, v, v, layout="bthd", scale=float("nan"))


# ---- the order of arguments ---------------------------------------------------------------------

OPTIONS, REQUESTS = _core.OPTIONS, _core.REQUESTS


def expect_passed_on(monkeypatch, owner, callee, call, place, names):
    """`call` passes each keyword argument on, at its index in argument `place` of owner.callee."""
    tuples = []  # the fake callee returns [None] * 7: attention_backward unpacks seven gradients
    monkeypatch.setattr(
        owner, callee, lambda *arguments: tuples.append(arguments[place]) or [None] * 7
    )
    for name in names:
        value = object()
        call(**{name: value})
        at = (OPTIONS if name in OPTIONS else REQUESTS).index(name)
        assert [n for n, x in enumerate(tuples.pop()) if x is value] == [at], name


def test_the_signature_has_the_options_and_the_requests():
    names = list(inspect.signature(qkv.attention).parameters)
    assert names == ["q", "k", "v", *OPTIONS, *REQUESTS, "threads"]


@pytest.mark.parametrize("place, names", [(3, OPTIONS), (4, REQUESTS)])
def test_attention_passes_on_every_argument(monkeypatch, place, names):
    expect_passed_on(monkeypatch, _core, "attention", partial(qkv.attention, Q, K, V), place, names)


def test_attention_backward_passes_on_every_option(monkeypatch):
    call = partial(qkv.attention_backward, Q, Q, K, V, Q, Q)
    names = [name for name in OPTIONS if name not in ("block_tables", "context_lens")]
    expect_passed_on(monkeypatch, _core, "attention_backward", call, 4, names)


@pytest.mark.parametrize("make", [partial(qkv.DotProductAttention), partial(qkv.SelfAttention, 4)])
def test_layers_pass_on_every_request(monkeypatch, make):
    layer = make()
    arrays = (Q,) if isinstance(layer, qkv.SelfAttention) else (Q, K, V)
    call = partial(layer.forward, *arrays)
    expect_passed_on(monkeypatch, layer, "_forward", call, 2, REQUESTS)


@needs_torch
def test_modules_pass_on_every_request(monkeypatch):
    import qkv.torch.nn._scores as scores

    got = {}
    monkeypatch.setattr(scores, "attention", lambda *_, **options: got.update(options))
    module = qkv.torch.nn.DotProductAttention()
    for name in REQUESTS:
        value = object()
        module(torch.ones(1, 2, 3), torch.ones(1, 2, 3), torch.ones(1, 2, 3), **{name: value})
        assert got[name] is value


def test_gradients_have_the_order_of_the_list():
    assert qkv.Gradients._fields == _core.GRADIENTS


def test_results_have_the_names_that_request_them():
    assert {"out", *qkv._results.REQUESTED} == {
        name for name, axes in _core.RESULT_AXES.items() if axes != "matrix"
    }
