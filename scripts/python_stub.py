#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the stub of the extension module of the installed package.

usage: python_stub.py > python/qkv/_core.pyi
A test checks that the stub matches the bound functions.
"""

import sys

from nanobind.stubgen import StubGen

import qkv._core

HEAD = """# SPDX-License-Identifier: Apache-2.0
# Written by scripts/python_stub.py. The functions' meaning is in _functions.py and its neighbours.
__version__: str

"""


def main() -> int:
    generator = StubGen(qkv._core)
    generator.put(qkv._core)
    print(HEAD + generator.get().strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
