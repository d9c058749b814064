#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the C functions that a shared library exports, and those that qkv/c.h declares, with a list.

usage: symbols_test.py LIBRARY

The list, symbols.txt, is the binary interface: a function leaves it only with a new SONAME. The last line counts the
functions. Exit 1 on a difference.
"""

import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEADER = HERE.parents[1] / "include/qkv/c.h"


def listed():
    lines = (HERE / "symbols.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def exported(library):
    """The functions and objects of a library that are not mangled names of C++."""
    text = subprocess.run(["nm", "-D", "--defined-only", library], text=True, capture_output=True, check=True).stdout
    names = {line.split()[-1].split("@")[0] for line in text.splitlines()}
    return {name for name in names if not name.startswith("_Z")}


def declared():
    text = HEADER.read_text(encoding="utf-8")
    return set(re.findall(r"^QKV_C_API [^(]*?\b(qkv_\w+)\(", text, re.MULTILINE))


def differences(names, what):
    known = set(listed())
    return [f"{what}, but not in symbols.txt: {name}" for name in sorted(names - known)] + \
        [f"in symbols.txt, but not {what}: {name}" for name in sorted(known - names)]


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    names = listed()
    found = [] if names == sorted(set(names)) else ["symbols.txt is not sorted"]
    found += differences(exported(sys.argv[1]), "exported") + differences(declared(), "declared in qkv/c.h")
    for line in found:
        print(line)
    print(f"{len(names)} functions of C, {len(found)} differences")
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
