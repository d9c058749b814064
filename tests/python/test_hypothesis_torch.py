# SPDX-License-Identifier: Apache-2.0
"""Tests the functions of qkv.torch with random arguments, by the rules of test_hypothesis.py.

Valid calls are judged in test_judge_autograd.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import random_calls
from hypothesis import given
from hypothesis import strategies as st
from judge import needs_torch, torch
from test_hypothesis import ERRORS, random_settings

if torch is not None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import qkv.torch

pytestmark = needs_torch

WORDS = ["attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]


def test_every_public_name_is_tried():
    tried = {"attention", "scaled_dot_product_attention"}
    others = {
        "flex_attention",
        "look",
        "nn",
        "register",
        "replaced",
        "ring_attention",
        "ring_model",
        "ring_positions",
        "share_workers",
    }  # names that have tests of their own
    assert set(qkv.torch.__all__) == tried | others


def wanting_gradients(data: Any, value: Any) -> Any:
    """The value with its floating-point tensors detached; some of them require gradients."""
    if isinstance(value, dict):
        return {name: wanting_gradients(data, part) for name, part in value.items()}
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    return value.detach().requires_grad_(data.draw(st.booleans()))


def attempt(function: Any, *positional: Any, **arguments: Any) -> Any:
    """The call's result, or None after one of ERRORS."""
    try:
        return function(*positional, **arguments)
    except ERRORS as error:
        assert type(error) in (*ERRORS, UnicodeEncodeError), repr(error)
        return None


def tensors_of(result: Any) -> list[Any]:
    parts = result if isinstance(result, tuple) else (result,)
    return [x for part in parts for x in (part if isinstance(part, tuple) else (part,))]


def differentiate(result: Any) -> None:
    """Runs the backward pass of every differentiable result."""
    for tensor in tensors_of(result):
        if tensor.requires_grad:
            tensor.sum().backward(retain_graph=True)


@random_settings
@given(data=st.data())
def test_nearly_right_calls(data):
    arguments = {
        name: wanting_gradients(data, value)
        for name, value in data.draw(random_calls.right_calls("attention", "torch")).items()
    }
    names = sorted({*arguments, "mask", "bias", "params", "seed", "layout", "sinks"})
    for wrong in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)):
        arguments[wrong] = data.draw(random_calls.anything())
    result = attempt(qkv.torch.attention, **arguments)
    if result is not None:
        differentiate(result)


def test_arguments_of_wrong_types():
    """Calls that the random tests of this file have found."""
    q = torch.ones(2, 3, requires_grad=True)
    params = torch.ones(3, 3, requires_grad=True)
    dot = qkv.torch.scaled_dot_product_attention
    calls = [
        (lambda: qkv.torch.attention(q, [1.0], q), "attention: k must be a torch.Tensor, got list"),
        (lambda: qkv.torch.attention(q, q, q, return_lse=torch.ones(2)),
         "attention: return_lse must be True or False, got Tensor"),
        (lambda: qkv.torch.attention(q, q, q, return_weights=torch.ones(2)),
         'attention: return_weights must be False, True, "dropped" or "both", got Tensor'),
        (lambda: qkv.torch.attention(q, q, q, score="bilinear", params=params),
         "attention: params must be a dict of arrays, got Tensor"),
        (lambda: dot(None, q, q),
         "scaled_dot_product_attention(): argument 'query' (position 1) must be Tensor, not "
         "NoneType"),
        (lambda: dot(q, q, q, attn_mask=[True]),
         "scaled_dot_product_attention(): argument 'attn_mask' (position 4) must be Tensor, not "
         "list"),
        (lambda: dot(q, q, q, dropout_p="0.1"),
         "scaled_dot_product_attention(): argument 'dropout_p' (position 5) must be float, not "
         "str"),
        (lambda: dot(q, q, q, is_causal=torch.ones(2)),
         "scaled_dot_product_attention(): argument 'is_causal' (position 6) must be bool, not "
         "Tensor"),
    ]  # fmt: skip
    for call, message in calls:
        with pytest.raises(TypeError) as raised:
            call()
        assert str(raised.value) == message


def outcome(function: Any, *positional: Any, **words: Any) -> Any:
    """The call's result or error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch may warn that a conversion is deprecated
            return function(*positional, **words)
    except Exception as error:
        return error


@random_settings
@given(data=st.data())
def test_drop_in(data):
    """qkv's function gives a result if PyTorch's does, else it raises the same type of error."""
    right = [torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(2, 5, 6)]
    for place in data.draw(st.lists(st.integers(0, 2), max_size=2)):
        right[place] = data.draw(random_calls.anything())
    chosen = data.draw(st.lists(st.sampled_from(WORDS), max_size=2, unique=True))
    words = {name: data.draw(random_calls.anything()) for name in chosen}
    with sdpa_kernel(SDPBackend.MATH):
        want = outcome(torch.nn.functional.scaled_dot_product_attention, *right, **words)
    got = outcome(qkv.torch.scaled_dot_product_attention, *right, **words)
    if isinstance(want, Exception):
        assert type(got) is type(want), (want, got)
    else:
        assert isinstance(got, torch.Tensor), got
        assert got.shape == want.shape and got.dtype == want.dtype
