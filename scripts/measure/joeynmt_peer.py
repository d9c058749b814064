# SPDX-License-Identifier: Apache-2.0
"""JoeyNMT in an environment of its own: see translator_peers.py."""

import json
import re
import sys
from pathlib import Path

from translator_peer import Speed, mean_size
from watched import Failed, watched

NEEDS = [  # joeynmt/helpers.py imports importlib_metadata, which JoeyNMT does not require
    "joeynmt==2.3.0",
    "torch==2.13.0",
    "importlib_metadata",
]
CHECK = """
import importlib.metadata, joeynmt.training, torch
print(importlib.metadata.version("joeynmt"), torch.__version__)
"""
SPEED = re.compile(r"Step: +(\d+),.*Tokens per Sec: +(\d+)")
GENERATION = re.compile(r"Generation took ([0-9.]+)\[sec\]")


class JoeyNmt:
    """JoeyNMT's recurrent translator: each `joeynmt train` and `joeynmt test` is a process."""

    label = "JoeyNMT"

    def __init__(self, environment, work, options):
        self.python = Path(environment).absolute() / "bin" / "python"
        self.work, self.options = work, options
        self.threads = {"OMP_NUM_THREADS": str(options.threads)}
        self.peak, self.quarters = {}, []
        self.install()
        output = watched([self.python, "-c", CHECK], self.threads).output.split()
        self.version = f"JoeyNMT {output[-2]} with PyTorch {output[-1]}"

    def install(self):
        """Installs JoeyNMT. Raises Failed with the last lines of pip."""
        made = self.python.parent.parent / "made-from"
        if made.is_file() and made.read_text(encoding="utf-8").split() == NEEDS:
            return
        print("installing", *NEEDS, file=sys.stderr, flush=True)
        watched([sys.executable, "-m", "venv", "--clear", self.python.parent.parent])
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        watched([*pip, *NEEDS])
        made.write_text("\n".join(NEEDS), encoding="utf-8")

    # ---- configuration and data --------------------------------------------------------------

    def config(self, folder, training, testing=None):
        """The configuration, with qkv's sizes; but JoeyNMT has as many units as hidden channels."""
        o = self.options
        embedding = {"embedding_dim": o.embedding, "dropout": o.dropout}
        layer = {"type": "recurrent", "rnn_type": "gru", "hidden_size": o.hidden, "num_layers": 1}
        side = {"level": "word", "voc_min_freq": o.min_count, "max_length": 200}
        data = {
            "train": str(self.work / "joeynmt" / "train"),
            "dev": str(self.work / "joeynmt" / "dev"),
            "test": str(self.work / "joeynmt" / "test"),
            "dataset_type": "plain",
            "src": {"lang": "source", **side},
            "trg": {"lang": "target", **side},
        }
        if testing:
            del data["dev"]  # it would be translated too
        return {
            "name": "peer",
            "model_dir": str(folder),
            "use_cuda": False,
            "random_seed": 1,
            "data": data,
            "testing": {"batch_size": 64, "batch_type": "sentence", **(testing or {})},
            "training": {
                "optimizer": "adam",
                "scheduling": "warmupinversesquareroot",
                "learning_rate": 0.002,
                "learning_rate_warmup": 400,
                "learning_rate_min": 0.0,  # training ends below this rate
                "clip_grad_norm": 1.0,
                "normalization": "tokens",
                "label_smoothing": o.label_smoothing,
                "epochs": 1000,
                "batch_type": "token",
                "overwrite": True,
                **training,
            },
            "model": {
                "encoder": {**layer, "bidirectional": True, "embeddings": embedding},
                "decoder": {
                    **layer,
                    "embeddings": embedding,
                    "hidden_dropout": o.dropout,
                    "attention": "bahdanau",
                    "init_hidden": "bridge",
                    "input_feeding": True,
                },
            },
        }

    def write_data(self, train, test):
        """Writes a text file for each side, with the sentences to translate in order of length."""
        folder = self.work / "joeynmt"
        folder.mkdir(exist_ok=True)
        sides = {
            "train": train,
            "dev": train[:2],
            "test": sorted(test, key=lambda p: len(p.source)),
        }
        for name, pairs in sides.items():
            for side in ("source", "target"):
                if name == "test" and side == "target":
                    continue
                lines = (" ".join(getattr(pair, side)) + "\n" for pair in pairs)
                (folder / f"{name}.{side}").write_text("".join(lines), encoding="utf-8")

    def run(self, mode, config, *more):
        path = self.work / "joeynmt" / f"{mode}.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")
        done = watched([self.python, "-m", "joeynmt", mode, path, *more], self.threads)
        self.peak[mode] = max(self.peak.get(mode, 0), done.peak)
        return done

    # ---- training and translation ------------------------------------------------------------

    def train(self, name, batch_tokens, updates, every):
        """Trains with batch_tokens / 2: JoeyNMT counts only the longer side of a batch, padded."""
        training = {
            "batch_size": batch_tokens // 2,
            "updates": updates,
            "logging_freq": every,
            "validation_freq": 1000 * every,
        }
        done = self.run("train", self.config(self.work / "joeynmt" / name, training), "--skip-test")
        speeds = [float(speed) for _, speed in SPEED.findall(done.output)]
        if not speeds:
            raise Failed("joeynmt train: no line with Tokens per Sec")
        return speeds, done

    def prepare(self):
        """Trains the model that translates, for as many updates as ours."""
        updates = self.options.model_updates
        every = max(1, updates // 20)
        _, done = self.train("model", self.options.batch_tokens[0], updates, every)
        self.quarters = done.quarters

    def train_block(self, batch_tokens):
        """The speed in JoeyNMT's log: target tokens with end tokens, without padding or loading."""
        updates = self.options.updates
        speeds, _ = self.train("block", batch_tokens, updates, updates)
        return Speed(speeds[-1], f"{updates} updates")

    def translate_block(self, beam):
        training = {"batch_size": self.options.batch_tokens[0]}
        testing = {"beam_size": beam, "beam_alpha": 1.0}
        config = self.config(self.work / "joeynmt" / "model", training, testing)
        config["testing"]["load_model"] = str(self.work / "joeynmt" / "model" / "latest.ckpt")
        output = self.work / "joeynmt" / "translated"
        done = self.run("test", config, "-o", output)
        lines = Path(f"{output}.test").read_text(encoding="utf-8").splitlines()
        seconds = float(GENERATION.search(done.output).group(1))
        return Speed(len(lines) / seconds, mean_size([*line.split(), ""] for line in lines))
