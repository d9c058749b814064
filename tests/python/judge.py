# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests that compare with PyTorch: the condition to run, and the comparisons.

The judge is exactly PyTorch 2.13.0. Without this version, each test of a file that has
`pytestmark = needs_torch` is collected and skipped with the reason, so that the skips are counted.
"""

from __future__ import annotations

import importlib
from typing import Any, Optional

import numpy as np
import pytest

WANTED = "2.13.0"


def _find() -> tuple[Any, str]:
    try:
        module = importlib.import_module("torch")
    except ImportError as error:
        return None, f"judged by torch {WANTED}, which is not here: {error}"
    if module.__version__.split("+")[0] != WANTED:
        return None, f"judged by torch {WANTED}, this is {module.__version__}"
    module.set_num_threads(1)
    return module, ""


torch, _REASON = _find()
needs_torch = pytest.mark.skipif(torch is None, reason=_REASON or "never")


def as_float64(x: Any) -> np.ndarray:
    """A NumPy float64 copy of a NumPy array or torch tensor of any real dtype."""
    if torch is not None and isinstance(x, torch.Tensor):
        return x.detach().to(torch.float64).numpy().copy()
    return np.asarray(x).astype(np.float64)


def gaps(got: Any, want: Any) -> np.ndarray:
    """The absolute differences; equal infinities and two NaN differ by 0.

    A NaN or an infinity against another value is an infinite difference.
    """
    a, b = as_float64(got), as_float64(want)
    assert a.shape == b.shape, f"shape {a.shape}, expected {b.shape}"
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
    return np.where(np.isnan(gap), np.inf, gap)


def worst(got: Any, want: Any) -> float:
    """The largest of gaps()."""
    return float(gaps(got, want).max(initial=0))


def check(name: str, got: Any, want: Any, tolerance: float) -> Optional[str]:
    """None if every element of `got` is within `tolerance` of `want`; else one line of text."""
    try:
        gap = gaps(got, want)
    except AssertionError as reason:
        return f"{name}: {reason}"
    if gap.max(initial=0) <= tolerance:
        return None
    at = tuple(int(n) for n in np.unravel_index(np.argmax(gap), gap.shape))
    a, b = as_float64(got)[at], as_float64(want)[at]
    return f"{name}{list(at)}: {a!r}, expected {b!r} within {tolerance:.3g}"
