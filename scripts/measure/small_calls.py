#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of a small call on NumPy arrays and on PyTorch tensors, in one process.

usage: small_calls.py [--rounds 15] [--calls 2000]

In an environment that has qkv and PyTorch. One call attends with 4 queries of width 8, on the calling
thread; the calls alternate. Microseconds are the best of the rounds, since interference can only
make a call slower; ratios are to the first row.
"""

import argparse
import sys
import time

import numpy as np
import torch

import qkv
import qkv.torch


def seconds(call, calls):
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    array = np.ones((1, 1, 4, 8), np.float32)
    tensor = torch.from_numpy(array)
    wanting = tensor.clone().requires_grad_()
    own = torch.nn.functional.scaled_dot_product_attention
    calls = {
        "qkv.attention, NumPy arrays": lambda: qkv.attention(array, array, array, threads=1),
        "qkv.attention, tensors": lambda: qkv.attention(tensor, tensor, tensor, threads=1),
        "qkv.torch.attention": lambda: qkv.torch.attention(tensor, tensor, tensor, threads=1),
        "the same, to be differentiated": lambda: qkv.torch.attention(
            wanting, tensor, tensor, threads=1
        ),
        "PyTorch's": lambda: own(tensor, tensor, tensor),
        "PyTorch's, to be differentiated": lambda: own(wanting, tensor, tensor),
    }
    best = {name: float("inf") for name in calls}
    for _ in range(options.rounds):
        for name, call in calls.items():
            best[name] = min(best[name], 1e6 * seconds(call, options.calls))
    first = best["qkv.attention, NumPy arrays"]
    print(f"{'call':34} {'us':>6} {'ratio':>6}")
    for name, value in best.items():
        print(f"{name:34} {value:6.1f} {value / first:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
