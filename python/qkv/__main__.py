# SPDX-License-Identifier: Apache-2.0
"""`python -m qkv` and the script `qkv`: the command line, a program of its own in the package."""

import os
import pathlib
import signal
import sys

PROGRAM = pathlib.Path(__file__).with_name("bin") / "qkv"
NOT_IN_THIS_BUILD = 7  # the program's own exit status for what a build lacks


def main() -> int:
    """Becomes the program, with the arguments of this process. Returns only where there is none."""
    if not PROGRAM.is_file():
        print(
            "qkv: the command line is not in this build of the Python package: what it needs was "
            "missing when it was built (docs/building.md)",
            file=sys.stderr,
        )
        return NOT_IN_THIS_BUILD
    # Python ignores these, and a program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(PROGRAM, ["qkv", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
