# SPDX-License-Identifier: Apache-2.0
"""Malformed arguments, for tests that expect an error and no crash."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

# ---- DLPack by hand ------------------------------------------------------------------------------
# The structures of https://dmlc.github.io/dlpack/latest/c_api.html, version 0 (DLManagedTensor).


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [
    ("tensor", DLTensor),
    ("context", ctypes.c_void_p),
    ("deleter", Deleter),
]

CPU, CUDA = 1, 2
FLOAT, COMPLEX = 2, 5

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exporter:
    """A CPU array that supports DLPack and gives wrong answers where it is told to.

    `exported` counts the capsules it gave, `deleted` the capsules whose deleter was called.
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (2, 3),
        strides: Optional[tuple[int, ...]] = None,
        *,
        dtype: tuple[int, int, int] = (FLOAT, 32, 1),
        device: Any = (CPU, 0),
        place: int = CPU,
        byte_offset: int = 0,
        data: str = "aligned",
        name: bytes = b"dltensor",
    ) -> None:
        self.shape, self.strides, self.dtype_code = shape, strides, dtype
        self.place = place  # the device in the exported tensor
        self.device_pair, self.byte_offset, self.data, self.name = device, byte_offset, data, name
        self.memory = ctypes.create_string_buffer(1 << 14)
        self.exported = 0
        self.done: list[None] = []  # gets an element with each call of a deleter
        self.alive: list[Any] = []

    def __repr__(self) -> str:
        return (
            f"Exporter({self.shape}, {self.strides}, dtype={self.dtype_code}, "
            f"device={self.device_pair!r}, byte_offset={self.byte_offset}, data={self.data!r})"
        )

    @property
    def deleted(self) -> int:
        return len(self.done)

    def __dlpack_device__(self) -> Any:
        return self.device_pair

    def __dlpack__(self, **_: Any) -> Any:
        sizes = (ctypes.c_int64 * max(1, len(self.shape)))(*self.shape)
        steps = None
        if self.strides is not None:
            steps = (ctypes.c_int64 * max(1, len(self.strides)))(*self.strides)
        middle = ctypes.addressof(self.memory) + (1 << 13)
        middle -= middle % 64
        address = {"aligned": middle, "odd": middle + 1, "null": None}[self.data]
        managed = DLManagedTensor()
        managed.tensor = DLTensor(
            address,
            self.place,
            0,
            len(self.shape),
            *self.dtype_code,
            sizes,
            steps,
            self.byte_offset,
        )

        done = self.done

        def delete(_: Any) -> None:
            done.append(None)

        managed.deleter = Deleter(delete)
        self.exported += 1
        self.alive.append((managed, sizes, steps, delete))
        return _new_capsule(ctypes.addressof(managed), self.name, None)


# ---- objects that misbehave ----------------------------------------------------------------------


class Surprise(Exception):
    """The exception that the objects below raise, which must propagate unchanged."""


class RaisingDlpack:
    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise Surprise("__dlpack__")


class RaisingDevice:
    def __dlpack_device__(self) -> Any:
        raise Surprise("__dlpack_device__")

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("not reached")


class OnGpu:
    """An object whose DLPack device is a CUDA device."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("must not be asked for memory that the CPU cannot read")


class NoCapsule:
    """An object whose __dlpack__ returns something other than a capsule."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return self.what


class RaisingAttributes:
    def __getattr__(self, name: str) -> Any:
        raise Surprise(name)


class EveryAttribute:
    """An object that has every attribute, each of which is the object itself, a callable."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


class WrongArray:
    """An object whose `__array__` does not return an array."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        return "no array"


class RaisingLength:
    def __len__(self) -> int:
        raise Surprise("__len__")

    def __getitem__(self, index: Any) -> Any:
        raise Surprise("__getitem__")


class RaisingNumber:
    def __index__(self) -> int:
        raise Surprise("__index__")

    def __float__(self) -> float:
        raise Surprise("__float__")

    def __bool__(self) -> bool:
        raise Surprise("__bool__")


class RaisingText(str):
    """A str whose comparison raises an error."""

    def __eq__(self, other: object) -> bool:
        raise Surprise("__eq__")

    def __hash__(self) -> int:
        return 0


class RaisingRepr:
    def __repr__(self) -> str:
        raise Surprise("__repr__")


class ClearingParams(dict):
    """A dict of parameters whose first value, Wq of 3 x 3 zeros, empties it while it is read."""

    def __init__(self, **others: Any) -> None:
        outer = self

        class Clears(Exporter):
            def __dlpack__(self, **_: Any) -> Any:
                outer.clear()
                return super().__dlpack__()

        super().__init__(Wq=Clears((3, 3)), **others)
