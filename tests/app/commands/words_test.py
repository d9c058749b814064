#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv words` against NumPy, which recomputes all that the command writes.

usage: words_test.py PROGRAM [TEST ...]
Tests of real word vectors read the folder $QKV_DATA_DIR, else shared/data beside the checkout, and
are skipped where it lacks them.
"""

import json
import os
import re
import unittest

import numpy as np
from program import DATA, Case
from random_maps import softmax
from oracle_philox import philox

GLOVE = DATA / "glove.6B.50d.top5050.txt"
SENTENCE = "the cat walked on the street"

needs_glove = unittest.skipUnless(GLOVE.is_file(), f"no {GLOVE.name} (set QKV_DATA_DIR)")


# ---- the expected results -----------------------------------------------------------------------


def spelling_vector(word, seed=0, width=50):
    """Returns a word's vector, float32 [width], as app/text/spelling.h describes it."""
    wrapped = f"<{word}>"
    runs = [wrapped[i : i + n] for n in (3, 4, 5) if n < len(wrapped)
            for i in range(len(wrapped) - n + 1)]
    total = np.zeros(width)
    for gram in [wrapped, *runs]:
        fnv = 0xCBF29CE484222325
        for byte in gram.encode():
            fnv = (fnv ^ byte) * 0x100000001B3 % 2**64
        for c in range(width):
            words = philox((fnv % 2**32, fnv >> 32, c // 4, 3), (seed % 2**32, seed >> 32))
            total[c] += (int(words[c % 4]) + 0.5) * 2.0**-31 - 1
    return (total * 0.634 * np.sqrt(3 / (1 + len(runs)))).astype(np.float32)


def scores_of(saved):
    """Returns the scores [T,T] of q, k and the parameters in the file."""
    q, k = saved["q"], saved["k"]
    name = str(saved["score"])
    if name == "bilinear":
        return q @ saved["params.W"] @ k.T
    if name == "additive":
        projected_q, projected_k = q @ saved["params.Wq"].T, k @ saved["params.Wk"].T
        return np.tanh(projected_q[:, None] + projected_k[None]) @ saved["params.v"]
    scale = {"dot": 1.0, "scaled_dot": 1 / np.sqrt(q.shape[1])}[name]
    assert abs(saved["scale"] - scale) < 1e-15
    return scale * (q @ k.T)


def heads_of(saved, heads, width):
    """Returns scores, weights and out of multi-head self-attention over x in the file."""
    x = saved["x"].astype(float)
    split = str(saved["form"]) == "split"
    q_name, k_name, v_name, o_name = (("fc_q", "fc_k", "fc_v", "fc_o") if split else
                                      ("queries", "keys", "values", "unify_heads"))

    def project(name, y):
        result = y @ saved[f"params.{name}.weight"].T
        bias = f"params.{name}.bias"
        return result + saved[bias] if bias in saved else result

    def per_head(y):
        return y.reshape(len(x), heads, -1).transpose(1, 0, 2)

    q, k, v = (per_head(project(name, x)) for name in (q_name, k_name, v_name))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(width // heads if split else width)
    weights = softmax(scores)
    merged = (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
    return scores, weights, project(o_name, merged)


# ---- the tests -----------------------------------------------------------------------------------


class Glove(Case):
    """Tests on real word vectors."""

    def check_saved(self, saved):
        x = self.vectors(SENTENCE.split())
        np.testing.assert_array_equal(saved["x"], x)
        self.assertEqual(saved["x"].dtype, np.float32)
        for name in "qkv":
            self.near(saved[name], x, 0)
        scores = scores_of(saved)
        weights = softmax(scores)
        self.near(saved["scores"], scores)
        self.near(saved["weights"], weights)
        self.near(saved["out"], weights @ x)
        self.near(saved["lse"], np.log(np.exp(scores).sum(-1)))
        np.testing.assert_array_equal(saved["attn"], saved["weights"])
        for name in ("src", "tgt", "tokens", "words"):
            self.assertEqual(list(saved[name]), SENTENCE.split())

    @staticmethod
    def vectors(words):
        lines = GLOVE.read_text(encoding="utf-8").splitlines()
        table = {word: numbers for word, *numbers in map(str.split, reversed(lines))}
        return np.array([[np.float32(n) for n in table[word]] for word in words])

    @needs_glove
    def test_numpy_agrees_under_dot(self):
        self.check_saved(self.saved(SENTENCE, "--vectors", GLOVE, "--score", "dot"))

    @needs_glove
    def test_numpy_agrees_under_scaled_dot(self):
        self.check_saved(self.saved(SENTENCE, "--vectors", GLOVE))

    @needs_glove
    def test_numpy_agrees_under_bilinear(self):
        self.check_saved(self.saved(SENTENCE, "--vectors", GLOVE, "--score", "bilinear"))

    @needs_glove
    def test_numpy_agrees_under_additive(self):
        self.check_saved(self.saved(SENTENCE, "--vectors", GLOVE, "--score", "additive"))

    @needs_glove
    def test_table_shows_the_weights(self):
        saved = self.saved(SENTENCE, "--vectors", GLOVE)
        lines = self.run_qkv("words", SENTENCE, "--vectors", GLOVE).out.splitlines()[2:]
        self.assertEqual(lines[0].split(), SENTENCE.split() + ["strongest", "other"])
        for i, line in enumerate(lines[1:]):
            word, *numbers, strongest, weight = line.split()
            self.assertEqual(word, SENTENCE.split()[i])
            self.near(np.array(numbers, float), saved["weights"][i], 0.5001e-4)
            others = [(-w, j) for j, w in enumerate(saved["weights"][i]) if j != i]
            self.assertEqual(strongest, SENTENCE.split()[min(others)[1]])
            self.near(float(weight), -min(others)[0], 0.5001e-4)
        self.assertEqual(len(lines), 7)

    @needs_glove
    def test_unknown_word_is_named_with_near_spellings(self):
        line = self.refuse(3, "words", "the cat walks on the street", "--vectors", GLOVE)
        self.assertIn(GLOVE.name, line)
        self.assertRegex(line, r'no vector for "walks" \(near spellings: walk, walked, .*walking')

    @needs_glove
    def test_unknown_word_skipped(self):
        done = self.run_qkv("words", "the cat walks on", "--vectors", GLOVE, "--unknown", "skip",
                            "-o", "out.npz")
        self.assertIn('"walks"', done.err)
        saved = np.load(self.dir / "out.npz")
        self.assertEqual(list(saved["tokens"]), ["the", "cat", "on"])
        np.testing.assert_array_equal(saved["x"], self.vectors(["the", "cat", "on"]))

    @needs_glove
    def test_unknown_word_zero(self):
        done = self.run_qkv("words", "the cat walks on", "--vectors", GLOVE, "--unknown", "zero",
                            "--quiet", "-o", "out.npz")
        self.assertEqual(done.err, "")
        saved = np.load(self.dir / "out.npz")
        self.assertEqual(list(saved["tokens"]), ["the", "cat", "walks", "on"])
        self.assertEqual(list(saved["words"]), ["the", "cat", "", "on"])
        self.near(saved["x"][2], np.zeros(50), 0)
        self.near(saved["weights"][2], np.full(4, 0.25), 1e-15)

    @needs_glove
    def test_capitals_are_looked_up_in_lower_case(self):
        saved = self.saved("The CAT.", "--vectors", GLOVE)
        self.assertEqual(list(saved["tokens"]), ["The", "CAT", "."])
        self.assertEqual(list(saved["words"]), ["the", "cat", "."])

    @needs_glove
    def test_vectors_from_standard_input(self):
        with open(GLOVE, "rb") as file:
            piped = self.run_qkv("words", SENTENCE, "--vectors", "-", stdin=file)
        named = self.run_qkv("words", SENTENCE, "--vectors", GLOVE)
        self.assertEqual(piped.out.splitlines()[1:], named.out.splitlines()[1:])


class Words(Case):
    """Tests of spelling vectors, without any file."""

    def test_spelling_vectors_are_as_described(self):
        text = "the cats' café 中文 a internationalisation"
        for seed in (0, 2**40 + 3):
            saved = self.saved(text, "--seed", seed)
            for word, vector in zip(saved["tokens"], saved["x"]):
                np.testing.assert_array_equal(vector, spelling_vector(word, seed), word)

    def test_spelling_of_a_is_what_the_unit_test_pins(self):
        got = [float(number).hex() for number in spelling_vector("a", 0, 4)]
        self.assertEqual(got, ["0x1.cb7a4a0000000p-2", "0x1.d064a20000000p-2",
                               "-0x1.b059e20000000p-1", "-0x1.e0c51c0000000p-1"])

    def test_dim_sets_the_width(self):
        self.assertEqual(self.saved("a b", "--dim", 7)["x"].shape, (2, 7))

    def test_seed_changes_what_is_drawn_and_nothing_else_does(self):
        first = self.saved("a b c", "--score", "additive", "--seed", 5)
        again = self.saved("a b c", "--score", "additive", "--seed", 5, "--threads", 1)
        other = self.saved("a b c", "--score", "additive", "--seed", 6)
        for name in first:
            np.testing.assert_array_equal(first[name], again[name])
        self.assertGreater(np.abs(first["params.Wq"] - other["params.Wq"]).max(), 0.01)
        for name in ("params.Wq", "params.Wk", "params.v"):
            self.assertLess(np.abs(first[name]).max(), 1 / np.sqrt(50))
            self.assertGreater(np.abs(first[name]).max(), 0.8 / np.sqrt(50))

    def test_same_run_same_bytes(self):
        for name in ("a.npz", "b.npz"):
            self.run_qkv("words", "a b c", "-o", name)
        self.assertEqual((self.dir / "a.npz").read_bytes(), (self.dir / "b.npz").read_bytes())

    def test_split_heads(self):
        saved = self.saved("the cat sat", "--heads", 5)
        scores, weights, out = heads_of(saved, 5, 50)
        self.near(saved["scores"], scores)
        self.near(saved["attn"], weights)
        self.near(saved["out"], out)

    def test_wide_heads(self):
        saved = self.saved("the cat sat", "--heads", 3, "--form", "wide")
        scores, weights, out = heads_of(saved, 3, 50)
        self.near(saved["scores"], scores)
        self.near(saved["attn"], weights)
        self.near(saved["out"], out)

    def test_parameters_of_a_result_give_the_result(self):
        for options in (["--score", "bilinear"], ["--score", "additive"], ["--heads", "2"]):
            first = self.saved("the cat sat", "--seed", 9, *options)
            os.rename(self.dir / "out.npz", self.dir / "first.npz")
            # All runs have one seed, which also draws the word vectors. The seed would draw the
            # parameters in first.npz, too; those in changed.npz differ from them in one number.
            changed = {n: v.copy() for n, v in first.items()}
            name = next(n for n in changed if n.startswith("params."))
            changed[name].flat[0] += 1
            np.savez(self.dir / "changed.npz", **changed)
            again = self.saved("the cat sat", "--seed", 9, *options, "--params", "first.npz")
            other = self.saved("the cat sat", "--seed", 9, *options, "--params", "changed.npz")
            np.testing.assert_array_equal(first["weights"], again["weights"])
            self.assertEqual(other[name].flat[0], first[name].flat[0] + 1)
            self.assertGreater(np.abs(other["out"] - first["out"]).max(), 1e-6)

    def test_parameters_by_their_own_names(self):
        random = np.random.default_rng(0)
        arrays = {"Wq": random.normal(size=(6, 50)), "Wk": random.normal(size=(6, 50)),
                  "v": random.normal(size=6).astype(np.float32), "b": random.normal(size=6)}
        np.savez_compressed(self.dir / "p.npz", **arrays)
        saved = self.saved("the cat sat", "--score", "additive", "--params", "p.npz")
        x = saved["x"].astype(float)
        hidden = x @ arrays["Wq"].T + arrays["b"]
        scores = np.tanh(hidden[:, None] + (x @ arrays["Wk"].T)[None]) @ arrays["v"]
        self.near(saved["weights"], softmax(scores))
        np.savez(self.dir / "w.npz", W=np.asfortranarray(random.normal(size=(50, 50)) / 50))
        saved = self.saved("the cat sat", "--score", "bilinear", "--params", "w.npz")
        self.near(saved["weights"],
                  softmax(x @ np.load(self.dir / "w.npz")["W"] @ x.T))

    def test_text_from_arguments_and_standard_input(self):
        one = self.run_qkv("words", "a b c").out
        self.assertEqual(self.run_qkv("words", "a", "b", "c").out, one)
        self.assertEqual(self.run_qkv("words", "-", input=b"a b\nc\n").out, one)

    def test_a_long_text_is_cut_as_a_short_one(self):
        # The pieces have line ends, non-ASCII before blanks, and the Arabic number sign, which
        # attaches to a blank. Blocks of standard input mostly end in the long word of `é`. The
        # text may be cut only before blanks.
        for piece in ("It's (a) line...\r\n", "сло\u0301во, ", "中文\u3000字 ", "x \u0600 "):
            piece += "é" * 400 + "\n"
            tokens = json.loads(self.run_qkv("words", piece, "--json").out)["tokens"]
            text = piece * (250_000 // len(piece.encode()))
            done = self.run_qkv("words", "-", "--dim", 1, input=text.encode())
            self.assertTrue(done.out.startswith(f"words {text.count(piece) * len(tokens)},"), piece)

    def test_words_may_have_1000_letters(self):
        self.run_qkv("words", "-", input="é".encode() * 1000)

    def test_one_word(self):
        done = self.run_qkv("words", "alone")
        self.assertRegex(done.out, r"alone +1\.0000  -\n")

    def test_wide_characters_stay_in_their_columns(self):
        lines = self.run_qkv("words", "中文 cafe\u0301 x").out.splitlines()[2:]
        # East Asian characters are two columns wide, combining marks take none.
        columns = [len(line) + sum(c in "中文" for c in line) - line.count("\u0301")
                   for line in (line[:line.rfind("  ")] for line in lines)]
        self.assertEqual(len(set(columns)), 1, lines)

    def test_long_texts_get_links_instead_of_a_table(self):
        text = " ".join(f"w{i}" for i in range(40))
        lines = self.run_qkv("words", text, "-o", "out.npz").out.splitlines()
        links = [line for line in lines if " -> " in line]
        self.assertEqual(len(links), 40)
        weights = np.load(self.dir / "out.npz")["weights"]
        np.fill_diagonal(weights, -1)
        number, word, _, key, weight = links[7].split()
        self.assertEqual((number, word, key), ("8", "w7", f"w{weights[7].argmax()}"))
        self.near(float(weight), weights[7].max(), 0.5001e-4)

    def test_several_outputs(self):
        self.run_qkv("words", "a b", "-o", "x.npz", "-o", "y.npz")
        self.assertEqual(self.names(), ["x.npz", "y.npz"])


class Formats(Case):
    """The result is equal in every output form."""

    def test_arrays_in_safetensors_are_those_in_npz(self):
        saved = self.saved("the cat sat", "--score", "additive", "-o", "out.safetensors")
        data = (self.dir / "out.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        texts = header.pop("__metadata__")
        self.assertEqual(set(saved), set(header) | set(texts))
        self.assertEqual(json.loads(texts["tokens"]), ["the", "cat", "sat"])
        names = {"F64": "<f8", "F32": "<f4", "U64": "<u8"}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data[8 + size + begin : 8 + size + end], names[entry["dtype"]])
            np.testing.assert_array_equal(array.reshape(entry["shape"]), saved[name])

    def test_npy_holds_the_weights(self):
        saved = self.saved("the cat sat", "--heads", 5, "-o", "out.npy")
        np.testing.assert_array_equal(np.load(self.dir / "out.npy"), saved["weights"])

    def test_txt_is_the_report_and_json_has_the_arrays_too(self):
        done = self.run_qkv("words", "the cat sat", "-o", "out.txt", "-o", "out.json")
        self.assertEqual((self.dir / "out.txt").read_text(encoding="utf-8"), done.out)
        report = json.loads((self.dir / "out.json").read_text(encoding="utf-8"))
        self.assertEqual(json.loads(self.run_qkv("words", "the cat sat", "--json").out), report)
        saved = self.saved("the cat sat")
        weights = saved["weights"]
        np.testing.assert_array_equal(report["weights"]["data"], weights)
        self.assertEqual(report["tokens"], ["the", "cat", "sat"])
        np.fill_diagonal(weights, -1)
        for link in report["strongest_other"]:
            self.assertEqual(link["to"], weights[link["from"]].argmax())
            self.assertEqual(link["weight"], weights[link["from"]].max())

    def test_the_strongest_other_is_explained(self):
        report = self.run_qkv("words", "a b c").out
        self.assertIn("  strongest other\n", report)
        self.assertIn('"strongest other" is', self.run_qkv("words", "--help").out.replace("\n", " "))

    def test_random_parameters_are_named(self):
        self.saved("a b c", "--score", "bilinear")
        for options, parameters in (
                (("--score", "bilinear", "--seed", 3), "W random (seed 3)"),
                (("--score", "additive"), "Wq, Wk, v random (seed 0)"),
                (("--heads", 2), "projections random (seed 0)"),
                (("--score", "bilinear", "--params", "out.npz"), "params out.npz")):
            done = self.run_qkv("words", "a b c", *options, "-o", "x.svg", "-o", "x.json")
            self.assertTrue(done.out.splitlines()[0].endswith("; " + parameters), done.out)
            self.assertIn(f">{parameters}</text>", (self.dir / "x.svg").read_text(encoding="utf-8"))
            report = json.loads((self.dir / "x.json").read_text(encoding="utf-8"))
            self.assertEqual(report["parameters"], parameters)
        self.assertNotIn("random", self.run_qkv("words", "a b c").out)

    def test_every_head_has_its_links(self):
        report = json.loads(self.run_qkv("words", "a b c", "--heads", 2, "--json").out)
        self.assertEqual([(link["head"], link["from"]) for link in report["strongest_other"]],
                         [(h, i) for h in range(2) for i in range(3)])

    def test_standard_output_takes_any_format(self):
        for name in ("npz", "npy", "json", "txt", "safetensors"):
            done = self.run_qkv("words", "a b", "-o", "-", "--format", name, "-o", f"x.{name}")
            self.assertEqual(done.stdout, (self.dir / f"x.{name}").read_bytes(), name)
        self.assertEqual(self.run_qkv("words", "a b", "-o", "-").stdout,
                         (self.dir / "x.npz").read_bytes())
        self.assertEqual(len(self.names()), 5)


class WordsOnATerminal(Case):
    TEXT = "She walked, he walks; walking and talking, they talked."

    def lines(self, *arguments, columns="80"):
        env = {"COLUMNS": columns, "TERM": "vt100"}
        return self.on_terminal(*arguments, env=env).decode().replace("\r", "").splitlines()

    def test_the_table_fits_and_the_map_comes_first(self):
        for columns in ("80", "44", "200"):
            lines = self.lines("words", self.TEXT, columns=columns)
            self.assertLessEqual(max(map(len, lines)), int(columns))
            text = "\n".join(lines)
            self.assertLess(text.index("rows are queries"), text.index("strongest other"))
            self.assertIn("░", text)

    def test_bands_hold_every_weight_once(self):
        whole = self.run_qkv("words", self.TEXT).out
        _, bands = "\n".join(self.lines("words", self.TEXT, columns="44")).split("are keys\n")
        numbers = re.compile(r"\b0\.\d{4}\b")
        self.assertEqual(sorted(numbers.findall(whole)), sorted(numbers.findall(bands)))

    def test_a_pipe_gets_unbroken_rows_and_no_map(self):
        text = self.run_qkv("words", self.TEXT, env={"COLUMNS": "40"}).out
        self.assertNotIn("░", text)
        self.assertGreater(max(map(len, text.splitlines())), 120)

    def test_tables_of_other_commands_fit_too(self):
        self.run_qkv("words", self.TEXT, "-o", "w.npz")
        np.save(self.dir / "q.npy", np.arange(48.0).reshape(4, 12))
        for call in (["view", "w.npz", "--table"], ["attend", "q.npy", "q.npy", "q.npy"]):
            lines = self.lines(*call, columns="60")
            self.assertLessEqual(max(map(len, lines)), 60)
            self.assertGreater(max(map(len, self.run_qkv(*call).out.splitlines())), 100)
            narrow = re.findall(r"\d\.\d+", "".join(lines).split("mean")[-1])
            whole = re.findall(r"\d\.\d+", self.run_qkv(*call).out.split("mean")[-1])
            self.assertEqual(sorted(narrow), sorted(whole))


if __name__ == "__main__":
    unittest.main()
