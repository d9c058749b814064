# SPDX-License-Identifier: Apache-2.0
"""Comparisons of sizes that may be symbols.

In a graph a size may be known only when the graph runs (the size of `x[mask]` or `x[:n.item()]`),
and a branch on such a size ends the export. The functions here do not branch: each has a fixed
answer for sizes that are not known, and the operator checks the sizes when it runs.
"""

from typing import Any, Sequence

import torch

from ._questions import is_compiling

try:
    from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true
except ImportError:  # before PyTorch 2.8
    guard_or_false = guard_or_true = None

_Symbol = getattr(torch, "SymBool", ())  # SymBool came with PyTorch 2.0


def surely(condition: Any) -> bool:
    """Whether a comparison of sizes is true; false where that is not known."""
    return _answer(condition, guard_or_false)


def perhaps(condition: Any) -> bool:
    """Whether a comparison of sizes is true; true where that is not known."""
    return _answer(condition, guard_or_true)


def _answer(condition: Any, guard: Any) -> bool:
    if guard is not None and (is_compiling() or isinstance(condition, _Symbol)):
        known: bool = guard(condition)
        return known
    return True if condition else False  # noqa: SIM210 (old compilers cannot read bool(condition))


def surely_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two shapes are equal; false where that is not known."""
    return len(first) == len(second) and all(surely(a == b) for a, b in zip(first, second))


def perhaps_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two shapes are equal; true where that is not known."""
    return len(first) == len(second) and all(perhaps(a == b) for a, b in zip(first, second))
