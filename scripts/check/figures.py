#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the figures in the documents, and that the files that documents and sources name exist.

usage: figures.py [ROOT]     README.md and docs/**/*.md of a checkout (default: this one)
       figures.py --self-test

Figures of speed stand in the pages docs/benchmarks-*.md, whose tables scripts/benchmarks.py makes
from bench/results/. Elsewhere a figure with a unit of speed, or a ratio such as 1.15 x, must follow
a mark, which names a file of bench/results/ (without .json), a row of it ("-": the file itself) and
a key ("base.best_rate" is nested), on one line:

    reaches <!-- bench: xeon forward/T2048-D64 share_of_peak -->84.3 % of the peak

The figure behind the mark is the key's number in one of UNITS, rounded to the decimals shown, or
the key's text, optionally in backticks. No two marks name the same key of a row. Exit 1 if a figure
differs, is in a second place or has no mark; if a file, row or key is unknown; if a table is not
that of bench/results/; or if a file that is named does not exist (named_files.py).
"""

import json
import pathlib
import re
import shutil
import sys
import tempfile

import named_files

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import benchmarks  # noqa: E402

# By unit: the factor from the number in the file to the figure.
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


# A figure of speed in running text. 2 x 3 is a size, not a speed.
SPEED = re.compile(
    r"(?<![\w.])\d[\d.,]*\s?(?:[GT]FLOP/s|G/s|[GM]B/s|ms|us|µs|ns)\b"
    r"|(?<![\w.])\d+\.\d+ ?[x×](?! ?\d)(?![\w])"
    r"|(?<![\w.])\d[\d.,]* times (?:as fast|faster|slower|the (?:speed|rate|time))")
CODE = re.compile(r"`[^`]*`")


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


def check_line(root, name, line, seen):
    """(number of figures, faults as text) of a line. `seen` has the document of each mark so far;
    the line's marks are added."""
    figures, faults = 0, []
    for mark in MARK.finditer(line):
        figures += 1
        words = mark.group(1).split()
        try:
            check_mark(root, words, line[mark.end():])
            if tuple(words) in seen:
                raise Wrong(f"this figure already stands in {seen[tuple(words)]}")
            seen[tuple(words)] = name
        except Wrong as wrong:
            faults.append(str(wrong))
    return figures, faults


def unmarked(line):
    """Figures of speed in a line that follow no mark."""
    marked = [mark.end() for mark in MARK.finditer(line)]
    hidden = CODE.sub(lambda code: " " * len(code.group()), line)
    return [found.group() for found in SPEED.finditer(hidden)
            if not any(line[end:found.start()].strip(" *") == "" for end in marked
                       if end <= found.start())]


def check(root):
    """The number of figures, and their faults, as text."""
    figures, faults, seen = 0, [], {}
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if not path.is_file():
            continue
        name = path.relative_to(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            count, wrong = check_line(root, name, line, seen)
            figures += count
            faults += [f"{name}:{number}: {text}" for text in wrong]
        if name.match("docs/benchmarks-*.md"):
            continue
        for number, line in named_files.text_lines(path.read_text(encoding="utf-8")):
            faults += [f"{name}:{number}: {text}: a figure of speed stands in docs/benchmarks-*.md, "
                       "or follows a mark" for text in unmarked(line)]
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
    "<!-- bench: a forward/T1 scratch -->1.1 MiB, 6 x 64 of 1.5 x 2, `--burst 3 ms`, in 20 s",
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
    ("<!-- bench: a forward/T1 scratch -->1.1 MiB, <!-- bench: a - commit -->`abc1234`, takes 3 ms",
     "3 ms: a figure of speed"),
    ("<!-- bench: a forward/T1 scratch -->1.1 MiB at 12.5 GB/s", "12.5 GB/s: a figure of speed"),
    ("<!-- bench: a forward/T1 scratch -->1.1 MiB is 1.15 x", "1.15 x: a figure of speed"),
    ("<!-- bench: a forward/T1 scratch -->1.1 MiB, 3 times faster", "3 times faster: a figure"),
    ("<!-- bench: a - commit -->`abc1234`\n<!-- bench: a - commit -->`abc1234`",
     "page.md:2: this figure already stands in docs/deep/page.md"),
    ("<!-- bench: a - commit -->`abc1234` <!-- bench: a - commit -->`abc1234`",
     "page.md:1: this figure already stands in docs/deep/page.md"),
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


# A document at docs/deep/page.md or a source, and what its fault must say: names of files.
NAMES = [
    ("[a](page.md), [b](#two-words), [c](../../README.md#top), `docs/deep/*.md`, `src/a.cc`\n"
     "# Two words\n```sh\ncat docs/none\n```\n`bench/results/CPU.json`", None),
    ("[a](none.md)", "docs/deep/page.md:1: there is no none.md"),
    ("[a](page.md#none)", "page.md has no section #none"),
    ("`src/b.cc`", "there is no src/b.cc"),
    ("`src/*.h`", "no file is src/*.h"),
    ("// see docs/deep/page.md#two-words", "has no section #two-words"),
    ("// see docs/none", "src/a.cc:1: there is no docs/none"),
    ("// see docs/deep/page, docs/deep", None),
]


def name_faults_of(text):
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / "docs/deep").mkdir(parents=True)
        (root / "src").mkdir()
        in_source = text.startswith("//")
        (root / "README.md").write_text("# Top\n", encoding="utf-8")
        (root / "docs/deep/page.md").write_text("" if in_source else text, encoding="utf-8")
        (root / "src/a.cc").write_text(text if in_source else "", encoding="utf-8")
        return named_files.faults(root)[1]


def table_faults():
    """(faults of three pages, faults of a right page). In the three a table differs, has an unknown
    name, and is missing."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / "docs").mkdir()
        (root / "bench").mkdir()
        (root / "bench/results").symlink_to(benchmarks.ROOT / "bench/results")
        (page, machine), *others = benchmarks.PAGES.items()
        for other, _ in others:
            shutil.copy(benchmarks.ROOT / "docs" / other, root / "docs" / other)
        found = []
        for text in ("<!-- table: layers -->\n| 1 |\n<!-- end -->\n",
                     "<!-- table: none -->\n<!-- end -->\n", "no table\n"):
            (root / "docs" / page).write_text(text, encoding="utf-8")
            found.append(benchmarks.faults(root))
        right = benchmarks.updated("<!-- table: layers -->\n<!-- end -->\n", machine)
        (root / "docs" / page).write_text(right, encoding="utf-8")
        return found, benchmarks.faults(root)


def self_test():
    failures = 0
    cases = [(line, None, faults_of(line)) for line in GOOD]
    cases += [(line, reason, faults_of(line)) for line, reason in WRONG]
    cases += [(text, reason, name_faults_of(text)) for text, reason in NAMES]
    wrong, none = table_faults()
    reasons = ("is not that of bench/results", "no table is named none", "no table")
    cases += [("a table", None, none)] + [("a table", *pair) for pair in zip(reasons, wrong)]
    for line, reason, faults in cases:
        right = not faults if reason is None else len(faults) == 1 and reason in faults[0]
        if not right:
            failures += 1
            print(f"self-test: {line}: wanted {reason or 'no fault'}, got {faults}")
    print(f"self-test: {len(cases)} cases, {failures} failures")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
    figures, faults = check(root)
    names, name_faults = named_files.faults(root)
    faults += name_faults + benchmarks.faults(root)
    for fault in faults:
        print(fault)
    print(f"{figures} figures, {names} names of files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
