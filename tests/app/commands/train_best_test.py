#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests when `qkv train` validates, which parameters are the best, and early stopping.

usage: train_best_test.py PROGRAM [TEST ...]
"""

import json
import shutil
import unittest

from train_runs import TrainCase, changed, safetensors

# Options with a learning rate at which loss and BLEU go up and down.
WILD = ("--lr", "0.3", "--warmup", "3", "--decay", "0", "--valid", "valid.tsv", "--valid-freq", "3u",
        "--tokenize", "word")
# ALWAYS is due at each update, since none takes less than a nanosecond; NEVER is due at none.
ALWAYS, NEVER = "0.000000001s", "168h"


class Best(TrainCase):
    """Tests on sentences of several words, whose BLEU is between 0 and 100."""

    def setUp(self):
        super().setUp()
        words = "one two three four five six".split()
        text = [f"{a} {b} {c}\t{c} {b} {a} {b} end\n" for a in words for b in words for c in words]
        self.file("data.tsv", "".join(text))
        self.file("valid.tsv", "".join(text[::7]))

    def parameters(self, folder, name):
        return self.path(folder, name).read_bytes()

    def is_better(self, line, best):
        """Returns whether the line is better than the best so far: by BLEU, then by loss."""
        return best is None or ((line["bleu"], -line["valid_loss"]) >
                                (best["bleu"], -best["valid_loss"]))

    def test_by_bleu_or_by_loss(self):
        """Where BLEU and loss prefer different updates, only best.safetensors differs."""
        for seed in range(20):
            wild = (*WILD, "--seed", seed)
            done = {by: self.train(by, "--after", "30u", "--best", by, *wild).out
                    for by in ("bleu", "loss")}
            best = None
            for line in self.validations("bleu"):
                self.assertEqual(line["best"], self.is_better(line, best))
                best = line if line["best"] else best
            least = min(self.validations("loss"), key=lambda line: line["valid_loss"])
            if best["update"] != least["update"]:
                break
            for by in done:
                shutil.rmtree(self.dir / by)
        self.assertNotEqual(best["update"], least["update"])
        self.assertEqual(self.parameters("bleu", "model.safetensors"),
                         self.parameters("loss", "model.safetensors"))
        for by, line in (("bleu", best), ("loss", least)):
            self.train(f"{by} again", "--after", f"{line['update']}u", *wild)
            self.assertEqual(self.parameters(by, "best.safetensors"),
                             self.parameters(f"{by} again", "model.safetensors"))
        self.assertIn(f"; best BLEU {best['bleu']:.2f}\n", done["bleu"])
        self.assertIn(f"; best loss {least['valid_loss']:.4f}\n", done["loss"])

    def test_of_short_sentences_by_loss(self):
        """For references of three words, only a wrong translation can have a BLEU above 0."""
        words = "one two three four five six".split()
        text = [f"{a} {b}\t{b} {a} end\n" for a in words for b in words]
        self.file("data.tsv", "".join(4 * text))
        self.file("valid.tsv", "".join(text[::3]))
        for seed in range(20):
            done = self.train("RUN", "--after", "39u", "--seed", seed, *WILD)
            lines = self.validations("RUN")
            best = min(lines, key=lambda line: line["valid_loss"])
            if any(line["bleu"] > best["bleu"] for line in lines):
                break
            shutil.rmtree(self.dir / "RUN")
        self.assertTrue(any(line["bleu"] > best["bleu"] for line in lines))
        self.assertEqual([line for line in lines if line["best"]][-1], best)
        self.assertIn(f"best loss {best['valid_loss']:.4f}, since no reference has the 4 tokens",
                      done.out)

    def test_bleu_is_the_default(self):
        self.train("RUN", "--after", "20u", *WILD)
        self.train("BLEU", "--after", "20u", "--best", "bleu", *WILD)
        self.same_run("RUN", "BLEU")

    def test_patience_uses_the_criterion_of_best(self):
        # Early stopping counts validations since the best by the criterion of --best.
        for by in ("bleu", "loss"):
            out = self.train(by, "--after", "900u", "--best", by, "--patience", 3, *WILD).out
            self.assertIn("validation stopped improving", out)
            lines = self.validations(by)
            self.assertEqual([line["best"] for line in lines][-4:], [True] + [False] * 3)
            key = "bleu" if by == "bleu" else "valid_loss"
            values = [line[key] for line in lines]
            top = max(values) if by == "bleu" else min(values)
            self.assertEqual(lines[-4][key], top)

    def test_stopped_and_resumed(self):
        """A run is stopped between and at validations, with all options that matter."""
        more = (*WILD, "--patience", 50, "--keep", 3, "--clip", "0.7", "--valid-translate", 20)
        self.train("WHOLE", "--after", "31u", *more)
        for after in (1, 2, 3, 7, 12, 13, 26, 31):
            self.train("RUN", "--after", f"{after}u", *more)
        self.same_run("RUN", "WHOLE", ["checkpoint-24.safetensors", "checkpoint-27.safetensors",
                                       "checkpoint-30.safetensors"])
        self.assertEqual(self.validations("RUN")[0]["translated"], 20)

    def test_a_validation_that_resuming_discards_is_named(self):
        """The validation at the end of a budget was the best, until the run went on."""
        more = ("--lr", "0.02", "--warmup", "3", "--valid", "valid.tsv", "--valid-freq", "4u",
                "--tokenize", "word")
        lines = []
        for seed in range(20):
            self.train("RUN", "--after", "10u", *more, "--seed", seed)
            lines = self.lines("RUN")
            if lines[-1]["best"]:
                break
            shutil.rmtree(self.dir / "RUN")
        *before, last = lines
        self.assertTrue(last["best"])
        best = [line for line in before if line.get("best")][-1]
        first, again = (f"update {line['update']} (BLEU {line['bleu']:.2f}, loss "
                        f"{line['valid_loss']:.4f})" for line in (last, best))
        idle = self.run_qkv("train", "RUN")  # does not go on
        self.assertNotIn("does not count", idle.err)
        done = self.run_qkv("train", "RUN", "--after", "11u")
        self.assertTrue(done.err.endswith(
            f"qkv: RUN: the validation at {first} does not count in a run "
            f"that goes on; the best is again that of {again}\n"), done.err)
        self.assertEqual(self.run_qkv("train", "RUN", "--after", "12u", "--quiet").err, "")
        self.train("EARLY", "--after", "3u", *more)
        self.assertIn("does not count in a run that goes on; best.safetensors holds the latest "
                      "parameters until the next validation\n",
                      self.run_qkv("train", "EARLY", "--after", "5u").err)

    def test_a_run_from_before_there_was_a_choice(self):
        """A run without `best` in its config.json resumes by loss, with 200 sentences."""
        self.file("valid.tsv", self.run_qkv("gen", "reverse", "-n", 210, "--seed", 2).out)
        self.train("WHOLE", "--after", "30u", *WILD, "--best", "loss", "--valid-translate", 200)
        self.train("RUN", "--after", "8u", *WILD, "--best", "loss", "--valid-translate", 200)
        config = self.path("RUN", "config.json")
        settings = json.loads(config.read_text())
        for name in ("best", "valid_translate", "keep"):
            settings.pop(name)
        config.write_text(json.dumps(settings))
        state = self.path("RUN", "state.safetensors")
        data = state.read_bytes()
        # A state of that version lacks these arrays; under another name they count as absent.
        for name in (b"run.best_bleu", b"run.clipped", b"run.line_updates", b"run.valid_seconds"):
            self.assertEqual(data.count(name), 1)
            data = data.replace(name, name[:-1] + b"_")
        state.write_bytes(data)
        message = self.refuse(2, "train", "RUN", "--best", "bleu")
        self.assertIn('best: "loss" -> "bleu"; use', message)
        self.run_qkv("train", "RUN", "--after", "30u")
        self.assertEqual([line["valid_loss"] for line in self.validations("RUN")],
                         [line["valid_loss"] for line in self.validations("WHOLE")])
        self.assertEqual(self.validations("RUN")[-1]["translated"], 200)
        for name in ("model.safetensors", "best.safetensors"):
            self.assertEqual(self.parameters("RUN", name), self.parameters("WHOLE", name))
        self.assertEqual(json.loads(config.read_text())["best"], "loss")


class ByTime(TrainCase):
    """Tests --valid-freq in seconds; no result depends on the speed of the machine."""

    def run_with(self, folder, frequency, *more):
        self.train(folder, "--after", "12u", "--lr", "0.02", "--valid", "valid.tsv", "--valid-freq",
                   frequency, *more)

    def validated(self, folder):
        return [line["update"] for line in self.validations(folder)]

    def test_parameters_do_not_depend_on_it(self):
        for folder, frequency in (("ALWAYS", ALWAYS), ("NEVER", NEVER), ("UPDATES", "5u")):
            self.run_with(folder, frequency)
        self.assertEqual(self.validated("ALWAYS"), list(range(1, 13)))
        self.assertEqual(self.validated("NEVER"), [])
        for folder in ("NEVER", "UPDATES"):
            self.assertEqual(self.path("ALWAYS", "model.safetensors").read_bytes(),
                             self.path(folder, "model.safetensors").read_bytes())

    def test_whichever_is_due(self):
        self.run_with("RUN", f"5u,{NEVER}")
        self.assertEqual(self.validated("RUN"), [5, 10])

    def test_the_time_of_all_runs_counts(self):
        """The time before an interruption counts in a resumed run."""
        self.run_with("RUN", NEVER)
        state = self.path("RUN", "state.safetensors")
        for hours, update, want in ((167, 13, []), (200, 14, [14])):
            state.write_bytes(changed(state.read_bytes(), "run.seconds", 3600.0 * hours))
            self.run_qkv("train", "RUN", "--after", f"{update}u")
            self.assertEqual(self.validated("RUN"), want)
        # A resumed run also counts from the end of that validation.
        self.assertGreater(safetensors(state)["run.valid_seconds"][0], 3600.0 * 200)
        self.run_qkv("train", "RUN", "--after", "17u")
        self.assertEqual(self.validated("RUN"), [14])

    def test_the_frequency_is_stored(self):
        self.run_with("RUN", "0.5h")
        config = json.loads(self.path("RUN", "config.json").read_text())
        self.assertEqual(config["validate_every"], "1800s")
        self.assertIn('--valid-freq: "1800s" -> "5u"; use',
                      self.refuse(2, "train", "RUN", "--valid-freq", "5u"))


if __name__ == "__main__":
    unittest.main()
