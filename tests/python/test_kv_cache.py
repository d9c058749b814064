# SPDX-License-Identifier: Apache-2.0
"""Tests that qkv.KvCache is bit-identical to attention over all keys of an entry."""

import threading

import ml_dtypes
import numpy as np
import pytest

import qkv

RANDOM = np.random.default_rng(5)
B, H, G, D, E = 2, 4, 2, 8, 6


def draw(*shape):
    return RANDOM.standard_normal(shape, dtype=np.float32)


def test_attention_equals_that_of_contiguous_keys():
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


def test_truncate_reorder_and_windows():
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


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "q8"])
@pytest.mark.parametrize("window", [0, 20])
def test_attention_of_one_entry(dtype, window):
    cache = qkv.KvCache(B, G, 32, 64, page=16, dtype=dtype, window=window, queries=2)
    k, v = draw(B, G, 100, 32), draw(B, G, 100, 64)
    cache.append(k, v)
    cache.append(k[:1, :, :7], v[:1, :, :7], entries=[0])
    name = {"q8": "float32", "bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    q = draw(B, H, 2, 32).astype(name)
    options = {"causal": True, "softcap": 5.0, "alibi_slopes": np.full(H, 0.1, np.float32)}
    if name == "float64":
        options["alibi_slopes"] = options["alibi_slopes"].astype(np.float64)
    want, lse = cache.attention(q, **options, return_lse=True)
    for entry, length in enumerate((107, 100)):
        got = cache.attention_of(entry, q, **options, return_lse=True, return_weights=True)
        assert got.out.tobytes() == want[entry : entry + 1].tobytes()
        assert got.lse.tobytes() == lse[entry : entry + 1].tobytes()
        assert got.weights.shape == (1, H, 2, length)
        if window:
            assert cache.first_key(entry) > 0 and not got.weights[..., : length - 21].any()
        np.testing.assert_allclose(got.weights.astype(float).sum(-1), 1, rtol=1e-2)


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
        (lambda c: c.attention_of(9, np.zeros((1, 1, 1, 8))), ValueError,
         "KvCache.attention_of: entry must be in 0 to B-1 = 1, got 9"),
        (lambda c: c.attention_of("a", np.zeros((1, 1, 1, 8))), TypeError,
         "KvCache.attention_of: entry must be "),
        (lambda c: c.attention_of(0, np.zeros((1, 8))), ValueError,
         "KvCache.attention_of: q must be an array [B,H,Tq,D] with B = "),
        (lambda c: c.attention_of(0, [1.0]), ValueError,
         "KvCache.attention_of: q must be an array [B,H,Tq,D] with B = "),
        (lambda c: c.attention_of(0, np.zeros((1, 1, 1, 8)), heads=2), TypeError,
         "KvCache.attention_of() got an unexpected keyword argument 'heads'"),
        (lambda c: qkv.KvCache(1, 1, 8, window=4).attention_of(0, np.zeros((1, 1, 1, 8)), window=2),
         TypeError, "KvCache.attention_of() got an unexpected keyword argument 'window'"),
        (lambda c: qkv.KvCache(1, 1, 8, page=8), ValueError,
         "KvCache: page must be a multiple of 16, got 8"),
        (lambda c: qkv.KvCache(0, 1, 8), ValueError, "KvCache: B must be 1 or more, got 0"),
        (lambda c: qkv.KvCache(1, 0, 8), ValueError, "KvCache: G must be 1 or more, got 0"),
        (lambda c: qkv.KvCache(1, 1, 0), ValueError, "KvCache: D must be 1 or more, got 0"),
        (lambda c: qkv.KvCache(1, 1, 8, -1), ValueError, "KvCache: E must be 1 or more, got -1"),
        (lambda c: qkv.KvCache(1, 1, 8, window=-1), ValueError,
         "KvCache: window must be in 0 to 2^53, got -1"),
        (lambda c: qkv.KvCache(1, 1, 8, window=1, queries=0), ValueError,
         "KvCache: queries must be in 1 to 2^53, got 0"),
        (lambda c: qkv.KvCache(1, 1, 8, dtype="int8"), ValueError, "KvCache: dtype must be "),
        (lambda c: qkv.KvCache(True, 1, 8), TypeError, "KvCache: B must be "),
        (lambda c: c.append(draw(1, G, 1, D), draw(1, G, 1, D)), ValueError,
         "KvCache.append: k must have the shape [n,G,T,D] = [2,2,1,8], got float32 [1,2,1,8]"),
        (lambda c: c.append(draw(1, G, 1, D), draw(1, G, 1, D), entries=[2]), ValueError,
         "KvCache.append: entries must be in 0 to B-1 = 1, got 2"),
        (lambda c: c.append(draw(1, G, 1, D), draw(1, G, 1, D), entries="0"), TypeError,
         "KvCache.append: entries must be a list of integers, got str"),
        (lambda c: c.append(draw(1, G, 1, D), draw(1, G, 1, D), entries=range(2**60)), ValueError,
         "KvCache.append: entries must be at most B = 2 integers, got 1152921504606846976"),
        (lambda c: c.reorder(range(2**60)), ValueError,
         "KvCache.reorder: entries must be at most B = 2 integers, got 1152921504606846976"),
        (lambda c: qkv.KvCache(2**62, 1, 8), MemoryError, ""),
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
        (lambda c: c.attention(draw(B + 1, H, 1, D)), ValueError,
         "KvCache.attention: q must be [B,H,Tq,D] with B = 2, the entries of the cache, got floa"),
        (lambda c: c.attention(draw(B, 1, D)), ValueError,
         "KvCache.attention: q must be [B,H,Tq,D] with B = 2, the entries of the cache, got floa"),
        (lambda c: c.reorder(np.array(0)), TypeError,
         "KvCache.reorder: entries must be a list of integers, got "),
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


# ---- files --------------------------------------------------------------------------------------


def beams(dtype="float32", window=0):
    """A cache whose entries share one page; each entry has another page for itself."""
    cache = qkv.KvCache(B, G, D, E, dtype=dtype, page=16, window=window, queries=1)
    cache.append(draw(B, G, 20, D), draw(B, G, 20, E))
    cache.reorder([1, 1])
    cache.append(draw(B, G, 1, D), draw(B, G, 1, E))
    return cache


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_loaded_cache_continues_as_the_saved_one(dtype, window, tmp_path):
    cache = beams(dtype, window)
    cache.save(tmp_path / "cache")
    others = [qkv.KvCache.from_file(tmp_path / "cache"), qkv.KvCache(**cache.sizes)]
    others[1].append(draw(B, G, 3, D), draw(B, G, 3, E))
    others[1].load(str(tmp_path / "cache"))
    k, v, q = draw(B, G, 50, D), draw(B, G, 50, E), draw(B, H, 1, D)
    cache.append(k, v)
    for other in others:
        assert other.sizes == cache.sizes
        assert (other.lengths, other.used_pages) == ((21, 21), 3)
        other.append(k, v)
        if dtype != "bfloat16":
            x = q.astype(dtype)
            assert other.attention(x).tobytes() == cache.attention(x).tobytes()
        other.save(tmp_path / "other")
        cache.save(tmp_path / "cache again")
        assert (tmp_path / "other").read_bytes() == (tmp_path / "cache again").read_bytes()


def test_errors_of_files(tmp_path):
    cache, other = beams(), qkv.KvCache(B, G, D, E + 1, page=16)
    path = tmp_path / "cache"
    cache.save(path)
    with pytest.raises(ValueError, match=rf"^{path}: E: expected {E + 1}, got {E}$"):
        other.load(path)
    assert other.lengths == (0, 0)
    with pytest.raises(OSError, match="cannot be written"):
        cache.save(tmp_path / "absent" / "cache")
    for read in (cache.load, qkv.KvCache.from_file):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "absent")
        (tmp_path / "cut").write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ValueError, match=r"cut: byte \d+: "):
            read(tmp_path / "cut")
    assert cache.lengths == (21, 21)


def test_the_package_safetensors_reads_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    cache = beams()
    cache.save(tmp_path / "cache")
    arrays = safetensors.load_file(tmp_path / "cache")
    assert arrays["block_tables"].tolist() == [[0, 1], [0, 2]]
    k = arrays["k_pages"]
    assert k.shape == (3, 16, G, D)
    np.testing.assert_array_equal(k[1, :5], cache.k_pages[cache.block_tables[0, 1], :5])
    assert not k[1, 5:].any()


# ---- q8 -----------------------------------------------------------------------------------------


def q8_cache(**sizes):
    return qkv.KvCache(B, G, 64, 32, dtype="q8", page=16, **sizes)


def test_appending_to_q8_quantizes_as_quantize_q8():
    numbers, blocks = q8_cache(), q8_cache()
    k, v = draw(B, G, 40, 64), draw(B, G, 40, 32)
    k8, v8 = qkv.quantize_q8(k), qkv.quantize_q8(v)
    by_token = [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (k, v)]
    numbers.append(*by_token)
    blocks.append(k8, v8)
    assert numbers.k_pages.dtype == qkv.q8
    assert numbers.k_pages.shape[1:] == (16, G, 2)
    assert numbers.v_pages.shape[1:] == (16, G, 1)
    assert not numbers.k_pages.flags.writeable
    tables = numbers.block_tables
    for pages, rows in ((numbers.k_pages, k8), (numbers.v_pages, v8)):
        got = pages[tables[1]].reshape(-1, G, rows.shape[-1])[:40]
        assert got.tobytes() == rows[1].swapaxes(0, 1).tobytes()
    for queries in (1, 30):
        q = draw(B, H, queries, 64)
        want = qkv.attention(q, k8, v8, causal=True)
        assert numbers.attention(q, causal=True).tobytes() == want.tobytes()
        assert blocks.attention(q, causal=True).tobytes() == want.tobytes()
        paged = qkv.attention(
            q, numbers.k_pages, numbers.v_pages, block_tables=tables,
            context_lens=numbers.context_lens, causal=True,
        )  # fmt: skip
        assert paged.tobytes() == want.tobytes()
    # 6 pages of 16 tokens with 3 blocks of 34 bytes per key head; factor 2 is room to grow.
    assert numbers.nbytes < 2 * 6 * 16 * G * 3 * 34 + 4096 * 2


def test_q8_in_a_file(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    cache = q8_cache(window=20, queries=1)
    cache.append(draw(B, G, 60, 64).astype(np.float16), draw(B, G, 60, 32))
    cache.reorder([1, 1])
    cache.save(tmp_path / "cache")
    others = [qkv.KvCache.from_file(tmp_path / "cache"), qkv.KvCache(**cache.sizes)]
    others[1].load(tmp_path / "cache")
    k, v, q = draw(B, G, 3, 64), draw(B, G, 3, 32), draw(B, H, 1, 64)
    cache.append(k, v)
    for other in others:
        assert other.sizes == cache.sizes
        assert other.sizes["dtype"] == "q8"
        other.append(k, v)
        assert other.attention(q).tobytes() == cache.attention(q).tobytes()
    arrays = safetensors.load_file(tmp_path / "cache")
    assert arrays["k_pages"].dtype == np.uint8
    blocks = arrays["k_pages"].view(qkv.q8)
    page = arrays["block_tables"][0, 2]
    np.testing.assert_array_equal(blocks[page], cache.k_pages[cache.block_tables[0, 2]])
    plain = qkv.KvCache(B, G, 64, 32, page=16, window=20, queries=1)
    with pytest.raises(ValueError, match="dtype: expected float32, got q8$"):
        plain.load(tmp_path / "cache")


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda c: qkv.KvCache(1, 1, 48, dtype="q8"), ValueError,
         "KvCache: D must be a multiple of 32 with q8, got 48"),
        (lambda c: qkv.KvCache(1, 1, 32, 8, dtype="q8"), ValueError,
         "KvCache: E must be a multiple of 32 with q8, got 8"),
        (lambda c: c.append(draw(B, G, 1, 64).astype(float), draw(B, G, 1, 32)), TypeError,
         "KvCache.append: k must be float32, bfloat16, float16 or q8, got float64 [2,2,1,64]"),
        (lambda c: c.append(draw(B, G, 1, 64), qkv.quantize_q8(draw(B, G, 1, 64))), ValueError,
         "KvCache.append: v must have the shape [n,G,T,E/32] = [2,2,1,1], got q8 [2,2,1,2]"),
        (lambda c: c.append(draw(B, G, 1, 64), np.full((B, G, 1, 32), np.nan, np.float32)),
         ValueError,
         "KvCache.append: v must hold numbers between -65520 * 127 and 65520 * 127, got nan"),
        (lambda c: c.attention(draw(B, H, 1, 64).astype(float)), TypeError,
         "KvCache.attention: k must be float64 where q is float64, got q8"),
    ],
)  # fmt: skip
def test_errors_of_q8(call, kind, text):
    cache = q8_cache()
    cache.append(draw(B, G, 20, 64), draw(B, G, 20, 32))
    with pytest.raises(kind) as caught:
        call(cache)
    assert str(caught.value).startswith(text), caught.value
    assert cache.lengths == (20, 20)


# ---- views of pages -----------------------------------------------------------------------------


def test_pages_are_those_of_the_cache():
    cache = qkv.KvCache(B, G, D, E, page=16)
    assert cache.k_pages.shape == (0, 16, G, D)
    assert cache.block_tables.shape == (B, 0)
    k, v, q = draw(B, G, 40, D), draw(B, G, 40, E), draw(B, H, 2, D)
    cache.append(k, v)
    cache.truncate(1, 20)
    tables, lengths = cache.block_tables, cache.context_lens
    assert (tables.dtype, lengths.dtype, tables.shape) == (np.int64, np.int64, (B, 3))
    assert tables[1, 2] == -1
    assert lengths.tolist() == [40, 20]
    for pages, rows in ((cache.k_pages, k), (cache.v_pages, v)):
        got = pages[tables[0]].reshape(-1, G, rows.shape[-1])[:40]
        np.testing.assert_array_equal(got, rows[0].swapaxes(0, 1))
    got = qkv.attention(
        q, cache.k_pages, cache.v_pages, block_tables=tables, context_lens=lengths, causal=True
    )
    assert got.tobytes() == cache.attention(q, causal=True).tobytes()
    tables[:], lengths[:] = 0, 0  # writes to copies
    assert cache.context_lens.tolist() == [40, 20]
    assert cache.block_tables.any()


def test_pages_with_a_window():
    cache = qkv.KvCache(1, G, D, page=16, window=20, queries=1)
    k, q = draw(1, G, 100, D), draw(1, H, 1, D)
    for j in range(100):
        cache.append(k[:, :, j : j + 1], k[:, :, j : j + 1])
    got = qkv.attention(
        q, cache.k_pages, cache.k_pages, block_tables=cache.block_tables,
        context_lens=cache.context_lens, window=(19, None),
    )  # fmt: skip
    assert got.tobytes() == cache.attention(q).tobytes()


def test_pages_in_use_do_not_move(tmp_path):
    cache = qkv.KvCache(1, G, D, page=16)
    cache.reserve(2)
    part = cache.k_pages[0, :, 0]
    with pytest.raises(ValueError, match="read-only"):
        part[:] = 0
    k = draw(1, G, 32, D)
    cache.append(k, k)  # the reserved room suffices
    np.testing.assert_array_equal(part, k[0, 0, :16])
    for grow in (lambda: cache.append(k, k), lambda: cache.reserve(3)):
        with pytest.raises(BufferError, match=r"\(arrays of k_pages and v_pages hold them\)$"):
            grow()
    assert cache.lengths == (32,)
    cache.save(tmp_path / "cache")
    with pytest.raises(BufferError, match="the pages cannot be replaced while held"):
        cache.load(tmp_path / "cache")
    del cache, grow
    np.testing.assert_array_equal(part, k[0, 0, :16])  # the pages outlive the cache
    cache = qkv.KvCache.from_file(tmp_path / "cache")
    values = cache.v_pages
    del values
    cache.append(k, k)
    assert cache.lengths == (64,)
    with pytest.raises(ValueError, match="KvCache.reserve: pages must be 0 or more, got -1"):
        cache.reserve(-1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "q8"])
def test_pages_are_read_only_even_if_there_are_none(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    cache = qkv.KvCache(1, G, 32, page=16, dtype=dtype)
    for pages in (cache.k_pages, cache.v_pages):
        assert pages.shape[:3] == (0, 16, G)
        assert not pages.flags.writeable


def test_bfloat16_pages():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    cache = qkv.KvCache(1, G, D, page=16, dtype="bfloat16")
    k = draw(1, G, 16, D)
    cache.append(k, k)
    pages = cache.k_pages
    assert pages.dtype == ml_dtypes.bfloat16
    assert not pages.flags.writeable
    np.testing.assert_array_equal(pages[0], k[0].swapaxes(0, 1).astype(ml_dtypes.bfloat16))
    cache.truncate(0, 0)
    with pytest.raises(BufferError):
        cache.append(np.tile(k, (1, 1, 9, 1)), np.tile(k, (1, 1, 9, 1)))


# ---- draft tokens and windows -------------------------------------------------------------------


def test_with_a_window_all_draft_tokens_may_be_rejected():
    cache = qkv.KvCache(1, G, D, page=16, window=20, queries=5)
    k, q = draw(1, G, 200, D), draw(1, H, 1, D)
    cache.append(k[:, :, :64], k[:, :, :64])  # fills pages, to keep the fewest keys
    assert cache.first_key(0) + 20 == 36
    for start in range(64, 180, 5):
        cache.append(k[:, :, start : start + 5], k[:, :, start : start + 5])
        cache.truncate(0, start)  # all `queries` draft tokens are rejected
        flat = qkv.attention(q, k[:, :, :start], k[:, :, :start], window=(19, 0))
        assert cache.attention(q).tobytes() == flat.tobytes()
        cache.append(k[:, :, start : start + 5], k[:, :, start : start + 5])
    first, length = cache.first_key(0), cache.lengths[0]
    with pytest.raises(ValueError) as raised:
        cache.truncate(0, first + 19)
    assert str(raised.value) == (
        f"KvCache.truncate: length must be 0 or in {first + 20} to {length}: of the {length} keys "
        f"of entry 0 those before key {first} are dropped and a query attends to the last 20, so "
        f"that at most {length - first - 20} can be removed; got {first + 19}"
    )
    assert cache.lengths == (length,)
    cache.truncate(0, first + 20)
    assert cache.attention(q).shape == q.shape


# ---- threads ------------------------------------------------------------------------------------


def test_append_runs_without_the_gil():
    cache = qkv.KvCache(1, 1, 64, dtype="float16", page=16)
    k, one = draw(1, 1, 64, 64), draw(1, 1, 1, 64)
    calls = {"append": lambda: cache.append(one, one), "lengths": lambda: cache.lengths}
    count, refused = 1, set()
    # The other thread appends ever more keys, until it was busy during a call of each kind.
    while len(refused) < len(calls):
        many = np.broadcast_to(k.astype(np.float64), (1, 1, 64, 64)).repeat(64 * count, 2)
        thread = threading.Thread(target=cache.append, args=(many, many))
        thread.start()
        while thread.is_alive() and len(refused) < len(calls):
            for name, call in calls.items():
                try:
                    call()
                except ValueError as error:
                    assert str(error) == f"KvCache.{name}: cache is in use by another call"
                    refused.add(name)
        thread.join()
        assert count < 64
        count *= 2
        cache.reset()
    cache.append(one, one)
    assert cache.lengths == (1,)
