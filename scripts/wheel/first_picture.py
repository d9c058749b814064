#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follows README.md with an installed qkv, from the first lines of Python to the first picture.

usage: first_picture.py README.md SECONDS   (the time since 1970 at which the installation began)
Prints the versions, the number of results that are right, and the seconds from SECONDS to the
picture. Raises AssertionError at the first wrong result. Needs only NumPy and qkv; writes to the
working directory.
"""

import contextlib
import io
import platform
import re
import subprocess
import sys
import time

import numpy as np
import qkv


def blocks(text, after, *languages):
    """Fenced blocks after `after` in Markdown, one of each language, each below the one before."""
    place = text.index(after)
    for language in languages:
        found = re.compile(rf"^```{language}\n(.*?)^```$", re.S | re.M).search(text, place)
        yield found.group(1)
        place = found.end()


def same(printed, wanted):
    assert printed.rstrip("\n") == wanted.rstrip("\n"), f"got:\n{printed}\nwanted:\n{wanted}"


def printed_by(code):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    return output.getvalue()


def program(*arguments):
    return subprocess.run([sys.executable, "-m", "qkv", *arguments], check=True,
                          stdout=subprocess.PIPE, encoding="utf-8").stdout


def attention_by_numpy(q, k, v):
    # einsum, not @: emulated by qemu 7.2, the OpenBLAS of NumPy 2.5 returns NaN on AArch64.
    scores = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), v)


def main():
    started = float(sys.argv[2])
    with open(sys.argv[1], encoding="utf-8") as file:
        readme = file.read()

    code, wanted = blocks(readme, "\n## Python\n", "python", "text")
    same(printed_by(code), wanted)
    code, command, wanted = blocks(readme, "\n`qkv view` draws", "python", "sh", "text")
    printed_by(code)
    same(command, "qkv view mine.npz")
    same(program("view", "mine.npz"), wanted)
    program("view", "mine.npz", "-o", "mine.svg")
    seconds = time.time() - started
    with open("mine.svg", encoding="utf-8") as file:
        picture = file.read()
    assert "<svg" in picture and picture.rstrip().endswith("</svg>"), picture[:200]

    q, k, v = np.random.default_rng(1).standard_normal((3, 2, 3, 50, 8))
    error = np.abs(qkv.attention(q, k, v) - attention_by_numpy(q, k, v)).max()
    assert error < 1e-13, error
    same(program("translate", "--dates", "the 3rd of May, 1987"), "1987-05-03")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}: 5 results are right; "
          f"from pip install to the first picture {seconds:.1f} s")


if __name__ == "__main__":
    main()
