# SPDX-License-Identifier: Apache-2.0
"""Tests Linear, Embedding, GRU and CrossEntropy: NumPy formulas, array types, errors, copies."""

import copy
import pickle
import threading

import numpy as np
import pytest

import qkv

RNG = np.random.default_rng(5)
LAYERS = {
    "Linear": lambda: qkv.Linear(3, 4, dtype="float64", seed=1),
    "Embedding": lambda: qkv.Embedding(6, 4, padding_idx=2, dtype="float64", seed=2),
    "GRU": lambda: qkv.GRU(3, 4, bidirectional=True, dtype="float64", seed=3),
}
INPUTS = {
    "Linear": RNG.normal(size=(2, 5, 3)),
    "Embedding": np.array([[1, 5, 5], [2, 0, 1]]),
    "GRU": RNG.normal(size=(2, 5, 3)),
}


def arrays_of(results):
    """All arrays of a result, also those in tuples and dicts."""
    if isinstance(results, dict):
        return [array for name in sorted(results) for array in arrays_of(results[name])]
    if isinstance(results, tuple):
        return [array for part in results for array in arrays_of(part)]
    return [np.asarray(results)]


def both_passes(layer, name):
    out = layer.forward(INPUTS[name])
    first = arrays_of(out)[0]
    return arrays_of(out) + arrays_of(layer.backward(np.cos(first)))


def assert_equal(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want):
        np.testing.assert_array_equal(a, b)


# ---- formulas -----------------------------------------------------------------------------------


def test_linear_is_its_formula():
    layer, x = LAYERS["Linear"](), INPUTS["Linear"]
    p = layer.parameters()
    np.testing.assert_allclose(layer.forward(x), x @ p["weight"].T + p["bias"], rtol=1e-14)
    dout = RNG.normal(size=(2, 5, 4))
    gradients = layer.backward(dout)
    np.testing.assert_allclose(gradients.dx, dout @ p["weight"], rtol=1e-13)
    flat, rows = dout.reshape(10, 4), x.reshape(10, 3)
    np.testing.assert_allclose(gradients.parameters["weight"], flat.T @ rows, rtol=1e-13)
    np.testing.assert_allclose(gradients.parameters["bias"], flat.sum(0), rtol=1e-13)
    assert "bias" not in qkv.Linear(3, 4, bias=False).parameters()


def test_embedding_is_its_formula():
    layer, ids = LAYERS["Embedding"](), INPUTS["Embedding"]
    table = layer.parameters()["weight"]
    np.testing.assert_array_equal(layer.forward(ids.tolist()), table[ids])
    for dtype in ("u1", "i2", "u8", ">i4"):
        np.testing.assert_array_equal(layer.forward(ids.astype(dtype)), table[ids])
    with pytest.raises(ValueError, match=r"ids holds 18446744073709551615 at \[0\]"):
        layer.forward(np.array([2**64 - 1], np.uint64))
    layer.forward(ids)
    dout = RNG.normal(size=(2, 3, 4))
    want = np.zeros((6, 4))
    np.add.at(want, ids, dout)
    want[2] = 0
    np.testing.assert_allclose(layer.backward(dout).parameters["weight"], want, rtol=1e-14)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_gru_is_its_formula():
    layer, x = LAYERS["GRU"](), INPUTS["GRU"]
    p = layer.parameters()
    out, last = layer.forward(x, valid_len=[5, 3])
    for direction, suffix in enumerate(["", "_reverse"]):
        for b, length in enumerate([5, 3]):
            h = np.zeros(4)
            for t in range(length) if direction == 0 else reversed(range(length)):
                i = p["weight_ih_l0" + suffix] @ x[b, t] + p["bias_ih_l0" + suffix]
                s = p["weight_hh_l0" + suffix] @ h + p["bias_hh_l0" + suffix]
                r, z = sigmoid(i[:4] + s[:4]), sigmoid(i[4:8] + s[4:8])
                h = (1 - z) * np.tanh(i[8:] + r * s[8:]) + z * h
                np.testing.assert_allclose(out[b, t, 4 * direction :][:4], h, rtol=1e-13)
            np.testing.assert_allclose(last[direction, b], h, rtol=1e-13)
    assert not out[1, 3:].any()


def test_cross_entropy_is_its_formula():
    logits, targets = RNG.normal(size=(3, 5)), np.array([4, 0, 2], np.int32)
    loss = qkv.CrossEntropy(0.2)
    losses, log_p = loss.forward(logits, targets, return_log_probabilities=True)
    rows = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    of_targets = rows[range(3), targets]
    np.testing.assert_allclose(log_p, of_targets, rtol=1e-14)
    np.testing.assert_allclose(losses, -0.8 * of_targets - 0.2 * rows.mean(1), rtol=1e-14)
    labels = 0.8 * np.eye(5)[targets] + 0.2 / 5
    np.testing.assert_allclose(loss.backward(1), np.exp(rows) - labels, rtol=1e-13, atol=1e-15)
    dlosses = RNG.normal(size=3)
    want = dlosses[:, None] * (np.exp(rows) - labels)
    np.testing.assert_allclose(loss.backward(dlosses), want, rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(loss.forward(logits, [4, 0, 2]), losses)  # targets may be a list


# ---- objects ------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("name", LAYERS)
def test_copies_are_equal_and_independent(name, copied):
    layer = LAYERS[name]()
    for array in layer.parameters().values():
        array += 0.25
    other = copied(layer)
    assert repr(other) == repr(layer) and other.config == layer.config
    want = both_passes(layer, name)
    assert_equal(both_passes(other, name), want)
    for array in other.parameters().values():
        array *= 0
    assert_equal(both_passes(layer, name), want)


@pytest.mark.parametrize("name", LAYERS)
def test_files(name, tmp_path):
    layer, other = LAYERS[name](), LAYERS[name]()
    other.initialise(8)
    layer.save(tmp_path / "layer.safetensors")
    assert arrays_of(other.parameters())[0].flat[0] != arrays_of(layer.parameters())[0].flat[0]
    other.load(tmp_path / "layer.safetensors")
    assert_equal(both_passes(other, name), both_passes(layer, name))


def test_representations_can_be_typed_in():
    for text in [
        "Linear(in_features=3, out_features=4, bias=False, dtype='float64')",
        "Embedding(num_embeddings=5, embedding_dim=2, padding_idx=None, dtype='float32')",
        "Embedding(num_embeddings=5, embedding_dim=2, padding_idx=4, dtype='float32')",
        "GRU(input_size=3, hidden_size=4, bias=True, bidirectional=True, dtype='float32')",
        "CrossEntropy(label_smoothing=0.1, ignore_index=None)",
        "CrossEntropy(label_smoothing=0.0, ignore_index=-100)",
    ]:
        assert repr(eval(text, vars(qkv))) == text
    assert qkv.CrossEntropy(weight=[1.0, 2.0]).parameters() == {}
    loss = pickle.loads(pickle.dumps(qkv.CrossEntropy(0.5, 3)))
    assert repr(loss) == "CrossEntropy(label_smoothing=0.5, ignore_index=3)"


@pytest.mark.parametrize("name", LAYERS)
def test_bits_do_not_depend_on_threads(name):
    layer = LAYERS[name]()
    want = both_passes(layer, name)
    for threads in (1, 2, 7):
        out = layer.forward(INPUTS[name], threads=threads)
        gradients = layer.backward(np.cos(arrays_of(out)[0]), threads=threads)
        assert_equal(arrays_of(out) + arrays_of(gradients), want)


@pytest.mark.parametrize("name", LAYERS)
def test_threads_may_share_a_layer(name):
    layer = LAYERS[name]()
    want, failures = arrays_of(layer.forward(INPUTS[name])), []

    def work():
        for _ in range(50):
            got = arrays_of(layer.forward(INPUTS[name]))
            layer.backward(got[0])
            if any(np.any(a != b) for a, b in zip(got, want)):
                failures.append(got)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def unaligned(array):
    """A copy at a misaligned address, which layers must copy because no view can describe it."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(array.tobytes(), np.uint8)
    return memory[1:].view(array.dtype).reshape(array.shape)


@pytest.mark.parametrize("copied", [np.copy, unaligned])
def test_inputs_that_backward_needs_are_kept_alive(copied):
    layer, loss = LAYERS["Linear"](), qkv.CrossEntropy()
    x = RNG.normal(size=(1000, 3))
    want = np.ones((4, 1000)) @ x
    layer.forward(copied(x))
    logits = RNG.normal(size=(1000, 5))
    loss.forward(copied(logits), [1] * 1000)
    # The new arrays would reuse the memory of inputs that had been freed.
    held = [np.ones((1000, width)) for width in (3, 5) for _ in range(20)]
    assert held
    np.testing.assert_allclose(layer.backward(np.ones((1000, 4))).parameters["weight"], want)
    got = loss.backward(1.0)
    loss.forward(logits, [1] * 1000)
    np.testing.assert_array_equal(loss.backward(1.0), got)


# ---- errors -------------------------------------------------------------------------------------

F32 = np.ones((2, 5, 3), np.float32)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: qkv.Linear(0, 1), ValueError, "Linear: in_features must be at least 1, got 0"),
        (lambda: qkv.Linear(1, 0), ValueError, "Linear: out_features must be at least 1, got 0"),
        (lambda: qkv.Linear(1.0, 1), TypeError, "Linear: in_features must be an int"),
        (lambda: qkv.Linear(1, 1, bias=1), TypeError, "Linear: bias must be True or False"),
        (lambda: qkv.Linear(1, 1, dtype="float16"), TypeError, "Linear: dtype must be float32 or"),
        (
            lambda: qkv.Linear(2**40, 2**40),
            ValueError,
            "Linear: in_features or out_features must be smaller",
        ),
        (
            lambda: qkv.Embedding(0, 1),
            ValueError,
            "Embedding: num_embeddings must be at least 1, got 0",
        ),
        (
            lambda: qkv.Embedding(1, 0),
            ValueError,
            "Embedding: embedding_dim must be at least 1, got 0",
        ),
        (
            lambda: qkv.Embedding(3, 1, 3),
            ValueError,
            r"Embedding: padding_idx must lie in 0\.\.2, got 3",
        ),
        (lambda: qkv.GRU(0, 1), ValueError, "GRU: input_size must be at least 1, got 0"),
        (lambda: qkv.GRU(1, 0), ValueError, "GRU: hidden_size must be at least 1, got 0"),
        (lambda: qkv.GRU(1, 1, True, None), TypeError, "GRU: bidirectional must be True or False"),
        (
            lambda: qkv.CrossEntropy(1.0),
            ValueError,
            r"CrossEntropy: label_smoothing must be in \[0,1\), got 1",
        ),
        (lambda: qkv.CrossEntropy("0"), TypeError, "CrossEntropy: label_smoothing must be a"),
        (lambda: qkv.CrossEntropy(0, 1.5), TypeError, "CrossEntropy: ignore_index must be an int"),
    ],
)
def test_constructors_name_the_argument(make, kind, text):
    with pytest.raises(kind, match="^" + text):
        make()


FORWARD_ERRORS = [
    ("Linear", (None,), ValueError, "x must be given"),
    ("Linear", (F32,), TypeError, r"x must be float64 as the layer is, got float32 \[2,5,3\]"),
    (
        "Linear",
        (np.ones((2, 3), np.longdouble),),
        TypeError,
        r"x must be float32 or float64, got float\d+ \[2,3\]$",
    ),
    ("Linear", (np.ones(3),), ValueError, r"x must have rank 2 to 7, got float64 \[3\]"),
    ("Linear", (np.ones((2, 4)),), ValueError, "x must have 3 channels"),
    ("Linear", ([[1.0]],), TypeError, "x must be an array"),
    ("Embedding", (None,), ValueError, "ids must be given"),
    ("Embedding", ([0, 6],), ValueError, r"ids must lie in 0\.\.5, got 6 at \[1\]"),
    ("Embedding", ([[0], [-1]],), ValueError, r"ids must lie in 0\.\.5, got -1 at \[1,0\]"),
    ("Embedding", ([1.5],), TypeError, "ids must be integers, got float64"),
    ("Embedding", (np.ones((1,) * 8, int),), ValueError, "ids must have rank 0 to 7"),
    ("GRU", (None,), ValueError, r"x must have the shape \[B,T,3\]"),
    (
        "GRU",
        (np.ones(3),),
        ValueError,
        r"x must have the shape \[B,T,3\] or \[T,3\], got float64 \[3\]",
    ),
    ("GRU", (F32,), TypeError, "x must be float64 as the layer is"),
    ("GRU", (INPUTS["GRU"], [5, 6]), ValueError, "valid_len .*6"),
    ("GRU", (INPUTS["GRU"], [5]), ValueError, "valid_len "),
    ("GRU", (INPUTS["GRU"], [1.0, 2.0]), TypeError, "valid_len must be integers, got float64"),
    (
        "GRU",
        (INPUTS["GRU"], None, np.ones((1, 2, 4))),
        ValueError,
        r"state must have the shape \[2,2,4\], got float64 \[1,2,4\]",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "kind", "text"), FORWARD_ERRORS)
def test_forward_names_the_argument_and_leaves_no_pass_for_backward(name, arguments, kind, text):
    layer = LAYERS[name]()
    layer.forward(INPUTS[name])
    with pytest.raises(kind, match=rf"^{name}\.forward: {text}"):
        layer.forward(*arguments)
    with pytest.raises(ValueError, match=rf"^{name}\.backward: forward must have been called"):
        layer.backward(np.ones((2, 5, 4)))


@pytest.mark.parametrize("name", LAYERS)
def test_backward_names_the_argument(name):
    layer = LAYERS[name]()
    out = arrays_of(layer.forward(INPUTS[name]))[0]
    with pytest.raises(ValueError, match=rf"^{name}\.backward: dout .*must be given"):
        layer.backward(None)
    with pytest.raises(ValueError, match=rf"^{name}\.backward: dout must have the shape"):
        layer.backward(out[:1])
    with pytest.raises(TypeError, match=rf"^{name}\.backward: dout must be float64"):
        layer.backward(out.astype(np.float32))
    layer.backward(out)  # errors have not discarded the pass
    with pytest.raises(ValueError, match="threads"):
        layer.backward(out, threads=-1)


def test_gru_names_the_gradient_of_the_state():
    layer = LAYERS["GRU"]()
    layer.forward(INPUTS["GRU"])
    for shape in ((2, 4), (0,), (), (3, 2, 4)):
        message = r"^GRU\.backward: dstate must have the shape \[2,2,4\]"
        with pytest.raises(ValueError, match=message):
            layer.backward(None, np.ones(shape))


@pytest.mark.parametrize("one", [1, 1.0, np.float32(1), np.int64(1), np.array(1, np.float32)])
def test_cross_entropy_takes_one_number_for_all_rows(one):
    loss = qkv.CrossEntropy()
    loss.forward(np.eye(3, dtype=np.float32), [0, 1, 1])
    want = loss.backward(np.ones(3, np.float32))
    np.testing.assert_array_equal(loss.backward(one), want)


@pytest.mark.parametrize(
    ("logits", "targets", "kind", "text"),
    [
        (None, [0], ValueError, "logits must be given"),
        (np.ones(3), [0], ValueError, r"logits must have the shape \[N,V\] with V >= 1"),
        (np.ones((1, 3), int), [0], TypeError, "logits must be float32 or float64"),
        (np.ones((1, 3), np.float16), [0], TypeError, "logits must be float32 or float64"),
        (np.ones((1, 3), np.longdouble), [0], TypeError, "logits must be float32 or float64, got"),
        (np.ones((1, 3)), None, ValueError, "targets must be given"),
        (np.ones((1, 3)), [0, 1], ValueError, r"targets must have the shape \[1\]"),
        (np.ones((2, 3)), [0, 3], ValueError, r"targets must lie in 0\.\.2, got 3 at \[1\]"),
        (np.ones((1, 3)), [0.5], TypeError, "targets must be integers, got float64"),
    ],
)
def test_cross_entropy_names_the_argument(logits, targets, kind, text):
    loss = qkv.CrossEntropy()
    loss.forward(np.ones((2, 3)), [0, 1])
    with pytest.raises(ValueError, match=r"^CrossEntropy\.backward: dlosses must have the shape"):
        loss.backward(np.ones(3))
    with pytest.raises(kind, match=rf"^CrossEntropy\.forward: {text}"):
        loss.forward(logits, targets)
    with pytest.raises(ValueError, match=r"^CrossEntropy\.backward: forward must have been called"):
        loss.backward(1.0)
