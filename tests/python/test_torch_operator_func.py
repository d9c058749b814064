# SPDX-License-Identifier: Apache-2.0
"""Tests torch.func with qkv.torch.attention and its operator, also inside compiled functions."""

import pytest
from torch_versions import OPERATOR, requires, torch

requires(2, 5, OPERATOR)

import qkv.torch  # noqa: E402

Q, K, V = (
    torch.randn(2, 4, n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    for n in (3, 5, 5)
)
V = V.flip(-1)


def by_operator(q):
    return torch.ops.qkv.attention(q, K, V, causal="diagonal")[0]


def by_function(q):
    return qkv.torch.attention(q, K, V, causal=True)


def loss_of(call):
    return lambda q: (call(q) ** 2).sum()


def gradient():
    leaf = Q.clone().requires_grad_()
    return torch.autograd.grad(loss_of(by_function)(leaf), leaf)[0]


TRANSFORMED = {
    "grad": lambda loss: torch.func.grad(loss)(Q),
    "vjp": lambda loss: torch.func.vjp(loss, Q)[1](torch.ones((), dtype=Q.dtype))[0],
    "jacrev": lambda loss: torch.func.jacrev(loss)(Q),
    "vmap of grad": lambda loss: torch.vmap(torch.func.grad(loss))(Q[None])[0],
    "grad of vmap": lambda loss: torch.func.grad(lambda q: torch.vmap(loss)(q).sum())(Q[None])[0],
    "grad_and_value": lambda loss: torch.func.grad_and_value(loss)(Q)[0],
}


@pytest.mark.parametrize("call", [by_operator, by_function])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_gradients_have_the_bits_of_autograd(name, compiled, call):
    def transformed():
        return TRANSFORMED[name](loss_of(call))

    if compiled:
        torch._dynamo.reset()
        transformed = torch.compile(transformed, fullgraph=True, backend="aot_eager")
    assert torch.equal(transformed(), gradient())


def test_vmap_of_the_operator_is_one_call(monkeypatch):
    called = []
    whole = qkv.torch._operator._functions.attention

    def counted(*args, **kwargs):
        called.append(None)
        return whole(*args, **kwargs)

    monkeypatch.setattr(qkv.torch._operator._functions, "attention", counted)
    queries = torch.stack([Q, 2 * Q, 3 * Q])
    got = torch.vmap(by_operator)(queries)
    assert len(called) == 1
    assert torch.equal(got, torch.stack([by_function(q) for q in queries]))


@pytest.mark.parametrize("call", [by_operator, by_function])
def test_other_derivatives_are_refused(call):
    """The operator itself also raises, because PyTorch would drop its tangents without an error."""
    loss = loss_of(call)
    with pytest.raises(RuntimeError, match="there is no second derivative"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(Q)
    for transformed in (torch.func.jacfwd(loss), torch.func.hessian(loss)):
        with pytest.raises(RuntimeError, match="there is no forward-mode derivative"):
            transformed(Q)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_inside_torch_func_gives_the_gradients_of_autograd(dtype):
    q, k, v = (x.float() for x in (Q, K, V))

    def loss(q, call):
        with torch.autocast("cpu", dtype=dtype):
            return (call(q, k, v).float() ** 2).sum()

    leaf = q.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(leaf, qkv.torch.attention), leaf)
    assert want.dtype == torch.float32
    for call in (qkv.torch.attention, lambda *x: torch.ops.qkv.attention(*x)[0]):
        assert torch.equal(torch.func.grad(loss)(q, call), want)
