# SPDX-License-Identifier: Apache-2.0
"""Tests that results with keys in pages are bit-identical to those with contiguous keys."""

import numpy as np
import pytest

import qkv

B, H, G, D, E, PAGE = 3, 4, 2, 24, 12, 16
LENGTHS = [40, 0, 600]


def arrays(queries, dtype=np.float32):
    """q, each entry's (k, v), shuffled pages of k and of v (NaN in unused rows), block tables."""
    r = np.random.default_rng(5)
    q = r.normal(size=(B, H, queries, D)).astype(dtype)
    used = [-(-n // PAGE) for n in LENGTHS]
    pages = sum(used) + 2
    order = r.permutation(pages)
    k_pages = np.full((pages, PAGE, G, D), np.nan, dtype)
    v_pages = np.full((pages, PAGE, G, E), np.nan, dtype)
    tables = np.full((B, max(used) + 1), -1, np.int32)
    flat, taken = [], 0
    for b, n in enumerate(LENGTHS):
        k, v = (r.normal(size=(1, G, n, width)).astype(dtype) for width in (D, E))
        flat.append((k, v))
        for j in range(0, n, PAGE):
            page = order[taken]
            taken += 1
            tables[b, j // PAGE] = page
            rows = k[0, :, j : j + PAGE].swapaxes(0, 1)
            k_pages[page, : len(rows)] = rows
            v_pages[page, : len(rows)] = v[0, :, j : j + PAGE].swapaxes(0, 1)
    return q, flat, k_pages, v_pages, tables


@pytest.mark.parametrize("queries", [1, 30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "window": (100, None), "softcap": 5.0}, {"rotary": "halves"}],
    ids=["plain", "masks", "rotary"],
)
def test_results_equal_those_of_contiguous_keys(queries, dtype, options):
    q, flat, k, v, tables = arrays(queries, dtype)
    out, lse = qkv.attention(
        q, k, v, block_tables=tables, context_lens=LENGTHS, return_lse=True, **options
    )
    for b, (keys, values) in enumerate(flat):
        alone = qkv.attention(q[b : b + 1], keys, values, return_lse=True, **options)
        np.testing.assert_array_equal(out[b : b + 1], alone.out)
        np.testing.assert_array_equal(lse[b : b + 1], alone.lse)


def test_scores_with_parameters():
    q, flat, k, v, tables = arrays(2)
    r = np.random.default_rng(6)
    params = {name: r.normal(size=(5, D)).astype(np.float32) for name in ("Wq", "Wk")}
    params["v"] = r.normal(size=5).astype(np.float32)
    options = {"score": "additive", "params": params}
    out = qkv.attention(q, k, v, block_tables=tables, context_lens=np.array(LENGTHS), **options)
    for b, (keys, values) in enumerate(flat):
        np.testing.assert_array_equal(
            out[b], qkv.attention(q[b : b + 1], keys, values, **options)[0]
        )


@pytest.mark.parametrize("given", [{"layout": "bthd"}, {"heads": 4}])
def test_other_layouts_are_refused(given):
    q, _, k, v, tables = arrays(1)
    name = next(iter(given))
    text = rf"attention: {name} is not available with keys in pages \(block_tables\)"
    with pytest.raises(ValueError, match=text):
        qkv.attention(q, k, v, block_tables=tables, context_lens=LENGTHS, **given)
