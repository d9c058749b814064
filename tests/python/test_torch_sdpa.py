# SPDX-License-Identifier: Apache-2.0
"""Compares qkv.torch.scaled_dot_product_attention with PyTorch's own."""

import math
import re
import warnings

import pytest
from torch_versions import requires, torch

requires(2, 5, "torch.nn.attention.bias")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

import qkv.torch  # noqa: E402

B, H, G, TQ, TK, D, E = 2, 4, 2, 3, 5, 4, 3
F64 = torch.float64

sdpa = torch.nn.functional.scaled_dot_product_attention


def draw(*shape, seed=0, dtype=F64, wants=True):
    x = torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).requires_grad_(wants)


def drawn(*shapes, dtype=F64):
    return [draw(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes)]


def assert_stands_in(inputs, options, rtol=1e-11):
    """Compares results, shapes and gradients with PyTorch's math backend."""
    with sdpa_kernel(SDPBackend.MATH):
        want = sdpa(*inputs, **options)
    out = qkv.torch.scaled_dot_product_attention(*inputs, **options)
    torch.testing.assert_close(out, want, rtol=rtol, atol=1e-13)
    mask = options.get("attn_mask")
    wanted = [*inputs, *([mask] if mask is not None and mask.requires_grad else [])]
    dout = draw(*out.shape, seed=9, wants=False)
    of_torch = torch.autograd.grad(want, wanted, dout, allow_unused=True)
    for x, got, y in zip(
        wanted, torch.autograd.grad(out, wanted, dout, allow_unused=True), of_torch
    ):
        zero = torch.zeros_like(x)
        torch.testing.assert_close(
            zero if got is None else got, zero if y is None else y, rtol=rtol, atol=1e-13
        )


SEEN = torch.eye(TQ, TK, dtype=torch.bool) | (draw(TQ, TK, seed=7, wants=False) > 0)


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.2},
        {"attn_mask": SEEN},
        {"attn_mask": draw(TQ, TK, seed=8)},
        {"attn_mask": draw(TQ, TK, seed=8, dtype=torch.float32)},
        {"attn_mask": causal_upper_left(TQ, TK)},
        {"attn_mask": causal_lower_right(TQ, TK)},
        {"dropout_p": 1},
        {"dropout_p": 1.0, "is_causal": True},
    ],
)
def test_results_and_gradients_equal_pytorchs(rank, options):
    batch = (2, 3, 4)[5 - rank :]
    assert_stands_in(drawn((*batch, TQ, D), (*batch, TK, D), (*batch, TK, E)), options)


@pytest.mark.parametrize(
    "heads", [(4, 2, 2), (4, 1, 1), (4, 4, 2), (4, 1, 2), (12, 4, 6), (6, 3, 2), (4, 4, 4)]
)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": SEEN}])
def test_grouped_heads(heads, batch, options):
    shapes = zip(heads, ((TQ, D), (TK, D), (TK, E)))
    inputs = drawn(*((*batch, h, *shape) for h, shape in shapes))
    assert_stands_in(inputs, {**options, "enable_gqa": True})


@pytest.mark.parametrize(
    "leading",
    [
        ((2, 1), (2, 4), (2, 4)),  # one query head with several key heads
        ((2, 4), (2, 1), (2, 1)),
        ((2, 4), (2, 1), (2, 4)),
        ((2, 4), (2, 4), (2, 1)),
        ((1, 4), (3, 1), (3, 4)),
        ((4,), (1,), (4,)),
        ((1,), (4,), (4,)),
        ((), (4,), (4,)),
        ((2, 1, 3), (1, 4, 3), (3,)),
    ],
)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": SEEN}])
def test_leading_axes_broadcast(leading, options):
    shapes = zip(leading, ((TQ, D), (TK, D), (TK, E)))
    assert_stands_in(drawn(*((*axes, *shape) for axes, shape in shapes)), options)


@pytest.mark.parametrize("widths", [(0, 3), (4, 0), (0, 0)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": SEEN}, {"scale": 2.0}])
def test_no_channels(widths, options):
    d, e = widths
    assert_stands_in(drawn((B, H, TQ, d), (B, H, TK, d), (B, H, TK, e)), options)


@pytest.mark.parametrize("corner", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 3)])
def test_causal_biases_of_other_sizes(corner, sizes):
    Tq, Tk = sizes
    inputs = drawn((B, H, Tq, D), (B, H, Tk, D), (B, H, Tk, E))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of rows without keys
        bias = corner(Tq, Tk)
    seen = torch.ones(Tq, Tk, dtype=torch.bool).tril(Tk - Tq if corner is causal_lower_right else 0)
    out = qkv.torch.scaled_dot_product_attention(*inputs, bias)
    want = qkv.torch.scaled_dot_product_attention(*inputs, seen)
    assert torch.equal(out, want)


def test_dropout_is_drawn_from_pytorchs_generator():
    q, k, v = (torch.ones(1, 1, 64, 64) for _ in range(3))
    torch.manual_seed(1)
    first, second = (
        qkv.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.5) for _ in range(2)
    )
    torch.manual_seed(1)
    again = qkv.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert abs(first.mean().item() - 1) < 0.1


REFUSED = {
    "both masks": {"attn_mask": SEEN, "is_causal": True},
    "batch": {"key": draw(B + 1, H, TK, D), "value": draw(B + 1, H, TK, E)},
    "heads": {"key": draw(B, G, TK, D), "value": draw(B, G, TK, E)},
    "groups": {"key": draw(B, 3, TK, D), "value": draw(B, 3, TK, E), "enable_gqa": True},
    "rank of groups": {"query": draw(TQ, D), "enable_gqa": True},
    "rank": {"query": draw(D)},
    "dtype": {"key": draw(B, H, TK, D, dtype=torch.float32)},
    "narrow keys": {  # qkv.attention takes these, PyTorch does not
        "query": draw(B, H, TQ, D, dtype=torch.float32),
        "key": draw(B, H, TK, D, dtype=torch.bfloat16),
        "value": draw(B, H, TK, E, dtype=torch.bfloat16),
    },
    "dtype of mask": {"attn_mask": torch.ones(TQ, TK, dtype=torch.int64)},
    "wide mask": {"attn_mask": torch.ones(1, 1, 1, TQ, TK, dtype=torch.bool)},
    "corner": {"attn_mask": causal_lower_right(2, TK)},
    "corner and causal": {"attn_mask": causal_upper_left(TQ, TK), "is_causal": True},
    "dropout": {"dropout_p": 2},
    "no tensor": {"query": None},
    "list": {"attn_mask": [True]},
    "number": {"dropout_p": "0.1"},
    "flag": {"is_causal": torch.ones(2)},
    "width": {"key": draw(B, H, TK, D + 1)},
    "integers": {name: torch.ones(2, 3, dtype=torch.int64) for name in ("query", "key", "value")},
    "keyword": {"causal": True},
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_pytorchs(name):
    given = dict(zip(("query", "key", "value"), drawn((B, H, TQ, D), (B, H, TK, D), (B, H, TK, E))))
    given.update(REFUSED[name])
    errors = []
    for function in (sdpa, qkv.torch.scaled_dot_product_attention):
        with sdpa_kernel(SDPBackend.MATH), pytest.raises(Exception) as raised:
            function(**given)
        text = re.sub(r" \(position \d\)", "", str(raised.value))
        errors.append((type(raised.value), text))
    if name == "keyword":  # the error is Python's
        assert errors[1][0] is TypeError and "unexpected keyword argument 'causal'" in errors[1][1]
    else:
        assert errors[0] == errors[1]


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan, 1e39, -1e300])
@pytest.mark.parametrize("masked", [False, True])
def test_scales_that_qkv_refuses_give_pytorchs_results(scale, masked):
    dtype = torch.float32 if math.isfinite(scale) else F64
    given = drawn((B, H, TQ, D), (B, H, TK, D), (B, H, TK, E), dtype=dtype)
    mask = torch.ones(TQ, TK, dtype=torch.bool) if masked else None
    with sdpa_kernel(SDPBackend.MATH):
        want = sdpa(*given, mask, scale=scale)
        got = qkv.torch.scaled_dot_product_attention(*given, mask, scale=scale)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.nan_to_num())


def test_zero_key_heads_raise_before_pytorch_divides_by_them():
    q, k, v = drawn((B, H, TQ, D), (B, 0, TK, D), (B, H, TK, E))
    with pytest.raises(RuntimeError, match="^Number of heads in key and value must divide the num"):
        qkv.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True)
