# SPDX-License-Identifier: Apache-2.0
"""Tests the errors of layers for invalid arguments."""

import numpy as np
import pytest

import qkv


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: qkv.MultiHeadAttention(10, 4), ValueError,
         "MultiHeadAttention: heads must divide width in the split form, got 4 heads for width 10"),
        (lambda: qkv.MultiHeadAttention(0, 1), ValueError,
         "MultiHeadAttention: width must be at least 1, got 0"),
        (lambda: qkv.MultiHeadAttention(4.0, 1), TypeError,
         "MultiHeadAttention: width must be an integer, got float 4.0"),
        (lambda: qkv.MultiHeadAttention(4, 2, form="long"), ValueError,
         "MultiHeadAttention: form must be \"split\" or \"wide\", got str 'long'"),
        (lambda: qkv.MultiHeadAttention(4, 2, dtype="float16"), TypeError,
         "MultiHeadAttention: dtype must be float32 or float64, got float16"),
        (lambda: qkv.MultiHeadAttention(4, 2, dtype=None), TypeError,
         "MultiHeadAttention: dtype must be float32 or float64, got None"),
        (lambda: qkv.DotProductAttention(1), ValueError,
         "DotProductAttention: dropout must be in [0,1), got 1"),
        (lambda: qkv.DotProductAttention("a"), TypeError,
         "DotProductAttention: dropout must be a number, got str 'a'"),
        (lambda: qkv.AdditiveAttention(2, 3, 0), ValueError,
         "AdditiveAttention: units must be at least 1, got 0"),
        (lambda: qkv.BilinearAttention(2, 3, -0.1), ValueError,
         "BilinearAttention: dropout must be in [0,1), got -0.1"),
        (lambda: qkv.SelfAttention(2, seed=-1), ValueError,
         "SelfAttention: seed must be in 0 to 2^64-1, got int -1"),
        (lambda: qkv.MultiHeadAttention(2, 1, seed=0.5), TypeError,
         "MultiHeadAttention: seed must be an integer, got float 0.5"),
        (lambda: qkv.MultiHeadAttention(2, 1).initialise(-1), ValueError,
         "MultiHeadAttention.initialise: seed must be in 0 to 2^64-1, got int -1"),
        (lambda: qkv.SelfAttention(2**40), ValueError,
         "SelfAttention: width must be smaller: parameters may take at most 2^63 - 1 bytes, got "
         "float32 [1099511627776,1099511627776]"),
        (lambda: qkv.MultiHeadAttention(2**31, 2, dtype="float64"), ValueError,
         "MultiHeadAttention: width must be smaller: parameters may take at most 2^63 - 1 bytes, "
         "got float64 [2147483648,2147483648]"),
        (lambda: qkv.MultiHeadAttention(2**20, 2**30, form="wide"), ValueError,
         "MultiHeadAttention: width or heads must be smaller: parameters may take at most "
         "2^63 - 1 bytes, got float32 [1073741824,1048576,1048576]"),
        (lambda: qkv.BilinearAttention(2**40, 2**41), ValueError,
         "BilinearAttention: query_width or key_width must be smaller: parameters may take at most "
         "2^63 - 1 bytes, got float32 [1099511627776,2199023255552]"),
        (lambda: qkv.AdditiveAttention(2**62, 1, 1), ValueError,
         "AdditiveAttention: query_width or units must be smaller: parameters may take at most "
         "2^63 - 1 bytes, got float32 [1,4611686018427387904]"),
        (lambda: qkv.AdditiveAttention(1, 2**40, 2**40), ValueError,
         "AdditiveAttention: key_width or units must be smaller: parameters may take at most "
         "2^63 - 1 bytes, got float32 [1099511627776,1099511627776]"),
        (lambda: qkv.DotProductAttention().save("x"), ValueError,
         "DotProductAttention.save: the layer has no parameters to save"),
        (lambda: qkv.DotProductAttention().load("x"), ValueError,
         "DotProductAttention.load: the layer has no parameters to load"),
    ],
)  # fmt: skip
def test_constructors_and_others_name_the_argument(make, kind, text):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == text


X = np.ones((2, 3, 4), np.float32)
FINE = X.astype(float)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "text"),
    [
        ((X, X[..., :3], X), {}, ValueError,
         "k must have 4 channels, the layer's width, got float32 [2,3,3]"),
        ((X.astype(float), X, X), {}, TypeError,
         "q must be float32 as the layer is, got float64 [2,3,4]"),
        ((X, X, None), {}, ValueError, "v must be given, got None"),
        ((X, "k", X), {}, TypeError,
         "k must be an array (of NumPy, or one that supports DLPack), got str 'k'"),
        ((X, X, X[:, :2]), {}, ValueError,
         "v has Tk = 2 but k has Tk = 3 (k [2,3,4], v [2,2,4])"),
        ((X[0, 0], X, X), {}, ValueError, "q must have rank 2 to 7, got float32 [4]"),
        ((X, X, X, [1, 4]), {}, ValueError,
         "key_lengths must be in 0 to Tk = 3, got 4 for batch entry 1"),
        ((X, X, X), {"causal": "left"}, ValueError,
         "causal must be False, True, \"bottom_right\" or \"top_left\", got str 'left'"),
        ((X, X, X), {"average_weights": True}, ValueError,
         'average_weights requires return_weights=True or "dropped", got False'),
        ((X, X, X), {"bias": X[:, :2]}, ValueError,
         "bias must broadcast to [B,H,Tq,Tk] = [2,2,3,3], got float32 [2,2,4]"),
        ((X, X, X), {"mask": X}, TypeError,
         "mask must be bool or an integer type, got float32 [2,3,4] (numbers to add to the "
         "scores are bias)"),
        ((X, X, X), {"train": 1}, TypeError, "train must be True or False, got int 1"),
        ((X, X, X), {"threads": -1}, ValueError,
         "threads must be in 0 (one for each processor) to 4096, got -1"),
        ((X, X, X), {"return_top": -1}, ValueError,
         "return_top must be 0 (off) or more, got int -1"),
    ],
)  # fmt: skip
def test_forward_names_the_argument(arguments, options, kind, text):
    with pytest.raises(kind) as caught:
        qkv.MultiHeadAttention(4, 2).forward(*arguments, **options)
    assert str(caught.value) == "MultiHeadAttention.forward: " + text


@pytest.mark.parametrize(
    ("arrays", "dtype", "kind", "text"),
    [
        ((X, X[..., :2], X), "float32", ValueError,
         "q must have 3 channels (query_width), got float32 [2,3,4]"),
        ((X[..., :3], X, X), "float32", ValueError,
         "k must have 2 channels (key_width), got float32 [2,3,4]"),
        ((FINE[..., :3], FINE[..., :2], FINE), "float32", TypeError,
         "q must be float32, bfloat16 or float16, as the layer is float32, got float64 [2,3,3]"),
        ((X[..., :3], X, X), "float64", TypeError,
         "q must be float64, as the layer is float64, got float32 [2,3,3]"),
        ((X[..., :3], X[..., :2].astype(float), X), "float32", TypeError,
         "k must be float32, bfloat16, float16 or q8 where q is float32, got float64 [2,3,2]"),
        ((X[..., :3].astype(int), X, X), "float32", TypeError,
         "q must be float64, float32, bfloat16 or float16, got int64 [2,3,3]"),
    ],
)  # fmt: skip
def test_layers_with_widths_name_them(arrays, dtype, kind, text):
    for layer in (
        qkv.BilinearAttention(3, 2, dtype=dtype),
        qkv.AdditiveAttention(3, 2, 5, dtype=dtype),
    ):
        with pytest.raises(kind) as caught:
            layer.forward(*arrays)
        assert str(caught.value) == f"{type(layer).__name__}.forward: {text}"


def test_self_attention_names_its_argument_x():
    layer = qkv.SelfAttention(4)
    for wrong in (None, "x", X[..., :3], X.astype(float), X[0, 0], X.astype(int)):
        with pytest.raises((ValueError, TypeError), match="^SelfAttention.forward: x must "):
            layer.forward(wrong)


def test_backward_names_the_argument():
    layer = qkv.MultiHeadAttention(4, 2)
    layer.forward(X, X, X)
    for arguments, text in [
        ({"dout": None}, "dout, dlse and dweights are absent, so there is nothing to compute"),
        ({"dout": X[:, :1]}, r"dout must have the shape \[2,3,4\], got float32 \[2,1,4\]"),
        ({"dout": X, "dlse": X}, r"dlse must have the shape \[B,H,Tq\] = \[2,2,3\]"),
        ({"dout": X, "dweights": X}, r"dweights must have the shape \[B,H,Tq,Tk\] = \[2,2,3,3\]"),
    ]:
        with pytest.raises(ValueError, match="^MultiHeadAttention.backward: " + text):
            layer.backward(**arguments)
    with pytest.raises(TypeError, match=r"^MultiHeadAttention.backward: dout must be an array"):
        layer.backward(1.0)
