#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how near P processes (MPI's ranks) come to P times the speed of one, the ideal.

usage: rank_speed.py BUILD [--ranks P | --hosts H,H] [--turns N] [attention | training]

BUILD is a build folder with MPI (build/release). Each rank has one thread and runs on this machine,
or with --hosts on a host of its own:
  scripts/measure/two_hosts.sh 1gbit scripts/measure/rank_speed.py build/release --hosts one,two
Turns of one rank and of P ranks alternate; figures are medians, with the smallest and the largest.
The share of the ideal is the time of one rank / (P times the time of P ranks).
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

OPEN_MPI = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "core"]
SEQUENCE = {"T": 16384, "H": 8, "D": 64}
ZIGZAGS = 4


hosts = []  # where the ranks run; empty: all on this machine


def launcher(ranks):
    if hosts:
        return ["mpirun", "--host", ",".join(f"{host}:1" for host in hosts[:ranks])]
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    return ["mpirun", *(OPEN_MPI if "Open MPI" in version else []), "-n", str(ranks)]


def shown(values):
    return f"{statistics.median(values):.3f} s ({min(values):.3f} to {max(values):.3f})"


def report(name, one, several, ranks):
    share = statistics.median(one) / (ranks * statistics.median(several))
    print(f"{name}: 1 rank {shown(one)}, {ranks} ranks {shown(several)}: {100 * share:.1f} % of ideal", flush=True)


def ring(build, ranks, causal, rounds):
    program = pathlib.Path(build) / "bench" / "ring_speed"
    words = [*launcher(ranks), program, SEQUENCE["T"], SEQUENCE["H"], SEQUENCE["D"], ZIGZAGS, causal, rounds]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def attention(build, ranks, turns):
    """Prints times of forward and backward passes, rank 0's memory, and the speed of messages."""
    print(f"float32, B = 1, {SEQUENCE}, {ZIGZAGS} zigzags, {turns} turns of 2 rounds")
    for causal in (1, 0):
        results = {1: [], ranks: []}
        for _ in range(turns):
            for count in results:
                results[count].append(ring(build, count, causal, 2))
        for direction in ("forward", "backward"):
            one, several = ([second for run in results[count] for second in run[direction]] for count in results)
            report(f"{'causal' if causal else 'all pairs'}, {direction}", one, several, ranks)
        for count, runs in results.items():
            before, after = runs[-1]["peak_kib"][:2]
            print(f"  peak memory of rank 0 of {count}: {after / 1024:.0f} MiB, {before / 1024:.0f} MiB of it "
                  "before the first call")
        last = results[ranks][-1]
        print(f"  messages: {1e6 * last['latency']:.1f} us, {last['bytes_per_second'] / 1e9:.2f} GB/s")


def training(build, ranks, turns):
    program = pathlib.Path(build).resolve() / "bin" / "qkv"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "gen", "dates", "-n", "40000", "-o", f"{folder}/dates.tsv"], check=True)
        for tokens in (16384, 65536):
            settings = ["--batch-tokens", str(tokens), "--after", "12u", "--threads", "1", "--progress", "never"]
            seconds = {1: [], ranks: []}
            for turn in range(turns):
                for count, times in seconds.items():
                    run = f"{folder}/run{tokens}.{count}.{turn}"
                    subprocess.run([*launcher(count), program, "train", f"{folder}/dates.tsv", "-o", run, *settings],
                                   capture_output=True, check=True)
                    line = json.loads(pathlib.Path(run, "train.jsonl").read_text(encoding="utf-8").splitlines()[-1])
                    times.append(line["seconds"] / line["update"])
                models = [pathlib.Path(f"{folder}/run{tokens}.{count}.{turn}/model.safetensors").read_bytes()
                          for count in seconds]
                assert models[0] == models[1], "the parameters differ"
            print(f"qkv gen dates -n 40000; qkv train {' '.join(settings)}: seconds of an update, {turns} turns")
            report("training", *seconds.values(), ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("what", nargs="?", choices=("attention", "training"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=lambda names: names.split(","), default=[])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    hosts.extend(options.hosts)
    options.ranks = len(hosts) or options.ranks
    if options.ranks < 2:
        parser.error("there must be two ranks or more, which are compared with one")
    for name, measure in (("attention", attention), ("training", training)):
        if options.what in (None, name):
            measure(options.build, options.ranks, options.turns)


if __name__ == "__main__":
    main()
