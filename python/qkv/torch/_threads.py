# SPDX-License-Identifier: Apache-2.0
"""One set of threads: calls run on the OpenMP workers of PyTorch's own operations."""

import pathlib

import torch

from .. import _core
from ._kinds import FLAG, check_kinds

__all__ = ["share_workers"]


def share_workers(share: bool = True) -> bool:
    """Lets calls run on the OpenMP workers of PyTorch's operations, or on threads of their own.

    Workers of OpenMP spin for a few milliseconds after an operation, on processors that other
    threads would then have to wait for. `import qkv.torch` shares them. Calls without `threads=`,
    or with as many, use torch.get_num_threads() of them; calls of about a second or more, and calls
    in the child of a fork, use threads of their own: so that Ctrl-C ends them, and because workers
    do not survive a fork. Results have the same bits on any threads.

    Args:
        share: False: calls run on threads of their own, as without PyTorch.

    Returns:
        Whether workers are shared now: not if `share` is False, or this PyTorch has no OpenMP.

    Raises:
        TypeError: share is not True or False.

    >>> share_workers(False)
    False
    >>> shared = share_workers()
    """
    check_kinds("share_workers", FLAG, share=share)
    library = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return _core.use_openmp_of(str(library) if share else "")
