# SPDX-License-Identifier: Apache-2.0
"""qkv.KvCache: the bits of attention over all keys of an entry."""

import numpy as np
import pytest

import qkv

RANDOM = np.random.default_rng(5)
B, H, G, D, E = 2, 4, 2, 8, 6


def draw(*shape):
    return RANDOM.standard_normal(shape, dtype=np.float32)


def test_equals_keys_in_one_piece():
    cache = qkv.KvCache(B, G, D, E, page=16)
    k, v, q = draw(B, G, 40, D), draw(B, G, 40, E), draw(B, H, 2, D)
    cache.append(k[:, :, :33], v[:, :, :33])
    cache.append(k[:1, :, 33:], v[:1, :, 33:], entries=[0])
    assert cache.lengths == (40, 33)
    out, lse = cache.attention(q, causal=True, return_lse=True, threads=2)
    for b, length in enumerate(cache.lengths):
        one = slice(b, b + 1)
        flat = qkv.attention(q[one], k[one, :, :length], v[one, :, :length], causal=True)
        assert out[one].tobytes() == flat.tobytes()
    assert lse.shape == (B, H, 2)
    assert (cache.used_pages, cache.first_key(0)) == (6, 0)
    assert cache.nbytes >= 6 * 16 * G * (D + E) * 4


def test_guesses_beams_and_windows():
    cache = qkv.KvCache(B, G, D, page=16, window=20, queries=1)
    k, q = draw(B, G, 100, D), draw(B, H, 1, D)
    cache.append(k, k)
    cache.append(k[:, :, :3], k[:, :, :3])
    cache.truncate(0, 100)
    cache.truncate(1, 100)
    flat = qkv.attention(q, k, k, window=(19, 0))
    assert cache.attention(q).tobytes() == flat.tobytes()
    assert cache.first_key(1) == 64
    cache.reorder([1, 1])
    assert cache.used_pages == 3
    alone = qkv.attention(q[:1], k[1:], k[1:], window=(19, 0))
    assert cache.attention(q)[:1].tobytes() == alone.tobytes()
    cache.reset()
    assert cache.lengths == (0, 0)
    assert not cache.attention(q).any()


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_rounds_to_its_dtype(dtype):
    cache = qkv.KvCache(1, G, D, dtype=dtype)
    k = draw(1, G, 9, D)
    cache.append(k, k)
    q = draw(1, H, 1, D).astype(dtype)
    flat = qkv.attention(q, k.astype(dtype), k.astype(dtype))
    assert cache.attention(q).tobytes() == flat.tobytes()


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda c: qkv.KvCache(1, 1, 8, page=8), ValueError,
         "KvCache: page must be a multiple of 16, got 8"),
        (lambda c: qkv.KvCache(1, 1, 8, dtype="int8"), ValueError, "KvCache: dtype must be "),
        (lambda c: qkv.KvCache(True, 1, 8), TypeError, "KvCache: B must be "),
        (lambda c: c.append(draw(1, G, 1, D), draw(1, G, 1, D)), ValueError,
         "KvCache.append: k must have the shape [n,G,T,D] = [2,2,1,8], got float32 [1,2,1,8]"),
        (lambda c: c.append(draw(1, G, 1, D), draw(1, G, 1, D), entries=[2]), ValueError,
         "KvCache.append: entries must be in 0 to B-1 = 1, got 2"),
        (lambda c: c.append(draw(1, G, 1, D), draw(1, G, 1, D), entries="0"), TypeError,
         "KvCache.append: entries must be a list of integers, got str"),
        (lambda c: c.append(None, draw(B, G, 1, D)), ValueError, "KvCache.append: k is absent"),
        (lambda c: c.truncate(0, 51), ValueError, "KvCache.truncate: length must be in 0 to 50"),
        (lambda c: c.reorder([0]), ValueError, "KvCache.reorder: entries must name an entry"),
        (lambda c: c.first_key(5), ValueError, "KvCache.first_key: entry must be in 0 to B-1"),
        (lambda c: c.attention(draw(B, H, 40, D)), ValueError,
         "KvCache.attention: q has Tq = 40, whose window of 20 keys begins before key"),
        (lambda c: c.attention(draw(B, H, 1, D), causal_offset=3), ValueError,
         "KvCache.attention: causal_offset must be "),
        (lambda c: c.attention(draw(B, H, 1, D), return_weights=True), ValueError,
         "KvCache.attention: "),
        (lambda c: c.attention(draw(B, H, 1, D), block_tables=[[0]]), TypeError,
         "KvCache.attention() got an unexpected keyword argument 'block_tables'"),
    ],
)  # fmt: skip
def test_errors(call, kind, text):
    cache = qkv.KvCache(B, G, D, page=16, window=20, queries=1)
    cache.append(draw(B, G, 50, D), draw(B, G, 50, D))
    with pytest.raises(kind) as caught:
        call(cache)
    assert str(caught.value).startswith(text), caught.value
    assert cache.lengths == (50, 50)
