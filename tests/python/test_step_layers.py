# SPDX-License-Identifier: Apache-2.0
"""Tests the layers that decoders call step by step, AdditiveMemory and GRUCell, and Dropout."""

import copy
import pickle

import numpy as np
import pytest
from random_calls import needs_torch, torch

import qkv


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# ---- AdditiveMemory ------------------------------------------------------------------------------

B, G, TK, DQ, DK, E, U = 2, 2, 7, 3, 4, 5, 6
K, V = draw(B, G, TK, DK, seed=1), draw(B, G, TK, E, seed=2)
PARAMS = {"Wq": draw(U, DQ, seed=3), "Wk": draw(U, DK, seed=4), "v": draw(U), "b": draw(U, seed=5)}
STEPS = [draw(B, G, 1, DQ, seed=10 + n) for n in range(3)]
OPTIONS = {"key_lengths": [7, 4], "softcap": 3.0, "dropout": 0.3, "seed": 5}


def function_of(q, **options):
    return qkv.attention(q, K, V, score="additive", params=PARAMS, **OPTIONS, **options)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_memory_has_the_bits_of_the_function(threads):
    memory = qkv.AdditiveMemory(K, PARAMS, threads=threads)
    assert memory.path.split("/")[0] in ("additive", "reference")
    for q in STEPS:
        asked = {"return_weights": "both", "return_lse": True, "return_top": 2}
        got, want = memory.attention(q, V, **OPTIONS, **asked), function_of(q, **asked)
        assert got._fields == want._fields
        for x, y in zip((*got[:-1], *got.top), (*want[:-1], *want.top)):
            np.testing.assert_array_equal(x, y)
    assert isinstance(memory.attention(STEPS[0], V), np.ndarray)


def test_gradients_of_keys_are_added_up():
    memory = qkv.AdditiveMemory(K, PARAMS)
    dk, dwk = np.zeros_like(K), np.zeros_like(PARAMS["Wk"])
    for n, q in enumerate(STEPS):
        out, lse = memory.attention(q, V, **OPTIONS, return_lse=True)
        dout = draw(*out.shape, seed=n)
        got = memory.attention_backward(dout, q, V, out, lse, **OPTIONS)
        want = qkv.attention_backward(
            dout, q, K, V, out, lse, score="additive", params=PARAMS, **OPTIONS
        )
        assert got.dk is None and sorted(got.dparams) == ["Wq", "b", "v"]
        np.testing.assert_array_equal(got.dq, want.dq)
        np.testing.assert_array_equal(got.dv, want.dv)
        for name, gradient in got.dparams.items():
            np.testing.assert_array_equal(gradient, want.dparams[name])
        dk += want.dk
        dwk += want.dparams["Wk"]
    for _ in range(2):
        got_k, got_wk = memory.key_gradients()
        np.testing.assert_allclose(got_k, dk, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(got_wk, dwk, rtol=1e-12, atol=1e-14)
        dk[:], dwk[:] = 0, 0  # key_gradients() has reset the sums


def test_gradients_may_be_chosen_and_added():
    memory = qkv.AdditiveMemory(K, PARAMS)
    q = STEPS[0]
    out, lse = memory.attention(q, V, return_lse=True)
    dout = np.ones_like(out)
    whole = memory.attention_backward(dout, q, V, out, lse)
    some = memory.attention_backward(dout, q, V, out, lse, wanted=("dq",))
    assert some.dv is None and some.dparams is None
    np.testing.assert_array_equal(some.dq, whole.dq)
    before = whole.dq.copy()
    again = memory.attention_backward(dout, q, V, out, lse, add_to=whole)
    assert again.dq is whole.dq
    np.testing.assert_array_equal(again.dq, 2 * before)
    with pytest.raises(ValueError, match="backward: wanted names dk, but the call has no k"):
        memory.attention_backward(dout, q, V, out, lse, wanted=("dk",))


@needs_torch
def test_memories_of_tensors():
    tensors = {name: torch.from_numpy(x) for name, x in PARAMS.items()}
    memory = qkv.AdditiveMemory(torch.from_numpy(K), tensors)
    out = memory.attention(torch.from_numpy(STEPS[0]), torch.from_numpy(V), **OPTIONS)
    np.testing.assert_array_equal(out.numpy(), function_of(STEPS[0]))
    assert all(isinstance(x, torch.Tensor) for x in memory.key_gradients())


def test_what_a_memory_refuses():
    with pytest.raises(ValueError, match="^AdditiveMemory: k must be given, got None$"):
        qkv.AdditiveMemory(None, PARAMS)
    with pytest.raises(ValueError, match=r"^AdditiveMemory: params\[\"Wk\"\] .*"):
        qkv.AdditiveMemory(K, {**PARAMS, "Wk": draw(U, 9)})
    with pytest.raises(ValueError, match="^AdditiveMemory: params may have the keys"):
        qkv.AdditiveMemory(K, {"W": draw(U, 9)})
    memory = qkv.AdditiveMemory(K, PARAMS)
    for name in ("score", "layout", "heads", "cu_seqlens_q", "threads"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            memory.attention(STEPS[0], V, **{name: None})
    with pytest.raises(TypeError, match=r"AdditiveMemory.attention\(\) .* mean 'softcap'"):
        memory.attention(STEPS[0], V, sofcap=1)
    with pytest.raises(ValueError, match=r"^AdditiveMemory.attention: params\[\"Wq\"\] "):
        memory.attention(draw(B, G, 1, 8), V)
    out, lse = memory.attention(STEPS[0], V, return_lse=True)
    with pytest.raises(ValueError, match="^AdditiveMemory.attention_backward: lse "):
        memory.attention_backward(out, STEPS[0], V, out, lse[:1])


# ---- GRUCell -------------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(), (1,), (3,), (70,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_are_torchs(bias, batch, dtype):
    kind = getattr(torch, dtype)
    theirs = torch.nn.GRUCell(3, 5, bias=bias, dtype=kind)
    cell = qkv.GRUCell(3, 5, bias=bias, dtype=dtype)
    cell.load_torch(theirs.state_dict())
    xs = [torch.from_numpy(draw(*batch, 3, seed=n)).to(kind).requires_grad_() for n in range(4)]
    first = torch.from_numpy(draw(*batch, 5, seed=9)).to(kind).requires_grad_()
    state, want, steps = first.detach(), first, []
    for x in xs:
        state, step = cell.forward(x.detach(), state, return_step=True)
        want = theirs(x, want)
        steps.append(step)
    bound = {"rtol": 1e-12, "atol": 1e-13} if dtype == "float64" else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(state, want.detach(), **bound)

    dstate = torch.from_numpy(draw(*batch, 5, seed=7)).to(kind)
    want.backward(dstate)
    sums = {name: 0 for name in cell.parameters()}
    for x, step in zip(reversed(xs), reversed(steps)):
        got = cell.backward(dstate, step)
        torch.testing.assert_close(got.dx, x.grad, **bound)
        dstate = got.dstate
        sums = {name: total + got.parameters[name] for name, total in sums.items()}
    torch.testing.assert_close(dstate, first.grad, **bound)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(torch.from_numpy(sums[name]), parameter.grad, **bound)


def test_a_cell_is_a_step_of_the_layer():
    layer = qkv.GRU(3, 4, seed=2)
    cell = qkv.GRUCell(3, 4)
    cell.load_torch({name[: -len("_l0")]: x for name, x in layer.parameters().items()})
    x = draw(2, 5, 3).astype(np.float32)
    out, _ = layer.forward(x)
    state = None
    for t in range(5):
        state = cell.forward(x[:, t], state)
        np.testing.assert_array_equal(state, out[:, t])


def test_backward_without_a_step_is_of_the_last_one():
    cell = qkv.GRUCell(3, 4, dtype="float64", seed=1)
    x, h = draw(2, 3), draw(2, 4)
    _, first = cell.forward(x, h, return_step=True)
    second = cell.forward(x + 1, h)
    dstate = np.ones_like(second)
    assert np.any(cell.backward(dstate).dx != cell.backward(dstate, first).dx)
    x[:] = np.nan  # a step keeps a copy of x
    assert np.isfinite(cell.backward(dstate, first).dx).all()
    again = pickle.loads(pickle.dumps(cell))
    np.testing.assert_array_equal(again.forward(h[:, :3], h), cell.forward(h[:, :3], h))
    with pytest.raises(ValueError, match="forward must have been called before it"):
        copy.copy(pickle.loads(pickle.dumps(cell))).backward(dstate)


def test_what_a_cell_refuses():
    cell = qkv.GRUCell(3, 4)
    x, h = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    for call, text in [
        (lambda: cell.forward(x.astype(float)), "forward: x must be float32 as the layer is, got"),
        (lambda: cell.forward(x[None]), r"forward: x must have the shape \[B,3\] or \[3\], got"),
        (lambda: cell.forward(h), r"forward: x must have the shape \[B,3\] or \[3\], got"),
        (lambda: cell.forward(None), "forward: x must be given, got None"),
        (lambda: cell.forward(x, h[:1]), "forward: state must have the leading axis of x, got"),
        (lambda: cell.forward(x[0], h[:1]), "forward: state must have the leading axis of x, got"),
        (lambda: cell.forward(x, x), r"forward: state must have the shape \[B,4\] or \[4\], got"),
        (lambda: cell.backward(h), "backward: forward must have been called before it"),
        (lambda: cell.backward(h, 3), "backward: step must be what forward gives with return_step"),
        (
            lambda: (cell.forward(x), cell.backward(h[:1])),
            "backward: dstate must have the shape of",
        ),
        (lambda: qkv.GRUCell(0, 4), ": input_size must be "),
        (lambda: qkv.GRUCell(3, 4, bias=1), ": bias must be True or False"),
    ]:
        with pytest.raises((TypeError, ValueError), match=f"^GRUCell\\.?{text}"):
            call()
    _, step = qkv.GRUCell(5, 4).forward(np.ones((2, 5), np.float32), return_step=True)
    with pytest.raises(ValueError, match="step must come from a forward pass of this layer"):
        cell.backward(h, step)


# ---- Dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dropout(dtype):
    layer = qkv.Dropout(0.25)
    x = (draw(40, 50) + 5).astype(dtype)
    out = layer.forward(x.T, train=True, seed=3)
    kept = out != 0
    assert out.shape == (50, 40) and abs(kept.mean() - 0.75) < 0.05
    np.testing.assert_allclose(out[kept], x.T[kept] / 0.75, rtol=1e-6)
    dout = draw(50, 40, seed=1).astype(dtype)
    np.testing.assert_allclose(layer.backward(dout), np.where(kept, dout / 0.75, 0), rtol=1e-6)
    np.testing.assert_array_equal(layer.forward(x), x)
    np.testing.assert_array_equal(layer.backward(x), x)


def test_a_copy_of_dropout_continues_its_steps():
    layer, other = qkv.Dropout(0.5), qkv.Dropout(0.5)
    x = np.ones(100)
    first = layer.forward(x, train=True, seed=3)
    copied = pickle.loads(pickle.dumps(layer))
    second = layer.forward(x, train=True)
    assert np.any(first != second)
    np.testing.assert_array_equal(other.forward(x, train=True, seed=3), first)
    np.testing.assert_array_equal(copied.forward(x, train=True), second)
    assert repr(layer) == "Dropout(dropout=0.5)" and layer.parameters() == {}


@needs_torch
def test_dropout_of_tensors():
    layer = qkv.Dropout(0.5)
    out = layer.forward(torch.ones(3, 4), train=True, seed=3)
    assert isinstance(out, torch.Tensor) and torch.equal(layer.backward(torch.ones(3, 4)), out)


def test_what_dropout_refuses():
    layer = qkv.Dropout(0.5)
    for call, text in [
        (lambda: qkv.Dropout(1), r"Dropout: dropout must be in \[0,1\)"),
        (lambda: qkv.Dropout("a"), "Dropout: dropout must be a number"),
        (lambda: layer.forward(None), "Dropout.forward: x must be given"),
        (lambda: layer.forward(np.ones(3), train=True), "Dropout.forward: seed must be given with"),
        (lambda: layer.forward(np.ones(3, int)), "Dropout.forward: x must be float"),
        (lambda: layer.backward(np.ones(3)), "Dropout.backward: forward must have been called"),
        (lambda: layer.save("x"), "Dropout.save: the layer has no parameters to save"),
    ]:
        with pytest.raises((TypeError, ValueError), match=f"^{text}"):
            call()
    layer.forward(np.ones(3))
    with pytest.raises(ValueError, match="^Dropout.backward: dout must have the shape"):
        layer.backward(np.ones(4))
