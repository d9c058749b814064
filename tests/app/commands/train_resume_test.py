#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv train RUN`: a run resumes with its own settings and data.

usage: train_resume_test.py PROGRAM [TEST ...]
"""

import json
import os
import re
import shlex
import unittest

from train_runs import SIZES, TrainCase

MORE = ("--valid", "valid.tsv", "--valid-freq", "4u", "--lr", "0.01", "--dropout", "0.2", "--seed",
        "18446744073709551615", "--clip", "inf", "--attention", "dot", "--decay", "7",
        "--batch-tokens", "900", "--max-length", "12", "--weight-decay", "0.01", "--patience", "90",
        "--tied-embeddings", "--encoder-layers", "2")


class GoesOn(TrainCase):
    def begin(self, folder, after, *more):
        return self.run_qkv("train", "data.tsv", "-o", folder, *SIZES, "--after", after, *more)

    def resume(self, *arguments, **options):
        return self.run_qkv("train", *arguments, **options)

    def config(self, folder):
        return json.loads(self.path(folder, "config.json").read_text())

    def test_with_all_its_settings(self):
        """No default replaces an option that was typed when the run began."""
        self.begin("WHOLE", "13u", *MORE)
        self.begin("RUN", "6u", *MORE)
        self.resume("RUN", "--after", "13u")
        self.same_run("RUN", "WHOLE")
        self.assertEqual(self.config("RUN"), self.config("WHOLE"))

    def test_until_its_own_budget(self):
        """Resumed without --after, a run goes on until the budget in its config.json."""
        self.begin("WHOLE", "2e", "--save-freq", "7u")
        self.begin("RUN", "1e", "--save-freq", "7u")
        config = self.path("RUN", "config.json")
        config.write_text(config.read_text().replace('"after": "1e"', '"after": "2e"'))
        self.resume("RUN/")
        self.same_run("RUN", "WHOLE")
        self.assertEqual(self.config("RUN"), self.config("WHOLE"))

    def test_from_any_directory(self):
        self.begin("RUN", "3u", *MORE)
        os.mkdir(self.dir / "sub")
        where, self.dir = self.dir, self.dir / "sub"
        self.resume("../RUN", "--after", "5u")
        self.dir = where
        self.assertEqual(self.updates("RUN"), 5)

    def test_with_columns_and_words(self):
        self.file("data.tsv", "".join(f"x{n}\tA b {n % 3}\tB Cc\n" for n in range(40)))
        words = ("--cols", "2,1", "--tokenize", "word", "--lower", "--min-count", "2")
        self.begin("WHOLE", "4u", *words)
        self.begin("RUN", "2u", *words)
        self.resume("RUN", "--after", "3u")
        self.resume("RUN", "--after", "4u", "--cols", "2,1", "--lower")
        self.same_run("RUN", "WHOLE")

    def test_with_the_data_named_once_more(self):
        """An option that is not given has the run's value, not the default."""
        self.begin("WHOLE", "9u", *MORE)
        self.begin("RUN", "3u", *MORE)
        self.resume("data.tsv", "-o", "RUN", "--after", "6u", "--threads", 2)
        self.resume("data.tsv", "-o", "RUN", "--after", "9u", "--lr", "0.01", "--save-freq", "2u")
        self.same_run("RUN", "WHOLE")

    def test_the_run_s_own_values_are_accepted(self):
        self.begin("RUN", "3u", *MORE)
        self.begin("WHOLE", "6u", *MORE)
        # The validation data may be left out or named again, also by the name of a copy.
        self.file("copy.tsv", (self.dir / "valid.tsv").read_bytes())
        self.resume("RUN", "--after", "4u", "--valid-freq", "4u")
        self.resume("RUN", "--after", "5u", "--valid-freq", "4u", "--valid", "valid.tsv")
        self.resume("RUN", "--after", "6u", "--valid", "copy.tsv")
        self.same_run("RUN", "WHOLE")

    def test_every_option_is_named_as_it_is_typed(self):
        """Another value of any option in --help is refused with the option's name."""
        self.begin("RUN", "1u", "--valid", "valid.tsv")
        # Values that the run does not have, by the placeholders of the help.
        others = {"N": "12", "X": "0.125", "BUDGET": "7u", "S,T": "1,0", "": None}
        may_change = {"--output", "--valid", "--after", "--save-freq", "--keep", "--skip-bad"}
        options = re.findall(r"^  (?:-\w,)?(--[a-z-]+)(?: ([A-Z,]+|[a-z_|]+\|[a-z_|]+))?(?: |$)",
                             self.run_qkv("train", "--help").out, re.MULTILINE)
        checked = []
        for option, kind in options:
            if option in may_change | {"--help", "--version", "--threads", "--quiet", "--progress",
                                       "--color"}:
                continue
            value = others.get(kind, kind.split("|")[-1])
            given = [option] if value is None else [option, value]
            self.assertRegex(self.refuse(2, "train", "RUN", *given),
                             f"(other settings: |; ){option}: .* -> ")
            checked.append(option)
        for known in ("--lr", "--cols", "--lower", "--tokenize", "--valid-freq", "--seed"):
            self.assertIn(known, checked)

    def test_a_budget_that_is_used_up(self):
        self.begin("RUN", "9e,4u")
        before = self.files("RUN")
        done = self.resume("RUN")
        self.assertEqual(done.err, "qkv: nothing was trained: the budget of 9e,4u is used up; to "
                                   "resume: qkv train RUN --after 10e,8u\n")
        self.assertIn("updates 4, ", done.out)
        self.assertEqual(self.files("RUN"), before)
        self.assertEqual(self.resume("RUN", "--quiet").err, "")
        self.resume("RUN", "--after", "10e,8u")
        self.assertEqual(self.updates("RUN"), 8)
        more = ("--valid", "valid.tsv", "--patience", "1", "--lr", "1e-30")
        self.begin("DONE", "9e", *more)
        self.assertEqual(self.resume("DONE").err, "qkv: nothing was trained: validation stopped "
                                                  f"improving at update {self.updates('DONE')}\n")

    def test_a_budget_that_was_typed_is_no_default(self):
        self.file("data.tsv", "a\tb\n")
        default = self.begin("DEFAULT", "10e").out
        self.assertIn("the budget of 10e is used up", default)
        done = self.run_qkv("train", "data.tsv", "-o", "RUN", *SIZES)
        self.assertIn("the budget of 10e, the default of --after, is used up", done.out)

    def test_the_columns_of_a_run(self):
        """`score` and `translate` read the columns on which the run was trained."""
        pairs = [line.split("\t") for line in (self.dir / "valid.tsv").read_text().splitlines()]
        self.file("ids.tsv", "".join(f"{n}\t{a}\t{b}\n" for n, (a, b) in enumerate(pairs)))
        self.file("lines.txt", "".join(f"{a}\n" for a, _ in pairs))
        score, translate = (lambda *more, name=name: self.run_qkv(name, *more).out
                            for name in ("score", "translate"))
        self.run_qkv("train", "ids.tsv", "-o", "IDS", *SIZES, "--after", "3u", "--cols", "1,2")
        want = score("IDS", "valid.tsv", "--cols", "0,1")
        self.assertEqual(score("IDS", "ids.tsv"), want)
        self.assertNotEqual(score("IDS", "ids.tsv", "--cols", "0,2"), want)
        self.assertEqual(score("IDS/best.safetensors", "valid.tsv"), want)
        want = translate("IDS", "lines.txt")
        self.assertEqual(translate("IDS", "ids.tsv"), want)
        self.assertEqual(translate("IDS", "valid.tsv", "--col", "0"), want)
        self.assertNotEqual(translate("IDS", "ids.tsv", "--col", "0"), want)

    def test_data_that_moved(self):
        self.begin("WHOLE", "7u", *MORE)
        self.begin("RUN", "3u", *MORE)
        before = self.files("RUN")
        for name in ("data", "valid"):
            (self.dir / f"{name}.tsv").rename(self.dir / f"{name}2.tsv")
        self.assertEqual(
            self.refuse(3, "train", "RUN", "--after", "7u"),
            f"qkv: {self.dir}/data.tsv: the data and validation data of the run are not there any "
            "more; if moved: qkv train DATA -o RUN --valid FILE --after 7u\n")
        self.assertEqual(
            self.refuse(3, "train", "RUN", "--valid", "valid2.tsv"),
            f"qkv: {self.dir}/data.tsv: the data of the run is not there any more; if moved: "
            "qkv train DATA -o RUN --valid valid2.tsv\n")
        self.assertEqual(
            self.refuse(3, "train", "data2.tsv", "-o", "RUN", "--after", "7u"),
            f"qkv: {self.dir}/valid.tsv: the validation data of the run is not there any more; if "
            "moved: qkv train data2.tsv -o RUN --valid FILE --after 7u\n")
        self.assertEqual(self.files("RUN"), before)
        self.resume("data2.tsv", "-o", "RUN", "--valid", "valid2.tsv", "--after", "5u")
        self.resume("RUN", "--after", "7u")  # config.json has the new paths
        self.same_run("RUN", "WHOLE")

    def test_a_run_that_moved_with_its_data(self):
        """The command in the message resumes the run."""
        self.begin("WHOLE", "5u", *MORE)
        os.makedirs(self.dir / "old" / "its data" / "more")
        for name in ("data", "valid"):
            (self.dir / f"{name}.tsv").rename(self.dir / "old" / "its data" / "more" / f"{name}.tsv")
        self.run_qkv("train", "old/its data/more/data.tsv", "-o", "old/R N", *SIZES, "--after", "3u",
                     *MORE[:1], "old/its data/more/valid.tsv", *MORE[2:])
        (self.dir / "old").rename(self.dir / "new")
        line = self.refuse(3, "train", "new/R N", "--after", "5u", "--keep", 2, "--save-freq", "3u")
        command = line.split("if moved: ")[1]
        self.assertEqual(
            command, "qkv train 'new/its data/more/data.tsv' -o 'new/R N' --valid "
                     "'new/its data/more/valid.tsv' --after 5u --save-freq 3u --keep 2\n")
        self.run_qkv(*shlex.split(command)[1:-2])  # without --keep 2, as WHOLE
        (self.dir / "new" / "R N").rename(self.dir / "RUN")
        self.same_run("RUN", "WHOLE")

    def test_data_from_standard_input(self):
        data = (self.dir / "data.tsv").read_bytes()
        for folder, budgets in (("WHOLE", ("5u",)), ("RUN", ("3u", "5u"))):
            for after in budgets:
                self.run_qkv("train", "-", "-o", folder, *SIZES, "--after", after, input=data)
        self.same_run("RUN", "WHOLE")
        self.assertEqual(self.refuse(2, "train", "RUN"),
                         "qkv: the data of the run came from standard input, so it must be given "
                         "again: qkv train - -o RUN < DATA\n")
        done = self.run_qkv("train", "-", "-o", "RUN", input=data)
        self.assertIn("to resume: qkv train - -o RUN --after 10u\n", done.err)


if __name__ == "__main__":
    unittest.main()
