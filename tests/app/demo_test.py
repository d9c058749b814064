#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`qkv demo`: what it shows, and that it shows what the other commands compute.

usage: demo_test.py PROGRAM [TEST ...]
"""

import re
import signal
import subprocess
import unittest

import numpy as np
from program import PROGRAM, Case


class Demo(Case):
    def test_fits_a_screen_and_needs_nothing(self):
        done = self.run_qkv("demo", env={"PATH": ""})
        lines = done.out.splitlines()
        self.assertLessEqual(len(lines), 45)
        self.assertLessEqual(max(map(len, lines)), 100)
        self.assertEqual(done.err, "")
        self.assertNotIn("\x1b", done.out)
        self.assertEqual(self.names(), [])

    def test_shows_the_weights_of_the_four_scores(self):
        lines = self.run_qkv("demo", "--tokens", "64").out.splitlines()
        rows = [line for line in lines if re.match(r"\d \w+ ", line)]
        blocks = [np.array([[0 if cell.strip() == "." else float(cell) for cell in
                             re.findall("...", row[12 + 21 * n : 30 + 21 * n])] for row in rows])
                  for n in range(4)]
        for block, score in zip(blocks, ("dot", "scaled_dot", "bilinear", "additive")):
            saved = self.saved("the cat walks on the street", "--score", score)
            self.near(block, 100 * saved["weights"], 0.5 + 1e-9)

    def test_shows_why_scores_are_scaled(self):
        text = self.run_qkv("demo", "--tokens", "64").out
        for width in (2, 8, 32, 128, 512):
            dot, scaled = (1 / (1 + np.exp(-s)) for s in (width, np.sqrt(width)))
            self.assertRegex(text, rf"(?m)^ +{width} +{dot:.4f} +{scaled:.4f} ")
        self.assertIn("0.8808", text)
        self.assertIn("0.9442", text)

    def long_sequence(self, *arguments, env=None):
        """The eight lines about the long sequence."""
        out = self.run_qkv("demo", *arguments, env=env).out
        return re.search(r"\n\n(\d+ tokens(?:.*\n){8})\n", out)[1]

    def test_finds_what_is_hidden_in_a_long_sequence(self):
        for tokens in (64, 1500):
            text = self.long_sequence("--tokens", tokens, "--threads", 2)
            self.assertRegex(text, rf"^{tokens} tokens, .* on 2 threads\n")
            top = re.search(r"\ntop keys  (.*)\n", text)[1]
            found = re.findall(r"(\d+) \((\d+) %\)", top)
            self.assertEqual([int(key) for key, _ in found],
                             [tokens * place // 1000 for place in (731, 158, 402, 967, 23)])
            weights = [int(weight) for _, weight in found]
            self.assertEqual(weights, sorted(weights, reverse=True))
            self.assertLess(80, sum(weights))

    def test_says_time_and_memory_of_a_long_sequence(self):
        text = self.long_sequence("--tokens", 1500)
        for name in ("time", "backward"):
            self.assertRegex(text, rf"(?m)^{name} +[\d.e-]+ s, [\d.]+ GFLOP/s(, [\d.]+ % of the [\d.]+ that bare "
                                   r"multiply-adds reach| \(noisy: .* differ by \d+ %\)|)$")
        memory = re.search(r"(?m)^memory +([\d.]+) MB of scratch; .* would take ([\d.]+) MB$", text)
        self.assertAlmostEqual(float(memory[2]), 4e-6 * 8 * 1500**2, 3)
        backward = re.search(r"(?m)^ +[\w/]+, ([\d.]+) MB of scratch; .* would take ([\d.]+) MB$", text)
        self.assertAlmostEqual(float(backward[2]), 2 * 4e-6 * 8 * 1500**2, 3)
        self.assertLess(float(backward[1]), float(backward[2]) / 4)
        self.assertRegex(text, r"(?m)^own line .*score_mod: \d+\.\d\d x the time$")

    def test_shortens_what_would_be_slow(self):
        text = self.long_sequence(env={"QKV_TARGET": "reference"})
        self.assertRegex(text, r"^(512|64) tokens, .* float32: reference on ")
        self.assertNotIn("multiply-adds", text)

    def test_can_be_stopped(self):
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen([PROGRAM, "demo", "--tokens", "16384"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, cwd=self.dir) as process:
                process.stdout.readline()  # the first part is there before the second begins
                process.send_signal(signal_number)
                _, errors = process.communicate(timeout=60)
            self.assertEqual((process.returncode, errors), (128 + signal_number, b""))


if __name__ == "__main__":
    unittest.main()
