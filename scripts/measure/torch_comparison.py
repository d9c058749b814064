#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs with PyTorch's attention and with qkv's: calls, training steps, generation.

usage: torch_comparison.py [--tables calls,decode,models] [--threads 2] [--rounds 9] [--burst 0.05]
                           [--tokens 128 512 2048] [--only TEXT] [-o RESULTS.json]

Runs in an environment that has qkv, PyTorch and, for the models, Hugging Face Transformers. A table
whose packages are missing is left out, with the command that installs them. Calls are of
`scaled_dot_product_attention`, PyTorch's and qkv.torch's, with the same tensors; results, and
gradients where they are measured, are compared first. Then both alternate in bursts, with a pause
after each. Times are medians over the rounds; ratios are medians of each round's ratio, PyTorch's
time over qkv's: above 1, qkv's is shorter. "After a layer" is the same ratio where each call
directly follows a linear layer of PyTorch, 512 x 512 x 512, whose workers still spin.

The models are made from a configuration, with random parameters. A training step is a forward pass,
a backward pass and an update; "eager" and "sdpa" are Transformers' own implementations. A row is
printed when it is measured; -o writes all rows as JSON, which scripts/benchmarks.py reads.
"""

import argparse
import statistics
import sys
import time

import torch
from bursts import Busy, measure
from reports import Report, names_of
from torch_calls import call_cases, decode_cases

import qkv
import qkv.torch

# The allowed error relative to the largest number. A bfloat16 has 8 significant bits.
LARGEST_ERROR = {torch.float32: 1e-4, torch.bfloat16: 4e-2}


def check(case):
    """Raises ValueError if a result of the two calls differs by more than LARGEST_ERROR."""
    if case.random:
        return
    for ours, theirs in zip(case.results(case.ours), case.results(case.theirs), strict=True):
        ours, theirs = ours.float(), theirs.float()
        error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        if not error <= LARGEST_ERROR[case.dtype]:
            raise ValueError(f"{case.name}: results differ by {error:.1e} of the largest")


def after_layer(calls, seconds):
    """The median seconds of each call directly after a layer of PyTorch."""
    x, layer = torch.randn(512, 512), torch.nn.Linear(512, 512)
    times = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["ours"]) < 5:
        for name, call in calls.items():
            with torch.no_grad():
                layer(x)
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(series) for name, series in times.items()}


def ratio(times, other, ours):
    return statistics.median(a / b for a, b in zip(times[other], times[ours]))


def add_call(report, name, case, options):
    check(case)
    calls = {"ours": case.ours, "theirs": case.theirs}
    busy = Busy()
    times = measure(calls, options.rounds, options.burst)
    after = after_layer(calls, options.rounds * options.burst)
    report.add(
        f"{name}/{case.name}-{str(case.dtype).removeprefix('torch.')}",
        seconds=statistics.median(times["ours"]),
        ratio=ratio(times, "theirs", "ours"),
        after_layer=after["theirs"] / after["ours"],
        busy=busy.share(),
    )


def add_model(report, name, case, options):
    for call in case.calls.values():
        call()
    busy = Busy()
    times = measure(case.calls, options.rounds, options.burst)
    report.add(
        f"{name}/{case.name}",
        seconds=statistics.median(times["qkv"]),
        ratios={other: ratio(times, other, "qkv") for other in case.calls if other != "qkv"},
        busy=busy.share(),
    )


def model_cases(_options):
    from torch_models import cases  # imported only for this table, since it needs Transformers

    return cases()


TABLES = {
    "calls": (add_call, lambda options: call_cases(options.tokens)),
    "decode": (add_call, lambda _options: decode_cases()),
    "models": (add_model, model_cases),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=names_of(TABLES), default=[*TABLES])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--burst", type=float, default=0.05)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    report = Report(
        threads=options.threads, rounds=options.rounds, burst=options.burst,
        versions={"PyTorch": torch.__version__, "qkv": qkv.__version__},
    )  # fmt: skip
    for name in options.tables:
        add, cases_of = TABLES[name]
        try:
            cases = cases_of(options)
        except ImportError as error:
            print(f"left out: {name}: {error}; pip install transformers==5.24.0")
            continue
        for case in cases:
            if options.only in case.name:
                add(report, name, case, options)
    if options.output:
        report.write(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
