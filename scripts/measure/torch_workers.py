#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to take turns with PyTorch's operations: a loop beside its parts by themselves.

usage: torch_workers.py [--rounds 15] [--threads 2] [--own-workers] [--tokens 64 256 1024]

In an environment that has qkv and PyTorch. The loop is a linear layer, attention (8 heads of 64), a
linear layer; the parts are the two layers in a loop, and attention in a loop with what PyTorch does
to put its heads side by side, in bursts that alternate. With --own-workers attention runs on the threads of qkv, as it does without PyTorch.
Ratios are medians over the rounds, of each round's loop over the sum of its parts.
"""

import argparse
import statistics
import sys

import torch
from bursts import cpu_name, measure

import qkv
import qkv.torch

HEADS, WIDTH = 8, 64


def calls_for(tokens):
    x = torch.randn(1, tokens, HEADS * WIDTH)
    before = torch.nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
    after = torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
    projected = torch.randn(1, tokens, 3 * HEADS * WIDTH)
    merged = torch.randn(1, tokens, HEADS * WIDTH)

    def attend(projected):
        heads = projected.view(1, tokens, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        out = qkv.torch.attention(*heads)
        return out.transpose(1, 2).reshape(1, tokens, HEADS * WIDTH)

    return {
        "layers": lambda: (before(x), after(merged)),
        "attention": lambda: attend(projected),
        "loop": lambda: after(attend(before(x))),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--own-workers", action="store_true")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256, 1024])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    if options.own_workers:
        qkv.torch.share_workers(False)
        qkv.set_threads(options.threads)
    print(f"{cpu_name()}; PyTorch {torch.__version__}, {options.threads} threads")
    print(f"{'tokens':>6} {'layers us':>10} {'attention us':>13} {'loop us':>9} {'ratio':>6}")
    with torch.no_grad():
        for tokens in options.tokens:
            calls = calls_for(tokens)
            times = measure(calls, options.rounds, 0.05)
            layers, attention, loop = (times[name] for name in ("layers", "attention", "loop"))
            ratio = statistics.median(l / (a + b) for a, b, l in zip(layers, attention, loop))
            columns = (1e6 * statistics.median(each) for each in (layers, attention, loop))
            print("{:6} {:10.0f} {:13.0f} {:9.0f}".format(tokens, *columns), f"{ratio:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
