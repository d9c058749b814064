#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`qkv demo`: its output, which must agree with the other commands.

usage: demo_test.py PROGRAM [TEST ...]
"""

import datetime
import re
import signal
import subprocess
import unittest

import numpy as np
from program import PATIENCE, PROGRAM, Case


class Demo(Case):
    def test_fits_a_screen_and_needs_nothing(self):
        done = self.run_qkv("demo", "--tokens", 2048, env={"PATH": ""})  # `make run` takes the default
        lines = done.out.splitlines()
        self.assertLessEqual(len(lines), 45)
        self.assertLessEqual(max(map(len, lines)), 100)
        self.assertEqual(done.err, "")
        self.assertNotIn("\x1b", done.out)
        self.assertEqual(self.names(), [])

    def test_begins_with_three_spellings_of_a_day_it_was_not_taught(self):
        lines = self.run_qkv("demo", "--tokens", "64", env={"LC_ALL": "C"}).out.splitlines()
        spellings = [text.strip() for text in re.split("   +", lines[1].strip())]
        self.assertEqual(len(spellings), 3)
        day = datetime.date(2015, 5, 3)
        self.assertEqual(spellings[0], f"{day:%A} the 3rd of May, 2015")
        # Vertical characters, in each map.
        rows = [re.findall(r" (\S) \|([^|]*)\|", line) for line in lines[2:12]]
        for n, spelling in enumerate(spellings):
            self.assertEqual("".join(row[n][0] for row in rows), day.isoformat())
            for row in rows:
                self.assertEqual(len(row[n][1]), len(spelling))
                self.assertLessEqual(set(row[n][1]), set(" .+*#"))

    def test_looks_at_year_month_and_day(self):
        lines = self.run_qkv("demo", "--tokens", "64", env={"LC_ALL": "C"}).out.splitlines()
        places = {"#": 4, "*": 3, "+": 2, ".": 1, " ": 0}
        source = "May 3rd 2015"
        at = lines[1].index(source)
        seen = [[places[mark] for mark in line[at : at + len(source)]] for line in lines[2:12]]
        where = {part: range(source.index(part), source.index(part) + len(part))
                 for part in ("2015", "May", "3rd")}
        def share(rows, part):
            total = sum(sum(seen[row]) for row in rows)
            return sum(seen[row][column] for row in rows for column in where[part]) / total
        self.assertGreater(share(range(4), "2015"), 0.7)
        # The significant digits; the zeros before them seldom vary.
        self.assertGreater(share((6,), "May"), 0.7)
        self.assertGreater(share((9,), "3rd"), 0.7)

    def test_shows_the_weights_of_the_four_scores(self):
        lines = self.run_qkv("demo", "--tokens", "64").out.splitlines()
        rows = [line for line in lines if re.match(r"\d \w+ ", line)]
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
            with subprocess.Popen([PROGRAM, "demo", "--tokens", "65536"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, cwd=self.dir) as process:
                process.stdout.readline()  # the first part is there before the second begins
                process.send_signal(signal_number)
                _, errors = process.communicate(timeout=PATIENCE)
            self.assertEqual((process.returncode, errors), (128 + signal_number, b""))


if __name__ == "__main__":
    unittest.main()
