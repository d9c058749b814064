# SPDX-License-Identifier: Apache-2.0
"""Functions to run the program `qkv` and check the outcome, shared by its tests.

A test script takes the program as its first argument, then unittest's arguments.
"""

import array
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

import measured
import numpy as np
from measured import PATIENCE

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "qkv"
CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
DATA = pathlib.Path(os.environ.get("QKV_DATA_DIR") or CHECKOUT.parent / "shared" / "data")
sys.path.append(str(CHECKOUT / "tests"))  # for oracle_philox
# Commands that show progress once they have run for a second. Whether they run so long depends on
# the machine, so their progress is disabled unless a test asks for it.
TALKATIVE = {"gen", "score", "split", "train", "translate", "words"}
LOOKS = 600_000  # times that wait_until() looks, 3 ms apart: at least half an hour


def quietly(arguments):
    """Returns the arguments as texts. For commands in TALKATIVE, adds --progress never, unless the
    arguments have --progress or --quiet."""
    arguments = tuple(map(str, arguments))
    if not TALKATIVE.intersection(arguments[:1]) or {"--progress", "--quiet"} & set(arguments):
        return arguments
    return "--progress", "never", *arguments


def status(process):
    """Returns the fields of /proc/PID/status by name."""
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def unread(pipe):
    """Returns the number of unread bytes in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def run_qkv(self, *arguments, code=0, env=None, **options):
        """Returns the finished process, which must have exited with `code` (None: any)."""
        done = subprocess.run([PROGRAM, *quietly(arguments)], capture_output=True, timeout=PATIENCE,
                              cwd=self.dir, env={**os.environ, **(env or {})}, **options)
        done.out = done.stdout.decode(errors="replace")
        done.err = done.stderr.decode()
        if code is not None:
            self.assertEqual(done.returncode, code, f"{arguments}\n{done.out}\n{done.err}")
        return done

    def measure(self, *arguments):
        """Runs a call by measured.run(), and returns its result. The call must succeed."""
        done = measured.run([pathlib.Path(PROGRAM).resolve(), *quietly(arguments)], self.dir)
        self.assertEqual(done.status, 0, f"{arguments}\n{done.err}")
        return done

    def refuse(self, code, *arguments, **options):
        """Runs a call that must print one line, on standard error alone; returns the line."""
        done = self.run_qkv(*arguments, code=code, **options)
        self.assertEqual(done.out, "")
        self.assertEqual(done.err.count("\n"), 1, done.err)
        return done.err

    def on_terminal(self, *arguments, env=None, stream="stdout", size=None):
        """Returns what the program writes to a terminal, with exactly the environment `env`.

        The terminal is the program's `stream`, and has `size` (rows, columns).
        """
        try:
            main, terminal = os.openpty()
        except OSError as error:
            self.skipTest(f"no pseudo-terminal here: {error}")
        if size:
            termios.tcsetwinsize(terminal, size)
        streams = {"stdout": subprocess.DEVNULL, "stderr": None} | {stream: terminal}
        shown = b""
        command = [PROGRAM, *map(str, arguments)]
        with subprocess.Popen(command, cwd=self.dir, env=env or {}, **streams) as process:
            os.close(terminal)
            try:
                while part := os.read(main, 1 << 16):
                    shown += part
            except OSError:  # on Linux: no writer is left
                pass
            os.close(main)
            self.assertEqual(process.wait(timeout=PATIENCE), 0, arguments)
        return shown

    def wait_until(self, condition, process=None):
        """Waits until condition() holds. Fails after LOOKS looks, or if `process` ends before."""
        for _ in range(LOOKS):
            has_ended = process is not None and process.poll() is not None
            if condition():
                return
            if has_ended:
                streams = process.communicate(timeout=PATIENCE)
                self.fail(f"the process has ended with {process.returncode}: {streams}")
            time.sleep(0.003)
        self.fail("what the test waits for does not come")

    def wait_until_it_waits(self, process):
        """Waits until the process catches SIGINT and SIGTERM and sleeps between two looks."""
        caught = 1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1
        seen = []

        def waits():
            fields = status(process)
            is_asleep = int(fields["SigCgt"], 16) & caught == caught and fields["State"][0] == "S"
            seen.append(fields["voluntary_ctxt_switches"] if is_asleep else None)
            return seen[-1] is not None and seen[-2:-1] == seen[-1:]

        self.wait_until(waits)

    def commands(self):
        """Returns the names of all commands, which the help lists."""
        listed = self.run_qkv("--help").out.split("Subcommands:\n")[1].split("\n\n")[0]
        names = re.findall(r"^  (\w+)", listed, re.M)
        self.assertGreater(len(names), 10)
        return names

    def file(self, name, text):
        (self.dir / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    def names(self):
        return sorted(path.name for path in self.dir.iterdir())

    def near(self, got, want, bound=1e-6):
        got, want = np.asarray(got), np.asarray(want)
        self.assertEqual(got.shape, want.shape)
        self.assertTrue(np.isfinite(got).all())
        self.assertLessEqual(np.abs(got - want).max(), bound)

    def saved(self, *arguments):
        """Returns the arrays that `qkv words` saves, by name."""
        self.run_qkv("words", *arguments, "-o", "out.npz")
        return dict(np.load(self.dir / "out.npz"))
