#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layers of qkv beside torch.nn's, forward and backward with every gradient, in one process.

usage: layer_peers.py [--threads 2] [--rounds 9] [--burst 0.05] [--only TEXT ...] [-o RESULTS.json]

In an environment that has qkv and PyTorch. The layers have the same parameters and float32 inputs,
qkv as NumPy arrays, PyTorch as tensors; results and gradients are compared before they are timed.
Calls alternate in bursts, with a pause after each: OpenMP's workers spin for some milliseconds
after PyTorch's calls. Times are medians over the rounds; ratios are medians of each round's ratio,
PyTorch's time over qkv's. Page faults, the mean of 20 runs of qkv after the timed ones, show memory
that is newly taken from the system.
"""

import argparse
import resource
import statistics

import numpy as np
import torch
from bursts import measure
from reports import Report

import qkv

# B, T, width, heads
MULTI_HEAD = [
    (64, 30, 256, 8),
    (16, 128, 512, 8),
    (4, 512, 512, 8),
    (1, 2048, 512, 8),
    (8, 100, 100, 5),
]
# B, T, channels of x, hidden
GRU = [(32, 25, 32, 64), (64, 30, 256, 256), (128, 50, 128, 256), (16, 50, 256, 512)]
# rows, in, out
LINEAR = [(24, 224, 128), (400, 160, 192), (1536, 224, 128), (512, 512, 2048), (2048, 1024, 1024)]
LARGEST_ERROR = 1e-3  # of the largest number of each result


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


class Pair:
    """A layer of qkv and the equal one of PyTorch, with equal parameters. Each run is a forward
    and a backward pass."""

    def __init__(self, ours, theirs, x, forward_ours, forward_theirs):
        self.ours, self.theirs, self.x = ours, theirs, x
        self.forward_ours, self.forward_theirs = forward_ours, forward_theirs
        self.tensor = torch.from_numpy(x).requires_grad_(True)
        self.dout = normal(*forward_ours(x).shape)
        self.dout_tensor = torch.from_numpy(self.dout)

    def run_ours(self):
        out = self.forward_ours(self.x)
        return out, self.ours.backward(self.dout)

    def run_theirs(self):
        for parameter in self.theirs.parameters():
            parameter.grad = None
        self.tensor.grad = None
        out = self.forward_theirs(self.tensor)
        out.backward(self.dout_tensor)
        return out

    def check(self, names):
        out, gradients = self.run_ours()
        want = self.run_theirs()
        dx = gradients.dx if hasattr(gradients, "dx") else sum(gradients[:3])
        pairs = [("out", out, want), ("dx", dx, self.tensor.grad)]
        theirs = dict(self.theirs.named_parameters())
        for name, parts in names.items():
            got = np.concatenate([gradients.parameters[part] for part in parts])
            pairs.append((name, got, theirs[name].grad))
        for name, got, wanted in pairs:
            wanted = wanted.detach().numpy()
            error = np.abs(got - wanted).max() / np.abs(wanted).max()
            if not error <= LARGEST_ERROR:
                raise ValueError(f"{name}: {error:.1e} of the largest number")


def multi_head(batch, steps, width, heads):
    theirs = torch.nn.MultiheadAttention(width, heads, batch_first=True)
    ours = qkv.MultiHeadAttention(width, heads, dropout=0.0)
    ours.load_torch(theirs.state_dict())
    pair = Pair(
        ours,
        theirs,
        normal(batch, steps, width),
        lambda x: ours.forward(x, x, x),
        lambda x: theirs(x, x, x, need_weights=False)[0],
    )
    projections = [f"fc_{x}.weight" for x in "qkv"]
    return pair, {"in_proj_weight": projections, "out_proj.weight": ["fc_o.weight"]}


def gru(batch, steps, width, hidden):
    theirs = torch.nn.GRU(width, hidden, batch_first=True)
    ours = qkv.GRU(width, hidden)
    ours.load_torch(theirs.state_dict())
    pair = Pair(
        ours,
        theirs,
        normal(batch, steps, width),
        lambda x: ours.forward(x)[0],
        lambda x: theirs(x)[0],
    )
    return pair, {name: [name] for name, _ in theirs.named_parameters()}


def linear(rows, width, outputs):
    theirs = torch.nn.Linear(width, outputs)
    ours = qkv.Linear(width, outputs)
    ours.load_torch(theirs.state_dict())
    pair = Pair(ours, theirs, normal(rows, width), ours.forward, theirs)
    return pair, {"weight": ["weight"], "bias": ["bias"]}


def page_faults(call, count=20):
    call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--burst", type=float, default=0.05)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name has one of these")
    parser.add_argument("-o", help="write the rows there, as JSON")
    args = parser.parse_args()
    qkv.set_threads(args.threads)
    torch.set_num_threads(args.threads)
    cases = {
        "multi-head attention, {} x {} tokens, width {}, {} heads": (multi_head, MULTI_HEAD),
        "GRU, {} x {} tokens, {} to {}": (gru, GRU),
        "linear, {} rows, {} to {}": (linear, LINEAR),
    }
    report = Report(
        threads=args.threads, rounds=args.rounds, burst=args.burst,
        versions={"PyTorch": torch.__version__},
    )  # fmt: skip
    for words, (make, shapes) in cases.items():
        for shape in shapes:
            name = words.format(*shape)
            if args.only and not any(text in name for text in args.only):
                continue
            pair, names = make(*shape)
            pair.check(names)
            calls = {"ours": pair.run_ours, "theirs": pair.run_theirs}
            times = measure(calls, args.rounds, args.burst)
            report.add(
                name,
                seconds=statistics.median(times["ours"]),
                ratio=statistics.median(b / a for a, b in zip(times["ours"], times["theirs"])),
                page_faults=page_faults(pair.run_ours),
            )
    if args.o:
        report.write(args.o)


if __name__ == "__main__":
    main()
