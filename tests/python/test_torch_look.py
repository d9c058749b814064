# SPDX-License-Identifier: Apache-2.0
"""Tests what qkv.torch.look records of modules of PyTorch and of this library."""

import re

import pytest
from torch_versions import requires, torch

requires(2, 5, "scaled_dot_product_attention and jagged tensors")

from look_models import (  # noqa: E402
    ALL,
    CLOSE,
    F64,
    FUTURE,
    HEADS,
    PADDING,
    WIDTH,
    B,
    Calls,
    S,
    T,
    by_torch,
    draw,
    of_formula,
    only,
    ours,
)  # fmt: skip

import qkv.torch  # noqa: E402
from qkv.torch import _look_record, _replaced  # noqa: E402

# ---- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [by_torch, ours])
def test_all_results_of_every_layer(function):
    q, k, v = draw(B, HEADS, T, 8), draw(B, HEADS, S, 8, seed=1), draw(B, HEADS, S, 6, seed=2)
    model = Calls(function)
    want = model(q, k, v)
    everything = {"entropy": True, "value_sums": True, "pool": (2, 3)}
    with qkv.torch.look(model, rows=[0, -1], top=3, column_sums=True, **everything) as seen:
        got = model(q, k, v)
    assert all(map(torch.equal, got, want))
    assert seen.names == ("inner.0", "inner.1") and len(seen) == 2
    weights = of_formula(q, k)
    for layer in seen:
        assert len(layer.calls) == 1
        call = layer.calls[0]
        assert (call.heads, call.rows) == ((0, 1, 2, 3), (0, T - 1))
        assert (call.queries, call.keys) == (T, S)
        torch.testing.assert_close(layer.weights, weights[:, :, [0, -1]], **CLOSE)
        torch.testing.assert_close(layer.column_sums, weights.sum(2), **CLOSE)
        sums = weights.sum(2)
        torch.testing.assert_close(layer.value_sums, sums * v.norm(dim=-1), **CLOSE)
        torch.testing.assert_close(layer.entropy, -(weights * weights.log()).sum(-1), **CLOSE)
        # The cells are rows 0-2 and 3-4 by columns 0-2, 3-4 and 5-6.
        rows = torch.stack([weights[:, :, :3].mean(2), weights[:, :, 3:].mean(2)], 2)
        cells = torch.stack([x.sum(-1) for x in rows.split([3, 2, 2], -1)], -1)
        torch.testing.assert_close(layer.pooled, cells, **CLOSE)
        largest, keys = weights.topk(3)
        torch.testing.assert_close(layer.top.weights, largest, **CLOSE)
        assert torch.equal(layer.top.keys, keys)


BIAS = draw(HEADS, T, S, seed=5)
SDPA_CALLS = {
    "mask": ({"attn_mask": BIAS > -1}, only(BIAS > -1)),
    "numbers": ({"attn_mask": BIAS}, BIAS),
    "causal": ({"is_causal": True}, only(torch.ones(T, S).tril().bool())),
    "scale": ({"scale": 0.3}, 0.0),
    "dropout": ({"dropout_p": 0.5}, 0.0),
}


@pytest.mark.parametrize("name", SDPA_CALLS)
@pytest.mark.parametrize("function", [by_torch, ours])
def test_options_of_the_function(function, name):
    options, added = SDPA_CALLS[name]
    q, k, v = draw(B, HEADS, T, 8), draw(B, 2, S, 8, seed=1), draw(B, 2, S, 6, seed=2)
    model = Calls(function)
    results = []
    for looks in (False, True):
        torch.manual_seed(0)
        if looks:
            with qkv.torch.look(model, rows=ALL) as seen:
                results.append(model(q, k, v, enable_gqa=True, **options))
        else:
            results.append(model(q, k, v, enable_gqa=True, **options))
    assert all(map(torch.equal, *results))  # look() does not draw from torch's generator
    want = of_formula(q, k.repeat_interleave(2, 1), added, options.get("scale"))
    torch.testing.assert_close(seen["inner.1"].weights, want, **CLOSE)


def test_the_output_is_not_computed_again(monkeypatch):
    values = []
    whole = _look_record.attention

    def counted(q, k, v, **options):
        values.append(v)
        return whole(q, k, v, **options)

    monkeypatch.setattr(_look_record, "attention", counted)
    q = draw(B, HEADS, T, 8)
    model = Calls(ours)
    with qkv.torch.look(model, rows=[0], top=2, column_sums=True, entropy=True, pool=(1, 1)):
        model(q, q, q)
    assert values == [None, None]


def test_sums_over_named_queries():
    q, k = draw(B, HEADS, T, 8), draw(B, HEADS, S, 8, seed=1)
    model = Calls(by_torch)
    want = of_formula(q, k)[:, :, -2:].sum(2)
    for named in ([-1, 3], slice(-2, None), range(T - 2, T)):
        with qkv.torch.look(model, column_sums=named, value_sums=True) as seen:
            model(q, k, k)
        torch.testing.assert_close(seen[0].column_sums, want, **CLOSE)
        torch.testing.assert_close(seen[0].value_sums, want * k.norm(dim=-1), **CLOSE)


def test_other_ranks():
    for shape in ((T, 8), (B, T, 8), (2, 3, B, T, 8)):
        q = draw(*shape)
        model = Calls(ours)
        with qkv.torch.look(model, rows=[1], top=1, column_sums=True) as seen:
            model(q, q, q)
        want = of_formula(q, q)
        lead = {2: (1, 1), 3: (B, 1), 5: (6, B)}[len(shape)]
        assert torch.allclose(seen[0].weights, want[..., 1:2, :].reshape(*lead, 1, T))
        assert torch.allclose(seen[0].column_sums, want.sum(-2).reshape(*lead, T))
        assert seen[0].top.keys.shape == (*lead, T, 1)


def test_options_of_attention_itself():
    q, k, v = draw(B, T, HEADS, 8), draw(B, S, 2, 8, seed=1), draw(B, S, 2, 6, seed=2)
    options = {
        "layout": "bthd", "softcap": 2.0, "causal": True, "window": (2, 0), "dropout": 0.25,
        "seed": 3, "sinks": draw(HEADS, seed=4), "alibi_slopes": [0.1, 0.2, 0.3, 0.4],
        "padding_mask": draw(B, S, seed=6) > 1,
    }  # fmt: skip
    model = Calls(qkv.torch.attention)
    with qkv.torch.look(model, rows=[4, 0], heads=[3, -3], column_sums=True) as seen:
        asked = model(q, k, v, return_lse=True, **options)[0]
    assert asked._fields == ("out", "lse")
    del options["dropout"], options["seed"]
    got = qkv.attention(q, k, None, return_weights=True, return_column_sums=True, **options)
    assert torch.equal(seen[0].weights, got.weights[:, [3, 1]][:, :, [4, 0]])
    assert torch.equal(seen[0].column_sums, got.column_sums[:, [3, 1]])
    assert seen[0].calls[0].heads == (3, 1)
    merged = {"heads": HEADS, "causal": True}
    x = draw(B, T, 32)
    with qkv.torch.look(model, rows=ALL) as seen:
        model(x, x, x, **merged)
    want = qkv.attention(x, x, None, return_weights=True, **merged).weights
    assert torch.equal(seen[0].weights, want)
    assert seen[0].calls[0].queries == T


def test_packed_sequences():
    starts = torch.tensor([0, 2, T])
    q = draw(T, HEADS, 8)
    packed = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    model = Calls(qkv.torch.attention)
    with qkv.torch.look(model, top=2, column_sums=True, entropy=True, pool=(1, 1)) as seen:
        model(q, q, q, **packed)
    want = qkv.attention(q, q, None, return_column_sums=True, **packed).column_sums
    assert torch.equal(seen[0].column_sums, want[None])
    assert seen[0].top.weights.shape == (1, HEADS, T, 2)
    assert seen[0].entropy.shape == (1, HEADS, T)
    assert seen[0].pooled.shape == (2, HEADS, 1, 1)  # one map per sequence
    for named in ({"rows": [0]}, {"column_sums": [0]}):
        look, message = (
            qkv.torch.look(model, **named),
            "rows, also .* cannot be named in packed .*0'",
        )
        with look, pytest.raises(ValueError, match=f"^look: {message}"):
            model(q, q, q, **packed)


def test_jagged_tensors():
    starts = torch.tensor([0, 2, T])
    nested = torch.nested.nested_tensor_from_jagged(draw(T, HEADS, 8), starts).transpose(1, 2)
    for function in (by_torch, ours):
        model = Calls(function)
        with qkv.torch.look(model, column_sums=True) as seen:
            model(nested, nested, nested)
        assert seen[1].column_sums.shape == (1, HEADS, T)


def test_lower_right_masks():
    from torch.nn.attention.bias import causal_lower_right

    q, k = draw(B, HEADS, T, 8), draw(B, HEADS, S, 8, seed=1)
    mask = causal_lower_right(T, S)
    want = of_formula(q, k, only(torch.ones(T, S).tril(S - T).bool()))
    for function in (by_torch, ours):
        model = Calls(function)
        plain = model(q, k, k, mask)
        with qkv.torch.look(model, rows=ALL) as seen:
            assert torch.equal(model(q, k, k, mask)[0], plain[0])
        torch.testing.assert_close(seen[0].weights, want, **CLOSE)


def test_autocast():
    q = draw(B, HEADS, T, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for function in (by_torch, ours, qkv.torch.attention):
            model = Calls(function)
            with qkv.torch.look(model, rows=ALL) as seen:
                model(q, q, q)
            half = q.bfloat16()
            want = qkv.attention(half, half, None, return_weights=True).weights
            assert torch.equal(seen[0].weights, want)


def test_gradients_are_unchanged():
    q = draw(B, HEADS, T, 8).requires_grad_()
    model = Calls(ours)
    want = torch.autograd.grad(model(q, q, q)[1].square().sum(), q)[0]
    with qkv.torch.look(model, rows=ALL) as seen:
        got = torch.autograd.grad(model(q, q, q)[1].square().sum(), q)[0]
    assert torch.equal(got, want)
    assert not seen[0].weights.requires_grad


# ---- PyTorch's modules --------------------------------------------------------------------------


def attention_of(module, x, **masks):
    """The weights that PyTorch's module returns, without its fast path."""
    options = {"need_weights": True, "average_attn_weights": False}
    with torch.enable_grad():
        return module(x, x, x, **options, **masks)[1].detach()


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "causal": {"attn_mask": FUTURE},
    "both": {"key_padding_mask": PADDING, "attn_mask": FUTURE},
}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", MASKS)
def test_multi_head_attention(name, need_weights, fast):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=F64).eval()
    x, options = draw(B, T, WIDTH), {"need_weights": need_weights, **MASKS[name]}
    with torch.set_grad_enabled(not fast):
        want = module(x, x, x, **options)
        with qkv.torch.look(module, rows=ALL) as seen:
            got = module(x, x, x, **options)
    assert torch.equal(got[0], want[0])
    assert seen.names == ("",) and len(seen[0].calls) == 1
    torch.testing.assert_close(seen[0].weights, attention_of(module, x, **MASKS[name]), **CLOSE)


def test_pytorchs_fast_path_masks_where_numbers_are_not_0():
    """PyTorch's fast path of a whole layer masks every pair whose number is not 0."""
    layer, x = encoder(True).layers[0], draw(B, T, WIDTH)
    with torch.no_grad(), qkv.torch.look(layer, rows=ALL) as seen:
        results = [layer(x, src_mask=mask) for mask in (FUTURE * -2.0, FUTURE)]
    assert torch.equal(*results)
    numbers, booleans = seen["self_attn"].calls
    assert torch.equal(numbers.weights, booleans.weights)
    with qkv.torch.look(layer, rows=ALL) as seen:  # PyTorch's slow path adds the numbers
        layer(x, src_mask=FUTURE * -2.0)
    assert (seen[0].weights - numbers.weights).abs().max() > 1e-3


def test_hints_of_causality_and_a_probe_that_ends_early(monkeypatch):
    # attn_mask decides, not the hint is_causal. look learns the call's arguments by a trial call, a
    # probe, which must end before PyTorch's attention function is called.
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=F64)
    x, near = draw(B, T, WIDTH), (torch.arange(T)[:, None] - torch.arange(T)).abs() > 1
    monkeypatch.setattr(_replaced, "as_called", None)  # PyTorch's function must not be called
    with qkv.torch.look(module, rows=ALL) as seen:
        module(x, x, x, attn_mask=near, is_causal=True)
    torch.testing.assert_close(seen[0].weights, attention_of(module, x, attn_mask=near), **CLOSE)


def test_appended_keys_and_dropped_weights():
    torch.manual_seed(0)
    options = {"add_bias_kv": True, "add_zero_attn": True, "dropout": 0.5}
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, dtype=F64, **options)
    x = draw(T, B, WIDTH)
    torch.manual_seed(1)
    want = module(x, x, x)
    torch.manual_seed(1)
    with qkv.torch.look(module, rows=ALL) as seen:
        got = module(x, x, x)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    assert seen[0].weights.shape == (B, HEADS, T, T + 2)
    torch.testing.assert_close(seen[0].weights, attention_of(module.eval(), x), **CLOSE)


def encoder(norm_first):
    torch.manual_seed(0)
    options = {"batch_first": True, "norm_first": norm_first, "dtype": F64}
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 32, **options)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


ENCODED = {
    "none": {},
    "padding": {"src_key_padding_mask": PADDING},
    "causal": {"mask": FUTURE, "is_causal": True},
    "both": {"src_key_padding_mask": PADDING, "mask": FUTURE},
}


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", ENCODED)
def test_transformer_encoder(name, fast, norm_first):
    model, x, masks = encoder(norm_first), draw(B, T, WIDTH), ENCODED[name]
    with torch.set_grad_enabled(not fast):
        want = model(x, **masks)
        with qkv.torch.look(model, rows=ALL, column_sums=True) as seen:
            got = model(x, **masks)
    assert torch.equal(got, want)
    assert seen.names == ("layers.0.self_attn", "layers.1.self_attn")
    first = model.layers[0]
    given = {"key_padding_mask": masks.get("src_key_padding_mask"), "attn_mask": masks.get("mask")}
    weights = attention_of(first.self_attn, first.norm1(x) if norm_first else x, **given)
    if name == "padding" and fast and not norm_first:  # the nested tensors have no padding queries
        weights = weights * ~PADDING[:, None, :, None]
    torch.testing.assert_close(seen[0].weights, weights, **CLOSE)
    torch.testing.assert_close(seen[0].column_sums, weights.sum(2), **CLOSE)


def test_transformer_with_cross_attention():
    torch.manual_seed(0)
    model = torch.nn.Transformer(WIDTH, HEADS, 1, 1, 32, batch_first=True, dtype=F64).eval()
    with qkv.torch.look(model, rows=[-1], layers=re.compile(r"decoder.*attn$")) as seen:
        model(draw(B, S, WIDTH), draw(B, T, WIDTH, seed=1))
    assert seen.names == ("decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn")
    assert seen["multihead_attn"].weights.shape == (B, HEADS, 1, S)


def test_this_librarys_modules():
    nn = qkv.torch.nn
    torch.manual_seed(0)
    x = draw(B, T, WIDTH)
    for module in (nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=F64),
                   nn.DotProductAttention(dropout=0.5),
                   nn.AdditiveAttention(WIDTH, WIDTH, 8, dtype=F64),
                   nn.BilinearAttention(WIDTH, WIDTH, dtype=F64)):  # fmt: skip
        with qkv.torch.look(module, rows=ALL) as seen:
            got = module(x, x, x)
        torch.manual_seed(0)
        if isinstance(module, torch.nn.MultiheadAttention):
            want = module(x, x, x, average_attn_weights=False)[1]
            assert torch.equal(got[1], want.mean(1))
        else:
            want = module(x, x, x, return_weights=True).weights[:, None]
        assert torch.equal(seen[0].weights, want)
