#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks docs/exactness.md: each row of its matrix names tests and controls, and all of them exist.
Tests that README, the changelog and other pages name must exist, too.

usage: exactness.py [ROOT]
       exactness.py --self-test

A test is Suite.Name of GoogleTest, Class.test_name of Python, or the name of a test in a
CMakeLists.txt. The last line counts the tests.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = "docs/exactness.md"
NAME = re.compile(r"`(\w+\.\w+)`")
ELSEWHERE = re.compile(r"`([A-Z]\w*\.(?:[A-Z]\w*|test_\w+))`")  # not page.md, not qkv.f
GOOGLE = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+),\s*(\w+)\)", re.MULTILINE)
PYTHON = re.compile(r"^class (\w+)|^    def (test_\w+)", re.MULTILINE)
CMAKE = re.compile(r"add_test\(NAME ([\w.]+)")


def tests_of(root):
    """The names of all tests of a checkout."""
    found = set()
    for path in (root / "tests").rglob("*"):
        if path.suffix == ".cc":
            found |= {".".join(test) for test in GOOGLE.findall(path.read_text(encoding="utf-8"))}
        elif path.suffix == ".py":
            group = ""
            for name, test in PYTHON.findall(path.read_text(encoding="utf-8")):
                group = name or group
                found |= {f"{group}.{test}"} if test else set()
        elif path.name == "CMakeLists.txt":
            found |= set(CMAKE.findall(path.read_text(encoding="utf-8")))
    return found


def faults(text, tests):
    """(names of tests in the page, faults as text)."""
    names = NAME.findall(text)
    found = [f"there is no test {name}" for name in names if name not in tests]
    rows = [line for line in text.splitlines() if " | " in line][2:]  # without the head
    for row in rows:
        cells = row.split(" | ")
        controls = NAME.findall(cells[-1])
        if len(cells) != 4 or not NAME.findall(cells[2]):
            found.append(f"{cells[0]}: no test")
        elif not controls or not all(name.startswith("OrderControl.") for name in controls):
            found.append(f"{cells[0]}: no control")
    if not rows:
        found.append("there is no matrix")
    return names, found


def named_elsewhere(root):
    """(place, name) of each test that another page names."""
    pages = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]
    for page in pages:
        if page == root / PAGE or not page.is_file():
            continue
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            yield from ((f"{page.relative_to(root)}:{number}", name) for name in ELSEWHERE.findall(line))


def self_test():
    head = "what | bits | test | control\n--- | --- | --- | ---\n"
    row = "threads | all | `A.One` | `OrderControl.Two`\n"
    tests = {"A.One", "OrderControl.Two"}
    assert faults(head + row + row, tests) == (["A.One", "OrderControl.Two"] * 2, [])
    assert faults(head + row + row, {"A.One"})[1] == ["there is no test OrderControl.Two"] * 2
    assert faults(head, tests)[1] == ["there is no matrix"]
    for wrong, fault in (("`OrderControl.Two`", "no control"), ("`A.One`", "no test")):
        assert faults(head + row + row.replace(wrong, "none"), tests)[1] == [f"threads: {fault}"]
    assert {"PathOrder.DecodeIsPrefill", "portable.bits"} <= tests_of(ROOT)
    line = "`A.One`, `Class.test_two`, `page.md`, `qkv.Translator`, `ErrorKind::kType`, A.Three"
    assert ELSEWHERE.findall(line) == ["A.One", "Class.test_two"]
    assert "PathMemory.IsLinear" in {name for _, name in named_elsewhere(ROOT)}


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    tests = tests_of(root)
    names, found = faults((root / PAGE).read_text(encoding="utf-8"), tests)
    found = [f"{PAGE}: {fault}" for fault in found]
    for place, name in named_elsewhere(root):
        names.append(name)
        if name not in tests:
            found.append(f"{place}: there is no test {name}")
    for fault in found:
        print(fault)
    print(f"{len(names)} tests named, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
