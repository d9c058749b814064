#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv words --score-mod`, `--mask-mod` and `--with` against NumPy, and what is invalid.

usage: words_expressions_test.py PROGRAM [TEST ...]
"""

import json
import unittest

import numpy as np
from program import Case
from random_maps import softmax

TEXT = "the cat sat on the mat"
WORDS = 6


class WordExpressions(Case):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(3)
        self.slope = np.array([0.5, 0.25])
        self.table = random.normal(size=(2, 11))
        self.document = np.array([0, 0, 0, 1, 1, 1])
        np.savez(self.dir / "arrays.npz", slope=self.slope, table=self.table)
        np.save(self.dir / "document.npy", self.document)

    def check(self, saved, score=lambda s, at: s, allow=None):
        """Compares weights, mask, lse and, without heads, out in the file with NumPy's."""
        s = saved["scores"]
        h, i, j = np.ogrid[: len(s) if s.ndim == 3 else 1, :WORDS, :WORDS]
        s = score(s, (h, i, j)).reshape(s.shape)
        if allow is not None:
            s = np.where(np.broadcast_to(allow((h, i, j)), (1, *s.shape)[-3:]), s, -np.inf)
        s = s.reshape(saved["scores"].shape)
        weights = softmax(s)
        self.near(saved["weights"], weights, 1e-12)
        np.testing.assert_array_equal(saved["attn"], saved["weights"])
        if np.isinf(s).any():
            np.testing.assert_array_equal(saved["mask"], np.isfinite(s))
        else:
            self.assertNotIn("mask", saved)
        with np.errstate(divide="ignore"):
            lse = np.log(np.exp(s).sum(-1))
        np.testing.assert_allclose(saved["lse"], lse, rtol=1e-12)
        if s.ndim == 2:
            self.near(saved["out"], weights @ saved["v"], 1e-12)

    def test_scores_without_heads_are_those_of_numpy(self):
        plain = self.saved(TEXT)
        arrays = ("--with", "slope=arrays.npz", "--with", "d=document.npy")
        text = "where(d[i] == d[j], s * 2, s - slope[h] * abs(i - j)) + (b + h + Tq - Tk) + j / Tk"

        def score(s, at):
            _, i, j = at
            return np.where(self.document[i] == self.document[j], s * 2,
                            s - 0.5 * abs(i - j)) + j / 6

        for options in ((), ("--score", "additive"), ("--score", "dot")):
            with self.subTest(options):
                self.check(self.saved(TEXT, "--score-mod", text, *arrays, *options), score)
        np.testing.assert_array_equal(self.saved(TEXT, "--score-mod", text, *arrays)["scores"],
                                      plain["scores"])

    def test_every_head_has_its_own_scores_and_masks(self):
        plain = self.saved(TEXT, "--heads", 2)
        for form in ("split", "wide"):
            saved = self.saved(TEXT, "--heads", 2, "--form", form, "--score-mod",
                               "s + table[h, i - j + 5] * 3", "--mask-mod", "h == 0 or j <= i",
                               "--with", "table=arrays.npz:table")
            self.check(saved, lambda s, at: s + self.table[at[0], at[1] - at[2] + 5] * 3.0,
                       lambda at: (at[0] == 0) | (at[2] <= at[1]))
        saved = self.saved(TEXT, "--heads", 2, "--mask-mod", "h == 0 or j <= i")
        self.near(saved["weights"][0], plain["weights"][0], 1e-12)
        weights, values = saved["weights"], saved["v"].reshape(WORDS, 2, -1).transpose(1, 0, 2)
        merged = (weights @ values).transpose(1, 0, 2).reshape(WORDS, -1)
        out = merged @ saved["params.fc_o.weight"].T + saved.get("params.fc_o.bias", 0)
        self.near(saved["out"], out, 1e-12)

    def test_a_mask_and_a_score_of_minus_infinity_mask(self):
        text = "document[i] == document[j] and i != 2"
        arrays = ("--with", "document=document.npy")

        def allow(at):
            return (self.document[at[1]] == self.document[at[2]]) & (at[1] != 2)

        by_mask = self.saved(TEXT, "--mask-mod", text, *arrays)
        self.check(by_mask, allow=allow)
        self.assertEqual(by_mask["weights"][2].tolist(), [0] * WORDS)
        self.assertEqual(by_mask["out"][2].tolist(), [0] * 50)
        by_score = self.saved(TEXT, "--score-mod", f"where({text}, s, -1 / 0.)", *arrays)
        self.check(by_score, allow=allow)
        self.check(self.saved(TEXT, "--mask-mod", "i >= 0 and j >= 0"))

    def test_a_word_that_attends_to_none_has_no_strongest_other(self):
        options = ("--mask-mod", "j < i")
        lines = self.run_qkv("words", TEXT, *options).out.splitlines()
        self.assertEqual(lines[3].split(), ["the"] + ["0.0000"] * WORDS + ["-"])
        self.assertEqual(lines[4].split(), ["cat", "1.0000"] + ["0.0000"] * 5 + ["the", "1.0000"])
        report = json.loads(self.run_qkv("words", TEXT, *options, "--json").out)
        self.assertEqual([link["from"] for link in report["strongest_other"]], [1, 2, 3, 4, 5])
        long = " ".join(f"w{n}" for n in range(40))
        lines = self.run_qkv("words", long, *options).out.splitlines()
        self.assertEqual([line.split()[-1] for line in lines if " w0 " in line][0], "-")

    def test_reports_and_files_say_what_was_done(self):
        options = ("--score-mod", "s*slope[h]", "--mask-mod", "j<=i", "--with", "slope=arrays.npz",
                   "--with", "document=document.npy")
        settings = ("with slope=arrays.npz document=document.npy, score_mod s * slope[h], "
                    "mask_mod j <= i")
        done = self.run_qkv("words", TEXT, *options, "-o", "w.svg", "-o", "w.json", "-o", "w.npz",
                            "-o", "w.safetensors")
        first = done.out.splitlines()[0]
        self.assertTrue(first.endswith(f"; score scaled_dot, scale 0.141421, {settings}"), first)
        report = json.loads((self.dir / "w.json").read_text(encoding="utf-8"))
        self.assertEqual((report["score_mod"], report["mask_mod"]), ("s * slope[h]", "j <= i"))
        self.assertEqual(report["with"], {"slope": "arrays.npz", "document": "document.npy"})
        picture = (self.dir / "w.svg").read_text(encoding="utf-8")
        self.assertIn(settings.replace("<", "&lt;"), picture)
        saved = np.load(self.dir / "w.npz")
        self.assertEqual((str(saved["score_mod"]), str(saved["mask_mod"])),
                         ("s * slope[h]", "j <= i"))
        np.testing.assert_array_equal(saved["with.slope"], self.slope)
        np.testing.assert_array_equal(saved["with.document"], self.document)
        # The file's own arrays and texts give the same result again.
        again = self.saved(TEXT, "--score-mod", saved["score_mod"], "--mask-mod", saved["mask_mod"],
                           "--with", "slope=w.npz:with.slope")
        np.testing.assert_array_equal(again["weights"], saved["weights"])
        plain = self.run_qkv("words", TEXT, "-o", "p.npz", "-o", "p.svg", "-o", "p.json")
        self.assertNotIn("_mod", plain.out + (self.dir / "p.svg").read_text(encoding="utf-8")
                         + (self.dir / "p.json").read_text(encoding="utf-8"))
        self.assertFalse({"mask", "score_mod", "mask_mod"} & set(np.load(self.dir / "p.npz")))

    def test_pictures_show_masked_pairs_as_those_of_view(self):
        for heads in ((), ("--heads", 2)):
            self.run_qkv("words", TEXT, *heads, "--mask-mod", "j <= i", "-o", "w.npz", "-o",
                         "w.svg")
            table = self.run_qkv("view", "w.npz", "--table").out
            self.assertIn("- is masked", table)
            self.run_qkv("view", "w.npz", "-o", "view.svg")
            for name in ("w.svg", "view.svg"):
                self.assertIn("masked", (self.dir / name).read_text(encoding="utf-8"), name)
        shown = self.on_terminal("words", TEXT, "--mask-mod", "j <= i",
                                 env={"COLUMNS": "80", "TERM": "vt100"}).decode()
        self.assertIn("masked", shown)
        shown = self.on_terminal("words", TEXT, env={"COLUMNS": "80", "TERM": "vt100"}).decode()
        self.assertNotIn("masked", shown)

    def test_errors_are_those_of_attend(self):
        np.save(self.dir / "x.npy", np.zeros((WORDS, 2)))
        slope = ("--with", "slope=arrays.npz")
        cases = [
            (("--score-mod", "s - slop[h]", *slope), 2, "--score-mod: column 5: unknown name"),
            (("--score-mod", "slope[s]", *slope), 2, "--score-mod: column 1: slope takes integers"),
            (("--score-mod", "i < j"), 2, "--score-mod: score must be a number, got a truth value"),
            (("--score-mod", ""), 2, "--score-mod: column 1: expected a value, got the end"),
            (("--mask-mod", ""), 2, "--mask-mod: column 1: expected a value, got the end"),
            (("--mask-mod", "s > 0"), 2, "--mask-mod: mask must not depend on the score"),
            (slope, 2, "--with requires --score-mod or --mask-mod"),
            (("--score-mod", "s", "--with", "slope"), 2, "--with: expected NAME=FILE[:NAME]"),
            (("--score-mod", "s", *slope, *slope), 2, "--with names two arrays \"slope\""),
            (("--score-mod", "s + slope[j]", *slope), 2,
             "--score-mod: score-mod reads slope at index 2 of axis 0, which has 2 elements"),
            (("--mask-mod", "slope[i] > 0", *slope), 2,
             "--mask-mod: mask-mod reads slope at index 2 of axis 0, which has 2 elements"),
            (("--score-mod", "s", "--with", "slope=absent.npy"), 3, "absent.npy: No such file"),
            (("--score-mod", "s", "--with", "slop=arrays.npz"), 3,
             "arrays.npz: expected an array called \"slop\"")]
        for options, code, message in cases:
            with self.subTest(options):
                line = self.refuse(code, "words", TEXT, *options, "-o", "w.npz")
                self.assertIn(message, line)
                attend = self.refuse(code, "attend", "x.npy", "x.npy", "x.npy", *options)
                self.assertEqual(line, attend)
                self.assertFalse((self.dir / "w.npz").exists())
        line = self.refuse(2, "words", TEXT, "--heads", 2, "--score-mod", "s + slope[j]", *slope)
        self.assertIn("--score-mod: score-mod reads slope at index 2 of axis 0", line)

    def test_inputs_are_told_apart(self):
        score = ("--score-mod", "s + a[0]", "--with", "a=-")
        for options, names in (((), "TEXT and --with"), (("--vectors", "-"), "TEXT and --vectors")):
            line = self.refuse(2, "words", "-", *score, *options)
            self.assertIn(f"{names} cannot both be standard input", line)
        line = self.refuse(2, "words", "a", *score, "--vectors", "-")
        self.assertIn("--vectors and --with cannot both be standard input", line)
        line = self.refuse(2, "words", "a", "--score-mod", "s", "--with", "a=document.npy", "-o",
                           "document.npy")
        self.assertIn("the same file as the input document.npy", line)
        with open(self.dir / "document.npy", "rb") as file:
            done = self.run_qkv("words", "a b", *score, stdin=file)
        self.assertIn("with a=-, score_mod s + float(a[0])", done.out)

    def test_two_names_of_one_array(self):
        with open(self.dir / "document.npy", "rb") as file:
            done = self.run_qkv("words", "a b", "--score-mod", "s + q[i] - t[j]", "--with", "q=-",
                                "--with", "t=-", stdin=file)
        self.assertIn("with q=- t=-", done.out)

    def test_the_help_describes_expressions(self):
        text = self.run_qkv("words", "--help").out
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        attend = self.run_qkv("attend", "--help").out
        begin = "--score-mod and --mask-mod are expressions"
        end = "'i // 16 == j // 16'\n"
        self.assertEqual(text[text.index(begin):text.index(end)],
                         attend[attend.index(begin):attend.index(end)])
        example = next(line for line in text.splitlines() if " 'j <= i'" in line and "qkv" in line)
        self.assertEqual(example.split()[:2], ["qkv", "words"])
        self.run_qkv("words", "near words count more", "--score-mod", "s - abs(i - j) / 2",
                     "--mask-mod", "j <= i")


if __name__ == "__main__":
    unittest.main()
