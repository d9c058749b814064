#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of scores and masks from Python, beside PyTorch's FlexAttention.

usage: expression_peers.py [--length 2048] [--threads 1] [--rounds 7] [--burst 0.2] [--only TEXT]
                           [-o RESULTS.json]

In an environment that has qkv and PyTorch 2.6 or newer, with a C++ compiler for PyTorch. One batch
entry, 8 heads, D = 64, float32. Each row is a score or mask function that both libraries take. It
is prepared before timing: PyTorch's flex_attention is compiled, with a block mask; qkv gets an
expression, but solves a mask's expression in every call. Results are compared first. Then forward
calls alternate in bursts: qkv without the function, qkv with it, PyTorch; and qkv's backward calls
without the function, with it, and with the gradients of the arrays that it reads, which PyTorch
does not have on a CPU. A row's figures are medians of each round's ratio of times: "forward",
"backward" and "gradients" are qkv's with the function over qkv's without it, or for a mask over
qkv's with the built-in one, if there is one; "flex" is PyTorch's time over qkv's: above 1, qkv's is
shorter. -o writes the rows as JSON, which scripts/benchmarks.py reads.
"""

import argparse
import statistics
import sys

import numpy as np
import torch
from bursts import Busy, measure
from reports import Report
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import qkv

B, H, D = 1, 8, 64
GRADIENTS = ["dq", "dk", "dv"]


def cases(T):
    """Rows: (name, maker of a score function, arrays for the makers, maker of a mask function,
    qkv's built-in options with the same meaning)."""
    slope = 2.0 ** -np.arange(1, H + 1, dtype=np.float32)
    table = np.random.default_rng(5).standard_normal((H, 2 * T - 1), np.float32)
    distance = np.abs(np.arange(2 * T - 1) - (T - 1))
    bucket = np.minimum(distance, 8 + np.log2(np.maximum(distance, 1)).astype(int)).astype(np.int32)
    buckets = np.random.default_rng(6).standard_normal((H, 32), np.float32)
    document = (4 * np.arange(T) // T).astype(np.int32)

    def alibi(slope):
        return lambda s, b, h, i, j: s - slope[h] * abs(i - j)

    def relative(table):
        return lambda s, b, h, i, j: s + table[h, j - i + (T - 1)]

    def t5(buckets, bucket):
        return lambda s, b, h, i, j: s + buckets[h, bucket[j - i + (T - 1)]]

    yield "alibi", alibi, [slope], None, {}
    yield "relative", relative, [table], None, {}
    yield "t5", t5, [buckets, bucket], None, {}
    yield "soft-cap", lambda: softcap, [], None, {"softcap": 20.0}
    yield "causal", None, [], lambda: lambda b, h, i, j: j <= i, {"causal": True}
    yield "documents", None, [document], lambda doc: lambda b, h, i, j: doc[i] == doc[j], {}
    yield "dilated", None, [], lambda: lambda b, h, i, j: (j <= i) & ((i - j) % 4 == 0), {}


def softcap(s, b, h, i, j):
    return 20 * (np if isinstance(s, qkv.Expression) else torch).tanh(s / 20)


def ours(function, arrays, is_mask):
    """qkv's expression of a function."""
    f = function(*arrays)
    if is_mask:
        return qkv.mask_mod(lambda at: f(at.b, at.h, at.i, at.j))
    return qkv.score_mod(lambda s, at: f(s, at.b, at.h, at.i, at.j))


def theirs(function, arrays, q, k, v, is_mask):
    """A call of PyTorch's, compiled."""
    f = function(*map(torch.from_numpy, arrays))
    T = q.shape[2]
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    options = {"score_mod": f}
    if is_mask:
        options = {"block_mask": create_block_mask(f, None, None, T, T, device="cpu")}
    compiled = torch.compile(flex_attention, dynamic=False)

    def call():
        with torch.no_grad():
            return compiled(*tensors, **options)

    return call


def ratio(times, a, b):
    return statistics.median(x / y for x, y in zip(times[a], times[b]))


def add(report, case, inputs, options):
    name, score, arrays, mask, built_in = case
    q, k, v, dout = inputs
    is_mask = mask is not None
    mod = ours(mask if is_mask else score, arrays, is_mask)
    with_mod = {"mask_mod" if is_mask else "score_mod": mod, "threads": options.threads}
    plain = {"threads": options.threads}
    if is_mask:
        plain |= built_in
    flex = theirs(mask if is_mask else score, arrays, q, k, v, is_mask)
    out, lse = qkv.attention(q, k, v, return_lse=True, **with_mod)
    if built_in:
        np.testing.assert_allclose(
            out, qkv.attention(q, k, v, threads=1, **built_in), rtol=1e-3, atol=1e-4
        )
    np.testing.assert_allclose(out, flex().numpy(), rtol=1e-3, atol=1e-4)
    plain_out, plain_lse = qkv.attention(q, k, v, return_lse=True, **plain)
    busy = Busy()
    forward = measure(
        {
            "plain": lambda: qkv.attention(q, k, v, **plain),
            "mod": lambda: qkv.attention(q, k, v, **with_mod),
            "flex": flex,
        },
        options.rounds,
        options.burst,
    )
    calls = {
        "plain": lambda: qkv.attention_backward(dout, q, k, v, plain_out, plain_lse, **plain),
        "mod": lambda: qkv.attention_backward(
            dout, q, k, v, out, lse, wanted=GRADIENTS, **with_mod
        ),
    }
    has_gradients = not is_mask and any(x.dtype == np.float32 for x in arrays)
    if has_gradients:
        calls["gradients"] = lambda: qkv.attention_backward(dout, q, k, v, out, lse, **with_mod)
    backward = measure(calls, options.rounds, options.burst)
    report.add(
        name,
        seconds=statistics.median(forward["mod"]),
        forward=ratio(forward, "mod", "plain"),
        backward=ratio(backward, "mod", "plain"),
        gradients=ratio(backward, "gradients", "plain") if has_gradients else None,
        flex=ratio(forward, "flex", "mod"),
        busy=busy.share(),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--burst", type=float, default=0.2)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = Report(
        length=options.length, threads=options.threads, rounds=options.rounds,
        burst=options.burst, versions={"PyTorch": torch.__version__, "qkv": qkv.__version__},
    )  # fmt: skip
    random = np.random.default_rng(1)
    inputs = [random.standard_normal((B, H, options.length, D), np.float32) for _ in range(4)]
    for case in cases(options.length):
        if options.only in case[0]:
            add(report, case, inputs, options)
    if options.output:
        report.write(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
