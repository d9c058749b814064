#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of file names with bytes that terminals act on, for every file of every command.

usage: names_test.py PROGRAM [TEST ...]
"""

import json
import os
import re
import unittest
import unittest.mock

import numpy as np
from program import Case

# The name has a sequence for a colour, a bell, a delete, a C1 sequence that clears the screen, a
# byte that is not UTF-8, a right-to-left override, and a second line.
RAW = b"a\x1b[31mb\x07\x7f\xc2\x9b2J\xff\xe2\x80\xae\nFORGED"
NAME = os.fsdecode(RAW)
SHOWN = r"a\x1b[31mb\x07\x7f\x9b2J\xff\u202e\x0aFORGED"
SIZES = ("--embedding", "4", "--hidden", "4", "--units", "4", "--batch-tokens", "500")


class Names(Case):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(0)
        x = random.normal(size=(1, 3, 4)).astype(np.float32)
        np.savez(self.dir / f"{NAME}.npz", q=x, k=x, v=x, attn=np.full((2, 3, 3), 1 / 3))
        np.save(self.dir / f"{NAME}.npy", np.arange(3, dtype=np.int32))
        self.file(f"{NAME}.tsv", "a b\tb a\nc d\td c\n" * 30)
        self.file(f"{NAME}.txt", "the 1 2\ncat 3 4\n")
        self.file(f"{NAME}.theirs", "b a\nd c\n")
        self.ran = set()

    def check(self, data, what):
        text = data.decode()  # fails unless the output is UTF-8
        controls = [c for c in text if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"]
        self.assertEqual(controls, [], (what, text))
        if "--json" not in what:
            self.assertNotIn("\u202e", text, what)
        self.assertNotRegex(text, "(?m)^FORGED", what)

    def say(self, *arguments, shown=True, **options):
        """Runs the command, which must not print the raw name, but the escaped one if `shown`."""
        done = self.run_qkv(*arguments, **options)
        for data in (done.stdout, done.stderr):
            self.check(data, arguments)
        if shown:
            self.assertIn(SHOWN, done.out + done.err, arguments)
        self.ran.add(next(str(word) for word in arguments if not str(word).startswith("-")))
        return done

    def name_in_json(self, *arguments):
        """Runs the command with --json, whose report must have the name itself, as valid UTF-8."""
        done = self.say(*arguments, "--json", shown=False)
        whole = json.dumps(NAME.encode(errors="surrogateescape").decode(errors="replace"))
        self.assertIn(whole[1:-1], json.dumps(json.loads(done.out)), arguments)

    def commands_with(self, pattern):
        return {name for name in self.commands()
                if re.search(pattern, self.run_qkv(name, "--help").out)}

    def test_as_inputs(self):
        for suffix in ("npz", "npy", "tsv", "txt"):
            self.say("inspect", f"{NAME}.{suffix}")
            self.name_in_json("inspect", f"{NAME}.{suffix}")
        self.say("inspect", f"{NAME}.none", f"{NAME}.other", code=3)
        self.say("stats", f"{NAME}.npz")
        self.name_in_json("stats", f"{NAME}.npz")
        self.say("view", f"{NAME}.npz", shown=False)
        self.say("view", f"{NAME}.npz", "--minus", f"{NAME}.npz")
        self.say("view", f"{NAME}.npz", "--table", "--example", 4, code=2, shown=False)
        self.say("attend", f"{NAME}.npz", "--lengths", f"{NAME}.npy", code=3)
        self.say("attend", f"{NAME}.npz", "--q-positions", f"{NAME}.npy", "--rotary", "halves")
        self.say("attend", f"{NAME}.npz:x", "k.npy", code=3)
        self.name_in_json("attend", f"{NAME}.npz")
        self.say("words", "the cat", "--vectors", f"{NAME}.txt")
        self.say("words", "the dog", "--vectors", f"{NAME}.txt", "--unknown", "skip")
        self.say("words", "the cat", "--vectors", f"{NAME}.txt", "--progress", "always")
        self.name_in_json("words", "the cat", "--vectors", f"{NAME}.txt")
        self.say("split", f"{NAME}.tsv", "--hold-out", 9, "-o", "SPLIT", code=3)
        self.say("score", "--hypotheses", f"{NAME}.theirs", "--against", f"{NAME}.theirs",
                 f"{NAME}.tsv")
        self.say("score", "--hypotheses", f"{NAME}.txt", f"{NAME}.theirs", code=3)
        self.say("train", f"{NAME}.tsv", code=2)
        self.say("train", f"{NAME}.none", "-o", "RUN", code=3)
        self.say("average", f"{NAME}.none", "-o", "x.safetensors", code=3)
        self.say("curve", f"{NAME}.none", code=3)
        self.say("translate", f"{NAME}.none", f"{NAME}.tsv", code=3)
        self.say("translate", "--demo", f"./{NAME}.none", code=3)
        self.say("gen", NAME, code=2)
        self.say("bench", NAME, code=2)
        self.say("info", NAME, code=2, shown=False)
        self.say("demo", NAME, code=2, shown=False)
        self.say(NAME, code=2, shown=False)
        self.assertEqual(self.ran - {NAME}, set(self.commands()))

    def test_of_runs(self):
        run = f"{NAME}.run"
        self.file("data.tsv", "a b\tb a\nc d\td c\n" * 30)
        self.say("train", "data.tsv", "-o", run, *SIZES, "--after", "4u", "--valid-freq", "1u",
                 "--valid", "data.tsv", "--keep", 2)
        self.say("train", run, "--after", "4u")  # trains nothing and prints how to resume
        self.say("train", run, "-o", "x", code=2)
        self.say("average", run, "-o", f"{NAME}.safetensors")
        self.say("average", run, "-o", f"{run}/model.safetensors", code=2)
        self.say("inspect", f"{NAME}.safetensors")
        self.say("curve", run)
        self.say("curve", run, "-o", "-", "--format", "txt")
        self.name_in_json("curve", run)
        self.say("translate", run, f"{NAME}.tsv", "--attn", "x.npz", shown=False)
        self.say("translate", run, "--show", "a b", shown=False)
        self.say("score", run, f"{NAME}.tsv", shown=False)
        (self.dir / "data.tsv").rename(self.dir / "moved.tsv")
        self.say("train", run, "--after", "6u", code=3)

    def test_as_outputs(self):
        """Outputs that are written, have an unknown extension, or cannot be written."""
        commands = {"attend": [f"{NAME}.npz"], "words": ["a b"], "info": [],
                    "view": [f"{NAME}.npz"], "stats": [f"{NAME}.npz"],
                    "score": ["--hypotheses", f"{NAME}.theirs", f"{NAME}.tsv"],
                    "curve": ["RUN"], "bench": ["small", "--quick", "--seconds", "1e-6"],
                    "demo": [], "translate": ["--demo", "Hello."]}
        for command, more in commands.items():
            self.say(command, *more, "-o", NAME, code=2)
            self.say(command, *more, "-o", f"{NAME}/x.json", code=4)
            self.say(command, *more, "-o", f"{NAME}.json", "-o", f"./{NAME}.json", code=2)
        for command in ("attend", "words", "info", "view", "stats", "score", "translate"):
            self.say(command, *commands[command], "-o", f"{NAME}.json", shown=False)
            self.assertIn(f"{NAME}.json", self.names())
        self.say("gen", "dates", "-o", f"{NAME}/x.tsv", code=4)
        self.say("gen", "dates", "-o", f"{NAME}.dates", shown=False)
        self.say("split", f"{NAME}.dates", "--hold-out", 2, "-o", f"{NAME}.split")
        self.name_in_json("split", f"{NAME}.dates", "--hold-out", 2, "-o", f"{NAME}.split")
        self.say("split", f"{NAME}.dates", "--hold-out", 2, "-o", f"{NAME}.npz", code=4)
        self.say("train", f"{NAME}.tsv", "-o", f"{NAME}.npz", "--after", "1u", code=4)
        self.say("average", "RUN", "-o", f"{NAME}.npz", code=2)
        self.assertEqual(self.ran - {"inspect"}, self.commands_with("--output"))

    def test_in_the_environment(self):
        for value in (RAW, b"\x1b[31mavx2", b"\xc2\x9b"):
            with unittest.mock.patch.dict(os.environb, {b"QKV_TARGET": value}):
                done = self.say("attend", f"{NAME}.npz", code=1, shown=False)
                self.assertIn('QKV_TARGET is "', done.err)
                if value == b"\xc2\x9b":
                    self.assertIn(r'QKV_TARGET is "\x9b" in', done.err)
                self.say("info", code=1, shown=False)
        folder = self.dir / f"{NAME}.bin"
        folder.mkdir()
        (folder / "rsvg-convert").write_text("#!/bin/sh\n")
        (folder / "rsvg-convert").chmod(0o755)
        with unittest.mock.patch.dict(os.environ, {"PATH": str(folder)}):
            self.say("info")
            self.name_in_json("info")


if __name__ == "__main__":
    unittest.main()
