# SPDX-License-Identifier: Apache-2.0
"""The CPU target in use and the default number of threads."""

from typing import Any, Dict, Optional

from . import _core

__all__ = ["info", "set_threads"]


def info() -> Dict[str, Any]:
    """Describes this build and the kernels and threads that it uses on this machine.

    Returns:
        A dictionary: version; cpu_target, the name of the kernels that calls use; cpu_targets, the
        names of all kernels that this CPU can run, best first (the environment variable QKV_TARGET
        overrides the choice); threads, the default number of threads.

    >>> sorted(info())
    ['cpu_target', 'cpu_targets', 'threads', 'version']
    """
    return _core.info()


def set_threads(n: Optional[int]) -> None:
    """Sets the number of threads of later calls that have no `threads=`.

    Args:
        n: number of threads, from 0 to 4096. 0 or None, the default, means one per processor
            available to the process; once qkv.torch is imported, it means
            torch.get_num_threads(). Results do not depend on n.

    Raises:
        ValueError, TypeError: n is not an integer from 0 to 4096, or None.

    >>> set_threads(2)
    >>> info()["threads"]
    2
    >>> set_threads(None)
    """
    _core.set_threads(n)
