#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv translate` against a translator in NumPy, and the models linked into the program.

usage: translate_test.py PROGRAM [TEST ...]
"""

import json
import os
import re
import select
import signal
import subprocess
import unittest

import measured
import numpy as np
from program import PATIENCE, PROGRAM, Case
from translator import END, Translator

LINES = ["abc", "a", "", "cab abba", "bbb ccc a", "a?b", "c", "ba" * 9]


def model_seed():
    """Returns a seed of a model with translations of several lengths, and one that never ends."""
    for seed in range(100):
        tokens = [Translator(seed=seed).translate(line)[0] for line in LINES if line]
        lengths = [len(row) for row in tokens if row[-1] == "</s>"]
        several = sum(length > 4 for length in lengths) > 1 and len(set(lengths)) > 2
        if several and len(lengths) < len(tokens):
            return seed
    raise AssertionError("no such seed")


SEED = model_seed()


class Model(Case):
    def setUp(self):
        super().setUp()
        self.model = Translator(seed=SEED)
        self.file("m.safetensors", self.model.file())

    def translate(self, *arguments, lines=None, **options):
        """Returns the lines of standard output. Standard input is the text `lines`, or LINES."""
        text = "".join(line + "\n" for line in LINES) if lines is None else lines
        done = self.run_qkv("translate", "m.safetensors", *arguments, "--progress", "never",
                            input=text.encode(), **options)
        # Translations by a model of random parameters may be cut off.
        self.assertRegex(done.err, r"\A(qkv: .* reached --most-tokens .*\n)?\Z")
        return done.out.splitlines()

    @staticmethod
    def text_of(tokens):
        return "".join(token for token in tokens if token != "</s>")

    def expected(self):
        return [self.text_of(self.model.translate(line)[0]) if line else "" for line in LINES]


class Translate(Model):
    def test_numpy_agrees(self):
        self.assertEqual(self.translate(), self.expected())
        self.file("in.txt", "\n".join(LINES))
        self.assertEqual(self.run_qkv("translate", "m.safetensors", "in.txt").out.splitlines(),
                         self.expected())

    def test_scores_are_log_probabilities(self):
        for line, shown in zip(LINES, self.translate("--scores")):
            text, score = shown.split("\t")
            want = self.model.translate(line) if line else ([], 0.0, None)
            self.assertEqual(text, self.text_of(want[0]))
            self.near(float(score), want[1], 1e-4)

    def test_json_has_the_attention(self):
        report = json.loads("\n".join(self.translate("--json")))["translations"]
        self.assertEqual([entry["line"] for entry in report], LINES)
        for entry in report:
            if not entry["line"]:
                self.assertEqual((entry["src"], entry["tgt"], entry["attn"]), ([], [], None))
                continue
            tokens, score, weights = self.model.translate(entry["line"])
            self.assertEqual((entry["src"], entry["tgt"]), ([*entry["line"], "</s>"], tokens))
            self.near(entry["log_probability"], score, 1e-4)
            self.near(entry["attn"], weights, 1e-5)

    def test_attention_files(self):
        wanted = [self.model.translate(line) if line else ([], 0.0, np.zeros((0, 0)))
                  for line in LINES]
        self.translate("-o", "a.npz", "-o", "a.safetensors", "-o", "a.txt", "-o", "a.json")
        self.assertEqual(self.translate("--attn", "b.npz"), self.expected())  # printed as well
        self.assertEqual((self.dir / "b.npz").read_bytes(), (self.dir / "a.npz").read_bytes())
        saved = dict(np.load(self.dir / "a.npz"))
        queries = max(len(tokens) for tokens, _, _ in wanted)
        # 19 keys: the longest of LINES with its end token.
        self.assertEqual(saved["attn"].shape, (len(LINES), 1, 1, queries, 19))
        maps, masks = (saved[name][:, 0, 0] for name in ("attn", "mask"))
        for n, (tokens, score, weights) in enumerate(wanted):
            rows, columns = weights.shape
            if rows:
                self.near(maps[n, :rows, :columns], weights, 1e-5)
            self.assertEqual(masks[n].sum(), rows * columns)
            self.assertEqual(np.count_nonzero(maps[n]), rows * columns)
            self.assertEqual(list(saved["tgt"][n]), tokens + ["<pad>"] * (queries - rows))
            source = [*LINES[n], "</s>"] if LINES[n] else []
            self.assertEqual(list(saved["src"][n]), source + ["<pad>"] * (19 - len(source)))
            self.near(saved["log_probability"][n], score, 1e-4)
        self.assertEqual(list(saved["translation"]), self.expected())
        self.assertEqual((self.dir / "a.txt").read_text().splitlines(), self.expected())
        drawn = [self.run_qkv("view", name, "--example", 3).out for name in
                 ("a.npz", "a.safetensors")]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotIn("warning: ", self.run_qkv("stats", "a.npz", "--example", 3).out)

    def title(self, name):
        text = (self.dir / name).read_text(encoding="utf-8")
        return re.search(r"<title>([^<]*)</title>", text)[1].replace("&gt;", ">")

    def test_pictures_show_one_line(self):
        self.translate("-o", "a.svg", lines="abc\n")
        self.assertEqual(self.title("a.svg"), f"abc → {self.translate(lines='abc')[0]}")
        done = self.run_qkv("translate", "m.safetensors", "--attn", "b.svg", code=2, input=b"a\n")
        self.assertIn("--attn: expected a .npz or .safetensors file, got \"b.svg\"", done.err)
        self.assertEqual(self.names(), ["a.svg", "m.safetensors"])

    def test_several_lines_are_several_pictures(self):
        done = self.run_qkv("translate", "m.safetensors", "-o", "a.svg", "-o", "a.npz", "-o", "b.svg",
                            input=b"abc\n\nb\n")
        self.assertEqual(done.err, "qkv: nothing to draw for lines without attention: 2\n")
        self.assertEqual(self.names(), ["a-1.svg", "a-3.svg", "a.npz", "b-1.svg", "b-3.svg",
                                        "m.safetensors"])
        self.translate("-o", "c.svg", lines="b\n")
        self.assertEqual((self.dir / "a-3.svg").read_bytes(), (self.dir / "c.svg").read_bytes())
        self.assertTrue(self.title("a-1.svg").startswith("abc → "))

    def test_pictures_replace_no_other_file(self):
        arguments = ("translate", "m.safetensors", "-o", "a.svg")
        self.file("a-2.svg", "mine")
        self.assertEqual(
            self.refuse(2, *arguments, input=b"a\nb\n"),
            'qkv: -o a.svg: a picture of each line would replace "a-2.svg"; remove it, or name '
            "another\n")
        self.assertEqual(self.names(), ["a-2.svg", "m.safetensors"])
        # A bad line, whose translation is left empty, counts, too.
        self.assertIn('would replace "a-2.svg"',
                      self.refuse(2, *arguments, "--skip-bad", input=b"a\n\xff\n"))
        self.run_qkv(*arguments, input=b"a\n")
        self.assertEqual(
            self.refuse(2, *arguments, "-o", "a-1.svg", input=b"a\nb\n"),
            'qkv: -o a.svg: a picture of each line would replace "a-1.svg"; another -o names it\n')
        self.assertEqual((self.dir / "a-2.svg").read_text(), "mine")
        self.assertIn("-o: at most 1000 lines can have pictures, got line 1001; ",
                      self.refuse(2, "translate", "m.safetensors", "-o", "b.svg", "--most-tokens", 1,
                                  input=b"a\n" * 1001))
        self.assertIn("one picture shows one line, got 2",
                      self.refuse(2, "translate", "m.safetensors", "-o", "-", "--format", "svg",
                                  input=b"a\nb\n"))

    def test_show_with_files(self):
        want = self.run_qkv("translate", "m.safetensors", "--show", input=b"abc\n\nab\n")
        done = self.run_qkv("translate", "m.safetensors", "--show", "-o", "a.npz", "-o", "a.svg",
                            input=b"abc\n\nab\n")
        self.assertEqual(done.out, want.out)
        self.assertIn(want.err, done.err)
        self.assertEqual(self.names(), ["a-1.svg", "a-3.svg", "a.npz", "m.safetensors"])

    def test_lines_longer_than_in_training(self):
        self.model.settings["longest_source"] = 3
        self.file("m.safetensors", self.model.file())
        done = self.run_qkv("translate", "m.safetensors", input=b"abc\nabca\n\nabcab\n")
        self.assertEqual(done.out.splitlines(),
                         [self.text_of(self.model.translate(line)[0]) if line else ""
                          for line in ("abc", "abca", "", "abcab")])
        self.assertIn("qkv: <stdin>: longer than every source in training, of at most 3 tokens, so "
                      "the translation may be poor; lines: 2, 4\n", done.err)
        self.assertIn("qkv: TEXT: longer than every source in training, of at most 3 tokens, so the "
                      "translation may be poor\n",
                      self.run_qkv("translate", "m.safetensors", "abca").err)
        self.assertEqual(self.run_qkv("translate", "m.safetensors", "abca", "--quiet").err, "")
        self.model.settings["longest_source"] = -1
        self.file("m.safetensors", self.model.file())
        self.assertIn("longest_source: expected a number from 0, got -1",
                      self.refuse(3, "translate", "m.safetensors", "a"))

    def test_show_draws_below_each_line(self):
        done = self.run_qkv("translate", "m.safetensors", "--show", input=b"abc\n\nab\n")
        self.assertEqual(done.err, "qkv: --show: nothing to draw for an empty line\n")
        shown = done.out.splitlines()
        places = [shown.index(self.text_of(self.model.translate(line)[0])) for line in
                  ("abc", "ab")]
        tokens = self.model.translate("abc")[0]
        block = "\n".join(shown[places[0]:places[1]])
        self.assertGreater(len(block.splitlines()), 3)
        for token in [*"abc", *tokens]:
            self.assertIn(token, block)

    def test_lines_do_not_depend_on_their_neighbours(self):
        lines = [line for line in LINES for _ in range(25)]
        text = "".join(line + "\n" for line in lines)
        want = [text for text in self.expected() for _ in range(25)]
        self.assertEqual(self.translate(lines=text), want)
        self.assertEqual(self.translate("--threads", 1, lines=text), want)
        self.assertEqual(self.translate(lines=text + text), want + want)

    def test_a_line_that_is_too_long_keeps_its_number(self):
        most = 4096
        lines = [LINES[0], "a" * (most + 1), LINES[1], "b" * (most + 9), LINES[2], LINES[3]]
        want = self.expected()
        want = [want[0], "", want[1], "", want[2], want[3]]
        self.file("in.txt", "".join(line + "\n" for line in lines))
        each = [f"in.txt:{line}: expected at most {most} tokens, got {tokens}" for line, tokens in
                ((2, most + 1), (4, most + 9))]
        counted = "in.txt: 2 of 6 lines left empty: 2, 4; "
        summary = counted + "the first: expected at most 4096 tokens, got 4097"
        errors = [*each, counted + "--skip-bad makes this a warning"]
        for options, code, messages in (((), 3, errors), (["--skip-bad"], 0, [summary]),
                                        (["--skip-bad", "--quiet"], 0, [])):
            for forms in ((), ("-o", "all.json", "-o", "all.npz")):
                done = self.run_qkv("translate", "m.safetensors", "in.txt", *options, *forms,
                                    code=code)
                self.assertEqual(done.err, "".join(f"qkv: {error}\n" for error in messages))
                if not forms:
                    self.assertEqual(done.out.splitlines(), want)
                    continue
                report = json.loads((self.dir / "all.json").read_text())["translations"]
                self.assertEqual([entry["translation"] for entry in report], want)
                with np.load(self.dir / "all.npz") as arrays:
                    self.assertEqual(arrays["translation"].tolist(), want)
        self.file("in.txt", "".join("ab" * most + "\n" for _ in range(30)) + "abc")
        done = self.run_qkv("translate", "m.safetensors", "in.txt", "--skip-bad")
        self.assertEqual(done.out, "\n" * 30 + want[0] + "\n")
        self.assertRegex(done.err, "^qkv: in.txt: 30 of 31 lines left empty: 1, 2, .*, 20 and 10 "
                                   "more; the first: expected at most 4096 tokens, got 8192\n$")
        self.assertIn("TEXT:1: expected at most", self.refuse(3, "translate", "m.safetensors",
                                                              "ab" * most))

    def test_a_model_that_gives_nan_is_named(self):
        self.model.p["output.bias"][:] = np.nan
        (self.dir / "nan.safetensors").write_bytes(self.model.file())
        self.file("in.txt", "abc\n\ncab\n")
        done = self.run_qkv("translate", "nan.safetensors", "in.txt")
        self.assertEqual(done.out, "\n\n\n")
        self.assertEqual(done.err, "qkv: in.txt: the model gives NaN, so there is no translation; "
                                   "lines: 1, 3\n")

    def test_a_translation_that_is_cut_off_is_named(self):
        lengths = {line: len(tokens) for line in LINES if line
                   for tokens in [self.model.translate(line)[0]] if tokens[-1] == "</s>"}
        short, long = (pick(lengths, key=lengths.get) for pick in (min, max))
        most = lengths[short]
        self.assertLess(most, lengths[long])
        self.file("in.txt", f"{short}\n\n{long}\n")
        self.assertEqual(self.run_qkv("translate", "m.safetensors", "in.txt").err, "")
        done = self.run_qkv("translate", "m.safetensors", "in.txt", "--most-tokens", most)
        self.assertEqual(done.err, f"qkv: in.txt: 1 of 2 translations reached --most-tokens {most} and "
                                   "were cut off; lines: 3\n")
        done = self.run_qkv("translate", "m.safetensors", long, "--most-tokens", "1")
        self.assertEqual(done.err, "qkv: TEXT: the translation reached --most-tokens 1 and was cut off\n")

    def test_columns(self):
        self.file("in.tsv", "x\tabc\n\ny\nz\ta\tq\n")
        done = self.run_qkv("translate", "m.safetensors", "in.tsv", "--col", "1", code=3)
        abc, a = self.expected()[:2]
        self.assertEqual(done.out.splitlines(), [abc, "", "", a])
        self.assertEqual(done.err, "qkv: in.tsv:3: expected 2 or more columns, got 1; tabs separate "
                                   "columns\nqkv: in.tsv: 1 of 4 lines left empty: 3; --skip-bad makes "
                                   "this a warning\n")
        done = self.run_qkv("translate", "m.safetensors", "--col", "1", input=b"x\tabc\n")
        self.assertEqual(done.out.splitlines(), [abc])

    def test_a_malformed_line_ends_it(self):
        self.file("in.txt", b"abc\n" + b"a" * 5000 + b"\n\xff\nabc\n")
        done = self.run_qkv("translate", "m.safetensors", "in.txt", code=3)
        self.assertEqual(done.out.splitlines(), [self.expected()[0], ""])
        self.assertRegex(done.err, "^qkv: in.txt:2: expected at most 4096 tokens, got 5000\n"
                                   "qkv: in.txt:3: expected UTF-8, ")

    def test_a_malformed_line_may_be_skipped(self):
        self.file("in.txt", b"abc\n\xff\nabc\n" + b"a\0b\n" + b"x" * 2_000_000 + b"\nabc\n")
        done = self.run_qkv("translate", "m.safetensors", "in.txt", "--skip-bad")
        abc = self.expected()[0]
        self.assertEqual(done.out.splitlines(), [abc, "", abc, "", "", abc])
        self.assertEqual(done.err, "qkv: in.txt: 3 of 6 lines left empty: 2, 4, 5; the first: "
                                   'expected UTF-8, got "\\xff" at byte 0 of the line\n')

    def test_marks_and_line_ends_of_the_input(self):
        self.assertEqual(self.translate(lines="\ufeffabc\tx\ty\r\na"),
                         [self.expected()[0], self.expected()[1]])
        self.assertEqual(self.translate(lines=""), [])

    def test_a_bad_line_of_a_pipe_is_answered(self):
        with subprocess.Popen([PROGRAM, "translate", "m.safetensors", "--skip-bad"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, cwd=self.dir) as process:
            process.stdin.write(b"\xff\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], PATIENCE)[0]:
                process.kill()
            self.assertEqual(process.stdout.readline(), b"\n")
            process.stdin.close()

    def test_a_pipe_is_answered_line_by_line(self):
        with subprocess.Popen([PROGRAM, "translate", "m.safetensors"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, cwd=self.dir) as process:
            for line, want in list(zip(LINES, self.expected()))[:4]:
                process.stdin.write(line.encode() + b"\n")
                process.stdin.flush()
                ready = select.select([process.stdout], [], [], PATIENCE)[0]
                if not ready:
                    process.kill()
                self.assertTrue(ready)
                self.assertEqual(process.stdout.readline().decode(), want + "\n")
            process.stdin.close()
            self.assertEqual(process.wait(timeout=PATIENCE), 0)

    def test_beams(self):
        scores = [[float(line.split("\t")[1]) for line in
                   self.translate("--scores", "--length-penalty", 0, "--beam", beam)]
                  for beam in (1, 8)]
        self.assertEqual(len(scores[0]), len(LINES))
        self.assertTrue(any(wide > greedy for greedy, wide in zip(*scores)), scores)
        # The comparison needs translations that end within the limit; greedy ones may be truncated.
        ended = [self.model.translate(line)[0][-1] == "</s>" if line else True for line in LINES]
        for greedy, wide, has_ended in zip(*scores, ended):
            self.assertTrue(wide >= greedy - 1e-4 or not has_ended, scores)
        self.assertEqual(self.translate("--beam", 1, "--length-penalty", 2), self.expected())

    def test_a_limit_of_tokens(self):
        want = [self.text_of(self.model.translate(line, 2)[0]) if line else "" for line in LINES]
        self.assertEqual(self.translate("--most-tokens", 2), want)

    def test_words_and_small_letters(self):
        self.model = Translator(["the", "cat", "."], ["le", "chat", "!"], seed=3, tokenize="word",
                                letters="lower")
        self.file("m.safetensors", self.model.file())
        tokens = self.model.translate(["the", "cat", "."], 6)[0]
        self.assertEqual(self.translate("--most-tokens", 6, lines="The  CAT.\n"),
                         [" ".join(token for token in tokens if token != "</s>")])

    def test_a_model_without_attention(self):
        self.file("m.safetensors", Translator(attention="none").file())
        done = self.run_qkv("translate", "m.safetensors", "--show", input=b"abc\n")
        self.assertEqual(done.out.splitlines(), self.translate(lines="abc\n"))
        self.assertIn("--show: the model was trained with --attention none", done.err)
        done = self.run_qkv("translate", "m.safetensors", "-o", "a.npz", code=2, input=b"abc\n")
        self.assertIn("no attention to write", done.err)

    def test_a_line_stays_a_line(self):
        """Each translation is one line, whatever the vocabulary holds."""
        self.model = Translator(target="\n\t\r", seed=2)
        self.file("m.safetensors", self.model.file())
        self.assertTrue(any("\n" in text for text in self.expected()))
        self.assertEqual(len(self.translate()), len(LINES))

    @unittest.skipIf(measured.is_sanitized(PROGRAM), "a sanitizer's memory is not the program's")
    def test_memory_follows_what_is_wanted(self):
        """Attention is kept in memory only for files; here it would take hundreds of megabytes."""
        self.model.p["output.bias"][END] -= 100
        self.file("endless.safetensors", self.model.file())
        for length, command, *more in ((2000, "score"), (600, "translate", "--beam", "4")):
            self.file("d.tsv", ("a" * length + "\t" + "x" * length + "\n") * 24)
            run = self.measure(command, "endless.safetensors", "d.tsv", *more)
            # One block of 33 MB may count twice: the C library keeps some freed blocks.
            self.assertLess(run.peak, 100e6)

    @unittest.skipIf(measured.is_sanitized(PROGRAM), "a sanitizer's memory is not the program's")
    def test_memory_does_not_follow_the_lines(self):
        peaks = []
        for lines in (2000, 30000):
            self.file("d.txt", "abc abc abc\n" * lines)
            run = self.measure("translate", "m.safetensors", "d.txt", "--quiet")
            self.assertEqual(run.out.count("\n"), lines)
            peaks.append(run.peak)
        self.assertLess(peaks[1] - peaks[0], 4e6)

    def test_standard_output_that_fails(self):
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = subprocess.run([PROGRAM, "translate", "m.safetensors", "--quiet"],
                              input=b"a\n" * 100, stdout=write_end, stderr=subprocess.PIPE,
                              cwd=self.dir, check=False)
        os.close(write_end)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, "translate", "m.safetensors", "--quiet"],
                                      input=b"a\n", stdout=full, stderr=subprocess.PIPE,
                                      cwd=self.dir, check=False)
            self.assertEqual((done.returncode, done.stderr.count(b"\n")), (4, 1))

    def test_interrupt(self):
        for arguments in ([], ["-o", "a.npz"]):
            with subprocess.Popen([PROGRAM, "translate", "m.safetensors", *arguments], cwd=self.dir,
                                  stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE) as process:
                process.stdin.write(b"abc\n" * 40000)  # more than a pipe holds
                process.stdin.flush()
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(timeout=PATIENCE), 130)
                process.stdin.close()
        self.assertEqual(self.names(), ["m.safetensors"])


class Hostile(Case):
    def test_what_a_terminal_would_obey_is_not_written(self):
        """A vocabulary is untrusted input."""
        self.file("m.safetensors", Translator(seed=SEED, target=["y", "\n", "\x1b", "\x9b"]).file())
        lines = "".join(line + "\n" for line in LINES)
        out = self.run_qkv("translate", "m.safetensors", input=lines.encode()).out
        self.assertEqual(len(out.split("\n")), len(LINES) + 1)
        self.assertRegex(out, "\ufffd")
        self.assertNotRegex(out.replace("\n", ""), r"[\x00-\x1f\x7f-\x9f]")


class Demo(Case):
    """Tests the models that are linked into the program."""

    def test_spellings_of_a_day(self):
        for text in ("the 3rd of May, 1987", "May 3, 1987", "3.5.1987", "SUNDAY, 3 MAY 1987"):
            self.assertEqual(self.run_qkv("translate", "--dates", text).out, "1987-05-03\n", text)
        self.assertEqual(self.run_qkv("translate", "--dates", *"the 3rd of May, 1987".split()).out,
                         "1987-05-03\n")

    def test_lines_of_standard_input(self):
        pairs = self.run_qkv("gen", "dates", "-n", 200, "--split", "test", "--seed", 77).out
        done = self.run_qkv("translate", "--dates", "-", input=pairs.encode())
        targets = [line.split("\t")[1] for line in pairs.splitlines()]
        right = sum(map(str.__eq__, targets, done.out.splitlines()))
        self.assertGreater(right, 190)

    def test_sentences(self):
        for english, french in (("I am hungry.", "J'ai faim."), ("Where is the station?", "Où est la gare ?"),
                                ("Thank you very much.", "Merci beaucoup.")):
            self.assertEqual(self.run_qkv("translate", "--demo", english, "--beam", 5).out, french + "\n")
        several = self.run_qkv("translate", "--demo", "-", input=b"I am hungry.\n\nI am hungry.\n").out
        self.assertEqual(several.splitlines(), ["J'ai faim.", "", "J'ai faim."])

    def test_options_may_come_first(self):
        wanted = self.run_qkv("translate", "--demo", "Where is the station?", "--beam", 5, "--scores").out
        for arguments in (["--demo", "--beam", 5, "--scores", "Where is the station?"],
                          ["--beam", 5, "--demo", "--scores", *"Where is the station?".split()],
                          ["Where is the station?", "--beam", 5, "--scores", "--demo"]):
            self.assertEqual(self.run_qkv("translate", *arguments).out, wanted)
        self.assertIn("--bogus", self.run_qkv("translate", "--demo", "--bogus", "x", code=2).err)
        self.assertIn("No such file", self.run_qkv("translate", "--demo", "nofile.txt", code=3).err)
        lines = self.run_qkv("translate", "--demo", input=b"I am hungry.\n").out
        self.assertEqual(lines, "J'ai faim.\n")

    def test_runs_anywhere_and_is_drawn(self):
        shown = self.run_qkv("translate", "--dates", "May 3, 1987", "--show",
                             env={"HOME": "/nowhere", "QKV_DATA_DIR": "/nowhere"}).out
        self.assertTrue(shown.startswith("1987-05-03\n"))
        self.assertGreater(len(shown.splitlines()), 8)
        self.assertEqual(self.names(), [])


if __name__ == "__main__":
    unittest.main()
