#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention beside PyTorch, ONNX Runtime, OpenVINO, JAX and llama.cpp, in one process.

usage: peers.py [--cases decode,prefill,backward,bf16] [--libraries torch,onnxruntime,...]
                [--threads 2] [--rounds 9] [--burst 0.05] [--quick] [-o RESULTS.json]

Runs in an environment that has qkv, NumPy and ml_dtypes, and installs nothing: a missing library is
named, with the command that installs it. The cases "decode", "prefill" and "backward" (forward and
backward pass together) are float32, "bf16" is all three in bfloat16. A row is printed when it is
measured; -o writes all rows as JSON, which scripts/benchmarks.py reads.

All libraries take the same random numbers and `--threads` threads. First, results are compared with
qkv's: the largest difference, relative to the largest number. If a library can compute a case in
several ways, the fastest is used, and named. Then all alternate in bursts, with a pause after
each, since most libraries' workers spin for milliseconds after a call. Times are medians over the
rounds; ratios are medians of each round's ratio, the other library's time over qkv's. "After a
layer" is what a PyTorch program sees: each call directly follows one of PyTorch's linear layer,
512 x 512 x 512. Decoding takes turns between copies of K and V, together four times the last-level
cache or more, and alternates with a plain read of the same bytes. "busy" gives the number of
processors that other programs took while a row was measured: repeat it on a quiet machine.

Ways: "folded" means that the query heads that share a key head are passed as rows of one head;
"expanded" and "broadcast" that key heads are repeated, by a stride of 0 or in the graph;
"[B,H,T,D]" that JAX transposes in the compiled function; MHA and GQA are ONNX Runtime's
MultiHeadAttention and GroupQueryAttention; "bf16" and "f16" are the types of llama.cpp's keys and
values, while its queries are float32.
"""

import argparse
import concurrent.futures
import itertools
import os
import pathlib
import statistics
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from bursts import measure, others_seconds, seconds_of
from peer_arrays import Jax, Ours, Torch
from peer_case import Case, NotOffered, aligned
from peer_graphs import Llama, OnnxRuntime, OpenVino
from reports import Report, names_of

LIBRARIES = {
    "torch": Torch,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "jax": Jax,
    "llama": Llama,
}
CACHES = [  # B, H, G, Tq, Tk, D
    (1, 32, 8, 1, 8192, 128),
    (8, 32, 8, 1, 2048, 128),
    (1, 8, 8, 1, 8192, 64),
    (1, 32, 8, 4, 8192, 128),
]
SQUARES = [  # kind, T, D, causal; B = 1, H = G = 8
    (kind, T, D, causal)
    for kind in ("prefill", "backward")
    for T in (512, 2048)
    for D in (64, 128)
    for causal in (False, True)
]
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
# The allowed error relative to the largest number. A bfloat16 has 8 significant bits, and some
# libraries also sum in 16 bits.
LARGEST_ERROR = {"float32": 1e-4, "bfloat16": 4e-2}


# The pause in seconds after a burst. Worker threads spin after a call, in case another one follows:
# ONNX Runtime's for 30 ms and OpenMP's (PyTorch, llama.cpp) for 5 ms, by the process's CPU time.
PAUSE = 0.04
QUICK_T = 512
BUSY = 0.1  # the processors that other programs may take before a row says so


class Choice(NamedTuple):
    """A library's fastest way for a case."""

    name: str
    call: Any
    seconds: float


def cases(names, quick):
    plain = [Case("decode", *cache) for cache in CACHES]
    plain += [
        Case(kind, 1, 8, 8, T, T, D, "float32", causal)
        for kind, T, D, causal in SQUARES
        if T <= QUICK_T or not quick
    ]
    chosen = [case for case in plain if case.kind in names]
    if "bf16" in names:
        chosen += [case._replace(dtype="bfloat16") for case in plain]
    return chosen


def last_cache_bytes():
    sizes = pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(size.read_text().strip().rstrip("K")) << 10 for size in sizes), default=1 << 25)


def key_bytes(case):
    return 2 * case.B * case.G * case.Tk * case.D * (2 if case.is_bf16 else 4)


def inputs(case, random):
    """The arrays of a case; for decoding several copies, each with other numbers."""
    copies = 1
    if case.kind == "decode":
        copies = -(-4 * last_cache_bytes() // key_bytes(case))

    def normal(shape):
        return aligned(random.standard_normal(shape, np.float32).astype(DTYPES[case.dtype]))

    return [{name: normal(s) for name, s in case.shapes().items()} for _ in range(copies)]


def in_turn(calls):
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def fault(results, wanted, most):
    """How the results differ from `wanted`, in words; "" if they agree to `most`."""
    if len(results) != len(wanted):
        return f"{len(results)} results, not {len(wanted)}"
    for name, found, want in zip(("out", "dq", "dk", "dv"), results, wanted):
        want = np.asarray(want, np.float32)
        found = np.asarray(found, np.float32).reshape(want.shape)
        error = np.abs(found - want).max() / np.abs(want).max()
        if not error <= most:
            return f"{name} differs by {error:.1e} of the largest"
    return ""


def bound(make, copies, wanted, most):
    """A call that takes the copies in turn. Raises ValueError if a copy's results are wrong."""
    bind = make()
    calls = []
    for x, want in zip(copies, wanted):
        call, read = bind(x)
        wrong = fault(read(call()), want, most)
        if wrong:
            raise ValueError(wrong)
        calls.append(call)
    return in_turn(calls)


def words(error):
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def fastest(ways, make_call, burst):
    """The fastest of the ways, if any, and what was wrong with others."""
    best, faults = None, []
    for name, make in ways.items():
        try:
            call = make_call(make)
            seconds = min(seconds_of(call, burst) for _ in range(2))
        except Exception as error:  # any error is noted for the library
            faults.append(f"{name}: {words(error)}" if name else words(error))
            continue
        time.sleep(PAUSE)
        if best is None or seconds < best.seconds:
            best = Choice(name, call, seconds)
    return best, faults


def plain_reads(copies, threads, torch):
    """Ways to read the memory of K and V: for each way a list of calls, one for each copy."""
    pool = concurrent.futures.ThreadPoolExecutor(threads)

    def maxima(x):
        parts = [np.array_split(x[name].view(np.int32).ravel(), threads) for name in "kv"]
        return lambda: list(pool.map(lambda *both: [part.max() for part in both], *parts))

    def sums(x):
        tensors = [torch.torch.from_numpy(x[name].view(np.int64)) for name in "kv"]
        return lambda: [tensor.sum() for tensor in tensors]

    ways = {"NumPy's max of int32, each thread a part": [maxima(x) for x in copies]}
    return ways | ({"PyTorch's sum of int64": [sums(x) for x in copies]} if torch else {})


class Row:
    """A measured case: the times of each library, and notes on libraries."""

    def __init__(self, case, libraries, options, random):
        self.case, self.notes = case, {}
        copies = inputs(case, random)
        ours = libraries["qkv"].ways(case)[""]()
        pairs = [ours(x) for x in copies]
        wanted = [read(call()) for call, read in pairs]
        most = LARGEST_ERROR[case.dtype]
        choices = {"qkv": Choice("", in_turn([call for call, _ in pairs]), 0)}
        for name, library in libraries.items():
            if name != "qkv":
                make_call = partial(bound, copies=copies, wanted=wanted, most=most)
                choice = self.choose(name, library, make_call, options)
                choices |= {name: choice} if choice else {}
        if case.kind == "decode":
            reads = plain_reads(copies, options.threads, libraries.get("torch"))
            choices["read"], _ = fastest(reads, in_turn, options.burst)
        calls = {name: choice.call for name, choice in choices.items()}
        self.ways = {name: choice.name for name, choice in choices.items()}
        begin, others = time.perf_counter(), others_seconds()
        self.times = measure(calls, options.rounds, options.burst, PAUSE)
        self.after = {}
        if "torch" in calls:
            self.after = after_layer(libraries["torch"].layer(), calls, options)
        self.others = (others_seconds() - others) / (time.perf_counter() - begin)

    def choose(self, name, library, make_call, options):
        try:
            ways = library.ways(self.case)
        except NotOffered as error:
            self.notes[name] = [str(error)]
            return None
        best, self.notes[name] = fastest(ways, make_call, options.burst)
        return best

    def seconds(self, name="qkv"):
        return statistics.median(self.times[name])

    def ratio(self, name):
        return statistics.median(a / b for a, b in zip(self.times[name], self.times["qkv"]))


def after_layer(layer, calls, options):
    """Median seconds of qkv's and of PyTorch's attention directly after a layer of PyTorch."""
    times = {name: [] for name in ("qkv", "torch")}
    end = time.perf_counter() + options.rounds * options.burst
    while time.perf_counter() < end or len(times["qkv"]) < 5:
        for name in times:
            layer()
            begin = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(series) for name, series in times.items()}


# ---- what is reported ----------------------------------------------------------------------------


def work(case):
    """The floating-point operations of the unmasked pairs.

    A pair takes two products of 2 D operations in the forward pass and five in the backward pass.
    """
    pairs = case.Tq * (case.Tq + 1) // 2 if case.causal else case.Tq * case.Tk
    return (14 if case.kind == "backward" else 4) * case.B * case.H * pairs * case.D


def name_of(case):
    sizes = "-".join(f"{name}{getattr(case, name)}" for name in ("B", "H", "G", "Tq", "Tk", "D"))
    causal = "-causal" if case.causal else ""
    return f"{case.kind}/{sizes}{causal}-{case.dtype}"


def add(report, row, libraries):
    case, seconds = row.case, row.seconds()
    figures = {"seconds": seconds}
    if case.kind == "decode":
        figures["rate"] = key_bytes(case) / seconds
        figures["share_of_read"] = row.ratio("read")
        figures["read"] = row.ways["read"]
    else:
        figures["rate"] = work(case) / seconds
    others = [name for name in row.ways if name not in ("qkv", "read")]
    figures["ratios"] = {libraries[name].label: row.ratio(name) for name in others}
    figures["ways"] = {libraries[name].label: row.ways[name] for name in others if row.ways[name]}
    if row.after:
        figures["after_layer"] = row.after["qkv"] / seconds
        figures["after_layer_torch"] = row.after["torch"] / row.after["qkv"]
    if row.others > BUSY:
        figures["busy"] = row.others
    notes = {libraries[name].label: "; ".join(text) for name, text in row.notes.items() if text}
    report.add(name_of(case), **figures, notes=notes or None)


# ---- the run -------------------------------------------------------------------------------------


def load(names, threads):
    """The installed libraries, and the names of others with the commands that install them."""
    libraries, missing = {"qkv": Ours(threads)}, []
    for name in names:
        try:
            libraries[name] = LIBRARIES[name](threads)
        except (ImportError, OSError, AttributeError) as error:  # or from a library that it loads
            needs = " ".join(LIBRARIES[name].needs)
            missing.append(f"{LIBRARIES[name].label} ({words(error)}): pip install {needs}")
    return libraries, missing


def parsed():
    kinds = ["decode", "prefill", "backward", "bf16"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=names_of(kinds), default=kinds)
    parser.add_argument("--libraries", type=names_of(LIBRARIES), default=[*LIBRARIES])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--burst", type=float, help="seconds")
    parser.add_argument(
        "--quick", action="store_true", help="3 bursts of 20 ms, not 9 of 50; no T = 2048"
    )
    parser.add_argument("-o", "--output", type=pathlib.Path, help="write the rows there, as JSON")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 9)
    options.burst = options.burst or (0.02 if options.quick else 0.05)
    return options


def main():
    options = parsed()
    # The processors are limited before a library starts its threads: JAX starts one for each.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    libraries, missing = load(options.libraries, options.threads)
    versions = {name: text for one in libraries.values() for name, text in one.versions.items()}
    target = libraries["qkv"].qkv.info()["cpu_target"]
    report = Report(
        threads=options.threads, cpu_target=target, versions=versions, missing=missing,
        rounds=options.rounds, burst=options.burst, quick=options.quick,
    )  # fmt: skip
    random = np.random.default_rng(1)
    for case in cases(options.cases, options.quick):
        add(report, Row(case, libraries, options, random), libraries)
    if options.output:
        report.write(options.output)


if __name__ == "__main__":
    sys.exit(main())
