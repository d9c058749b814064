#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the files of `qkv train`, and that no training is lost however a run ends.

usage: train_test.py PROGRAM [TEST ...]
"""

import json
import os
import re
import signal
import unittest

import numpy as np
from program import PATIENCE
from train_runs import ENDLESS, FILES, SIZES, TrainCase, changed, limited_to, safetensors


BAD = b"no tab\n\xff\ty\n\n\tx\nz\t \n\xe2\x80\x8b\n"  # six lines that are no pairs


class SeenInTraining(TrainCase):
    """Tests the warning about validation pairs that are training pairs."""

    WARNING = (" pairs are training pairs, so that validation does not measure how new text is "
               "translated; qkv split divides data\n")

    def test_half_or_more(self):
        train = (self.dir / "data.tsv").read_bytes().splitlines(keepends=True)
        other = (self.dir / "valid.tsv").read_bytes().splitlines(keepends=True)
        other = [line for line in other if line not in train]
        (self.dir / "half.tsv").write_bytes(b"".join(train[:4] + other[:4]))
        (self.dir / "less.tsv").write_bytes(b"".join(train[:4] + other[:5]))
        for name, count in (("data.tsv", "200 of its 200"), ("half.tsv", "4 of its 8")):
            done = self.train(name[:4], "--after", "1u", "--valid", name)
            self.assertEqual(done.err, f"qkv: {name}: {count}{self.WARNING}")
        self.assertEqual(self.train("LESS", "--after", "1u", "--valid", "less.tsv").err, "")


class BadLines(TrainCase):
    """Tests lines that are no pairs, and `--skip-bad`, which leaves them out."""

    MORE = ("--valid", "valid.tsv", "--seed", "5")

    def add_bad(self, name, at):
        lines = (self.dir / name).read_bytes().splitlines(keepends=True)
        (self.dir / name).write_bytes(b"".join([*lines[:at], BAD, *lines[at:]]))

    def test_they_are_skipped_and_named(self):
        self.train("WHOLE", "--after", "6u", *self.MORE)
        self.add_bad("data.tsv", 7)
        self.add_bad("valid.tsv", 30)
        self.assertEqual(self.refuse(3, *self.arguments("RUN", "--after", "3u", *self.MORE)),
                         "qkv: data.tsv:8: expected 2 or more columns, got 1; tabs separate "
                         "columns; --skip-bad skips such lines\n")
        done = self.train("RUN", "--after", "3u", "--skip-bad", *self.MORE)
        self.assertEqual(
            done.err,
            "qkv: data.tsv: 6 of 206 lines skipped: 8, 9, 10, 11, 12, 13; the first: expected 2 or "
            "more columns, got 1; tabs separate columns\n"
            "qkv: valid.tsv: 5 of 35 lines skipped: 31, 32, 33, 34, 35; the first: expected 2 or "
            "more columns, got 1; tabs separate columns\n")
        self.assertIn("RUN: 200 pairs (0 left out)", done.out)
        resumed = self.run_qkv("train", "RUN", "--after", "6u")  # the run knows that it skips lines
        self.assertIn("6 of 206 lines skipped", resumed.err)
        self.same_run("RUN", "WHOLE")

    def test_a_run_may_begin_to_skip(self):
        self.train("RUN", "--after", "1u")
        self.run_qkv("train", "RUN", "--after", "2u", "--skip-bad")
        self.assertTrue(json.loads(self.path("RUN", "config.json").read_text())["skip_bad"])

    def test_no_pair_is_left(self):
        self.file("bad.tsv", BAD * 2)
        for more in ((), ("--tokenize", "subword")):
            self.assertRegex(
                self.refuse(3, "train", "bad.tsv", "-o", "RUN", "--skip-bad", *more),
                "^qkv: bad.tsv: expected sentence pairs, got none: 11 of 11 lines skipped: 1, 2, ")

    def test_blank_lines_at_the_end(self):
        self.train("WHOLE", "--after", "2u")
        data = (self.dir / "data.tsv").read_bytes()
        for n, end in enumerate((b"\n", b"\r\n \n", b"\xe2\x80\x8b")):
            self.file("data.tsv", data + end)
            done = self.train(f"RUN{n}", "--after", "2u")
            self.assertEqual(done.err, "")
            self.same_run(f"RUN{n}", "WHOLE")


class Folder(TrainCase):
    """Tests the contents of the folder."""

    def test_plain_files(self):
        done = self.train("RUN", "--after", "3e", "--valid", "valid.tsv", "--lr", "0.01",
                          "--progress", "never")
        self.assertEqual(done.err, "")
        self.assertRegex(done.out, r"^RUN: 200 pairs \(0 left out\), 30 source and 30 target "
                                   r"tokens, \d+ parameters\nepochs 3, updates \d+, ")
        self.assertEqual(sorted(self.files("RUN")), FILES)
        log = self.log("RUN")
        self.assertEqual([line["epoch"] for line in log], [1, 2, 3])
        losses = [line["valid_loss"] for line in log]
        self.assertEqual(sorted(losses, reverse=True), losses)
        self.assertLess(losses[-1], losses[0])
        for line in log:
            self.assertAlmostEqual(line["perplexity"], np.exp(line["valid_loss"]))
            self.assertEqual(line["translated"], 30)
        config = json.loads(self.path("RUN", "config.json").read_text())
        for name, value in (("hidden", 8), ("learning_rate", 0.01), ("attention", "additive"),
                            ("tokenize", "char"), ("after", "3e"), ("data_pairs", 200)):
            self.assertEqual(config[name], value)
        model, best = (safetensors(self.path("RUN", name))
                       for name in ("model.safetensors", "best.safetensors"))
        state = safetensors(self.path("RUN", "state.safetensors"))
        for name, array in model.items():
            if not name.endswith("_counts"):
                np.testing.assert_array_equal(array, state["model." + name])
                np.testing.assert_array_equal(array, best[name])  # the latest was the best
        self.assertTrue(np.all(np.diff([line["update"] for line in log]) > 0))

    def test_models_know_the_longest_source(self):
        """The longest source is that of the pairs that --max-length keeps."""
        sources = [line.split("\t")[0] for line in (self.dir / "data.tsv").read_text().splitlines()]
        longest = max(map(len, sources))
        for folder, *more in (("ALL",), ("SHORT", "--max-length", longest - 1)):
            self.train(folder, "--after", "2u", *more)
            most = longest - len(more) // 2
            done = self.run_qkv("translate", folder, input=b"a" * most + b"\n" + b"a" * (most + 1))
            self.assertEqual(done.err.split("\n")[0],
                             "qkv: <stdin>: longer than every source in training, of at most "
                             f"{most} tokens, so the translation may be poor; lines: 2")
        self.run_qkv("train", "ALL", "--after", "3u", "--keep", "2", "--quiet")
        self.run_qkv("average", "ALL/model.safetensors", "ALL/best.safetensors", "-o", "m.safetensors")
        done = self.run_qkv("translate", "m.safetensors", "a" * (longest + 1))
        self.assertIn(f"of at most {longest} tokens", done.err)

    def test_best_is_the_best_validation(self):
        """The learning rate is so large that training makes the parameters worse."""
        self.train("RUN", "--after", "3e", "--valid", "valid.tsv", "--best", "loss", "--lr", "1", "--clip", "100",
                   "--warmup", "20", "--decay", "0")
        losses = [line["valid_loss"] for line in self.log("RUN")]
        self.assertGreater(losses[-1], min(losses))
        best = safetensors(self.path("RUN", "best.safetensors"))
        last = safetensors(self.path("RUN", "model.safetensors"))
        self.assertTrue(any(not np.array_equal(best[name], last[name]) for name in best))
        at = 1 + losses.index(min(losses))
        self.train("AGAIN", "--after", f"{at}e", "--valid", "valid.tsv", "--best", "loss", "--lr", "1", "--clip",
                   "100", "--warmup", "20", "--decay", "0")
        self.assertEqual(self.path("RUN", "best.safetensors").read_bytes(),
                         self.path("AGAIN", "model.safetensors").read_bytes())

    def test_the_end_is_validated_but_not_remembered(self):
        """A budget that ends between two validations does not change later updates."""
        valid = ("--valid", "valid.tsv", "--valid-freq", "10u")
        self.train("RUN", "--after", "7u", *valid)
        best = safetensors(self.path("RUN", "best.safetensors"))
        for name, array in safetensors(self.path("RUN", "model.safetensors")).items():
            np.testing.assert_array_equal(array, best[name])
        self.train("RUN", "--after", "13u", *valid)
        self.train("WHOLE", "--after", "13u", *valid)
        self.same_run("RUN", "WHOLE")

    def test_best_is_the_last_until_a_validation(self):
        """A run that stops before the first validation keeps its latest parameters as the best."""
        more = ("--valid", "valid.tsv", "--valid-freq", ENDLESS)
        process = self.start("RUN", "--after", ENDLESS, "--save-freq", "1u", *more)
        self.wait_for_update(process, "RUN", 3)
        process.kill()
        process.communicate()
        at = self.updates("RUN")
        for folder, end in (("RUN", at + 2), ("WHOLE", at + 2)):
            self.train(folder, "--after", f"{end}u", *more)
        self.same_run("RUN", "WHOLE")
        process = self.start("RUN", "--after", ENDLESS, "--save-freq", "1u", *more)
        self.wait_for_update(process, "RUN", at + 4)
        process.send_signal(signal.SIGINT)
        process.communicate()
        best, last = (safetensors(self.path("RUN", name))
                      for name in ("best.safetensors", "model.safetensors"))
        for name, array in last.items():
            np.testing.assert_array_equal(array, best[name])

    def test_patience(self):
        """With a learning rate of 1e-30, no validation after the first is better."""
        done = self.train("RUN", "--valid", "valid.tsv", "--patience", "2", "--lr", "1e-30")
        self.assertIn("epochs 3, ", done.out)
        self.assertIn("validation stopped improving", done.out)
        before = self.files("RUN")
        self.assertIn("epochs 3, ",
                      self.train("RUN", "--valid", "valid.tsv", "--patience", "2", "--lr", "1e-30").out)
        self.assertEqual(self.files("RUN"), before)

    def test_pairs_that_are_too_long(self):
        done = self.train("RUN", "--after", "1u", "--max-length", "9")
        lines = (self.dir / "data.tsv").read_text().splitlines()
        left_out = sum(len(line.split("\t")[0]) > 9 for line in lines)
        self.assertIn(f"{200 - left_out} pairs ({left_out} left out, longer than --max-length 9 "
                      "characters)", done.out)
        self.assertGreater(left_out, 0)

    def test_columns_words_and_lower_case(self):
        self.file("data.tsv", "".join(f"x{n}\tA b {n % 3}\tB Cc\n" for n in range(40)))
        self.train("RUN", "--after", "2u", "--cols", "2,1", "--tokenize", "word", "--lower")
        source = json.loads(self.path("RUN", "source.vocab.json").read_text())
        self.assertEqual(source["tokens"], [["b", 40], ["cc", 40]])
        target = json.loads(self.path("RUN", "target.vocab.json").read_text())
        self.assertEqual([token for token, _ in target["tokens"]], ["a", "b", "0", "1", "2"])

    def test_every_attention_learns(self):
        for attention in ("additive", "dot", "scaled_dot", "bilinear", "multihead", "none"):
            self.train(attention, "--after", "12u", "--attention", attention, "--lr", "0.02",
                       "--warmup", "1", "--heads", "2", "--valid", "valid.tsv",
                       "--valid-freq", "4u")
            losses = [line["valid_loss"] for line in self.log(attention) if "valid_loss" in line]
            self.assertEqual(len(losses), 3)
            self.assertLess(losses[-1], losses[0], attention)


class Resume(TrainCase):
    """Tests that stopping and resuming does not change results."""

    def test_budgets_and_threads(self):
        valid = ("--valid", "valid.tsv", "--valid-freq", "4u")
        self.train("WHOLE", "--after", "2e,23u", "--threads", 1, *valid)
        for number, budget in enumerate(("1u", "2e,9u", "1e", "2e,23u")):
            self.train("PARTS", "--after", budget, "--save-freq", f"{number + 1}u", "--threads",
                       1 + number % 2, *valid)
        self.same_run("PARTS", "WHOLE")
        before = self.files("PARTS")
        self.train("PARTS", "--after", "2e,23u", "--save-freq", "4u", "--threads", 2, *valid)
        self.assertEqual(self.files("PARTS"), before)

    def test_writes_through_no_link(self):
        """A folder from elsewhere may have links to files that are not its own."""
        self.train("RUN", "--after", "1e", "--valid", "valid.tsv")
        for name in FILES:
            path = self.path("RUN", name)
            other = self.dir / "other"
            path.rename(other)
            path.symlink_to("../other")
            before = other.read_bytes(), self.files("RUN")
            done = self.train("RUN", "--after", "2e", "--valid", "valid.tsv", code=4)
            self.assertEqual(done.err, f"qkv: RUN/{name}: cannot be written: it is a symbolic link, "
                                       "which may lead out of the folder\n")
            self.assertTrue(path.is_symlink())
            self.assertEqual((other.read_bytes(), self.files("RUN")), before)
            other.rename(path)
        self.train("RUN", "--after", "2e", "--valid", "valid.tsv")

    def test_signals(self):
        valid = ("--valid", "valid.tsv", "--valid-freq", "3u")
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            folder = f"RUN{code}"
            process = self.start(folder, "--save-freq", "1u", "--after", ENDLESS, *valid)
            self.wait_for_update(process, folder, 4)
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE)
            self.assertEqual((process.returncode, out), (code, b""))
            at = self.updates(folder)
            self.assertRegex(err.decode(), rf"(?m)^qkv: stopped and saved at update {at}; "
                                           f"to resume: qkv train {folder}$")
            self.train(folder, "--after", f"{at + 5}u", *valid)
            self.train(f"WHOLE{code}", "--after", f"{at + 5}u", *valid)
            self.same_run(folder, f"WHOLE{code}")

    def test_kill_at_any_moment(self):
        """The process is killed while it writes each file and between two files."""
        valid = ("--valid", "valid.tsv", "--valid-freq", "3u")

        def is_being_written(name):
            return any(path.name.startswith(name + ".") for path in self.path("RUN", ".").iterdir())

        def log_is_ahead():
            state = safetensors(self.path("RUN", "state.safetensors"))
            return self.path("RUN", "train.jsonl").stat().st_size > state["run.log_bytes"][0]

        def model_is_behind():
            model, state = (safetensors(self.path("RUN", f"{name}.safetensors"))
                            for name in ("model", "state"))
            return any(not np.array_equal(model[name], state["model." + name])
                       for name in model if not name.endswith("_counts"))

        least = 0
        for moment in (*(lambda name=name: is_being_written(name) for name in (
                "train.jsonl", "state.safetensors", "model.safetensors", "best.safetensors")),
                       log_is_ahead, model_is_behind, lambda: True):
            process = self.start("RUN", "--after", ENDLESS, "--save-freq", "1u", *valid)
            self.wait_for_update(process, "RUN", least + 1)
            self.stop_when(process, moment)
            process.kill()
            process.communicate()
            at = self.updates("RUN")  # the state is complete
            self.assertGreater(at, least)
            least = at
        self.train("RUN", "--after", f"{at + 3}u", *valid)
        self.train("WHOLE", "--after", f"{at + 3}u", *valid)
        self.same_run("RUN", "WHOLE")

    def test_kill_between_files(self):
        """Resuming from an older state overwrites train.jsonl, best and model of a later save."""
        valid = ("--valid", "valid.tsv", "--valid-freq", "2u")
        self.train("RUN", "--after", "5u", *valid)
        early = self.files("RUN")
        self.train("RUN", "--after", "9u", *valid)
        late = self.files("RUN")
        for mixed in (["train.jsonl"], ["train.jsonl", "best.safetensors"],
                      ["train.jsonl", "best.safetensors", "model.safetensors"]):
            for name in FILES:
                self.path("RUN", name).write_bytes((late if name in mixed else early)[name])
            self.file("RUN/state.safetensors.4711-0.tmp", "half")
            self.train("RUN", "--after", "9u", *valid)
            self.assertEqual(self.files("RUN")["model.safetensors"], late["model.safetensors"])
            self.train("WHOLE", "--after", "9u", *valid)
            self.same_run("RUN", "WHOLE")

    def test_before_the_first_state(self):
        """The process was killed when the folder had only some of its files, and no state."""
        self.train("WHOLE", "--after", "3u")
        for names in ([], ["config.json"], ["config.json", "source.vocab.json"]):
            folder = f"RUN{len(names)}"
            os.mkdir(self.dir / folder)
            for name in names:
                self.path(folder, name).write_bytes(self.path("WHOLE", name).read_bytes())
            self.file(f"{folder}/config.json.12-0.tmp", "{")
            self.train(folder, "--after", "3u")
            self.same_run(folder, "WHOLE")


class Refused(TrainCase):
    """Tests runs that are refused, or cannot be resumed."""

    def refuse_run(self, code, want, *more, **options):
        before = self.files("RUN")
        line = self.refuse(code, *self.arguments("RUN", *more), **options)
        self.assertIn(want, line)
        self.assertEqual(self.files("RUN"), before)

    def test_how_often_it_is_saved_is_no_other_configuration(self):
        self.train("RUN", "--after", "2u")
        self.train("RUN", "--after", "3u", "--save-freq", "1u", "--threads", 1)

    def test_a_configuration_of_many_members(self):
        """The error names the first members; the search for others is limited."""
        self.train("RUN", "--after", "2u")
        config = self.path("RUN", "config.json")
        start = config.read_text().rstrip()[:-1]

        def more(members):
            return "".join(f', "more_{n}": {n}' for n in range(members))

        config.write_text(start + more(9000) + "}")
        self.refuse_run(2, "--lr: 0.002 -> 0.01; " +
                        "; ".join(f"more_{n}: {n} -> absent" for n in range(11)) +
                        "; and 8989 more; use another folder", "--lr", "0.01")
        config.write_text(start + more(9000) + ', "more_7": 1}')
        self.refuse_run(3, 'expected distinct names, got "more_7" twice')
        config.write_text(start + more(10_000) + "}")
        self.refuse_run(3, "expected a JSON object of settings, got more than 10000 values")
        config.write_text(start + more(600_000) + "}")
        self.refuse_run(3, "expected a JSON object of settings, got more than 1048576 bytes")

    def test_other_data(self):
        self.train("RUN", "--after", "2u")
        text = (self.dir / "data.tsv").read_text()
        self.file("data.tsv", text.replace("a", "b", 1))
        self.refuse_run(2, "DATA hash: ")
        self.file("data.tsv", text + "a\tb\n")
        self.refuse_run(2, "DATA pairs: 200 -> 201; DATA hash: ")
        (self.dir / "data.tsv").rename(self.dir / "moved.tsv")
        self.file("data.tsv", text)
        done = self.run_qkv("train", "data.tsv", "-o", "RUN", *SIZES, "--batch-tokens", 1000,
                            "--after", "3u")
        self.assertIn("updates 3", done.out)

    def test_a_folder_without_its_state(self):
        """The state is the largest file; deleting it must not restart training over the model."""
        self.train("RUN", "--after", "3u")
        self.path("RUN", "state.safetensors").unlink()
        self.refuse_run(3, "RUN/state.safetensors: is missing beside model.safetensors: ",
                        "--after", "3u")
        self.path("RUN", "model.safetensors").unlink()
        self.refuse_run(3, "is missing beside best.safetensors: ", "--after", "3u")
        os.symlink("nowhere", self.path("RUN", "state.safetensors"))
        self.assertIn("RUN/state.safetensors: cannot be written: it is a symbolic link",
                      self.refuse(4, *self.arguments("RUN")))

    def test_two_at_once(self):
        process = self.start("RUN", "--save-freq", "1u", "--after", ENDLESS)
        self.wait_for_update(process, "RUN")
        line = self.refuse(4, *self.arguments("RUN"))
        self.assertEqual(line, "qkv: RUN: cannot be written: another process writes to it\n")

    def test_damaged_files(self):
        self.train("RUN", "--after", "2u")
        state = self.path("RUN", "state.safetensors").read_bytes()
        self.path("RUN", "state.safetensors").write_bytes(state[:-100])
        self.refuse_run(3, "RUN/state.safetensors: ", "--after", "2u")
        self.path("RUN", "state.safetensors").write_bytes(
            self.path("RUN", "model.safetensors").read_bytes())
        self.refuse_run(3, "RUN/state.safetensors: expected an array model.", "--after", "2u")
        path = self.path("RUN", "state.safetensors")
        path.write_bytes(changed(state, "run.update", -1))
        self.refuse_run(3, "run.update: expected a number from 0, got -1", "--after", "2u")
        path.write_bytes(changed(state, "run.batch", 1 << 40))
        self.assertIn("RUN/state.safetensors: run.batch: expected less than the ",
                      self.refuse(3, *self.arguments("RUN", "--after", "9u")))


class Trouble(TrainCase):
    """Tests a full disk, NaN and infinity, progress, and a budget of time."""

    def test_no_room_for_a_save(self):
        self.train("WHOLE", "--after", "8u")
        self.train("RUN", "--after", "4u")
        before = self.files("RUN")
        for limit in (2000, len(before["state.safetensors"]) - 1):
            line = self.refuse(4, *self.arguments("RUN", "--after", "8u"),
                               preexec_fn=limited_to(limit))
            self.assertRegex(line, r"^qkv: RUN/\S+: cannot be written: File too large\n$")
            after = self.files("RUN")
            self.assertEqual(after.pop("config.json").count(b'"after": "8u"'), 1)
            self.assertTrue(after.pop("train.jsonl").startswith(before["train.jsonl"]))
            self.assertEqual(after, {name: before[name] for name in after})
        self.train("RUN", "--after", "8u")
        self.same_run("RUN", "WHOLE")

    def test_divergence(self):
        more = ("--lr", "1e30", "--warmup", "0", "--save-freq", "1u", "--after", "50u")
        line = self.refuse(5, *self.arguments("RUN", *more))
        found = re.match(r"qkv: (the .* is -?(?:nan|inf)|a parameter is not finite) at update (\d+); "
                         r"RUN holds update (\d+), ", line)
        self.assertTrue(found, line)
        self.assertEqual(self.updates("RUN"), int(found[3]))
        self.assertEqual(int(found[2]), int(found[3]) + 1)
        for name in ("model.safetensors", "best.safetensors", "state.safetensors"):
            for array in safetensors(self.path("RUN", name)).values():
                # Without a validation, the state's best loss is infinite.
                self.assertTrue(np.isfinite(array[array != np.inf]).all())
        for array in safetensors(self.path("RUN", "model.safetensors")).values():
            self.assertTrue(np.isfinite(array).all())
        before = self.files("RUN")
        self.refuse(5, *self.arguments("RUN", *more))
        after = self.files("RUN")
        self.assertEqual(after, before)

    def test_a_step_too_far(self):
        """The loss of the update is finite, but the parameters after it are not."""
        line = self.refuse(5, *self.arguments("RUN", "--lr", "1e300", "--save-freq", "1u"))
        self.assertRegex(line, "^qkv: a parameter is not finite at update 1; RUN holds update 0, ")

    def test_time_that_is_left_for_ages(self):
        process = self.start("RUN", "--after", "30000000000000e", "--progress", "always")
        line = process.stderr.readline().decode()
        process.send_signal(signal.SIGINT)
        process.communicate()
        self.assertRegex(line, r" \d{4,} h \d+ min left, loss ")

    def test_progress(self):
        done = self.train("RUN", "--after", "3u", "--progress", "always")
        lines = done.err.splitlines()
        self.assertGreaterEqual(len(lines), 2)
        for line in lines:
            self.assertRegex(line, r"^qkv: train: epoch \d\.\d\d, update \d+, (\d+ h )?(\d+ min )?"
                                   r"(\d+ s )?left, loss \d+\.\d{4}, \d+ tokens/s$")
        self.assertIn("update 3, ", lines[-1])
        self.assertIn(" 0 s left", lines[-1])

    def test_a_budget_of_time(self):
        done = self.train("RUN", "--after", "0.3s")
        updates = int(re.search(r"updates (\d+)", done.out)[1])
        self.assertGreater(updates, 0)
        self.assertEqual(self.updates("RUN"), updates)
        again = self.train("RUN", "--after", "0.3s")
        self.assertIn(f"updates {updates},", again.out)


if __name__ == "__main__":
    unittest.main()
