# SPDX-License-Identifier: Apache-2.0
"""Tests how calls behave in a process: Ctrl-C, the GIL, fork, threads, imports."""

import concurrent.futures
import importlib.util
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from patience import PATIENCE

import qkv

STOPPED = """
    import ctypes, mmap, os, signal, threading, time
    import numpy as np
    import qkv

    # Shells start background processes with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mincore = ctypes.CDLL(None, use_errno=True).mincore

    def ones(*shape):
        return np.broadcast_to(np.float32(1), shape)

    # An array of zeros; share() is the part of its pages that was read.
    class Watched:
        def __init__(self, *shape):
            size = 4 * int(np.prod(shape))
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            self.array = np.frombuffer(memory, np.float32).reshape(shape)
            self.pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()

        def share(self):
            address = ctypes.c_void_p(self.array.ctypes.data)
            assert mincore(address, ctypes.c_size_t(self.array.nbytes), self.pages) == 0
            return np.mean(np.frombuffer(self.pages, np.uint8) & 1)

    def bilinear(q, W):
        key = ones(1, W.shape[0])
        qkv.attention(q, key, key, score="bilinear", params={"W": W})

    def wide_additive(q):
        key = ones(1, q.shape[1])
        params = {"Wq": ones(1024, q.shape[1]), "Wk": ones(1024, q.shape[1]), "v": ones(1024)}
        qkv.attention(q, key, key, score="additive", params=params)

    def is_stopped():
        x = Watched(SHAPE)

        def interrupt():
            while x.share() < 0.02:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        try:
            threading.Thread(target=interrupt, daemon=True).start()
            call(x.array)
            while True:  # the call ended first: waits for the signal
                time.sleep(0.001)
        except KeyboardInterrupt:
            return x.share() < 1

    SETUP
    def call(x):
        CALL

    # On a busy machine the signal may come only when all was read.
    print(any(is_stopped() for _ in range(30)))
"""


def start(script):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def end(process):
    """Waits for a process and returns its stdout and stderr; kills it if it hangs."""
    try:
        return process.communicate(timeout=PATIENCE)
    finally:
        process.kill()


LAYER = "layer = qkv.MultiHeadAttention({}, 8); rows = ones(1, {}, {})"
ARRAYS = """square = ones(64, 64)
    additive = {"score": "additive", "params": {"Wq": square, "Wk": square, "v": square[0]}}
    lse, rows = ones(1, 4, 16384), ones(1, 4, 16384, 64)"""
# A cache that must be unchanged after its append is stopped.
APPEND = """import pickle
    cache = qkv.KvCache(1, 4, 64, 32, dtype="{}")
    values = ones(1, 4, 80_000, 32)
    def append(x):
        cache.reset()
        cache.append(values[:, :, :5].repeat(2, 3), values[:, :, :5])
        before = pickle.dumps(cache)
        try:
            cache.append(x, values)
        except KeyboardInterrupt:
            # The signal may come when everything was appended.
            assert cache.lengths == (80_005,) or pickle.dumps(cache) == before
            raise"""
TORCH = "import torch, qkv.torch; torch.set_num_threads(2)"
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


@pytest.mark.parametrize(
    ("call", "shape", "setup"),
    [
        ("qkv.attention(x, rows, rows)", "1, 4, 16384, 64", ARRAYS),
        ("qkv.attention(x, rows, rows, **additive)", "1, 4, 16384, 64", ARRAYS),
        ("qkv.attention_backward(rows, rows, x, rows, rows, lse)", "1, 4, 16384, 64", ARRAYS),
        (
            "qkv.attention_backward(rows, rows, x, rows, rows, lse, **additive)",
            "1, 4, 16384, 64",
            ARRAYS,
        ),
        ("qkv.softmax(x)", "2000, 50_000", ""),
        # The numbers are 16 bytes apart, so that each is read separately.
        ("qkv.masked_softmax(x[..., ::4])", "4000, 32_000", ""),
        # A call of this size runs on qkv's workers: on PyTorch's it could not poll for signals.
        pytest.param("qkv.softmax(x)", "4000, 50_000", TORCH, marks=needs_torch),
        ("qkv.quantize_q8(x)", "1000, 51_200", ""),
        ("qkv.dequantize_q8(x.view(qkv.q8))", "500, 34_000", ""),
        ("append(x)", "1, 4, 80_000, 64", APPEND.format("float16")),
        ("append(x)", "1, 4, 80_000, 64", APPEND.format("q8")),
        ("qkv.batch_dot(x, ones(20_000, 1000))", "1000, 20_000", ""),
        ("qkv.attention(ones(4, 64), x, x)", "1 << 19, 1, 4, 64", ""),
        ("qkv.attention(x, x, x)", "1024, 1 << 16", ""),
        (
            "qkv.attention_backward(rows, rows, x, rows, rows, ones(1024))",
            "1024, 1 << 15",
            "rows = ones(1024, 1 << 15)",
        ),
        # The work is in the projections, of many queries or of few.
        ("bilinear(x, ones(4096, 4096))", "3000, 4096", ""),
        ("bilinear(ones(4, 16384), x)", "16384, 16384", ""),
        ("wide_additive(x)", "1000, 4096", ""),
        ("layer.forward(x, rows, rows)", "1, 4096, 2048", LAYER.format(2048, 4096, 2048)),
        (
            "layer.backward(x)",
            "1, 4096, 1024",
            LAYER.format(1024, 4096, 1024) + "; layer.forward(rows, rows, rows)",
        ),
    ],
)
def test_ctrl_c_stops_a_long_call(call, shape, setup):
    """The stopped call has read a part of x, but not all of it."""
    script = STOPPED.replace("SETUP", setup).replace("SHAPE", shape).replace("CALL", call)
    printed, errors = end(start(script))
    assert (printed, errors) == ("True\n", "")


def additive_call(keys):
    """A call that is slow for its size, with one tanh for each query-key pair and unit."""
    ones = np.ones((256, 32), np.float32)
    x = np.ones((keys, 32), np.float32)
    params = {"Wq": ones, "Wk": ones, "v": np.ones(256, np.float32)}
    return lambda: qkv.attention(x, x, x, score="additive", params=params, threads=1)


def lets_the_gil_go(call):
    """Whether this thread ran between the start and the end of a call on another one.

    With a long switch interval, this thread runs only if the call releases the GIL or has ended.
    """
    begun, ended = threading.Event(), threading.Event()

    def work():
        begun.set()
        call()
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    between = not ended.is_set()
    thread.join()
    return between


@pytest.mark.parametrize("keys", [200, 3000], ids=["short", "long"])
def test_other_threads_run_during_a_call(keys):
    call = additive_call(keys)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        # In some of the tries this thread may get no processor before the call ends.
        assert any(lets_the_gil_go(call) for _ in range(200))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("name", ["softmax", "masked_softmax", "batch_dot"])
def test_functions_take_threads_and_keep_their_bits(name):
    x = np.random.default_rng(1).standard_normal((3, 150, 300), np.float32)
    arguments = (x, x.swapaxes(1, 2)) if name == "batch_dot" else (x,)
    call = getattr(qkv, name)
    want = call(*arguments, threads=1).tobytes()
    for threads in (None, 0, 2, np.int16(3)):
        assert call(*arguments, threads=threads).tobytes() == want
    with pytest.raises(ValueError, match=rf"^{name}: threads must be in 0 .* got -1$"):
        call(*arguments, threads=-1)


def test_threads_at_once_agree_to_the_bit():
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((2, 4, 120, 32), dtype=np.float32) for _ in range(3))
    dout = random.standard_normal(q.shape, dtype=np.float32)

    def call(threads):
        out, lse = qkv.attention(q, k, v, causal=True, dropout=0.1, seed=7, return_lse=True,
                                 threads=threads)  # fmt: skip
        gradients = qkv.attention_backward(dout, q, k, v, out, lse, causal=True, dropout=0.1,
                                           seed=7, threads=threads)  # fmt: skip
        return [array.tobytes() for array in (out, lse, *gradients[:3])]

    alone = call(1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for result in pool.map(call, [None, 1, 2, 3, None, 1, 2, 3] * 2):
            assert result == alone


FORK = """
    import multiprocessing, os, signal, threading, warnings
    import numpy as np
    import qkv

    warnings.simplefilter("ignore", DeprecationWarning)  # of fork() with threads
    random = np.random.default_rng(2)
    q = random.standard_normal((2, 4, 200, 32), dtype=np.float32)
    long = np.ones((1, 1, 4000, 64), np.float32)

    def call(_=None):
        return qkv.attention(q, q, q, causal=True, threads=3).tobytes()

    def child():
        signal.alarm(PATIENCE)  # ends a child that hangs
        os._exit(0 if call() == before else 1)

    def fork():
        number = os.fork()
        if number == 0:
            child()
        assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0

    before = call()
    fork()  # with idle workers

    def calls():
        while not done:
            qkv.attention(long, long, long, threads=3)

    done = False
    busy = [threading.Thread(target=calls, daemon=True) for _ in range(2)]
    for thread in busy:
        thread.start()
    for _ in range(20):  # in the middle of calls
        fork()
    done = True
    for thread in busy:
        thread.join()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(call, range(4)) == [before] * 4
    assert call() == before
"""


def test_a_forked_child_computes_the_same():
    process = start(FORK.replace("PATIENCE", str(PATIENCE)))
    _, errors = end(process)
    assert process.returncode == 0, errors


def test_import_needs_numpy_only():
    code = """
        import sys
        import numpy as np
        import qkv
        qkv.attention(np.ones((2, 4)), np.ones((2, 4)), np.ones((2, 4)))
        print([name for name in ("torch", "ml_dtypes", "scipy", "jax") if name in sys.modules])
    """
    printed, errors = end(start(code))
    assert (printed, errors) == ("[]\n", "")


@pytest.mark.parametrize(("tokens", "calls"), [(64, 100), (2048, 2)])
def test_a_process_may_end_while_threads_call(tokens, calls):
    # In short calls, the calling thread computes; in long ones, it polls for signals.
    script = f"""
        import threading, time
        import numpy as np, qkv
        x = np.ones((1, 4, {tokens}, 64), np.float32)
        begun = [0] * 3
        def call(n):
            while True:
                begun[n] += 1
                qkv.attention(x, x, x)
        for n in range(3):
            threading.Thread(target=call, args=[n], daemon=True).start()
        while min(begun) < {calls}:
            time.sleep(0.001)
    """
    for _ in range(3):
        process = start(script)
        _, errors = end(process)
        assert (process.returncode, errors) == (0, "")
