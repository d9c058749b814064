# SPDX-License-Identifier: Apache-2.0
"""Tests CUDA tensors in qkv.torch, with an emulator and fake tensors, and on a GPU if present."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from cuda_calls import (  # noqa: E402
    CASES,
    WITH_GRADIENTS,
    additive_inputs,
    assert_gradients_near,
    assert_near,
    dropped_weights,
    exact_gradients,
    gradients,
    inputs,
    moved,
    results_of,
)
from patience import PATIENCE  # noqa: E402
from torch_versions import needs_operator  # noqa: E402

import qkv  # noqa: E402
import qkv.torch  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
# The folder of the fake driver libcuda.so.1, which runs kernels in an emulator.
DRIVER = HERE.parents[1] / "build" / "release" / "tests" / "cuda" / "computing"
NO_KERNELS = "this build has no CUDA kernels (QKV_CUDA)"

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")


# ---- without a GPU -------------------------------------------------------------------------------


def test_in_the_emulator():
    if qkv.info()["why_no_cuda_device"] == NO_KERNELS:
        pytest.skip(NO_KERNELS)
    if not (DRIVER / "libcuda.so.1").is_file():
        pytest.skip("the drivers are part of the release build")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         str(HERE / "emulated_torch_cuda.py")],
        capture_output=True, text=True, timeout=PATIENCE, cwd=HERE,
        env={**os.environ, "LD_LIBRARY_PATH": str(DRIVER)})  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def fakes(dtype=torch.bfloat16):
    """q, k and v as CUDA tensors without values, which need no GPU but PyTorch 2.0."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        shapes = (2, 4, 70, 64), (2, 2, 90, 64), (2, 2, 90, 32)
        tensors = [torch.empty(s, dtype=dtype, device="cuda") for s in shapes]
        return mode, tensors


@needs_operator
def test_shapes_of_cuda_tensors_without_values():
    mode, (q, k, v) = fakes()
    with mode:
        got = qkv.torch.attention(q, k, v, return_lse=True, key_lengths=[3, 90])
        assert got.out.shape == (2, 4, 70, 32) and got.lse.shape == (2, 4, 70)
        assert got.out.device == q.device and got.out.dtype == torch.bfloat16
        assert got.lse.dtype == torch.float32


@needs_operator
def test_mixed_devices_are_refused_by_name():
    mode, (q, k, v) = fakes()
    with mode:
        mask = torch.ones(70, 90, dtype=torch.bool)
        with pytest.raises(ValueError, match="mask must be on the device of q, cuda:0, got cpu"):
            qkv.torch.attention(q, k, v, mask=mask)
        other = torch.empty(2, 2, 90, 64, dtype=torch.bfloat16, device="cuda:1")
        with pytest.raises(ValueError, match="k must be on the device of q, cuda:0, got cuda:1"):
            qkv.torch.attention(q, other, v)
        with pytest.raises(ValueError, match="k must be on the device of q, cpu, got cuda:0"):
            qkv.torch.attention(torch.empty(2, 4, 70, 64, dtype=torch.bfloat16), k, v)


@needs_operator
def test_gradients_have_the_shapes_of_their_tensors():
    mode, (q, k, v) = fakes()
    with mode:  # no autograd, which would need a GPU even for fake CUDA tensors
        out, lse = qkv.torch.attention(q, k, v, return_lse=True)
        differentiate = torch.ops.qkv.attention_backward
        dq, dk, dv, *_ = differentiate(out, None, None, out, lse, q, k, v, wanted="k,v")
        assert dq.shape == (0,) and dk.shape == k.shape and dv.shape == v.shape
        assert dk.device == k.device and dk.dtype == k.dtype


@needs_operator
def test_gradients_that_no_kernel_computes_are_refused_in_the_forward_call():
    mode, (q, k, v) = fakes(torch.float32)
    with mode:
        sinks = torch.empty(4, device="cuda", requires_grad=True)
        with pytest.raises(ValueError, match="attention: sinks requires a gradient, but for CUDA"):
            qkv.torch.attention(q, k, v, sinks=sinks)
        with torch.no_grad():
            assert qkv.torch.attention(q, k, v, sinks=sinks).shape == (2, 4, 70, 32)


@needs_operator
def test_the_additive_module_takes_cuda_tensors(monkeypatch):
    Module = qkv.torch.nn.AdditiveAttention
    monkeypatch.setattr(Module, "reset_parameters", lambda self: None)  # drawing needs a GPU
    mode, (q, k, v) = fakes(torch.float32)
    with mode:
        module = Module(64, 64, 40, device="cuda")
        with torch.no_grad():  # autograd would need a GPU
            out, lse = module(q, k, v, return_lse=True)
        assert out.shape == (2, 4, 70, 32) and lse.shape == (2, 4, 70)
        assert out.device == q.device and out.dtype == torch.float32
        module.requires_grad_(False)
        assert module(q, k, v).shape == (2, 4, 70, 32)


@needs_operator
def test_watchers_do_not_get_calls_of_cuda_tensors():
    class Watcher:
        def take(self, *call):
            raise AssertionError("a call of CUDA tensors was reported")

    watchers = qkv.torch._watch.WATCHERS
    watchers.append(Watcher())
    try:
        mode, (q, k, v) = fakes()
        with mode:
            assert qkv.torch.attention(q, k, v).shape == (2, 4, 70, 32)
        with pytest.raises(AssertionError, match="was reported"):
            qkv.torch.attention(*inputs())
    finally:
        watchers.pop()


class OnCuda:
    """A stand-in for an array of CuPy, which only says where its memory on the GPU is."""

    __cuda_array_interface__ = {
        "shape": (3, 8), "typestr": "<f4", "data": (1 << 60, False), "version": 3,
    }  # fmt: skip


class Exported(OnCuda):
    def __dlpack__(self, **options):
        raise BufferError("on a GPU")

    def __dlpack_device__(self):
        return (2, 0)


@pytest.mark.parametrize("array", [OnCuda(), Exported()])
def test_the_functions_of_numpy_point_to_qkv_torch(array):
    x = np.ones((3, 8), np.float32)
    for arguments in ((array, x, x), (x, array, x)):
        with pytest.raises(TypeError, match=r"attention: [qk] must be .*qkv\.torch\.attention"):
            qkv.attention(*arguments)
    with pytest.raises(TypeError, match=r"attention: mask must be .*qkv\.torch\.attention"):
        qkv.attention(x, x, x, mask=array)


# ---- on a GPU ------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("name", CASES)
def test_results(name):
    q, k, v, options = CASES[name]
    want = qkv.torch.attention(q, k, v, **options)
    q, k, v = (moved(x, "cuda") for x in (q, k, v))
    on_device = moved(options, "cuda")
    got = qkv.torch.attention(q, k, v, **on_device)
    assert all(x.device == q.device for x in results_of(got))
    assert_near(got, want, q.dtype, v)
    for _ in range(20):
        again = qkv.torch.attention(q, k, v, **on_device)
        assert all(torch.equal(x, y) for x, y in zip(results_of(again), results_of(got)))


@on_gpu
@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients(name):
    want = exact_gradients(qkv.torch.attention, name)
    got = gradients(qkv.torch.attention, name, "cuda")
    assert_gradients_near(got, want, CASES[name][0].dtype)
    for _ in range(20):
        again = gradients(qkv.torch.attention, name, "cuda")
        assert all(torch.equal(x, got[letter]) for letter, x in again.items())


@on_gpu
def test_dropout_drops_what_the_cpu_drops():
    got = dropped_weights(qkv.torch.attention, "cuda")
    assert torch.equal(got != 0, dropped_weights(qkv.torch.attention) != 0)


@on_gpu
def test_an_entry_alone_has_equal_bits():
    q, k, v = (x.cuda() for x in inputs(B=3))
    whole = qkv.torch.attention(q, k, v, causal=True)
    assert torch.equal(qkv.torch.attention(q[1:2], k[1:2], v[1:2], causal=True), whole[1:2])


@on_gpu
def test_the_additive_module():
    q, k, v = additive_inputs()
    module = qkv.torch.nn.AdditiveAttention(20, 24, 100)
    with torch.no_grad():
        want = module(q, k, v, causal=True)
        got = module.cuda()(*(x.cuda() for x in (q, k, v)), causal=True)
    assert_near(got, want, q.dtype, v)
    with pytest.raises(ValueError, match="use torch.no_grad"):
        module(*(x.cuda() for x in (q, k, v)))


@on_gpu
def test_calls_are_captured_and_replayed():
    q, k, v = (x.cuda() for x in inputs())
    qkv.torch.attention(q, k, v, causal=True)  # loads the kernel before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = qkv.torch.attention(q, k, v, causal=True)
    q.copy_(q.flip(2).clone())
    graph.replay()
    assert torch.equal(out, qkv.torch.attention(q, k, v, causal=True))


@on_gpu
def test_calls_run_in_the_current_stream():
    q, k, v = (x.cuda() for x in inputs(Tq=2048, Tk=2048))
    want = qkv.torch.attention(q, k, v)
    late = torch.empty_like(q)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # cycles of the GPU, which delay the copy
        late.copy_(q)
        out = qkv.torch.attention(late, k, v)  # runs after the copy, in this stream
    stream.synchronize()
    assert torch.equal(out, want)


@on_gpu
@needs_operator
def test_compiled_calls():
    q, k, v = (x.cuda() for x in inputs())
    call = torch.compile(lambda q, k, v: qkv.torch.attention(q, k, v, causal=True) * 2)
    with torch.no_grad():
        assert torch.equal(call(q, k, v), qkv.torch.attention(q, k, v, causal=True) * 2)


@on_gpu
@needs_operator
def test_autocast_chooses_the_dtype():
    q, k, v = (x.float().cuda() for x in inputs())
    with torch.autocast("cuda", torch.bfloat16):
        out = qkv.torch.attention(q, k, v)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, qkv.torch.attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))


@on_gpu
def test_scaled_dot_product_attention():
    q, k, v = (x.cuda() for x in inputs(G=4))
    got = qkv.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(got, qkv.torch.attention(q, k, v, causal="top_left"))
    wide = [x.float() for x in (q, k, v)]  # qkv leaves float32 on a GPU to PyTorch
    theirs = torch.nn.functional.scaled_dot_product_attention(*wide)
    assert torch.equal(qkv.torch.scaled_dot_product_attention(*wide), theirs)


@on_gpu
def test_refusals():
    q, k, v = (x.cuda() for x in inputs())
    mask = torch.ones(70, 90, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask must be on the device of q, cuda:0, got cpu"):
        qkv.torch.attention(q, k, v, mask=mask)
    with pytest.raises(ValueError, match="use torch.no_grad"):
        qkv.torch.attention(q, k, v, sinks=torch.zeros(4, device="cuda", requires_grad=True))
    with pytest.raises(TypeError, match=r"qkv\.torch\.attention"):
        qkv.attention(k, k, v)
