#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv view`: names, padding, ranges, colours, fonts, notes, PDF.

usage: view_style_test.py PROGRAM [TEST ...]
"""

import json
import re
import shutil
import unittest

import numpy as np
from program import Case
from random_maps import weights

WORDS = ["[CLS]", "the", "cat", "sat", "</s>"]


class Styled(Case):
    def setUp(self):
        super().setUp()
        self.attn = weights(2, 5, 5)
        self.save(attn=self.attn, src=WORDS)

    def save(self, name="a.npz", **arrays):
        np.savez(self.dir / name, **arrays)

    def svg(self, *arguments, name="a.npz"):
        return self.run_qkv("--quiet", "view", name, *arguments, "-o", "-").out

    def seen(self, *arguments):
        return self.run_qkv("view", *arguments).out


class AxisNames(Styled):
    def test_of_the_file_or_the_command_line(self):
        self.save(attn=self.attn, src=WORDS, axes=["target", "source"])
        for arguments, rows, columns in (((), "target", "source"),
                                         (("--axes", "rows of A,B"), "rows of A", "B")):
            legend = f"rows are {rows}, columns are {columns}\n"
            self.assertIn(legend, self.seen("a.npz", *arguments))
            self.assertIn(legend, self.seen("a.npz", "--table", *arguments))
            svg = self.svg(*arguments)
            for name in (rows, columns):
                self.assertRegex(svg, f'<text id="(keys|queries)-0"[^>]*>{name}</text>')
            # A file that the command writes can be shown again.
            self.run_qkv("view", "a.npz", *arguments, "-o", "b.npz")
            self.assertIn(legend, self.seen("b.npz"))
        self.assertIn("rows are queries, columns are keys",
                      self.seen("a.npz", "--axes", "queries,keys"))

    def test_the_bar_is_named_after_the_array(self):
        self.save(attn=self.attn, dropped=self.attn, scores=self.attn - 0.5, gate=self.attn)
        for name, label in (("", "weight"), (":dropped", "weight"), (":scores", "score"),
                            (":gate", "gate")):
            self.assertRegex(self.svg(name="a.npz" + name),
                             f'<text id="bar-label"[^>]*>{label}</text>')
        # There are no notes on rows of scores, which need not sum to 1.
        self.assertEqual(self.run_qkv("view", "a.npz:scores", "--json").err, "")


class Padding(Styled):
    def setUp(self):
        super().setUp()
        # The array has two translations of different lengths, as `qkv translate` writes them.
        attn = np.zeros((2, 1, 1, 4, 6), np.float32)
        mask = np.zeros(attn.shape, bool)
        attn[0, 0, 0], mask[0] = weights(4, 6), True
        attn[1, 0, 0, :3, :2], mask[1, 0, 0, :3, :2] = weights(3, 2), True
        self.save(attn=attn, mask=mask, tgt=[["3", "/", "5", "</s>"], ["1", "2", "</s>", "<pad>"]],
                  src=[["3rd", "of", "May", "or", "so", "</s>"], ["x", "</s>", *4 * ["<pad>"]]],
                  line=["3rd of May or so", "x"], translation=["3/5", "12"])

    def test_a_translation_is_its_two_sentences(self):
        got = self.seen("a.npz", "--example", 1)
        self.assertTrue(got.startswith("x → 12\n"), got)
        self.assertNotIn("pad", got)
        self.assertEqual(got.splitlines()[-1], "example 1 of 2 (line 2)")
        self.assertIn(">x → 12</text>", self.svg("--example", 1))
        self.assertTrue(self.seen("a.npz", "--example", 1, "--title", "T").startswith("T\n"))
        self.run_qkv("--quiet", "view", "a.npz", "--example", 1, "-o", "b.npz")
        self.assertEqual(np.load(self.dir / "b.npz")["attn"].shape, (1, 1, 3, 2))
        self.assertTrue(self.seen("b.npz").startswith("x → 12\n"))

    def test_is_shown_if_asked(self):
        got = self.seen("a.npz", "--example", 1, "--keys", "all", "--table")
        self.assertEqual(got.count("<pad>"), 4)
        got = self.seen("a.npz", "--example", 1, "--keys", "all", "--queries", "all", "--table")
        self.assertEqual(got.count("<pad>"), 5)

    def test_is_not_counted_as_hidden(self):
        got = json.loads(self.run_qkv("view", "a.npz", "--example", 1, "--hide-special",
                                      "--json").out)
        self.assertEqual(got["notes"][:2],
                         ["example 1 of 2 (line 2)", "1 of 3 queries hidden (special tokens)"])
        self.assertIn("1 of 2 keys hidden", got["notes"][2])

    def save_empty(self, name, *empty, **more):
        """Saves three translations. Those whose numbers are in `empty` are of an empty line."""
        attn = np.zeros((3, 1, 1, 2, 2), np.float32)
        mask = np.zeros(attn.shape, bool)
        tokens = [["<pad>"] * 2 if n in empty else [f"a{n}", f"b{n}"] for n in range(3)]
        for n in range(3):
            if n not in empty:
                attn[n, 0, 0], mask[n] = weights(2, 2), True
        self.save(name, attn=attn, mask=mask, src=tokens, tgt=tokens, **more)

    def test_alone_is_not_drawn(self):
        nothing = "a.npz: nothing to draw"
        self.save_empty("a.npz", 0, 1)
        self.assertIn(nothing + " in example 1 of 3: it has only masked padding, like an empty",
                      self.refuse(2, "view", "a.npz", "--example", 1))
        self.refuse(2, "view", "a.npz", "--example", 1, "-o", "a.svg")
        got = self.seen("a.npz")
        self.assertIn("a2", got)
        self.assertNotIn("pad", got)
        self.assertEqual(got.splitlines()[-1], "example 2 of 3 shown: examples 0-1 are empty; "
                                               "--example N shows others")
        self.assertEqual(self.seen("a.npz", "--example", 0, "--keys", "all", "--queries", "all",
                                   "--table").count("<pad>"), 4)
        self.save_empty("a.npz", 0)
        self.assertIn("example 1 of 3 shown: example 0 is empty", self.seen("a.npz"))
        self.save_empty("a.npz", 1)
        self.assertIn("example 0 of 3 shown; ", self.seen("a.npz"))
        self.save_empty("a.npz", 0, 1, 2)
        self.assertIn(nothing + ": all examples have only", self.refuse(2, "view", "a.npz"))
        self.save(attn=np.zeros((2, 2)), mask=np.zeros((2, 2), bool), src=["<pad>", ""])
        self.assertIn(nothing + ": it has only", self.refuse(2, "view", "a.npz"))

    def test_alone_in_a_difference(self):
        """The example is the first that is not empty in the first file, also of the second file."""
        self.save_empty("a.npz", 0)
        self.save_empty("b.npz")
        got = self.seen("a.npz", "--minus", "b.npz", "--table")
        self.assertIn("a1", got)
        self.assertNotIn("tokens differ", got)
        self.assertIn("a.npz minus b.npz", got)
        self.save_empty("b.npz", 1)
        self.assertIn("b.npz: nothing to draw in example 1 of 3",
                      self.refuse(2, "view", "a.npz", "--minus", "b.npz"))

    def test_that_is_not_masked_is_shown(self):
        shown = lambda: json.loads(self.run_qkv("view", "a.npz", "--json").out)["src"]  # noqa: E731
        self.save(attn=weights(3, 3), src=["a", "b", "[PAD]"])
        self.assertEqual(shown(), ["a", "b", "[PAD]"])
        mask = np.ones((3, 3), bool)
        mask[:2, 2] = False  # one query attends to it
        self.save(attn=weights(3, 3), src=["a", "b", "[PAD]"], mask=mask)
        self.assertEqual(shown(), ["a", "b", "[PAD]"])

    def test_of_self_attention_whose_keys_are_masked(self):
        self.save(attn=weights(3, 3), src=["a", "b", "[PAD]"], mask=[[1, 1, 0]])
        got = self.seen("a.npz", "--table")
        self.assertNotIn("[PAD]  ", got)
        self.assertIn("1 of 3 queries are padding, not shown; --queries all shows them", got)


class Keeping(Styled):
    def test_some_special_tokens(self):
        for keep, want in (((), WORDS[1:4]), (("</S>",), WORDS[1:]), (("</s>", "[cls]"), WORDS)):
            options = sum((["--keep", token] for token in keep), [])
            done = self.run_qkv("view", "a.npz", "--hide-special", *options, "--json")
            got = json.loads(done.out)
            self.assertEqual((got["src"], got["tgt"]), (want, want))


class Ranges(Styled):
    def test_say_whose_they_are(self):
        self.assertIn("] max   each row has its own range\n", self.seen("a.npz", "--range", "row"))
        got = self.seen("a.npz", "--range", "head")
        for head in range(2):
            self.assertIn(f"head {head}, up to {self.attn[head].max():.3g}", got)
        self.assertEqual(self.seen("a.npz", "--range", "all"), self.seen("a.npz"))

    def test_every_row_has_its_largest(self):
        lines = self.seen("a.npz", "--range", "row", "--heads", 0).splitlines()
        rows = [line for line in lines if re.match(r" *(\[CLS\]|the|cat|sat|</s>) ", line)]
        self.assertEqual(len(rows), 5)
        for row in rows:
            self.assertIn("█", row)


class Looks(Styled):
    def test_colours(self):
        first = {"blue": "#e0f2f6", "grey": "#e4e4e4", "viridis": "#440154", "cividis": "#00224e",
                 "red-blue": "#053061"}
        for name, colour in first.items():
            self.assertIn(f'<stop offset="0" stop-color="{colour}"/>', self.svg("--colours", name))
        env = {"COLUMNS": "80"}
        got = self.run_qkv("--color", "always", "view", "a.npz", "--colours", "grey", env=env).out
        self.assertIn("48;2;238;238;238m", got)

    def test_font(self):
        self.assertIn("font-family=\"'Noto Sans', 'DejaVu Sans Mono', monospace\"",
                      self.svg("--font", "Noto Sans"))

    def font_warning(self, font, answer, *outputs):
        """Returns the warnings. `fc-match` is the script `answer`; for None, there is none."""
        programs = self.dir / "bin"
        shutil.rmtree(programs, ignore_errors=True)
        programs.mkdir()
        (programs / "rsvg-convert").symlink_to(shutil.which("rsvg-convert"))
        if answer is not None:
            (programs / "fc-match").write_text(f"#!/bin/sh\n{answer}\n")
            (programs / "fc-match").chmod(0o755)
        files = sum((["-o", f"o.{name}"] for name in outputs), [])
        return self.run_qkv("view", "a.npz", "--font", font, *files,
                            env={"PATH": str(programs)}).err

    @unittest.skipUnless(shutil.which("rsvg-convert"), "no rsvg-convert")
    def test_font_that_is_not_installed(self):
        other = "printf 'Some Serif,Some Serif Light'"
        want = 'qkv: --font: "No Font" is not installed here; Some Serif takes its place in the '
        self.assertEqual(self.font_warning("No Font", other, "png"), want + ".png\n")
        self.assertEqual(self.font_warning("No Font", other, "svg", "pdf", "png"),
                         want + ".png and .pdf\n")
        self.assertEqual(self.font_warning("No Font", other, "svg"), "")  # an SVG only names it
        # fontconfig ignores case and blanks.
        self.assertEqual(self.font_warning("some seriflight", other, "png"), "")
        self.assertEqual(self.font_warning("Sans-Serif", other, "png"), "")  # a generic family
        for nothing in (None, "exit 1", "exit 0"):  # fc-match says nothing
            self.assertEqual(self.font_warning("No Font", nothing, "png"), "")
        asked = 'for last; do :; done; printf "%s" "$last" > asked; printf Other'
        self.font_warning("A-b:c", asked, "png")
        self.assertEqual((self.dir / "asked").read_text(), r"A\-b\:c,DejaVu Sans Mono,monospace")

    @unittest.skipUnless(shutil.which("rsvg-convert") and shutil.which("fc-match"), "no fontconfig")
    def test_font_that_is_drawn_instead(self):
        """The font that fontconfig answers is the one that librsvg uses and the PDF names."""
        done = self.run_qkv("view", "a.npz", "--font", "No Such Font", "-o", "o.pdf")
        drawn = re.fullmatch('qkv: --font: "No Such Font" is not installed here; (.*) takes its '
                             'place in the .pdf\n', done.err)[1]
        self.assertIn(drawn.replace(" ", "").encode(), (self.dir / "o.pdf").read_bytes())
        self.assertEqual(self.run_qkv("view", "a.npz", "--font", drawn, "-o", "o.pdf").err, "")

    def test_notes(self):
        note = "4 of 5 queries not selected"
        done = self.run_qkv("view", "a.npz", "--queries", 1, "-o", "o.svg", "--notes", "aside")
        self.assertIn(note, done.err)
        aside = (self.dir / "o.svg").read_text()
        self.assertIn(f"{note}</desc>", aside)
        self.assertEqual(aside.count(note), 1)
        under = self.svg("--queries", 1)
        self.assertRegex(under, f'<g id="notes">(.*\n)*.*{note}</text>')

    def test_titles_of_cells(self):
        attn = self.attn[0]
        want = f"<title>cat → the: {attn[2, 1]:.4g}</title>".replace("e-0", "e-")
        self.assertIn(want, self.svg("--heads", 0))
        self.assertNotIn("→ the", self.svg("--cell-titles", "never"))
        self.save(attn=np.full((150, 150), 1 / 150))
        self.assertNotIn(" → ", self.svg())
        self.assertEqual(self.svg("--cell-titles", "always").count(" → "), 22500)


class Pdf(Styled):
    @unittest.skipUnless(shutil.which("rsvg-convert"), "no rsvg-convert")
    def test_is_a_page_with_text(self):
        for command in (("view", "a.npz"), ("words", "a b"), ("translate", "--demo", "May 3")):
            self.run_qkv("--quiet", *command, "-o", "o.pdf")
            pdf = (self.dir / "o.pdf").read_bytes()
            self.assertTrue(pdf.startswith(b"%PDF-"))
            self.assertTrue(pdf.rstrip().endswith(b"%%EOF"))
            self.assertIn(b"/Font", pdf)
        np.save(self.dir / "q.npy", weights(3, 4))
        self.run_qkv("attend", "q.npy", "q.npy", "-o", "o.pdf")
        svg = self.svg()
        width, height = (int(x) for x in re.search(r'width="(\d+)" height="(\d+)"', svg).groups())
        self.run_qkv("view", "a.npz", "-o", "o.pdf")
        box = f"/MediaBox [ 0 0 {0.75 * width:g} {0.75 * height:g} ]"  # in points of 1/72 inch
        self.assertIn(box.encode(), (self.dir / "o.pdf").read_bytes())


if __name__ == "__main__":
    unittest.main()
