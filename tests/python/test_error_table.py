# SPDX-License-Identifier: Apache-2.0
"""Tests the rows of tests/errors.tsv in Python: the errors are the table's, with Python's names.

A row that Python cannot express is left out by a rule with a reason. The numbers of rows tried, and
left out for each reason, are written here, so that no row is dropped unnoticed.
"""

from collections import Counter

import error_rows
import ml_dtypes
import numpy as np
import pytest
from random_calls import needs_torch, torch

import qkv

ROWS = error_rows.read_table()
TRIED = [row for row in ROWS if error_rows.reason_against(row) is None]

COUNTS = {
    "tried": 232,
    error_rows.NO_FUNCTION: 94,
    error_rows.RESULT: 70,
    error_rows.GRADIENT: 23,
    error_rows.EMPTY_FUNCTION: 3,
    error_rows.PRECOMPUTED: 8,
    error_rows.NONE_IS_DEFAULT: 4,
    error_rows.CONTEXT: 4,
    error_rows.PAGES: 1,
    error_rows.TOO_LARGE: 2,
}

# Rows with a different message in Python.
OTHERWISE = {
    # Python appends the option that was probably meant.
    "keep_reals": "attention: mask must be bool or an integer type, got float32 [3,5] "
    "(numbers to add to the scores are bias)",
    # Python appends what may have been meant.
    "bias_two_heads": "attention: bias must broadcast to [B,H,Tq,Tk] = [2,4,3,5], got float32 "
    "[2,3,5]; for one matrix for each batch entry write bias[:, None]",
    # Python checks `rows` before it checks arrays.
    "dweights_rows_alone": "attention_backward: rows is given but dweights is not",
    # In Python 0 means no largest weights.
    "top_count_negative": "attention: return_top must be 0 (off) or more, got int -1",
    # Python has no struct of gradients that could be empty.
    "no_output_gradient": "attention_backward: dout, dlse and dweights are absent, so there is "
    "nothing to compute",
}
# Rows that are valid calls in Python.
RIGHT = {
    "nothing_asked",  # Python always computes out if v is given
    "top_count_zero",  # in Python 0 means no largest weights
}


def test_no_row_vanishes():
    left_out = Counter(error_rows.reason_against(row) or "tried" for row in ROWS)
    assert dict(left_out) == COUNTS
    assert {*OTHERWISE, *RIGHT} <= {row.id for row in TRIED}


def run(call):
    return getattr(qkv, call.function)(*call.positional, **call.keywords)


def small_arrays(call):
    return [array for array in error_rows.arrays_of(call) if array.size < 2**20]


@pytest.mark.parametrize("row", [row for row in TRIED if row.id not in RIGHT], ids=lambda r: r.id)
def test_row(row):
    call = error_rows.translate(row)
    error = TypeError if row.kind == "type" else ValueError
    before = [array.copy() for array in small_arrays(call)]
    with pytest.raises(error) as raised:
        run(call)
    assert type(raised.value) is error
    assert str(raised.value) == OTHERWISE.get(row.id, call.message)
    for old, new in zip(before, small_arrays(call)):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("row", [row for row in TRIED if row.id in RIGHT], ids=lambda r: r.id)
def test_right_row(row):
    assert run(error_rows.translate(row)).shape == (2, 4, 3, 6)


def as_tensor(torch, array):
    """The array as a tensor with its memory and strides."""
    strides = [stride // array.itemsize for stride in array.strides]
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    is_bfloat16 = array.dtype == ml_dtypes.bfloat16
    memory = torch.from_numpy(base.view(np.int16) if is_bfloat16 else base)
    tensor = torch.as_strided(memory, array.shape, strides)
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor


@needs_torch
@pytest.mark.parametrize("row", [row for row in TRIED if row.id not in RIGHT], ids=lambda r: r.id)
def test_row_of_tensors(row):
    call = error_rows.translate(row)
    change = lambda x: as_tensor(torch, x) if isinstance(x, np.ndarray) else x  # noqa: E731
    call.positional = [change(x) for x in call.positional]
    call.keywords = {name: change(x) for name, x in call.keywords.items()}
    if "params" in call.keywords:
        params = call.keywords["params"].items()
        call.keywords["params"] = {name: change(x) for name, x in params}
    with pytest.raises(TypeError if row.kind == "type" else ValueError) as raised:
        run(call)
    assert str(raised.value) == OTHERWISE.get(row.id, call.message)
