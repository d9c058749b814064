# SPDX-License-Identifier: Apache-2.0
"""Compares the layers with torch: nn.MultiheadAttention by its state dict, others by formulas.

torch.nn.MultiheadAttention masks where `key_padding_mask` or a boolean `attn_mask` is true;
qkv's `mask` is true where a query may attend. A float attn_mask is qkv.attention's `bias`.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Callable

import numpy as np
import pytest
from judge import check, needs_torch, torch

if torch is not None:
    from bounds_torch import FLOAT64, TERMS, largest, ulp

    import qkv

pytestmark = needs_torch
DTYPES = ("float64", "float32")
# The order of the layer's projections in in_proj_weight.
PARTS = ("q", "k", "v")


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def disagreements(dtype: str, got: dict[str, Any], judge: Callable[[Any], dict[str, Any]]) -> str:
    """Complaints about `got`, compared with judge(float64).

    The tolerance of float64 is relative; that of float32 comes from the error of judge(float32).
    """
    exact = judge(torch.float64)
    near = judge(torch.float32)
    wrong = [] if set(got) == set(exact) else [f"{sorted(got)}, expected {sorted(exact)}"]
    for name in set(got) & set(exact):
        # Gradients of key biases cancel to 0; the weight's gradient gives the size of the terms.
        terms = [exact[name], exact.get(name.replace(".bias", ".weight"), exact[name])]
        want, size = exact[name], max(map(largest, terms))
        limit = FLOAT64 * max(size, 1.0)
        if dtype == "float32":
            error = float((near[name].double() - want).abs().max())
            limit = 3 * error + 4 * ulp(size, dtype) + TERMS * ulp(max(size, 1.0), dtype) / 2
        wrong.append(check(name, got[name], want, limit))
    return "\n".join(line for line in wrong if line)


def kind_of(dtype: str, x: Any) -> Any:
    """x rounded to float32, as a NumPy array of `dtype`."""
    return x.to(torch.float32).to(getattr(torch, dtype)).numpy()


def shared(x: Any, dtype: Any) -> Any:
    """x as a tensor for the judge, rounded to float32, that requires gradients."""
    return x.to(torch.float32).to(dtype).requires_grad_(True)


# ---- nn.MultiheadAttention ----------------------------------------------------------------------

WIDTH, HEADS = 12, 3


def torch_mha(**options: Any) -> Any:
    torch.manual_seed(5)
    mha = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
    for p in mha.parameters():  # PyTorch initialises biases to zero
        torch.nn.init.normal_(p, std=0.4)
    return mha.eval()


def arrays(tq: int, tk: int, batch: int = 2) -> tuple[Any, Any, Any]:
    return (
        normal(batch, tq, WIDTH),
        normal(batch, tk, WIDTH, seed=1),
        normal(batch, tk, WIDTH, seed=2),
    )


def mha_judge(mha: Any, inputs: Any, flows: Any, masks: dict[str, Any]) -> Callable[[Any], Any]:
    """Returns judge(dtype): out, weights per head and all gradients of torch's module."""

    def run(dtype: Any) -> dict[str, Any]:
        layer = copy.deepcopy(mha).to(dtype)
        q, k, v = (shared(x, dtype) for x in inputs)
        out, weights = layer(q, k, v, average_attn_weights=False, **masks)
        loss = (out * flows[0].to(dtype)).sum() + (weights * flows[1].to(dtype)).sum()
        loss.backward()
        found = {"out": out.detach(), "weights": weights.detach()}
        found.update(dq=q.grad, dk=k.grad, dv=v.grad)
        for part, weight, bias in zip(
            PARTS, layer.in_proj_weight.grad.chunk(3), layer.in_proj_bias.grad.chunk(3)
        ):
            found.update({f"fc_{part}.weight": weight, f"fc_{part}.bias": bias})
        found["fc_o.weight"] = layer.out_proj.weight.grad
        found["fc_o.bias"] = layer.out_proj.bias.grad
        return found

    return run


def mha_answer(layer: Any, inputs: Any, flows: Any, options: dict[str, Any]) -> dict[str, Any]:
    dtype = str(layer.parameters()["fc_q.weight"].dtype)
    q, k, v = (kind_of(dtype, x) for x in inputs)
    out, weights = layer.forward(q, k, v, return_weights=True, **options)
    got = layer.backward(kind_of(dtype, flows[0]), dweights=kind_of(dtype, flows[1]))
    found = {"out": out, "weights": weights, "dq": got.dq, "dk": got.dk, "dv": got.dv}
    return {**found, **got.parameters}


def masks_of(tq: int, tk: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The masks of each case, by torch's names and by qkv's."""
    rng = np.random.default_rng(8)
    padding = torch.zeros(2, tk, dtype=torch.bool)
    padding[0, tk - 2 :] = padding[1, 1] = True
    hidden = torch.from_numpy(rng.random((tq, tk)) < 0.4)
    hidden[:, 0] = False
    later = torch.ones(tq, tk, dtype=torch.bool).triu(1 + tk - tq)
    minus = torch.zeros(tq, tk).masked_fill(hidden, -math.inf).double()
    return {
        "none": ({}, {}),
        "padding": ({"key_padding_mask": padding}, {"padding_mask": padding.numpy()}),
        "boolean": ({"attn_mask": hidden}, {"mask": ~hidden.numpy()}),
        "minus infinity": ({"attn_mask": minus}, {"mask": (minus == 0).numpy()}),
        "causal": ({"attn_mask": later}, {"causal": True}),
        "both": (
            {"key_padding_mask": padding, "attn_mask": later},
            {"padding_mask": padding.numpy(), "causal": True},
        ),
        "lengths": (
            {"key_padding_mask": torch.arange(tk) >= torch.tensor([[tk - 1], [2]])},
            {"key_lengths": np.array([tk - 1, 2])},
        ),
        "one for each head": (
            {"attn_mask": hidden.expand(2 * HEADS, tq, tk)},
            {"mask": np.broadcast_to(~hidden.numpy(), (2, HEADS, tq, tk))},
        ),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(6, 6), (4, 7)], ids=["self", "cross"])
@pytest.mark.parametrize("name", masks_of(4, 4))
def test_multi_head_attention_is_torchs(name: str, sizes: tuple[int, int], dtype: str) -> None:
    tq, tk = sizes
    theirs, ours = masks_of(tq, tk)[name]
    mha, inputs = torch_mha(), arrays(tq, tk)
    flows = (normal(2, tq, WIDTH, seed=3), normal(2, HEADS, tq, tk, seed=4))
    flows = tuple(x.float().double() for x in flows)

    def judge(kind: Any) -> Any:
        fitting = {key: x.to(kind) if x.is_floating_point() else x for key, x in theirs.items()}
        return mha_judge(mha, inputs, flows, fitting)(kind)

    layer = qkv.MultiHeadAttention(WIDTH, HEADS, form="split", dtype=dtype)
    layer.load_torch(mha.state_dict())
    got = mha_answer(layer, inputs, flows, ours)
    wrong = disagreements(dtype, got, judge)
    assert not wrong, wrong


def test_average_weights() -> None:
    mha = torch_mha().double()
    q, k, v = arrays(4, 7)
    want = mha(q, k, v, average_attn_weights=True)[1]
    layer = qkv.MultiHeadAttention(WIDTH, HEADS, dtype="float64")
    layer.load_torch(mha.state_dict())
    _, weights = layer.forward(q, k, v, return_weights=True)
    assert isinstance(weights, torch.Tensor)
    line = check("weights", weights.mean(1), want, 1e-14)
    assert line is None, line


def test_one_array_gets_the_sum_of_the_three_gradients() -> None:
    mha = torch_mha().double()
    x = arrays(5, 5)[0].requires_grad_(True)
    dout = normal(2, 5, WIDTH, seed=3)
    (mha(x, x, x)[0] * dout).sum().backward()
    layer = qkv.MultiHeadAttention(WIDTH, HEADS, dtype="float64")
    layer.load_torch(mha.state_dict())
    given = x.detach().numpy()
    layer.forward(given, given, given)
    got = layer.backward(dout.numpy())
    line = check("dx", got.dq + got.dk + got.dv, x.grad, 1e-12)
    assert line is None, line


def test_a_float_attn_mask_is_a_bias() -> None:
    """Tested with qkv.attention between torch's projections, with the gradient of the bias."""
    mha = torch_mha().double()
    q, k, v = arrays(4, 7)
    bias = normal(4, 7, seed=6).requires_grad_(True)
    dout = normal(2, 4, WIDTH, seed=3)
    want = mha(q, k, v, attn_mask=bias)[0]
    (want * dout).sum().backward()
    weight, offset = mha.in_proj_weight.detach(), mha.in_proj_bias.detach()
    heads = [
        torch.nn.functional.linear(x, w, b).unflatten(-1, (HEADS, -1))
        for x, w, b in zip((q, k, v), weight.chunk(3), offset.chunk(3))
    ]
    plain = bias.detach()
    out, lse = qkv.attention(*heads, bias=plain, layout="bthd", return_lse=True)
    got = torch.nn.functional.linear(out.flatten(-2), *mha.out_proj.parameters()).detach()
    into = (dout @ mha.out_proj.weight.detach()).unflatten(-1, (HEADS, -1))
    gradient = qkv.attention_backward(into, *heads, out, lse, bias=plain, layout="bthd").dbias
    lines = [check("out", got, want, 1e-12), check("dbias", gradient, bias.grad, 1e-12)]
    assert lines == [None, None], lines


def test_a_float_attn_mask_is_refused_as_a_mask() -> None:
    layer = qkv.MultiHeadAttention(WIDTH, HEADS)
    x = arrays(4, 4)[0].float().numpy()
    with pytest.raises((ValueError, TypeError), match="bias"):
        layer.forward(x, x, x, mask=np.zeros((4, 4), np.float32))


@pytest.mark.parametrize(
    "options, key",
    [
        ({"add_bias_kv": True}, "bias_k"),
        ({"kdim": 8, "vdim": 8}, "k_proj_weight"),
        ({"kdim": 8}, "k_proj_weight"),
        ({"vdim": 8}, "v_proj_weight"),
    ],
)
def test_what_the_layer_cannot_hold_is_refused_by_key(options: dict[str, Any], key: str) -> None:
    layer = qkv.MultiHeadAttention(WIDTH, HEADS)
    before = {name: x.copy() for name, x in layer.parameters().items()}
    with pytest.raises(ValueError, match=key):
        layer.load_torch(torch_mha(**options).state_dict())
    after = layer.parameters()
    assert all(np.array_equal(x, after[name]) for name, x in before.items())


def test_another_width_is_refused_by_key() -> None:
    with pytest.raises(ValueError, match="in_proj_weight"):
        qkv.MultiHeadAttention(2 * WIDTH, HEADS).load_torch(torch_mha().state_dict())
    with pytest.raises(ValueError, match="in_proj_weight"):
        qkv.MultiHeadAttention(WIDTH, HEADS, form="wide").load_torch(torch_mha().state_dict())


def test_without_bias() -> None:
    mha = torch_mha(bias=False).double()
    q, k, v = arrays(4, 7)
    layer = qkv.MultiHeadAttention(WIDTH, HEADS, dtype="float64", bias=False)
    layer.load_torch(mha.state_dict())
    line = check("out", layer.forward(q, k, v), mha(q, k, v)[0], 1e-13)
    assert line is None, line


# ---- additive scores, by the broadcast formula --------------------------------------------------

UNITS, DQ, DK, E = 9, 5, 7, 4


def additive_arrays(dtype: str) -> dict[str, Any]:
    shapes = {
        "q": (2, 4, DQ),
        "k": (2, 6, DK),
        "v": (2, 6, E),
        "W_q": (UNITS, DQ),
        "W_k": (UNITS, DK),
        "v_u": (UNITS,),
        "b": (UNITS,),
    }
    return {
        name: normal(*shape, seed=n).to(torch.float32).to(getattr(torch, dtype))
        for n, (name, shape) in enumerate(shapes.items())
    }


def additive_judge(with_b: bool, lengths: Any) -> Callable[[Any], dict[str, Any]]:
    """Returns judge(dtype) for softmax(v^T tanh(W_q q + W_k k + b)) v, via an array [B,Tq,Tk,U]."""

    def run(dtype: Any) -> dict[str, Any]:
        x = {n: a.to(dtype).requires_grad_(True) for n, a in additive_arrays("float64").items()}
        hidden = (x["q"] @ x["W_q"].T)[:, :, None] + (x["k"] @ x["W_k"].T)[:, None]
        scores = torch.tanh(hidden + (x["b"] if with_b else 0)) @ x["v_u"]
        if lengths is not None:
            unseen = torch.arange(6) >= torch.tensor(lengths)[:, None, None]
            scores = scores.masked_fill(unseen, -math.inf)
        out = scores.softmax(-1) @ x["v"]
        (out * normal(2, 4, E, seed=20).float().to(dtype)).sum().backward()
        found = {"d" + n: a.grad for n, a in x.items() if a.grad is not None}
        return {"out": out.detach(), **found}

    return run


@pytest.mark.parametrize("lengths", [None, (3, 6)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_additive_layer_is_the_broadcast_formula(dtype: str, lengths: Any) -> None:
    x = {name: a.numpy() for name, a in additive_arrays(dtype).items()}
    layer = qkv.AdditiveAttention(DQ, DK, UNITS, dtype=dtype)
    layer.load_torch({"W_q": x["W_q"], "W_k": x["W_k"], "v": x["v_u"]})
    valid = None if lengths is None else np.array(lengths)
    out = layer.forward(x["q"], x["k"], x["v"], valid)
    got = layer.backward(kind_of(dtype, normal(2, 4, E, seed=20)))
    found = {"out": out, "dq": got.dq, "dk": got.dk, "dv": got.dv}
    found.update(dW_q=got.parameters["W_q"], dW_k=got.parameters["W_k"], dv_u=got.parameters["v"])
    wrong = disagreements(dtype, found, additive_judge(False, lengths))
    assert not wrong, wrong


@pytest.mark.parametrize("with_b", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_additive_function_is_the_broadcast_formula(dtype: str, with_b: bool) -> None:
    x = additive_arrays(dtype)
    params = {"Wq": x["W_q"], "Wk": x["W_k"], "v": x["v_u"]}
    if with_b:
        params["b"] = x["b"]
    options = {"score": "additive", "params": params, "key_lengths": np.array([3, 6])}
    out, lse = qkv.attention(x["q"], x["k"], x["v"], return_lse=True, **options)
    dout = normal(2, 4, E, seed=20).float().to(getattr(torch, dtype))
    got = qkv.attention_backward(dout, x["q"], x["k"], x["v"], out, lse, **options)
    found = {"out": out, "dq": got.dq, "dk": got.dk, "dv": got.dv}
    names = {"Wq": "dW_q", "Wk": "dW_k", "v": "dv_u", "b": "db"}
    found.update({names[name]: x for name, x in got.dparams.items()})
    wrong = disagreements(dtype, found, additive_judge(with_b, (3, 6)))
    assert not wrong, wrong


def test_one_matrix_over_keys_and_queries_is_cut_in_two() -> None:
    """The score v^T tanh(W [k; q]), with the gradient of the matrix W."""
    x = additive_arrays("float64")
    w = torch.cat([x["W_k"], x["W_q"]], dim=1).requires_grad_(True)
    pairs = torch.cat(
        [
            x["k"][:, None].expand(2, 4, 6, DK),
            x["q"][:, :, None].expand(2, 4, 6, DQ),
        ],
        dim=-1,
    )
    want = (torch.tanh(pairs @ w.T) @ x["v_u"]).softmax(-1) @ x["v"]
    want.sum().backward()
    params = {"Wk": w.detach()[:, :DK], "Wq": w.detach()[:, DK:], "v": x["v_u"]}
    options = {"score": "additive", "params": params}
    out, lse = qkv.attention(x["q"], x["k"], x["v"], return_lse=True, **options)
    got = qkv.attention_backward(
        torch.ones_like(out), x["q"], x["k"], x["v"], out, lse, **options
    ).dparams
    joined = torch.cat([got["Wk"], got["Wq"]], dim=1)
    lines = [check("out", out, want, 1e-13), check("dW", joined, w.grad, 1e-12)]
    assert lines == [None, None], lines


# ---- the other layers ---------------------------------------------------------------------------


def test_bilinear_layer_is_nn_bilinear() -> None:
    """The scores are those of nn.Bilinear(Dq, Dk, 1) for every query-key pair."""
    torch.manual_seed(1)
    module = torch.nn.Bilinear(DQ, DK, 1, bias=False).double()
    x = {name: a for name, a in additive_arrays("float64").items()}
    q = x["q"][:, :, None].expand(2, 4, 6, DQ).contiguous()
    k = x["k"][:, None].expand(2, 4, 6, DK).contiguous()
    want = module(q, k).squeeze(-1).softmax(-1) @ x["v"]
    want.sum().backward()
    layer = qkv.BilinearAttention(DQ, DK, dtype="float64")
    layer.load_torch({"W": module.weight.detach()[0]})
    out = layer.forward(x["q"], x["k"], x["v"])
    got = layer.backward(torch.ones_like(out)).parameters["W"]
    lines = [check("out", out, want, 1e-13), check("dW", got, module.weight.grad[0], 1e-12)]
    assert lines == [None, None], lines


def wide_formula(x: Any, w: dict[str, Any], heads: int) -> Any:
    """The wide form: each head's q and k divided by n^(1/4), [B,H,T,n] merged to [B,T,H n]."""
    n = x.shape[-1]
    q, k, v = (
        (x @ w[f"{name}.weight"].T).unflatten(-1, (heads, n)).transpose(1, 2)
        for name in ("queries", "keys", "values")
    )
    scores = (q / n**0.25) @ (k / n**0.25).transpose(-1, -2)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)


@pytest.mark.parametrize("name", ["SelfAttention", "MultiHeadAttention"])
def test_wide_layers_are_their_formula(name: str) -> None:
    n, heads = 6, 1 if name == "SelfAttention" else 3
    alone = name == "SelfAttention"
    layer = (
        qkv.SelfAttention(n, dtype="float64")
        if alone
        else qkv.MultiHeadAttention(n, heads, form="wide", dtype="float64")
    )
    w = {
        key: torch.from_numpy(value.copy()).requires_grad_(True)
        for key, value in layer.parameters().items()
    }
    x = normal(2, 5, n, seed=3).requires_grad_(True)
    want = wide_formula(x, w, heads)
    if not alone:
        want = want @ w["unify_heads.weight"].T + w["unify_heads.bias"]
    dout = normal(2, 5, n, seed=4)
    (want * dout).sum().backward()
    given = x.detach().numpy()
    out = layer.forward(given) if alone else layer.forward(given, given, given)
    got = layer.backward(dout.numpy())
    dx = got.dx if alone else got.dq + got.dk + got.dv
    lines = [check("out", out, want, 1e-13), check("dx", dx, x.grad, 1e-12)]
    lines += [check(key, got.parameters[key], value.grad, 1e-12) for key, value in w.items()]
    assert set(got.parameters) == set(w) and not any(lines), lines
