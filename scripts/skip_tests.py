#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a JUnit report in which each test function of a directory is skipped.

usage: skip_tests.py REPORT.xml REASON DIRECTORY
For machines without pytest. A parametrised test counts as one.
"""

import ast
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def test_names(path):
    """The functions and methods that pytest would call."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            yield node.name


def main():
    report, reason, directory = sys.argv[1:]
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", name="pytest")
    for path in sorted(pathlib.Path(directory).rglob("test_*.py")):
        for name in test_names(path):
            case = ElementTree.SubElement(
                suite, "testcase", classname=".".join(path.with_suffix("").parts), name=name)
            ElementTree.SubElement(case, "skipped", type="pytest.skip", message=reason)
    ElementTree.ElementTree(suites).write(report, encoding="utf-8", xml_declaration=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
