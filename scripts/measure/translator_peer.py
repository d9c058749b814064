# SPDX-License-Identifier: Apache-2.0
"""Our translator and PyTorch's as programs that run alternately: see translator_peers.py."""

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from translator_data import PADDING, SPECIAL, Model, tokens_of
from watched import Failed, watched

NEVER = "1000000u"


class Speed(NamedTuple):
    rate: float  # target tokens or sentences per second
    remark: str


def mean_size(lists):
    return f"{statistics.mean(map(len, lists)):.2f} tokens a sentence"


class Ours:
    """The program `qkv`. Each block is a new process."""

    label = "qkv"

    def __init__(self, work, options):
        self.work, self.options = work, options
        self.program = Path(options.program).absolute()
        self.version = watched([self.program, "--version"]).output.strip()
        self.peak, self.quarters = {}, []

    def run(self, command, *arguments):
        threads = ["--threads", self.options.threads, "--quiet"]
        done = watched([self.program, command, *arguments, *threads], folder=self.work)
        self.peak[command] = max(self.peak.get(command, 0), done.peak)
        return done

    def train(self, name, updates, batch_tokens, *more):
        """Trains a new run. Returns the last line of its train.jsonl, and the ended process."""
        o = self.options
        shutil.rmtree(self.work / name, ignore_errors=True)
        done = self.run(
            "train", "train.tsv", "-o", name, "--tokenize", "word", "--min-count", o.min_count,
            "--hidden", o.hidden, "--embedding", o.embedding, "--units", o.units,
            "--batch-tokens", batch_tokens, "--after", f"{updates}u", "--save-freq", NEVER, *more,
        )  # fmt: skip
        lines = (self.work / name / "train.jsonl").read_text(encoding="utf-8").splitlines()
        return json.loads(lines[-1]), done

    def prepare(self):
        """Trains "model", which translates, and "begin", from which PyTorch's trainings begin.

        The parameters of "begin" are those before the first update: its rate is too small to change
        one."""
        self.train("begin", 1, self.options.batch_tokens[0], "--lr", 1e-30)
        _, done = self.train("model", self.options.model_updates, self.options.batch_tokens[0])
        self.quarters = done.quarters

    def train_block(self, batch_tokens):
        """The speed in train.jsonl, which leaves out reading, splitting and encoding the text."""
        line, _ = self.train("block", self.options.updates, batch_tokens)
        return Speed(line["tokens_per_second"], f"{line['update']} updates")

    def translate_block(self, beam):
        """The speed of the whole program, including the time to read the model."""
        done = self.run("translate", "model", "test.txt", "--model", "last", "--beam", beam)
        lines = done.output.splitlines()
        return Speed(len(lines) / done.seconds, mean_size([*tokens_of(line), ""] for line in lines))

    # ---- results with which PyTorch's are compared -----------------------------------------------

    def loss_per_token(self):
        done = self.run("score", "model", "test.tsv", "--model", "last", "--json")
        return -json.loads(done.output)["log_probability_per_token"]

    def loss_without_dropout(self, updates):
        line, _ = self.train("follow", updates, self.options.batch_tokens[0], "--dropout", 0)
        return line["loss"]

    def translations(self, beam):
        """A list of all translations' tokens, and a list of their log-probabilities."""
        self.run("translate", "model", "test.txt", "--model", "last", "--beam", beam, "-o", "t.npz")
        with np.load(self.work / "t.npz") as arrays:
            rows, scores = arrays["tgt"].tolist(), arrays["log_probability"].tolist()
        pads = ("", SPECIAL[PADDING])
        return [[token for token in row if token not in pads] for row in rows], scores


class Torch:
    """A process of torch_worker.py, which waits while others run."""

    needs = "torch==2.13.0"

    def __init__(self, way, work, options):
        self.label = f"PyTorch, {way}"
        self.work, self.options, self.notes = work, options, []
        worker = Path(__file__).with_name("torch_worker.py")
        self.process = subprocess.Popen(
            [sys.executable, worker, way, str(options.threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self.version = f"PyTorch {self.ask('version')}"
        except Failed:
            self.end()
            raise

    def ask(self, what, **arguments):
        """Sends a request and returns the answer. Raises Failed for an error."""
        try:
            self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{self.label}: its process ended")
        answer = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer["result"]

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def prepare(self):
        """Loads the models, and runs each block once, so that PyTorch compiles before timing."""
        self.ask("load", work=str(self.work), batch_tokens=self.options.batch_tokens)
        first = [self.timed("train", batch_tokens=n) for n in self.options.batch_tokens]
        first += [self.timed("translate", beam=beam) for beam in self.options.beams]
        self.first = sum(first)

    def timed(self, what, **arguments):
        """The seconds of a first block, which include compiling."""
        updates = {"updates": self.options.updates} if what == "train" else {}
        return self.ask(what, **arguments, **updates)["seconds"]

    def train_block(self, batch_tokens):
        done = self.ask("train", batch_tokens=batch_tokens, updates=self.options.updates)
        return Speed(done["tokens"] / done["seconds"], f"{self.options.updates} updates")

    def translate_block(self, beam):
        done = self.ask("translate", beam=beam)
        return Speed(len(done["tokens"]) / done["seconds"], mean_size(done["tokens"]))

    @property
    def peak(self):
        return {"training and translation": self.ask("memory")}

    # ---- whether PyTorch computes what qkv does --------------------------------------------------

    def check(self, wanted):
        """Raises Failed unless losses and translations agree with ours."""
        found = self.ask("loss")
        self.agree("loss per token", found, wanted["loss"])
        found = self.ask("follow", updates=self.options.followed)
        self.agree(f"training loss of {self.options.followed} updates", found, wanted["follow"])
        vocabulary = Model(self.work / "model" / "model.safetensors").tokens["target"]
        for beam in self.options.beams:
            done = self.ask("translate", beam=beam)
            texts = [[vocabulary[n] for n in row] for row in done["tokens"]]
            self.agree_texts(beam, texts, done["scores"], wanted[beam])

    def agree(self, what, found, wanted):
        error = abs(found - wanted)
        if not error <= 1e-5 * max(1, abs(wanted)):
            raise Failed(f"{what}: {found:.7f}, ours {wanted:.7f}")
        self.notes.append(f"{what} {wanted:.6f}, differs by {error:.0e}")

    def agree_texts(self, beam, texts, scores, wanted):
        pairs = list(zip(texts, scores, *wanted))
        other = [
            (score, our_score) for text, score, our_text, our_score in pairs if text != our_text
        ]
        far = sum(abs(score - our_score) > 1e-4 for score, our_score in other)
        what = f"beam {beam}" if beam > 1 else "greedy"
        if len(texts) != len(wanted[0]) or far > len(texts) / 100:
            raise Failed(f"{what}: {far} of {len(wanted[0])} translations have other scores")
        self.notes.append(
            f"{what}: {len(other)} of {len(texts)} translations differ, {far} of them by more than "
            "1e-4 in score"
        )
