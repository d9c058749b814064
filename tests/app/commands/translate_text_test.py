#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests which arguments `qkv translate` takes as text or file, and unknown words.

usage: translate_text_test.py PROGRAM [TEST ...]
"""

import unittest

import numpy as np
from program import Case
from translate_test import SEED, Model
from translator import UNKNOWN, Translator


class Arguments(Model):
    def test_a_text(self):
        expected = self.translate(lines="cab abba\n")
        for words in (["cab abba"], ["cab", "abba"]):
            self.assertEqual(self.translate(*words, lines=""), expected)

    def test_dates_and_abbreviations_are_texts(self):
        for text in ("3/5/1987", "3.5.1987", "U.S.A", "a b.txt c", "a/b c", "abc.", "a/b", "cab/abba/a",
                     "3/may/1987"):
            self.assertEqual(self.translate(text, lines=""), self.translate(lines=text + "\n"))

    def test_a_missing_file_whose_name_has_spaces(self):
        for name in ("my file.txt", "my own file.tsv"):
            for model in ("m.safetensors", "--demo"):
                self.assertEqual(self.refuse(3, "translate", model, name),
                                 f"qkv: {name}: No such file or directory\n")
        self.file("my file.txt", b"cab\n")
        self.assertEqual(self.translate("my file.txt", lines=""), self.translate(lines="cab\n"))

    def test_an_empty_text_stays_empty(self):
        for text in ("", " ", "\u200b", "\ufeff", "\u200d\u3000"):
            for words in (["m.safetensors", text], ["--demo", text], ["--dates", text],
                          [text, "--dates"], ["--dates", text, text]):
                self.assertEqual(self.run_qkv("translate", *words).out, "\n", words)
            self.assertEqual(self.translate(lines=f"abc\n{text}\nabc\n"),
                             self.translate(lines="abc\n\nabc\n"), repr(text))
        self.assertEqual(self.run_qkv("translate", "--dates", "", "3 may 1987").out, "1987-05-03\n")

    def test_a_file_comes_before_a_text(self):
        self.file("cab", b"a\nb\n")
        self.assertEqual(self.translate("cab", lines=""), self.translate(lines="a\nb\n"))

    def test_a_slash_after_what_is_no_folder_is_text(self):
        self.file("abba", b"a\n")  # no folder
        self.assertEqual(self.translate("abba/cab", "either/or", lines=""),
                         self.translate(lines="abba/cab either/or\n"))

    def test_demo_reads_an_existing_file(self):
        self.file("dates.txt", b"3 may 1987\n4 may 1987\n")
        self.assertEqual(self.run_qkv("translate", "--dates", "dates.txt").out,
                         "1987-05-03\n1987-05-04\n")

    def test_axes_are_named(self):
        self.translate("-o", "a.npz")
        with np.load(self.dir / "a.npz") as arrays:
            self.assertEqual(arrays["axes"].tolist(), ["target", "source"])


class Unknown(Case):
    """Tests with models of words that write <unk> wherever they can."""

    def setUp(self):
        super().setUp()
        for name, attention in (("m", "additive"), ("none", "none")):
            model = Translator(source=["red", "dog"], target=["un", "."], tokenize="word",
                               letters="lower", seed=SEED, attention=attention)
            model.p["output.bias"][UNKNOWN] += 100
            self.file(f"{name}.safetensors", model.file())

    def words(self, *arguments, model="m.safetensors"):
        done = self.run_qkv("translate", model, "red Xavier", "--most-tokens", 3, *arguments)
        return done.out.split()

    def test_copies_the_word_it_looks_at_as_it_is_typed(self):
        self.run_qkv("translate", "m.safetensors", "red Xavier", "--most-tokens", 3, "-o", "a.npz")
        with np.load(self.dir / "a.npz") as arrays:
            looked = arrays["attn"][0, 0, 0, :, :2].argmax(-1)
            self.assertEqual(arrays["tgt"][0].tolist(), ["<unk>"] * 3)
        expected = [["red", "Xavier"][key] for key in looked]
        self.assertEqual(self.words(), expected)
        self.assertEqual(self.words("--unknown", "copy"), expected)

    def test_writes_unk_if_told(self):
        self.assertEqual(self.words("--unknown", "keep"), ["<unk>"] * 3)

    def test_a_model_that_does_not_look_copies_nothing(self):
        self.assertEqual(self.words(model="none.safetensors"), ["<unk>"] * 3)


if __name__ == "__main__":
    unittest.main()
