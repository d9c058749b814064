# SPDX-License-Identifier: Apache-2.0
"""PyTorch's function replaced by this library's, for code that calls PyTorch's."""

import threading
from contextlib import contextmanager
from typing import Any, Iterator

import torch

from ._sdpa import scaled_dot_product_attention
from ._torchs import FUNCTION, NAME

__all__ = ["replaced"]

_LOCK = threading.Lock()
_DEPTH = 0


def _routed(query: Any, key: Any, value: Any, *positional: Any, **options: Any) -> Any:
    """This library's function for tensors on the CPU, PyTorch's for others."""
    on_cpu = isinstance(query, torch.Tensor) and query.device.type == "cpu"
    function: Any = scaled_dot_product_attention if on_cpu else FUNCTION
    return function(query, key, value, *positional, **options)


@contextmanager
def replaced() -> Iterator[None]:
    """Inside, torch.nn.functional.scaled_dot_product_attention is this library's on the CPU.

    It holds for all threads and for every caller that looks the function up in
    torch.nn.functional when it calls it, as PyTorch's own layers do; not for one that imported the
    function itself before. Tensors on other devices go to PyTorch's. May be nested.

    Returns:
        A context manager, of nothing.

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
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)


def _enter(step: int) -> None:
    global _DEPTH
    with _LOCK:
        _DEPTH += step
        setattr(torch.nn.functional, NAME, _routed if _DEPTH else FUNCTION)
