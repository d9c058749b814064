# SPDX-License-Identifier: Apache-2.0
"""`python -m qkv` and the script `qkv`: the command line, a separate executable in the package."""

import os
import pathlib
import signal
import sys

PROGRAM = pathlib.Path(__file__).with_name("bin") / "qkv"
NOT_IN_THIS_BUILD = 7  # the program's exit status for a feature that the build lacks


def main() -> int:
    """Replaces this process with the program, same arguments. Returns only if there is none."""
    if not PROGRAM.is_file():
        print(
            "qkv: the command line is not in this build of the Python package: what it needs was "
            "missing when it was built (docs/building.md)",
            file=sys.stderr,
        )
        return NOT_IN_THIS_BUILD
    # Python ignores these signals, and the program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(PROGRAM, ["qkv", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
