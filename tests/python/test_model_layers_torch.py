# SPDX-License-Identifier: Apache-2.0
"""Compares Linear, Embedding, GRU, MultiHeadAttention, CrossEntropy with PyTorch's modules.

load_torch copies the parameters. Tolerances are relative to the largest number of an array.
"""

import pickle

import numpy as np
import pytest

import qkv

torch = pytest.importorskip("torch", reason="the modules are PyTorch's")
nn = torch.nn

DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def draw(dtype, *shape, seed=0):
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype)


def pair(theirs, ours, dtype, **options):
    """The module `theirs` with drawn parameters, and a layer of class `ours` with the same."""
    theirs = theirs.to(dtype).eval()
    with torch.no_grad():
        for n, parameter in enumerate(theirs.parameters()):
            parameter.copy_(draw(dtype, *parameter.shape, seed=100 + n) / 2)
    layer = ours(dtype=str(dtype).replace("torch.", ""), **options)
    layer.load_torch(theirs.state_dict())
    return theirs, layer


def assert_close(got, want, name):
    got, want = np.asarray(got), np.asarray(want.detach())
    assert got.shape == want.shape and got.dtype == want.dtype, name
    bound = TOLERANCE[torch.float32 if want.dtype == np.float32 else torch.float64]
    np.testing.assert_allclose(got, want, rtol=0, atol=bound * np.abs(want).max(), err_msg=name)


def assert_gradients(gradients, module):
    """Compares the gradients of all parameters by name."""
    parameters = dict(module.named_parameters())
    assert set(gradients) == set(parameters)
    for name, parameter in parameters.items():
        assert np.any(parameter.grad.numpy() != 0), name  # else nothing would be tested
        assert_close(gradients[name], parameter.grad, name)


# ---- linear -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 5), (3, 40, 5), (2, 3, 4, 5)])
def test_linear(shape, bias, dtype):
    theirs, layer = pair(
        nn.Linear(5, 70, bias=bias), qkv.Linear, dtype, in_features=5, out_features=70, bias=bias
    )
    x = draw(dtype, *shape).requires_grad_()
    want = theirs(x)
    dout = draw(dtype, *want.shape, seed=1)
    want.backward(dout)
    got = layer.forward(x.detach())
    assert isinstance(got, torch.Tensor)
    assert_close(got, want, "y")
    gradients = layer.backward(dout)
    assert isinstance(gradients.dx, torch.Tensor)
    assert_close(gradients.dx, x.grad, "dx")
    assert_gradients(gradients.parameters, theirs)


# ---- embedding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding(padding, integer, dtype):
    theirs, layer = pair(
        nn.Embedding(9, 20, padding_idx=padding),
        qkv.Embedding,
        dtype,
        num_embeddings=9,
        embedding_dim=20,
        padding_idx=padding,
    )
    ids = torch.tensor([[1, 2, 2, 8], [2, 1, 0, 1], [2, 2, 2, 2]], dtype=integer)
    want = theirs(ids)
    dout = draw(dtype, *want.shape, seed=1)
    want.backward(dout)
    got = layer.forward(ids)
    assert isinstance(got, torch.Tensor)
    assert_close(got, want, "out")
    gradients = layer.backward(dout).parameters
    assert_gradients(gradients, theirs)
    assert np.any(gradients["weight"][2]) == (padding is None)


# ---- GRU ----------------------------------------------------------------------------------------


def torch_gru(module, x, lengths, state):
    if lengths is None:
        return module(x, state)
    packed = nn.utils.rnn.pack_padded_sequence(
        x, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )
    out, last = module(packed, state)
    padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    return padded, last


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("begins", ["at zero", "at a state"])
@pytest.mark.parametrize("lengths", [None, [3, 7, 1, 6]])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("directions", [1, 2])
def test_gru(directions, bias, lengths, begins, dtype):
    options = {"bias": bias, "bidirectional": directions == 2}
    theirs, layer = pair(
        nn.GRU(5, 6, batch_first=True, **options),
        qkv.GRU,
        dtype,
        input_size=5,
        hidden_size=6,
        **options,
    )
    x = draw(dtype, 4, 7, 5).requires_grad_()
    state = draw(dtype, directions, 4, 6, seed=1).requires_grad_()
    first = None if begins == "at zero" else state
    want, want_last = torch_gru(theirs, x, lengths, first)
    dout, dlast = draw(dtype, *want.shape, seed=2), draw(dtype, *want_last.shape, seed=3)
    ((want * dout).sum() + (want_last * dlast).sum()).backward()

    out, last = layer.forward(x.detach(), lengths, None if first is None else first.detach())
    assert isinstance(out, torch.Tensor) and isinstance(last, torch.Tensor)
    assert_close(out, want, "out")
    assert_close(last, want_last, "state")
    gradients = layer.backward(dout, dlast)
    assert isinstance(gradients.dx, torch.Tensor)
    assert_close(gradients.dx, x.grad, "dx")
    if first is not None:
        assert_close(gradients.dstate, state.grad, "dstate")
    assert_gradients(gradients.parameters, theirs)


@pytest.mark.parametrize("which", ["out", "state"])
def test_gru_with_the_gradient_of_one_result(which):
    theirs, layer = pair(
        nn.GRU(3, 4, batch_first=True), qkv.GRU, torch.float64, input_size=3, hidden_size=4
    )
    x = draw(torch.float64, 2, 5, 3).requires_grad_()
    results = dict(zip(("out", "state"), theirs(x)))
    gradient = draw(torch.float64, *results[which].shape, seed=1)
    results[which].backward(gradient)
    layer.forward(x.detach())
    gradients = layer.backward(*((gradient, None) if which == "out" else (None, gradient)))
    assert_close(gradients.dx, x.grad, "dx")
    assert_gradients(gradients.parameters, theirs)


def test_gru_of_another_kind_is_refused():
    layer = qkv.GRU(3, 4)
    before = {name: array.copy() for name, array in layer.parameters().items()}
    for other, text in [
        (nn.GRU(3, 4, num_layers=2), "has an unknown weight_ih_l1, "),
        (nn.GRU(3, 4, bidirectional=True), "has an unknown weight_ih_l0_reverse, "),
        (nn.GRU(3, 4, bias=False), "is without bias_ih_l0, is without bias_hh_l0; "),
        (nn.GRU(3, 5), r"weight_ih_l0 must have the shape \[12,3\], got \[15,3\]"),
    ]:
        with pytest.raises(ValueError, match=r"^GRU\.load_torch: .*" + text):
            layer.load_torch(other.state_dict())
    for name, array in layer.parameters().items():
        np.testing.assert_array_equal(array, before[name])


# ---- multi-head attention -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_multihead_attention(bias, dtype):
    theirs, layer = pair(
        nn.MultiheadAttention(12, 3, bias=bias, batch_first=True),
        qkv.MultiHeadAttention,
        dtype,
        width=12,
        heads=3,
        bias=bias,
    )
    sizes = ((4, 4), (5, 5), (9, 5))
    q, k, v = (draw(dtype, 2, t, 12, seed=seed).requires_grad_() for seed, t in sizes)
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    want, want_weights = theirs(q, k, v, key_padding_mask=padding, average_attn_weights=False)
    dout = draw(dtype, *want.shape, seed=1)
    want.backward(dout)

    out, weights = layer.forward(
        q.detach(), k.detach(), v.detach(), padding_mask=padding, return_weights=True
    )
    assert_close(out, want, "out")
    assert_close(weights, want_weights, "weights")
    got = layer.backward(dout)
    for name, gradient, tensor in zip("qkv", got, (q, k, v)):
        assert_close(gradient, tensor.grad, name)
    kinds = ["weight", "bias"] if bias else ["weight"]
    in_torch = {f"out_proj.{kind}": got.parameters[f"fc_o.{kind}"] for kind in kinds}
    for kind in kinds:
        parts = [got.parameters[f"fc_{name}.{kind}"] for name in "qkv"]
        in_torch[f"in_proj_{kind}"] = np.concatenate(parts)
    assert_gradients(in_torch, theirs)


# ---- cross-entropy ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", [1, 13, 1000])
def test_cross_entropy(classes, smoothing, integer, dtype):
    theirs = nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="none", ignore_index=-7)
    loss = qkv.CrossEntropy(label_smoothing=smoothing, ignore_index=-7)
    logits = (3 * draw(dtype, 6, classes)).requires_grad_()
    targets = torch.tensor([0, 5, 0, 12, 5, 999], dtype=integer) % classes
    targets[2] = -7  # ignored
    want = theirs(logits, targets.long())
    dlosses = draw(dtype, 6, seed=1)
    want.backward(dlosses)
    losses, log_probabilities = loss.forward(
        logits.detach(), targets, return_log_probabilities=True
    )
    assert isinstance(losses, torch.Tensor)
    if classes > 1:
        assert_close(losses, want, "losses")
        assert_close(loss.backward(dlosses), logits.grad, "dlogits")
    else:  # results are 0, so that no tolerance can be relative to them
        np.testing.assert_array_equal(losses, np.zeros(6))
        np.testing.assert_allclose(loss.backward(dlosses), np.zeros((6, 1)), atol=1e-7)
    rows = torch.log_softmax(logits, 1)[range(6), targets.long().clamp(0)]
    rows = torch.where(targets == -7, 0, rows)
    np.testing.assert_allclose(log_probabilities, rows.detach(), rtol=1e-5, atol=1e-6)


def test_cross_entropy_of_the_mean():
    logits = draw(torch.float64, 6, 4).requires_grad_()
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    nn.CrossEntropyLoss()(logits, targets).backward()
    loss = qkv.CrossEntropy()
    loss.forward(logits.detach(), targets)
    assert_close(loss.backward(1 / 6), logits.grad, "dlogits")


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_with_class_weights_and_reductions(reduction, smoothing, weighted, dtype):
    weight = draw(dtype, 5).abs() if weighted else None
    options = {"label_smoothing": smoothing, "ignore_index": -1, "weight": weight}
    theirs = nn.CrossEntropyLoss(**options, reduction=reduction)
    loss = qkv.CrossEntropy(**options, reduction=reduction)
    logits = draw(dtype, 7, 5).requires_grad_()
    targets = torch.tensor([0, 4, -1, 2, 2, 1, 3])
    want = theirs(logits, targets)
    got = loss.forward(logits.detach(), targets)
    assert isinstance(got, torch.Tensor)
    assert_close(got, want, "loss")
    dlosses = draw(dtype, 7, seed=1) if reduction == "none" else draw(dtype, 1, seed=1)[0]
    want.backward(dlosses)
    assert_close(loss.backward(dlosses), logits.grad, "dlogits")
    if reduction != "none":
        one = loss.backward()
        assert_close(one * dlosses, logits.grad, "dlogits of 1")
        with pytest.raises(ValueError, match="dlosses must be one number with reduction"):
            loss.backward(draw(dtype, 7))


def test_cross_entropy_of_no_rows():
    loss = qkv.CrossEntropy(ignore_index=0, reduction="mean")
    assert np.isnan(loss.forward(np.zeros((2, 3)), [0, 0]))
    assert qkv.CrossEntropy(reduction="sum").forward(np.zeros((0, 3)), np.zeros(0, int)) == 0


def test_what_a_loss_refuses():
    for make, text in [
        (
            lambda: qkv.CrossEntropy(reduction="average"),
            'reduction must be "none", "sum" or "mean"',
        ),
        (lambda: qkv.CrossEntropy(weight=[1, float("nan")]), "weight must be finite, got nan"),
        (lambda: qkv.CrossEntropy(weight=np.ones((2, 2))), r"weight must be real numbers \[V\]"),
    ]:
        with pytest.raises(ValueError, match=text):
            make()
    loss = qkv.CrossEntropy(weight=[1.0, 2.0], reduction="mean")
    assert repr(loss).endswith("weight=[1.0, 2.0], reduction='mean')")
    assert repr(pickle.loads(pickle.dumps(loss))) == repr(loss)
    with pytest.raises(ValueError, match="logits must have V = 2, one for each class weight"):
        loss.forward(np.zeros((2, 3)), [0, 0])


# ---- layers of a GRU, padding of an embedding ---------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("batch", [True, False])
def test_gru_of_layers(layers, both, batch, dtype):
    theirs, layer = pair(
        nn.GRU(3, 4, num_layers=layers, bidirectional=both, batch_first=True),
        qkv.GRU,
        dtype,
        input_size=3,
        hidden_size=4,
        bidirectional=both,
        num_layers=layers,
    )
    sizes = (2,) if batch else ()
    x = draw(dtype, *sizes, 5, 3).requires_grad_()
    state = draw(dtype, layers * (1 + both), *sizes, 4, seed=1).requires_grad_()
    want, want_state = theirs(x, state)
    dout, dstate = draw(dtype, *want.shape, seed=2), draw(dtype, *want_state.shape, seed=3)
    (want * dout).sum().add((want_state * dstate).sum()).backward()
    out, last = layer.forward(x.detach(), None, state.detach())
    assert_close(out, want, "out")
    assert_close(last, want_state, "state")
    got = layer.backward(dout, dstate)
    assert_close(got.dx, x.grad, "dx")
    assert_close(got.dstate, state.grad, "dstate")
    assert_gradients(got.parameters, theirs)


def test_layers_of_a_gru_are_drawn_separately_and_errors_name_arguments():
    parameters = qkv.GRU(4, 4, num_layers=2, seed=1).parameters()
    assert np.any(parameters["weight_ih_l0"] != parameters["weight_ih_l1"])
    assert repr(qkv.GRU(4, 4, num_layers=2)).endswith("num_layers=2)")
    with pytest.raises(ValueError, match="GRU: num_layers must be at least 1, got 0"):
        qkv.GRU(4, 4, num_layers=0)
    layer = qkv.GRU(3, 4, dtype="float64")
    with pytest.raises(ValueError, match="state must have 2 axes, as x has no batch axis, got"):
        layer.forward(np.zeros((5, 3)), None, np.zeros((1, 1, 4)))
    for wrong in (np.zeros((5, 4)), np.zeros(3)):
        with pytest.raises(ValueError, match=r"x must have the shape \[B,T,3\] or \[T,3\], got"):
            layer.forward(wrong)
    out, state = layer.forward(np.zeros((5, 3)))
    with pytest.raises(ValueError, match="dout must have 2 axes, as x has no batch axis, got"):
        layer.backward(out[None])
    with pytest.raises(ValueError, match="dstate must have 2 axes, as x has no batch axis, got"):
        layer.backward(None, state[:, None])


@pytest.mark.parametrize("index", [-1, -6])
def test_embedding_counts_padding_from_the_end(index):
    theirs, layer = pair(
        nn.Embedding(6, 3, padding_idx=index),
        qkv.Embedding,
        torch.float64,
        num_embeddings=6,
        embedding_dim=3,
        padding_idx=index,
    )
    ids = torch.tensor([[5, 0, 2]])
    want = theirs(ids)
    want.sum().backward()
    assert_close(layer.forward(ids), want, "out")
    gradient = layer.backward(torch.ones(1, 3, 3, dtype=torch.float64)).parameters["weight"]
    assert_close(gradient, theirs.weight.grad, "weight")
    assert not gradient[index].any()
    with pytest.raises(ValueError, match="padding_idx"):
        qkv.Embedding(6, 3, padding_idx=-7)
