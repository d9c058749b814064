#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the figures in the documents with the measurements they come from.

usage: figures.py [ROOT]     README.md and docs/**/*.md of a checkout (default: this one)
       figures.py --self-test

A benchmark figure follows a mark that names a file of bench/results/ (without .json), a
row of it ("-": the file itself) and a key ("base.best_rate" is nested), on one line:

    reaches <!-- bench: xeon forward/T2048-D64 share_of_peak -->84.3 % of the peak

The figure is the key's number rounded to as many digits, in one of the units below, or a
text, optionally in backticks. Exit 1 if one differs, a file, row or key is unknown, a mark
is not followed by a figure, or there are results but no figures.
"""

import json
import pathlib
import re
import sys
import tempfile

# Factors for the number in the file.
UNITS = {
    "%": 100,
    "x": 1, "×": 1, "": 1,
    "s": 1, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9,
    "GFLOP/s": 1e-9, "GB/s": 1e-9, "G/s": 1e-9,
    "B": 1, "KiB": 2**-10, "MiB": 2**-20, "GiB": 2**-30,
}
MARK = re.compile(r"<!--\s*bench\b:?(.*?)-->")
UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True) if unit)
NUMBER = re.compile(rf"\s*\**(\d[\d,]*(?:\.(\d+))?)(?:\s?({UNIT})(?![A-Za-z/]))?")


class Wrong(Exception):
    """A fault of a figure, as text for the reader."""


def load(root, name):
    path = root / "bench/results" / f"{name}.json"
    if not path.is_file():
        raise Wrong(f"there is no bench/results/{name}.json")
    report = json.loads(path.read_text(encoding="utf-8"))
    if report.get("quick"):
        raise Wrong(f"bench/results/{name}.json is of a quick run")
    return report


def look_up(report, row, key):
    """The value in the file: a number or a text."""
    value = report
    if row != "-":
        value = report["rows"].get(row)
        if value is None:
            raise Wrong(f"no row {row}; there are {', '.join(report['rows'])}")
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise Wrong(f"row {row} has no key {key}")
        value = value[part]
    if isinstance(value, (dict, list, bool)):
        raise Wrong(f"{key} of row {row} is not a figure")
    if value is None:
        raise Wrong(f"{key} of row {row} has no value: the measurement was noisy or wrong")
    return value


def compare_number(text, value):
    found = NUMBER.match(text)
    if not found:
        raise Wrong(f"no figure behind the mark, but {text[:20]!r}")
    number, decimals, unit = found.groups()
    scaled = f"{value * UNITS[unit or '']:.{len(decimals or '')}f}"
    if number.replace(",", "") != scaled:
        raise Wrong(f"{found.group().strip()}, but the measurement is {scaled} {unit or ''}".strip())


def compare_text(text, value):
    shown = text.lstrip(" *`")
    if not shown.startswith(value):
        raise Wrong(f"{shown[:len(value)]!r}, but the file has {value!r}")


def check_mark(root, words, text):
    """Raises Wrong if the text after a mark is not what the mark names."""
    if len(words) != 3:
        raise Wrong("a mark names a file, a row and a key")
    name, row, key = words
    value = look_up(load(root, name), row, key)
    if isinstance(value, str):
        compare_text(text, value)
    else:
        compare_number(text, value)


def check(root):
    """The number of figures, and their faults, as text."""
    figures, faults = 0, []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for mark in MARK.finditer(line):
                figures += 1
                try:
                    check_mark(root, mark.group(1).split(), line[mark.end():])
                except Wrong as wrong:
                    faults.append(f"{path.relative_to(root)}:{number}: {wrong}")
    if not figures and any((root / "bench/results").glob("*.json")):
        faults.append("bench/results has measurements, and no document has a figure of them")
    return figures, faults


# ---- the check's own test -----------------------------------------------------------------------

RESULTS = {
    "commit": "abc1234",
    "quick": False,
    "rows": {
        "forward/T1": {"share_of_peak": 0.8437, "median": 0.00123, "scratch": 1153434,
                       "base": {"best_rate": 2.5e11}},
        "noisy/row": {"share_of_peak": None},
    },
}
GOOD = [
    "is <!-- bench: a forward/T1 share_of_peak -->84 % of it",
    "is <!-- bench: a forward/T1 share_of_peak --> **84.4 %** of it",
    "<!--bench: a forward/T1 median-->1.23 ms and <!-- bench: a forward/T1 scratch -->1.1 MiB",
    "| <!-- bench: a forward/T1 base.best_rate -->250 GFLOP/s | 1 |",
    "| <!-- bench: a forward/T1 base.best_rate -->250.0 G/s (i,j,u) |",
    "<!-- bench: a forward/T1 scratch -->1,153,434 bytes",
    "<!-- bench: a forward/T1 share_of_peak -->0.84x; commit <!-- bench: a - commit -->`abc1234`",
]
# A line, and what its fault must say.
WRONG = [
    ("<!-- bench: a forward/T1 share_of_peak -->85 %", "the measurement is 84 %"),
    ("<!-- bench: a forward/T1 share_of_peak -->84.3 %", "the measurement is 84.4 %"),
    ("<!-- bench: a forward/T1 share_of_peak -->84", "the measurement is 1"),
    ("<!-- bench: a forward/T1 median -->1.23 s", "the measurement is 0.00 s"),
    ("<!-- bench: a forward/T1 share_of_peak --> of the peak", "no figure behind the mark"),
    ("84 %<!-- bench: a forward/T1 share_of_peak -->", "no figure behind the mark"),
    ("<!-- bench: a forward/T2 share_of_peak -->84 %", "no row forward/T2"),
    ("<!-- bench: a forward/T1 shares -->84 %", "has no key shares"),
    ("<!-- bench: a forward/T1 base -->84 %", "is not a figure"),
    ("<!-- bench: a noisy/row share_of_peak -->84 %", "noisy or wrong"),
    ("<!-- bench: b forward/T1 share_of_peak -->84 %", "no bench/results/b.json"),
    ("<!-- bench: quick forward/T1 share_of_peak -->84 %", "of a quick run"),
    ("<!-- bench: a forward/T1 -->84 %", "a file, a row and a key"),
    ("<!-- bench a forward/T1 share_of_peak -->85 %", "the measurement is 84 %"),
    ("commit <!-- bench: a - commit -->abd1234", "the file has 'abc1234'"),
    ("no mark at all", "no document has a figure"),
]


def faults_of(line):
    """The faults of a checkout whose only document is this line."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / "bench/results").mkdir(parents=True)
        (root / "bench/results/a.json").write_text(json.dumps(RESULTS), encoding="utf-8")
        (root / "bench/results/quick.json").write_text(
            json.dumps({**RESULTS, "quick": True}), encoding="utf-8")
        (root / "docs/deep").mkdir(parents=True)
        (root / "docs/deep/page.md").write_text(line + "\n", encoding="utf-8")
        return check(root)[1]


def self_test():
    failures = 0
    for line, reason in [*((line, None) for line in GOOD), *WRONG]:
        faults = faults_of(line)
        right = not faults if reason is None else len(faults) == 1 and reason in faults[0]
        if not right:
            failures += 1
            print(f"self-test: {line}: wanted {reason or 'no fault'}, got {faults}")
    print(f"self-test: {len(GOOD)} good and {len(WRONG)} wrong lines, {failures} failures")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
    figures, faults = check(root)
    for fault in faults:
        print(fault)
    print(f"{figures} figures, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
