#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the tests in a JUnit report of ctest, by group and in all.

usage: count_tests.py REPORT.xml
Exit 1 if a test failed or could not run, or if none passed.
"""

import collections
import sys
import xml.etree.ElementTree as ElementTree


def verdict(case):
    """passed, failed or skipped. A test that could not even start has failed."""
    status = case.get("status")
    if status == "run":
        return "passed"
    if status == "disabled":
        return "skipped"
    skipped = case.find("skipped")
    chosen = skipped is not None and skipped.get("message", "").startswith("SKIP_")
    return "skipped" if chosen else "failed"


def main():
    try:
        cases = ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
    except OSError as error:
        print(f"no test was run: {error}")
        cases = []
    groups = collections.defaultdict(collections.Counter)
    for case in cases:
        groups[case.get("name").split(".")[0]][verdict(case)] += 1
    total = sum(groups.values(), collections.Counter())

    print()
    for name, count in sorted(groups.items()):
        print(f"{name:<24} {count['passed']:>6} passed {count['failed']:>4} failed"
              f" {count['skipped']:>4} skipped")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if total["passed"] and not total["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
