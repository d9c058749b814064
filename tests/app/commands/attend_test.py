#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `qkv attend`: values against NumPy in float64 (tests/oracle_call.py), files, streams.

usage: attend_test.py PROGRAM [TEST ...]
"""

import io
import json
import os
import re
import subprocess
import sys
import unittest

import measured
import numpy as np
from program import CHECKOUT, PATIENCE, PROGRAM, Case

sys.path.insert(0, str(CHECKOUT / "tests"))
import oracle_call  # noqa: E402  pylint: disable=wrong-import-position

# The oracle's names of results, by the program's.
RESULTS = {"out": "out", "weights": "weights", "dropped": "dropped_weights",
           "scores": "scores_raw", "capped": "scores_capped", "masked": "scores_masked"}
RESULTS |= {x: x for x in ("lse", "row_max", "entropy", "column_sums", "value_sums", "pooled")}
MATRICES = ("weights", "dropped", "scores", "capped", "masked")
OPTIONS = {"bias": "--bias", "alibi": "--alibi", "sinks": "--sinks", "keep": "--mask",
           "padding": "--padding-mask", "key_lengths": "--lengths", "offsets": "--causal-offset",
           "cu_seqlens_q": "--cu-seqlens-q", "cu_seqlens_k": "--cu-seqlens-k",
           "frequencies": "--rotary-frequencies", "q_positions": "--q-positions",
           "k_positions": "--k-positions"}
PARAMETERS = {"bilinear_w": "W", "additive_wq": "Wq", "additive_wk": "Wk", "additive_v": "v",
              "additive_b": "b", "norm_q": "norm_q", "norm_k": "norm_k"}


class Arrays(Case):
    """Has functions that save random arrays to files, and that run `qkv attend` on them."""

    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(7)

    def normal(self, *shape, dtype=np.float32):
        return self.random.normal(size=shape).astype(dtype)

    def qkv(self, q=(2, 4, 3, 8), k=(2, 2, 5, 8), v=(2, 2, 5, 6), dtype=np.float32):
        arrays = {name: self.normal(*shape, dtype=dtype)
                  for name, shape in zip("qkv", (q, k, v))}
        for name, array in arrays.items():
            np.save(self.dir / f"{name}.npy", array)
        return arrays

    def attend(self, *arguments, **options):
        """Runs `qkv attend` and returns the arrays that it saves."""
        self.run_qkv("attend", *arguments, "-o", "out.npz", **options)
        return dict(np.load(self.dir / "out.npz"))


class Values(Arrays):
    """Compares every option and result with float64, and bit for bit one thread with two."""

    def check(self, inputs, *arguments, bound=2e-5, **options):
        """Compares one call with the oracle of the same `inputs` (arrays by name) and `options`."""
        dtype = inputs["q"].dtype
        arguments = [*arguments, "--pool", "3,4", "--save", ",".join(RESULTS), "--top", "2"]
        if options.get("packed"):  # packed calls have no matrices: leaves these out of --save
            arguments[-3] = ",".join(name for name in RESULTS if name not in MATRICES)
        parameters = {}
        for name, array in inputs.items():
            if name in OPTIONS:
                np.save(self.dir / f"{name}.npy", array)
                arguments += [OPTIONS[name], f"{name}.npy"]
            elif name in PARAMETERS:
                parameters[PARAMETERS[name]] = array
            else:
                np.save(self.dir / f"{name}.npy", array)
        if parameters:
            np.savez(self.dir / "params.npz", **parameters)
            arguments += ["--params", "params.npz"]
        saved = self.attend("q.npy", "k.npy", "v.npy", *arguments, "--threads", "1")
        again = self.attend("q.npy", "k.npy", "v.npy", *arguments, "--threads", "2")
        exact = {name: x.astype(np.float64) if x.dtype.kind == "f" else x
                 for name, x in inputs.items()}
        want = oracle_call.evaluate(oracle_call.Options(top=2, **options), exact)
        self.compare(saved, want, dtype, bound)
        for name, array in saved.items():
            self.assertEqual(array.tobytes(), again[name].tobytes(), name)
        return saved

    def compare(self, saved, want, dtype, bound):
        names = {**RESULTS, "top_weights": "top_weights", "top_keys": "top_keys"}
        seen = 0
        for name, oracle_name in names.items():
            if name not in saved:
                continue
            seen += 1
            got, expected = saved[name], want[oracle_name]
            self.assertEqual(got.shape, expected.shape, name)
            self.assertEqual(got.dtype, np.int64 if name == "top_keys" else dtype, name)
            np.testing.assert_array_equal(np.isinf(got), np.isinf(expected), name)
            finite = np.isfinite(expected)
            error = np.abs(got[finite] - expected[finite]).max(initial=0)
            self.assertLessEqual(error, bound, name)
        self.assertGreaterEqual(seen, 6)

    def test_plain_and_grouped_heads(self):
        self.check(self.qkv())

    def test_float64(self):
        self.check(self.qkv(dtype=np.float64), bound=1e-13)

    def test_ranks(self):
        for q, k, v in (((3, 8), (5, 8), (5, 6)), ((2, 3, 8), (2, 5, 8), (2, 5, 6)),
                        ((2, 4, 3, 8), (4, 5, 8), (5, 6)), ((3, 8), (2, 5, 8), (2, 5, 6)),
                        ((5, 2, 3, 8), (5, 2, 5, 8), (5, 2, 5, 6)),
                        ((2, 3, 4, 3, 8), (1, 2, 5, 8), (3, 1, 5, 6))):
            with self.subTest(q=q, k=k, v=v):
                self.check(self.qkv(q, k, v))

    def test_dot_and_scale(self):
        self.check(self.qkv(), "--score", "dot", score="dot")
        self.check(self.qkv(), "--scale", "0.25", scale=0.25)

    def test_norm_and_rotary(self):
        self.check(self.qkv(), "--qk-norm", "1e-6", norm=1e-6)
        gains = {"norm_q": self.normal(4, 8), "norm_k": self.normal(8)}
        self.check({**self.qkv(), **gains}, "--qk-norm", "0.5", norm=0.5)
        self.check(self.qkv(), "--rotary", "halves", rotary=("halves", 10000.0, 8))
        self.check({**self.qkv(), **gains}, "--rotary", "neighbours", "--rotary-base", "50",
                   "--rotary-width", "6", "--causal-offset", "4", "--qk-norm", "1e-3",
                   rotary=("neighbours", 50.0, 6), diagonal=4, norm=1e-3)
        given = {"q_positions": self.random.integers(-5, 50, (2, 3)),
                 "k_positions": self.random.integers(-5, 50, 5),
                 "frequencies": abs(self.normal(4))}
        self.check({**self.qkv(), **given}, "--rotary", "halves", rotary=("halves", 1.0, 8))

    def test_bilinear(self):
        self.check({**self.qkv(k=(2, 2, 5, 7)), "bilinear_w": self.normal(8, 7)},
                   "--score", "bilinear", score="bilinear")

    def test_additive(self):
        inputs = {**self.qkv(k=(2, 2, 5, 7)), "additive_wq": self.normal(6, 8),
                  "additive_wk": self.normal(6, 7), "additive_v": self.normal(6)}
        self.check(inputs, "--score", "additive", score="additive")
        inputs["additive_b"] = self.normal(6)
        self.check(inputs, "--score", "additive", score="additive")

    def test_softcap(self):
        self.check(self.qkv(), "--softcap", "0.5", softcap=0.5)

    def test_causal_and_its_corners(self):
        self.check(self.qkv(), "--causal", causal=True)
        self.check(self.qkv(), "--causal", "--causal-corner", "top_left", causal=True,
                   diagonal="top_left")
        self.check(self.qkv(), "--causal", "--causal-offset", "-1", causal=True, diagonal=-1)
        self.check({**self.qkv(), "offsets": np.array([1, -2])}, "--causal", causal=True)

    def test_window(self):
        self.check(self.qkv(), "--window", "1,0", window=(1, 0))
        self.check(self.qkv(), "--window", "-1,1", window=(-1, 1))

    def test_lengths(self):
        self.check({**self.qkv(), "key_lengths": np.array([5, 2])})
        self.check({**self.qkv(), "key_lengths": np.array([[5, 2, 0], [1, 3, 4]], np.uint8)})

    def test_masks(self):
        keep = self.random.random((2, 1, 3, 5)) < 0.6
        self.check({**self.qkv(), "keep": keep})
        self.check({**self.qkv(), "padding": self.random.random((2, 5)) < 0.4})

    def test_masks_of_whole_numbers(self):
        keep = self.random.random((3, 5)) < 0.6
        inputs = self.qkv()
        saved = self.check({**inputs, "keep": keep})
        np.save(self.dir / "whole.npy", keep.astype(np.int64))
        again = self.attend("q.npy", "k.npy", "v.npy", "--mask", "whole.npy")
        np.testing.assert_array_equal(again["out"], saved["out"])

    def test_bias_and_alibi_and_sinks(self):
        bias = self.normal(4, 3, 5)
        bias[0, 0, 1] = -np.inf
        self.check({**self.qkv(), "bias": bias})
        self.check({**self.qkv(), "alibi": np.abs(self.normal(4))})
        self.check({**self.qkv(), "sinks": self.normal(4)})

    def test_alibi_auto(self):
        for heads, slopes in ((4, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]),
                              (6, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])):
            self.qkv(q=(2, heads, 3, 8))
            np.save(self.dir / "slopes.npy", np.array(slopes, np.float32))
            arguments = ("q.npy", "k.npy", "v.npy", "--save", "masked", "--alibi")
            np.testing.assert_array_equal(self.attend(*arguments, "auto")["masked"],
                                          self.attend(*arguments, "slopes.npy")["masked"])

    def test_dropout(self):
        saved = self.check(self.qkv(), "--dropout", "0.5", "--seed", str(2**63 + 11),
                           dropout=(0.5, 2**63 + 11))
        self.assertGreater((saved["dropped"] != saved["weights"]).mean(), 0.5)

    def test_everything_together(self):
        inputs = {**self.qkv(), "bias": self.normal(3, 5), "alibi": np.abs(self.normal(4)),
                  "sinks": self.normal(4), "key_lengths": np.array([5, 4]),
                  "keep": self.random.random((4, 3, 5)) < 0.8}
        self.check(inputs, "--causal", "--window", "2,1", "--softcap", "2", "--scale", "0.7",
                   "--dropout", "0.25", "--seed", "3", causal=True, window=(2, 1), softcap=2.0,
                   scale=0.7, dropout=(0.25, 3))

    def test_packed(self):
        inputs = {"q": self.normal(7, 4, 8), "k": self.normal(9, 2, 8), "v": self.normal(9, 2, 6),
                  "cu_seqlens_q": np.array([0, 3, 7], np.int32),
                  "cu_seqlens_k": np.array([0, 4, 9], np.int32)}
        self.check(inputs, "--causal", packed=True, causal=True)
        packed = ("q.npy", "k.npy", "v.npy", "--cu-seqlens-q", "cu_seqlens_q.npy", "--cu-seqlens-k",
                  "cu_seqlens_k.npy", "--save", "out", "--alibi")
        np.save(self.dir / "slopes.npy", np.float32([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]))
        np.testing.assert_array_equal(self.attend(*packed, "auto")["out"],
                                      self.attend(*packed, "slopes.npy")["out"])

    def test_half_precision(self):
        inputs = self.qkv(dtype=np.float16)
        got = self.attend("q.npy", "k.npy", "v.npy", "--save", "out,lse")
        self.assertEqual((got["out"].dtype, got["lse"].dtype), (np.float16, np.float32))
        exact = {name: x.astype(np.float64) for name, x in inputs.items()}
        want = oracle_call.evaluate(oracle_call.Options(), exact)
        self.near(got["out"], want["out"], 4e-3)
        self.near(got["lse"], want["lse"], 1e-5)

    def test_listed_rows_are_rows_of_the_whole(self):
        self.qkv()
        arguments = ("q.npy", "k.npy", "v.npy", "--causal", "--save", ",".join(MATRICES))
        whole = self.attend(*arguments)
        some = self.attend(*arguments, "--rows", "2,0")
        for name in MATRICES:
            np.testing.assert_array_equal(some[name], whole[name][:, :, [2, 0]], name)
        np.testing.assert_array_equal(some["rows"], [2, 0])

    def test_bthd_is_bhtd_with_its_axes_swapped(self):
        inputs = self.qkv()
        want = self.attend("q.npy", "k.npy", "v.npy", "--save", "out,weights,lse")
        for name, array in inputs.items():
            np.save(self.dir / f"{name}.npy", array.swapaxes(1, 2))
        got = self.attend("q.npy", "k.npy", "v.npy", "--save", "out,weights,lse",
                          "--layout", "bthd")
        np.testing.assert_array_equal(got["out"], want["out"].swapaxes(1, 2))
        for name in ("weights", "lse"):
            np.testing.assert_array_equal(got[name], want[name])


class Inputs(Arrays):
    """Arrays from files and streams of all kinds, and unusual arrays."""

    def test_without_v_scores_and_weights(self):
        self.qkv()
        saved = self.attend("q.npy", "k.npy")
        self.assertEqual(set(saved), {"weights", "attn", "scores"})
        self.assertEqual(set(self.attend("q.npy", "k.npy", "v.npy")), {"out"})

    def test_one_file_with_all(self):
        arrays = self.qkv((3, 8), (5, 8), (5, 6))
        want = self.attend("q.npy", "k.npy", "v.npy")["out"]
        np.savez(self.dir / "all.npz", **arrays)
        np.testing.assert_array_equal(self.attend("all.npz")["out"], want)
        np.savez(self.dir / "two.npz", q=arrays["q"], k=arrays["k"])
        self.assertIn("weights", self.attend("two.npz"))

    def test_arrays_by_name(self):
        arrays = self.qkv((3, 8), (5, 8), (5, 6))
        want = self.attend("q.npy", "k.npy", "v.npy")["out"]
        np.savez(self.dir / "odd:name.npz", a=arrays["q"], k=arrays["k"], c=arrays["v"])
        got = self.attend("odd:name.npz:a", "odd:name.npz", "odd:name.npz:c")["out"]
        np.testing.assert_array_equal(got, want)

    def test_standard_input(self):
        self.qkv()
        want = self.attend("q.npy", "k.npy", "v.npy")["out"]
        bytes_of_k = (self.dir / "k.npy").read_bytes()
        got = self.attend("q.npy", "-", "v.npy", input=bytes_of_k)["out"]
        np.testing.assert_array_equal(got, want)

    def test_bfloat16_from_safetensors(self):
        rows = {"q": 3, "k": 5, "v": 5}
        bits = {name: (self.normal(n, 8).view(np.uint32) >> 16).astype("<u2")
                for name, n in rows.items()}
        header, data = {}, b""
        for name, array in bits.items():
            header[name] = {"dtype": "BF16", "shape": array.shape,
                            "data_offsets": [len(data), len(data) + array.nbytes]}
            data += array.tobytes()
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.file("all.safetensors", len(text).to_bytes(8, "little") + text + data)
        exact = {name: (x.astype(np.uint32) << 16).view(np.float32).astype(float)
                 for name, x in bits.items()}
        want = oracle_call.evaluate(oracle_call.Options(), exact)
        saved = self.attend("all.safetensors", "--save", "out,weights")
        self.near(saved["weights"], want["weights"], 1e-6)
        self.near(saved["out"], want["out"], 2e-2)
        report = json.loads(self.run_qkv("attend", "all.safetensors", "--json").out)
        self.assertEqual(report["out"]["dtype"], "bfloat16")

    def test_a_type_that_is_not_read_is_named(self):
        """Values of a type that cannot be read are an error, and not taken for absent values."""
        def save(types):
            header, data = {}, b""
            for name, dtype in types.items():
                header[name] = {"dtype": dtype, "shape": [2, 4],
                                "data_offsets": [len(data), len(data) + 8 * size[dtype]]}
                data += bytes(8 * size[dtype])
            text = json.dumps(header).encode()
            self.file("all.safetensors", len(text).to_bytes(8, "little") + text + data)

        size = {"F32": 4, "F8_E4M3": 1}
        for unread in "qkv":
            save({name: "F8_E4M3" if name == unread else "F32" for name in "qkv"})
            error = self.run_qkv("attend", "all.safetensors", code=3).err
            self.assertIn(f"all.safetensors: expected numbers for {unread}, got F8_E4M3 [2,4] "
                          "(unsupported type)", error)
        self.attend("all.safetensors:q", "all.safetensors:k", "--save", "weights")
        error = self.run_qkv("attend", "all.safetensors:q", "all.safetensors:v", code=3).err
        self.assertIn("expected numbers for k, got F8_E4M3 [2,4] (unsupported type)", error)

    def test_numbers_that_are_not_finite_are_computed_and_reported(self):
        arrays = self.qkv((3, 8), (5, 8), (5, 6))
        arrays["q"][0, 0] = np.nan
        arrays["v"][4] = [np.inf, np.nan, 1, 2, 3, 4]
        for name, array in arrays.items():
            np.save(self.dir / f"{name}.npy", array)
        done = self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npz")
        self.assertEqual(done.err, "qkv: q.npy: q holds 1 NaN number; results may be NaN or "
                         "infinite\nqkv: v.npy: v holds 1 NaN and 1 infinite numbers; results may "
                         "be NaN or infinite\n")
        out = np.load(self.dir / "out.npz")["out"]
        self.assertTrue(np.isnan(out[0]).all() and np.isnan(out[:, 1]).all())
        self.assertTrue(np.isinf(out[1:, 0]).all())
        self.assertEqual(self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--quiet").err, "")
        report = json.loads(self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--json").out)
        self.assertEqual(report["out"]["data"][0][0], "NaN")
        self.assertEqual(report["out"]["data"][1][0], "Infinity")
        self.assertEqual(len(report["warnings"]), 2)

    def test_empty_sizes(self):
        for q, k, v in (((0, 8), (5, 8), (5, 6)), ((3, 8), (0, 8), (0, 6)),
                        ((0, 4, 3, 8), (0, 2, 5, 8), (0, 2, 5, 6))):
            self.qkv(q, k, v)
            saved = self.attend("q.npy", "k.npy", "v.npy", "--save", "out,weights,lse")
            self.assertEqual(saved["out"].shape, (*q[:-1], 6))
            self.assertEqual(np.abs(saved["out"]).sum(), 0)
            self.run_qkv("attend", "q.npy", "k.npy", "v.npy")


class Outputs(Arrays):
    def test_the_report_has_the_numbers(self):
        self.qkv((3, 8), (5, 8), (5, 6))
        lines = self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--causal").out.splitlines()
        self.assertEqual(lines[:3], ["q float32 [3,8]  q.npy", "k float32 [5,8]  k.npy",
                                     "v float32 [5,6]  v.npy"])
        self.assertRegex(lines[3], r"^score scaled_dot, scale 0.353553, causal; path \S+$")
        out = self.attend("q.npy", "k.npy", "v.npy", "--causal")["out"]
        numbers = [re.sub(r"\[.*?\]", "", line).split() for line in lines[6:]]
        self.near(np.array(numbers, float), out, 1e-5)

    def test_large_results_are_cut(self):
        self.qkv((50, 8), (5, 8), (5, 20))
        text = self.run_qkv("attend", "q.npy", "k.npy", "v.npy").out
        self.assertIn("... 50 x 20 numbers", text)
        self.assertLess(len(text.splitlines()), 20)

    def test_an_attention_file_stands_in_the_result(self):
        self.qkv()
        saved = self.attend("q.npy", "k.npy", "--causal", "--save", "weights")
        self.assertEqual(saved["attn"].shape, (2, 1, 4, 3, 5))
        np.testing.assert_array_equal(saved["attn"][:, 0], saved["weights"])
        allowed = np.arange(5) <= np.arange(3)[:, None] + 2
        np.testing.assert_array_equal(saved["mask"], np.broadcast_to(allowed, (2, 1, 4, 3, 5)))
        self.qkv((2, 3, 8), (2, 5, 8), (2, 5, 6))
        self.assertEqual(self.attend("q.npy", "k.npy")["attn"].shape, (2, 1, 1, 3, 5))
        self.qkv((3, 8), (5, 8), (5, 6))
        self.assertEqual(self.attend("q.npy", "k.npy")["attn"].shape, (3, 5))

    def test_tokens_are_saved_with_the_results(self):
        self.run_qkv("words", "the cat <sat>", "-o", "words.npz")
        saved = self.attend("words.npz", "--save", "weights", "-o", "out.svg")
        tokens = list(np.load(self.dir / "words.npz")["tokens"])
        self.assertEqual((list(saved["src"]), list(saved["tgt"])), (tokens, tokens))
        self.near(saved["weights"], np.load(self.dir / "words.npz")["weights"], 0)
        svg = (self.dir / "out.svg").read_text(encoding="utf-8")
        self.assertIn(">cat</text>", svg)

    def test_the_picture_has_all_heads(self):
        self.qkv()
        self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--causal", "-o", "x.svg")
        svg = (self.dir / "x.svg").read_text(encoding="utf-8")
        for batch in range(2):
            for head in range(4):
                self.assertIn(f"batch {batch}, head {head}", svg)
        self.assertIn("masked", svg)

    def test_rows_have_the_indices_of_their_queries(self):
        self.qkv()
        text = self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "--rows", "2,0", "--save",
                            "weights,row_max").out
        weights, row_max = text.split("\nrow_max ")
        labels = re.findall(r"^  (\[.*?\]) ", weights, re.MULTILINE)
        self.assertEqual(labels, [f"[{b},{h},{i}]" for b in (0, 1) for h in range(4)
                                  for i in (2, 0)])
        self.assertEqual(re.findall(r"^  (\[.*?\]) ", row_max, re.MULTILINE),
                         [f"[{b},{h}]" for b in (0, 1) for h in range(4)])

    def titles(self, *arguments):
        """Returns the picture of a call, and the numbers in its cells' titles, row by row."""
        self.run_qkv("attend", "q.npy", "k.npy", "v.npy", *arguments, "-o", "x.svg")
        svg = (self.dir / "x.svg").read_text(encoding="utf-8")
        numbers = re.findall(r"<title>\d+ → \d+: (\S+)</title>", svg)
        return svg, [float(number) for number in numbers if number != "masked"]

    def test_pictures_show_the_weights_after_dropout(self):
        self.qkv((6, 8), (7, 8), (7, 6))
        drop = ("--dropout", "0.5", "--seed", "3")
        saved = self.attend("q.npy", "k.npy", "v.npy", *drop, "--save", "weights,dropped")
        self.assertGreater((saved["dropped"] == 0).sum(), 5)
        for saves, name, note in (((), "dropped", "after"),
                                  (("--save", "dropped"), "dropped", "after"),
                                  (("--save", "weights,dropped"), "dropped", "after"),
                                  (("--save", "weights"), "weights", "before")):
            svg, shown = self.titles(*drop, *saves)
            self.near(np.array(shown), saved[name].ravel(), 5e-4)
            self.assertIn(f"weights {note} dropout 0.5</text>", svg)
        svg, shown = self.titles()
        self.near(np.array(shown), saved["weights"].ravel(), 5e-4)
        self.assertNotIn("dropout", svg)
        svg, shown = self.titles(*drop, "--mask-mod", "j != 1")
        self.assertEqual(svg.count(" → 1: masked</title>"), 6)

    def test_npy_of_one_result(self):
        self.qkv()
        want = self.attend("q.npy", "k.npy", "v.npy", "--save", "lse", "-o", "x.npy")["lse"]
        np.testing.assert_array_equal(np.load(self.dir / "x.npy"), want)
        done = self.run_qkv("attend", "q.npy", "k.npy", "v.npy", "-o", "-", "--format", "npy")
        want = self.attend("q.npy", "k.npy", "v.npy")["out"]
        np.testing.assert_array_equal(np.load(io.BytesIO(done.stdout)), want)

    def test_json_has_every_bit(self):
        self.qkv()
        saved = self.attend("q.npy", "k.npy", "v.npy", "--save", "out,masked", "--causal",
                            "-o", "x.json")
        report = json.loads((self.dir / "x.json").read_text(encoding="utf-8"))
        self.assertEqual(report["options"]["causal"], True)
        for name in ("out", "masked"):
            entry = report[name]
            data = np.array(entry["data"], object).astype(str).astype(np.float32)
            self.assertEqual((entry["dtype"], tuple(entry["shape"])), ("float32", data.shape))
            np.testing.assert_array_equal(data, saved[name])

    @unittest.skipIf(measured.is_sanitized(PROGRAM), "a sanitizer's memory is not the program's")
    def test_linear_memory(self):
        self.qkv((6000, 4), (6000, 4), (6000, 4))
        small = self.measure("attend", "--help")
        large = self.measure("attend", "q.npy", "k.npy", "v.npy", "--threads", 2, "-o", "out.npz")
        self.assertLess(large.peak - small.peak, 24 << 20)  # the matrix would take 144 MB

    def test_a_matrix_of_nearly_all_memory_is_refused(self):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        side = int((0.95 * memory / 4) ** 0.5)
        np.save(self.dir / "x.npy", np.zeros((side, 1), np.float32))
        line = self.refuse(2, "attend", "x.npy", "x.npy", "--save", "weights")
        taken = re.search(r"would take ([\d.]+) GB, above 90 % of this machine's ([\d.]+);", line)
        self.assertLess(float(taken[1]), float(taken[2]))

    def test_a_closed_pipe_and_a_full_disk(self):
        self.qkv()
        for arguments in ([], ["--json"], ["-o", "-"], ["-o", "-", "--format", "npy"],
                          ["-o", "-", "--format", "svg"], ["-o", "x.npz"]):
            read_end, write_end = os.pipe()
            os.close(read_end)
            done = subprocess.run([PROGRAM, "attend", "q.npy", "k.npy", "v.npy", *arguments],
                                  stdout=write_end, stderr=subprocess.PIPE, cwd=self.dir,
                                  timeout=PATIENCE, check=False)
            os.close(write_end)
            self.assertEqual((done.returncode, done.stderr), (0, b""), arguments)
            if not os.path.exists("/dev/full"):
                continue
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, "attend", "q.npy", "k.npy", "v.npy", *arguments],
                                      stdout=full, stderr=subprocess.PIPE, cwd=self.dir,
                                      timeout=PATIENCE, check=False)
            self.assertEqual(done.returncode, 4, (arguments, done.stderr))


if __name__ == "__main__":
    unittest.main()
