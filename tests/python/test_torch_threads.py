# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch.share_workers: calls on the workers of PyTorch's operations."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")

import qkv  # noqa: E402
import qkv.torch  # noqa: E402
from qkv import _core  # noqa: E402

if not qkv.torch.share_workers():
    pytest.skip("this PyTorch has no OpenMP", allow_module_level=True)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
    qkv.torch.share_workers()
    qkv.set_threads(None)


def in_a_process(program):
    """The words that a program prints in a new process, which starts without workers."""
    code = "import torch, qkv, qkv.torch, os\nimport numpy as np\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "2"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_number_of_threads_is_pytorchs():
    assert qkv.info()["threads"] == 2
    torch.set_num_threads(3)
    assert qkv.info()["threads"] == 3
    qkv.set_threads(1)
    assert qkv.info()["threads"] == 1
    qkv.set_threads(None)
    torch.set_num_threads(1)
    assert qkv.info()["threads"] == 1


def test_without_sharing_each_processor_has_a_thread():
    assert qkv.torch.share_workers(False) is False
    assert _core.openmp_threads() == 0
    torch.set_num_threads(7)
    assert qkv.info()["threads"] == len(os.sched_getaffinity(0))


def test_a_wrong_argument():
    with pytest.raises(TypeError, match="share_workers: share must be True or False, got str"):
        qkv.torch.share_workers("no")


def test_bits_are_the_same():
    q = torch.randn(2, 4, 300, 32, generator=torch.Generator().manual_seed(1))
    shared = qkv.torch.attention(q, q, q, causal=True)
    assert torch.equal(shared, qkv.torch.attention(q, q, q, causal=True, threads=1))
    qkv.torch.share_workers(False)
    assert torch.equal(shared, qkv.torch.attention(q, q, q, causal=True, threads=2))


def test_no_thread_is_started():
    """After an operation of PyTorch, calls use the workers that exist."""
    started = in_a_process("""
        q = torch.randn(1, 8, 512, 64)
        (q @ q.transpose(-1, -2)).softmax(-1)
        count = lambda: len(os.listdir("/proc/self/task"))
        before = count()
        for options in ({}, {"threads": 2}, {"threads": 3}):
            qkv.torch.attention(q, q, q, **options)
            print(count() - before)
        qkv.torch.share_workers(False)
        qkv.torch.attention(q, q, q, threads=2)
        print(count() - before)
        """)
    # threads=3 is not PyTorch's number, so qkv starts 2 threads beside the calling one. The last
    # call, for another number of threads, starts 1 more.
    assert started == ["0", "0", "2", "3"]


def test_small_calls_are_for_the_calling_thread():
    started = in_a_process("""
        qkv.torch.share_workers(False)
        count = lambda: len(os.listdir("/proc/self/task"))
        before = count()
        for tokens in (16, 256):
            q = torch.ones(1, 4, tokens, 8)
            qkv.torch.attention(q, q, q, threads=3)
            print(count() - before)
        """)
    assert started == ["0", "2"]


def test_in_the_child_of_a_fork():
    printed = in_a_process("""
        q = torch.ones(1, 8, 512, 64)
        q.exp()
        parent = qkv.torch.attention(q, q, q).numpy()
        if os.fork() == 0:
            child = qkv.torch.attention(q, q, q).numpy()
            print(qkv._core.openmp_threads(), (child == parent).all(), flush=True)
            os._exit(0)
        _, status = os.wait()
        print(qkv._core.openmp_threads(), status)
        """)
    assert printed == ["0", "True", "2", "0"]


def test_several_python_threads():
    q = torch.randn(1, 4, 256, 32, generator=torch.Generator().manual_seed(2))
    wanted = qkv.torch.attention(q, q, q, threads=1)
    got = [None] * 4

    def work(n):
        torch.set_num_threads(2)
        for _ in range(10):
            got[n] = qkv.torch.attention(q, q, q)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, wanted) for one in got)


def test_long_calls_end_by_signals():
    """Long calls run on qkv's own threads, so that the calling thread can poll for signals.

    The call of this test would take hours.
    """
    printed = in_a_process("""
        import signal
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        q = np.ones((1, 1, 4_000_000, 8), np.float32)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            qkv.attention(q, q, q)
        except KeyboardInterrupt:
            print("ended")
        """)
    assert printed == ["ended"]


def test_a_library_that_is_not_loaded():
    assert _core.use_openmp_of("/nowhere/libtorch_cpu.so") is False
    assert _core.openmp_threads() == 2  # the runtime in use is unchanged
