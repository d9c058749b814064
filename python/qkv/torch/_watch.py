# SPDX-License-Identifier: Apache-2.0
"""Who watches the calls of attention, and which module makes them.

Every call that a watcher can see comes to `tell`, as arguments of `qkv.torch.attention`. Other
functions than that one are translated: `probe` runs what would be this library's call for the same
arguments, up to where `tell` has them.
"""

import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List

import torch

# Those that are active, of all threads: objects with take(modules, q, k, v, options).
WATCHERS: List[Any] = []


class _State(threading.local):
    def __init__(self) -> None:
        self.modules: List[torch.nn.Module] = []  # those that run now, innermost last
        self.is_quiet = False  # this call has been told already
        self.is_probing = False


_STATE = _State()


class _Told(Exception):
    """Ends a probe."""


def running() -> List[torch.nn.Module]:
    """The watched modules that run on this thread, innermost last."""
    return _STATE.modules


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, calls of this thread are not told."""
    before, _STATE.is_quiet = _STATE.is_quiet, True
    try:
        yield
    finally:
        _STATE.is_quiet = before


def is_quiet() -> bool:
    return _STATE.is_quiet


def tell(q: Any, k: Any, v: Any, options: Dict[str, Any]) -> None:
    """Tells the watchers of a call of `qkv.torch.attention`, if it is not a part of one told."""
    if _STATE.is_quiet:
        return
    with quiet():
        for watcher in list(WATCHERS):
            watcher.take(_STATE.modules, q, k, v, options)
    if _STATE.is_probing:
        raise _Told


def probe(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Tells what `function` would compute by `qkv.torch.attention`; nothing, if it is not."""
    before, _STATE.is_probing = _STATE.is_probing, True
    try:
        function(*arguments, **options)
    except _Told:
        if before:  # a probe inside a probe
            raise
    finally:
        _STATE.is_probing = before
