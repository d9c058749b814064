# SPDX-License-Identifier: Apache-2.0
"""The library's interface for C, qkv/c.h, through ctypes: its structs and functions."""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
    sizeof,
)
from pathlib import Path
from typing import Any, Optional

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "include/qkv/c.h").read_text(encoding="utf-8")
# The shared library; by default the one that the tests' build links from the static library.
PATH = Path(os.environ.get("QKV_C_LIBRARY", ROOT / "build/release/tests/c/libqkv_c.so"))
MAX_RANK = 8

# The enumerators of the header and their numbers.
CONSTANTS = {name: int(n) for name, n in re.findall(r"^  (QKV_\w+) = (\d+)", HEADER, re.MULTILINE)}
DTYPES = {
    np.dtype(name): CONSTANTS["QKV_" + name.upper()]
    for name in ("float64", "float32", "float16", "bool", "int8", "int16", "int32", "int64")
} | {np.dtype(ml_dtypes.bfloat16): CONSTANTS["QKV_BFLOAT16"]}


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("sizes", c_int64 * MAX_RANK),
        ("strides", c_int64 * MAX_RANK),
    ]


class Shard(Structure):
    _fields_ = [
        ("given", c_int32),
        ("reserved", c_int32),
        ("first_query", c_int64),
        ("queries", c_int64),
        ("first_key", c_int64),
        ("keys", c_int64),
    ]


def tensors(*names: str) -> list[tuple[str, Any]]:
    return [(name, Tensor) for name in names]


class Inputs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *tensors("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "block_tables", "context_lens"),
        ("shard", Shard),
    ]


class QkNorm(Structure):
    _fields_ = [("given", c_int32), ("reserved", c_int32), ("eps", c_double), *tensors("q", "k")]


class Rotary(Structure):
    _fields_ = [
        ("pairs", c_int32),
        ("reserved", c_int32),
        ("base", c_double),
        ("width", c_int64),
        *tensors("frequencies", "q_positions", "k_positions"),
    ]


class Bilinear(Structure):
    _fields_ = tensors("w")


class Additive(Structure):
    _fields_ = tensors("wq", "wk", "v", "b")


class Diagonal(Structure):
    _fields_ = [
        ("kind", c_int32),
        ("reserved", c_int32),
        ("offset", c_int64),
        ("offsets", Tensor),
    ]


class Window(Structure):
    _fields_ = [("left", c_int64), ("right", c_int64)]


class Dropout(Structure):
    _fields_ = [
        ("p", c_double),
        ("seed", c_uint64),
        ("seed_given", c_int32),
        ("reserved", c_int32),
    ]


class Options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("qk_norm", QkNorm),
        ("rotary", Rotary),
        ("score", c_int32),
        ("scale_given", c_int32),
        ("scale", c_double),
        ("bilinear", Bilinear),
        ("additive", Additive),
        ("softcap", c_double),
        ("bias", Tensor),
        ("diagonal", Diagonal),
        ("alibi", Tensor),
        ("causal", c_int32),
        ("reserved", c_int32),
        ("window", Window),
        *tensors("keep", "padding", "key_lengths", "sinks"),
        ("dropout", Dropout),
    ]


class Rows(Structure):
    _fields_ = tensors("rows", "matrix")


class ColumnSums(Structure):
    _fields_ = tensors("rows", "sums")


class Top(Structure):
    _fields_ = [("count", c_int64), *tensors("weights", "keys")]


class Outputs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *tensors("out", "lse", "row_max", "entropy"),
        ("column_sums", ColumnSums),
        *tensors("value_sums", "pooled"),
        ("top", Top),
        ("weights", Rows),
        ("dropped_weights", Rows),
        ("raw_scores", Rows),
        ("capped_scores", Rows),
        ("masked_scores", Rows),
    ]


class Saved(Structure):
    _fields_ = [("struct_size", c_size_t), *tensors("out", "lse")]


class OutputGradients(Structure):
    _fields_ = [("struct_size", c_size_t), *tensors("out", "lse"), ("weights", Rows)]


class QkNormGradients(Structure):
    _fields_ = tensors("q", "k")


class ScoreGradients(Structure):
    _fields_ = tensors("w", "wq", "wk", "v", "b")


class InputGradients(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *tensors("q", "k", "v"),
        ("qk_norm", QkNormGradients),
        ("score", ScoreGradients),
        *tensors("bias", "alibi", "sinks"),
        ("accumulate", c_int32),
        ("reserved", c_int32),
    ]


# The structs that begin with their size, with the names of the functions that initialise them.
SIZED = {
    Inputs: "qkv_inputs_init",
    Options: "qkv_options_init",
    Outputs: "qkv_outputs_init",
    Saved: "qkv_saved_init",
    OutputGradients: "qkv_output_gradients_init",
    InputGradients: "qkv_input_gradients_init",
}


class Failed(Exception):
    """A status other than QKV_OK, with its name and the message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class Library:
    """The functions of the library."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        for name in ("qkv_version", "qkv_last_error", "qkv_status_name"):
            getattr(self.c, name).restype = c_char_p
        for name in ("qkv_plan_path", "qkv_plan_backward_path"):
            getattr(self.c, name).restype = c_char_p
            getattr(self.c, name).argtypes = [c_void_p]
        for kind, name in SIZED.items():
            getattr(self.c, name).argtypes = [POINTER(kind), c_size_t]
        for name in ("qkv_context_destroy", "qkv_plan_destroy"):
            getattr(self.c, name).argtypes = [c_void_p]

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a function that returns a status; raises Failed unless it is QKV_OK."""
        status = getattr(self.c, function)(*arguments)
        if status != 0:
            name = self.c.qkv_status_name(status).decode()
            raise Failed(name, self.c.qkv_last_error().decode())

    def new(self, kind: Any) -> Any:
        """An initialised struct that begins with its size."""
        struct = kind()
        self.call(SIZED[kind], byref(struct), sizeof(struct))
        return struct


def tensor(array: Optional[np.ndarray[Any, Any]]) -> Tensor:
    """The description of an array, which has to stay alive; absent for None."""
    if array is None:
        return Tensor()
    described = Tensor(array.ctypes.data, DTYPES[array.dtype], array.ndim)
    described.sizes[: array.ndim] = array.shape
    described.strides[: array.ndim] = [stride // array.itemsize for stride in array.strides]
    return described
