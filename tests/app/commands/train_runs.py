# SPDX-License-Identifier: Apache-2.0
"""Functions that start, stop and compare runs of `qkv train`, for several tests."""

import json
import os
import resource
import signal
import subprocess

import numpy as np
from program import PROGRAM, Case, quietly

SIZES = ("--embedding", "8", "--hidden", "8", "--units", "8")
FILES = ["best.safetensors", "config.json", "model.safetensors", "source.vocab.json",
         "state.safetensors", "target.vocab.json", "train.jsonl"]
TIMES = ("seconds", "tokens_per_second")
ENDLESS = "10000000000000u"  # a budget that no test uses up


def safetensors(path):
    """Returns the arrays of a file by name."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8}
    arrays = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data[8 + size + begin:8 + size + end], types[entry["dtype"]])
            arrays[name] = array.reshape(entry["shape"])
    return arrays


def changed(data, name, value):
    """Returns the file `data`, in which the array `name` of one int64 or float64 is `value`."""
    size = int.from_bytes(data[:8], "little")
    begin, end = (8 + size + at for at in json.loads(data[8:8 + size])[name]["data_offsets"])
    number = np.float64(value) if isinstance(value, float) else np.int64(value)
    assert end - begin == number.nbytes, name
    return data[:begin] + number.tobytes() + data[end:]


def limited_to(size):
    """Returns a function for the start of a process that limits file sizes, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class TrainCase(Case):
    """A directory with sentence pairs to train on."""

    def setUp(self):
        super().setUp()
        self.run_qkv("gen", "reverse", "-n", 200, "--seed", 1, "-o", "data.tsv")
        self.run_qkv("gen", "reverse", "-n", 30, "--seed", 2, "-o", "valid.tsv")

    def arguments(self, folder, *more):
        return ("train", "data.tsv", "-o", folder, *SIZES, "--batch-tokens", 1000, *more)

    def train(self, folder, *more, **options):
        return self.run_qkv(*self.arguments(folder, *more), **options)

    def start(self, folder, *more):
        process = subprocess.Popen([PROGRAM, *quietly(self.arguments(folder, *more))],
                                   cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def path(self, folder, name):
        return self.dir / folder / name

    def files(self, folder):
        return {path.name: path.read_bytes() for path in (self.dir / folder).iterdir()}

    def updates(self, folder):
        return int(safetensors(self.path(folder, "state.safetensors"))["run.update"][0])

    def lines(self, folder):
        """Returns all lines of train.jsonl."""
        text = self.path(folder, "train.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def log(self, folder):
        """Returns the lines of train.jsonl without times, and without lines that end a run."""
        return [{key: line[key] for key in line if key not in TIMES}
                for line in self.lines(folder) if "end" not in line]

    def validations(self, folder):
        """Returns the lines of validations in train.jsonl, without those that end a run."""
        return [line for line in self.lines(folder) if "valid_loss" in line and "end" not in line]

    def wait_for_update(self, process, folder, least=1):
        """Waits until the process that trains in the folder has saved `least` or more updates."""
        state = self.path(folder, "state.safetensors")
        self.wait_until(lambda: state.exists() and self.updates(folder) >= least, process)

    def stop_when(self, process, condition):
        """Pauses and continues the process until condition() holds; then leaves it paused."""
        def holds():
            process.send_signal(signal.SIGSTOP)
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            self.assertTrue(os.WIFSTOPPED(status))
            if condition():
                return True
            process.send_signal(signal.SIGCONT)
            return False

        self.wait_until(holds)

    def same_run(self, got, want, checkpoints=()):
        """Checks that two runs are equal but for times, lines that end a run, and config.json."""
        files = sorted([*FILES, *checkpoints])
        self.assertEqual(sorted(self.files(got)), files)
        for name in files:
            if name in ("state.safetensors", "config.json", "train.jsonl"):
                continue
            self.assertEqual(self.path(got, name).read_bytes(),
                             self.path(want, name).read_bytes(), name)
        self.assertEqual(self.log(got), self.log(want))
        first, second = (safetensors(self.path(folder, "state.safetensors"))
                         for folder in (got, want))
        self.assertEqual(first.keys(), second.keys())
        for name in first:
            if name not in ("run.seconds", "run.line_seconds", "run.valid_seconds",
                            "run.log_bytes"):
                np.testing.assert_array_equal(first[name], second[name], name)
