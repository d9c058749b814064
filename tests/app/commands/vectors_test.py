#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv words` on word vectors of every form, and of its memory for large files.

usage: vectors_test.py PROGRAM [TEST ...]
scripts/measure/word_vectors.py does the same with 1 GB and measures the time.
"""

import unittest

import measured
import numpy as np
from program import PROGRAM, Case

WORDS = "aardvark bellows candle dulcimer ember fiddle".split()
WIDTH = 300


class VectorForms(Case):
    """One set of vectors, in the formats of GloVe, fastText and word2vec."""

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
        self.assertIn("words 2, width 2", done.out)


class NearSpellings(Case):
    """Words without a vector, from files and from pipes, which can be read only once."""

    def test_a_pipe_and_a_file_give_the_same(self):
        records = b"".join(word.encode() + b" " + np.float32([1, 2]).tobytes() for word in WORDS)
        for text in ("".join(f"{word} 1 2\n" for word in WORDS).encode(), b"6 2\n" + records):
            lines = []
            for source in (self.file("v", text), "-", "/dev/stdin"):
                lines.append(self.refuse(3, "words", "candles fiddle embr", "--vectors", source,
                                         input=text).partition(": no vector")[2])
            self.assertIn('"candles" (near spellings: candle), "embr" (near spellings: ember);',
                          lines[0])
            self.assertEqual(lines, lines[:1] * 3)

    def test_a_skipped_or_zeroed_word_has_none(self):
        # The warning of a skipped or zeroed word names no near spellings.
        name = self.file("v", "".join(f"{word} 1 2\n" for word in WORDS))
        for unknown in ("skip", "zero"):
            err = self.run_qkv("words", "candles fiddle", "--vectors", name, "--unknown", unknown).err
            self.assertIn('no vector for "candles"; ', err)

    def test_a_header_of_another_count(self):
        text = "9 2\n" + "".join(f"{word} 1 2\n" for word in WORDS)
        for unknown in ("error", "skip"):
            self.assertEqual("qkv: v:1: the file is truncated: expected a word count of 9, got 6\n",
                             self.refuse(3, "words", "candles fiddle", "--vectors",
                                         self.file("v", text), "--unknown", unknown))


@unittest.skipIf(measured.is_sanitized(PROGRAM), "a sanitizer's memory is not the program's")
class VectorMemory(Case):
    """Memory depends on the words, here six at the end of a file, not on the file's size."""

    def check_memory(self, name):
        size = (self.dir / name).stat().st_size
        self.assertGreater(size, 40e6)
        self.assertLess(self.measure("words", " ".join(WORDS), "--vectors", name).peak, 24e6)

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
