# SPDX-License-Identifier: Apache-2.0
"""The CPU target in use, the default number of threads, and the CUDA devices."""

from typing import Any, Dict, Optional

from . import _core

__all__ = ["info", "set_threads"]


def info() -> Dict[str, Any]:
    """Describes this build and the kernels and threads that it uses on this machine.

    Returns:
        A dictionary: version; cpu_target, the name of the kernels that calls use; cpu_targets, the
        names of all kernels that this CPU can run, best first (the environment variable QKV_TARGET
        overrides the choice); threads, the default number of threads; cuda_devices, a dictionary
        for each GPU that the CUDA driver lists: its number, name, memory_bytes, compute_capability
        (major, minor) and multiprocessors; why_no_cuda_device, the reason in one line if there is
        none, else "". The first call starts the CUDA driver if there is one; a process that is
        forked later cannot use CUDA.

    >>> sorted(info())
    ['cpu_target', 'cpu_targets', 'cuda_devices', 'threads', 'version', 'why_no_cuda_device']
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
