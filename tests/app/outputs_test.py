#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What all commands share: names that are given, files that are written, help that is read.

usage: outputs_test.py PROGRAM [TEST ...]
"""

import os
import unittest

import numpy as np
from program import Case

Q_K_V = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 6)}


class FilesCase(Case):
    """A directory with arrays of `attend` and one file with all of them."""

    def setUp(self):
        super().setUp()
        random = np.random.default_rng(3)
        arrays = {name: random.normal(size=shape).astype(np.float32)
                  for name, shape in Q_K_V.items()}
        for name, array in arrays.items():
            np.save(self.dir / f"{name}.npy", array)
        np.savez(self.dir / "qkv.npz", **arrays)
        self.before = self.names()

    def refuse_all(self, code, *arguments, **options):
        """Refused, and no file appeared or went."""
        line = self.refuse(code, *arguments, **options)
        self.assertEqual(self.names(), self.before)
        return line


class NamesCase(FilesCase):
    def test_empty_ones_are_refused(self):
        attend = ("attend", "q.npy", "k.npy", "v.npy")
        for option in ("--mask", "--padding-mask", "--bias", "--sinks", "--lengths", "--params",
                       "--cu-seqlens-q", "--cu-seqlens-k"):
            self.assertEqual(self.refuse_all(2, *attend, option, ""),
                             f'qkv: {option}: expected FILE[:NAME], got ""\n')
        for arguments, want in [
                ((*attend, "--alibi", ""), "--alibi: expected FILE[:NAME]|auto"),
                ((*attend, "--causal", "--causal-offset", ""),
                 "--causal-offset: expected N|FILE[:NAME]"),
                ((*attend, "--path", ""), "--path: expected NAME"),
                ((*attend, "-o", ""), "--output: expected FILE"),
                ((*attend, "-o", "x.npz", "-o", ""), "--output: expected FILE"),
                (("attend", "q.npy", "k.npy", ""), "Q K [V]: expected Q K [V]"),
                (("words", "a cat", "--vectors", ""), "--vectors: expected FILE"),
                (("words", "a cat", "--heads", "2", "--params", ""), "--params: expected FILE"),
                (("view", ""), "FILE: expected FILE"),
                (("stats", ""), "FILE: expected FILE"),
                (("inspect", ""), "PATH: expected PATH"),
                (("inspect", "q.npy", ""), "PATH: expected PATH")]:
            with self.subTest(arguments=arguments):
                line = self.refuse_all(2, *arguments)
                self.assertTrue(line.startswith("qkv: " + want), line)
                self.assertTrue(line.endswith(', got ""\n'), line)

    def test_options_given_twice(self):
        for arguments, want in [
                (("--lengths", "q.npy", "--lengths", "q.npy"), "--lengths: given twice"),
                (("--scale", "1", "--scale", "2"), "--scale: given twice"),
                (("--lengths",), "--lengths needs a value"),
                (("-o", "a.npz", "-o", "b.npz", "-o"), "--output needs a value")]:
            line = self.refuse_all(2, "attend", "q.npy", "k.npy", "v.npy", *arguments)
            self.assertEqual(line, f"qkv: {want}\n")


class HelpCase(Case):
    def test_lines_are_at_most_100_columns(self):
        for command in ((), ("attend",), ("words",), ("view",), ("info",), ("demo",)):
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
        for these in ([row for row in rows if "nan" in row], [row for row in rows
                                                              if "nan" not in row]):
            self.assertEqual(len(set(map(len, these))), 1, these)

    def test_words_that_are_not_finite(self):
        np.savez(self.dir / "nan.npz", W=np.full((50, 50), np.nan))
        text = self.run_qkv("words", "a b", "--score", "bilinear", "--params", "nan.npz").out
        rows = [line for line in text.splitlines() if "nan" in line]
        self.assertEqual(len(rows), 2, text)
        for row in rows:
            self.assertRegex(row, r"^[ab]     nan     nan  ")


if __name__ == "__main__":
    unittest.main()
