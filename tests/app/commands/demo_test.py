#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv demo`, whose output must agree with that of the other commands.

usage: demo_test.py PROGRAM [TEST ...]
"""

import re
import signal
import subprocess
import unittest

import numpy as np
from program import PATIENCE, PROGRAM, Case


class Demo(Case):
    def test_fits_a_screen_and_needs_nothing(self):
        # The default of `make run`, 16,384 tokens, takes longer.
        done = self.run_qkv("demo", "--tokens", 2048, env={"PATH": ""})
        lines = done.out.splitlines()
        self.assertLessEqual(len(lines), 45)
        self.assertLessEqual(max(map(len, lines)), 100)
        self.assertEqual(done.err, "")
        self.assertNotIn("\x1b", done.out)
        self.assertEqual(self.names(), [])

    SENTENCE = "He gave me a very interesting book."

    def test_begins_with_a_sentence_and_where_it_looked(self):
        self.run_qkv("translate", "--demo", self.SENTENCE, "--beam", 5, "-o", "s.npz")
        saved = dict(np.load(self.dir / "s.npz"))
        lines = self.run_qkv("demo", "--tokens", 64, env={"LC_ALL": "C.UTF-8"}).out.splitlines()
        self.assertTrue(lines[0].endswith(": " + str(saved["translation"][0])), lines[0])
        self.assertEqual(lines[1].strip(), self.SENTENCE)
        weights = saved["attn"][0, 0, 0, :-1, :-1]  # without end tokens
        for row, line in zip(weights, lines[2:], strict=False):
            at = len(lines[1]) - len(" " + self.SENTENCE)
            for piece, weight in zip(saved["src"][0], row, strict=False):
                width = len(piece)
                cells = line.ljust(len(lines[1]))[at : at + width].strip(" ")
                self.assertEqual(cells, " ░▒▓█"[int(np.ceil(4 * weight - 0.5))].strip() * len(piece.strip("▁")))
                at += width

    def test_letters_draw_where_blocks_cannot_be(self):
        lines = self.run_qkv("demo", "--tokens", 64, env={"LC_ALL": "C"}).out.splitlines()
        start = lines[1].index("He")
        drawn = "".join(line[start:] for line in lines[2:12])
        self.assertLessEqual(set(drawn), set(" .+*#"))
        self.assertIn("*", drawn)

    def test_looks_at_the_words_it_translates(self):
        self.run_qkv("translate", "--demo", self.SENTENCE, "--beam", 5, "-o", "s.npz")
        saved = dict(np.load(self.dir / "s.npz"))
        source, target = (list(saved[name][0]) for name in ("src", "tgt"))
        looked = saved["attn"][0, 0, 0].argmax(-1)
        for french, english in (("donné", "gave"), ("livre", "book"), ("intéressant", "interesting")):
            self.assertEqual(source[looked[target.index("▁" + french)]], "▁" + english)

    def test_translates_a_day_it_was_not_taught(self):
        self.assertIn('\nA day that another model, of dates, was not trained on: "third of may '
                      'twenty fifteen" -> 2015-05-03\n', self.run_qkv("demo", "--tokens", 64).out)

    def test_files(self):
        out = self.run_qkv("demo", "--tokens", 64, "-o", "a.svg", "-o", "a.npz").out
        self.assertIn("\nThe translation's attention is also in a.svg, a.npz.\n", out)
        self.assertLessEqual(len(out.splitlines()), 45)  # `make run` writes files, too
        self.assertEqual(self.names(), ["a.npz", "a.svg"])
        self.assertIn("livre", (self.dir / "a.svg").read_text())
        self.assertIn('unknown file extension', self.run_qkv("demo", "-o", "a.x", code=2).err)

    def test_shows_the_weights_of_the_four_scores(self):
        lines = self.run_qkv("demo", "--tokens", "64").out.splitlines()
        rows = [line for line in lines if re.match(r"\d [a-z]+ +[\d.]", line)]
        blocks = [np.array([[0 if cell.strip() == "." else float(cell) for cell in
                             re.findall("...", row[12 + 21 * n : 30 + 21 * n])] for row in rows])
                  for n in range(4)]
        for block, score in zip(blocks, ("scaled_dot", "dot", "bilinear", "additive")):
            saved = self.saved("the cat walks on the street", "--score", score)
            self.near(block, 100 * saved["weights"], 0.5 + 1e-9)

    def test_shows_why_scores_are_scaled(self):
        text = self.run_qkv("demo", "--tokens", "64").out
        for width in (2, 32, 512):
            dot, scaled = (1 / (1 + np.exp(-s)) for s in (width, np.sqrt(width)))
            self.assertRegex(text, rf"(?m)^ +{width} +{dot:.4f} +{scaled:.4f} ")
        self.assertIn("0.8808", text)
        self.assertIn("0.8044", text)

    def long_sequence(self, *arguments, env=None):
        """Returns the seven lines about the long sequence."""
        out = self.run_qkv("demo", *arguments, env=env).out
        return re.search(r"\n\n4 Fast: (\d+ tokens(?:.*\n){7})\n", out)[1]

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
        self.assertRegex(self.run_qkv("demo", "--tokens", 1500).out,
                         r"(?m)^5 Yours: a score of one line, score_mod\(.*\): \d+\.\d\d x that time$")

    def test_shortens_what_would_be_slow(self):
        text = self.long_sequence(env={"QKV_TARGET": "reference"})
        self.assertRegex(text, r"^(512|64) tokens, .* float32: reference on ")
        self.assertNotIn("multiply-adds", text)

    def test_can_be_stopped(self):
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen([PROGRAM, "demo", "--tokens", "65536"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, cwd=self.dir) as process:
                process.stdout.readline()  # the program prints one part before it begins the next
                process.send_signal(signal_number)
                _, errors = process.communicate(timeout=PATIENCE)
            self.assertEqual((process.returncode, errors), (128 + signal_number, b""))


if __name__ == "__main__":
    unittest.main()
