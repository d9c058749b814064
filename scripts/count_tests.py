#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the tests in JUnit reports of ctest and pytest, by group and in total.

usage: count_tests.py REPORT.xml... [--not-run FOLDER REASON]
--not-run, if pytest is not installed: the test functions below FOLDER count as skipped, for REASON.
Exit 1 if a test failed or could not run, if a report is missing or has no test, or if none passed.
"""

import argparse
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

def count_functions(path):
    """How many functions and methods of a file pytest calls; a parametrised one counts once."""
    return len(re.findall(r"^ *(?:async )?def test", path.read_text(encoding="utf-8"), re.MULTILINE))


def ctest_verdict(case):
    """passed, failed or skipped. A test that could not even start has failed. A test that skipped
    itself has a message that names ctest's property SKIP_RETURN_CODE or SKIP_REGULAR_EXPRESSION."""
    status = case.get("status")
    if status == "run":
        return "passed"
    if status == "disabled":
        return "skipped"
    skipped = case.find("skipped")
    skipped_itself = skipped is not None and skipped.get("message", "").startswith("SKIP_")
    return "skipped" if skipped_itself else "failed"


def pytest_verdict(case):
    """passed, failed or skipped; an expected failure is not a pass."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def skipped_module(case):
    """(tests, reason) of a case that represents a whole file, skipped at import."""
    path = pathlib.Path(case.get("name").replace(".", "/") + ".py")
    reason = re.search(r"Skipped: (.*)['\"]\)$", case.find("skipped").text)
    return count_functions(path), reason[1]


def read(report):
    """(group, verdict, pytest's reason for a skip) of each test."""
    root = ElementTree.parse(report).getroot()
    if root.tag == "testsuite":  # ctest's
        for case in root.findall("testcase"):
            yield case.get("name").split(".")[0], ctest_verdict(case), None
    for case in root.findall("testsuite/testcase"):
        module = case.get("classname").split(".")[-1] or case.get("name").split(".")[-1]
        skipped = case.find("skipped")
        reason = None if skipped is None else skipped.get("message")
        count = 1
        if reason == "collection skipped":
            count, reason = skipped_module(case)
        for _ in range(count):
            yield "python." + module.replace("test_", "", 1), pytest_verdict(case), reason


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("reports", nargs="+")
    parser.add_argument("--not-run", nargs=2, metavar=("FOLDER", "REASON"))
    options = parser.parse_args()
    groups = collections.defaultdict(collections.Counter)
    reasons = collections.Counter()
    empty = False
    for report in options.reports:
        count = 0
        try:
            for group, verdict, reason in read(report):
                groups[group][verdict] += 1
                reasons[reason] += reason is not None
                count += 1
        except (OSError, ElementTree.ParseError) as error:
            print(f"no report: {error}")
        if count == 0:
            print(f"{report}: no test was run")
            empty = True
    if options.not_run:
        folder, reason = options.not_run
        for path in sorted(pathlib.Path(folder).rglob("test_*.py")):
            count = count_functions(path)
            groups["python." + path.stem.replace("test_", "", 1)]["skipped"] += count
            reasons[reason] += count
        if reasons[reason] == 0:
            print(f"{folder}: no test was found")
            empty = True
    total = sum(groups.values(), collections.Counter())

    print()
    for name, count in sorted(groups.items()):
        print(f"{name:<24} {count['passed']:>6} passed {count['failed']:>4} failed"
              f" {count['skipped']:>4} skipped")
    for reason, count in sorted((+reasons).items()):
        print(f"{count} skipped: {reason}")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if total["passed"] and not total["failed"] and not empty else 1


if __name__ == "__main__":
    sys.exit(main())
