#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast `qkv words` finds six words in a large file of word vectors, and in how much memory.

usage: word_vectors.py [PROGRAM] [--megabytes 1000] [--runs 5] [--binary] [--near] [--keep FILE]

Makes a file of 300 numbers a word, reads it once so that it is in the system's cache, and runs
`qkv words` for six words that stand at its very end. Prints GB/s of each run (the fastest counts:
others share the machine) and the largest memory of any. --near also asks for a word that the file
does not have, so that every word is compared with its spelling. --keep leaves the file there and
takes it again the next time.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

WIDTH = 300
WORDS = ["aardvark", "bellows", "candle", "dulcimer", "ember", "fiddle"]


def names(count):
    """Words of the lengths that words have, all different from each other and from WORDS."""
    return [f"{'lorem ipsum dolor'.split()[i % 3]}{i:x}" for i in range(count)]


def write_text(file, size):
    """Lines of about 2.7 kB, as fastText and GloVe write them."""
    numbers = np.random.default_rng(7).normal(0, 0.4, (997, WIDTH))
    tails = [" " + " ".join(f"{x:.5f}" for x in row) + "\n" for row in numbers]
    line = len(tails[0]) + 8
    for i, name in enumerate(names(size // line) + WORDS):
        file.write((name + tails[i % len(tails)]).encode())


def write_binary(file, size):
    """word2vec's own format."""
    numbers = np.random.default_rng(7).normal(0, 0.4, (997, WIDTH)).astype("<f4")
    tails = [b" " + row.tobytes() + b"\n" for row in numbers]
    words = names(size // (len(tails[0]) + 8)) + WORDS
    file.write(f"{len(words)} {WIDTH}\n".encode())
    for i, word in enumerate(words):
        file.write(word.encode() + tails[i % len(tails)])


# A process begins with the memory of the one that started it as its peak: this one is small.
STARTER = """
import os, sys, time
start = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
print(status, time.perf_counter() - start, usage.ru_maxrss * 1024)
"""


def run(command):
    """Seconds and peak bytes of one run, which must succeed."""
    starter = [sys.executable, "-S", "-E", "-c", STARTER, *command]
    answer = subprocess.run(starter, stdout=subprocess.PIPE, check=True).stdout.split()
    if answer[0] != b"0":
        sys.exit(f"{' '.join(command)}: status {answer[0].decode()}")
    return float(answer[1]), int(answer[2])


def main():
    checkout = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?", default=checkout / "build/release/bin/qkv")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--binary", action="store_true")
    parser.add_argument("--near", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        path = options.keep or pathlib.Path(directory) / "vectors"
        if not path.exists():
            with path.open("wb") as file:
                (write_binary if options.binary else write_text)(file, options.megabytes * 10**6)
        with path.open("rb") as file:
            while file.read(1 << 20):
                pass
        words = WORDS[:5] + ["fiddel"] if options.near else WORDS
        command = [str(options.program), "words", " ".join(words), "--vectors", str(path),
                   "--unknown", "zero", "--quiet"]
        size = path.stat().st_size
        results = [run(command) for _ in range(options.runs)]

    rates = [size / seconds / 1e9 for seconds, _ in results]
    peak = max(memory for _, memory in results)
    print(f"{size / 1e6:.0f} MB, {WIDTH} numbers a word, {' '.join(words)}")
    print("GB/s:", " ".join(f"{rate:.2f}" for rate in rates), f"- fastest {max(rates):.2f}")
    print(f"peak memory: {peak / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
