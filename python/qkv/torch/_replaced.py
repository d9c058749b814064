# SPDX-License-Identifier: Apache-2.0
"""Replaces PyTorch's attention function by qkv's, for code that calls PyTorch's."""

import threading
from contextlib import contextmanager
from typing import Any, Iterator

import torch

from ._questions import is_compiling
from ._sdpa import attend_as_sdpa, scaled_dot_product_attention
from ._torchs import FUNCTION, NAME, as_called, scripted_as
from ._watch import WATCHERS, is_quiet, probe, quiet, running

__all__ = ["replaced"]

_LOCK = threading.Lock()
_DEPTH = 0


def _routed(query: Any, key: Any, value: Any, *positional: Any, **options: Any) -> Any:
    """Calls qkv's function inside replaced() for tensors on the CPU, otherwise PyTorch's."""
    on_cpu = isinstance(query, torch.Tensor) and query.device.type == "cpu"
    function: Any = scaled_dot_product_attention if on_cpu and _DEPTH else as_called
    if is_compiling() or not WATCHERS or is_quiet() or not running():
        return function(query, key, value, *positional, **options)
    probe(attend_as_sdpa, query, key, value, *positional, **options)
    with quiet():
        return function(query, key, value, *positional, **options)


if FUNCTION is not None:
    scripted_as(_routed, FUNCTION)


@contextmanager
def replaced() -> Iterator[None]:
    """Context in which torch.nn.functional.scaled_dot_product_attention is qkv's, on the CPU.

    The replacement holds for all threads, and for every caller that looks the function up in
    torch.nn.functional at each call, as PyTorch's own layers do. A caller that imported the
    function itself earlier keeps PyTorch's, and so do modules in PyTorch's fast path (evaluation
    without gradients; there qkv's MultiheadAttention is not called either) and a MultiheadAttention
    that returns weights. Tensors on other devices go to PyTorch's function, and code compiled by
    torch.jit.script always calls PyTorch's. The context may be nested.

    Returns:
        A context manager; `with` gives None.

    Raises:
        RuntimeError: this PyTorch has no such function (before 2.0).

    >>> import torch
    >>> q = torch.ones(1, 2, 5, 8)
    >>> with replaced():
    ...     out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    >>> out.shape
    torch.Size([1, 2, 5, 8])
    """
    if FUNCTION is None:
        raise RuntimeError(
            f"replaced: PyTorch {torch.__version__} has no torch.nn.functional.{NAME}, which came "
            "with 2.0"
        )
    _change_depth(1)
    try:
        yield
    finally:
        _change_depth(-1)


def _change_depth(step: int) -> None:
    global _DEPTH
    with _LOCK:
        _DEPTH += step
    set_function()


def set_function() -> None:
    """Sets the function of torch.nn.functional: _routed if replaced or watched, else PyTorch's."""
    with _LOCK:
        if FUNCTION is not None:
            setattr(torch.nn.functional, NAME, _routed if _DEPTH or WATCHERS else FUNCTION)
