# SPDX-License-Identifier: Apache-2.0
"""What peers.py measures, and what its libraries share.

A library has `label`, `needs` (what pip installs), `versions` and `ways(case)`. Each way, by name,
prepares a case: it returns `bind`, which takes arrays and returns `call` and `read`. `call()`
computes; `read` turns its result into arrays: out, in the backward pass also dq, dk, dv. All that
can be prepared is prepared in bind. `call` owns the memory that it uses, except the arrays. What a
library does not have raises an exception.
"""

from functools import partial
from typing import NamedTuple

import numpy as np


class NotOffered(Exception):
    """What a library cannot compute, in a few words."""


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
    """A contiguous copy at a multiple of 64 bytes, as PyTorch's tensors: JAX copies others."""
    memory = np.empty(x.nbytes + 64, np.uint8)  # of huge pages, if they are large and there are any
    start = -memory.ctypes.data % 64
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def heads_last(x):
    """[B,H,T,D] as [B,T,H,D], or back."""
    return aligned(x.swapaxes(1, 2))


def folded(make, case):
    """With the query heads that share a key head as rows of one head: the same without a mask."""
    of_head = case._replace(H=case.G, Tq=case.H // case.G * case.Tq)
    bind = make(of_head)
    return lambda x: bind(dict(x, q=x["q"].reshape(of_head.shapes()["q"])))


def with_folded(make, case, name=""):
    """As the library groups heads by itself, and folded where there is something to fold."""
    ways = {name: partial(make, case)}
    if case.H != case.G:
        ways[f"{name} folded".strip()] = partial(folded, make, case)
    return ways


def only_forward(case):
    if case.kind == "backward":
        raise NotOffered("no gradients")
