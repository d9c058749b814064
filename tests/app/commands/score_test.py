#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv score` with a translator in NumPy, and with translations made elsewhere.

BLEU of texts without punctuation is computed again here. corpus_score_test.cc and
tests/python/test_sacrebleu.py compare all scores with sacreBLEU.

usage: score_test.py PROGRAM [TEST ...]
"""

import collections
import json
import math
import re
import unittest

from program import Case
from translate_test import LINES, Model

BLEU = "nrefs:{}|case:mixed|eff:no|tok:13a|smooth:exp|version:qkv-0.1.0"
CHRF = "nrefs:{}|case:mixed|eff:yes|nc:6|nw:0|space:no|version:qkv-0.1.0"

# BLEU and chrF2 of sacreBLEU 2.6 for the texts of test_an_empty_reference.
EMPTY_REFERENCES = (67.56000774035174, 78.14194318071551)


def ngrams(words, n):
    return collections.Counter(zip(*(words[i:] for i in range(n))))


def bleu(sentences):
    """Returns BLEU (Papineni et al. 2002; smoothed by Chen and Cherry's method 3) of a list of
    (translation, its references)."""
    sentences = [(translation.split(), [text.split() for text in references])
                 for translation, references in sentences]
    product, halves = 1.0, 1
    for n in range(1, 5):
        hits = total = 0
        for translation, references in sentences:
            most = collections.Counter()
            for reference in references:
                most |= ngrams(reference, n)
            hits += (ngrams(translation, n) & most).total()
            total += ngrams(translation, n).total()
        if total == 0 or (n == 1 and hits == 0):
            return 0
        if hits == 0:
            halves *= 2
        product *= (hits or 1 / halves) / total
    lengths = [(len(t), min((abs(len(r) - len(t)), len(r)) for r in references)[1])
               for t, references in sentences]
    got, wanted = map(sum, zip(*lengths))
    return 100 * product**0.25 * min(1, math.exp(1 - wanted / got))


def grouped(pairs):
    """Returns {source: its references}."""
    references = {}
    for source, target in pairs:
        references.setdefault(source, []).append(target)
    return references


class Score(Model):
    PAIRS = [("abc", "xyz z y x y"), ("cab a", "z y x?"), ("a", "x"), ("bca", "yy"), ("abc", "x y")]

    def score(self, *arguments, pairs=None, swap=False):
        rows = [(t, s) if swap else (s, t) for s, t in pairs or self.PAIRS]
        self.file("d.tsv", "".join(f"{a}\t{b}\tmore\n" for a, b in rows))
        done = self.run_qkv("score", "m.safetensors", "d.tsv", *arguments, "--progress", "never")
        self.assertEqual(done.err, "")
        return done.out

    def translations(self, sources):
        return self.translate(lines="".join(f"{source}\n" for source in sources))

    def test_lines_that_are_no_pairs(self):
        want = self.score("--json")
        lines = (self.dir / "d.tsv").read_bytes()
        self.file("d.tsv", lines + b"\n\r\n")
        self.assertEqual(self.run_qkv("score", "m.safetensors", "d.tsv", "--json").out, want)
        self.file("d.tsv", lines + b"a\n\tx\n" + b"a" * 5000 + b"\tx\n")
        done = self.run_qkv("score", "m.safetensors", "d.tsv", "--json", "--skip-bad")
        self.assertEqual(done.out, want)
        self.assertEqual(done.err, "qkv: d.tsv: 3 of 8 lines skipped: 6, 7, 8; the first: expected 2 "
                                   "or more columns, got 1; tabs separate columns\n")
        self.file("d.tsv", "a\n")
        self.assertIn("d.tsv: expected sentence pairs, got none: 1 of 1 lines skipped: 1; ",
                      self.refuse(3, "score", "m.safetensors", "d.tsv", "--skip-bad"))

    def test_a_blank_last_line_is_no_translation(self):
        self.score()
        theirs = self.file("t.txt", "x\ny\nz\nx\n")  # four different sources
        want = self.run_qkv("score", "--hypotheses", theirs, "d.tsv").out
        self.file("t.txt", "x\ny\nz\nx\n\n\n")
        self.assertEqual(self.run_qkv("score", "--hypotheses", theirs, "d.tsv").out, want)

    def test_numpy_agrees(self):
        report = json.loads(self.score("--json"))
        total = sum(self.model.log_probability(s, t) for s, t in self.PAIRS)
        tokens = sum(len(t) + 1 for _, t in self.PAIRS)
        self.assertEqual((report["pairs"], report["target_tokens"]), (5, tokens))
        self.near(report["log_probability"], total, 1e-4)
        self.near(report["log_probability_per_token"], total / tokens, 1e-5)
        self.near(report["perplexity"], math.exp(-total / tokens), 1e-4 * math.exp(-total / tokens))

    def test_bleu_is_of_the_text(self):
        """BLEU is of words, with all references of a source."""
        sources = [line for line in LINES if line]
        texts = self.translations(sources)
        self.assertTrue(any(" " in text for text in texts))
        pairs = [(source, text[:-2] + " y") for source, text in zip(sources, texts)]
        pairs += [(source, text + " x") for source, text in zip(sources[:3], texts)]
        report = json.loads(self.score("--json", pairs=pairs))
        self.assertEqual((report["pairs"], report["sentences"]), (len(pairs), len(sources)))
        self.near(report["bleu"], bleu(list(zip(texts, grouped(pairs).values()))), 1e-9)
        self.assertEqual(report["bleu_signature"], BLEU.format("var"))
        self.assertEqual(report["chrf2_signature"], CHRF.format("var"))

    def test_it_scores_what_translate_prints(self):
        plain = json.loads(self.score("--json"))
        self.file("h.txt", "".join(f"{text}\n" for text in self.translations(grouped(self.PAIRS))))
        others = json.loads(self.run_qkv("score", "--hypotheses", "h.txt", "d.tsv", "--json").out)
        self.assertGreater(len(others), 8)
        self.assertEqual({name: plain[name] for name in others}, others)
        beam = json.loads(self.score("--json", "--beam", 3))
        self.assertEqual(beam["perplexity"], plain["perplexity"])

    def test_its_own_translations_are_exact(self):
        sources = [line for line in LINES if line]
        pairs = [(s, t) for s, t in zip(sources, self.translations(sources)) if t]
        self.assertGreater(len(pairs), 3)
        report = json.loads(self.score("--json", pairs=pairs))
        self.assertEqual((report["exact"], report["exact_percent"]), (len(pairs), 100))
        self.near(report["chrf2"], 100, 1e-9)
        wrong = [*pairs[1:], (pairs[0][0], pairs[0][1] + "x")]
        self.assertEqual(json.loads(self.score("--json", pairs=wrong))["exact"], len(pairs) - 1)
        both = json.loads(self.score("--json", pairs=[*wrong, pairs[0]]))
        self.assertEqual((both["exact"], both["sentences"]), (len(pairs), len(pairs)))

    def test_columns(self):
        self.assertEqual(self.score("--cols", "1,0", swap=True), self.score())
        self.assertNotEqual(self.score("--cols", "0,2"), self.score())

    def test_text_says_the_same(self):
        report, text = json.loads(self.score("--json")), self.score()
        self.assertRegex(text, rf"(?m)^pairs +{report['pairs']}$")
        self.assertRegex(text, rf"(?m)^sentences +{report['sentences']}$")
        self.assertRegex(text, rf"(?m)^target tokens +{report['target_tokens']}, including end tokens$")
        self.assertRegex(text, rf"(?m)^log-probability +{report['log_probability']:.4f}, ")
        perplexity = re.escape(format(report["perplexity"], ".6g"))
        self.assertRegex(text, rf"(?m)^perplexity +{perplexity}$")
        for name, key in (("BLEU", "bleu"), ("chrF2", "chrf2")):
            signature = re.escape(report[f"{key}_signature"])
            self.assertRegex(text, rf"(?m)^{name} +{report[key]:.2f}.*\n +{signature}$")
        self.assertRegex(text, rf"(?m)^exact +{report['exact']}, {report['exact_percent']:.2f} %$")
        self.assertEqual(report["one_reference"]["sentences"], 1)
        self.score("-o", "s.json", "-o", "s.txt")
        self.assertEqual(json.loads((self.dir / "s.json").read_text()), report)
        self.assertEqual((self.dir / "s.txt").read_text(), text)

    def test_many_pairs_are_added_up(self):
        one, many = (json.loads(self.score("--json", pairs=self.PAIRS * n)) for n in (1, 50))
        self.assertEqual(many["target_tokens"], 50 * one["target_tokens"])
        self.near(many["log_probability"], 50 * one["log_probability"], 1e-2)
        self.near(many["perplexity"], one["perplexity"], 1e-3)
        self.assertEqual((many["sentences"], many["bleu"]), (one["sentences"], one["bleu"]))
        self.assertEqual(self.score("--threads", 1, pairs=self.PAIRS * 50),
                         self.score("--threads", 2, pairs=self.PAIRS * 50))


    def test_a_long_pair_among_short_ones(self):
        """Padding does not change the numbers."""
        long = [("abc " * 300, "xyz " * 200)]
        apart = [json.loads(self.score("--json", pairs=pairs)) for pairs in (self.PAIRS, long)]
        for pairs in (self.PAIRS + long, long + self.PAIRS):
            report = json.loads(self.score("--json", pairs=pairs))
            self.near(report["log_probability"], sum(x["log_probability"] for x in apart), 1e-2)


class Hypotheses(Case):
    ROWS = [("Go.", "Va !"), ("Run!", "Cours !"), ("Run!", "Courez !"), ("Go.", "Allez-y donc, mon ami !"),
            ("I know.", "Je le sais."), ("Run!", "Cours !")]
    TEXTS = ["Va !", "Courez !", "Je sais tout cela ."]

    def setUp(self):
        super().setUp()
        self.file("d.tsv", "".join(f"{s}\t{t}\n" for s, t in self.ROWS))
        self.file("h.txt", "".join(f"{text}\n" for text in self.TEXTS))

    def score(self, *arguments, **options):
        return json.loads(self.run_qkv("score", *arguments, "--json", **options).out)

    def test_a_line_for_each_sentence_or_each_pair(self):
        each = self.score("--hypotheses", "h.txt", "d.tsv")
        self.assertEqual((each["pairs"], each["sentences"], each["exact"]), (6, 3, 2))
        self.assertNotIn("perplexity", each)
        lines = [self.TEXTS[0], self.TEXTS[1], "x", "y", self.TEXTS[2], "z"]
        self.file("all.txt", "\n".join(lines))
        self.assertEqual(self.score("--hypotheses", "all.txt", "d.tsv"), each)
        self.assertEqual(self.score("--hypotheses", "-", "d.tsv",
                                    input="\n".join(self.TEXTS).encode()), each)
        self.file("empty.txt", "\n\n\n")
        self.assertEqual(self.score("--hypotheses", "empty.txt", "d.tsv")["bleu"], 0)

    def test_an_empty_reference(self):
        """Only an empty translation matches an empty reference."""
        self.file("d.tsv", "a\t\nb\tUn deux trois quatre cinq.\nb\t\n\u200b \tx\n")
        self.assertIn("d.tsv:4: expected text in column 0",
                      self.refuse(3, "score", "--hypotheses", "h.txt", "d.tsv"))
        self.file("d.tsv", "a\t\nb\tUn deux trois quatre cinq.\nb\t\u200b\nc\t\n")
        self.file("t.txt", "\nUn deux trois quatre.\nnoise\n")
        got = self.score("--hypotheses", "t.txt", "d.tsv")
        self.assertEqual(got["exact"], 1)
        self.near(got["bleu"], EMPTY_REFERENCES[0], 1e-9)
        self.near(got["chrf2"], EMPTY_REFERENCES[1], 1e-9)

    def test_one_reference(self):
        """A sentence's second distinct reference counts as a human's translation."""
        one = self.score("--hypotheses", "h.txt", "d.tsv")["one_reference"]
        self.assertEqual(one["sentences"], 2)
        self.assertEqual(one["bleu_signature"], BLEU.format(1))
        self.file("one.tsv", "Go.\tVa !\nRun!\tCours !\n")
        for name, texts in (("humans", "Allez-y donc, mon ami !\nCourez !\n"),
                            ("translations", "Va !\nCourez !\n")):
            self.file("t.txt", texts)
            alone = self.score("--hypotheses", "t.txt", "one.tsv")
            self.assertNotIn("one_reference", alone)
            self.assertEqual(one[name], {key: alone[key] for key in one[name]})
        self.file("same.tsv", "Go.\tVa !\nGo.\tVa\u202f!\n")
        self.file("t.txt", "Va !")
        self.assertNotIn("one_reference", self.score("--hypotheses", "t.txt", "same.tsv"))

    def test_one_reference_as_text(self):
        """Scores with one reference, of fewer than 100 sentences, are in the JSON alone."""
        for sentences in (99, 100):
            self.file("d.tsv", "".join(f"s{n}\tun deux trois {m} {n}\n" for n in range(sentences)
                                       for m in ("quatre", "cinq")))
            self.file("h.txt", "".join(f"un deux trois quatre {n}\n" for n in range(sentences)))
            one = self.score("--hypotheses", "h.txt", "d.tsv")["one_reference"]
            self.assertEqual(one["sentences"], sentences)
            text = self.run_qkv("score", "--hypotheses", "h.txt", "d.tsv").out
            self.assertEqual("one reference" in text, sentences == 100)
        self.assertIn("\none reference    the first, of sentences that have several: 100\n", text)
        self.assertRegex(text, rf"(?m)^  humans +BLEU {one['humans']['bleu']:.2f}, chrF2 ")

    def test_against_another(self):
        self.file("d.tsv", "".join(f"s{n}\tun deux trois quatre cinq {n}\n" for n in range(60)))
        self.file("good.txt", "".join(f"un deux trois quatre cinq {n}\n" for n in range(60)))
        self.file("bad.txt", "".join(f"un deux trois six cinq {n}\n" for n in range(60)))
        self.file("near.txt", "un deux trois\n" + "".join(
            f"un deux trois quatre cinq {n}\n" for n in range(1, 60)))
        far = self.score("--hypotheses", "good.txt", "d.tsv", "--against", "bad.txt")
        other = far["against"]
        self.assertEqual((far["bleu"], other["file"], other["exact"]), (100, "bad.txt", 0))
        self.assertEqual((other["bleu_p"], other["chrf2_p"]), (1 / 1001, 1 / 1001))
        self.assertEqual(other["bleu"], self.score("--hypotheses", "bad.txt", "d.tsv")["bleu"])
        self.assertIn("nrefs:1|bs:1000|seed:0|case:mixed", other["bleu_signature"])
        near = [self.score("--hypotheses", "good.txt", "d.tsv", "--against", "near.txt", "--seed", seed,
                           "--resamples", 500)["against"]["bleu_p"] for seed in (1, 1, 2)]
        self.assertGreater(near[0], 0.05)
        self.assertEqual(near[0], near[1])
        self.assertNotEqual(near[0], near[2])
        text = self.run_qkv("score", "--hypotheses", "good.txt", "d.tsv", "--against", "bad.txt").out
        self.assertRegex(text, r"(?m)^against +bad.txt:\n  BLEU +\d+\.\d\d \(p = 0\.0010\), 1000 ")


if __name__ == "__main__":
    unittest.main()
