# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch as programs use it: copies, files, modes, hooks, tracing, unusual tensors."""

import copy
import io
import os
import pickle
import re
import threading
import warnings

import pytest
from torch.utils.checkpoint import checkpoint
from torch_versions import VERSION, needs_operator, torch

import qkv.torch
from qkv import _picture

attention = qkv.torch.attention
nn = qkv.torch.nn
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))

MODULES = {
    "multihead": lambda: nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True),
    "additive": lambda: nn.AdditiveAttention(8, 8, 4, dropout=0.3),
    "bilinear": lambda: nn.BilinearAttention(8, 8, dropout=0.3),
    "dot": lambda: nn.DotProductAttention(0.3),
}
WITH_PARAMETERS = [name for name in MODULES if name != "dot"]


def made(name):
    torch.manual_seed(0)
    return MODULES[name]()


def first(results):
    return results[0] if isinstance(results, tuple) else results


def run(module, x=X, **options):
    return first(module(x, x, x, **options))


def leaf(x=X):
    return x.detach().clone().requires_grad_()


def loaded(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **options)


# ---- copies and files ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_copies_and_files_of_modules(name):
    module = made(name).eval()
    for other in (
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(module),
        loaded(module, weights_only=False),
    ):
        assert torch.equal(run(other), run(module))
    other = MODULES[name]().eval()
    other.load_state_dict(loaded(module.state_dict()))
    assert torch.equal(run(other), run(module))


def test_copies_of_results():
    results = attention(X, X, X, return_lse=True, return_top=2)
    for other in (pickle.loads(pickle.dumps(results)), copy.deepcopy(results)):
        assert other._fields == results._fields
        assert torch.equal(other.top[1], results.top[1])


def test_pictures_hatch_masked_pairs():
    if not _picture.PROGRAM.is_file():
        pytest.skip("no program qkv in this build of the package")
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    keep = torch.ones(3, 3, dtype=torch.bool).tril()
    bias = torch.tensor([0.0, -torch.inf, 0.0])
    options = {"mask": keep, "bias": bias, "return_weights": True}
    for found in (
        qkv.torch.attention(x, x, x, **options),
        qkv.torch.attention(x.requires_grad_(), x, x, **options),
        qkv.torch.attention(x, x, x, **{**options, "bias": bias.requires_grad_()}),
    ):
        shown = qkv.show(found)
        # Keys after the query, and key 1, are masked.
        masked = {cell for cell in range(9) if cell not in (0, 3, 6, 8)}
        titles = re.findall("<title>(.) → (.): masked</title>", shown.svg)
        assert {3 * int(i) + int(j) for i, j in titles} == masked


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", MODULES)
def test_other_types(name, dtype):
    if dtype == torch.float16 and VERSION < (2, 2) and name == "multihead":
        pytest.skip("needs PyTorch 2.2: linear layers of float16 on the CPU")
    module = made(name).to(dtype)
    x = leaf(X.to(dtype))
    out = run(module, x)
    out.float().sum().backward()
    assert out.dtype == x.grad.dtype == dtype
    assert all(parameter.grad.dtype == dtype for parameter in module.parameters())


@pytest.mark.parametrize("name", MODULES)
def test_the_default_type(name):
    torch.set_default_dtype(torch.float64)
    try:
        module = made(name)
        assert run(module, X.double()).dtype == torch.float64
        assert all(parameter.dtype == torch.float64 for parameter in module.parameters())
    finally:
        torch.set_default_dtype(torch.float32)


# ---- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_checkpoints_draw_the_same_dropout(name, reentrant):
    module, plain, inside = made(name), leaf(), leaf()
    torch.manual_seed(1)
    run(module, plain).square().sum().backward()
    torch.manual_seed(1)
    checkpoint(run, module, inside, use_reentrant=reentrant).square().sum().backward()
    assert torch.equal(plain.grad, inside.grad)


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_gradients_add_up_and_optimizers_step(name):
    module = made(name).eval()
    run(module).sum().backward()
    whole = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    for n in range(2):
        run(module, X[n : n + 1]).sum().backward()
    for parameter, gradient in zip(module.parameters(), whole):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer = torch.optim.LBFGS(module.parameters(), lr=0.1, max_iter=4)

    def loss():
        optimizer.zero_grad()
        error = run(module).square().mean()
        error.backward()
        return error

    assert optimizer.step(loss) > loss()


@pytest.mark.parametrize("name, weight", [("multihead", "in_proj_weight"), ("bilinear", "W")])
def test_reparametrized_weights(name, weight):
    module = made(name).eval()
    want = run(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions warn that weight_norm is deprecated
        torch.nn.utils.weight_norm(module, weight)
    out = run(module)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-6)
    out.sum().backward()
    assert getattr(module, f"{weight}_g").grad is not None

    class Doubled(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    module, twice = made(name).eval(), made(name).eval()
    torch.nn.utils.parametrize.register_parametrization(module, weight, Doubled())
    with torch.no_grad():
        getattr(twice, weight).mul_(2)
    assert torch.equal(run(module), run(twice))


def test_frozen_parameters_and_unused_inputs():
    module = made("additive").requires_grad_(False)
    assert not run(module).requires_grad
    q, k, other = leaf(), leaf(), leaf()
    out = attention(q, k, X)
    got = torch.autograd.grad(out.sum(), (q, other, k), allow_unused=True)
    assert got[1] is None and got[2].shape == k.shape
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        torch.autograd.grad(attention(q, k, X).sum(), other)


@needs_operator
@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_functional_calls(name):
    module, twice = made(name).eval(), made(name).eval()
    parameters = {n: 2 * x.detach() for n, x in module.named_parameters()}
    twice.load_state_dict(parameters)

    def loss(parameters):
        return first(torch.func.functional_call(module, parameters, (X, X, X))).square().sum()

    gradients = torch.func.grad(loss)(parameters)
    run(twice).square().sum().backward()
    for n, parameter in twice.named_parameters():
        torch.testing.assert_close(gradients[n], parameter.grad, rtol=1e-4, atol=1e-4)


@needs_operator
def test_an_ensemble_of_modules():
    modules = [nn.AdditiveAttention(8, 8, 4) for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(modules)
    got = torch.vmap(lambda p: torch.func.functional_call(modules[0], p, (X, X, X)))(parameters)
    assert torch.equal(got, torch.stack([run(module) for module in modules]))


# ---- modes and hooks ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_modes_without_gradients(name):
    module = made(name).eval()
    with torch.no_grad():
        out = run(module)
        with torch.enable_grad():
            assert run(module, leaf()).requires_grad
    with torch.inference_mode():
        inside = run(module)
        assert torch.equal(run(module, leaf()), out)
    assert torch.equal(inside, out) and not out.requires_grad and inside.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        attention(leaf(), inside, X)


def test_hooks():
    module, calls, x = made("multihead").eval(), [], leaf()
    module.register_forward_pre_hook(lambda *_: calls.append("before"))
    module.register_forward_hook(lambda *_: calls.append("after"))
    module.register_full_backward_hook(lambda *_: calls.append("backward"))
    out = attention(x, x, x)
    out.retain_grad()
    out.register_hook(lambda gradient: 3 * gradient)
    run(module, out).sum().backward()
    assert calls == ["before", "after", "backward"] and out.grad is not None


def test_hooks_of_saved_tensors():
    x, y, z = leaf(), leaf(), leaf()
    attention(x, x, x).square().sum().backward()
    with torch.autograd.graph.save_on_cpu():
        attention(y, y, y).square().sum().backward()
    hooks = (lambda saved: saved.detach().numpy().copy(), torch.from_numpy)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        attention(z, z, z).square().sum().backward()
    assert torch.equal(x.grad, y.grad) and torch.equal(x.grad, z.grad)


def test_deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        x = leaf()
        run(made("multihead"), x).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


@needs_operator
def test_the_default_device_is_for_new_tensors():
    """A seed on a device other than q's would give a result without values."""
    module, every = nn.DotProductAttention(0.5), []
    for device in ("cpu", "meta"):
        with torch.device(device):
            torch.manual_seed(3)
            x = leaf()
            every.append(
                (
                    run(module),
                    attention(x, x, x, key_lengths=[3, 4], dropout=0.5, seed=3),
                    torch.vmap(lambda x: attention(x, x, x, causal_offset=1, causal=True))(X),
                    qkv.torch.scaled_dot_product_attention(X, X, X, dropout_p=0.5),
                )
            )
    for want, got in zip(*every):
        assert got.device.type == "cpu" and torch.equal(got, want)


# ---- tracing ------------------------------------------------------------------------------------

Y = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(2))


@needs_operator
# torch.jit warns of its deprecation, and of the sizes that a trace makes constants.
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", MODULES)
def test_traced_modules(name):
    module = made(name).eval()
    traced = torch.jit.trace(module, (X, X, X))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    for other in (traced, torch.jit.load(file)):
        x, y = leaf(Y), leaf(Y)
        got, want = run(other, x), run(module, y)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        got.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


@needs_operator
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
def test_traced_masks_and_results():
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = made("multihead").eval()

        def forward(self, x, padding, mask):
            return self.inner(x, x, x, key_padding_mask=padding, attn_mask=mask)

    def padded(length, tokens):
        return torch.arange(tokens) >= torch.tensor([[length]] * len(X))

    module, causal = Masked(), torch.ones(5, 5).triu(1).bool()
    traced = torch.jit.trace(module, (X, padded(4, 5), causal))
    for got, want in zip(traced(X, padded(2, 5), causal), module(X, padded(2, 5), causal)):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)

    def results(q):
        return tuple(attention(q, q, q, window=(2, None), return_lse=True, return_pooled=(2, 2)))

    for got, want in zip(torch.jit.trace(results, X)(Y), results(Y)):
        assert torch.equal(got, want)


# ---- threads and processes ----------------------------------------------------------------------


def test_modules_in_threads():
    module = made("additive").eval()
    run(module).sum().backward()
    want = module.W_q.grad.clone()
    module.zero_grad()
    threads = [threading.Thread(target=lambda: run(module).sum().backward()) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(module.W_q.grad, 4 * want, rtol=1e-5, atol=1e-6)


class Attended(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, n):
        x = torch.full((1, 4, 256, 16), float(n))
        return attention(x, x, x)[0, 0, 0, 0]


def test_workers_of_a_data_loader():
    """The workers are forked after the threads of both libraries have run."""
    x = torch.randn(1, 8, 256, 32)
    attention(x, x, x, threads=2)
    attention(x, x, x)
    loader = torch.utils.data.DataLoader(
        Attended(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    assert torch.cat(list(loader)).tolist() == [0.0, 1.0, 2.0, 3.0]


def backward_of(module, x):
    run(module, x).sum().backward()
    os._exit(0 if module.W_q.grad.abs().sum() > 0 else 3)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_module_in_another_process(method):
    processes = torch.multiprocessing.get_context(method)
    module = made("additive")
    module.share_memory()
    child = processes.Process(target=backward_of, args=(module, X))
    child.start()
    child.join(120)
    assert child.exitcode == 0


# ---- unusual tensors ----------------------------------------------------------------------------


def test_views_are_read_where_they_are():
    image = leaf(torch.randn(2, 4, 5, 8)).contiguous(memory_format=torch.channels_last)
    row = torch.randn(1, 5, 8).expand(2, 5, 8)
    negated = torch.randn(2, 5, 8, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    for x in (image, row, negated, X.transpose(1, 2), X[:, ::2]):
        plain = x.detach().clone(memory_format=torch.contiguous_format)
        assert torch.equal(attention(x, x, x), attention(plain, plain, plain))
    for shape in (2, 0, 8), (0, 5, 8):
        nothing = leaf(torch.randn(shape))
        attention(nothing, nothing, nothing).sum().backward()
        assert nothing.grad.shape == shape


REFUSED = {
    "sparse": (lambda: X.to_sparse(), "q must be an array on the CPU that exports its memory"),
    "quantized": (
        lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
        "q must be an array on the CPU that exports its memory",
    ),
    "conjugated": (
        lambda: X.to(torch.complex64).conj(),
        "q must be (float64, float32, bfloat16 or float16|an array .* that exports its memory)",
    ),
}


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_other_kinds_of_tensors_are_named(name, wants):
    make, message = REFUSED[name]
    with pytest.raises(TypeError, match=f"attention: {message}"):
        attention(make(), X, leaf() if wants else X)


@needs_operator
def test_devices_are_not_mixed():
    """A result of mixed devices would be uninitialised memory."""
    meta = X.to("meta")
    for q, k, v, message in (
        (X, meta, X, "k must be on the device of q, cpu, got meta"),
        (meta, X, meta, "k must be on the device of q, meta, got cpu"),
        (leaf(), X, meta, "v must be on the device of q, cpu, got meta"),
    ):
        with pytest.raises(ValueError, match=f"attention: {message}"):
            attention(q, k, v)
    with pytest.raises(ValueError, match="attention: mask must be on the device of q"):
        attention(X, X, X, mask=torch.ones(5, 5, dtype=torch.bool, device="meta"))
    with pytest.raises(ValueError, match="^BilinearAttention: W must be on the device of q"):
        run(made("bilinear").to("meta"))
    assert attention(meta, meta, meta, key_lengths=[1, 2], sinks=[0.0]).is_meta


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("name", ["scale", "softcap", "rotary_base", "rotary_frequencies"])
def test_arguments_without_gradients_must_not_require_them(name, wants):
    value = torch.full((4,) if name == "rotary_frequencies" else (), 0.5)
    options = {"rotary": "halves"} if name.startswith("rotary") else {}
    q = leaf() if wants else X
    with pytest.raises(ValueError, match=f"attention: {name} must not require a gradient: it"):
        attention(q, X, X, **{name: leaf(value)}, **options)
    with torch.no_grad():
        inside = attention(q, X, X, **{name: leaf(value)}, **options)
    assert torch.equal(inside, attention(X, X, X, **{name: value}, **options))


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("name", ["alibi_slopes", "sinks", "bias", "bias of rows"])
def test_gradients_of_tensors_in_a_list(name, wants):
    argument, rows, _ = name.partition(" of rows")
    number = leaf(torch.tensor(0.5))
    row = [number] if argument != "bias" else [0.25, number, number, 1, 2]
    options = {argument: [row] if rows else row}
    q = leaf() if wants else X
    with pytest.raises(ValueError, match=f"attention: {argument} must be a tensor to have a grad"):
        attention(q, X, X, **options)
    with torch.no_grad():
        got = attention(q, X, X, **options)
        assert torch.equal(got, attention(X, X, X, **{argument: torch.tensor(options[argument])}))


def test_a_list_of_tensors_with_gradients_without_autograd():
    with pytest.raises(ValueError, match=r"attention: sinks must be an array or a list of numbers"):
        qkv.attention(X, X, X, sinks=[leaf(torch.tensor(0.5))])


@needs_operator
@pytest.mark.parametrize("name", ["scale", "rotary_frequencies"])
def test_arguments_without_gradients_under_torch_func(name):
    def loss(value):
        rotary = "halves" if name == "rotary_frequencies" else None
        return attention(X, X, X, rotary=rotary, **{name: value}).sum()

    with pytest.raises(ValueError, match=f"attention: {name} must not require a gradient"):
        torch.func.grad(loss)(torch.full((4,) if name == "rotary_frequencies" else (), 0.5))


def test_registering_twice():
    pytest.importorskip("transformers", reason="register is for Transformers")
    qkv.torch.register()
    qkv.torch.register()
