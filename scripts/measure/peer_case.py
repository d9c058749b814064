# SPDX-License-Identifier: Apache-2.0
"""The cases that peers.py measures, and functions that its libraries share.

A library has `label`, `needs` (what pip installs), `versions` and `ways(case)`. ways() returns
functions by name, each of which prepares the case: it returns `bind`, which takes arrays and
returns `call` and `read`. `call()` computes; `read` makes arrays of its result: out, in the
backward pass also dq, dk, dv. bind prepares all that can be prepared. `call` owns the memory that
it uses, except the arrays. For a case that a library does not offer, one of these functions raises
an exception.
"""

from functools import partial
from typing import NamedTuple

import numpy as np


class NotOffered(Exception):
    """Raised for a case that a library cannot compute, with the reason in a few words."""


class Case(NamedTuple):
    kind: str  # decode, prefill, backward
    B: int
    H: int
    G: int
    Tq: int
    Tk: int
    D: int
    dtype: str = "float32"
    causal: bool = False

    @property
    def is_bf16(self):
        return self.dtype == "bfloat16"

    def shapes(self):
        q, k = (self.B, self.H, self.Tq, self.D), (self.B, self.G, self.Tk, self.D)
        return {"q": q, "k": k, "v": k} | ({"dout": q} if self.kind == "backward" else {})


def aligned(x):
    """A contiguous copy at a multiple of 64 bytes, like PyTorch's tensors. JAX copies others."""
    memory = np.empty(x.nbytes + 64, np.uint8)  # on huge pages if it is large
    start = -memory.ctypes.data % 64
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def heads_last(x):
    """Transposes [B,H,T,D] to [B,T,H,D], or back."""
    return aligned(x.swapaxes(1, 2))


def folded(make, case):
    """The `bind` of a case in which the query heads of a key head are rows of one head. Without a
    mask, results are equal to those of `case`."""
    of_head = case._replace(H=case.G, Tq=case.H // case.G * case.Tq)
    bind = make(of_head)
    return lambda x: bind(dict(x, q=x["q"].reshape(of_head.shapes()["q"])))


def with_folded(make, case, name=""):
    """Ways of a library that groups heads, by name: `make` and, if the case has grouped heads, its
    folded() form."""
    ways = {name: partial(make, case)}
    if case.H != case.G:
        ways[f"{name} folded".strip()] = partial(folded, make, case)
    return ways


def only_forward(case):
    if case.kind == "backward":
        raise NotOffered("no gradients")
