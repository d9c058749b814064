# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m qkv` and of the script `qkv`; runs the executable in the package."""

import os
import signal
import sys

from ._program import PROGRAM

NOT_IN_THIS_BUILD = 7  # the executable, too, exits with 7 if its build lacks a feature


def main() -> int:
    """Replaces this process with the executable; returns only if that is missing."""
    if not PROGRAM.is_file():
        print(
            "qkv: the command line is not in this build of the Python package: what it needs was "
            "missing when it was built (docs/contributing/building.md)",
            file=sys.stderr,
        )
        return NOT_IN_THIS_BUILD
    # Python ignores these two signals, and an ignored signal stays ignored across exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(PROGRAM, ["qkv", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
