#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the smallest calls from Python: the toy example of document 002 (docs/seeds.md).

usage: python_call.py [REPEATS]     in an environment that has qkv
Prints microseconds per call: the minimum and the median of REPEATS (default 201) runs of 200 calls.
"""

import statistics
import sys
import time

import numpy as np

import qkv

CALLS = 200

queries = np.ones((2, 1, 2), np.float32)
keys = np.ones((2, 10, 2), np.float32)
values = np.arange(80, dtype=np.float32).reshape(2, 10, 4)
lengths = np.array([2, 6])
rows = np.ones((2, 1, 10), np.float32)
ONE_THREAD = {"threads": 1}


def cases():
    yield (
        "attention, toy of document 002",
        lambda: qkv.attention(queries, keys, values, key_lengths=lengths),
    )
    yield (
        "  one thread",
        lambda: qkv.attention(queries, keys, values, key_lengths=lengths, **ONE_THREAD),
    )
    yield (
        "  and lse",
        lambda: qkv.attention(queries, keys, values, key_lengths=lengths, return_lse=True),
    )
    yield "masked_softmax [2,1,10]", lambda: qkv.masked_softmax(rows, lengths)
    yield "batch_dot [2,1,10] [2,10,4]", lambda: qkv.batch_dot(rows, values)
    yield "info", qkv.info
    yield "numpy: q @ k.T", lambda: queries @ keys.swapaxes(-1, -2)


def microseconds(call):
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - begin) / CALLS / 1e3


def main() -> int:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 201
    print(f"{'':<30} {'least':>7} {'median':>7}  us")
    for name, call in cases():
        microseconds(call)
        times = [microseconds(call) for _ in range(repeats)]
        print(f"{name:<30} {min(times):>7.2f} {statistics.median(times):>7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
