#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast `qkv words` finds six words in a large file of word vectors, and in how much memory.

usage: word_vectors.py [PROGRAM] [--megabytes 1000] [--runs 5] [--keep FOLDER]

Makes four files of 300 numbers a word: text and binary, with dissimilar and with similar words
("w5_0000001"). Reads each file once so that it is in the system's cache, then runs `qkv words` for
the last six words, and again with one of them misspelled, which the program must reject.
Prints GB/s of each run (the fastest counts: the machine is shared) and the largest peak memory.
--keep keeps the files for the next run.
"""

import argparse
import pathlib
import tempfile

import numpy as np
from watched import watched

WIDTH = 300
UNLIKE = ["aardvark", "bellows", "candle", "dulcimer", "ember", "fiddle"]


def names(kind, count):
    """Distinct words, similar if `kind` is "alike". The last six are searched for."""
    if kind == "alike":
        return [f"w5_{i:07}" for i in range(count)]
    # The words have realistic lengths.
    stems = ["lorem", "ipsum", "dolor"]
    return [f"{stems[i % 3]}{i:x}" for i in range(count - len(UNLIKE))] + UNLIKE


def write_text(file, size, kind):
    """Writes lines of about 2.7 kB, as fastText and GloVe do, and returns the last six words."""
    # 997 rows of numbers serve all words, so that a large file is written quickly.
    numbers = np.random.default_rng(7).normal(0, 0.4, (997, WIDTH))
    tails = [" " + " ".join(f"{x:.5f}" for x in row) + "\n" for row in numbers]
    words = names(kind, size // (len(tails[0]) + 8))
    for i, name in enumerate(words):
        file.write((name + tails[i % len(tails)]).encode())
    return words[-6:]


def write_binary(file, size, kind):
    """Writes word2vec's binary format, and returns the last six words."""
    numbers = np.random.default_rng(7).normal(0, 0.4, (997, WIDTH)).astype("<f4")
    tails = [b" " + row.tobytes() + b"\n" for row in numbers]
    words = names(kind, size // (len(tails[0]) + 8))
    file.write(f"{len(words)} {WIDTH}\n".encode())
    for i, word in enumerate(words):
        file.write(word.encode() + tails[i % len(tails)])
    return words[-6:]


FORMATS = {"text": write_text, "binary": write_binary}


def last_words(path, write, size, kind):
    """The last six words of a file, which is created if needed and read into the cache."""
    known = path.with_suffix(".words")
    if not known.exists():
        with path.open("wb") as file:
            known.write_text(" ".join(write(file, size, kind)), encoding="ascii")
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass
    return known.read_text(encoding="ascii").split()


def measure(program, path, words, code, runs):
    """Runs the program on a file, and prints a line with its rates and peak memory."""
    command = [str(program), "words", " ".join(words), "--vectors", str(path), "--quiet"]
    results = [watched(command, code=code) for _ in range(runs)]
    rates = [path.stat().st_size / result.seconds / 1e9 for result in results]
    peak = max(result.peak for result in results) * 1024 * 1024
    print(f"{path.stem:14} {'one missing' if code else 'all present':12}"
          f"{max(rates):5.2f} GB/s ({' '.join(f'{rate:.2f}' for rate in rates)}), "
          f"{peak / 1e6:.1f} MB")


def main():
    checkout = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?", default=checkout / "build/release/bin/qkv")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()

    print(f"{options.megabytes} MB, {WIDTH} numbers a word, six words at the end")
    with tempfile.TemporaryDirectory() as directory:
        for format_, write in FORMATS.items():
            for kind in ("unlike", "alike"):
                path = (options.keep or pathlib.Path(directory)) / f"{format_}-{kind}.vectors"
                words = last_words(path, write, options.megabytes * 10**6, kind)
                measure(options.program, path, words, 0, options.runs)
                misspelled = words[-1][:-2] + words[-1][-1] + "x"
                measure(options.program, path, [*words[:-1], misspelled], 3, options.runs)
                if not options.keep:
                    path.unlink()


if __name__ == "__main__":
    main()
