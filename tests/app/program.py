# SPDX-License-Identifier: Apache-2.0
"""What the tests of the program `qkv` share: how it is run, and what comes of it.

A test script takes the program as its first argument, then unittest's arguments.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import measured
import numpy as np

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "qkv"
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
# Seconds of a run: a sanitizer makes kernels ten times as slow and more, beside a test that does
# likewise.
PATIENCE = 600 if measured.is_sanitized(PROGRAM) else 120


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name)

    def run_qkv(self, *arguments, code=0, env=None, **options):
        """The finished process; its exit code must be `code` (None: any)."""
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=PATIENCE,
                              cwd=self.dir, env={**os.environ, **(env or {})}, **options)
        done.out = done.stdout.decode(errors="replace")
        done.err = done.stderr.decode()
        if code is not None:
            self.assertEqual(done.returncode, code, f"{arguments}\n{done.out}\n{done.err}")
        return done

    def refuse(self, code, *arguments, **options):
        """One line on standard error, nothing on standard output; returns the line."""
        done = self.run_qkv(*arguments, code=code, **options)
        self.assertEqual(done.out, "")
        self.assertEqual(done.err.count("\n"), 1, done.err)
        return done.err

    def on_terminal(self, *arguments, env=None):
        """What a terminal is sent. The environment is `env` and nothing else."""
        try:
            main, terminal = os.openpty()
        except OSError as error:
            self.skipTest(f"no pseudo-terminal here: {error}")
        shown = b""
        with subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=terminal, cwd=self.dir,
                              env=env or {}) as process:
            os.close(terminal)
            try:
                while part := os.read(main, 1 << 16):
                    shown += part
            except OSError:  # how Linux says that nobody is left to write
                pass
            os.close(main)
            self.assertEqual(process.wait(timeout=60), 0, arguments)
        return shown

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
        self.run_qkv("words", *arguments, "-o", "out.npz")
        return dict(np.load(self.dir / "out.npz"))
