#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv stats` against NumPy.

usage: stats_test.py PROGRAM [TEST ...]
"""

import json
import unittest

import numpy as np
import random_maps
from program import Case

TOKENS = "[CLS] the cat sat [PAD]".split()


def weights(*shape):
    return random_maps.weights(*shape, seed=1, dtype=np.float64)


class Stats(Case):
    def save(self, **arrays):
        np.savez(self.dir / "a.npz", **arrays)

    def json(self, *arguments):
        return json.loads(self.run_qkv("stats", "a.npz", "--json", *arguments).out)

    def test_numbers_of_every_head(self):
        attn = weights(2, 3, 4, 6, 6)
        self.save(attn=attn)
        got = self.json("-o", "s.npz")
        far = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
        want = {"entropy": -(attn * np.log(attn)).sum(-1).mean(-1),
                "distance": (attn * far).sum(-1).mean(-1), "first_key": attn[..., 0].mean(-1)}
        saved = np.load(self.dir / "s.npz")
        for name, values in want.items():
            self.near(saved[name], values, 1e-12)
        for head in got["heads"]:
            place = head["example"], head["layer"], head["head"]
            for name, values in want.items():
                self.assertAlmostEqual(head[name], values[place], 12)
        self.assertEqual((len(got["heads"]), got["warnings"]), (24, []))

    def test_a_good_file_has_no_warnings(self):
        self.save(attn=weights(4, 6, 6))
        done = self.run_qkv("stats", "a.npz")
        self.assertTrue(done.out.endswith("\nno warnings\n"), done.out)
        self.assertEqual((done.err, done.out.count("\n")), ("", 9))

    def test_faults_are_lines_of_the_result(self):
        attn = weights(2, 3, 5, 5)
        attn[..., 4] = 0
        attn /= attn.sum(-1, keepdims=True)
        attn[1, 2, 3] = [0.1, 0.2, 0.2, 0.1, 0.4]
        attn[0, 1, 2] *= 3
        self.save(attn=attn, src=TOKENS)
        done = self.run_qkv("stats", "a.npz")
        self.assertEqual(done.err, "")
        self.assertIn('warning: layer 1, head 2: padding receives weight in 1 of 4 rows (most 0.4, '
                      'query 3 "sat", key 4 "[PAD]")\n', done.out)
        self.assertIn("warning: layer 0, head 1: 1 of 4 rows do not sum to 1 (worst 3, ", done.out)
        self.assertEqual(
            [(w["layer"], w["head"], w["fault"]) for w in self.json()["warnings"]],
            [(0, 1, "row_sums"), (1, 2, "padding")])

    def test_a_fault_of_all_heads_is_counted(self):
        self.save(attn=np.full((20, 6, 6), 1 / 6))
        lines = self.run_qkv("stats", "a.npz").out.splitlines()
        self.assertEqual(sum(line.startswith("warning: ") for line in lines), 9)
        self.assertIn("and 12 more heads like this: uniform", lines[-1])
        self.assertEqual(len(self.json()["warnings"]), 20)
        self.save(attn=np.full((9, 6, 6), 1 / 6))
        lines = self.run_qkv("stats", "a.npz").out.splitlines()
        self.assertIn("and 1 more head like this: uniform", lines[-1])

    def test_beside_files_only_warnings_are_told(self):
        self.save(attn=np.full((20, 6, 6), 1 / 6))
        done = self.run_qkv("stats", "a.npz", "-o", "s.npz")
        self.assertEqual(done.out, "")
        self.assertTrue(done.err.startswith("qkv: a.npz: head 0: 6 of 6 rows attend"), done.err)
        self.assertEqual(done.err.count("\n"), 9)
        self.assertEqual(self.run_qkv("stats", "a.npz", "--json", "-o", "s.npz").err, "")

    def test_padding_rows_are_left_out(self):
        attn = weights(2, 5, 5)
        attn[..., 4] = 0
        attn /= attn.sum(-1, keepdims=True)
        attn[:, 4] = [0, 0, 0, 0, 1]
        self.save(attn=attn, src=TOKENS)
        got = self.json("-o", "s.npz")
        rows = attn[:, :4]
        saved = np.load(self.dir / "s.npz")
        self.near(saved["first_key"], rows[..., 0].mean(-1)[None, None], 1e-12)
        for head, entry in enumerate(got["heads"]):
            self.assertEqual((entry["rows"], entry["padding_rows"]), (4, 1))
            mean = rows[head].mean(0)
            self.assertEqual(entry["top_key"], mean.argmax())
            self.assertEqual(entry["top_key_token"], TOKENS[mean.argmax()])
            self.assertAlmostEqual(entry["top_key_weight"], mean.max(), 12)
            self.assertEqual(saved["top_key"][0, 0, head], mean.argmax())
            self.assertEqual(saved["top_key_token"][0, 0, head], TOKENS[mean.argmax()])
            self.assertAlmostEqual(saved["top_key_weight"][0, 0, head], mean.max(), 12)
        self.assertEqual(got["warnings"], [])
        out = self.run_qkv("stats", "a.npz").out
        self.assertIn("1 padding row left out of each head\n", out)
        line = next(line for line in out.splitlines() if line.lstrip().startswith("0 "))
        mean = rows[0].mean(0)
        self.assertTrue(line.endswith(f" {TOKENS[mean.argmax()]} {mean.max():.2f}"), line)

    def test_some_heads(self):
        attn = weights(2, 3, 4, 6, 6)
        self.save(attn=attn, dropped=2 * attn)
        choice = ("--example", 1, "--layers", "0,2", "--heads", "3,1")
        got = self.json(*choice, "-o", "s.npz")
        self.assertEqual([(h["example"], h["layer"], h["head"]) for h in got["heads"]],
                         [(1, 0, 3), (1, 0, 1), (1, 2, 3), (1, 2, 1)])
        self.near(np.load(self.dir / "s.npz")["first_key"],
                  attn[1:2][:, [0, 2]][:, :, [3, 1]][..., 0].mean(-1), 1e-12)

    def test_scores_keep_to_their_columns(self):
        """A file may hold scores from before the softmax, with the fill of masked keys."""
        self.save(attn=np.array([[[1, -1e9, 3e38], [-1e9, 2, 0.5], [1, 2, -1e9]]], np.float32))
        title, row = self.run_qkv("stats", "a.npz").out.splitlines()[2:4]
        self.assertEqual(len(row), len(title), title + "\n" + row)
        self.assertTrue(row.endswith("key 2 1e+38"), row)

    def test_fits_a_terminal(self):
        self.save(attn=np.stack([weights(6, 6)] * 3)[None, None])
        whole = self.run_qkv("stats", "a.npz").out
        self.assertIn("example    layer     head", whole)
        wide = self.on_terminal("stats", "a.npz", env={"COLUMNS": "130"}).decode()
        self.assertEqual(wide.replace("\r", ""), whole)
        for columns in (30, 60):
            text = self.on_terminal("stats", "a.npz", env={"COLUMNS": str(columns)}).decode()
            bands = text.replace("\r", "").split("\n\n")[1:-1]  # without the file and warnings
            self.assertGreater(len(bands), 1)
            self.assertLessEqual(max(len(line) for b in bands for line in b.split("\n")), columns)
            self.assertIn("example/layer/head\r\n", text)
            self.assertEqual(text.count("0/0/2 "), len(bands))
            self.assertIn("top key", text)

    def test_another_array(self):
        self.save(attn=weights(6, 6), dropped=2 * weights(6, 6))
        out = self.run_qkv("stats", "a.npz:dropped").out
        self.assertIn("a.npz:dropped: float64 [6,6]", out)
        self.assertIn("6 of 6 rows do not sum to 1 (worst 2, ", out)

    def test_transposed(self):
        self.save(attn=weights(6, 6).T)
        self.assertIn("transposed?", self.run_qkv("stats", "a.npz").out)

    def test_formats(self):
        self.save(attn=weights(6, 6))
        self.run_qkv("stats", "a.npz", "-o", "s.txt", "-o", "s.json")
        self.assertIn("no warnings", (self.dir / "s.txt").read_text())


if __name__ == "__main__":
    unittest.main()
