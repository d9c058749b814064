# SPDX-License-Identifier: Apache-2.0
"""Tests each method of the layers with random arguments, valid and invalid, in any order.

The rules and QKV_EXAMPLES are described in test_hypothesis.py.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from operator import index
from typing import Any, Callable

import numpy as np
import pytest
import random_calls
from hypothesis import given
from hypothesis import strategies as st
from random_calls import Random
from test_hypothesis import ERRORS, FUNCTIONS, attempt, dtype_of, flat, random_settings

import qkv

LAYERS = [
    "AdditiveAttention",
    "BilinearAttention",
    "DotProductAttention",
    "Dropout",
    "Embedding",
    "GRU",
    "GRUCell",
    "Linear",
    "MultiHeadAttention",
    "SelfAttention",
]
SAME = {"MLPAttention": "AdditiveAttention"}
# Public names without arguments, or tested elsewhere.
OTHERS = {"Gradients", "LayerGradients", "SelfAttentionGradients", "__version__", "info"}
OTHERS |= {"Shard", "merge"}
OTHERS |= {"set_threads", "CrossEntropy", "AdditiveMemory", "KvCache"}
OTHERS |= {"q8", "quantize_q8", "dequantize_q8"}
OTHERS |= {"score_mod", "mask_mod", "ScoreMod", "MaskMod", "At", "captured"}
OTHERS |= {"Expression", "where", "minimum", "maximum"}
OTHERS |= {"show", "Picture", "Row", "Steps"} | {"Translator", "Translation"}
OTHERS |= {"WordVectors", "read_word_vectors"}
OTHERS |= {"EmbeddingGradients", "GRUGradients", "GRUCellGradients", "LinearGradients"}

METHODS = ["forward", "backward", "parameters", "initialise", "save", "load", "load_torch"]


def test_every_public_name_is_tried():
    assert set(qkv.__all__) == {*FUNCTIONS, *LAYERS, *SAME, *OTHERS}
    for name in LAYERS:
        public = {method for method in dir(getattr(qkv, name)) if not method.startswith("_")}
        assert public == {*METHODS, "config", "to_torch"}
    for name, other in SAME.items():
        assert getattr(qkv, name) is getattr(qkv, other)


# ---- valid calls ---------------------------------------------------------------------------------


@dataclass
class Case:
    """A layer, arguments of a valid forward pass, and the shape of its out."""

    make: Callable[[], Any]
    inputs: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    tensors: bool


def dropout_of(r: Random) -> float:
    return float(r.pick(0, 0, 0.5))


@st.composite
def cases(draw: Any, name: str) -> Case:
    r = random_calls.new_random(draw)
    dtype = r.pick("float32", "float64")
    element = random_calls.FLOATS[dtype]
    B, Tq, Tk = (int(n) for n in r.generator.integers((0, 0, 0), (3, 5, 6)))
    Dq, Dk, E, units = (int(n) for n in r.generator.integers(1, 5, 4))
    lead = r.pick((), (B,))
    layer = getattr(qkv, name)
    if name in ("Dropout", "Embedding", "GRU", "GRUCell", "Linear"):
        return model_case(r, layer, lead, dtype)
    if name == "SelfAttention":
        x = r.reals(element, *lead, Tq, Dq)
        return Case(lambda: layer(Dq, dtype), {"x": x}, (*lead, Tq, Dq), dtype, r.tensors)
    if name == "MultiHeadAttention":
        heads, form = r.pick(1, 2, 3), r.pick("split", "wide")
        Dq = Dk = E = Dq * heads
        make = lambda: layer(Dq, heads, form, r.pick(None, 0.0, 0.5), dtype)  # noqa: E731
    elif name == "AdditiveAttention":
        make = lambda: layer(Dq, Dk, units, dropout_of(r), dtype)  # noqa: E731
    elif name == "BilinearAttention":
        make = lambda: layer(Dq, Dk, dropout_of(r), dtype)  # noqa: E731
    else:
        Dk = Dq
        make = lambda: layer(dropout_of(r))  # noqa: E731
    q, k = r.reals(element, *lead, Tq, Dq), r.reals(element, *lead, Tk, Dk)
    inputs = {"q": q, "k": k, "v": r.reals(element, *lead, Tk, E)}
    if lead and r.chance():
        inputs["key_lengths"] = r.integers(0, Tk, B)
    if r.chance():
        inputs["mask"] = r.flags(Tq, Tk)
    return Case(make, inputs, (*lead, Tq, E), dtype, r.tensors)


def model_case(r: Random, layer: Any, lead: tuple[int, ...], dtype: str) -> Case:
    """A case of a layer other than attention."""
    T, width, outputs = (int(n) for n in r.generator.integers((0, 1, 1), (6, 5, 5)))
    if layer is qkv.Embedding:
        ids = r.place(r.generator.integers(0, width, (*lead, T)).astype(r.pick("i4", "i8")))
        make = lambda: layer(width, outputs, r.pick(None, 0), dtype)  # noqa: E731
        return Case(make, {"ids": ids}, (*lead, T, outputs), dtype, r.tensors)
    flag = r.chance()
    if layer is qkv.Linear:
        inputs = {"x": r.reals(random_calls.FLOATS[dtype], *lead, T, width)}
        make = lambda: layer(width, outputs, flag, dtype)  # noqa: E731
        return Case(make, inputs, (*lead, T, outputs), dtype, r.tensors)
    if layer is qkv.Dropout:
        x = r.reals(random_calls.FLOATS[dtype], *lead, T, width)
        return Case(lambda: layer(r.pick(0, 0.5)), {"x": x}, x.shape, dtype, r.tensors)
    if layer is qkv.GRUCell:
        inputs = {"x": r.reals(random_calls.FLOATS[dtype], *lead[:1], width)}
        if r.chance():
            inputs["state"] = r.reals(random_calls.FLOATS[dtype], *lead[:1], outputs)
        make = lambda: layer(width, outputs, flag, dtype)  # noqa: E731
        return Case(make, inputs, (*lead[:1], outputs), dtype, r.tensors)
    B, directions = (lead or (2,))[0], 1 + flag
    inputs = {"x": r.reals(random_calls.FLOATS[dtype], B, T, width)}
    if r.chance():
        inputs["valid_len"] = r.integers(0, T, B)
    if r.chance():
        inputs["state"] = r.reals(random_calls.FLOATS[dtype], directions, B, outputs)
    make = lambda: layer(width, outputs, r.chance(), flag, dtype)  # noqa: E731
    return Case(make, inputs, (B, T, directions * outputs), dtype, r.tensors)


@pytest.mark.parametrize("name", LAYERS)
@random_settings
@given(data=st.data())
def test_right_calls(name, data):
    case = data.draw(cases(name))
    layer = case.make()
    if data.draw(st.booleans()):
        layer = copy.deepcopy(layer)
    mode = data.draw(st.sampled_from([{}, {"train": True, "seed": 3}]))
    if name == "SelfAttention":
        mode.pop("seed", None)
    out = layer.forward(**case.inputs, **{k: v for k, v in mode.items() if accepts(layer, k)})
    if name == "GRU":
        out, _ = out
    kind = random_calls.torch.Tensor if case.tensors else np.ndarray
    assert type(out) is kind
    assert tuple(out.shape) == case.shape
    assert dtype_of(out) == case.dtype
    gradients = layer.backward(out)  # out serves as dout
    if name == "Dropout":
        assert gradients.shape == out.shape
        return
    inputs = {f"d{key}": case.inputs[key] for key in ("q", "k", "v", "x") if key in case.inputs}
    assert [field for field in gradients._fields if field in ("dq", "dk", "dv", "dx")] == [*inputs]
    assert bool(inputs) == (name != "Embedding")  # ids have no gradient
    if "state" in case.inputs:
        inputs["dstate"] = case.inputs["state"]
    for field, array in inputs.items():
        gradient = getattr(gradients, field)
        assert tuple(gradient.shape) == tuple(array.shape)
        assert dtype_of(gradient) == dtype_of(array)
    parameters = layer.parameters()
    assert gradients.parameters.keys() == parameters.keys()
    for key, gradient in gradients.parameters.items():
        assert gradient.shape == parameters[key].shape


def accepts(layer: Any, keyword: str) -> bool:
    return keyword in inspect.signature(layer.forward).parameters


# ---- arbitrary calls -----------------------------------------------------------------------------


def too_much_memory(value: Any) -> bool:
    """Whether a size is too large to try, yet small enough for the memory of some machine."""
    try:
        size = index(value)
    except Exception:  # the value is not a size
        return False
    return 64 < abs(size) < 2**50


def some_arguments(data: Any, function: Any, right: dict[str, Any]) -> dict[str, Any]:
    """Valid arguments, some replaced by arbitrary ones; or all arbitrary."""
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    arguments = dict(right) if data.draw(st.integers(0, 3)) else {}
    for parameter in parameters:
        missing = parameter.default is parameter.empty and parameter.name not in arguments
        if missing or data.draw(st.integers(0, 7)) == 0:
            arguments[parameter.name] = data.draw(random_calls.anything())
    return arguments


@pytest.mark.parametrize("name", LAYERS)
@random_settings
@given(data=st.data())
def test_constructors(name, data):
    layer = getattr(qkv, name)
    arguments = some_arguments(data, layer, {})
    if not any(too_much_memory(value) for value in arguments.values()):
        attempt(layer, **arguments)


@pytest.mark.parametrize("name", LAYERS)
@random_settings
@given(data=st.data())
def test_methods_in_any_order(name, tmp_path_factory, data):
    case = data.draw(cases(name))
    layer = case.make()
    folder = tmp_path_factory.getbasetemp()
    right = {
        "forward": case.inputs,
        "backward": {"dout": np.ones(case.shape, case.dtype)},
        "parameters": {},
        "initialise": {"seed": 1},
        "save": {"path": folder / "layer.safetensors"},
        "load": {"path": folder / "layer.safetensors"},
        "load_torch": {},
    }
    for method in data.draw(st.lists(st.sampled_from(METHODS), min_size=1, max_size=5)):
        function = getattr(layer, method)
        if method == "load_torch":
            right[method] = {"state_dict": some_state(data, layer)}
        arguments = some_arguments(data, function, right[method])
        if method in ("save", "load") and not is_harmless(arguments["path"]):
            continue
        run_method(function, arguments)
    for array in layer.parameters().values():
        assert array.flags.writeable


@random_settings
@given(data=st.data())
def test_cross_entropy_in_any_order(data):
    r = random_calls.new_random(data.draw)
    N, V = (int(n) for n in r.generator.integers((0, 1), (6, 7)))
    dtype = r.pick("float32", "float64")
    loss = attempt(qkv.CrossEntropy, **some_arguments(data, qkv.CrossEntropy, {}))
    loss = loss if isinstance(loss, qkv.CrossEntropy) else qkv.CrossEntropy()
    logits, targets = r.reals(random_calls.FLOATS[dtype], N, V), r.integers(0, V - 1, N)
    losses = loss.forward(logits, targets)
    assert tuple(losses.shape) == (N,) and dtype_of(losses) == dtype
    dlogits = loss.backward(losses)
    assert tuple(dlogits.shape) == (N, V) and dtype_of(dlogits) == dtype
    right = {
        "forward": {"logits": logits, "targets": targets},
        "backward": {"dlosses": r.pick(1.0, losses)},
    }
    for method in data.draw(st.lists(st.sampled_from(sorted(right)), max_size=5)):
        function = getattr(loss, method)
        run_method(function, some_arguments(data, function, right[method]))


def some_state(data: Any, layer: Any) -> dict[Any, Any]:
    """A state dict in which some arrays are arbitrary, some missing, some unknown."""
    state = dict(layer.parameters())
    names = [*state, "bias_k", "in_proj_weight", 1]
    for name in data.draw(st.lists(st.sampled_from(names), max_size=2)):
        state[name] = data.draw(random_calls.anything())
    if data.draw(st.integers(0, 7)) == 0:
        state.popitem() if state else None
    return state


def is_harmless(path: Any) -> bool:
    """Whether path cannot name a file descriptor, or a file outside the test's folder."""
    return not isinstance(path, (int, str, bytes, bytearray, memoryview, np.integer, np.ndarray))


def run_method(function: Any, arguments: dict[str, Any]) -> Any:
    """The call's result, or None after an allowed error; arguments may stay alive in the layer."""
    try:
        return function(**arguments)
    except (*ERRORS, OSError) as error:
        assert type(error) in ERRORS or isinstance(error, OSError), repr(error)
        return None


def test_parameters_outlive_their_layer():
    layer = qkv.MultiHeadAttention(8, 2)
    parameters = layer.parameters()
    copies = {name: array.copy() for name, array in parameters.items()}
    del layer
    # New layers would take the memory of the parameters if it were free.
    others = [qkv.MultiHeadAttention(8, 2, seed=n) for n in range(20)]
    for name, array in parameters.items():
        assert np.array_equal(array, copies[name])
    del others


@pytest.mark.parametrize("swapped", [1, "yes", None, np.ones(2)])
def test_swapped_is_a_bool(swapped):
    layer = qkv.AdditiveAttention(2, 3, 4)
    message = "AdditiveAttention.load_torch: swapped must be True or False, got "
    with pytest.raises(TypeError) as raised:
        layer.load_torch(layer.parameters(), swapped=swapped)
    assert str(raised.value) == message + type(swapped).__name__


def test_config_holds_plain_numbers():
    dropout = np.array(0.25)
    layer = qkv.MultiHeadAttention(np.int64(8), np.int8(2), dropout=dropout, dtype=np.float64)
    dropout[...] = 0.5
    wanted = {
        "width": 8,
        "heads": 2,
        "form": "split",
        "dropout": 0.25,
        "dtype": "float64",
        "bias": True,
        "key_width": None,
        "value_width": None,
        "key_heads": None,
        "sinks": False,
        "bias_kv": False,
        "zero_attn": False,
    }
    assert layer.config == wanted
    kinds = [type(value) for value in layer.config.values() if value is not None]
    assert kinds == [int, int, str, float, str, bool, bool, bool, bool]


def test_failed_forward_leaves_nothing_for_backward():
    layer = qkv.DotProductAttention()
    x = np.ones((1, 3, 4), np.float32)
    out = layer.forward(x, x, x)
    assert flat(layer.backward(out))[0].shape == x.shape
    with pytest.raises(ValueError):
        layer.forward(x, x[:, :, :2], x)
    with pytest.raises(ValueError):
        layer.backward(out)
