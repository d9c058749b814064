# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch.replaced() and nested tensors of jagged layout."""

import threading

import pytest
from torch_versions import requires, torch

requires(2, 5, "scaled_dot_product_attention, its compiler and jagged tensors")
import torch.nn.functional as F  # noqa: E402

import qkv.torch  # noqa: E402
from qkv.torch import _sdpa  # noqa: E402

ours = qkv.torch.scaled_dot_product_attention
theirs = F.scaled_dot_product_attention
F64 = torch.float64


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def computed(monkeypatch):
    """The shapes of the queries for which qkv computes attention."""
    shapes = []

    def note(name):
        whole = getattr(_sdpa, name)

        def noted(q, *others, **options):
            out = whole(q, *others, **options)
            if out is not None:
                shapes.append(tuple(q.shape))
            return out

        monkeypatch.setattr(_sdpa, name, noted)

    note("attention")
    note("torch_attention")
    return shapes


def test_the_function_is_replaced_only_inside_the_context(computed):
    q = draw(1, 2, 5, 4)
    with qkv.torch.replaced():
        with qkv.torch.replaced():
            F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention(query=q, key=q, value=q, is_causal=True)
    assert computed == [(1, 2, 5, 4)] * 2
    assert F.scaled_dot_product_attention is theirs
    with pytest.raises(KeyError), qkv.torch.replaced():
        raise KeyError
    assert F.scaled_dot_product_attention is theirs


def test_tensors_on_other_devices_go_to_pytorchs_function(computed):
    q = torch.ones(1, 2, 5, 4, device="meta")
    with qkv.torch.replaced():
        assert F.scaled_dot_product_attention(q, q, q).shape == q.shape
        with pytest.raises(TypeError, match="argument 'query'"):
            F.scaled_dot_product_attention(None, q, q)
    assert computed == []


def test_pytorchs_layers_use_the_replacement(computed):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).double()
    x = draw(2, 5, 16).requires_grad_()
    want = layer(x)
    with qkv.torch.replaced():
        got = layer(x)
    assert computed == [(2, 2, 5, 8)]
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_threads_share_the_replacement():
    entered, leave = threading.Barrier(2), threading.Barrier(2)

    def hold():
        with qkv.torch.replaced():
            entered.wait()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    with qkv.torch.replaced():
        pass
    assert F.scaled_dot_product_attention is not theirs  # the other thread is still inside
    leave.wait()
    thread.join()
    assert F.scaled_dot_product_attention is theirs


def test_compiled_and_exported_inside():
    class Module(torch.nn.Module):
        def forward(self, q, seen):
            return F.scaled_dot_product_attention(q, q, q, seen)

    torch._dynamo.reset()
    q, seen = draw(1, 2, 5, 4), torch.ones(5, 5, dtype=torch.bool).tril()
    function = torch.compile(Module(), fullgraph=True, backend="aot_eager")
    with qkv.torch.replaced():
        program = torch.export.export(Module(), (q, seen))
        got = function(q, seen)
    assert "torch.ops.qkv.attention.default" in program.graph_module.code
    assert torch.equal(program.module()(q, seen), got)
    assert torch.equal(got, ours(q, q, q, seen))


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # torch.jit is deprecated
@pytest.mark.parametrize("inside", ["replaced", "look"])
def test_scripted_code_calls_pytorchs_function(inside, computed, tmp_path):
    class Module(torch.nn.Module):
        def forward(self, q: torch.Tensor, mask: torch.Tensor):
            return F.scaled_dot_product_attention(q, q, q, mask, scale=0.3)

    module, q, mask = Module(), draw(1, 2, 5, 4), draw(5, 5)
    want = module(q, mask)
    manager = {"replaced": qkv.torch.replaced(), "look": qkv.torch.look(module, top=1)}[inside]
    x, weight, bias = draw(3, 1, 4), draw(12, 4), draw(12)
    call = (x, x, x, 4, 2, weight, bias, None, None, False, 0.0, draw(4, 4), draw(4))
    with manager:
        scripted = torch.jit.script(module)
        multi_head = torch.jit.script(F.multi_head_attention_forward)
        native = torch.jit.script(by_native)
        got = scripted(q, mask)
        got_multi_head = multi_head(*call, need_weights=False)[0]
    assert "aten::scaled_dot_product_attention" in str(scripted.graph)
    assert "aten::_native_multi_head_attention" in str(native.graph)
    torch.jit.save(scripted, tmp_path / "scripted.pt")
    assert computed == [] and torch.equal(got, want)
    assert torch.equal(torch.jit.load(tmp_path / "scripted.pt")(q, mask), want)
    assert torch.equal(got_multi_head, F.multi_head_attention_forward(*call, need_weights=False)[0])


def by_native(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    return torch._native_multi_head_attention(x, x, x, 4, 2, weight, bias, weight, bias)


# ---- nested tensors -----------------------------------------------------------------------------


def nested(values, starts):
    """The jagged tensor [B,H,T,channels] of values [sum of T,H,channels]."""
    return torch.nested.nested_tensor_from_jagged(values, starts).transpose(1, 2)


STARTS_Q, STARTS_K = torch.tensor([0, 2, 3, 7]), torch.tensor([0, 4, 9, 10])


def test_jagged_tensors_are_packed_sequences():
    leaves = [draw(7, 2, 4), draw(10, 2, 4, seed=1), draw(10, 2, 3, seed=2)]
    leaves = [x.requires_grad_() for x in leaves]
    results = []
    for function in (theirs, ours):
        q, k, v = (nested(x, s) for x, s in zip(leaves, (STARTS_Q, STARTS_K, STARTS_K)))
        out = function(q, k, v, scale=0.3)
        assert out.shape[-1] == 3 and out.shape[2] == q.shape[2]  # q's symbolic size
        values = out.transpose(1, 2).values()
        results.append((values, *torch.autograd.grad((values**2).sum(), leaves)))
    for got, want in zip(*results):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)
    packed = qkv.torch.attention(*leaves, cu_seqlens_q=STARTS_Q, cu_seqlens_k=STARTS_K, scale=0.3)
    assert torch.equal(results[1][0], packed)


def test_jagged_tensors_are_not_handed_to_torch(monkeypatch):
    monkeypatch.setattr(_sdpa, "as_torch", None)
    q = nested(draw(7, 2, 4), STARTS_Q)
    torch.manual_seed(0)
    first = ours(q, q, q, dropout_p=0.5)
    torch.manual_seed(0)
    assert torch.equal(ours(q, q, q, dropout_p=0.5).values(), first.values())
    assert not ours(q, q, q, dropout_p=1.0).values().any()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = q.float()
        assert ours(q, q, q).dtype == torch.bfloat16


def test_compiled_jagged_tensors():
    torch._dynamo.reset()
    q = nested(draw(7, 2, 4), STARTS_Q)
    got = torch.compile(lambda q: ours(q, q, q), fullgraph=True, backend="aot_eager")(q)
    assert torch.equal(got.values(), ours(q, q, q).values())


REFUSED = {
    "mask": {"attn_mask": torch.ones(1)},
    "causal": {"is_causal": True},
    "dense": {"key": draw(3, 2, 5, 4)},
    "heads": {"key": nested(draw(10, 1, 4), STARTS_K)},
    "lengths": {"value": nested(draw(10, 2, 4), torch.tensor([0, 3, 9, 10]))},
    "dtype": {"key": nested(draw(10, 2, 4).float(), STARTS_K)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_nested_calls_are_pytorchs(name):
    call = {"query": nested(draw(7, 2, 4), STARTS_Q)}
    call.update((x, nested(draw(10, 2, 4), STARTS_K)) for x in ("key", "value"))
    call.update(REFUSED[name])
    errors = []
    for function in (theirs, ours):
        with pytest.raises((ValueError, RuntimeError)) as raised:
            function(**call)
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]
