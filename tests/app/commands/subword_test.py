#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv train --tokenize subword`: the subword model in the folder and in the model file.

usage: subword_test.py PROGRAM [TEST ...]
"""

import json
import unittest

from train_runs import FILES, TrainCase, safetensors

SUBWORD_FILES = sorted([*(name for name in FILES if "vocab" not in name), "subwords.model"])
ENGLISH = ["Hello, Tom!", "How are you?", "We walked and we talked.", "Tom walks.",
           "Are you walking?", "I talk to Tom."]
FRENCH = ["Bonjour, Tom !", "Comment allez-vous ?", "Nous marchions et nous parlions.",
          "Tom marche.", "Marches-tu ?", "Je parle à Tom."]
SUBWORDS = ("--tokenize", "subword", "--vocab", 300)


class Subwords(TrainCase):
    def setUp(self):
        super().setUp()
        lines = [f"{english}\t{french}\n" for english, french in zip(ENGLISH, FRENCH)]
        (self.dir / "data.tsv").write_text("".join(lines * 20), encoding="utf-8")
        (self.dir / "valid.tsv").write_text("".join(lines), encoding="utf-8")

    def refused(self, *arguments, code):
        return self.refuse(code, *arguments).removeprefix("qkv: ").rstrip("\n")

    def test_a_run_resumes_bit_for_bit(self):
        for model in ("unigram", "bpe"):
            with self.subTest(model):
                options = (*SUBWORDS, "--subword-model", model, "--valid", "valid.tsv")
                whole, parts = f"WHOLE-{model}", f"PARTS-{model}"
                self.train(whole, *options, "--after", "9u", "--threads", 1)
                self.train(parts, *options, "--after", "4u", "--threads", 2)
                self.run_qkv("train", parts, "--after", "9u", "--threads", 2)
                self.assertEqual(sorted(self.files(whole)), SUBWORD_FILES)
                for name in ("model.safetensors", "best.safetensors", "subwords.model"):
                    self.assertEqual(self.path(whole, name).read_bytes(),
                                     self.path(parts, name).read_bytes(), name)
                config = json.loads(self.path(whole, "config.json").read_text())
                self.assertEqual((config["tokenize"], config["vocab"], config["subword_model"],
                                  config["source_tokens"], config["target_tokens"]),
                                 ("subword", 300, model, 300, 300))

    def test_learning_is_shown(self):
        told = "qkv: train: learning 300 subwords from 120 pairs\n"
        for mode, times in (("always", 1), ("never", 0)):
            done = self.train(mode, *SUBWORDS, "--after", "1u", "--progress", mode)
            self.assertEqual(done.err.count(told), times, done.err)
        again = self.train("always", *SUBWORDS, "--after", "2u", "--progress", "always")
        self.assertNotIn("learning", again.err)
        text = (self.dir / "data.tsv").read_text(encoding="utf-8")
        self.file("data.tsv", text * 100)  # from 10,000 pairs on, learning is shown at once
        done = self.train("MANY", *SUBWORDS, "--after", "1u", "--progress", "auto")
        self.assertIn("qkv: train: learning 300 subwords from 12000 pairs\n", done.err)
        self.assertEqual(self.train("SILENT", *SUBWORDS, "--after", "1u", "--quiet").err, "")

    def test_a_resumed_run_reads_its_subword_model(self):
        """Resuming learns no new model, since another version of SentencePiece may learn others."""
        self.train("RUN", *SUBWORDS, "--after", "2u")
        self.train("BPE", *SUBWORDS, "--subword-model", "bpe", "--after", "2u")
        pieces = self.path("RUN", "subwords.model")
        whole = pieces.read_bytes()
        pieces.write_bytes(self.path("BPE", "subwords.model").read_bytes())
        self.assertRegex(self.refused("train", "RUN", "--after", "3u", code=2),
                         r"^RUN holds a run with other settings: .*subword_hash: ")
        for bytes_, message in ((whole[:-1], "RUN/subwords.model: Subwords: bytes must be a"),
                                (b"", "RUN/subwords.model: Subwords: bytes must be a")):
            pieces.write_bytes(bytes_)
            self.assertIn(message, self.refused("train", "RUN", "--after", "3u", code=3))
        pieces.unlink()
        self.assertEqual(self.refused("train", "RUN", "--after", "3u", code=3),
                         "RUN/subwords.model: is missing: without it this run cannot be resumed")
        pieces.write_bytes(whole)
        self.run_qkv("train", "RUN", "--after", "3u")
        self.assertEqual(self.updates("RUN"), 3)

    def test_the_model_file_is_enough(self):
        self.train("RUN", *SUBWORDS, "--after", "90e", "--lr", "0.01", "--dropout", 0)
        path = self.path("RUN", "model.safetensors")
        alone = self.dir / "alone.safetensors"
        alone.write_bytes(path.read_bytes())
        self.assertEqual(bytes(safetensors(alone)["subwords"]),
                         self.path("RUN", "subwords.model").read_bytes())
        (self.dir / "lines.txt").write_text("\n".join(ENGLISH), encoding="utf-8")
        done = self.run_qkv("translate", alone, "lines.txt")
        self.assertEqual(done.out.splitlines(), FRENCH)  # spaces and capitals as people write them
        report = json.loads(self.run_qkv("score", alone, "valid.tsv", "--json").out)
        self.assertEqual((report["pairs"], report["exact"]), (6, 6))
        self.assertLess(report["log_probability"], 0)
        # A text whose letters were not in the training data is no error.
        done = self.run_qkv("translate", alone, "中文 😀\t", "--threads", 2)
        self.assertRegex(done.err, r"\A(qkv: TEXT: the translation reached --most-tokens .*\n)?\Z")
        self.run_qkv("translate", alone, "A中", "-o", "a.json")
        table = json.loads((self.dir / "a.json").read_text(encoding="utf-8"))
        self.assertNotIn("<unk>", table["translations"][0]["src"])

    def test_lower_case(self):
        self.train("RUN", *SUBWORDS, "--lower", "--after", "90e", "--lr", "0.01", "--dropout", 0)
        done = self.run_qkv("translate", "RUN", "HELLO, tom!")
        self.assertEqual(done.out, "Bonjour, Tom !\n")

    def test_other_settings_are_another_run(self):
        self.train("RUN", *SUBWORDS, "--after", "2u")
        self.assertRegex(self.refused(*self.arguments("RUN", "--tokenize", "word"), code=2),
                         "other settings: .*tokenize: .*subword.* -> .*word")
        self.assertRegex(self.refused("train", "RUN", "--subword-model", "bpe", code=2),
                         "other settings: .*unigram.* -> .*bpe")

    def test_a_damaged_model_is_refused(self):
        self.train("RUN", *SUBWORDS, "--after", "2u")
        path = self.path("RUN", "model.safetensors")
        pieces = self.path("RUN", "subwords.model").read_bytes()
        whole = path.read_bytes()
        begin = whole.index(pieces)
        for at in (0, 7, len(pieces) // 2, len(pieces) - 1):
            damaged = bytearray(whole)
            damaged[begin + at] ^= 0x80
            path.write_bytes(damaged)
            done = self.run_qkv("translate", path, "Hello", code=3)
            self.assertRegex(done.err, r"^qkv: .*model.safetensors: Subwords: bytes must ")

    def test_runs_of_earlier_versions_are_resumed(self):
        """The config.json of earlier versions has no setting of subwords."""
        self.train("RUN", "--after", "2u")
        config = self.path("RUN", "config.json")
        settings = json.loads(config.read_text())
        for name in ("vocab", "subword_model", "subword_hash"):
            del settings[name]
        config.write_text(json.dumps(settings))
        self.run_qkv("train", "RUN", "--after", "3u")
        self.assertEqual(self.updates("RUN"), 3)


if __name__ == "__main__":
    unittest.main()
