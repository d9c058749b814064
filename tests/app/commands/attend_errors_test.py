#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the table of invalid calls, tests/errors.tsv, through `qkv attend`.

usage: attend_errors_test.py PROGRAM [TEST ...]
Each row of `attention` that a command line can express is run. The program must exit with 2 or 3,
print one line, which has the library's message in the words of the command line, and write no file.
Rows that a command line cannot express are counted by reason.
"""

import collections
import json
import re
import unittest

import numpy as np
from program import CHECKOUT, Case

TABLE = CHECKOUT / "tests" / "errors.tsv"
# The least number of rows that can be run; fewer mean that CommandLine no longer expresses some.
FEWEST_ROWS = 136

# The command line's names of results, options and parameters, by the library's names.
RESULTS = {"out": "out", "lse": "lse", "row_max": "row_max", "column_sums": "column_sums",
           "entropy": "entropy", "value_sums": "value_sums", "pooled": "pooled",
           "weights": "weights", "dropped_weights": "dropped", "raw_scores": "scores",
           "capped_scores": "capped", "masked_scores": "masked"}
VALUES = {"scale": "--scale", "softcap": "--softcap", "dropout.p": "--dropout",
          "qk_norm.eps": "--qk-norm", "rotary": "--rotary", "rotary.base": "--rotary-base",
          "rotary.width": "--rotary-width", "dropout.seed": "--seed", "context.path": "--path", "top.count": "--top"}
ARRAYS = {"bias": "--bias", "alibi": "--alibi", "sinks": "--sinks", "keep": "--mask",
          "padding": "--padding-mask", "key_lengths": "--lengths",
          "cu_seqlens_q": "--cu-seqlens-q", "cu_seqlens_k": "--cu-seqlens-k",
          "rotary.frequencies": "--rotary-frequencies", "rotary.q_positions": "--q-positions",
          "rotary.k_positions": "--k-positions"}
PARAMETERS = {"bilinear.w": "W", "additive.wq": "Wq", "additive.wk": "Wk", "additive.v": "v",
              "additive.b": "b", "qk_norm.q": "norm_q", "qk_norm.k": "norm_k"}
DTYPES = {"f64": "<f8", "f32": "<f4", "bf16": None, "f16": "<f2", "bool": "?", "i8": "i1",
          "i16": "<i2", "i32": "<i4", "i64": "<i8", "u8": "u1", "u16": "<u2", "u32": "<u4",
          "u64": "<u8"}
MOST_ELEMENTS = 1 << 20

# The words of the command line for the library's names of arguments.
WORDS = {**{name: option[2:] for name, option in {**VALUES, **ARRAYS}.items()}, **PARAMETERS,
         **RESULTS, **{f"{name}.rows": "rows" for name in RESULTS}, "column_sums.rows": "column-rows",
         "window.left": "LEFT", "window.right": "RIGHT", "diagonal": "causal-offset"}


# The library's names of arguments whose values are on the command line, not in a file. Errors in
# these values exit with 2.
OF_THE_COMMAND_LINE = (r"qk_norm\.eps|rotary\.(base|width)|scale|softcap|dropout\.\w+|window\.\w+|top\.count|\w+\.rows|context|out|"
                       r"weights|raw_scores|value_sums")


class CannotBeSaid(Exception):
    """Raised for a row that no command line expresses, with the reason."""


def array_of(text):
    """Returns (dtype, array) for an array in the table's language; bfloat16 is uint16 bits."""
    match = re.fullmatch(r"(\w+)\[([\d,]*)\](?:/\[[\d,-]*\])?(@\S+)?(?:\{(.*)\})?", text)
    if not match:
        raise CannotBeSaid("no array" if text == "absent" else f"unknown array {text}")
    dtype, sizes, place, values = match.groups()
    shape = [int(size) for size in sizes.split(",")] if sizes else []
    if place:
        raise CannotBeSaid("arrays in the memory of others")
    if dtype not in DTYPES:
        raise CannotBeSaid("a dtype that files do not have")
    # The table has strides only for large arrays in little memory, and a file has no strides.
    if np.prod(shape, dtype=float) > MOST_ELEMENTS or max(shape, default=0) > MOST_ELEMENTS:
        raise CannotBeSaid("an array too large for a file")
    if dtype == "bf16":
        return dtype, np.full(shape, 0x3F80, "<u2")
    if values:
        return dtype, np.array([int(v) for v in values.split(",")], DTYPES[dtype]).reshape(shape)
    return dtype, np.full(shape, 1 if dtype[0] in "fb" else 0, DTYPES[dtype])


def safetensors(arrays):
    """Returns the bytes of a .safetensors file. `arrays` has results of array_of() by name."""
    header, data = {}, b""
    for name, (dtype, array) in arrays.items():
        code = {"bf16": "BF16", "bool": "BOOL"}.get(dtype, dtype.upper())
        header[name] = {"dtype": code, "shape": array.shape,
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


class CommandLine:
    """The arguments of `qkv attend` for one row, and the files that they name."""

    def __init__(self, directory, row):
        self.directory = directory
        words = row.call.split(" ")[1:]
        self.given = dict(word.split("=", 1) for word in words)
        self.arguments, self.saves, self.parameters = [], [], {}
        self.refuse_by_message(row.message)
        for name, value in self.given.items():
            self.add(name, value)
        self.finish()

    @staticmethod
    def refuse_by_message(message):
        argument, _, rest = message.removeprefix("attention: ").partition(" ")
        if argument in (*RESULTS, "top.weights", "top.keys"):
            if re.match("must (have|be|not)|is absent", rest):
                raise CannotBeSaid("buffers of results, which the program makes itself")
        if argument == "top.count":
            raise CannotBeSaid("a count that the command line refuses in its own words")

    def file(self, name, text):
        dtype, array = array_of(text)
        if dtype == "bf16":
            path = self.directory / f"{name}.safetensors"
            path.write_bytes(safetensors({"array": (dtype, array)}))
        else:
            path = self.directory / f"{name}.npy"
            np.save(path, array)
        return path.name

    def add(self, name, value):
        if name in "qkv":
            return  # added at the end, in the order q, k, v
        if name in RESULTS:
            self.saves.append(RESULTS[name])
            if name == "pooled":
                self.arguments += ["--pool", "2,2"]
        elif name in ARRAYS:
            self.arguments += [ARRAYS[name], self.file(name, value)]
        elif name in VALUES:
            self.arguments += [VALUES[name], value]
        elif name in PARAMETERS:
            self.parameters[PARAMETERS[name]] = array_of(value)
        elif name.endswith(".rows"):
            self.add_rows("--column-rows" if name == "column_sums.rows" else "--rows", value)
        elif name == "score":
            self.arguments += ["--score", value]
        elif name == "causal":
            self.arguments.append("--causal")
        elif name == "window":
            self.arguments += ["--window", value]
        elif name == "diagonal":
            self.add_diagonal(value)
        elif name not in ("top.weights", "top.keys"):
            raise CannotBeSaid("the user's functions and contexts")

    def add_rows(self, option, value):
        dtype, rows = array_of(value)
        if rows.ndim != 1 or dtype[0] not in "iu" or (rows.size and rows.max() >= 2**63):
            raise CannotBeSaid("rows that are no list of whole numbers")
        self.arguments += [option, ",".join(map(str, rows))]

    def add_diagonal(self, value):
        if value in ("top_left", "bottom_right"):
            self.arguments += ["--causal-corner", value]
        elif re.fullmatch(r"-?\d+", value):
            self.arguments += ["--causal-offset", value]
        else:
            self.arguments += ["--causal-offset", self.file("diagonal", value)]

    def finish(self):
        if "q" not in self.given or "k" not in self.given:
            raise CannotBeSaid("q or k absent")
        if self.parameters or self.given.get("score") in ("bilinear", "additive"):
            path = self.directory / "params.safetensors"
            path.write_bytes(safetensors(self.parameters or {"other": array_of("f32[1]")}))
            self.arguments += ["--params", path.name]
        if not self.saves and "--top" not in self.arguments:
            raise CannotBeSaid("a call that asks for nothing")
        if self.saves:
            self.arguments += ["--save", ",".join(self.saves)]
        self.arguments = [self.file(name, self.given[name]) for name in "qkv"
                          if name in self.given] + self.arguments + ["-o", "out.npz"]


Row = collections.namedtuple("Row", "id call kind message")


def in_words(message):
    """The library's message in the words of the command line."""
    argument, _, rest = message.removeprefix("attention: ").partition(" ")
    if argument == "dropout.seed":
        return re.sub("is absent but dropout.p is (.*); .*", r"--dropout \1 needs --seed N", rest)
    rest = re.sub("cu_seqlens(_[qk])?", lambda name: name[0].replace("_", "-"), rest)
    return rest if argument == "context" else f"{WORDS.get(argument, argument)} {rest}"


def rows_of_attention():
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            row = Row(*line.split("\t"))
            if row.call.startswith("attention "):
                yield row


class Table(Case):
    def check(self, row):
        for path in self.dir.iterdir():
            path.unlink()
        arguments = CommandLine(self.dir, row).arguments
        before = self.names()
        done = self.run_qkv("attend", *arguments, code=None)
        argument = row.message.removeprefix("attention: ").split(" ")[0]
        is_number = argument == "diagonal" and "diagonal.npy" not in arguments
        want = 2 if is_number or re.fullmatch(OF_THE_COMMAND_LINE, argument) else 3
        with self.subTest(row=row.id, line=" ".join(arguments)):
            self.assertEqual(done.returncode, want, done.err)
            self.assertEqual(done.out, "")
            self.assertEqual(done.err.count("\n"), 1, done.err)
            self.assertIn(f": {in_words(row.message)}\n", done.err)
            self.assertEqual(self.names(), before)

    def test_every_row_that_can_be_said(self):
        said, reasons = 0, collections.Counter()
        for row in rows_of_attention():
            try:
                self.check(row)
                said += 1
            except CannotBeSaid as reason:
                reasons[str(reason)] += 1
        print(f"{said} wrong calls through `qkv attend`, {sum(reasons.values())} cannot be said:")
        for reason, count in reasons.most_common():
            print(f"  {count:3} {reason}")
        self.assertGreaterEqual(said, FEWEST_ROWS)


if __name__ == "__main__":
    unittest.main()
