#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what all commands share: file names, output files, help.

usage: outputs_test.py PROGRAM [TEST ...]
"""

import os
import unittest

import numpy as np
from program import Case

Q_K_V = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 6)}


class FilesCase(Case):
    """A directory with the arrays of a call of `attend`, and one file with all of them."""

    def setUp(self):
        super().setUp()
        random = np.random.default_rng(3)
        arrays = {name: random.normal(size=shape).astype(np.float32)
                  for name, shape in Q_K_V.items()}
        for name, array in arrays.items():
            np.save(self.dir / f"{name}.npy", array)
        np.savez(self.dir / "qkv.npz", **arrays)
        self.before = self.names()


class NamesCase(FilesCase):

    def test_options_with_an_equals_sign(self):
        self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--scale=2")
        self.run_qkv("words", "--", "a", "--b=")


class NpyCase(FilesCase):
    """Outputs as .npy, which holds one result: `out` if there are Q, K and V and no --save."""

    def test_one_result(self):
        self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "-o", "x.npy")
        want = np.load(self.dir / "x.npy")
        self.run_qkv("attend", "qkv.npz", "-o", "y.npy")
        np.testing.assert_array_equal(np.load(self.dir / "y.npy"), want)


class WholeCase(FilesCase):
    """Several outputs appear together or not at all."""

    ATTEND = ("attend", "q.npy", "k.npy", "v.npy", "-o", "a.npz")

    def test_a_file_that_is_replaced_keeps_its_permissions(self):
        for mode in (0o600, 0o640):
            self.file("old.npz", "old")
            (self.dir / "old.npz").chmod(mode)
            self.run_qkv("words", "a b", "-o", "old.npz")
            self.assertEqual((self.dir / "old.npz").stat().st_mode & 0o777, mode)
            self.assertEqual((self.dir / "old.npz").read_bytes()[:2], b"PK")

    def test_all_of_them(self):
        os.symlink("far.txt", self.dir / "link.txt")
        self.file("far.txt", "")
        self.run_qkv(*self.ATTEND, "-o", "x.json", "-o", "x.svg", "-o", "link.txt")
        self.assertEqual(self.names(), sorted([*self.before, "a.npz", "far.txt", "link.txt",
                                               "x.json", "x.svg"]))
        self.assertTrue((self.dir / "link.txt").is_symlink())
        self.assertIn("score scaled_dot", (self.dir / "far.txt").read_text())
        umask = os.umask(0)
        os.umask(umask)
        self.assertEqual((self.dir / "a.npz").stat().st_mode & 0o777, 0o666 & ~umask)


class HelpCase(Case):
    def test_lines_are_at_most_100_columns(self):
        for command in ([], *([name] for name in self.commands())):
            for line in self.run_qkv(*command, "--help").out.splitlines():
                self.assertLessEqual(len(line), 100, (command, line))
        text = self.run_qkv("attend", "--help").out
        self.assertRegex(text, r"\(default: out; without V\n {30}scores,weights\)")


class ReportCase(FilesCase):
    def test_numbers_stand_apart_and_to_the_right(self):
        mask = np.zeros((5, 7), bool)
        mask[:, 2:] = True
        np.save(self.dir / "mask.npy", mask)
        v = np.full((2, 2, 7, 6), -1.2345678e-5, np.float32)
        v[..., 1] = np.nan
        v[..., 3] = -np.inf
        np.save(self.dir / "v.npy", v)
        text = self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--mask", "mask.npy", "--save",
                            "out,masked", "--quiet").out
        rows = [line for line in text.splitlines() if line.startswith("  [")]
        out = [row.split()[1:] for row in rows if "nan" in row]
        self.assertTrue(out)
        for row in out:
            self.assertEqual((row[1], row[3]), ("nan", "-inf"))
            self.assertEqual(len(row), 6)
        masked = [row.split()[1:] for row in rows if "nan" not in row]
        self.assertTrue(masked)
        for row in masked:
            self.assertEqual(row[:2], ["-inf", "-inf"])
            self.assertEqual(len(row), 7)
        for block in ([row for row in rows if "nan" in row], [row for row in rows
                                                              if "nan" not in row]):
            self.assertEqual(len(set(map(len, block))), 1, block)

    def test_words_that_are_not_finite(self):
        np.savez(self.dir / "nan.npz", W=np.full((50, 50), np.nan))
        text = self.run_qkv("words", "a b", "--score", "bilinear", "--params", "nan.npz").out
        rows = [line for line in text.splitlines() if " nan " in line]
        self.assertEqual(len(rows), 2, text)
        for row in rows:
            self.assertRegex(row, r"^[ab]  nan  nan  ")


if __name__ == "__main__":
    unittest.main()
