# SPDX-License-Identifier: Apache-2.0
"""What the calls run on."""

from typing import Any, Dict, Optional

from . import _core

__all__ = ["info", "set_threads"]


def info() -> Dict[str, Any]:
    """What was built and what this machine makes of it.

    Returns:
        version; cpu_target, the kernels that calls use, and cpu_targets, those that this CPU can
        run, best first (QKV_TARGET in the environment names another); threads of a call that
        names none.

    >>> sorted(info())
    ['cpu_target', 'cpu_targets', 'threads', 'version']
    """
    return _core.info()


def set_threads(n: Optional[int]) -> None:
    """How many threads the calls take from now on that do not say `threads=`.

    Args:
        n: from 0 to 4096; 0 or None, as at first, is one for each processor that the process may
            use. Results do not depend on it.

    Raises:
        ValueError, TypeError: n is no such number.

    >>> set_threads(2)
    >>> info()["threads"]
    2
    >>> set_threads(None)
    """
    _core.set_threads(n)
