#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that `mpirun -n N qkv train` gives the bits of one process, whatever happens to the ranks.

usage: train_ranks_test.py PROGRAM [TEST ...]
TrainRanks is skipped where there is no mpirun, or the program was built without MPI.
"""

import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import time
import unittest

from program import PATIENCE, PROGRAM
from train_runs import ENDLESS, SIZES, TrainCase

MODULES = ("lib/qkv/qkv_ranks.so", "lib64/qkv/qkv_ranks.so")
HAS_MODULE = any((pathlib.Path(PROGRAM).parents[1] / module).exists() for module in MODULES)
HAS_MPIRUN = shutil.which("mpirun") is not None
MEASURE = pathlib.Path(__file__).parents[3] / "scripts" / "measure"
HOSTS = MEASURE / "two_hosts.sh"
NODES = MEASURE / "slurm_nodes.sh"
MORE = (*SIZES, "--batch-tokens", "1000", "--valid", "valid.tsv", "--valid-freq", "3u", "--dropout",
        "0.2")


def launcher():
    """Returns the words before `-n N`, by which Open MPI accepts root and more ranks than cores."""
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True)
    if "Open MPI" not in version.stdout:
        return ["mpirun"]
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *as_root, "--oversubscribe"]


def stat(process):
    """Returns a process's name and the fields after it in /proc/PID/stat; "" and 0s if it ended."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return "", ["0"] * 20
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def is_running(process):
    """Whether a process named qkv with this id is running; a zombie is not."""
    name, fields = stat(process)
    return name == "qkv" and fields[0] not in "ZX"


def start_time(process):
    """Returns when a process started, in ticks."""
    return int(stat(process)[1][19])


def programs_below(parent):
    """Returns the ids of the processes named qkv that descend from the process `parent`."""
    children = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True)
    below = children.stdout.split()
    found = [int(process) for process in below if stat(process)[0] == "qkv"]
    return found + [process for child in below for process in programs_below(child)]


@unittest.skipUnless(HAS_MPIRUN and HAS_MODULE, "no mpirun, or a program without MPI")
class TrainRanks(TrainCase):
    def words(self, count, *arguments):
        return [*launcher(), "-n", str(count), PROGRAM, "train", *map(str, arguments), "--progress",
                "never"]

    def mpirun(self, count, *arguments, code=0):
        done = subprocess.run(self.words(count, *arguments), capture_output=True, cwd=self.dir,
                              timeout=PATIENCE, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def start_ranks(self, count, *arguments, more=()):
        """Starts ranks in a session of their own, and returns mpirun's process."""
        words = self.words(count, *arguments)
        process = subprocess.Popen([words[0], *more, *words[1:]], cwd=self.dir, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True)
        self.addCleanup(process.communicate)
        self.addCleanup(subprocess.run, ["pkill", "-KILL", "-s", str(process.pid)])
        return process

    def ranks_of(self, process, count):
        """Returns the ids of the qkv processes that mpirun started, in the order of their start."""
        found = []

        def has_all():
            found[:] = sorted(programs_below(process.pid), key=start_time)
            return len(found) == count

        self.wait_until(has_all, process)
        return found

    def end_of(self, process, ranks):
        """Waits until mpirun and its ranks have ended; returns what went to standard error.

        Open MPI's mpirun does not wait for ranks that it kills: they may outlive it, and keep their
        folder locked until they end.
        """
        _, errors = process.communicate(timeout=PATIENCE)
        self.wait_until(lambda: not any(map(is_running, ranks)))
        return errors

    def messages(self, text):
        return [line for line in text.splitlines() if line.startswith("qkv: ")]

    def train_whole(self, after="7u"):
        self.run_qkv("train", "data.tsv", "-o", "WHOLE", *MORE, "--after", after)

    def test_any_ranks_and_threads(self):
        self.train_whole()
        one = self.run_qkv("train", "data.tsv", "-o", "ONE", *MORE, "--after", "7u")
        for count, threads in ((1, 1), (2, 1), (2, 2), (3, 2), (4, 1)):
            folder = f"RUN{count}{threads}"
            done = self.mpirun(count, "data.tsv", "-o", folder, *MORE, "--after", "7u", "--threads",
                               threads)
            self.same_run(folder, "WHOLE")
            # The report is that of one process, except for the line with the time.
            want = one.out.replace("ONE", folder).splitlines()
            got = done.stdout.splitlines()
            self.assertEqual([want[0], *want[2:]], [got[0], *got[2:]])

    def expect_same_run(self, *command):
        """Trains on two simulated hosts that `command` starts; its code 77 skips the test."""
        self.train_whole("3u")
        words = [*command, PROGRAM, "train", "data.tsv", "-o", "RUN", *MORE, "--after", "3u",
                 "--progress", "never"]
        done = subprocess.run(words, capture_output=True, cwd=self.dir, timeout=PATIENCE, text=True)
        if done.returncode == 77:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.same_run("RUN", "WHOLE")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("orted"), "no root, or no Open MPI")
    def test_two_hosts(self):
        self.expect_same_run(HOSTS, "1gbit", "mpirun", "--host", "one:1,two:1")

    def test_slurm(self):
        self.expect_same_run(NODES, "srun", "--mpi=pmix", "--kill-on-bad-exit=1", "--nodes", "2",
                             "--ntasks-per-node", "1", "--cpus-per-task", "1")

    def test_resumed_by_other_numbers_of_ranks(self):
        self.train_whole("9u")
        self.mpirun(3, "data.tsv", "-o", "RUN", *MORE, "--after", "2u")
        self.mpirun(2, "RUN", "--after", "5u")
        self.run_qkv("train", "RUN", "--after", "6u")
        self.mpirun(4, "RUN", "--after", "9u")
        self.same_run("RUN", "WHOLE")

    def test_killed_at_any_time(self):
        """Nothing is lost but what came after the last save."""
        draw = random.Random(4)
        seen = -1
        for turn in range(4):
            count = 2 + turn % 3
            process = self.start_ranks(count, "data.tsv", "-o", "RUN", *MORE, "--after", ENDLESS,
                                       "--save-freq", "1u")
            ranks = self.ranks_of(process, count)
            self.wait_for_update(process, "RUN", seen + 1)
            time.sleep(draw.uniform(0, 0.05))
            os.kill(ranks[turn % count], signal.SIGKILL)
            self.end_of(process, ranks)
            self.assertNotEqual(process.returncode, 0)
            self.assertGreater(self.updates("RUN"), seen)
            seen = self.updates("RUN")
        self.mpirun(2, "data.tsv", "-o", "RUN", *MORE, "--after", f"{seen + 3}u")
        self.train_whole(f"{seen + 3}u")
        self.same_run("RUN", "WHOLE")

    def test_ranks_that_pause(self):
        """Ranks that the system does not run for a while delay the others."""
        self.train_whole("200u")
        process = self.start_ranks(3, "data.tsv", "-o", "RUN", *MORE, "--after", "200u")
        ranks = self.ranks_of(process, 3)
        draw = random.Random(5)
        while process.poll() is None:
            rank = draw.choice(ranks)
            try:
                os.kill(rank, signal.SIGSTOP)
                time.sleep(0.02)
                os.kill(rank, signal.SIGCONT)
            except ProcessLookupError:
                break
            time.sleep(0.02)
        self.end_of(process, ranks)
        self.assertEqual(process.returncode, 0)
        self.same_run("RUN", "WHOLE")

    def test_signals_save(self):
        for number, code in ((signal.SIGINT, None), (signal.SIGTERM, 143)):
            folder = f"RUN{number}"
            # Open MPI gives ranks this many seconds between SIGTERM and SIGKILL.
            patient = ("--mca", "odls_base_sigkill_timeout", "3") if "--oversubscribe" in launcher() else ()
            process = self.start_ranks(2, "data.tsv", "-o", folder, *MORE, "--after", ENDLESS,
                                       "--save-freq", "1u", more=patient)
            ranks = self.ranks_of(process, 2)
            self.wait_for_update(process, folder)
            # Like Ctrl-C, SIGINT goes to mpirun, which ends its ranks; SIGTERM goes to one rank.
            os.kill(process.pid if number == signal.SIGINT else ranks[1], number)
            errors = self.end_of(process, ranks)
            if code is not None:
                self.assertEqual(process.returncode, code)
            updates = self.updates(folder)
            self.assertEqual(self.messages(errors), [
                f"qkv: stopped and saved at update {updates}; to resume: qkv train {folder}"])

    def test_errors_are_one_line(self):
        cases = [(3, ("none.tsv", "-o", "X"), "qkv: none.tsv: No such file or directory"),
                 (2, ("data.tsv", "-o", "X", "--lr", "-1"),
                  "qkv: --lr: must be finite and above 0, got -1"),
                 (2, ("data.tsv", "-o", "X", "--after", "soon"), None),
                 (2, ("data.tsv", "-o", "X", "--patience", "2"),
                  "qkv: --patience requires --valid")]
        for code, arguments, want in cases:
            done = self.mpirun(3, *arguments, code=code)
            self.assertEqual(done.stdout, "")
            lines = self.messages(done.stderr)
            self.assertEqual(len(lines), 1, done.stderr)
            if want is not None:
                self.assertEqual(lines, [want])
        self.assertFalse((self.dir / "X").exists())

    def test_an_error_of_one_rank_names_it(self):
        second = ["-n", "1", PROGRAM, "train", "valid.tsv", "-o", "RUN", "--progress", "never"]
        done = subprocess.run([*self.words(1, "data.tsv", "-o", "RUN"), ":", *second],
                              capture_output=True, cwd=self.dir, timeout=PATIENCE, text=True)
        self.assertEqual(done.returncode, 2)
        [line] = self.messages(done.stderr)
        self.assertRegex(line, "^qkv: rank 1: the data or settings are not those of rank 0: ")

    def test_a_full_disk_ends_all(self):
        """Only the first rank writes, and only it knows of the error."""
        process = self.start_ranks(2, "data.tsv", "-o", "RUN", *MORE, "--after", ENDLESS,
                                   "--save-freq", "20u")
        ranks = self.ranks_of(process, 2)
        self.wait_for_update(process, "RUN", 20)
        for rank in ranks:
            resource.prlimit(rank, resource.RLIMIT_FSIZE, (1000, 1000))
        errors = self.end_of(process, ranks)
        self.assertEqual(process.returncode, 4, errors)
        [line] = self.messages(errors)
        self.assertRegex(line, r"^qkv: rank 0: RUN/\S+: cannot be written: File too large$")

    def test_another_run_alone(self):
        """Ranks train one run together; with QKV_RANKS=1, each process trains its own run."""
        command = f"{PROGRAM} train data.tsv -o $0$OMPI_COMM_WORLD_RANK$PMI_RANK --after 1u"
        words = [*launcher(), "-n", "2", "sh", "-c", command]
        done = subprocess.run([*words, "RUN"], capture_output=True, cwd=self.dir, timeout=PATIENCE, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        [line] = self.messages(done.stderr)
        self.assertRegex(line, "^qkv: rank 1: processes that MPI starts train one run together, but ")
        alone = {**os.environ, "QKV_RANKS": "1"}
        subprocess.run([*words, "ALONE"], capture_output=True, cwd=self.dir, timeout=PATIENCE, check=True,
                       env=alone)
        self.assertEqual([self.updates(f"ALONE{rank}") for rank in range(2)], [1, 1])

    def test_another_instruction_set(self):
        # Every machine has the target "reference", and none chooses it by itself.
        target = f"QKV_TARGET=reference {PROGRAM} train data.tsv -o RUN --after 1u"
        done = subprocess.run([*self.words(1, "data.tsv", "-o", "RUN", "--after", "1u"), ":", "-n", "1",
                               "sh", "-c", target],
                              capture_output=True, cwd=self.dir, timeout=PATIENCE, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        [line] = self.messages(done.stderr)
        self.assertRegex(line, "^qkv: rank 1: the CPU target is reference, and .* on rank 0; ")

    def test_diverged_on_all(self):
        done = self.mpirun(3, "data.tsv", "-o", "RUN", *SIZES, "--batch-tokens", 1000, "--lr", "1e30",
                           "--clip", "inf", "--after", "20u", code=5)
        self.assertEqual(len(self.messages(done.stderr)), 1)


class WithoutModule(TrainCase):
    def test_is_refused(self):
        """Runs a copy of the program without its module, as if mpirun had started two copies."""
        alone = self.dir / "bin" / "qkv"
        alone.parent.mkdir()
        shutil.copy(PROGRAM, alone)
        for rank in (0, 1):
            done = subprocess.run(
                [alone, "train", "data.tsv", "-o", "RUN"], capture_output=True, cwd=self.dir, text=True,
                timeout=PATIENCE,
                env={**os.environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"})
            self.assertEqual(done.returncode, 7, done.stderr)
            self.assertRegex(done.stderr, "^qkv: (rank 1: )?started as 2 processes that train together, "
                                          "but this qkv has no module for MPI, .*\n$")
            self.assertEqual("rank 1" in done.stderr, rank == 1)
        self.assertFalse((self.dir / "RUN").exists())


if __name__ == "__main__":
    unittest.main()
