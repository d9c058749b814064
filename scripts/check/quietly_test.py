#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/quietly.sh: its output, its log, and its exit status.

usage: quietly_test.py
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[1]


class Quietly(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "scripts").mkdir()
        for script in "quietly.sh", "env.sh":
            shutil.copy(SCRIPTS / script, self.root / "scripts")

    def run_quietly(self, command, verbose=False, code=0):
        """The lines that quietly.sh prints for a command, whose exit status must be `code`."""
        done = subprocess.run(
            ["scripts/quietly.sh", "some work", "bash", "-c", command],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "VERBOSE": str(int(verbose))},
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout.splitlines()

    def log(self):
        return (self.root / "build" / "logs" / "some-work.log").read_text(encoding="utf-8")

    def test_shows_two_lines_and_keeps_all(self):
        shown = self.run_quietly("echo one; echo two >&2; echo three")
        self.assertEqual(shown[0], "some work ...")
        self.assertRegex(shown[1], r"^some work: done in \d+ s, \d+ CPU seconds$")
        self.assertEqual(len(shown), 2)
        self.assertEqual(self.log(), "one\ntwo\nthree\n")

    def test_counts_the_seconds_of_what_it_runs(self):
        # The command computes until `times` has a second of CPU time for it.
        shown = self.run_quietly(
            "until grep -q '^0m[1-9]' used 2>/dev/null; do"
            " for i in {1..20000}; do :; done; times >used; done"
        )
        self.assertGreaterEqual(int(shown[1].split(", ")[1].split()[0]), 1)

    def test_a_failure_is_shown_and_its_status_is_the_commands(self):
        shown = self.run_quietly(
            "echo '[1/2] Building CXX object a.o'; echo 'a.cc:3: error: no';"
            "echo '1/1 Test #1: a.B .... Passed 0.1 sec'; exit 3",
            code=3,
        )
        self.assertEqual(
            shown,
            [
                "some work ...",
                "a.cc:3: error: no",
                "some work: FAILED; all of it: build/logs/some-work.log",
            ],
        )
        self.assertIn("Building", self.log())

    def test_verbose_shows_every_line(self):
        shown = self.run_quietly("echo one; echo two >&2; exit 4", verbose=True, code=4)
        self.assertEqual(shown, ["one", "two"])
        self.assertEqual(self.log(), "one\ntwo\n")

    def test_a_command_cannot_wait_for_input(self):
        self.run_quietly("read line", code=1)


if __name__ == "__main__":
    unittest.main()
