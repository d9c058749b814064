#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv view` on files written by numpy.savez.

usage: view_test.py PROGRAM [TEST ...]
"""

import json
import shutil
import unittest
import xml.etree.ElementTree as ElementTree

import numpy as np
from program import Case
from random_maps import weights

TOKENS = "[CLS] the cat sat [SEP]".split()


class View(Case):
    def save(self, name="a.npz", **arrays):
        np.savez(self.dir / name, **arrays)
        return name

    def json(self, *arguments):
        return json.loads(self.run_qkv("view", *arguments, "--json").out)

    def part(self, *arguments):
        """Returns the weights of each panel."""
        return [np.array(panel["weights"]) for panel in self.json(*arguments)["panels"]]


class Files(View):
    """Files saved by users of any framework."""

    def test_numpy_savez_is_all_it_takes(self):
        attn = weights(2, 5, 5)
        self.save(attn=attn, src=TOKENS)
        done = self.run_qkv("view", "a.npz")
        self.assertEqual(done.err, "")
        for word in ("head 0", "head 1", "cat", "rows are queries"):
            self.assertIn(word, done.out)
        self.assertNotIn("\x1b", done.out)  # no colours in a pipe
        got = self.json("a.npz")
        self.assertEqual((got["src"], got["tgt"]), (TOKENS, TOKENS))
        for head, panel in enumerate(got["panels"]):
            self.assertEqual(panel["title"], f"head {head}")
            self.near(panel["weights"], attn[head], 1e-7)

    def test_ranks_and_types(self):
        for shape in ((5, 5), (3, 5, 5), (2, 3, 5, 5), (1, 2, 3, 5, 5)):
            for dtype in (np.float16, np.float32, np.float64):
                attn = weights(*shape).astype(dtype)
                self.save(attn=attn)
                for got, want in zip(self.part("a.npz"), attn.reshape(-1, 5, 5), strict=True):
                    self.near(got, want.astype(float), 1e-7)
        np.save(self.dir / "a.npy", weights(5, 5))
        self.near(self.part("a.npy")[0], weights(5, 5), 1e-7)

    def test_one_array_per_layer_stacked(self):
        attn = weights(2, 3, 4, 5, 5)  # layers, examples, heads
        self.save(attn=attn, src=np.array([TOKENS, TOKENS, ["a", "b", "c", "", ""]]))
        order = ("--order", "layers,examples,heads")
        got = self.json("a.npz", *order, "--example", 2, "--layers", 1, "--heads", 3)
        self.near(got["panels"][0]["weights"], attn[1, 2, 3], 1e-7)
        self.assertEqual(got["src"], ["a", "b", "c", "", ""])
        self.assertEqual(got["notes"], ["example 2 of 3"])

    def test_standard_input(self):
        self.save(attn=weights(5, 5), src=TOKENS)
        want = self.run_qkv("view", "a.npz").out
        for name in ("a.npz", "b.safetensors"):
            if name != "a.npz":
                self.run_qkv("view", "a.npz", "-o", name)
            got = self.run_qkv("view", "-", input=(self.dir / name).read_bytes()).out
            self.assertEqual(got, want)

    def test_another_array_by_its_name(self):
        self.save(attn=weights(5, 5), dropped=weights(3, 5, 5, seed=1), src=TOKENS)
        self.near(self.part("a.npz:dropped"), weights(3, 5, 5, seed=1), 1e-7)
        self.assertEqual(self.json("a.npz:dropped")["src"], TOKENS)


class Selection(View):
    def setUp(self):
        super().setUp()
        self.attn = weights(2, 3, 4, 5, 5)  # examples, layers, heads
        self.save(attn=self.attn, src=TOKENS)

    def test_indices_and_ranges(self):
        got = self.json("a.npz", "--example", 1, "--layers", "0,2", "--heads", "1-2", "--queries",
                        "3,0", "--keys", "1-2,4")
        want = self.attn[1][[0, 2]][:, [1, 2]][:, :, [3, 0]][..., [1, 2, 4]].reshape(4, 2, 3)
        self.near([panel["weights"] for panel in got["panels"]], want, 1e-7)
        self.assertEqual([panel["title"] for panel in got["panels"]],
                         ["layer 0, head 1", "layer 0, head 2", "layer 2, head 1",
                          "layer 2, head 2"])
        self.assertEqual(got["src"], ["the", "cat", "[SEP]"])
        self.assertEqual(got["tgt"], ["sat", "[CLS]"])
        both = self.json("a.npz", "--layers", 0, "--heads", 0, "--tokens", "1-3")
        self.near(both["panels"][0]["weights"], self.attn[0, 0, 0, 1:4, 1:4], 1e-7)

    def test_hidden_weight_is_said_not_divided(self):
        got = self.json("a.npz", "--layers", 1, "--heads", 0, "--hide-special")
        self.near(got["panels"][0]["weights"], self.attn[0, 1, 0, 1:4, 1:4], 1e-7)
        hidden = 100 * self.attn[0, 1, 0, 1:4][:, [0, 4]].sum(1)
        self.assertIn("2 of 5 keys hidden (special tokens): they hold "
                      f"{hidden.mean():.1f} % of a row's weight on average, at most "
                      f"{hidden.max():.1f} %; the other weights are unchanged", got["notes"])
        self.assertIn("2 of 5 queries hidden (special tokens)", got["notes"])

    def test_what_was_not_selected_is_not_called_special(self):
        got = self.json("a.npz", "--layers", 1, "--heads", 0, "--hide-special", "--keys", "0-2",
                        "--queries", "0-1,3")
        self.assertEqual((got["queries"], got["keys"]), ([1, 3], [1, 2]))
        rows = self.attn[0, 1, 0, [1, 3]]
        rest, special = 100 * rows[:, 3:].sum(1), 100 * rows[:, 0]
        self.assertEqual(
            got["notes"][1:],
            ["2 of 5 queries not selected", "1 of 5 queries hidden (special tokens)",
             f"2 of 5 keys not selected: they hold {rest.mean():.1f} % of a row's weight on "
             f"average, at most {rest.max():.1f} %; the other weights are unchanged",
             f"1 of 5 keys hidden (special tokens): they hold {special.mean():.1f} % of a row's "
             f"weight on average, at most {special.max():.1f} %; the other weights are unchanged"])

    def test_many_maps_show_a_page_and_say_so(self):
        self.save(attn=weights(12, 16, 4, 4))
        done = self.run_qkv("view", "a.npz", "--json")
        got = json.loads(done.out)
        self.assertEqual((got["layers"], got["heads"]), ([0], list(range(12))))
        self.assertEqual(got["notes"], ["layer 0 of 12 shown", "heads 0-11 of 16 shown"])
        self.assertIn("--layers LIST or all shows others", done.err)
        self.assertEqual(self.run_qkv("--quiet", "view", "a.npz", "--json").err, "")
        seen = self.run_qkv("view", "a.npz", "--table")
        self.assertIn("layer 0 of 12 shown; --layers LIST or all shows others", seen.out)
        self.assertEqual(seen.err, "")
        everything = self.json("a.npz", "--layers", "all", "--heads", "0-15")
        self.assertEqual((len(everything["panels"]), everything["notes"]), (192, []))


class Reductions(View):
    def setUp(self):
        super().setUp()
        self.attn = weights(2, 3, 5, 5)
        self.save(attn=self.attn, src=TOKENS)

    def test_only_when_asked_and_always_written(self):
        for names, want, note in [
                (["mean-heads"], self.attn.mean(1), "mean of heads 0-2"),
                (["max-heads"], self.attn.max(1),
                 "maximum of heads 0-2: rows need not sum to 1"),
                (["mean-layers"], self.attn.mean(0), "mean of layers 0-1"),
                (["mean-heads", "max-layers"], self.attn.mean(1).max(0, keepdims=True),
                 "maximum of layers 0-1: rows need not sum to 1")]:
            arguments = [word for name in names for word in ("--reduce", name)]
            got = self.json("a.npz", *arguments)
            self.near([panel["weights"] for panel in got["panels"]], want)
            self.assertIn(note, got["notes"])
            self.assertIn(note.split(":")[0], self.run_qkv("view", "a.npz", *arguments).out)

    def test_of_selected_heads(self):
        got = self.json("a.npz", "--heads", "0,2", "--layers", 1, "--reduce", "mean-heads")
        self.near(got["panels"][0]["weights"], self.attn[1, [0, 2]].mean(0))
        self.assertEqual(got["panels"][0]["title"], "layer 1")
        self.assertIn("mean of heads 0, 2", got["notes"])
        out = self.run_qkv("view", "a.npz", "--reduce", "mean-heads", "--layers", 1).out
        self.assertEqual(out.count("mean of heads 0-2"), 1, out)

    def test_nan_stays_and_masks_join(self):
        self.attn[0, 1, 2] = np.nan
        mask = np.zeros((3, 5, 5), bool)
        mask[0] = np.tri(5)
        mask[1, 0, 4] = True
        self.save(attn=self.attn, mask=mask)
        for name in ("mean-heads", "max-heads"):
            panel = self.json("a.npz", "--reduce", name)["panels"][0]
            self.assertEqual(panel["weights"][2], ["NaN"] * 5)
            np.testing.assert_array_equal(panel["allowed"], mask.any(0))


class Faults(View):
    def test_row_sums_are_reported_never_mended(self):
        attn = weights(2, 5, 5)
        attn[1, 3] *= 0.5
        self.save(attn=attn, src=TOKENS)
        done = self.run_qkv("view", "a.npz", "--json")
        line = 'head 1: 1 of 5 rows do not sum to 1 (worst 0.5, query 3 "sat")'
        self.assertEqual(done.err, f"qkv: a.npz: {line}\n")
        got = json.loads(done.out)
        self.assertEqual(got["notes"], [line])
        self.near(got["panels"][1]["weights"], attn[1], 1e-7)
        self.assertEqual(self.run_qkv("view", "a.npz", "--heads", 0).err, "")

    def test_numbers_that_are_no_weights_have_no_row_sums(self):
        np.savez(self.dir / "a.npz", attn=np.array([[2.0, 3], [1, 4]]), quantity=["energy"])
        done = self.run_qkv("view", "a.npz", "-o", "a.svg", "-o", "b.npz")
        self.assertEqual(done.err, "")
        self.assertIn(">energy<", (self.dir / "a.svg").read_text(encoding="utf-8"))
        self.assertEqual(np.load(self.dir / "b.npz")["quantity"].tolist(), ["energy"])
        np.savez(self.dir / "w.npz", attn=np.array([[2.0, 3], [1, 4]]), quantity=["weight"])
        self.assertIn("do not sum to 1", self.run_qkv("view", "w.npz", "-o", "a.svg").err)
        self.run_qkv("view", "a.npz", "--minus", "w.npz", "-o", "b.npz")
        self.assertEqual(sorted(np.load(self.dir / "b.npz")), ["difference"])

    def test_many_are_counted(self):
        self.save(attn=2 * weights(9, 5, 5))
        notes = self.json("a.npz")["notes"]
        self.assertEqual(len(notes), 4)
        self.assertEqual(notes[3],
                         "and 6 more heads like this: row_sums (qkv stats --json lists all)")

    def test_weight_below_the_hatching_is_told(self):
        attn = weights(2, 5, 5)
        attn[1] = np.tril(attn[1])  # attends to no masked key
        attn[1] /= attn[1].sum(-1, keepdims=True)
        self.save(attn=attn, src=TOKENS, mask=np.tri(5, dtype=bool))
        beyond = np.triu(attn[0], 1)
        i, j = np.unravel_index(beyond.argmax(), beyond.shape)
        line = (f'head 0: masked pairs receive weight in 4 of 5 rows (most {beyond.max():.4g}, '
                f'query {i} "{TOKENS[i]}", key {j} "{TOKENS[j]}")')
        self.assertEqual(self.json("a.npz")["notes"], [line])
        self.assertIn(f"warning: {line}\n", self.run_qkv("stats", "a.npz").out)
        out = self.run_qkv("view", "a.npz", env={"COLUMNS": "200"}).out
        self.assertIn(line, " ".join(out.split()))
        self.assertEqual(self.run_qkv("view", "a.npz", "-o", "o.svg").err, f"qkv: a.npz: {line}\n")
        self.assertIn("masked pairs receive weight", (self.dir / "o.svg").read_text())

    def test_nan_zero_and_masked_rows_differ(self):
        attn = weights(4, 4)
        attn[1], attn[2] = np.nan, 0
        self.save(attn=attn, mask=np.array([[1, 1, 1, 1]] * 3 + [[0] * 4]))
        lines = self.run_qkv("view", "a.npz").out.splitlines()[2:6]
        self.assertEqual(len({line[2:] for line in lines}), 4, lines)


class Outputs(View):
    def setUp(self):
        super().setUp()
        self.attn = weights(2, 2, 5, 5)
        self.save(attn=self.attn, src=TOKENS, mask=np.ones(5, int))

    def test_every_format(self):
        names = ["o.svg", "o.txt", "o.json", "o.npz", "o.npy", "o.safetensors"]
        done = self.run_qkv("view", "a.npz", "--layers", 1, *sum((["-o", n] for n in names), []))
        self.assertEqual((done.out, done.err), ("", ""))
        self.assertEqual(self.names(), sorted([*names, "a.npz"]))
        saved = np.load(self.dir / "o.npz")
        np.testing.assert_array_equal(saved["attn"], self.attn[1:2])
        self.assertEqual(list(saved["src"]), TOKENS)
        self.assertEqual(saved["mask"].shape, (1, 2, 5, 5))
        np.testing.assert_array_equal(np.load(self.dir / "o.npy"), self.attn[1:2])
        svg = ElementTree.parse(self.dir / "o.svg").getroot()
        text = "".join(svg.itertext())
        for word in (*TOKENS, "layer 1, head 0"):
            self.assertIn(word, text)
        self.assertIn(f"{self.attn[1, 1, 2, 3]:.4f}", (self.dir / "o.txt").read_text())
        # The output is an attention file again.
        want = self.part("a.npz", "--layers", 1)
        for name in ("o.npz", "o.safetensors", "o.npy"):
            np.testing.assert_array_equal(self.part(name), want)

    def test_notes_are_told_once(self):
        note = "4 of 5 keys not selected"
        seen = self.run_qkv("view", "a.npz", "--keys", 1)
        self.assertEqual((seen.out.count(note), seen.err), (1, ""))
        done = self.run_qkv("view", "a.npz", "--keys", 1, "-o", "o.svg")
        self.assertEqual((done.out, done.err.count(note)), ("", 1))

    def test_ranks_do_not_grow(self):
        self.save(attn=weights(5, 5))
        self.run_qkv("view", "a.npz", "-o", "o.npy")
        self.assertEqual(np.load(self.dir / "o.npy").shape, (5, 5))

    @unittest.skipUnless(shutil.which("rsvg-convert"), "no rsvg-convert")
    def test_png(self):
        self.run_qkv("view", "a.npz", "-o", "o.png", "--scale", "sqrt", "--title", "T")
        self.assertEqual((self.dir / "o.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    @unittest.skipUnless(shutil.which("rsvg-convert"), "no rsvg-convert")
    def test_png_of_more_pixels_than_librsvg_has(self):
        self.save(attn=weights(2, 2), src=["a", "b"], tgt=["A" * 4000, "b"])
        self.run_qkv("view", "a.npz", "-o", "o.png")
        head = (self.dir / "o.png").read_bytes()[16:24]
        self.assertLessEqual(max(int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")), 32767)

    def test_table(self):
        out = self.run_qkv("view", "a.npz", "--layers", 0, "--heads", 1, "--table").out
        self.assertIn(f"{self.attn[0, 1, 4, 0]:.4f}", out)

    def test_a_table_fits_a_terminal_and_is_whole_elsewhere(self):
        self.save(attn=weights(3, 30))
        shown = self.on_terminal("view", "a.npz", "--table", env={"COLUMNS": "60"}).decode()
        self.assertLessEqual(max(map(len, shown.splitlines())), 60)
        piped = self.run_qkv("view", "a.npz", "--table", env={"COLUMNS": "60"}).out
        self.assertEqual(len(piped.splitlines()[0].split()), 30)
        self.assertEqual(sorted(shown.split()), sorted(piped.split() + ["0", "1", "2"] * 4))

    def test_svg_to_a_pipe(self):
        out = self.run_qkv("view", "a.npz", "-o", "-").out
        ElementTree.fromstring(out)

    def test_the_end_of_the_colours(self):
        out = self.run_qkv("view", "a.npz", "--max", "0.125", "--layers", 0).out
        self.assertRegex(out, r"\n0 .*\] 0\.125")

    def test_the_low_end_of_the_colours(self):
        self.save(attn=np.array([[0.25, 0.75], [0.5, 0.5]]), scores=np.array([[-2.0, 1.0], [0.0, 3.0]]))
        out = self.run_qkv("view", "a.npz", "--min", "0.5").out
        self.assertIn("\n0.5 [ ░▒▓█] 0.75   down to 0.25\n", out)
        self.assertRegex(out, "(?m)^0   ██$")
        out = self.run_qkv("view", "a.npz:scores", "--min", "-4", "--max", "4").out
        self.assertIn("\n-4 [ ░▒▓█] 4   score\n", out)
        svg = self.run_qkv("view", "a.npz", "--min", "0.5", "--scale", "log", "-o", "-").out
        self.assertIn(">0.5</text>", svg)
        self.assertIn("weight, log scale, down to 0.25</text>", svg)

    def test_scores_remain_scores_in_files(self):
        self.save(attn=np.eye(2), masked=np.array([[-2.0, 1.0], [np.nan, 3.0]]))
        self.run_qkv("view", "a.npz:masked", "-o", "b.npz")
        for file in ("a.npz:masked", "b.npz"):
            self.assertEqual(self.json(file)["notes"], [], file)
            self.assertIn("score", self.run_qkv("view", file).out)

    def test_columns_of_the_terminal(self):
        self.save(attn=weights(60, 60))
        for columns in (40, 100):
            out = self.run_qkv("view", "a.npz", env={"COLUMNS": str(columns)}).out
            widest = max(map(len, out.splitlines()))
            self.assertLessEqual(widest, columns)
            self.assertGreater(widest, columns / 2)


if __name__ == "__main__":
    unittest.main()
