# SPDX-License-Identifier: Apache-2.0
"""Programs that are run, and watched for the memory they take."""

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

EVERY = 0.1  # seconds between two looks at a program's memory


class Watched(NamedTuple):
    output: str  # standard output and standard error
    seconds: float
    peak: float  # MB of memory, as the system counts it
    quarters: list  # the largest seen in each quarter of the time, MB


class Failed(Exception):
    """A program ended in failure: its last lines."""


def resident_megabytes(process):
    """Now; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def of_quarters(samples):
    """The largest of each quarter of some samples, once there are enough."""
    if len(samples) < 8:
        return []
    ends = [len(samples) * n // 4 for n in range(5)]
    return [max(samples[begin:end]) for begin, end in zip(ends, ends[1:])]


def watched(command, environment=None, folder=None):
    """Runs a program to its end. Throws Failed."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, command)],
        env={**os.environ, **(environment or {})}, cwd=folder, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    samples, ended = [], threading.Event()

    def look():
        while not ended.wait(EVERY):
            samples.append(resident_megabytes(process.pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
    finally:
        ended.set()
        watcher.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode:
        last = " / ".join(output.strip().splitlines()[-4:])
        raise Failed(f"{Path(command[0]).name} ended with {process.returncode}: {last}")
    return Watched(output, seconds, used.ru_maxrss / 1024, of_quarters(samples))
