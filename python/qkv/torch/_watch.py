# SPDX-License-Identifier: Apache-2.0
"""Reports calls of attention to watchers, with the modules that make them.

Every call that is visible to watchers reaches `tell` as arguments of `qkv.torch.attention`. A call
of another function is translated: `probe` runs a function that makes the matching call of
`qkv.torch.attention`, until that call reaches `tell`.
"""

import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List

import torch

# The active watchers of all threads: objects with knows(module), take(modules, q, k, v, options).
WATCHERS: List[Any] = []


class _State(threading.local):
    def __init__(self) -> None:
        self.modules: List[torch.nn.Module] = []  # modules that run now, innermost last
        self.is_quiet = False  # whether the call that runs now has been reported already
        self.is_probing = False  # whether a probe runs now


_STATE = _State()


class _Told(Exception):
    """Ends a probe once its call has been reported."""


def running() -> List[torch.nn.Module]:
    """The watched modules that run on this thread, innermost last."""
    return _STATE.modules


@contextmanager
def quiet() -> Iterator[None]:
    """Inside this context, calls of this thread are not reported."""
    before, _STATE.is_quiet = _STATE.is_quiet, True
    try:
        yield
    finally:
        _STATE.is_quiet = before


def is_quiet() -> bool:
    return _STATE.is_quiet


def tell(q: Any, k: Any, v: Any, options: Dict[str, Any]) -> None:
    """Reports a call of `qkv.torch.attention`, unless it is part of a call already reported.

    Calls of CUDA tensors are not reported, since watchers call attention on the CPU.
    """
    if _STATE.is_quiet:
        return
    if not (isinstance(q, torch.Tensor) and q.is_cuda):
        with quiet():
            for watcher in list(WATCHERS):
                watcher.take(_STATE.modules, q, k, v, options)
    if _STATE.is_probing:
        raise _Told


def probe(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Reports the call of `qkv.torch.attention` that `function` would make, if it makes one."""
    before, _STATE.is_probing = _STATE.is_probing, True
    try:
        function(*arguments, **options)
    except _Told:
        if before:  # a probe inside a probe
            raise
    finally:
        _STATE.is_probing = before
