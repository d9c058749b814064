# SPDX-License-Identifier: Apache-2.0
"""Runs programs, and watches how much memory they take."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

EVERY = 0.1  # seconds between two looks at a program's memory


# Starts the command in a small process, since a process inherits the peak memory of the one that
# started it. Writes exit code, seconds and peak memory in KiB to the pipe whose number is the first
# argument.
STARTER = """
import os, sys, time
begin = time.perf_counter()
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(child, 0)
seconds = time.perf_counter() - begin
answer = f"{os.waitstatus_to_exitcode(status)} {seconds} {used.ru_maxrss}"
os.write(int(sys.argv[1]), answer.encode())
"""


class Watched(NamedTuple):
    output: str  # standard output and standard error
    seconds: float
    peak: float  # MiB of memory, as the system counts it
    quarters: list  # the largest memory seen in each quarter of the time, in MiB


class Failed(Exception):
    """Raised for a program that failed, with the last lines of its output."""


def resident_megabytes(starter):
    """The memory that the child of `starter` has now, in MiB; 0 if it has ended."""
    try:
        child = Path(f"/proc/{starter}/task/{starter}/children").read_text(encoding="ascii").strip()
        lines = Path(f"/proc/{child}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def of_quarters(samples):
    """The largest of each quarter of the samples; empty for fewer than eight samples."""
    if len(samples) < 8:
        return []
    ends = [len(samples) * n // 4 for n in range(5)]
    return [max(samples[begin:end]) for begin, end in zip(ends, ends[1:])]


def watched(command, environment=None, folder=None, code=0):
    """Runs a program to its end. Raises Failed unless its exit code is `code`."""
    answers, answer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", STARTER, str(answer), *map(str, command)],
        pass_fds=[answer],
        env={**os.environ, **(environment or {})}, cwd=folder, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    os.close(answer)
    samples, ended = [], threading.Event()

    def look():
        while not ended.wait(EVERY):
            samples.append(resident_megabytes(process.pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        output = process.stdout.read()
        process.wait()
        with os.fdopen(answers, encoding="ascii") as file:
            fields = file.read().split()
    finally:
        ended.set()
        watcher.join()
    process.stdout.close()
    got = int(fields[0]) if fields else process.returncode
    if got != code:
        last = " / ".join(output.strip().splitlines()[-4:])
        raise Failed(f"{Path(command[0]).name} ended with {got}: {last}")
    return Watched(output, float(fields[1]), int(fields[2]) / 1024, of_quarters(samples))
