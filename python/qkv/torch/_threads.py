# SPDX-License-Identifier: Apache-2.0
"""Sharing of threads: calls run on the OpenMP workers of PyTorch's own operations."""

import pathlib

import torch

from .. import _core
from ._kinds import FLAG, check_kinds

__all__ = ["share_workers"]


def share_workers(share: bool = True) -> bool:
    """Lets calls run on the OpenMP workers of PyTorch's operations, or on threads of qkv's own.

    After an operation, OpenMP workers spin for a few milliseconds on processors that qkv's own
    threads need. `import qkv.torch` therefore shares the workers. Calls without `threads=`, or with
    threads=torch.get_num_threads(), run on that many workers. Calls of about a second or more run
    on qkv's own threads so that Ctrl-C can end them, and so do calls in the child of a fork, which
    has no workers. Results are bit-identical on any threads.

    Args:
        share: whether to share PyTorch's workers; with False, calls run on qkv's own threads.

    Returns:
        Whether workers are shared now: False if `share` is False or this PyTorch has no OpenMP.

    Raises:
        TypeError: share is not True or False.

    >>> share_workers(False)
    False
    >>> shared = share_workers()
    """
    check_kinds("share_workers", FLAG, share=share)
    library = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return _core.use_openmp_of(str(library) if share else "")
