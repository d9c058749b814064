# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch's calls of CUDA tensors without a GPU; test_torch_cuda.py runs this file.

The driver is tests/cuda/computing_driver.cc, for which memory of the host is memory of a GPU and
which runs kernels in an emulator. Tensors are on the CPU, so tests call functions of qkv.torch that
do not look at a tensor's device, or use the fixture `taken`.
"""

import ctypes

import numpy as np
import pytest
import torch
from cuda_calls import (
    CASES,
    WITH_GRADIENTS,
    additive,
    additive_inputs,
    assert_gradients_near,
    assert_near,
    dropped_weights,
    exact_gradients,
    gradients,
    gradients_of,
    inputs,
    wide,
)

import qkv
import qkv.torch
from qkv import _core
from qkv.torch import _cuda, _questions

STREAM = 4242


@pytest.fixture(scope="module", autouse=True)
def driver():
    fake = ctypes.CDLL("libcuda.so.1")
    fake.fake_last_stream.restype = ctypes.c_uint64
    # The memory of all tensors counts as memory of device 0.
    fake.fake_device_memory(ctypes.c_uint64(4096), ctypes.c_uint64(2**62))
    _cuda._stream_of = lambda device: STREAM
    make = _cuda._Call.result

    # Results begin as NaN, so that missing writes show; those of packed sequences begin as zeros.
    def poisoned(call, *arguments):
        made, address = make(call, *arguments)
        if call.given["cu_seqlens_q"] is None and made.is_floating_point():
            made.fill_(float("nan"))
        return made, address

    _cuda._Call.result = poisoned
    return fake


def attention(q, k, v, **options):
    return _cuda.attention(q=q, k=k, v=v, **options)


@pytest.mark.parametrize("name", CASES)
def test_results(name, driver):
    q, k, v, options = CASES[name]
    got = attention(q, k, v, **options)
    want = qkv.torch.attention(q, k, v, **options)
    assert_near(got, want, q.dtype, v)
    if q.numel() > 0:
        assert driver.fake_last_stream() == STREAM


def test_dropout_drops_what_the_cpu_drops():
    got, want = dropped_weights(attention), dropped_weights(qkv.torch.attention)
    assert torch.equal(got != 0, want != 0)


def test_an_additive_entry_alone_has_equal_bits():
    whole = attention(*additive_inputs(B=3), **additive(), causal=True)
    one = attention(*(x[1:2] for x in additive_inputs(B=3)), **additive(), causal=True)
    assert torch.equal(one, whole[1:2])


def test_negated_tensors_are_their_values():
    q, k, v = inputs()
    negated = torch._neg_view(k)
    assert_near(attention(q, negated, v), attention(q, -k, v), q.dtype, v)


# ---- gradients -----------------------------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch):
    """Makes qkv.torch.attention take tensors of the CPU for those of a GPU, except float64 ones.

    Returns the list of the functions of _core called for them.
    """
    calls = []

    def counted(function):
        def call(*arguments):
            calls.append(function)
            return getattr(_core, function)(*arguments)

        return call

    class Counted:
        REQUESTS = _core.REQUESTS
        check_tensor = _core.check_tensor
        cuda_attention = staticmethod(counted("cuda_attention"))
        cuda_attention_backward = staticmethod(counted("cuda_attention_backward"))

    monkeypatch.setattr(_cuda, "is_on_gpu", lambda x: x.dtype != torch.float64)
    monkeypatch.setattr(_cuda, "_core", Counted)
    return calls


BOTH = ["cuda_attention", "cuda_attention_backward"]


@pytest.fixture(scope="module")
def exact():
    return {name: exact_gradients(qkv.torch.attention, name) for name in WITH_GRADIENTS}


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients(name, exact, taken):
    got = gradients(qkv.torch.attention, name)
    assert taken == BOTH
    assert_gradients_near(got, exact[name], CASES[name][0].dtype)


def test_only_gradients_that_are_needed_are_computed(exact, taken, monkeypatch):
    whole = gradients(qkv.torch.attention, "plain")
    wanted = []
    run = _cuda._Call.run

    def watched(call, function, *more):  # appends `wanted` of a backward call, else None
        wanted.append(more[0][6] if len(more[0]) == 8 else None)
        return run(call, function, *more)

    monkeypatch.setattr(_cuda._Call, "run", watched)
    for needed in ("q", "k", "v", "kv"):
        got = gradients(qkv.torch.attention, "plain", needed=needed)
        assert list(got) == list(needed) and wanted.pop() == [f"d{name}" for name in needed]
        assert all(torch.equal(x, whole[name]) for name, x in got.items())


@pytest.mark.skipif(not _questions.AVAILABLE, reason="this PyTorch has no operator")
def test_gradients_through_the_operator(taken):
    want = gradients(qkv.torch.attention, "mask, bias and dropout")
    compiled = torch.compile(qkv.torch.attention, backend="aot_eager", fullgraph=True)
    got = gradients(compiled, "mask, bias and dropout")
    assert taken == 2 * BOTH
    assert all(torch.equal(x, want[name]) for name, x in got.items())

    q, k, v = inputs()
    of_q = torch.func.grad(lambda q: qkv.torch.attention(q, k, v).sum())(q)
    assert taken == 3 * BOTH
    leaf = q.clone().requires_grad_()
    qkv.torch.attention(leaf, k, v).sum().backward()
    assert torch.equal(of_q, leaf.grad)


def test_gradients_of_a_bias(taken):
    q, k, v = inputs(Tq=20, Tk=33)
    for shape in ((2, 4, 20, 33), (4, 20, 33), (2, 1, 20, 33), (20, 33)):
        bias = torch.randn(shape, generator=torch.Generator().manual_seed(3), requires_grad=True)
        got = gradients_of(qkv.torch.attention, q, k, v, {"bias": bias, "softcap": 5.0}, "q")
        of_bias, bias.grad = bias.grad, None
        exact = bias.detach().double().requires_grad_()
        want = gradients_of(
            qkv.torch.attention, *map(wide, (q, k, v)), {"bias": exact, "softcap": 5.0}, "q"
        )
        assert_gradients_near(got, want, q.dtype)
        torch.testing.assert_close(of_bias.double(), exact.grad, atol=2e-2, rtol=2e-2)
        assert float((of_bias.double() - exact.grad).norm() / exact.grad.norm()) < 0.01
    broadcast = torch.zeros(4, 1, 33, requires_grad=True)
    out = qkv.torch.attention(q, k, v, bias=broadcast)
    with pytest.raises(ValueError, match="gradient of a bias that is broadcast over queries or ke"):
        out.sum().backward()


def test_gradients_of_slopes_and_sinks(taken):
    for packed in (False, True):
        q, k, v = inputs(Tq=70, Tk=90)
        options = {"causal": True}
        if packed:
            q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
            options["cu_seqlens_q"] = torch.tensor([0, 70, 140])
            options["cu_seqlens_k"] = torch.tensor([0, 90, 180])
        for slopes_shape, dtype in (((4,), torch.float32), ((2, 4), q.dtype)):
            draw = torch.Generator().manual_seed(4)
            leaves = {
                "alibi_slopes": torch.rand(slopes_shape, generator=draw).to(dtype),
                "sinks": torch.randn(4, generator=draw).to(dtype),
            }
            exact = {name: x.double() for name, x in leaves.items()}
            for x in (*leaves.values(), *exact.values()):
                x.requires_grad_()
            taken.clear()
            got = gradients_of(qkv.torch.attention, q, k, v, {**options, **leaves}, "k")
            assert taken == BOTH
            want = gradients_of(
                qkv.torch.attention, *map(wide, (q, k, v)), {**options, **exact}, "k"
            )
            assert_gradients_near(got, want, q.dtype)
            for name, x in leaves.items():
                assert x.grad.dtype == dtype and x.grad.shape == x.shape
                apart = (x.grad.double() - exact[name].grad).norm()
                assert float(apart / exact[name].grad.norm()) < 0.02, (packed, name)


def test_gradients_of_additive_parameters(taken):
    for heads in ((), ("Wq", "Wk", "v", "b"), ("Wk",)):
        options = additive(U=70, heads=heads)
        params = {name: x.requires_grad_() for name, x in options["params"].items()}
        exact = {name: x.detach().double().requires_grad_() for name, x in params.items()}
        q, k, v = additive_inputs()
        got = gradients_of(qkv.torch.attention, q, k, v, {**options, "causal": True}, "q")
        wide_options = {"score": "additive", "params": exact, "causal": True}
        want = gradients_of(qkv.torch.attention, *map(wide, (q, k, v)), wide_options, "q")
        assert taken == BOTH
        taken.clear()
        assert_gradients_near(got, want, q.dtype)
        assert_gradients_near(
            *({name: x.grad for name, x in y.items()} for y in (params, exact)), q.dtype
        )


def test_rows_outside_of_packed_sequences_are_zeros(taken):
    q, k, v = (
        x[0].transpose(0, 1).contiguous().requires_grad_() for x in inputs(B=1, Tq=20, Tk=20)
    )
    starts = torch.tensor([0, 5, 15])
    out = qkv.torch.attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts)
    out.sum().backward()
    for x in (out, q.grad, k.grad, v.grad):
        assert torch.all(x[:15] != 0) or x is q.grad or x is k.grad
        assert torch.all(x[15:] == 0)


def test_gradients_that_no_kernel_computes(taken):
    q, k, v = inputs()
    x = additive_inputs()
    leaf = torch.zeros(70, 90, requires_grad=True)
    match = "attention: bias requires a gradient, but for CUDA tensors additive scores have those"
    with pytest.raises(ValueError, match=match):
        qkv.torch.attention(*x, **additive(), bias=leaf)
    with torch.no_grad():
        qkv.torch.attention(*x, **additive(), bias=leaf)
    taken.clear()
    wide_bias = torch.zeros(70, 90, requires_grad=True)
    floats = inputs(dtype=torch.float32)
    with pytest.raises(ValueError, match="float32 product scores have those of q, k, v only"):
        qkv.torch.attention(*floats, bias=wide_bias)
    matrix = torch.eye(16).to(q.dtype).requires_grad_()
    with pytest.raises(
        ValueError, match=r'attention: params\["W"\] requires a gradient, but for C'
    ):
        qkv.torch.attention(q, k, v, score="bilinear", params={"W": matrix})
    if _questions.AVAILABLE:
        with pytest.raises(ValueError, match=match):
            torch.func.grad(lambda b: qkv.torch.attention(*x, **additive(), bias=b).sum())(leaf)
        taken.clear()
        params = {f"params_{name}": y for name, y in additive()["params"].items()}
        with pytest.raises(ValueError, match=match):
            torch.ops.qkv.attention(*x, score="additive", bias=leaf, **params)
        assert taken == ["cuda_attention"]  # autograd asks for gradients after the operator's call
        taken.clear()
    assert taken == []
    shared = k[:1].clone().requires_grad_()
    with pytest.raises(
        ValueError, match="k requires a gradient, but is broadcast over batch entri"
    ):
        qkv.torch.attention(q, shared, v)
    qkv.torch.attention(q, shared.expand_as(k), v).sum().backward()
    assert shared.grad.shape == shared.shape
    leaf = q.clone().requires_grad_()
    out, weights = qkv.torch.attention(leaf, k, v, return_weights=True)
    out.sum().backward(retain_graph=True)
    with pytest.raises(ValueError, match="attention: weights have no gradient for CUDA tensors"):
        weights.sum().backward()


def test_gradients_of_a_negated_and_of_an_expanded_gradient(taken):
    q, k, v = inputs()
    want = gradients_of(qkv.torch.attention, q, k, v, {}, "q")["q"]
    leaf = q.clone().requires_grad_()
    out = qkv.torch.attention(leaf, k, v)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(20)).to(out)
    dout = dout.bfloat16()
    out.backward(torch._neg_view(-dout), retain_graph=True)
    assert torch.equal(leaf.grad, want)
    leaf.grad = None
    out.sum().backward()  # dout has strides of 0
    expanded = leaf.grad
    leaf.grad = None
    qkv.torch.attention(leaf, k, v).backward(torch.ones_like(out))
    assert torch.equal(expanded, leaf.grad)


@pytest.mark.skipif(not _questions.AVAILABLE, reason="this PyTorch has no operator")
def test_the_operator_gives_equal_results(monkeypatch):
    q, k, v = inputs()
    calls = []

    def counted(**arguments):
        calls.append(arguments)
        return _cuda.attention(**arguments)

    # For q on the CPU, the operator's kernel calls _functions.attention.
    monkeypatch.setattr(qkv.torch._operator._functions, "attention", counted)
    every = {"causal": "diagonal", "softcap": 5.0}
    out, lse, *_ = torch.ops.qkv.attention(q, k, v, **every)
    assert len(calls) == 1
    want = attention(q, k, v, causal=True, softcap=5.0, return_lse=True)
    assert torch.equal(out, want.out) and torch.equal(lse, want.lse)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"return_top": 3}, ValueError, "attention: options need what no CUDA kernel supports: "
         "results other than out, lse, row_max, entropy"),
        ({"score": "cosine"}, ValueError, "no CUDA kernel supports: input transforms"),
        ({"rotary": "halves"}, ValueError, "attention: rotary is not available for arrays in"),
        ({"threads": 2}, ValueError, "attention: threads is for calls on the CPU, got 2"),
        ({"mask": torch.ones(3, 3, dtype=torch.bool)}, ValueError,
         r"attention: mask must broadcast to .* got bool \[3,3\]"),
        ({"mask": "all"}, TypeError, "mask must be a tensor, a NumPy array or a list, got str"),
        ({"causal": True, "causal_offset": torch.tensor(1.5)}, TypeError,
         "attention: causal_offset must be an integer, got torch.float32"),
        ({"mask": torch.ones(70, 90)}, TypeError, "attention: mask must be bool or an integer"),
        ({"dropout": 0.5}, ValueError, "attention: seed"),
        ({"widnow": (1, 1)}, TypeError, "window"),
        ({"bias": torch.ones(70, 90).to_sparse()}, TypeError, "bias must be a strided tensor"),
        ({"key_lengths": torch.ones(2, 1, device="meta")}, ValueError,
         "attention: key_lengths must be on the device of q, cpu, got meta"),
        ({"causal_offset": torch.ones((), device="meta", dtype=torch.int64)}, ValueError,
         "attention: causal_offset must be an integer or a tensor"),
        ({"seed": torch.ones((), device="meta", dtype=torch.int64), "dropout": 0.5}, ValueError,
         "attention: seed must be known to the host, got a tensor on meta"),
        ({"layout": "bthd"}, ValueError, "attention: "),
    ],
)  # fmt: skip
def test_errors_name_the_argument(options, kind, text):
    with pytest.raises(kind, match=text):
        attention(*inputs(), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"return_entropy": True}, "results of an additive score other than out, lse and row_max"),
        ({"qk_norm": True}, "attention: qk_norm is not available for arrays in device memory"),
        ({"params": {"Wq": torch.ones(4, 20, device="meta")}},
         r'attention: params\["Wq"\] must be on the device of q, cpu, got meta'),
        ({"params": {"Wq": torch.ones(4, 20), "Wk": torch.ones(4, 24)}}, r"params\[\"v\"\]"),
    ],
)  # fmt: skip
def test_errors_of_additive_scores(options, text):
    with pytest.raises(ValueError, match=text):
        attention(*additive_inputs(), **{**additive(), **options})


def test_types_that_no_kernel_has():
    q, k, v = inputs(dtype=torch.float64)
    with pytest.raises(ValueError, match="attention: options need .* q of float64"):
        attention(q, k, v)
    with pytest.raises(ValueError, match="an additive score of q of bfloat16"):
        narrow = additive(Dq=64, Dk=64)
        narrow["params"] = {name: x.bfloat16() for name, x in narrow["params"].items()}
        attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), **narrow)
    with pytest.raises(ValueError, match="more than 256 channels"):
        attention(*inputs(D=300, Tq=5, Tk=5))
    with pytest.raises(TypeError, match="attention: k must be .* got complex64"):
        attention(q.bfloat16(), k.to(torch.complex64), v.bfloat16())


def test_arguments_that_are_not_tensors():
    q, k, v = inputs()
    with pytest.raises(TypeError, match="attention: k must be a tensor, got ndarray"):
        attention(q, np.ones((2, 2, 90, 64), np.float32), v)

    class Odd(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return super().__torch_function__(function, types, args, kwargs or {})

    with pytest.raises(TypeError, match="attention: v must be a tensor whose memory is its value"):
        attention(q, k, v.as_subclass(Odd))


def test_host_memory_is_refused_by_name(driver):
    q, k, v = inputs()
    driver.fake_host_memory(ctypes.c_uint64(4096))
    try:
        for x in (q, k):
            driver.fake_device_memory(ctypes.c_uint64(x.data_ptr()), ctypes.c_uint64(2 * x.numel()))
        with pytest.raises(ValueError, match="attention: v must be in the memory of device 0, got"):
            attention(q, k, v)
    finally:
        for x in (q, k):
            driver.fake_host_memory(ctypes.c_uint64(x.data_ptr()))
        driver.fake_device_memory(ctypes.c_uint64(4096), ctypes.c_uint64(2**62))


def test_numbers_are_not_checked_on_the_host():
    q, k, v = inputs()
    want = attention(q, k, v)
    long = attention(q, k, v, key_lengths=torch.tensor([10**9, 91]))
    assert torch.equal(long, want)
