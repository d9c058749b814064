# SPDX-License-Identifier: Apache-2.0
"""oneDNN's matrix product of two batches, through its C interface (2.x), if libdnnl is installed.

It uses OpenMP's number of threads: OMP_NUM_THREADS, or one for each processor.
"""

import ctypes
import ctypes.util

import numpy as np

CPU, IN_ORDER, FLOAT32 = 1, 1, 3  # from dnnl_types.h, like the next three
SRC, DST, WEIGHTS = 1, 17, 33
DESCRIPTOR_BYTES = 8192  # more than any descriptor has
Dims = ctypes.c_int64 * 12


class Argument(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_int), ("memory", ctypes.c_void_p)]


def library():
    """None if there is no oneDNN 2."""
    for name in ("libdnnl.so.2", ctypes.util.find_library("dnnl") or ""):
        try:
            found = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if found is not None and hasattr(found, "dnnl_matmul_desc_init"):
            return found
    return None


class BatchProduct:
    """a b for float32 arrays of three axes and any strides, bound once."""

    def __init__(self, dnnl, a, b):
        self._dnnl, self._arrays = dnnl, (a, b)
        self._shape = (a.shape[0], a.shape[1], b.shape[2])
        self._engine = self._make("dnnl_engine_create", CPU, ctypes.c_size_t(0))
        self._stream = self._make("dnnl_stream_create", self._engine, IN_ORDER)
        like = [a, b, np.empty(self._shape, np.float32)]
        a_desc, b_desc, out_desc = (self._described(x) for x in like)
        operation = ctypes.create_string_buffer(DESCRIPTOR_BYTES)
        self._call("dnnl_matmul_desc_init", operation, a_desc, b_desc, None, out_desc)
        primitive_desc = self._make(
            "dnnl_primitive_desc_create", operation, None, self._engine, None
        )
        self._primitive = self._make("dnnl_primitive_create", primitive_desc)
        memories = [
            self._make("dnnl_memory_create", desc, self._engine, ctypes.c_void_p(x.ctypes.data))
            for desc, x in zip((a_desc, b_desc, out_desc), like)
        ]
        self._out = memories[2]
        kinds = zip((SRC, WEIGHTS, DST), memories)
        self._arguments = (Argument * 3)(*(Argument(kind, memory.value) for kind, memory in kinds))

    def __call__(self):
        out = np.empty(self._shape, np.float32)
        self._call("dnnl_memory_set_data_handle", self._out, ctypes.c_void_p(out.ctypes.data))
        self._call("dnnl_primitive_execute", self._primitive, self._stream, 3, self._arguments)
        self._call("dnnl_stream_wait", self._stream)
        return out

    def _call(self, name, *arguments):
        status = getattr(self._dnnl, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}")

    def _make(self, name, *arguments):
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *arguments)
        return made

    def _described(self, x):
        desc = ctypes.create_string_buffer(DESCRIPTOR_BYTES)
        strides = Dims(*(step // x.itemsize for step in x.strides))
        self._call(
            "dnnl_memory_desc_init_by_strides", desc, x.ndim, Dims(*x.shape), FLOAT32, strides
        )
        return desc
