# SPDX-License-Identifier: Apache-2.0
"""The python blocks of one document: one process runs them all, in order.

Each block is run with the names that the blocks above it defined. It fails if it raises an
exception or calls sys.exit with anything but 0 or None; the blocks below it are run all the same.
If the process ends (os._exit, a crash) or times out, they are not run, and fail too.
"""

import contextlib
import json
import os
import pathlib
import select
import subprocess
import tempfile

from docs_blocks_common import SECONDS, Wrong

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
# The process reads a line for each block, [document, code] in JSON, and answers with a line: the
# exit status.
PROCESS = """
import ctypes, json, os, sys, traceback

def run(document, code, names):
    try:
        exec(compile(code, document, "exec"), names)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
        return 1
    return 0

requests, answers = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
for pipe in requests, answers:
    os.set_inheritable(pipe.fileno(), False)
del sys.argv[1:]
names = {"__name__": "__main__"}
for request in requests:
    status = run(*json.loads(request), names)
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    print(status, file=answers, flush=True)
"""


def interpreter():
    """The Python of .venv-python, or else of .venv. scripts/setup.sh creates both."""
    best, other = (CHECKOUT / venv / "bin/python" for venv in (".venv-python", ".venv"))
    return best if best.exists() else other


def is_installed(package):
    return any(CHECKOUT.glob(f".venv-python/lib/python3*/site-packages/{package}"))


class Printed:
    """A file to which a process writes its output, which is read in pieces."""

    def __init__(self):
        self.file, self.end = tempfile.TemporaryFile(), 0

    def since_last(self):
        # pread() is used because the process shares the file offset.
        size = os.fstat(self.file.fileno()).st_size
        piece = os.pread(self.file.fileno(), size - self.end, self.end)
        self.end = size
        return piece.decode("utf-8", errors="replace")


class Session:
    """The process that runs the python blocks of a document."""

    def __init__(self, directory, environment):
        self.out, self.err = Printed(), Printed()
        self.over = None  # why the process runs no more blocks
        reads, requests = os.pipe()
        self.answers, writes = os.pipe()
        self.requests = os.fdopen(requests, "wb", buffering=0)
        self.process = subprocess.Popen(
            [interpreter(), "-c", PROCESS, str(reads), str(writes)], cwd=directory, env=environment,
            stdin=subprocess.DEVNULL, stdout=self.out.file, stderr=self.err.file,
            pass_fds=(reads, writes))
        os.close(reads)
        os.close(writes)

    def run(self, document, block):
        """Runs a block and returns what it prints on stdout."""
        if self.over:
            raise Wrong(f"not run: {self.over}")
        code = "\n" * (block.line - 1) + block.code  # errors have the document's line
        with contextlib.suppress(BrokenPipeError):  # no answer comes then, which answer() reports
            self.requests.write(json.dumps([str(document), code]).encode() + b"\n")
        status = self.answer(f"the block of line {block.line}")
        out, err = self.out.since_last(), self.err.since_last()
        if status:
            raise Wrong(f"exit {status}\n{out}{err}")
        return out

    def answer(self, block):
        """Waits for the end of a block and returns its exit status, 0 if it passed; if the process
        ended, a text that begins with the status."""
        if not select.select([self.answers], [], [], SECONDS)[0]:
            self.over = f"{block} was not done after {SECONDS} s"
            self.process.kill()
            self.process.wait()
            raise Wrong(f"not done after {SECONDS} s")
        status = os.read(self.answers, 100)
        if status:
            return int(status)
        self.over = f"{block} ended the process"
        return f"{self.process.wait()}, and the process with it"

    def end(self):
        """Ends the process, which must exit normally."""
        self.requests.close()
        try:
            status = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Wrong(f"not done {SECONDS} s after the last block") from None
        finally:
            os.close(self.answers)
        if status and not self.over:
            raise Wrong(f"exit {status} after the last block\n{self.err.since_last()}")
