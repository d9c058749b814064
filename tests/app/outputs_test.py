#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Common to all commands: file names, output files, help.

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
        """Rejected, and no file appeared or disappeared."""
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

    def test_an_equals_sign_takes_no_next_word(self):
        for arguments in (("--mask=", "q.npy", "k.npy", "v.npy"),
                          ("q.npy", "k.npy", "v.npy", "--mask=", "--causal"),
                          ("q.npy", "k.npy", "v.npy", "--mask=")):
            self.assertEqual(self.refuse_all(2, "attend", *arguments),
                             'qkv: --mask: expected FILE[:NAME], got ""\n')
        self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--scale=2")
        self.run_qkv("words", "--", "a", "--b=")

    def test_options_given_twice(self):
        for arguments, want in [
                (("--lengths", "q.npy", "--lengths", "q.npy"), "--lengths: given twice"),
                (("--scale", "1", "--scale", "2"), "--scale: given twice"),
                (("--lengths",), "--lengths needs a value"),
                (("-o", "a.npz", "-o", "b.npz", "-o"), "--output needs a value")]:
            line = self.refuse_all(2, "attend", "q.npy", "k.npy", "v.npy", *arguments)
            self.assertEqual(line, f"qkv: {want}\n")


class NpyCase(FilesCase):
    """.npy takes one result; the input files determine how many there are."""

    def test_one_result(self):
        self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "-o", "x.npy")
        want = np.load(self.dir / "x.npy")
        self.run_qkv("attend", "qkv.npz", "-o", "y.npy")
        np.testing.assert_array_equal(np.load(self.dir / "y.npy"), want)

    def test_several_are_named(self):
        for arguments, names in [(("q.npy", "k.npy"), "weights, scores"),
                                 (("qkv.npz", "--top", "2"), "top_weights, top_keys"),
                                 (("qkv.npz", "--save", "lse,out"), "out, lse")]:
            line = self.refuse_all(2, "attend", *arguments, "-o", "x.npy")
            self.assertIn(f"an .npy file takes one result, not {names}", line)


class InputsCase(FilesCase):
    """No output replaces an input or another output."""

    def contents(self):
        return {name: (self.dir / name).read_bytes() for name in self.names()}

    def test_outputs_that_are_inputs(self):
        self.run_qkv("words", "a cat", "-o", "a.npz")
        self.file("cat.txt", "cat 1 2\na 3 4\n")
        os.symlink("a.npz", self.dir / "link.npz")
        os.link(self.dir / "q.npy", self.dir / "hard.npy")
        np.save(self.dir / "mask.npy", np.ones((5, 7), bool))
        before = self.contents()
        attend = ("attend", "q.npy", "k.npy", "v.npy")
        for arguments in [
                (*attend, "-o", "q.npy"), (*attend, "-o", "./v.npy"), (*attend, "-o", "hard.npy"),
                (*attend, "-o", "x.npz", "-o", "k.npy"),
                (*attend, "--mask", "mask.npy", "-o", "mask.npy"),
                ("attend", "qkv.npz", "-o", "qkv.npz"),
                ("view", "a.npz", "-o", "link.npz"), ("view", "link.npz", "-o", "a.npz"),
                ("stats", "a.npz", "-o", "a.npz"), ("view", "a.npz:attn", "-o", "a.npz"),
                ("words", "a cat", "--vectors", "cat.txt", "-o", "cat.txt"),
                ("words", "a", "--score", "bilinear", "--params", "a.npz", "-o", "a.npz")]:
            with self.subTest(arguments=arguments):
                self.assertIn("the same file as the input", self.refuse(2, *arguments))
                self.assertEqual(self.contents(), before)
        with open(self.dir / "q.npy", "rb") as piped:
            line = self.refuse(2, "attend", "-", "k.npy", "v.npy", "-o", "q.npy", stdin=piped)
        self.assertEqual(line, "qkv: -o q.npy: the same file as the input <stdin>\n")
        self.assertEqual(self.contents(), before)

    def test_outputs_that_are_one(self):
        attend = ("attend", "q.npy", "k.npy", "v.npy")
        self.assertIn("-o x.npz: named twice",
                      self.refuse_all(2, *attend, "-o", "x.npz", "-o", "x.npz"))
        self.assertIn("-o ./x.npz: the same file as -o x.npz",
                      self.refuse_all(2, *attend, "-o", "x.npz", "-o", "./x.npz"))
        for name, target in (("y.svg", "x.npz"), ("z.json", "./y.svg")):
            os.symlink(target, self.dir / name)  # dangling
            self.before = self.names()
            self.assertIn(f"-o {name}: the same file as -o x.npz",
                          self.refuse_all(2, *attend, "-o", "x.npz", "-o", name))
        self.file("x.npz", "")
        os.link(self.dir / "x.npz", self.dir / "y.npz")
        self.assertIn("-o y.npz: the same file as -o x.npz",
                      self.refuse(2, *attend, "-o", "x.npz", "-o", "y.npz"))


class WholeCase(FilesCase):
    """Several outputs appear together or not at all."""

    ATTEND = ("attend", "q.npy", "k.npy", "v.npy", "-o", "a.npz")

    def test_a_file_that_is_replaced_keeps_its_permissions(self):
        for mode in (0o600, 0o640):
            self.file("old.npz", "old")
            (self.dir / "old.npz").chmod(mode)
            self.run_qkv("words", "a b", "-o", "old.npz")
            self.assertEqual((self.dir / "old.npz").stat().st_mode & 0o777, mode)
            self.assertEqual((self.dir / "old.npz").read_bytes()[:2], b"PK")

    def test_a_missing_directory(self):
        line = self.refuse_all(4, *self.ATTEND, "-o", "nodir/x.json")
        self.assertEqual(line, "qkv: nodir/x.json: cannot be written: No such file or directory\n")

    def test_a_directory_in_the_place(self):
        (self.dir / "x.json").mkdir()
        self.before = self.names()
        line = self.refuse_all(4, *self.ATTEND, "-o", "x.json")
        self.assertEqual(line, "qkv: x.json: cannot be written: it is not a regular file\n")

    def test_pictures_that_cannot_be_drawn(self):
        line = self.refuse_all(7, *self.ATTEND, "-o", "x.png", env={"PATH": "/nowhere"})
        self.assertIn("rsvg-convert", line)
        np.save(self.dir / "q.npy", np.ones((2100, 1), np.float32))
        np.save(self.dir / "k.npy", np.ones((2100, 1), np.float32))
        for picture in (("-o", "x.svg"), ("-o", "-", "--format", "svg")):
            line = self.refuse_all(2, "attend", "q.npy", "k.npy", "-o", "a.npz", *picture)
            self.assertIn("cells", line)

    def test_all_of_them(self):
        os.symlink("far.txt", self.dir / "link.txt")
        self.file("far.txt", "")
        self.run_qkv(*self.ATTEND, "-o", "x.json", "-o", "x.svg", "-o", "link.txt")
        self.assertEqual(self.names(), sorted([*self.before, "a.npz", "far.txt", "link.txt",
                                               "x.json", "x.svg"]))
        self.assertTrue((self.dir / "link.txt").is_symlink())
        self.assertIn("score scaled_dot", (self.dir / "far.txt").read_text())
        umask = os.umask(0)
        os.umask(umask)
        self.assertEqual((self.dir / "a.npz").stat().st_mode & 0o777, 0o666 & ~umask)


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
            self.assertRegex(row, r"^[ab]  nan  nan  ")


if __name__ == "__main__":
    unittest.main()
