# SPDX-License-Identifier: Apache-2.0
"""Tests the oracle against torch's own attention where that has the option, else by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from judge import as_float64, needs_torch, torch, worst
from oracle_philox import dropout_factors, known_answers_hold

if torch is not None:
    from bounds_torch import EXACT, Pass
    from oracle_layout import Call, lay_out
    from oracle_torch import evaluate, gradients

pytestmark = needs_torch
LN2, INF = math.log(2), math.inf


def normal(*shape: int, seed: int = 0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def reals(x):
    return torch.tensor(x, dtype=torch.float64)


def qkv(b=2, h=4, g=2, tq=5, tk=7, d=6, e=3):
    return normal(b, h, tq, d), normal(b, g, tk, d, seed=1), normal(b, g, tk, e, seed=2)


def sdpa(q, k, v, **options):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)


def zeros(tq=3, tk=5, **options):
    """The weights [Tq,Tk] if all scores are 0 before bias and masks."""
    call = Call(torch.zeros(tq, 1).double(), torch.zeros(tk, 1).double(), **options)
    return evaluate(call)["weights"]


def rows(*values):
    return np.array(values, dtype=float)


# ---- against torch's own function ---------------------------------------------------------------


@pytest.mark.parametrize("scale", [None, 0.3])
def test_grouped_heads_and_scale_are_torchs(scale):
    q, k, v = qkv()
    assert worst(evaluate(Call(q, k, v, scale=scale))["out"], sdpa(q, k, v, scale=scale)) < 1e-14


def test_a_mask_and_a_bias_are_torchs():
    q, k, v = qkv()
    keep = torch.from_numpy(np.random.default_rng(3).random((2, 1, 5, 7)) < 0.6)
    keep[..., 0] = True
    assert worst(evaluate(Call(q, k, v, mask=keep))["out"], sdpa(q, k, v, attn_mask=keep)) < 1e-14
    bias = normal(4, 5, 7, seed=4)
    got = evaluate(Call(q, k, v, bias=bias))["out"]
    assert worst(got, sdpa(q, k, v, attn_mask=bias.expand(2, 4, 5, 7))) < 1e-14


def test_top_left_causal_is_torchs():
    q, k, v = qkv()
    got = evaluate(Call(q, k, v, causal="top_left"))["out"]
    assert worst(got, sdpa(q, k, v, is_causal=True)) < 1e-14


def test_bthd_is_bhtd_permuted():
    q, k, v = qkv()
    transposed = Call(*(x.transpose(1, 2) for x in (q, k, v)), layout="bthd")
    assert worst(evaluate(transposed)["out"].transpose(1, 2), sdpa(q, k, v)) < 1e-14


def test_gradients_are_torchs():
    q, k, v = qkv()
    dout = normal(2, 4, 5, 3, seed=5)
    leaves = [x.clone().requires_grad_(True) for x in (q, k, v)]
    want = torch.autograd.grad((sdpa(*leaves) * dout).sum(), leaves)
    got = gradients(Call(q, k, v), {"out": dout})
    for name, x in zip("qkv", want):
        assert worst(got[name], x) < 1e-13


# ---- ranks --------------------------------------------------------------------------------------


def test_ranks():
    q, k, v = qkv(b=2, h=3, g=3)
    whole = evaluate(Call(q, k, v))["out"]
    assert worst(evaluate(Call(q[1, 2], k[1, 2], v[1, 2]))["out"], whole[1, 2]) < 1e-15
    assert worst(evaluate(Call(q[:, 0], k[:, 0], v[:, 0]))["out"], whole[:, 0]) < 1e-15
    # With ranks 3 and 4, the first axis of the rank 3 array is the head axis.
    one = evaluate(Call(q[0], k, v))["out"]
    assert worst(one[1, 2], evaluate(Call(q[0, 2], k[1, 2], v[1, 2]))["out"]) < 1e-15
    # Queries of rank 2 with keys of rank 3, and arrays with two batch axes.
    assert evaluate(Call(q[0, 0], k[0], v[0]))["out"].shape == (3, 5, 3)
    five = evaluate(Call(q[:, None], k[None], v[None]))["out"]
    assert five.shape == (2, 2, 3, 5, 3)
    assert worst(five[1, 0], evaluate(Call(q[1], k[0], v[0]))["out"]) < 1e-15


# ---- masks by hand ------------------------------------------------------------------------------


def test_causal_corners_and_offsets_by_hand():
    assert (
        worst(zeros(causal=True), rows([1 / 3] * 3 + [0] * 2, [0.25] * 4 + [0], [0.2] * 5)) < 1e-15
    )
    top_left = rows([1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [1 / 3] * 3 + [0] * 2)
    assert worst(zeros(causal="top_left"), top_left) < 1e-15
    shifted = rows([0] * 5, [1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0])
    assert worst(zeros(causal=True, causal_offset=-1), shifted) < 1e-15
    q, k = torch.zeros(2, 3, 1).double(), torch.zeros(2, 5, 1).double()
    offsets = torch.tensor([0, -1])
    each = evaluate(Call(q, k, causal=True, causal_offset=offsets))["weights"]
    assert worst(each, np.stack([top_left, shifted])) < 1e-15


def test_window_lengths_and_padding_by_hand():
    want = rows([0, 1 / 3, 1 / 3, 1 / 3, 0], [0, 0, 0.5, 0.5, 0], [0, 0, 0, 1, 0])
    assert worst(zeros(window=(1, 1), key_lengths=torch.tensor([4])), want) < 1e-15
    each = torch.tensor([[2, 0, 5]])
    want = rows([0.5, 0.5, 0, 0, 0], [0] * 5, [0.2] * 5)
    assert worst(zeros(key_lengths=each), want) < 1e-15
    padding = torch.tensor([[True, False, True, True, False]])
    assert worst(zeros(padding_mask=padding), rows(*[[0, 0.5, 0, 0, 0.5]] * 3)) < 1e-15


def test_bias_alibi_and_sinks_by_hand():
    bias = reals([0, 0, LN2, 0, -INF])
    assert worst(zeros(bias=bias), rows(*[[0.2, 0.2, 0.4, 0.2, 0]] * 3)) < 1e-15
    slopes = reals([LN2])
    want = rows([0.5, 1, 0.5], [0.25, 0.5, 1]) / rows([2, 2, 2], [1.75, 1.75, 1.75])
    assert worst(zeros(2, 3, alibi_slopes=slopes), want) < 1e-15
    sinks = reals([LN2])
    assert worst(zeros(1, 2, sinks=sinks), rows([0.25, 0.25])) < 1e-15
    call = Call(torch.zeros(1, 1).double(), torch.zeros(2, 1).double(), sinks=sinks)
    found = evaluate(call)
    assert abs(float(found["lse"][0]) - math.log(4)) < 1e-15
    assert abs(float(found["row_max"][0]) - LN2) < 1e-15


def test_soft_cap_and_scores_by_hand():
    q, k = reals([[2.0]]), reals([[3.0], [-1.0]])
    found = evaluate(Call(q, k, score="dot", scale=0.5, softcap=2.0, bias=torch.ones(2).double()))
    assert worst(found["raw"], rows([3, -1])) == 0
    assert worst(found["capped"], rows([2 * math.tanh(1.5), 2 * math.tanh(-0.5)])) < 1e-15
    assert worst(found["masked"], as_float64(found["capped"]) + 1) < 1e-15


def test_bilinear_and_additive_by_hand():
    q, k = reals([[1.0], [-1.0]]), reals([[1.0, 0], [0, 1], [1, 1]])
    w = reals([[2.0, -3.0]])
    raw = evaluate(Call(q, k, score="bilinear", params={"W": w}))["raw"]
    assert worst(raw, rows([2, -3, -1], [-2, 3, 1])) == 0
    params = {
        "Wq": reals([[-1.0], [1.0]]),
        "Wk": reals([[1, 0.5], [0, 2.0]]),
        "v": reals([1, -0.5]),
    }
    raw = evaluate(Call(q, k, score="additive", params=params))["raw"]
    t = math.tanh
    assert abs(float(raw[0, 0]) - (t(0) - 0.5 * t(1))) < 1e-15
    assert abs(float(raw[1, 2]) - (t(2.5) - 0.5 * t(1))) < 1e-15
    params["b"] = reals([0.25, -1.0])
    raw = evaluate(Call(q, k, score="additive", params=params))["raw"]
    assert abs(float(raw[1, 2]) - (t(2.75) - 0.5 * t(0))) < 1e-15


# ---- empty rows, dropout, packed sequences, bounds ----------------------------------------------


def test_empty_rows():
    q, k, v = qkv(1, 1, 1, 2, 3)
    sinks = reals([0.5])
    lengths = torch.tensor([0])
    found = evaluate(Call(q, k, v, key_lengths=lengths, sinks=sinks))
    assert worst(found["out"], np.zeros((1, 1, 2, 3))) == 0
    assert worst(found["lse"], np.full((1, 1, 2), 0.5)) == 0
    assert worst(evaluate(Call(q, k, v, key_lengths=lengths))["lse"], np.full((1, 1, 2), -INF)) == 0
    into = {"out": torch.ones(1, 1, 2, 3).double(), "lse": torch.ones(1, 1, 2).double()}
    got = gradients(Call(q, k, v, key_lengths=lengths, sinks=sinks), into)
    assert worst(got["sinks"], rows(2)) == 0
    assert all(worst(got[name], torch.zeros_like(got[name])) == 0 for name in "qkv")


def test_philox_known_answers_and_the_mask_of_dropout():
    assert known_answers_hold()

    def kept(seed, p, shape):
        return dropout_factors(p, seed, *map(np.arange, shape)) != 0

    # docs/mechanisms/dropout.md shows the first four columns of this mask.
    mask = kept(7, 0.5, (1, 1, 2, 8))[0, 0]
    assert mask.tolist() == [
        [True, True, False, False, False, True, False, True],
        [False, False, True, True, False, False, False, False],
    ]
    q, k, v = qkv(2, 2, 2, 4, 6)
    found = evaluate(Call(q, k, v, dropout=0.25, seed=9))
    assert worst(found["dropped"] @ v, found["out"]) < 1e-15
    assert (
        worst(found["dropped"], as_float64(found["weights"]) * kept(9, 0.25, (2, 2, 4, 6)) / 0.75)
        < 1e-15
    )


def test_packed_is_each_sequence_by_itself():
    q, k, v = normal(5, 2, 3), normal(7, 1, 3, seed=1), normal(7, 1, 2, seed=2)
    cu_q, cu_k = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 4, 6, 7])
    packed = Call(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True)
    found = evaluate(packed)
    assert found["out"].shape == (5, 2, 2) and found["lse"].shape == (2, 5)
    assert found["column_sums"].shape == (2, 7)
    last = Call(*(x.transpose(0, 1)[None] for x in (q[2:], k[6:], v[6:])), causal=True)
    assert worst(found["out"][2:].transpose(0, 1)[None], evaluate(last)["out"]) < 1e-15


def test_the_formulas_of_the_bounds_are_autograds():
    """The backward pass of bounds_torch.Pass, written by hand, gives autograd's ds in float64."""
    q, k, v = qkv(1, 2, 2, 4, 6)
    into = {
        "out": normal(1, 2, 4, 3, seed=6),
        "lse": normal(1, 2, 4, seed=7),
        "weights": normal(1, 2, 4, 6, seed=8),
    }
    bias = normal(1, 2, 4, 6, seed=9)
    options = {"bias": bias, "sinks": normal(2, seed=10), "dropout": 0.3, "seed": 5}
    call = Call(q, k, v, **options)
    ds, size, _ = Pass(lay_out(call)[0], EXACT).score_gradient(into)
    assert worst(ds, gradients(call, into)["bias"]) < 1e-14
    assert bool((size >= ds.abs()).all())
