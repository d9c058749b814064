# SPDX-License-Identifier: Apache-2.0
"""A run of a program with the memory that it took."""

import collections
import pathlib
import subprocess
import sys

Run = collections.namedtuple("Run", "status out err peak")

# A process begins with the memory of the one that started it as its peak, and NumPy alone is large.
STARTER = """
import os, sys
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
open(sys.argv[1], "w").write(f"{status} {usage.ru_maxrss}")
"""


def run(command, directory, stdin=subprocess.DEVNULL):
    """The wait status (a negative signal number or the exit code), the streams, peak bytes."""
    report = pathlib.Path(f"{directory}.report")  # beside it: the program is alone in its directory
    done = subprocess.run([sys.executable, "-S", "-E", "-c", STARTER, report, *map(str, command)],
                          cwd=directory, stdin=stdin, capture_output=True, timeout=120, check=True)
    status, peak = map(int, report.read_text(encoding="ascii").split())
    report.unlink()
    code = -(status & 0x7F) if status & 0x7F else status >> 8
    return Run(code, done.stdout.decode(), done.stderr.decode(), peak * 1024)


def is_sanitized(program):
    """Whether it is built with a sanitizer, whose own memory says nothing about the program's."""
    code = pathlib.Path(program).read_bytes()
    return any(name in code for name in (b"__asan_init", b"__tsan_init", b"__msan_init"))
