# SPDX-License-Identifier: Apache-2.0
"""Tests that q8 has the numbers of ggml's Q8_0, and results bit-identical to a float32 call."""

import numpy as np
import pytest

import qkv


def normal(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def reference(x):
    """The function quantize_row_q8_0_ref of ggml, in float32."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    step = (np.abs(blocks).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    factor = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    product = (blocks * factor).astype(np.float32)
    values = np.trunc(product + np.copysign(np.float32(0.5), product)).astype(np.int8)
    return step[..., 0].astype(np.float16), values


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_blocks_are_those_of_ggml(dtype):
    x = normal((3, 5, 96), 1, dtype)
    blocks = qkv.quantize_q8(x)
    scale, values = reference(x)
    assert blocks.dtype == qkv.q8 and blocks.shape == (3, 5, 3) and blocks.itemsize == 34
    np.testing.assert_array_equal(blocks["scale"], scale)
    np.testing.assert_array_equal(blocks["values"], values)
    numbers = qkv.dequantize_q8(blocks)
    want = blocks["scale"].astype(np.float32)[..., None] * blocks["values"].astype(np.float32)
    np.testing.assert_array_equal(numbers, want.reshape(x.shape))
    largest = np.abs(x.astype(np.float32)).reshape(3, 5, 3, 32).max(-1).repeat(32, -1)
    error = np.abs(numbers - x.astype(np.float32))
    # Half a step (largest / 254), plus the scale's rounding to float16 (2^-11 of largest).
    assert (error <= largest * np.float32(1 / 254 + 1 / 2048)).all()
    assert (error > largest * np.float32(0.9 / 254)).any()


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"layout": "bthd"}, {"heads": 4}, {"score": "cosine"}],
    ids=str,
)
def test_calls_have_the_bits_of_float32(queries, options):
    q = normal((2, 4, queries, 64), 2)
    k, v = qkv.quantize_q8(normal((2, 2, 130, 64), 3)), qkv.quantize_q8(normal((2, 2, 130, 32), 4))
    if options.get("layout") == "bthd" or "heads" in options:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    if "heads" in options:
        q, k, v = (x.reshape(*x.shape[:2], -1) for x in (q, k, v))
    got = qkv.attention(q, k, v, return_lse=True, **options)
    numbers = qkv.dequantize_q8(k), qkv.dequantize_q8(v)
    want = qkv.attention(q, *numbers, return_lse=True, **options)
    assert got.out.dtype == np.float32
    np.testing.assert_array_equal(got.out, want.out)
    np.testing.assert_array_equal(got.lse, want.lse)


def test_pages_and_raw_bytes():
    q = normal((2, 4, 1, 32), 5)
    k, v = qkv.quantize_q8(normal((6, 16, 2, 32), 6)), qkv.quantize_q8(normal((6, 16, 2, 32), 7))
    # The blocks are bytes at an odd address, as in a file of another program.
    raw = np.empty(k.nbytes + 1, np.uint8)[1:].reshape(6, 16, 2, 34)
    raw[:] = k.view(np.uint8).reshape(raw.shape)
    tables, lengths = [[5, 2, 0], [1, 4, 3]], [33, 48]
    pages = {"block_tables": tables, "context_lens": lengths}
    got = qkv.attention(q, raw.view(qkv.q8), v, **pages)
    want = qkv.attention(q, qkv.dequantize_q8(k), qkv.dequantize_q8(v), **pages)
    np.testing.assert_array_equal(got, want)


def test_arrays_save_and_load(tmp_path):
    blocks = qkv.quantize_q8(normal((2, 64), 8))
    np.save(tmp_path / "k.npy", blocks)
    loaded = np.load(tmp_path / "k.npy")
    q = normal((1, 64), 9)
    np.testing.assert_array_equal(
        qkv.attention(q, loaded, loaded), qkv.attention(q, blocks, blocks)
    )


def test_wrong_calls():
    x = normal((4, 64), 10)
    k = qkv.quantize_q8(x)
    q = x[:1]
    with pytest.raises(TypeError, match="k is q8, but keys and values of q8 have no backward pass"):
        qkv.attention_backward(q, q, k, k, q, np.zeros(1, np.float32))
    with pytest.raises(TypeError, match="attention: k must be float64 where q is float64, got q8"):
        qkv.attention(q.astype(np.float64), k, k)
    with pytest.raises(TypeError, match="attention: q must be .* got q8"):
        qkv.attention(k, k, k)
    other = np.dtype([("scale", "<f2"), ("values", "u1", (32,))])
    with pytest.raises(TypeError, match="attention: k must be"):
        qkv.attention(q, k.view(other), k)
    with pytest.raises(ValueError, match="k must have the blocks of a row next to each other"):
        qkv.attention(q, k[:, ::-1], k)
    with pytest.raises(TypeError, match="softmax: x must be"):
        qkv.softmax(k)
    with pytest.raises(
        ValueError, match="quantize_q8: x must have a last axis of a multiple of 32"
    ):
        qkv.quantize_q8(x[:, :40])
    with pytest.raises(ValueError, match="quantize_q8: x must hold numbers between"):
        qkv.quantize_q8(np.full(32, np.nan, np.float32))
    with pytest.raises(TypeError, match="quantize_q8: x must be float32, bfloat16 or float16"):
        qkv.quantize_q8(x.astype(np.float64))
    with pytest.raises(TypeError, match="dequantize_q8: x must be of the dtype q8, got float32"):
        qkv.dequantize_q8(x)
    with pytest.raises(ValueError, match="quantize_q8: x is absent"):
        qkv.quantize_q8(None)
