# SPDX-License-Identifier: Apache-2.0
"""Tests layers as objects: parameters, copies, arrays that passes keep, array types, threads."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from layer_formulas import CASES, WITH_PARAMETERS, of_inputs
from patience import PATIENCE

import qkv

# ---- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_parameters_are_the_layers_own_memory(name):
    layer, arrays = CASES[name].make(), CASES[name].arrays(1)
    before = layer.forward(*arrays)
    for array in layer.parameters().values():
        assert array.flags.writeable and array.flags.c_contiguous and array.dtype == np.float64
        array *= 2
    assert np.any(layer.forward(*arrays) != before)
    held = layer.parameters()
    want = {key: array.copy() for key, array in held.items()}
    del layer
    gc.collect()
    # New arrays of the same sizes would reuse the parameters' memory if it were freed.
    overwriting = [np.full_like(array, np.nan) for array in held.values()]
    for key, array in held.items():
        np.testing.assert_array_equal(array, want[key])
        array += 1
    assert all(np.isnan(array).all() for array in overwriting)


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_parameters_are_drawn_from_the_seed(name):
    layer, other = CASES[name].make(), CASES[name].make()
    for array in other.parameters().values():
        array[...] = 0
    layer.initialise(9)
    other.initialise(9)
    for key, array in layer.parameters().items():  # drawn from within +-1/sqrt(fan-in)
        fan_in = {"W": 3, "W_q": 3, "W_k": 4, "v": 5}.get(key, arrays_width(layer, key))
        assert 0 < np.abs(array).max() < 1 / np.sqrt(fan_in)
        np.testing.assert_array_equal(array, other.parameters()[key])
    before = {key: array.copy() for key, array in layer.parameters().items()}
    layer.initialise(10)
    assert all(np.all(array != before[key]) for key, array in layer.parameters().items())


# Returns the fan-in of a matrix or of the bias added to its products; 1 for other parameters.
def arrays_width(layer, key):
    weight = layer.parameters().get(key.replace("bias", "weight"))
    return weight.shape[1] if weight is not None and weight.ndim == 2 else 1


def test_the_constructor_draws_from_seed_0():
    for name in ("W_q", "W_k", "v"):
        made = qkv.AdditiveAttention(2, 3, 4).parameters()[name]
        np.testing.assert_array_equal(
            made, qkv.AdditiveAttention(2, 3, 4, seed=0).parameters()[name]
        )
        assert np.any(made != qkv.AdditiveAttention(2, 3, 4, seed=1).parameters()[name])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("name", CASES)
def test_copies_are_equal_and_independent(name, copied):
    case = CASES[name]
    layer = case.make() if name == "self" else case.make(dropout=0.5)
    arrays = case.arrays(1)
    layer.forward(*arrays, train=True, seed=3)
    for array in layer.parameters().values():
        array += 0.25
    other = copied(layer)
    assert repr(other) == repr(layer) and other.config == layer.config
    np.testing.assert_array_equal(other.forward(*arrays), layer.forward(*arrays))
    want = layer.forward(*arrays, train=True)  # step 1 of seed 3
    np.testing.assert_array_equal(other.forward(*arrays, train=True), want)
    before = layer.forward(*arrays)
    for array in other.parameters().values():
        array *= 0
    np.testing.assert_array_equal(layer.forward(*arrays), before)


def test_an_object_that_is_called_runs_forward():
    layer, x = qkv.Linear(3, 2), np.ones((1, 3), np.float32)
    assert np.array_equal(layer(x), layer.forward(x))
    with pytest.raises(TypeError, match="Did you mean 'threads'"):
        layer(x, thread=1)
    loss = qkv.CrossEntropy()
    assert loss(np.zeros((1, 4)), [0]) == loss.forward(np.zeros((1, 4)), [0])


class Mine(qkv.SelfAttention):
    """A user's subclass with an attribute of its own."""

    def __init__(self):
        super().__init__(4)
        self.extra = [5]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_have_what_a_subclass_added(copied):
    layer = Mine()
    layer.name = "first"
    layer.itself = layer
    other = copied(layer)
    assert type(other) is Mine and other.extra == [5] and other.name == "first"
    assert (other.extra is layer.extra) == (copied is copy.copy)
    assert other.itself is (layer if copied is copy.copy else other)
    other.parameters()["keys.weight"][...] = 0
    assert np.any(layer.parameters()["keys.weight"] != 0)


def test_representations_can_be_typed_in():
    for text in [
        "DotProductAttention(dropout=0.5)",
        "AdditiveAttention(query_width=3, key_width=2, units=8, dropout=0.0, dtype='float32')",
        "BilinearAttention(query_width=3, key_width=2, dropout=0.0, dtype='float64')",
        "SelfAttention(width=4, dtype='float32')",
        "MultiHeadAttention(width=4, heads=2, form='split', dropout=0.1, dtype='float32')",
        "MultiHeadAttention(width=4, heads=2, form='split', dropout=0.1, dtype='float32', "
        "bias=False, key_heads=1)",
    ]:
        assert repr(eval(text, vars(qkv))) == text
    assert qkv.MLPAttention is qkv.AdditiveAttention
    assert qkv.SelfAttention(4, np.float64).config["dtype"] == "float64"
    assert qkv.SelfAttention(4, np.dtype("f4")).config["dtype"] == "float32"


# ---- the arrays of a pass -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_arrays_of_the_last_pass_stay(name):
    case = CASES[name]
    layer = case.make()
    arrays = case.arrays(1)
    want = layer.backward(np.ones_like(layer.forward(*arrays, [3, 4])))
    out = layer.forward(*[array.copy() for array in arrays], np.array([3, 4]))
    dout = np.ones_like(out)
    del out
    gc.collect()
    # New arrays of the same sizes would overwrite inputs and results that the layer had let go.
    overwriting = [np.full_like(array, np.nan) for array in (*arrays, dout)]
    got = layer.backward(dout)
    del overwriting
    for one, other in zip(of_inputs(got), of_inputs(want)):
        np.testing.assert_array_equal(one, other)


NEEDS_FORWARD = r"\.backward: forward must have been called before it"


@pytest.mark.parametrize("name", CASES)
def test_backward_needs_a_forward_pass_that_succeeded(name):
    case = CASES[name]
    layer, arrays = case.make(), case.arrays(1)
    out = case.make().forward(*arrays)
    with pytest.raises(ValueError, match=NEEDS_FORWARD):
        layer.backward(np.ones_like(out))
    layer.forward(*arrays)
    layer.backward(np.ones_like(out))
    layer.backward(np.ones_like(out))  # works any number of times


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_lengths": [-1, 1]},
        {"key_lengths": [1.5, 1]},
        {"mask": np.ones((3, 5))},
        {"padding_mask": "none"},
        {"window": 3},
        {"causal": "left"},
        {"threads": -1},
        {"train": 1},
        {"train": True, "seed": -1},
        {"return_top": -1},
        {"return_weights": "all"},
        {"first": None},
        {"first": "q"},
        {"first": np.ones((2, 3, 4), int)},
        {"first": np.ones((2, 3, 7))},
        {"first": np.ones((2, 3, 4), np.longdouble)},
        {"first": np.ones(3)},
    ],
    ids="-".join,
)
@pytest.mark.parametrize("name", CASES)
def test_a_forward_pass_that_failed_leaves_no_pass_for_backward(name, wrong):
    case = CASES[name]
    layer, arrays = case.make(), case.arrays(1)
    dout = np.ones_like(layer.forward(*arrays))
    options = dict(wrong)
    first = options.pop("first", arrays[0])
    with pytest.raises((ValueError, TypeError)):
        layer.forward(first, *arrays[1:], **options)
    with pytest.raises(ValueError, match=NEEDS_FORWARD):
        layer.backward(dout)
    layer.forward(*arrays)
    layer.backward(dout)


def test_a_forward_pass_without_a_result_leaves_no_pass_for_backward():
    case = CASES["split"]
    layer, other, arrays = case.make(dropout=0.5), case.make(dropout=0.5), case.arrays(1)
    first = layer.forward(*arrays, train=True, seed=3)
    with pytest.raises(ZeroDivisionError):
        layer.forward(*map(Unmakeable, arrays), train=True, seed=7)
    with pytest.raises(ValueError, match=NEEDS_FORWARD):
        layer.backward(np.ones_like(first))
    np.testing.assert_array_equal(other.forward(*arrays, train=True, seed=3), first)
    want = other.forward(*arrays, train=True)  # step 1 of seed 3
    np.testing.assert_array_equal(layer.forward(*arrays, train=True), want)


def test_forward_passes_of_other_sizes_follow_each_other():
    case = CASES["split"]
    layer = case.make()
    for seed, (batch, tq, tk) in enumerate([((2,), 3, 5), ((1,), 9, 2), ((), 3, 5), ((2,), 3, 5)]):
        arrays = case.arrays(seed, batch, tq, tk)
        got = layer.backward(np.ones_like(layer.forward(*arrays)))
        fresh = case.make()
        want = fresh.backward(np.ones_like(fresh.forward(*arrays)))
        for one, other in zip(got[:3], want[:3]):
            np.testing.assert_array_equal(one, other)


# ---- kinds of arrays ----------------------------------------------------------------------------


class Foreign:
    """An array of an unknown package that supports DLPack and the array API."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return Namespace


class Namespace:
    @staticmethod
    def from_dlpack(array):
        return Foreign(np.from_dlpack(array))


class Unmakeable(Foreign):
    """An array of a package whose from_dlpack fails, so that results cannot be returned."""

    def __array_namespace__(self):
        return FailingNamespace


class FailingNamespace:
    @staticmethod
    def from_dlpack(array):
        raise ZeroDivisionError


@pytest.mark.parametrize("name", CASES)
def test_results_have_the_array_type_of_the_inputs(name):
    case = CASES[name]
    layer, arrays = case.make(), case.arrays(1)
    out = layer.forward(*arrays)
    want = layer.backward(np.ones_like(out))
    other, lse = layer.forward(*map(Foreign, arrays), return_lse=True)
    assert isinstance(other, Foreign) and isinstance(lse, Foreign)
    np.testing.assert_array_equal(other.array, out)
    gradients = layer.backward(Foreign(np.ones_like(out)))
    for got, numpy in zip(of_inputs(gradients), of_inputs(want)):
        assert isinstance(got, Foreign)
        np.testing.assert_array_equal(got.array, numpy)
    for key, got in gradients.parameters.items():
        np.testing.assert_array_equal(got, want.parameters[key])


@pytest.mark.parametrize("name", CASES)
def test_any_strides_will_do(name):
    case = CASES[name]
    layer, arrays = case.make(), case.arrays(1)
    out = layer.forward(*arrays)
    want = layer.backward(np.ones_like(out))
    transposed = [np.asfortranarray(array[::-1])[::-1] for array in arrays]
    np.testing.assert_array_equal(layer.forward(*transposed), out)
    got = layer.backward(np.broadcast_to(1.0, out.shape))
    for one, other in zip(of_inputs(got), of_inputs(want)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_dot_product_takes_every_real_type(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (array.astype(dtype) for array in CASES["dot"].arrays(1))
    layer = qkv.DotProductAttention()
    out = layer.forward(q, k, v)
    assert out.dtype == q.dtype
    np.testing.assert_array_equal(out, qkv.attention(q, k, v))
    assert layer.backward(out).dk.dtype == k.dtype


# ---- threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_threads_may_share_a_layer(name):
    case = CASES[name]
    layer = case.make() if name == "self" else case.make(dropout=0.2)
    inputs = [case.arrays(seed, tq=16, tk=24) for seed in range(4)]
    want = [case.make().forward(*arrays) for arrays in inputs]
    wrong = []

    def work(number):
        try:
            for turn in range(30):
                out = layer.forward(*inputs[number], threads=1 + turn % 2)
                if not np.array_equal(out, want[number]):
                    wrong.append(number)
                layer.forward(*inputs[number], train=True, seed=turn)
                layer.backward(np.ones_like(out))  # of the last pass of any thread
        except Exception as error:  # a thread would discard the error
            wrong.append(error)

    threads = [threading.Thread(target=work, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Slow(Foreign):
    """An array that blocks a forward pass in the middle, until go_on is set."""

    def __init__(self, array, entered, go_on):
        super().__init__(array)
        self.entered, self.go_on = entered, go_on

    def __array_namespace__(self):
        self.entered.set()
        assert self.go_on.wait(PATIENCE)
        return Namespace


@pytest.mark.parametrize("name", CASES)
def test_backward_in_the_middle_of_another_threads_forward(name):
    case = CASES[name]
    layer, arrays = case.make(), case.arrays(1)
    dout = np.ones_like(layer.forward(*arrays))
    want = layer.backward(dout)
    entered, go_on = threading.Event(), threading.Event()
    first, *others = case.arrays(2)
    slow = Slow(first, entered, go_on)
    thread = threading.Thread(target=lambda: layer.forward(slow, *others))
    thread.start()
    try:
        assert entered.wait(PATIENCE)
        got = layer.backward(dout)  # uses the pass that has ended
    finally:
        go_on.set()
        thread.join()
    for one, other in zip(of_inputs(got), of_inputs(want)):
        np.testing.assert_array_equal(one, other)
    assert isinstance(layer.backward(dout)[0], Foreign)  # now uses the other thread's pass


@pytest.mark.parametrize("name", CASES)
def test_inputs_are_released_after_the_next_pass(name):
    case = CASES[name]
    layer, arrays = case.make(), case.arrays(1)
    layer.forward(*arrays)
    held = weakref.ref(arrays[0])
    del arrays
    gc.collect()
    assert held() is not None
    layer.forward(*case.arrays(2))
    gc.collect()
    assert held() is None
