# SPDX-License-Identifier: Apache-2.0
"""Shared by the parts of docs_blocks.py: a block, a fault, running a command, comparing."""

import difflib
import subprocess
from dataclasses import dataclass, field

SECONDS = 1800  # for one command or one block


class Wrong(Exception):
    """A fault of a block, as text for the reader."""


@dataclass
class Block:
    line: int  # of the first line of code
    language: str
    code: str
    marks: dict = field(default_factory=dict)


def finish(command, directory, environment):
    """Runs a command to its end. Returns its status, stdout and stderr, as subprocess.run does."""
    try:
        return subprocess.run(command, cwd=directory, env=environment, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS,
                              encoding="utf-8", errors="replace")
    except subprocess.TimeoutExpired:
        raise Wrong(f"not done after {SECONDS} s") from None


def call(command, directory, environment):
    """Runs a command and returns its stdout. Raises Wrong if it fails."""
    done = finish(command, directory, environment)
    if done.returncode:
        raise Wrong(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def compare(wanted, printed):
    if wanted.rstrip("\n") != printed.rstrip("\n"):
        raise Wrong("prints something else\n" + "\n".join(difflib.unified_diff(
            wanted.splitlines(), printed.splitlines(), "document", "printed", lineterm="")))
