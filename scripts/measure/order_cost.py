#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what two rules of the order of summation cost: sums over channels in blocks of 64, and
tasks that add to shared rows in ascending order. Compares the program with a copy that sums up to
256 channels without blocks, and in which tasks add as soon as they can. The copy keeps all other
rules.

Builds both in build/order_cost, and runs `qkv bench GROUP` of each in turns. Both runs measure a
baseline between their calls: the peak of multiply-adds, in decode a plain read. A ratio above 1
means that the copy is faster: it is the share of the baseline that the copy reaches over the share
that the program reaches, each the median of the rounds. Rows of at most 64 channels on one thread
run the same code in both, so that their ratios show the noise. The copy's results have other bits,
but pass the checks that precede measurements."""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess

from reports import CHECKOUT, Report, names_of

BUILDS = CHECKOUT / "build/order_cost"
GROUPS = ("forward", "backward", "decode")
CHANGES = {
    "src/core/order.h": [("kChannelBlock = 64;", "kChannelBlock = 256;")],
    # Keys of 8 bits are unpacked in blocks of 64 channels, also in the copy.
    "src/kernels/q8_keys-inl.h": [("core::kChannelBlock", "64")],
    "src/runtime/task_order.h": [
        ("next_[thing] = number;", "next_[thing] = 0 * number;"),
        # Becomes a lock that tasks take in any order.
        (
            "next.load(std::memory_order_acquire) != number",
            "next.exchange(1, std::memory_order_acquire) != 0 * number",
        ),
        ("store(number + 1,", "store(0 * number,"),
    ],
}


def copy_files(to):
    """Copies the files that git tracks, with CHANGES. Does not write equal files, so that a build
    compiles only what changed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0")[:-1]:
        source, copy = CHECKOUT / name, to / name
        if not source.is_file():
            continue
        content = source.read_bytes()
        for old, new in CHANGES.get(name, ()):
            if old.encode() not in content:
                raise SystemExit(f"order_cost: {name} does not have {old!r}")
            content = content.replace(old.encode(), new.encode())
        if not copy.is_file() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            shutil.copymode(source, copy)


def build(source, to):
    options = ["-DQKV_TESTS=OFF", "-DQKV_CUDA=OFF", "-DQKV_MPI=OFF"]
    subprocess.run(["cmake", "--preset", "release", "-B", to, *options], cwd=source, check=True)
    subprocess.run(["cmake", "--build", to, "--target", "qkv_tool"], check=True)
    return to / "bin/qkv"


def shares(program, group, seconds):
    """{row: share of the baseline} of a group, without the rows that are noisy."""
    command = [program, "bench", group, "--seconds", str(seconds), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found = {}
    for name, row in json.loads(done.stdout)["rows"].items():
        share = row.get("share_of_peak") or row.get("share_of_read")
        if share:
            found[name] = share
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--groups", type=names_of(GROUPS), default=["forward", "backward", "decode"]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each row (default 0.5)")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="a JSON file for bench/results")
    args = parser.parse_args()
    copy_files(BUILDS / "copy")
    programs = {
        "ordered": build(CHECKOUT, BUILDS / "ordered"),
        "unconstrained": build(BUILDS / "copy", BUILDS / "unconstrained"),
    }
    report = Report(rounds=args.rounds, seconds=args.seconds)
    for group in args.groups:
        found = {name: [] for name in programs}
        for _ in range(args.rounds):
            for name, program in programs.items():
                found[name].append(shares(program, group, args.seconds))
        for row in found["ordered"][0]:
            got = {
                name: [each[row] for each in rounds if row in each]
                for name, rounds in found.items()
            }
            if min(map(len, got.values())) * 2 <= args.rounds:
                continue
            medians = {name: statistics.median(values) for name, values in got.items()}
            ratio = medians["unconstrained"] / medians["ordered"]
            spread = max(
                (max(values) - min(values)) / medians[name] for name, values in got.items()
            )
            if spread <= 0.1:  # otherwise other programs disturbed the measurement
                report.add(row, ratio=ratio, spread=spread, **medians)
        ratios = [row["ratio"] for name, row in report.rows.items() if name.startswith(group)]
        if not ratios:
            raise SystemExit(f"order_cost: no row of {group} was quiet in most rounds")
        median, most, least = statistics.median(ratios), max(ratios), min(ratios)
        report.add(f"all/{group}", ratio=median, largest=most, smallest=least)
    if args.output:
        report.write(args.output)


if __name__ == "__main__":
    main()
