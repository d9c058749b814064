#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares symbols.txt with the C functions that a library exports and that qkv/c.h declares.

usage: symbols_test.py LIBRARY [--soname]

symbols.txt lists the binary interface: a function may be removed only with a new SONAME. With
--soname, also compares the library's SONAME with the version. The last line of output counts the
functions.
Exit 1 on a difference.
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
    """Returns the names that a library exports, except mangled names of C++."""
    text = subprocess.run(
        ["nm", "-D", "--defined-only", library], text=True, capture_output=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in text.splitlines()}
    return {name for name in names if not name.startswith("_Z")}


def declared():
    text = HEADER.read_text(encoding="utf-8")
    return set(re.findall(r"^QKV_C_API [^(]*?\b(qkv_\w+)\(", text, re.MULTILINE))


def differences(names, what):
    known = set(listed())
    return [f"{what}, but not in symbols.txt: {name}" for name in sorted(names - known)] + [
        f"in symbols.txt, but not {what}: {name}" for name in sorted(known - names)
    ]


def soname_differences(library):
    """Compares the SONAME with the version: libqkv.so.0.MINOR before 1.0, then libqkv.so.MAJOR.

    The rule is in CHANGELOG.md, Versions.
    """
    header = (HEADER.parent / "version.h").read_text(encoding="utf-8")
    major, minor, _ = re.findall(r"^#define QKV_VERSION_\w+ (\d+)$", header, re.MULTILINE)
    want = "libqkv.so." + (f"0.{minor}" if major == "0" else major)
    text = subprocess.run(
        ["readelf", "-d", library], text=True, capture_output=True, check=True
    ).stdout
    names = re.findall(r"\(SONAME\).*\[(.*)\]", text)
    return [] if names == [want] else [f"the SONAME is {' '.join(names) or 'absent'}, not {want}"]


def main():
    if len(sys.argv) != 2 and sys.argv[2:] != ["--soname"]:
        print(__doc__, file=sys.stderr)
        return 2
    names = listed()
    found = [] if names == sorted(set(names)) else ["symbols.txt is not sorted"]
    found += differences(exported(sys.argv[1]), "exported") + differences(
        declared(), "declared in qkv/c.h"
    )
    if sys.argv[2:]:
        found += soname_differences(sys.argv[1])
    for line in found:
        print(line)
    print(f"{len(names)} functions of C, {len(found)} differences")
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
