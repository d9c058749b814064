#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv view A --minus B`.

usage: view_difference_test.py PROGRAM [TEST ...]
"""

import json
import unittest

import numpy as np
from program import Case
from random_maps import weights

WORDS = ["the", "cat", "sat", "down"]


class Difference(Case):
    def setUp(self):
        super().setUp()
        self.a, self.b = weights(2, 3, 4, 4), weights(2, 3, 4, 4, seed=1)
        self.save("a.npz", attn=self.a, src=WORDS)
        self.save("b.npz", attn=self.b, src=WORDS)

    def save(self, name, **arrays):
        np.savez(self.dir / name, **arrays)

    def json(self, *arguments):
        return json.loads(self.run_qkv("view", *arguments, "--json").out)

    def test_of_the_same_part(self):
        got = self.json("a.npz", "--minus", "b.npz", "--layers", 1, "--heads", "0,2", "--keys",
                        "1-2")
        self.assertEqual(got["minus"], "b.npz")
        for panel, head in zip(got["panels"], (0, 2), strict=True):
            want = self.a[1, head][:, 1:3].astype(float) - self.b[1, head][:, 1:3]
            self.near(panel["difference"], want, 1e-7)
        # There are no notes on weights, since the rows of a difference sum to 0.
        self.assertEqual(got["notes"], ["a.npz minus b.npz", "2 of 4 keys not selected"])

    def test_files_hold_it_under_its_own_name(self):
        self.run_qkv("--quiet", "view", "a.npz", "--minus", "b.npz", "-o", "d.npz", "-o", "d.npy",
                     "-o", "d.svg", "-o", "d.txt")
        saved = np.load(self.dir / "d.npz")
        want = self.a.astype(float) - self.b
        self.near(saved["difference"], want, 1e-7)
        self.assertNotIn("attn", saved)
        self.near(np.load(self.dir / "d.npy"), want, 1e-7)
        svg = (self.dir / "d.svg").read_text()
        self.assertIn(">difference</text>", svg)
        self.assertIn(f"{want[1, 2, 0, 3]:.4f}", (self.dir / "d.txt").read_text())
        again = self.run_qkv("view", "d.npz:difference", "-o", "-")
        self.assertEqual(again.err, "")
        bar = "linearGradient"
        self.assertEqual(again.out.split(bar)[1], svg.split(bar)[1])

    def test_a_page_takes_the_name_of_the_first_array(self):
        for name in ("s.npz", "t.npz"):
            self.save(name, attn=self.a, scores=self.a - 1, src=WORDS)
        for minus in ("t.npz:scores", "t.npz"):
            done = self.run_qkv("--quiet", "view", "s.npz:scores", "--minus", minus, "-o", "d.html")
            self.assertEqual(done.err, "")
            self.assertNotIn("negative weights", (self.dir / "d.html").read_text())

    def test_colours_are_centred_at_0(self):
        out = self.run_qkv("view", "a.npz", "--minus", "b.npz").out
        most = np.abs(self.a.astype(float) - self.b).max()
        self.assertIn(f"-{most:.3g} [▤≡=- ░▒▓█] {most:.3g}   difference\n", out)

    def test_reductions_come_first(self):
        got = self.json("a.npz", "--minus", "b.npz", "--reduce", "max-heads", "--layers", 0)
        self.near(got["panels"][0]["difference"], self.a[0].max(0) - self.b[0].max(0))
        self.assertEqual(got["notes"][1], "maximum of heads 0-2")

    def test_other_tokens_are_told(self):
        self.save("b.npz", attn=self.b, src=["the", "dog", "sat", "up"])
        notes = self.json("a.npz", "--minus", "b.npz")["notes"]
        self.assertEqual(notes, ["a.npz minus b.npz",
                                 'tokens differ at 2 of 4 places, first at 1: "cat" in a.npz, '
                                 '"dog" in b.npz'])
        self.save("b.npz", attn=self.b, src=WORDS, tgt=["the", "dog", "sat", "up"])
        notes = self.json("a.npz", "--minus", "b.npz")["notes"]
        self.assertIn("tokens differ at 2 of 4 queries, first at 1", notes[1])
        self.save("b.npz", attn=self.b)  # no tokens: nothing to compare
        self.assertEqual(self.json("a.npz", "--minus", "b.npz")["notes"], ["a.npz minus b.npz"])

    def test_other_masks_are_told(self):
        self.save("b.npz", attn=np.tril(self.b), src=WORDS, mask=np.tri(4, dtype=bool))
        got = self.json("a.npz", "--minus", "b.npz", "--layers", 0, "--heads", 0)
        self.assertEqual(got["notes"][1],
                         "masks differ: 6 of 16 pairs are masked in one file only, and drawn")
        np.testing.assert_array_equal(got["panels"][0]["allowed"], np.ones((4, 4), bool))
        self.save("a.npz", attn=np.tril(self.a), src=WORDS, mask=np.tri(4, dtype=bool))
        got = self.json("a.npz", "--minus", "b.npz", "--layers", 0, "--heads", 0)
        self.assertEqual(len(got["notes"]), 1)
        np.testing.assert_array_equal(got["panels"][0]["allowed"], np.tri(4, dtype=bool))

    def test_of_the_heads_that_both_have(self):
        b = weights(2, 2, 4, 4, seed=2)  # only heads 0 and 1, of both layers
        self.save("b.npz", attn=b)
        got = self.json("a.npz", "--minus", "b.npz", "--heads", "0-1")
        want = (self.a[:, :2].astype(float) - b).reshape(4, 4, 4)
        for panel, maps in zip(got["panels"], want, strict=True):
            self.near(panel["difference"], maps, 1e-7)

    def test_another_array(self):
        self.save("a.npz", attn=self.a, scores=3 * self.a)
        self.save("b.npz", attn=self.b, scores=2 * self.b)
        got = self.json("a.npz:scores", "--minus", "b.npz", "--layers", 0)
        self.near(got["panels"][1]["difference"], 3 * self.a[0, 1] - 2 * self.b[0, 1])
        got = self.json("a.npz:scores", "--minus", "a.npz:attn", "--layers", 0)
        self.near(got["panels"][1]["difference"], 2 * self.a[0, 1])

    def test_types(self):
        self.save("b.npz", attn=self.b.astype(np.float16))
        self.run_qkv("--quiet", "view", "a.npz", "--minus", "b.npz", "-o", "d.npy")
        self.assertEqual(np.load(self.dir / "d.npy").dtype, np.float32)
        self.save("b.npz", attn=self.b.astype(np.float64))
        self.run_qkv("--quiet", "view", "a.npz", "--minus", "b.npz", "-o", "d.npy")
        self.assertEqual(np.load(self.dir / "d.npy").dtype, np.float64)


if __name__ == "__main__":
    unittest.main()
