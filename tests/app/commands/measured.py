# SPDX-License-Identifier: Apache-2.0
"""Runs a program and measures its memory."""

import collections
import functools
import pathlib
import shutil
import subprocess
import sys

# Seconds after which a program is considered hung: many times what the slowest machine needs under
# load and with a sanitizer, since the time is not what is tested.
PATIENCE = 1800

Run = collections.namedtuple("Run", "status out err peak")

# The program is started by a small script: a process inherits the peak memory of the process that
# started it, and NumPy alone is large.
STARTER = """
import os, resource, sys
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
open(sys.argv[1], "w").write(f"{status} {usage.ru_maxrss}")
"""


def run(command, directory, stdin=subprocess.DEVNULL):
    """Runs a command; returns the exit code or negative signal number, the streams and peak bytes.

    The command has at most 2 GB of address space, lest it harm the machine; more if sanitized.
    """
    limit = 0 if is_sanitized(command[0]) else 2 * 10**9
    report = pathlib.Path(f"{directory}.report")  # not inside the program's directory
    done = subprocess.run([sys.executable, "-S", "-E", "-c", STARTER, str(limit), report, *map(str, command)],
                          cwd=directory, stdin=stdin, capture_output=True, timeout=PATIENCE, check=True)
    status, peak = map(int, report.read_text(encoding="ascii").split())
    report.unlink()
    code = -(status & 0x7F) if status & 0x7F else status >> 8
    return Run(code, done.stdout.decode(), done.stderr.decode(), peak * 1024)


@functools.cache
def is_sanitized(program):
    """Whether a program has a sanitizer, whose memory and time distort the measurement."""
    file = shutil.which(program)
    code = pathlib.Path(file).read_bytes() if file else b""
    return any(name in code for name in (b"__asan_init", b"__tsan_init", b"__msan_init"))
