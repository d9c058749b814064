#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where a translator in training looks, relative to the word it translates.

usage: alignment_offsets.py PAIRS.tsv [--program build/release/bin/qkv] [--seeds 1 2 3]
                            [--updates 300 450 800]   in an environment that has NumPy

PAIRS.tsv is English, tab, French, such as the pairs of manythings.org/anki. For each seed a model
is trained on 60,000 pairs of 4 to 9 words. After each number of updates it translates 1,200 others;
where a word of the list below stands once on either side, not at an end of its sentence, the offset
of its row's largest weight from it is counted. A row of the table: shares of the offsets -1, 0, 1.
"""

import argparse
import random
import subprocess
import tempfile
from pathlib import Path

import numpy as np

# Words whose translation hardly depends on their neighbours.
FRENCH = {
    "house": "maison", "book": "livre", "dog": "chien", "water": "eau", "night": "nuit",
    "school": "école", "money": "argent", "car": "voiture", "father": "père", "mother": "mère",
    "homework": "devoirs", "tomorrow": "demain", "always": "toujours", "never": "jamais",
    "here": "ici", "boston": "boston", "room": "chambre", "tom": "tom", "mary": "mary",
    "brother": "frère", "sister": "sœur", "letter": "lettre", "window": "fenêtre", "door": "porte",
    "problem": "problème",
}  # fmt: skip
TRAINED, TRANSLATED = 60_000, 1200
WORDS = ("--tokenize", "word", "--lower", "--min-count", "2")
SIZES = ("--hidden", "128", "--embedding", "64")


def read_pairs(path):
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t")[:2] for line in lines]
    pairs = [pair for pair in pairs if 4 <= len(pair[0].split()) <= 9]
    random.Random(3).shuffle(pairs)
    inner = [p for p in pairs[TRAINED:] if FRENCH.keys() & set(p[0].lower().split()[1:-1])]
    return pairs[:TRAINED], inner[:TRANSLATED]


def write(path, pairs):
    path.write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")


def offsets(file):
    """Offsets of the largest weight of each row whose word is in FRENCH."""
    with np.load(file) as arrays:
        maps, sources, targets = arrays["attn"][:, 0, 0], arrays["src"], arrays["tgt"]
    found = []
    for weights, source, target in zip(maps, sources.tolist(), targets.tolist()):
        keys = source.index("</s>") + 1
        for english, french in FRENCH.items():
            if source.count(english) != 1 or target.count(french) != 1:
                continue
            key = source.index(english)
            if 1 <= key <= keys - 4:
                found.append(weights[target.index(french), :keys].argmax() - key)
    return np.array(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pairs")
    parser.add_argument("--program", default="build/release/bin/qkv")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, nargs="+", default=[300, 450, 800])
    options = parser.parse_args()
    program = str(Path(options.program).resolve())
    trained, translated = read_pairs(options.pairs)
    print("seed updates   rows     -1      0      1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "train.tsv", trained)
        write(folder / "translate.tsv", translated)

        def run(*arguments):
            subprocess.run(
                [program, *map(str, arguments), "--quiet"],
                cwd=folder, check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip

        for seed in options.seeds:
            for updates in sorted(options.updates):
                run("train", "train.tsv", "-o", f"run{seed}", *WORDS, *SIZES,
                    "--seed", seed, "--after", f"{updates}u")  # fmt: skip
                run("translate", f"run{seed}", "translate.tsv", "--model", "last", "-o", "maps.npz")
                found = offsets(folder / "maps.npz")
                shares = [100 * np.mean(found == offset) for offset in (-1, 0, 1)]
                print(f"{seed:4} {updates:7} {len(found):6}", *(f"{x:4.0f} %" for x in shares),
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
