# SPDX-License-Identifier: Apache-2.0
"""Calls that alternate in bursts, and the machine they run on: shared by several scripts."""

import os
import time

PAUSE = 0.02  # seconds after a burst; OpenMP's workers spin for less time after a call
BUSY = 0.1  # other programs may take so many processors before this is reported


def seconds_of(call, burst):
    """The seconds of one call: the mean over a burst of at least `burst` seconds."""
    calls, begin = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        passed = time.perf_counter() - begin
        if passed >= burst:
            return passed / calls


def measure(calls, rounds, burst, pause=PAUSE):
    """{name: seconds of a call in each round}. A round before the first does not count."""
    times = {name: [] for name in calls}
    for call in calls.values():
        seconds_of(call, burst)
        time.sleep(pause)
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds_of(call, burst))
            time.sleep(pause)
    return times


def others_seconds():
    """Seconds of CPU time that all other programs have used, or that the host gave to other
    machines, since the system started."""
    with open("/proc/stat", encoding="ascii") as lines:
        ticks = [int(word) for word in lines.readline().split()[1:9]]  # [3], [4]: idle, iowait
    own = os.times()
    return (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK") - own.user - own.system


class Busy:
    """The processors that other programs have taken since the object was made."""

    def __init__(self):
        self.begin, self.others = time.perf_counter(), others_seconds()

    def share(self):
        """The number of processors taken by others, or None if it is at most BUSY."""
        taken = (others_seconds() - self.others) / (time.perf_counter() - self.begin)
        return taken if taken > BUSY else None


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        facts = {name.strip(): value.strip() for name, value in pairs}
    names = "model name", "cpu family", "model"
    return ", ".join(f"{name} {facts.get(name, 'unknown')}" for name in names)
