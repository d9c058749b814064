#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds to a wheel the licences of the third-party code in it.

usage: licences.py REPAIRED.whl DIRECTORY     writes DIRECTORY/REPAIRED.whl
These are the licences of the shared libraries that auditwheel put into qkv.libs/, and of the
headers that were compiled in. Debian's packages have them as /usr/share/doc/PACKAGE/copyright.
"""

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys

from auditwheel.wheeltools import InWheel

# Debian's packages of header-only libraries. nanobind is installed as a Python package instead.
HEADERS = ["libhwy-dev"]
HEADERS_OF_THE_PROGRAM = ["libcli11-dev", "nlohmann-json3-dev"]


def original_name(library):
    """The name before auditwheel added a hash: libzip-5c554ca2.so.4.0 was libzip.so.4.0."""
    return re.sub(r"-[0-9a-f]{8}(?=\.so)", "", library.name)


def package_of(library):
    found = subprocess.run(["dpkg-query", "--search", f"*/{original_name(library)}"], check=True,
                           capture_output=True, text=True).stdout
    return found.split(":")[0]


def main():
    repaired, directory = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    with InWheel(repaired.absolute(), (directory / repaired.name).absolute()) as root:
        [info] = pathlib.Path(root).glob("*.dist-info")
        licences = info / "licenses" / "libraries"
        licences.mkdir(parents=True)
        packages = {package_of(library) for library in pathlib.Path(root, "qkv.libs").glob("*.so*")}
        packages.update(HEADERS)
        if pathlib.Path(root, "qkv/bin/qkv").exists():
            packages.update(HEADERS_OF_THE_PROGRAM)
        for package in packages:
            shutil.copyfile(f"/usr/share/doc/{package}/copyright", licences / package)
        [nanobind] = [path for path in importlib.metadata.files("nanobind")
                      if path.name == "LICENSE"]
        shutil.copyfile(nanobind.locate(), licences / "nanobind")
    print(f"licences: {' '.join(sorted(packages))} nanobind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
