# SPDX-License-Identifier: Apache-2.0
"""Tests each public function with random arguments, nearly valid or of any kind.

Valid calls are judged in test_judge.py and test_judge_functions.py. A call must give a result or
raise one of ERRORS. QKV_EXAMPLES=20000 tries that many examples, which are new ones in each run.
"""

from __future__ import annotations

import gc
import inspect
import os
import resource
import sys
from typing import Any

import numpy as np
import pytest
import random_calls
import strange
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from judge import needs_torch
from scale import scaled

import qkv

EXAMPLES = int(os.environ.get("QKV_EXAMPLES", scaled(150, least=10)))
LONG = "QKV_EXAMPLES" in os.environ

random_settings = settings(
    max_examples=EXAMPLES,
    derandomize=not LONG,
    database=None,
    deadline=None,
    phases=(Phase.generate,),  # arguments are drawn from seeds and cannot be shrunk
    suppress_health_check=list(HealthCheck),
)

# OverflowError and BufferError come from Python's own conversions, Surprise from strange objects.
ERRORS = (ValueError, TypeError, MemoryError, OverflowError, BufferError, strange.Surprise)

FUNCTIONS = ["attention", "attention_backward", "batch_dot", "masked_softmax", "softmax"]


def leaves(value: Any) -> list[Any]:
    """The arrays in an argument."""
    if isinstance(value, dict):
        return [leaf for part in list(value.values()) for leaf in leaves(part)]
    kinds = (np.ndarray, strange.Exporter)
    if random_calls.torch is not None:
        kinds = (*kinds, random_calls.torch.Tensor)
    return [value] if isinstance(value, kinds) else []


def counts(arrays: list[Any]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


def attempt(function: Any, *positional: Any, **arguments: Any) -> Any:
    """The call's result or error, one of ERRORS; neither may keep an argument alive.

    Named tuples keep the call's masks alive, for pictures, so they are returned as plain tuples.
    """
    arrays = [leaf for value in [*positional, *arguments.values()] for leaf in leaves(value)]
    before = counts(arrays)
    result = None
    try:
        result = function(*positional, **arguments)
        if isinstance(result, tuple):
            result = tuple(result)
    except ERRORS as error:
        assert type(error) in (*ERRORS, UnicodeEncodeError), repr(error)
        result = type(error)(*error.args) if type(error) in ERRORS else error.with_traceback(None)
    if counts(arrays) != before:
        gc.collect()
    assert counts(arrays) == before
    return result


def dtype_of(array: Any) -> str:
    return array.dtype.name if isinstance(array, np.ndarray) else str(array.dtype)[6:]


def flat(result: Any) -> list[Any]:
    parts = result if isinstance(result, tuple) else (result,)
    return [leaf for part in parts for leaf in (part if isinstance(part, tuple) else (part,))]


# ---- the functions -------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("name", FUNCTIONS)
@random_settings
@given(data=st.data())
def test_nearly_right_calls(name, data):
    arguments = data.draw(random_calls.right_calls(name))
    names = sorted({*arguments, *inspect.signature(getattr(qkv, name)).parameters})
    for wrong in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)):
        arguments[wrong] = data.draw(random_calls.anything())
    result = attempt(getattr(qkv, name), **arguments)
    if type(result) in (ValueError, TypeError):
        message = str(result)  # has the function's name, or is a message of NumPy or DLPack
        assert name in message or "dimension" in message or "from_dlpack" in message, message


@pytest.mark.parametrize("name", FUNCTIONS)
@random_settings
@given(data=st.data())
def test_calls_with_arbitrary_arguments(name, data):
    parameters = inspect.signature(getattr(qkv, name)).parameters
    arguments = {}
    for parameter in parameters.values():
        if parameter.default is parameter.empty or data.draw(st.integers(0, 3)) == 0:
            arguments[parameter.name] = data.draw(random_calls.anything())
    attempt(getattr(qkv, name), **arguments)


@pytest.mark.parametrize("name", FUNCTIONS)
@random_settings
@given(data=st.data())
def test_wrong_numbers_of_arguments(name, data):
    values = data.draw(st.lists(random_calls.anything(), max_size=8))
    more = data.draw(st.dictionaries(st.sampled_from(["q", "x", "mask", "y", "_"]), st.none()))
    attempt(getattr(qkv, name), *values, **more)


@random_settings
@given(threads=random_calls.anything())
def test_set_threads(threads):
    try:
        attempt(qkv.set_threads, threads)
        assert 1 <= qkv.info()["threads"] <= 4096
        assert qkv.softmax(np.zeros(2)).tolist() == [0.5, 0.5]
    finally:
        qkv.set_threads(None)


# ---- leaks ---------------------------------------------------------------------------------------


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_failing_calls_leak_nothing():
    """After warming up, 3,000 failing calls of each kind add less than 4 MiB to memory in use."""
    q = np.ones((2, 3, 4), np.float32)
    k = np.ones((2, 5, 4), np.float32)
    exporter = strange.Exporter((2, 5, 4), dtype=(strange.COMPLEX, 64, 1))
    calls = [
        lambda: qkv.attention(q, k, np.ones((2, 6, 4), np.float32)),
        lambda: qkv.attention(q, k, k, score="additive", params={"Wq": k, "x": q}),
        lambda: qkv.attention(q, k, k, mask=np.ones((3, 5), np.float32)),
        lambda: qkv.attention(q, exporter, k),
        lambda: qkv.attention_backward(q, q, k, k, q, q),
        lambda: qkv.masked_softmax(q, np.array([9, 9])),
    ]

    def repeat(times):
        for _ in range(times):
            for call in calls:
                with pytest.raises((ValueError, TypeError)):
                    call()
            exporter.alive.clear()
        return resident_bytes()

    before = repeat(300)
    assert repeat(3000) - before < 2**22
    assert exporter.deleted == exporter.exported > 0


@random_calls.needs_torch
def test_tensors_take_part():
    """Skipped without torch, so that the missing tensors show among the skipped tests."""
    assert random_calls.torch is not None
