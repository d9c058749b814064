#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what `qkv train` reports of its validations, and the lines of train.jsonl.

usage: train_log_test.py PROGRAM [TEST ...]
"""

import json
import re
import signal
import unittest

import numpy as np
from program import PATIENCE
from train_runs import ENDLESS, TrainCase, safetensors

VALID = ("--valid", "valid.tsv")
FIELDS = ["epoch", "update", "loss", "learning_rate", "gradient_norm", "clipped", "seconds",
          "tokens_per_second"]
VALID_FIELDS = ["valid_loss", "perplexity", "bleu", "exact", "translated", "best", "sample"]
VALIDATION = (r"qkv: train: epoch (\d\.\d\d), update (\d+), validation: loss (\S+), perplexity (\S+), "
        r"BLEU (\S+), exact (\d+) of (\d+), clipped (\d+) % of updates(, the best so far)?\n"
        r"qkv: train:   source      (.*)\nqkv: train:   translation ?(.*)\n"
        r"qkv: train:   reference   (.*)\n")


class Log(TrainCase):
    def in_order(self, folder):
        """Returns (update, end) of each line; fails unless they are distinct and in order."""
        lines = self.lines(folder)
        events = [(line["update"], line.get("end")) for line in lines]
        self.assertEqual(len(set(events)), len(events))
        updates = [update for update, _ in events]
        self.assertEqual(updates, sorted(updates))
        return events

    def test_each_validation_is_reported_and_logged(self):
        """The report has all figures, and a sample sentence pair that changes."""
        done = self.train("RUN", "--after", "14u", *VALID, "--valid-freq", "3u", "--lr", "0.05",
                          "--progress", "always")
        reports = re.findall(VALIDATION, done.err)
        logged = [line for line in self.lines("RUN") if "valid_loss" in line]
        self.assertEqual([line["update"] for line in logged], [3, 6, 9, 12, 14])
        self.assertEqual([line.get("end") for line in logged], [None] * 4 + ["budget"])
        pairs = (self.dir / "valid.tsv").read_text().splitlines()
        best = float("inf")  # of the loss, since these texts are too short for BLEU
        for text, line in zip(reports, logged, strict=True):
            end = ["end"] if "end" in line else []
            self.assertEqual([*line], FIELDS[:2] + end + FIELDS[2:] + VALID_FIELDS)
            self.assertEqual([*line["sample"]], ["source", "translation", "reference"])
            sample = line["sample"]
            self.assertIn(f"{sample['source']}\t{sample['reference']}", pairs)
            self.assertEqual(line["best"], line["valid_loss"] < best)
            best = min(best, line["valid_loss"])
            self.assertEqual(text[1:], (
                str(line["update"]), f"{line['valid_loss']:.4f}", f"{line['perplexity']:.4f}",
                f"{line['bleu']:.2f}", str(line["exact"]), "30", f"{100 * line['clipped']:.0f}",
                ", the best so far" if line["best"] else "", *sample.values()))
        self.assertGreaterEqual(len({line["sample"]["source"] for line in logged}), 3)
        last = reports[-1]
        self.assertIn(f"validation: loss {last[2]}, perplexity {last[3]}, BLEU {last[4]}, exact "
                      f"{last[5]} of 30; best loss {best:.4f}, since no reference has the 4 tokens "
                      "that BLEU needs\n", done.out)
        self.train("AGAIN", "--after", "14u", *VALID, "--valid-freq", "3u", "--lr", "0.05",
                   "--threads", 1)
        self.assertEqual(self.log("AGAIN"), self.log("RUN"))

    def test_the_share_of_clipped_updates(self):
        """The share is as counted from the norms of all updates, over interrupted runs too."""
        clip = 0.4
        more = ("--lr", "0.3", "--warmup", "3", "--decay", "0", "--clip", str(clip), *VALID)
        self.train("EACH", "--after", "24u", *more, "--valid-freq", "1u")
        norms = {line["update"]: line["gradient_norm"] for line in self.lines("EACH")}
        for line in self.lines("EACH"):
            self.assertEqual(line["clipped"], line["gradient_norm"] > clip)
        for after in (3, 5, 11, 24):
            self.train("RUN", "--after", f"{after}u", *more, "--valid-freq", "5u")
        last, shares = 0, []
        for line in self.lines("RUN"):
            update = line["update"]
            share = np.mean([norms[n] > clip for n in range(last + 1, update + 1)])
            if "loss" in line:
                self.assertEqual(line["clipped"], share)
                shares.append(share)
            last = last if "end" in line else update
        self.assertGreater(len({0, 1} | {*shares}), 3)  # two or more are neither 0 nor 1
        # Without clipping there is no share to report.
        done = self.train("FREE", "--after", "3u", *VALID, "--clip", "inf", "--progress", "always")
        self.assertNotIn("clipped", done.err + json.dumps(self.lines("FREE")))

    def test_quiet(self):
        for folder, *silence in (("QUIET", "--quiet"), ("NEVER", "--progress", "never")):
            self.assertEqual(self.train(folder, "--after", "3u", *VALID, *silence).err, "")
            (line,) = self.lines(folder)
            self.assertIn("valid_loss", line)

    def test_figures_are_those_of_score(self):
        """The scores agree, also for unknown words, capitals, and several references."""
        words = "one two three four five six".split()
        text = "".join(f"{a} {b} {c}\t{c.title()} {b} {a} {b} end\n"
                       for a in words for b in words for c in words)
        self.file("data.tsv", text)
        self.file("valid.tsv", text[:2000].rsplit("\n", 1)[0] + "\none two two\ttwo two Odd two end\n"
                  "seven one one\tone one seven one end\n")
        more = ("--tokenize", "word", "--lower", "--lr", "0.05", "--warmup", "5")
        self.train("RUN", "--after", "45u", *VALID, "--valid-freq", "25u", *more)
        line = self.lines("RUN")[-1]
        self.assertEqual((line["update"], line["end"]), (45, "budget"))
        score = json.loads(self.run_qkv("score", "RUN", "valid.tsv", "--model", "last", "--json").out)
        self.assertEqual((line["bleu"], line["exact"], line["translated"]),
                         (score["bleu"], score["exact"], score["sentences"]))
        self.assertLess(score["sentences"], score["pairs"])
        self.assertAlmostEqual(line["perplexity"], score["perplexity"], 5)
        self.assertGreater(line["exact"], 3)  # some translations are learned
        self.assertLess(line["exact"], line["translated"] - 2)
        self.assertEqual(line["sample"]["reference"].split()[-1], "end")

    def test_the_first_sentences_are_translated(self):
        """The first 200 sentences are translated, with all their references from the whole file."""
        words = "one two three four five six".split()
        pairs = [f"{a} {b} {c}\t{c} {b} {a} {b} end" for a in words for b in words for c in words]
        every = "one one one two three four five six six six end end"  # matches early translations
        more = [f"{pairs[n].split(chr(9))[0]}\t{every}" for n in (*range(0, 200, 9), 205)]
        self.file("data.tsv", "\n".join(pairs))
        self.file("valid.tsv", "\n".join(pairs + more))
        self.file("first.tsv", "\n".join(pairs[:200] + more[:-1]))
        self.file("fewer.tsv", "\n".join(pairs[:200]))
        self.train("RUN", "--after", "12u", *VALID, "--tokenize", "word", "--lr", "0.05", "--warmup", "5",
                   "--valid-translate", "200")
        line = self.lines("RUN")[-1]
        score, fewer = (json.loads(self.run_qkv("score", "RUN", name, "--model", "last", "--json").out)
                        for name in ("first.tsv", "fewer.tsv"))
        self.assertEqual((line["translated"], line["bleu"], line["exact"]),
                         (200, score["bleu"], score["exact"]))
        self.assertNotEqual(score["bleu"], fewer["bleu"])

    def test_a_run_under_one_epoch(self):
        self.train("RUN", "--after", "2u")
        (line,) = self.lines("RUN")
        self.assertEqual([*line], FIELDS[:2] + ["end"] + FIELDS[2:])
        self.assertEqual((line["epoch"], line["update"], line["end"]), (0, 2, "budget"))
        self.assertAlmostEqual(line["loss"], np.log(30), 1)
        self.train("OTHER", "--after", "2u", *VALID)
        (line,) = self.lines("OTHER")
        self.assertEqual(line["end"], "budget")
        self.assertEqual(line["translated"], 30)

    def test_the_end_of_an_epoch_has_one_line(self):
        self.train("RUN", "--after", "2e")
        self.train("VALID", "--after", "2e", *VALID)
        for folder in ("RUN", "VALID"):
            self.assertEqual([(line["epoch"], "end" in line) for line in self.lines(folder)],
                             [(1, False), (2, False)])
        # An epoch ends where no validation is due: the validation of the end has its own line.
        self.train("LATER", "--after", "1e", *VALID, "--valid-freq", "2e")
        first, second = self.lines("LATER")
        self.assertEqual((first["update"], "loss" in first, "end" in first),
                         (second["update"], True, False))
        self.assertEqual(("loss" in second, "valid_loss" in second, second["end"]),
                         (False, True, "budget"))

    def test_ends_stay_and_change_nothing(self):
        """Ends of budgets between validations keep their lines and do not change training."""
        more = (*VALID, "--valid-freq", "8u", "--lr", "0.02")
        for end in (3, 3, 8, 11, 11, 13, 18):
            self.train("RUN", "--after", f"{end}u", *more)
        self.train("WHOLE", "--after", "18u", *more)
        self.same_run("RUN", "WHOLE")
        events = self.in_order("RUN")
        self.assertEqual([update for update, end in events if end], [3, 11, 13, 18])
        self.assertEqual([update for update, end in self.in_order("WHOLE") if end], [18])
        for line in self.lines("RUN"):
            self.assertEqual("valid_loss" in line, line["update"] % 8 == 0 or "end" in line)
        # The loss of an end is the mean since the last line that is not an end.
        loss = {(line["update"], line.get("end")): line["loss"] for line in self.lines("RUN")}
        whole = {(line["update"], line.get("end")): line["loss"] for line in self.lines("WHOLE")}
        self.assertEqual(loss[18, "budget"], whole[18, "budget"])

    def test_ends_take_no_part_in_early_stopping(self):
        """With a learning rate of 1e-30, no validation after the first is an improvement."""
        more = (*VALID, "--valid-freq", "4u", "--patience", "2", "--lr", "1e-30")
        for end in (3, 5, 6, 7, 9, 10):
            done = self.train("RUN", "--after", f"{end}u", *more)
            self.assertIn(f"the budget of {end}u is used up", done.out)
        done = self.train("RUN", "--after", "40u", *more)
        self.assertIn("updates 12, ", done.out)
        self.assertIn("validation stopped improving", done.out)
        self.assertEqual(self.in_order("RUN")[-1], (12, None))

    def test_where_it_was_stopped(self):
        """An end within the first epoch is logged, too, and each kind of end once for an update."""
        self.file("data.tsv", (self.dir / "data.tsv").read_text() * 40)
        process = self.start("RUN", "--after", ENDLESS, "--save-freq", "1u", *VALID)
        self.wait_for_update(process, "RUN", 2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        at = self.updates("RUN")
        *_, line = self.lines("RUN")
        self.assertEqual((line["update"], line["end"], "loss" in line, "valid_loss" in line),
                         (at, "stopped", True, False))
        for _ in range(2):
            self.train("RUN", "--after", f"{at}u", *VALID)
            self.assertEqual(self.in_order("RUN")[-2:], [(at, "stopped"), (at, "budget")])
        self.assertEqual(self.lines("RUN")[-1]["translated"], 30)

    def test_a_state_without_lines_of_ends(self):
        # A state of a version that wrote no lines of ends lacks run.line_done.
        self.train("WHOLE", "--after", "9u")
        self.train("RUN", "--after", "3u")
        path = self.path("RUN", "state.safetensors")
        data = path.read_bytes()
        self.assertEqual(data.count(b"run.line_done"), 1)
        path.write_bytes(data.replace(b"run.line_done", b"run.line_gone"))
        self.train("RUN", "--after", "9u")
        self.same_run("RUN", "WHOLE")
        self.assertIn("run.line_done", safetensors(path))

    def test_on_a_narrow_terminal(self):
        """The line that is redrawn never wraps, and validations start on a row of their own."""
        shown = self.on_terminal(*self.arguments("RUN", "--after", "40u", *VALID, "--progress", "always"),
                                 stream="stderr", size=(24, 40))
        validations, drawn = 0, 0
        for row in shown.decode().split("\n")[:-1]:
            *redrawn, last = row.rstrip("\r").split("\r")
            for text in redrawn:
                text = text.removesuffix("\x1b[K").removeprefix("\x1b[K")
                self.assertLessEqual(len(text), 39)
                drawn += bool(text)
            self.assertTrue(last.removeprefix("\x1b[K").startswith("qkv: train: "), row)
            self.assertNotIn("\x1b", last.removeprefix("\x1b[K"))
            validations += "validation: loss" in last
        self.assertEqual(validations, sum("valid_loss" in line for line in self.lines("RUN")))
        self.assertGreater(drawn, 0)
        self.assertTrue(shown.endswith(b"\n") or shown.endswith(b"\r\x1b[K"), shown[-80:])


if __name__ == "__main__":
    unittest.main()
