# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch with any PyTorch from 1.13 on; imports only names that all of them have.

The other tests of qkv.torch need the version in python/requirements-torch.txt.
"""

import math

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")

import qkv.torch  # noqa: E402
from qkv.torch import _questions  # noqa: E402

sdpa = qkv.torch.scaled_dot_product_attention
HAS_SDPA = hasattr(torch.nn.functional, "scaled_dot_product_attention")


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain(q, k, v, bias):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias
    return torch.softmax(scores, -1) @ v


def inputs_of():
    shapes = (2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 6), (3, 5)
    return [draw(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes)]


def test_results_and_gradients_are_those_of_the_formulas():
    inputs = inputs_of()
    q, k, v, bias = inputs
    want = plain(*inputs)
    gradients = torch.autograd.grad((want**2).sum(), inputs)
    for got in (qkv.torch.attention(q, k, v, bias=bias), sdpa(q, k, v, bias)):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
        for x, y in zip(torch.autograd.grad((got**2).sum(), inputs), gradients):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def test_gradcheck():
    q, k, v, bias = inputs_of()

    def call(q, k, v, bias):
        return tuple(qkv.torch.attention(q, k, v, bias=bias, causal=True, return_weights=True))

    assert torch.autograd.gradcheck(call, (q[:1], k[:1], v[:1], bias))


def test_groups_and_dropout():
    q, k, v, _ = (x.detach() for x in inputs_of())
    got = sdpa(q, k[:, :2], v[:, :1], enable_gqa=True)
    want = plain(q, k[:, :2].repeat_interleave(2, 1), v[:, :1], torch.zeros(3, 5))
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    torch.manual_seed(0)
    first = sdpa(q, k, v, dropout_p=0.5)
    torch.manual_seed(0)
    assert torch.equal(first, sdpa(q, k, v, dropout_p=0.5))


def test_a_second_derivative_is_refused():
    q, k, v, _ = inputs_of()
    out = (qkv.torch.attention(q, k, v) ** 2).sum()
    (gradient,) = torch.autograd.grad(out, q, create_graph=True)
    with pytest.raises(RuntimeError, match="there is no second derivative"):
        gradient.sum().backward()


def test_meta_tensors_give_shapes_or_an_error_says_what_is_missing():
    x = torch.ones(2, 3, 4, device="meta")
    if _questions.AVAILABLE:
        assert qkv.torch.attention(x, x, x).shape == x.shape
        return
    with pytest.raises(RuntimeError, match=r"operator.*PyTorch 2\.5 or newer; this is [12]\."):
        qkv.torch.attention(x, x, x)


def test_wrong_calls_raise_in_every_version():
    q, k, v, _ = inputs_of()
    with pytest.raises(RuntimeError):
        sdpa(q, k[..., :3], v)
    if HAS_SDPA:
        with qkv.torch.replaced():
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        assert torch.equal(out, sdpa(q, k, v))
        return
    with pytest.raises(RuntimeError, match="has no torch.nn.functional.scaled_dot_product_atten"):
        qkv.torch.replaced().__enter__()


def test_look_sees_this_librarys_modules():
    module = qkv.torch.nn.DotProductAttention()
    q, k, v, _ = (x.detach() for x in inputs_of())
    with qkv.torch.look(module, rows=[-1], column_sums=True) as seen:
        module(q, k, v)
    want = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8), -1)
    torch.testing.assert_close(seen[0].weights, want[:, :, -1:], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(seen[0].column_sums, want.sum(2), rtol=1e-11, atol=1e-12)
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks
