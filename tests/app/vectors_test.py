#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`qkv words` on word vectors of every form, and the memory it takes for large ones.

usage: vectors_test.py PROGRAM [TEST ...]
scripts/measure/word_vectors.py does the same with 1 GB and measures the time.
"""

import pathlib
import unittest

import measured
import numpy as np
from program import PROGRAM, Case

WORDS = "aardvark bellows candle dulcimer ember fiddle".split()
WIDTH = 300


class VectorForms(Case):
    """The same vectors as GloVe, fastText and word2vec write them."""

    def test_all_forms_are_the_same(self):
        numbers = np.random.default_rng(3).normal(0, 1, (6, 7)).astype(np.float32)
        lines = "".join(f"{word} {' '.join(map(repr, map(float, row)))}\n"
                        for word, row in zip(WORDS, numbers))
        records = b"".join(word.encode() + b" " + row.tobytes() for word, row in zip(WORDS, numbers))
        forms = {"glove.txt": lines, "ft.vec": "6 7\n" + lines.replace("\n", " \n"),
                 "w2v.txt": "6 7\n" + lines, "w2v.bin": b"6 7\n" + records}
        for name, text in forms.items():
            saved = self.saved("candle fiddle aardvark", "--vectors", self.file(name, text))
            np.testing.assert_array_equal(saved["x"], numbers[[2, 5, 0]], name)

    def test_binary_is_read_from_standard_input(self):
        records = b"cat " + np.float32([1, 2]).tobytes() + b"\nmat " + np.float32([3, 4]).tobytes()
        done = self.run_qkv("words", "cat mat", "--vectors", "-", input=b"2 2\n" + records)
        self.assertIn("2 words, 2 numbers each", done.out)


@unittest.skipIf(measured.is_sanitized(PROGRAM), "a sanitizer's memory is not the program's")
class VectorMemory(Case):
    """Six words at the end of a file: memory follows them, not the file."""

    def check_memory(self, name):
        size = (self.dir / name).stat().st_size
        self.assertGreater(size, 40e6)
        run = measured.run([pathlib.Path(PROGRAM).resolve(), "words", " ".join(WORDS), "--vectors",
                            name], self.dir)
        self.assertEqual(run.status, 0, run.err)
        self.assertLess(run.peak, 24e6)

    def test_text(self):
        line = " ".join(["0.12345"] * WIDTH)
        with (self.dir / "v.txt").open("w", encoding="ascii") as file:
            file.writelines(f"w{i} {line}\n" for i in range(17500))
            file.writelines(f"{word} {line}\n" for word in WORDS)
        self.check_memory("v.txt")

    def test_binary(self):
        row = np.full(WIDTH, 0.12345, np.float32).tobytes() + b"\n"
        with (self.dir / "v.bin").open("wb") as file:
            file.write(b"35006 %d\n" % WIDTH)
            file.writelines(b"w%d " % i + row for i in range(35000))
            file.writelines(word.encode() + b" " + row for word in WORDS)
        self.check_memory("v.bin")


if __name__ == "__main__":
    unittest.main()
