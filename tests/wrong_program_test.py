# SPDX-License-Identifier: Apache-2.0
"""Checks that a program does not compile, and that each compiler's message is short and helpful.

usage: wrong_program_test.py PROGRAM.cc INCLUDE COMPILER...

PROGRAM.cc has comments `// error: TEXT` and `// lines: N`. A compiler must report exactly one error
in at most N lines, one of which contains TEXT.
"""

import os
import re
import subprocess
import sys
from pathlib import Path


def faults(compiler, program, include):
    text = Path(program).read_text(encoding="utf-8")
    (expected,) = re.findall(r"^// error: (.*)$", text, re.MULTILINE)
    (most,) = re.findall(r"^// lines: (\d+)$", text, re.MULTILINE)
    options = ["-std=c++20", "-fsyntax-only", "-fdiagnostics-color=never", "-I", include]
    done = subprocess.run(
        [compiler, *options, program],
        capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"},
    )  # fmt: skip
    lines = done.stderr.splitlines()
    if done.returncode == 0:
        yield "it compiles"
    if sum(": error: " in line for line in lines) != 1:
        yield "not one error"
    if not any(expected in line for line in lines):
        yield f"no line has: {expected}"
    if len(lines) > int(most):
        yield f"{len(lines)} lines, at most {most} expected"
    if "/mods.h" in done.stderr and f"{Path(program).name}:" not in done.stderr:
        yield "the user's line is not named"


def main():
    program, include, *compilers = sys.argv[1:]
    failed = False
    for compiler in compilers:
        for fault in faults(compiler, program, include):
            failed = True
            print(f"{compiler}: {program}: {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
