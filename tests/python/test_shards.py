# SPDX-License-Identifier: Apache-2.0
"""Tests `shard` and `merge`: parts of a longer sequence against the whole call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_calls import needs_torch, torch

import qkv

B, H, G, T, D, E = 2, 4, 2, 300, 8, 6
random = np.random.default_rng(5)
Q, K, V = (random.standard_normal((B, n, T, d)) for n, d in ((H, D), (G, D), (G, E)))
DOUT = random.standard_normal((B, H, T, E))
SLOPES, SINKS = np.abs(random.standard_normal(H)), random.standard_normal(H)
TABLE = random.standard_normal((H, 2 * T))
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (40, 7), "softcap": 9.0},
    "offset": {"causal": True, "causal_offset": -3, "alibi_slopes": SLOPES},
    "lengths": {"key_lengths": [250, 31]},
    "rotary": {"rotary": "halves", "qk_norm": True},
    "sinks": {"sinks": SINKS},
    "dropout": {"dropout": 0.3, "seed": 4},
    "functions": {
        "score_mod": lambda s, at: s + qkv.captured(TABLE, "table")[at.h, at.j - at.i + T],
        "mask_mod": lambda at: (at.i + at.j) % at.Tk < 200,
    },
}
CUTS = (0, 4, 128, 300)  # bounds of parts of the keys; with dropout, multiples of 4


def part(x: Any, begin: int, end: int) -> Any:
    return x[:, :, begin:end]


def of_keys(n: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options of part n of the keys, from 0; only part 0 has the sinks."""
    options = dict(options) if n == 0 else {**options, "sinks": None}
    return {**options, "shard": qkv.Shard(0, T, CUTS[n], T)}


@pytest.mark.parametrize("name", OPTIONS)
def test_parts_of_the_queries_are_rows_of_the_whole(name: str) -> None:
    options = OPTIONS[name]
    want = qkv.attention(Q, K, V, **options, return_lse=True)
    for begin, end in ((0, 1), (130, 299)):
        got = qkv.attention(
            part(Q, begin, end), K, V, **options, shard=(begin, T, 0, T), return_lse=True
        )
        np.testing.assert_array_equal(got.out, part(want.out, begin, end))
        np.testing.assert_array_equal(got.lse, part(want.lse, begin, end))


@pytest.mark.parametrize("name", OPTIONS)
def test_parts_of_the_keys_merge(name: str) -> None:
    options = OPTIONS[name]
    want = qkv.attention(Q, K, V, **options, return_lse=True)
    results = [
        qkv.attention(Q, part(K, *CUTS[n : n + 2]), part(V, *CUTS[n : n + 2]),
                      **of_keys(n, options), return_lse=True)
        for n in range(3)
    ]  # fmt: skip
    out, lse = results[0]
    before = out.copy()
    for more in results[1:]:
        out, lse = qkv.merge(out, lse, *more)
    np.testing.assert_allclose(out, want.out, atol=1e-12)
    np.testing.assert_allclose(lse, want.lse, atol=1e-12)
    np.testing.assert_array_equal(before, results[0].out)  # merge makes new arrays


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_of_parts_add_up(name: str) -> None:
    options = OPTIONS[name]
    out, lse = qkv.attention(Q, K, V, **options, return_lse=True)
    want = qkv.attention_backward(DOUT, Q, K, V, out, lse, **options)
    dq = np.zeros_like(Q)
    captured = np.zeros_like(TABLE)
    for n in range(3):
        given = {**options, "shard": (0, T, CUTS[n], T)}
        keys = [part(x, *CUTS[n : n + 2]) for x in (K, V)]
        got = qkv.attention_backward(DOUT, Q, *keys, out, lse, **given)
        np.testing.assert_allclose(got.dk, part(want.dk, *CUTS[n : n + 2]), atol=1e-12)
        np.testing.assert_allclose(got.dv, part(want.dv, *CUTS[n : n + 2]), atol=1e-12)
        dq += got.dq
        if got.dcaptured:
            captured += got.dcaptured["table"]
        if got.dsinks is not None:
            np.testing.assert_allclose(got.dsinks, want.dsinks, atol=1e-12)
    np.testing.assert_allclose(dq, want.dq, atol=1e-11)
    if want.dcaptured:
        np.testing.assert_allclose(captured, want.dcaptured["table"], atol=1e-11)


@needs_torch
def test_tensors_have_gradients_and_graphs() -> None:
    import qkv.torch

    q, k, v = (torch.from_numpy(x).requires_grad_() for x in (Q, K, V))

    def call(q: Any, k: Any, v: Any) -> Any:
        return qkv.torch.attention(q, k[:, :, 128:], v[:, :, 128:], causal=True,
                                   shard=(0, T, 128, T))  # fmt: skip

    out = call(q, k, v)
    np.testing.assert_array_equal(
        out.detach().numpy(),
        qkv.attention(Q, K[:, :, 128:], V[:, :, 128:], causal=True, shard=(0, T, 128, T)),
    )
    want = torch.autograd.grad(out.sum(), (q, k, v))
    graph = torch.func.vjp(call, q.detach(), k.detach(), v.detach())[1](torch.ones_like(out))
    for x, y in zip(want, graph):
        assert torch.equal(x, y)
    merged = qkv.merge(out.detach(), torch.zeros(B, H, T, dtype=torch.float64),
                       out.detach(), torch.zeros(B, H, T, dtype=torch.float64))  # fmt: skip
    assert isinstance(merged[0], torch.Tensor)
    torch.testing.assert_close(merged[0], out.detach())


@pytest.mark.parametrize(
    "shard, error, message",
    [
        ((0, T, 0), TypeError, "attention: shard must be None or (first_query, queries, first_key, "
         "keys), got tuple of length 3"),
        (5, TypeError, "attention: shard must be None or (first_query, queries, first_key, keys), "
         "got int 5"),
        ((0, T, 0.5, T), TypeError, "attention: shard.first_key must be an integer, got float 0.5"),
        ((1, T, 0, T), ValueError, "attention: shard must have first_query of 0 or more, and "
         "first_query + Tq of at most queries, got first_query = 1, Tq = 300, queries = 300"),
    ],
)  # fmt: skip
def test_wrong_shards_are_refused(shard: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as raised:
        qkv.attention(Q, K, V, shard=shard)
    assert str(raised.value) == message


def test_caches_and_memories_take_no_shard() -> None:
    cache = qkv.KvCache(1, 1, 4)
    cache.append(np.ones((1, 1, 3, 4)), np.ones((1, 1, 3, 4)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'shard'"):
        cache.attention(np.zeros((1, 1, 1, 4), np.float32), shard=(0, 1, 0, 3))
    params = {"Wq": np.ones((8, 3)), "Wk": np.ones((8, 4)), "v": np.ones(8)}
    memory = qkv.AdditiveMemory(np.ones((2, 5, 4)), params)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shard'"):
        memory.attention(np.zeros((2, 1, 3)), np.ones((2, 5, 6)), shard=(0, 1, 0, 5))


def test_small_weights_of_a_part_keep_nan() -> None:
    keys, values = np.float32([[0.0], [-100.0]]), np.float32([[1.0, 1.0], [np.nan, 1.0]])
    q = np.float32([[1.0]])
    whole = qkv.attention(q, keys, values, scale=1.0)
    assert np.isnan(whole[0, 0])
    parts = [
        qkv.attention(q, keys[n : n + 1], values[n : n + 1], scale=1.0, return_lse=True)
        for n in (0, 1)
    ]
    for first, second in ((0, 1), (1, 0)):
        out, _ = qkv.merge(*parts[first], *parts[second])
        np.testing.assert_array_equal(out, whole)
    # An out whose lse is -inf may hold anything.
    masked = (np.full((1, 2), np.nan, np.float32), np.float32([-np.inf]))
    np.testing.assert_array_equal(qkv.merge(*parts[0], *masked)[0], parts[0].out)
