#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `qkv train --keep` and `qkv average`.

usage: average_test.py PROGRAM [TEST ...]
"""

import json
import signal
import unittest

import numpy as np
from train_runs import ENDLESS, SIZES, TrainCase, safetensors

MORE = ("--valid", "valid.tsv", "--valid-freq", "4u", "--lr", "0.02")


def parts(data):
    """Returns the header and the bytes of the numbers of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + size]), data[8 + size:]


def first_parameter(header):
    return next(name for name, entry in header.items() if entry.get("dtype") == "F32")


def with_number(data, number):
    """Returns the file with `number` as first number of a parameter, and the parameter's name."""
    header, numbers = parts(data)
    name = first_parameter(header)
    begin = header[name]["data_offsets"][0]
    numbers = numbers[:begin] + np.float32(number).tobytes() + numbers[begin + 4:]
    return data[:len(data) - len(numbers)] + numbers, name


def with_integers(data):
    """Returns the file with a parameter declared as integers, and the parameter's name."""
    header, numbers = parts(data)
    name = first_parameter(header)
    header[name]["dtype"] = "I32"
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + numbers, name


def names(*updates):
    return [f"checkpoint-{update}.safetensors" for update in updates]


class Checkpoints(TrainCase):
    def checkpoints(self, folder):
        return sorted((path.name for path in (self.dir / folder).glob("checkpoint-*")),
                      key=lambda name: int(name.split("-")[1].split(".")[0]))

    def test_of_the_last_validations(self):
        self.train("NONE", "--after", "14u", *MORE)
        self.assertEqual(self.checkpoints("NONE"), [])
        self.train("RUN", "--after", "14u", *MORE, "--keep", 2)
        self.assertEqual(self.checkpoints("RUN"), names(8, 12))
        for update in (8, 12):
            self.train(f"TO{update}", "--after", f"{update}u", *MORE)
            self.assertEqual(self.path("RUN", *names(update)).read_bytes(),
                             self.path(f"TO{update}", "model.safetensors").read_bytes())
        # The option may change when a run is resumed.
        self.run_qkv("train", "RUN", "--after", "18u", "--keep", 9)
        self.assertEqual(self.checkpoints("RUN"), names(8, 12, 16))
        self.run_qkv("train", "RUN", "--after", "20u", "--keep", 1)
        self.assertEqual(self.checkpoints("RUN"), names(20))

    def test_without_validation(self):
        """Checkpoints are written where validations would be due."""
        self.train("RUN", "--after", "9u", "--valid-freq", "3u", "--keep", 2)
        self.assertEqual(self.checkpoints("RUN"), names(6, 9))

    def test_after_a_kill(self):
        """Resuming removes checkpoints after the last save, and keeps earlier ones."""
        self.file("data.tsv", (self.dir / "data.tsv").read_text() * 40)
        more = (*MORE, "--keep", 2)
        self.train("RUN", "--after", "9u", *more)
        process = self.start("RUN", "--after", ENDLESS, "--save-freq", ENDLESS, *more)
        self.wait_until(lambda: int(self.checkpoints("RUN")[-1].split("-")[1].split(".")[0]) >= 16)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.path("RUN", "checkpoint-99.safetensors.4711-3.tmp").write_bytes(b"part")
        self.path("RUN", "checkpoint-099.safetensors").write_bytes(b"somebody's")
        self.assertEqual(self.updates("RUN"), 9)
        self.assertLess({*names(4, 8)}, {*self.checkpoints("RUN")})
        self.run_qkv("train", "RUN", "--after", "10u")
        self.assertEqual(self.checkpoints("RUN"), [*names(4, 8), "checkpoint-099.safetensors"])


class Average(TrainCase):
    def setUp(self):
        super().setUp()
        self.train("RUN", "--after", "16u", *MORE, "--keep", 3)

    def check_mean(self, got, files):
        """Compares the file `got` with NumPy's mean in float64, rounded once to float32."""
        got = safetensors(self.dir / got)
        models = [safetensors(self.dir / file) for file in files]
        floats = 0
        for name, array in models[0].items():
            if array.dtype == np.float32:
                stack = np.stack([model[name] for model in models]).astype(np.float64)
                array = np.mean(stack, axis=0).astype(np.float32)
                floats += 1
            np.testing.assert_array_equal(got[name], array, name)
        self.assertGreater(floats, 10)
        self.assertEqual(got.keys(), models[0].keys())

    def test_is_numpy_s_mean(self):
        files = [f"RUN/{name}" for name in names(8, 12, 16)]
        done = self.run_qkv("average", "RUN", "-o", "mean.safetensors")
        self.check_mean("mean.safetensors", files)
        count = sum(array.size for array in safetensors(self.dir / "mean.safetensors").values()
                    if array.dtype == np.float32)
        self.assertEqual(done.out, f"mean.safetensors: {count} parameters, the mean of 3\n"
                         + "".join(f"  {file}\n" for file in files))
        self.run_qkv("average", "RUN/", "--last", 2, "-o", "two.safetensors")
        self.check_mean("two.safetensors", files[1:])
        self.run_qkv("average", files[0], "RUN/best.safetensors", "RUN", "--last", 1, "-o",
                     "three.safetensors")
        self.check_mean("three.safetensors", [files[0], "RUN/best.safetensors", files[2]])
        self.run_qkv("average", files[1], "-o", "one.safetensors")
        self.assertEqual((self.dir / "one.safetensors").read_bytes(),
                         (self.dir / files[1]).read_bytes())

    def test_of_16_bits(self):
        """--dtype rounds the mean once more. A 16-bit model is averaged by its stored numbers."""
        self.run_qkv("average", "RUN", "-o", "mean.safetensors")
        self.run_qkv("average", "RUN", "-o", "half.safetensors", "--dtype", "f16")
        self.run_qkv("average", "half.safetensors", "-o", "again.safetensors")
        mean, again = (safetensors(self.dir / name)
                       for name in ("mean.safetensors", "again.safetensors"))
        for name, array in mean.items():
            if array.dtype == np.float32:
                np.testing.assert_array_equal(again[name], array.astype(np.float16))
        self.run_qkv("average", "RUN", "half.safetensors", "-o", "b.safetensors", "--dtype", "bf16")
        self.run_qkv("score", "b.safetensors", "valid.tsv")
        sizes = [(self.dir / name).stat().st_size
                 for name in ("half.safetensors", "b.safetensors", "mean.safetensors")]
        self.assertLess(max(sizes[:2]), sizes[2])

    def test_translates_and_scores(self):
        self.run_qkv("average", "RUN", "-o", "mean.safetensors")
        self.assertEqual(len(self.run_qkv("translate", "mean.safetensors", "word").out.split("\n")), 2)
        score = json.loads(self.run_qkv("score", "mean.safetensors", "valid.tsv", "--json").out)
        self.assertEqual(score["pairs"], 30)

    def test_what_cannot_be_averaged(self):
        self.run_qkv("train", "data.tsv", "-o", "WIDE", "--after", "1u", *SIZES[:2], "--hidden", 16)
        self.train("DOT", "--after", "1u", "--attention", "dot")
        self.train("DROPOUT", "--after", "1u", "--dropout", "0.3", "--label-smoothing", "0")
        self.file("data.tsv", "b c\td e f\na b\te f\n")
        self.train("WORDS", "--after", "1u")
        for other, want in (("WIDE", "hidden is 16, and 8 in"),
                            ("DOT", "attention is dot, and additive in"),
                            ("WORDS", 'source_tokens 0 is " ", and "')):
            message = self.refuse(3, "average", "RUN/best.safetensors",
                                  f"{other}/best.safetensors", "-o", "mean.safetensors")
            self.assertIn(f"qkv: {other}/best.safetensors: cannot be averaged: {want}", message)
            self.assertTrue(message.endswith(" RUN/best.safetensors\n"), message)
        self.run_qkv("average", "RUN/best.safetensors", "DROPOUT/best.safetensors", "-o",
                     "mean.safetensors")

    def test_other_files_in_the_folder_of_a_run_may_be_written(self):
        """transcripts/bench.md covers the files that may not be written."""
        self.run_qkv("average", "RUN", "-o", "RUN/mean.safetensors")
        # The run would name its checkpoint without the 0.
        self.run_qkv("average", "RUN", "-o", "RUN/checkpoint-03.safetensors")

    def test_numbers_that_have_no_mean(self):
        good = self.path("RUN", "best.safetensors").read_bytes()
        for number in (np.nan, np.inf, -np.inf):
            data, name = with_number(good, number)
            self.file("bad.safetensors", data)
            for order in (["bad.safetensors"], ["RUN", "bad.safetensors"],
                          ["bad.safetensors", "RUN/best.safetensors"]):
                self.assertEqual(self.refuse(3, "average", *order, "-o", "mean.safetensors"),
                                 f"qkv: bad.safetensors: cannot be averaged: {name} has a number "
                                 "that is not finite\n")
        data, name = with_integers(good)
        self.file("bad.safetensors", data)
        self.assertEqual(self.refuse(3, "average", "RUN/best.safetensors", "bad.safetensors", "-o",
                                     "mean.safetensors"),
                         f"qkv: bad.safetensors: cannot be averaged: {name} is int32, and float32 in "
                         "RUN/best.safetensors\n")
        self.assertNotIn("mean.safetensors", self.names())

    def test_numbers_too_large_for_16_bits(self):
        data, name = with_number(self.path("RUN", "best.safetensors").read_bytes(), 1e6)
        self.file("large.safetensors", data)
        call = ("average", "large.safetensors", "-o", "mean.safetensors", "--dtype")
        self.assertEqual(self.refuse(2, *call, "f16"),
                         f"qkv: --dtype f16: {name} must be finite as float16, got 1000000\n")
        self.assertNotIn("mean.safetensors", self.names())
        self.run_qkv(*call, "bf16")

    def test_of_subwords(self):
        """Models are averaged only if their subword models, which are bytes, are equal."""
        words = "low lower lowest new newer newest wide wider".split()
        for number, count in enumerate((60, 59)):
            self.file("data.tsv", "".join(f"{words[n % 8]} {words[n % 7]}\t{words[n % 5]} {words[n % 3]}\n"
                                          for n in range(count)))
            self.run_qkv("train", "data.tsv", "-o", f"S{number}", *SIZES, "--tokenize", "subword",
                         "--vocab", 275, "--after", "2u")
        self.run_qkv("average", "S0/best.safetensors", "S0/model.safetensors", "-o", "m.safetensors")
        self.run_qkv("translate", "m.safetensors", "low new")
        self.assertIn("cannot be averaged: subwords ", self.refuse(
            3, "average", "S0/best.safetensors", "S1/best.safetensors", "-o", "n.safetensors"))


if __name__ == "__main__":
    unittest.main()
