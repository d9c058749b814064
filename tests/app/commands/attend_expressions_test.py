#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`qkv attend --score-mod`, `--mask-mod` and `--with`: values against NumPy, and what is invalid.

usage: attend_expressions_test.py PROGRAM [TEST ...]
"""

import json
import unittest

import numpy as np
from program import Case
from random_maps import softmax


class Expressions(Case):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(5)
        self.q, self.k = random.normal(size=(2, 2, 3, 30, 8))
        self.v = random.normal(size=(2, 3, 30, 4))
        self.slope = np.array([0.5, 0.25, 0.125])
        self.document = np.arange(30) // 7
        self.table = random.normal(size=(3, 59))
        for name in ("q", "k", "v", "slope", "document", "table"):
            np.save(self.dir / f"{name}.npy", getattr(self, name))

    def attend(self, *options, code=0):
        return self.run_qkv("attend", "q.npy", "k.npy", "v.npy", *options, code=code)

    def weights(self, *options):
        self.attend(*options, "--save", "weights", "-o", "w.npz")
        return np.load(self.dir / "w.npz")["weights"]

    def want(self, change=lambda s, at: s, allow=None):
        s = self.q @ self.k.swapaxes(-1, -2) / np.sqrt(8)
        b, h, i, j = np.ogrid[:2, :3, :30, :30]
        s = change(s, (b, h, i, j))
        if allow is not None:
            s = np.where(allow((b, h, i, j)), s, -np.inf)
        return softmax(s)

    def test_scores_are_those_of_numpy(self):
        cases = {
            "s - slope[h] * abs(i - j)":
                lambda s, at: s - self.slope[at[1]] * abs(at[2] - at[3]),
            "s + table[h, i - j + 29]":
                lambda s, at: s + self.table[at[1], at[2] - at[3] + 29],
            "where(i // 4 == j // 4 and not (j > i or b == 1), s, s * .5 - 1e0)":
                lambda s, at: np.where((at[2] // 4 == at[3] // 4) & ~((at[3] > at[2]) | (at[0] == 1)),
                                       s, s * 0.5 - 1),
            "-(-s) + (i - j) / 8 - (i - 2*j) // 3 % 5 + j % -3":
                lambda s, at: s + (at[2] - at[3]) / 8 - (at[2] - 2 * at[3]) // 3 % 5 + at[3] % -3,
            "20 * tanh(s / 20) + exp(min(s, 0)) + sqrt(max(s, 0)) + log(abs(s) + 1)":
                lambda s, at: 20 * np.tanh(s / 20) + np.exp(np.minimum(s, 0))
                + np.sqrt(np.maximum(s, 0)) + np.log(abs(s) + 1),
            "s - (Tk - 1 - j) / 8 + i // Tq":
                lambda s, at: s - (29 - at[3]) / 8 + at[2] // 30,
            "s + sin(s) * cos(i) + floor(s * 3.5) // 2 + float(0 < j <= 9) + int(s * 10)":
                lambda s, at: s + np.sin(s) * np.cos(at[2]) + np.floor(s * 3.5) // 2
                + ((0 < at[3]) & (at[3] <= 9)) + np.trunc(s * 10)}
        arrays = ("--with", "slope=slope.npy", "--with", "table=table.npy")
        for text, change in cases.items():
            with self.subTest(text):
                self.near(self.weights("--score-mod", text, *arrays), self.want(change), 1e-9)

    def test_masks_are_those_of_numpy(self):
        got = self.weights("--mask-mod", "document[i] == document[j] or j == 0", "--with",
                           "document=document.npy")
        want = self.want(allow=lambda at: (self.document[at[2]] == self.document[at[3]])
                         | (at[3] == 0))
        self.near(got, want, 1e-9)
        self.assertEqual(got[0, 0, 29, 1], 0)

    def test_pairs_that_a_score_masks_are_masked_in_files(self):
        allowed = np.broadcast_to(np.tri(30, dtype=bool), (2, 3, 30, 30))
        for masks, want in (("where(j <= i, s, log(0))", allowed), ("s - j / 8", None)):
            self.attend("--score-mod", masks, "--save", "weights", "-o", "w.npz")
            with np.load(self.dir / "w.npz") as arrays:
                if want is None:
                    self.assertNotIn("mask", arrays)
                else:
                    np.testing.assert_array_equal(arrays["mask"], want[:, None])

    def test_the_report_shows_the_expressions(self):
        done = self.attend("--score-mod", "s*2-1", "--mask-mod", "j<=i", "--json")
        settings = json.dumps(json.loads(done.out))
        self.assertIn('"s * 2.0 - 1.0"', settings)
        self.assertIn('"j <= i"', settings)
        done = self.attend("--score-mod", "s + slope[h]", "--with", "slope=slope.npy", "--with",
                           "t=table.npy")
        self.assertIn(", with slope=slope.npy t=table.npy, score_mod s + slope[h]; path", done.out)

    def test_invalid_expressions_and_arrays_are_refused(self):
        slope = ("--with", "slope=slope.npy")
        cases = [
            (("--score-mod", "s - slop[h]", *slope),
             "--score-mod: column 5: unknown name \"slop\"; known: s, b, h, i, j, Tq, Tk, slope; "
             "arrays are named by --with"),
            (("--mask-mod", "slop[h] > 0", *slope),
             "--mask-mod: column 1: unknown name \"slop\"; known: b, h, i, j, Tq, Tk, slope; "
             "arrays are named by --with"),
            (("--score-mod", "s -"), "--score-mod: column 4: expected a value, got the end"),
            (("--score-mod", ""), "--score-mod: column 1: expected a value, got the end"),
            (("--mask-mod", " "), "--mask-mod: column 2: expected a value, got the end"),
            (("--score-mod", "s ) 2"), "--score-mod: column 3: expected the end, got \")\""),
            (("--score-mod", "(s"), "--score-mod: column 3: expected ), got the end"),
            (("--score-mod", "s + é"), "--score-mod: column 5: expected a value, got \"é\""),
            (("--score-mod", "2s"),
             "--score-mod: column 2: expected an operator after the number, got \"s\""),
            (("--score-mod", "s ** 2"), "--score-mod: column 3: ** is not an operation"),
            (("--score-mod", "where(s, 1, 2)"),
             "--score-mod: column 1: where takes truth values, got a number: s"),
            (("--score-mod", "min(s)"), "--score-mod: column 1: min takes 2 arguments, got 1"),
            (("--score-mod", "slope[s]", *slope),
             "--score-mod: column 1: slope takes integers as indices, got a number: s"),
            (("--score-mod", "slope[h, i]", *slope),
             "--score-mod: column 1: slope has 1 axes, got 2 indices"),
            (("--score-mod", "99999999999"),
             "--score-mod: column 1: an integer must fit in 32 bits, got 99999999999"),
            (("--score-mod", "i < j"), "--score-mod: score must be a number, got a truth value"),
            (("--mask-mod", "i - j"), "--mask-mod: mask must be a truth value"),
            (("--mask-mod", "s > 0"), "--mask-mod: mask must not depend on the score"),
            (("--score-mod", "(" * 300 + "s" + ")" * 300), "more than 200 levels of brackets"),
            (("--with", "slope=slope.npy"), "--with requires --score-mod or --mask-mod"),
            (("--score-mod", "s", "--with", "s=slope.npy"), "--with: expected NAME=FILE[:NAME]"),
            (("--score-mod", "s", "--with", "slope.npy"), "--with: expected NAME=FILE[:NAME]"),
            (("--score-mod", "s", *slope, *slope), "--with names two arrays \"slope\""),
            (("--score-mod", "s + slope[j]", *slope), "reads slope at index 3 of axis 0")]
        for options, message in cases:
            with self.subTest(options):
                self.assertIn(message, self.attend(*options, "-o", "w.npz", code=2).err)
                self.assertFalse((self.dir / "w.npz").exists())
        done = self.attend("--score-mod", "s", "--with", "slope=absent.npy", code=3)
        self.assertIn("absent.npy", done.err)


if __name__ == "__main__":
    unittest.main()
