#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv attend`: sums over selected queries, and pooled weights.

usage: attend_sums_test.py PROGRAM [TEST ...]
"""

import unittest

import numpy as np

from attend_test import Arrays


class Sums(Arrays):
    def test_sums_over_named_queries(self):
        inputs = self.qkv()
        weights = self.attend("q.npy", "k.npy", "v.npy", "--save", "weights")["weights"]
        some = self.attend("q.npy", "k.npy", "v.npy", "--save", "column_sums,value_sums",
                           "--column-rows", "2,0,2")
        sums = weights[:, :, [2, 0, 2]].sum(axis=2)
        self.near(some["column_sums"], sums, 1e-6)
        lengths = np.repeat(np.linalg.norm(inputs["v"], axis=-1), 2, axis=1)
        self.near(some["value_sums"], sums * lengths, 1e-5)
        line = self.refuse(2, "attend", "q.npy", "k.npy", "v.npy", "--save", "value_sums",
                           "--column-rows", "0,3")
        self.assertIn("--column-rows: column-rows must be 0 or more and below Tq = 3, got 3 at "
                      "entry 1", line)

    def test_pooled_weights_are_an_attention_file(self):
        self.qkv(q=(2, 4, 30, 8), k=(2, 2, 50, 8), v=(2, 2, 50, 6))
        saved = self.attend("q.npy", "k.npy", "--pool", "3,5")
        self.assertEqual(set(saved), {"pooled", "attn"})
        self.assertEqual(saved["attn"].shape, (2, 1, 4, 3, 5))
        np.testing.assert_array_equal(saved["attn"][:, 0], saved["pooled"])
        self.near(saved["pooled"].sum(axis=-1), np.ones((2, 4, 3)), 1e-5)
        self.assertIn("no warnings", self.run_qkv("stats", "out.npz").out)
        self.run_qkv("view", "out.npz", "-o", "maps.svg")
        both = self.attend("q.npy", "k.npy", "--pool", "3,5", "--save", "weights")
        self.assertEqual(both["attn"].shape, (2, 1, 4, 30, 50))


if __name__ == "__main__":
    unittest.main()
