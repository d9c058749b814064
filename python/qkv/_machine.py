# SPDX-License-Identifier: Apache-2.0
"""CPU targets and threads."""

from typing import Any, Dict, Optional

from . import _core

__all__ = ["info", "set_threads"]


def info() -> Dict[str, Any]:
    """The build and what it uses on this machine.

    Returns:
        version; cpu_target, the kernels that calls use, and cpu_targets, those that this CPU can
        run, best first (the environment variable QKV_TARGET overrides the choice); threads, the
        default number.

    >>> sorted(info())
    ['cpu_target', 'cpu_targets', 'threads', 'version']
    """
    return _core.info()


def set_threads(n: Optional[int]) -> None:
    """Sets the number of threads of later calls without `threads=`.

    Args:
        n: from 0 to 4096; 0 or None, the default, means one per processor available to the
            process, and once qkv.torch is imported, as many as torch.get_num_threads() says.
            Results do not depend on it.

    Raises:
        ValueError, TypeError: n is not such a number.

    >>> set_threads(2)
    >>> info()["threads"]
    2
    >>> set_threads(None)
    """
    _core.set_threads(n)
