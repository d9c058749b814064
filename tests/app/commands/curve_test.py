#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that `qkv curve` draws the points of train.jsonl.

usage: curve_test.py PROGRAM [TEST ...]
"""

import json
import re
import unittest
import xml.etree.ElementTree

from program import Case
from train_runs import TrainCase

SVG = "{http://www.w3.org/2000/svg}"


class Drawing:
    """An SVG of a chart. The labels of its axes tell the numbers of its points."""

    def __init__(self, path):
        self.root = xml.etree.ElementTree.parse(path).getroot()
        self.texts = {text.get("id"): text for text in self.root.iter(SVG + "text")}
        self.width = float(self.root.get("width"))

    def text(self, name):
        return self.texts[name].text if name in self.texts else None

    def scale(self, prefix, attribute):
        """Returns the linear function from coordinates to numbers that two labels define."""
        labels = [text for name, text in self.texts.items() if re.fullmatch(prefix + r"\d+", name)]
        first, last = ((float(label.get(attribute)), float(label.text.replace(",", "")))
                       for label in (labels[0], labels[-1]))
        shift = 3.6 if attribute == "y" else 0  # a label's baseline is below its grid line
        return lambda at: first[1] + (at + shift - first[0]) / (last[0] - first[0]) * (
            last[1] - first[1])

    def points(self, panel, series):
        path = self.root.find(f".//{SVG}path[@id='p{panel}-s{series}']").get("d")
        x, y = self.scale("x", "x"), self.scale(f"p{panel}-y", "y")
        numbers = [tuple(map(float, pair.split())) for pair in re.split("[ML]", path)[1:]]
        return [(x(a), y(b)) for a, b in numbers]

    def titles(self):
        return [title.text for title in self.root.iter(SVG + "title")]


def entry(update, epoch, loss=None, valid=None, bleu=None, end=None, best=False):
    line = {"epoch": epoch, "update": update, "seconds": update / 2, "learning_rate": 0.1}
    line |= {"end": end} if end else {}
    line |= {"loss": loss} if loss is not None else {}
    if valid is not None:
        line |= {"valid_loss": valid, "bleu": bleu, "best": best,
                 "sample": {"source": "a", "translation": "b", "reference": "c"}}
    return json.dumps(line) + "\n"


class Written(Case):
    """Tests with files train.jsonl that the tests write themselves."""

    def setUp(self):
        super().setUp()
        self.log("RUN", entry(100, 0, 4.5, 4.25, 0.0, best=True)
                 + entry(200, 1, 3.5, 3.0, 10.0, best=True)
                 + entry(250, 1, 9.0, 2.9, 12.0, end="budget", best=True)
                 + entry(300, 1, 2.5, 2.75, 30.0, best=True) + entry(500, 2, 2.0, 2.5, 20.0))

    def log(self, folder, text):
        (self.dir / folder).mkdir(exist_ok=True)
        self.file(f"{folder}/train.jsonl", text)

    def near_points(self, got, want):
        self.assertEqual(len(got), len(want), got)
        width = want[-1][0]
        for (x, y), (a, b) in zip(got, want, strict=True):
            self.assertAlmostEqual(x / width, a / width, 4)
            self.assertAlmostEqual(y, b, 2)

    def drawing(self, *arguments):
        self.run_qkv("curve", *arguments, "-o", "curve.svg")
        return Drawing(self.dir / "curve.svg")

    def test_points_are_those_of_the_log(self):
        picture = self.drawing("RUN")
        self.assertLessEqual(picture.width, 800)
        # The training loss at update 250, where a run ended, is not drawn.
        loss = [(100, 4.5), (200, 3.5), (300, 2.5), (500, 2)]
        valid = [(100, 4.25), (200, 3), (250, 2.9), (300, 2.75), (500, 2.5)]
        bleu = [(100, 0), (200, 10), (250, 12), (300, 30), (500, 20)]
        self.near_points(picture.points(0, 0), loss)
        self.near_points(picture.points(0, 1), valid)
        self.near_points(picture.points(1, 0), bleu)
        self.assertEqual((picture.text("p0-name"), picture.text("p1-name"), picture.text("x-name")),
                         ("loss per target token", "BLEU", "updates"))
        self.assertEqual(picture.text("run-0"), "RUN   best at update 300: BLEU 30.00, loss 2.7500")
        self.assertIn("update 500: BLEU 20", picture.titles())
        self.assertIn("update 250: BLEU 12, not counted", picture.titles())
        note = "Not counted for the best, since a run ended there and was resumed: update 250."
        shown = self.run_qkv("curve", "RUN", "--color", "never").out
        self.assertIn(note, " ".join(shown.split()))

    def test_other_axes(self):
        """Epochs have fractions: an epoch ends at the first line with its number."""
        picture = self.drawing("RUN", "--x", "epochs")
        self.near_points(picture.points(1, 0),
                         [(0.5, 0), (1, 10), (1 + 50 / 300, 12), (1 + 100 / 300, 30), (2, 20)])
        self.assertEqual(picture.text("x-name"), "epochs")
        picture = self.drawing("RUN", "--x", "time")
        self.near_points(picture.points(1, 0), [(50 / 60, 0), (100 / 60, 10), (125 / 60, 12),
                                                (150 / 60, 30), (250 / 60, 20)])
        self.assertEqual(picture.text("x-name"), "minutes of training, with validations")

    def test_several_runs(self):
        self.log("<B>", entry(1000, 1, 5.0, 2.0, 50.0, best=True))
        picture = self.drawing("RUN", "<B>/")
        self.near_points(picture.points(0, 3), [(1000, 2.0)])
        self.near_points(picture.points(0, 1), [(1000, 5.0)])
        self.assertTrue(picture.text("run-1").startswith("<B>/   best at update 1000: BLEU 50.00"))
        colours = {path.get("id"): path.get("stroke") for path in picture.root.iter(SVG + "path")}
        self.assertEqual(colours["p0-s0"], colours["p1-s0"])
        self.assertEqual(colours["p0-s1"], colours["p1-s1"])
        self.assertNotEqual(colours["p0-s0"], colours["p0-s1"])

    def test_a_note_says_why_training_may_lie_above(self):
        why = ("Training loss includes dropout and label smoothing, validation loss does not: training "
               "may lie above validation.")
        picture = self.drawing("RUN")
        self.assertTrue(picture.text("note").startswith(why))
        self.assertIn(why, picture.root.find(f"{SVG}desc").text)
        for columns in (80, 200):
            drawn = self.run_qkv("curve", "RUN", "--color", "never", env={"COLUMNS": str(columns)}).out
            self.assertIn(why, " ".join(drawn.split()))
        self.log("BARE", entry(100, 0, 4.5) + entry(200, 1, 3.5))
        self.assertIsNone(self.drawing("BARE").text("note"))

    def test_without_validation(self):
        self.log("RUN", entry(100, 1, 4.0) + entry(200, 2, 3.0))
        picture = self.drawing("RUN")
        self.near_points(picture.points(0, 0), [(100, 4), (200, 3)])
        self.assertIsNone(picture.text("p1-name"))
        self.assertIsNone(picture.text("marked"))
        self.assertEqual(picture.text("run-0"), "RUN")

    def test_what_is_not_finite_is_a_gap(self):
        self.log("RUN", entry(1, 0, "Infinity", "NaN", 0.0) + entry(2, 0, 3.0, 2.0, 1.0, best=True)
                 + entry(3, 0, "NaN", 2.0, 1.0) + entry(4, 1, 2.5, 1.0, 5.0))
        picture = self.drawing("RUN")
        self.near_points(picture.points(0, 0), [(2, 3), (4, 2.5)])
        path = picture.root.find(f".//{SVG}path[@id='p0-s0']").get("d")
        self.assertEqual(path.count("M"), 2)

    def test_numbers_a_rounding_apart(self):
        # An axis is drawn even if its numbers differ only by rounding.
        for last in (1.0000000000000002, 1.0):
            self.log("RUN", entry(1, 0, 1.0) + entry(2, 1, last))
            self.near_points(self.drawing("RUN").points(0, 0), [(1, 1), (2, 1)])
        self.log("RUN", entry(1, 0, 2.0, 1.0, 43.09) + entry(2, 0, 2.0, 1.0, 43.090000000000003)
                 + entry(3, 1, 1.0, 1.0, 43.09000000000001))
        self.near_points(self.drawing("RUN").points(1, 0), [(n, 43.09) for n in (1, 2, 3)])
        self.run_qkv("curve", "RUN")

    def test_next_to_no_time(self):
        # An axis of time is drawn even up to the least positive number of float64.
        self.log("RUN", '{"epoch": 0, "update": 1, "seconds": 5e-324, "loss": 1.0}\n')
        self.assertEqual(self.drawing("RUN", "--x", "time").points(0, 0), [(0, 1)])
        self.run_qkv("curve", "RUN", "--x", "time")

    def test_best_at_an_end_is_gone_once_the_run_goes_on(self):
        """A best at the end of a run does not count once the run goes on from before that end."""
        before = entry(100, 1, 4.0, 3.0, 10.0, best=True)
        end = entry(150, 1, 4.0, 2.0, 30.0, end="budget", best=True)
        after = entry(200, 2, 3.0, 2.5, 5.0)
        for text, best in ((before + end + after, 100), (before + end, 150),
                           (before + end + after + entry(250, 2, 3.0, 2.4, 40.0, end="stopped", best=True), 250)):
            self.log("RUN", text)
            self.assertIn(f"best at update {best}:", self.drawing("RUN").text("run-0"))
            points = json.loads(self.run_qkv("curve", "RUN", "--json").out)["runs"][0]["points"]
            self.assertEqual([point["update"] for point in points if point["best"]],
                             [100] if best == 100 else [100, best])

    def test_few_updates_are_drawn_with_the_next(self):
        """A line of few updates, as of an epoch that ends just after a validation, is noisy."""
        valid = entry(400, 0, 4.0, 3.0, 1.0)
        self.log("RUN", valid + entry(402, 1, 9.0) + entry(800, 1, 3.0))
        self.near_points(self.drawing("RUN").points(0, 0),
                         [(400, 4), (800, (2 * 9 + 398 * 3) / 400)])
        self.log("RUN", valid + entry(402, 1, 9.0))
        self.near_points(self.drawing("RUN").points(0, 0), [(402, (400 * 4 + 2 * 9) / 402)])
        self.log("RUN", valid + entry(500, 1, 9.0) + entry(800, 1, 3.0))
        self.near_points(self.drawing("RUN").points(0, 0), [(400, 4), (500, 9), (800, 3)])
        self.log("RUN", valid + entry(402, 1, "NaN") + entry(800, 1, 3.0))
        self.near_points(self.drawing("RUN").points(0, 0), [(400, 4), (800, 3)])
        self.assertEqual(len(json.loads(self.run_qkv("curve", "RUN", "--json").out)["runs"][0]["points"]), 3)

    def test_labels_do_not_crowd(self):
        """The labels of one axis do not touch, whatever the numbers."""
        for last in (1, 7, 99, 12345, 999999, 123456789012):
            self.log("RUN", entry(0, 0, 1.0) + entry(last, 1, 1.0 + last * 1e-9, 1e-5, 0.0))
            picture = self.drawing("RUN")
            labels = [text for name, text in picture.texts.items() if re.fullmatch(r"x\d+", name)]
            self.assertGreaterEqual(len(labels), 2)
            # The middle and half the width of each label, with 6.02 pixels a character.
            spans = [(float(label.get("x")), 3.01 * len(label.text)) for label in labels]
            for (x, half), (next_x, next_half) in zip(spans, spans[1:], strict=False):
                gap = next_x - next_half - (x + half)
                self.assertGreater(gap, 9, [label.text for label in labels])
            self.assertLessEqual(spans[-1][0] + spans[-1][1], 800)
            for panel in "p0-y", "p1-y":
                rows = [float(text.get("y")) for name, text in picture.texts.items()
                        if name.startswith(panel)]
                for upper, lower in zip(rows, rows[1:], strict=False):
                    self.assertGreater(abs(upper - lower), 12)

    def test_a_number_too_large_to_draw_is_a_gap(self):
        # Charts do not draw numbers of 1e15 and more (kMostDrawn).
        self.log("RUN", entry(1, 0, 1e20) + entry(100, 1, 3.0))
        self.near_points(self.drawing("RUN").points(0, 0), [(100, 3)])

    def test_on_the_terminal(self):
        self.log("OTHER", entry(400, 1, 4.0, 3.0, 40.0, best=True))
        for columns in (20, 80, 200):
            for locale in ("C.UTF-8", "C"):
                done = self.run_qkv("curve", "RUN", "OTHER", "--color", "never",
                                    env={"COLUMNS": str(columns), "LC_ALL": locale})
                lines = done.out.split("\n")
                self.assertLessEqual(max(map(len, lines)), max(columns, 32))
                marks = "●▲" if locale == "C.UTF-8" else "ab"
                self.assertTrue(lines[0].startswith(marks[0] + " RUN   best at"))
                self.assertTrue(lines[1].startswith(marks[1] + " OTHER   best"))
                self.assertEqual(done.out.isascii(), locale == "C")
                plot = "".join(line.split("|")[-1].split("┤")[-1] for line in lines
                               if "|" in line or "┤" in line)
                if columns >= 80:
                    self.assertEqual(plot.count(marks[0]), 2 * 5)
                    self.assertEqual(plot.count(marks[1]), 2)
        self.assertIn(b"38;2;0;114;178", self.run_qkv("curve", "RUN", "--color", "always").stdout)

    def test_numbers(self):
        points = json.loads(self.run_qkv("curve", "RUN", "--json").out)["runs"][0]["points"]
        self.assertEqual(points[2], {"update": 250, "epochs": 1 + 50 / 300, "seconds": 125.0,
                                     "valid_loss": 2.9, "bleu": 12.0, "best": False,
                                     "counts": False})
        self.run_qkv("curve", "RUN", "-o", "curve.txt")
        self.assertEqual((self.dir / "curve.txt").read_text().split("\n")[3].split(),
                         ["200", "1.00", "100.0", "3.5000", "3.0000", "10.00", "*"])

    def test_rendered(self):
        done = self.run_qkv("curve", "RUN", "-o", "curve.png", "-o", "curve.pdf", code=None)
        if done.returncode == 7:
            self.skipTest("no librsvg here")
        self.assertEqual((done.returncode, done.out), (0, ""))
        data = (self.dir / "curve.png").read_bytes()
        self.assertEqual(int.from_bytes(data[16:20], "big"), 1600)
        self.assertTrue((self.dir / "curve.pdf").read_bytes().startswith(b"%PDF"))


class Trained(TrainCase):
    def test_of_a_run(self):
        self.train("RUN", "--after", "12u", "--valid", "valid.tsv", "--valid-freq", "5u")
        self.run_qkv("curve", "RUN", "-o", "curve.svg")
        got = Drawing(self.dir / "curve.svg").points(0, 1)
        want = [(line["update"], line["valid_loss"]) for line in self.lines("RUN")
                if "valid_loss" in line]
        self.assertEqual([round(x) for x, _ in got], [update for update, _ in want])
        for (_, y), (_, loss) in zip(got, want, strict=True):
            self.assertAlmostEqual(y, loss, 1)
        self.train("BARE", "--after", "3u")
        self.assertEqual(len(json.loads(self.run_qkv("curve", "BARE", "--json").out)["runs"][0]["points"]), 1)


if __name__ == "__main__":
    unittest.main()
