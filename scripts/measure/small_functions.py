#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""softmax, masked_softmax and batch_dot against NumPy and PyTorch, in one process.

usage: small_functions.py [--threads 2] [--rounds 9] [--burst 0.05] [--only TEXT ...]

In an environment that has qkv and PyTorch. All take float32 arrays of their own kind and allocate
their result. They alternate in bursts, with a pause after each: OpenMP's workers spin for some
milliseconds after PyTorch's calls. Microseconds are medians over the rounds; ratios are medians of
each round's ratio, the other's time over ours; "busy" says how many processors other programs took
during a row, which can multiply the times of calls that wait for a worker. Results are compared before they are
timed. PyTorch's masked softmax is masked_fill with a precomputed mask, then softmax. Products are
run by oneDNN as well if libdnnl is installed (scripts/setup.sh bench).
"""

import argparse
import importlib
import os
import statistics
import sys

from bursts import Busy, measure

# Rows for softmax, and products: N x L by L x M for each of `batch`; T: b is given transposed.
SOFTMAX = [(8, 8, 512, 512), (64, 512), (2, 100_000), (4096, 64), (16, 1000), (2, 10)]
MASKED = [(64, 512, 512), (64, 512), (2, 100_000), (2, 10)]
PRODUCTS = [
    (8, 256, 256, 256, ""),
    (8, 256, 256, 256, "T"),
    (8, 256, 256, 256, "T of a"),
    (64, 512, 64, 512, "T"),
    (64, 512, 512, 64, ""),
    (1, 1024, 1024, 1024, ""),
    (64, 1, 64, 1024, "T"),
    (64, 1, 1024, 64, ""),
    (32, 64, 64, 64, ""),
    (8, 100, 37, 50, ""),
    (1, 4, 4, 4, ""),
]


def named(shape):
    return "[" + ",".join(str(n) for n in shape) + "]"


class Calls:
    """One case: for each library a call without arguments that returns the result."""

    def __init__(self, threads):
        self.np, self.qkv, self.torch = (
            importlib.import_module(name) for name in ("numpy", "qkv", "torch")
        )
        self.qkv.set_threads(threads)
        self.torch.set_num_threads(threads)
        self.random = self.np.random.default_rng(1)

    def normal(self, *shape):
        return self.random.standard_normal(shape, self.np.float32)

    def softmax(self, shape):
        x = self.normal(*shape)
        t = self.torch.from_numpy(x)
        return {"qkv": lambda: self.qkv.softmax(x), "PyTorch": lambda: t.softmax(-1)}

    def masked_softmax(self, shape):
        x = self.normal(*shape)
        lengths = self.random.integers(1, shape[-1] + 1, shape[:1])
        t = self.torch.from_numpy(x)
        places = self.torch.arange(shape[-1])
        ends = self.torch.from_numpy(lengths).reshape([-1] + [1] * (len(shape) - 1))
        dead = places >= ends
        return {
            "qkv": lambda: self.qkv.masked_softmax(x, lengths),
            "PyTorch": lambda: t.masked_fill(dead, -self.np.inf).softmax(-1),
        }

    def batch_dot(self, batch, n, length, m, turned):
        of_a, of_b = turned == "T of a", turned == "T"
        a = self.normal(batch, *((length, n) if of_a else (n, length)))
        b = self.normal(batch, *((m, length) if of_b else (length, m)))
        matrices = [(a.swapaxes(1, 2) if of_a else a), (b.swapaxes(1, 2) if of_b else b)]
        tensors = [self.torch.from_numpy(x) for x in matrices]
        onednn = importlib.import_module("onednn_product")
        dnnl = onednn.library()
        others = {} if dnnl is None else {"oneDNN": onednn.BatchProduct(dnnl, *matrices)}
        return {
            "qkv": lambda: self.qkv.batch_dot(a, b, of_a, of_b),
            "NumPy": lambda: self.np.matmul(*matrices),
            "PyTorch": lambda: self.torch.bmm(*tensors),
            **others,
        }

    def check(self, calls):
        results = [self.np.asarray(call()) for call in calls.values()]
        for result in results[1:]:
            self.np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--burst", type=float, default=0.05, help="seconds")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name has one of these")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before oneDNN reads it
    of = Calls(options.threads)
    cases = [(f"softmax {named(s)}", of.softmax, (s,)) for s in SOFTMAX]
    cases += [(f"masked_softmax {named(s)}", of.masked_softmax, (s,)) for s in MASKED]
    for batch, n, length, m, turned in PRODUCTS:
        name = f"batch_dot {batch} x [{n},{length}] [{length},{m}] {turned}".strip()
        cases.append((name, of.batch_dot, (batch, n, length, m, turned)))
    print(f"{options.threads} threads; PyTorch {of.torch.__version__}, NumPy {of.np.__version__}")
    print(f"{'':<44} {'us':>10}   the others' time over ours")
    for name, make, arguments in cases:
        if not any(text in name for text in options.only):
            continue
        calls = make(*arguments)
        of.check(calls)
        busy = Busy()
        times = measure(calls, options.rounds, options.burst)
        ours = times.pop("qkv")
        ratios = {
            peer: statistics.median(a / b for a, b in zip(other, ours))
            for peer, other in times.items()
        }
        print(
            f"{name:<44} {statistics.median(ours) * 1e6:>10.1f}  ",
            ", ".join(f"{peer} {ratio:.2f} x" for peer, ratio in ratios.items()) + busy.text(),
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
