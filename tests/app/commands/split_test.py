#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv split`: no text that is held out is in training, and no line is lost.

usage: split_test.py PROGRAM [TEST ...]
"""

import json
import signal
import subprocess
import unittest

from program import DATA, PATIENCE, PROGRAM, Case

TATOEBA = DATA / "tatoeba-eng-fra.tsv"
QUOTES = str.maketrans({**dict.fromkeys("‘’‚‛′´ʼ", "'"), **dict.fromkeys("“”„‟″", '"')})


def folded(text):
    return " ".join(text.translate(QUOTES).split())


def lines_of(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


class Split(Case):
    # Several sources share a target, as in real translations.
    TABLE = [(f"source {n}", f"target {n % 80 + k}", f"note {n}") for n in range(120)
             for k in range(1 + n % 3)]

    def setUp(self):
        super().setUp()
        self.file("t.tsv", "".join("\t".join(row) + "\n" for row in self.TABLE))

    def split(self, *arguments, table="t.tsv", folder="S", **options):
        done = self.run_qkv("split", table, "-o", folder, "--json", "--progress", "never", *arguments,
                            **options)
        self.assertEqual(done.err, "")
        return json.loads(done.out)

    def parts(self, folder="S"):
        return {path.stem: lines_of(path) for path in sorted((self.dir / folder).iterdir())}

    def test_lines_that_are_no_pairs(self):
        self.split("--hold-out", 9, "--valid", 9, folder="WHOLE")
        data = (self.dir / "t.tsv").read_bytes()
        self.file("blank.tsv", data + b"\n\xe2\x80\x8b\n")
        self.split("--hold-out", 9, "--valid", 9, table="blank.tsv")
        self.assertEqual(self.parts(), self.parts("WHOLE"))
        self.file("bad.tsv", b"only\n\xff\tx\n" + data + b" \tx\n")
        arguments = ("split", "bad.tsv", "-o", "S", "--hold-out", 9, "--valid", 9)
        self.assertIn("bad.tsv:1: expected 2 or more columns, got 1; tabs separate columns; --skip-bad",
                      self.refuse(3, *arguments))
        done = self.run_qkv(*arguments, "--skip-bad")
        lines = len(data.splitlines()) + 3
        self.assertEqual(done.err, f"qkv: bad.tsv: 3 of {lines} lines skipped: 1, 2, {lines}; the "
                                   "first: expected 2 or more columns, got 1; tabs separate columns\n")
        self.assertEqual(self.parts(), self.parts("WHOLE"))
        self.file("bad.tsv", "a\nb\n")
        self.assertEqual(self.refuse(3, *arguments, "--skip-bad"),
                         "qkv: bad.tsv: expected sentence pairs, got none: 2 of 2 lines skipped: 1, "
                         "2; the first: expected 2 or more columns, got 1; tabs separate columns\n")

    def check(self, parts, table, report, columns=(0, 1)):
        """Parts but dropped share no text; each line is in one part, in order; counts are right."""
        texts = {name: [{folded(line.split("\t")[column]) for line in lines} for column in columns]
                 for name, lines in parts.items()}
        for one, other in (("train", "test"), ("train", "valid"), ("valid", "test")):
            for side in (0, 1):
                if other in texts and one in texts:
                    self.assertEqual(texts[one][side] & texts[other][side], set(), (one, other, side))
        held = [set().union(*(texts[name][side] for name in ("test", "valid") if name in texts))
                for side in (0, 1)]
        for line in parts["dropped"]:
            fields = line.split("\t")
            self.assertNotIn(folded(fields[columns[0]]), held[0])
            self.assertIn(folded(fields[columns[1]]), held[1])
        self.assertEqual(sorted(line for lines in parts.values() for line in lines), sorted(table))
        for name, lines in parts.items():
            left = iter(table)
            self.assertTrue(all(line in left for line in lines), f"{name} is not in order")
            self.assertEqual(report[name]["pairs"], len(lines))
            self.assertEqual(report[name]["sources"], len(texts[name][0]))

    def test_parts_share_nothing(self):
        report = self.split("--hold-out", 15, "--valid", 10, "--seed", 3)
        parts = self.parts()
        self.assertEqual([*parts], ["dropped", "test", "train", "valid"])
        self.check(parts, ["\t".join(row) for row in self.TABLE], report)
        self.assertEqual((report["test"]["sources"], report["valid"]["sources"]), (15, 10))
        self.assertGreater(report["dropped"]["pairs"], 5)
        self.assertEqual((report["pairs"], report["sources"], report["targets"]), (240, 120, 81))

    def test_text_says_the_same(self):
        report = self.split("--hold-out", 15, "--valid", 10)
        text = self.run_qkv("split", "t.tsv", "-o", "S", "--hold-out", 15, "--valid", 10).out
        self.assertRegex(text, r"(?m)^table +pairs 240, different sources 120, different targets 81$")
        for name in ("test", "valid", "train", "dropped"):
            part = report[name]
            self.assertRegex(text, rf"(?m)^{name} +pairs {part['pairs']}, sources {part['sources']}: "
                                   rf"S/{name}\.tsv(, whose targets are held out)?$")

    def test_the_same_again_and_another_seed(self):
        for folder, seed in (("S", 5), ("T", 5), ("U", 6), ("V", 5 + 2**32)):
            self.split("--hold-out", 20, "--seed", seed, folder=folder)
        self.assertEqual(self.parts("S"), self.parts("T"))
        self.assertNotEqual(self.parts("S"), self.parts("U"))
        self.assertNotEqual(self.parts("S"), self.parts("V"))
        self.split("--hold-out", 40, "--seed", 5, folder="W")
        self.assertLess(set(self.parts("S")["test"]), set(self.parts("W")["test"]))
        # Pinned: a split must stay the same in later versions.
        self.assertEqual(sorted({line.split("\t")[0] for line in self.parts("S")["test"]})[:4],
                         PINNED)

    def test_columns_and_what_else_a_line_has(self):
        rows = [f"{n}\t{t}\t\t{s}" for s, t, n in self.TABLE]
        self.file("u.tsv", "\ufeff" + "\r\n".join(rows))
        report = self.split("--hold-out", 15, "--cols", "3,1", table="u.tsv")
        self.check(self.parts(), rows, report, (3, 1))
        self.split("--hold-out", 15, folder="T")
        swapped = ["\t".join(line.split("\t")[k] for k in (3, 1, 0)) for line in self.parts()["test"]]
        self.assertEqual(swapped, self.parts("T")["test"])

    def test_texts_that_differ_in_spaces_and_quotes_are_the_same(self):
        rows = ["l’un\tx"] + [f"s{n}\ty{n}" for n in range(40)] + ["l'un  \tz", "s41\t x\u00a0", "s42\tZ"]
        self.file("u.tsv", "".join(f"{row}\n" for row in rows))
        for seed in range(200):  # until the source in two spellings is drawn
            report = self.split("--hold-out", 1, "--seed", seed, table="u.tsv", folder=f"S{seed}")
            if report["test"]["pairs"] == 2:
                break
        self.assertEqual(self.parts(f"S{seed}")["test"], [rows[0], rows[41]])
        self.assertEqual(self.parts(f"S{seed}")["dropped"], [rows[42]])

    def test_standard_input(self):
        self.split("--hold-out", 15, "--valid", 3)
        report = self.split("--hold-out", 15, "--valid", 3, table="-", folder="T/",
                            input=(self.dir / "t.tsv").read_bytes())
        self.assertEqual(report["test"]["file"], "T/test.tsv")
        self.assertEqual(self.parts("S"), self.parts("T"))

    def test_other_files_in_the_folder_stay(self):
        self.split("--hold-out", 15, "--valid", 10)
        (self.dir / "S" / "valid.tsv").unlink()
        (self.dir / "S" / "notes.txt").write_text("mine")
        self.split("--hold-out", 15)
        self.assertEqual([*self.parts()], ["dropped", "notes", "test", "train"])

    def test_interrupt_leaves_no_file(self):
        with subprocess.Popen([PROGRAM, "split", "-", "--hold-out", "5", "-o", "S", "--quiet"],
                              cwd=self.dir, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            self.wait_until_it_waits(process)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=PATIENCE), 130)
            process.stdin.close()
        self.assertEqual(self.names(), ["t.tsv"])

    @unittest.skipUnless(TATOEBA.exists(), f"no {TATOEBA.name}")
    def test_the_real_corpus(self):
        report = self.split("--hold-out", 2000, "--valid", 2000, "--seed", 1, table=TATOEBA)
        self.check(self.parts(), lines_of(TATOEBA), report)
        self.assertEqual([report[name]["pairs"] for name in ("test", "valid", "train", "dropped")],
                         [2795, 2887, 160770, 678])


# The first sources of the test part with seed 5, by the draws of tests/oracle_philox.py.
PINNED = ["source 108", "source 111", "source 115", "source 13"]

if __name__ == "__main__":
    unittest.main()
