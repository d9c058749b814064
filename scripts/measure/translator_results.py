#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well translators do that differ only in their attention, after equal times of training.

usage: translator_results.py TABLE -o FOLDER [--minutes 20] [--long 120] [--attention additive ...]
                             [--pace 2] [--updates N] [--program build/release/bin/qkv] [--json FILE]

TABLE is English, tab, French, such as the pairs of manythings.org/anki. Its lines are split by `qkv
split`: 2,000 sentences with all their translations to test with, 1,000 for validation. A translator
with each attention is trained for --minutes. If --long is given, the first attention is also
trained for --long minutes. Each model then translates the test's sentences with a beam of 5. All
use the options in TRAIN. A model is also scored on the sentences of 8 words and more; on these, the
first attention is compared with each of the others by paired bootstrap resampling.

Before, each attention is trained for --pace minutes, which tells how many updates it makes in
--minutes. Until then the machine must have nothing else to do; afterwards it may, since a model
depends on its updates and not on the clock. A training has that many updates, or those of
--updates, and ten validations.

All files are kept in FOLDER. After an interruption, run the script again: it goes on. The long
training continues a copy of the first attention's run. The script prints a table; --json writes
the figures to FILE.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

SPLIT = ("--hold-out", "2000", "--valid", "1000", "--seed", "1")
TRAIN = ("--tokenize", "subword", "--vocab", "8000", "--embedding", "256", "--hidden", "256",
         "--units", "128", "--tied-embeddings", "--batch-tokens", "4096", "--seed", "1")  # fmt: skip
VALIDATIONS = 10
BEAM = ("--beam", "5")
LONG_WORDS = 8
ATTENTIONS = ("additive", "scaled_dot", "bilinear", "none")


class Program:
    def __init__(self, path):
        self.path = str(Path(path).resolve())

    def run(self, *arguments, quiet=False):
        """Runs the program and returns what it prints."""
        done = subprocess.run([self.path, *map(str, arguments)], check=True, text=True,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL if quiet else None)  # fmt: skip
        return done.stdout

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json", quiet=True))


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def prepare(qkv, table, folder):
    """Splits the table, unless that is done. Returns the folder of the parts."""
    parts = folder / "split"
    if not (parts / "train.tsv").exists():
        qkv.run("split", table, *SPLIT, "-o", parts)
        test = lines_of(parts / "test.tsv")
        write_lines(parts / "test-long.tsv",
                    [line for line in test if len(line.split("\t")[0].split()) >= LONG_WORDS])  # fmt: skip
    for name in ("test", "test-long"):
        sources = dict.fromkeys(line.split("\t")[0] for line in lines_of(parts / f"{name}.tsv"))
        write_lines(parts / f"{name}.txt", sources)
    return parts


def last_line(run):
    return json.loads(lines_of(run / "train.jsonl")[-1])


def begin(qkv, parts, run, attention, validate_every, budget):
    qkv.run("train", parts / "train.tsv", "-o", run, "--valid", parts / "valid.tsv", *TRAIN,
            "--attention", attention, "--valid-freq", validate_every, "--after", budget)  # fmt: skip


def updates_per_minute(qkv, parts, attention, minutes):
    """The updates per minute of a training that validates once, at its end; its run is kept."""
    run = parts.parent / f"{attention}-pace"
    if not (run / "train.jsonl").exists():
        begin(qkv, parts, run, attention, f"{minutes}m", f"{minutes}m")
    return last_line(run)["update"] * 60 / last_line(run)["seconds"]


def result(qkv, parts, run, name, minutes):
    """The updates and epochs that a run has reached, and the scores of its translations."""
    scored = {"name": name, "minutes": minutes, "updates": last_line(run)["update"],
              "epochs": last_line(run)["epoch"]}  # fmt: skip
    for part in ("test", "test-long"):
        output = parts.parent / f"{name}.{part}.txt"
        qkv.run("translate", run, parts / f"{part}.txt", *BEAM, "-o", output, quiet=True)
        scored[part] = qkv.json("score", "--hypotheses", output, parts / f"{part}.tsv")
    return scored


def compare(qkv, parts, first, other):
    """The p of paired bootstrap resampling of two models' translations of long sentences.

    It is the probability of a difference at least this large between equally good systems.
    """
    first, other = (parts.parent / f"{name}.test-long.txt" for name in (first, other))
    report = qkv.json("score", "--hypotheses", other, parts / "test-long.tsv", "--against", first)
    return report["against"]["bleu_p"]


def table_of(results):
    rows = ["| | minutes | updates | BLEU | chrF2 | BLEU, 8 words and more | p |",
            "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for model in results:
        p = f"{model['p']:.4f}" if "p" in model else ""
        rows.append(f"| {model['name']} | {model['minutes']} | {model['updates']} "
                    f"| {model['test']['bleu']:.2f} | {model['test']['chrf2']:.2f} "
                    f"| {model['test-long']['bleu']:.2f} | {p} |")  # fmt: skip
    human = results[0]["test"].get("one_reference")
    if human:
        rows.append(f"\nWith one reference, of {human['sentences']} sentences: BLEU "
                    f"{human['translations']['bleu']:.2f}; another human translation "
                    f"{human['humans']['bleu']:.2f}.")  # fmt: skip
    return "\n".join(rows)


def cpu():
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines():
        if line.startswith("model name"):
            return f"{line.split(':')[1].strip()}, {os.cpu_count()} cores"
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--long", type=int, default=0)
    parser.add_argument("--pace", type=int, default=2)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--attention", nargs="+", default=list(ATTENTIONS))
    parser.add_argument("--program", default="build/release/bin/qkv")
    parser.add_argument("--json")
    options = parser.parse_args()
    qkv, folder = Program(options.program), Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    parts = prepare(qkv, options.table, folder)

    updates = {}
    for attention in options.attention:
        pace = None if options.updates else updates_per_minute(qkv, parts, attention, options.pace)
        updates[attention] = options.updates or round(pace * options.minutes)

    def train(run, attention, count):
        if (run / "config.json").exists():
            qkv.run("train", run, "--after", f"{count}u")
        else:
            validate_every = max(1, updates[attention] // VALIDATIONS)
            begin(qkv, parts, run, attention, f"{validate_every}u", f"{count}u")

    results = []
    for attention in options.attention:
        run = folder / attention
        train(run, attention, updates[attention])
        results.append(result(qkv, parts, run, attention, options.minutes))
    first = options.attention[0]
    for model in results[1:]:
        model["p"] = compare(qkv, parts, first, model["name"])
    if options.long:
        run = folder / f"{first}-long"
        if not run.exists():
            shutil.copytree(folder / first, run)
        train(run, first, round(updates[first] * options.long / options.minutes))
        results.append(result(qkv, parts, run, run.name, options.long))
    print(table_of(results))
    if options.json:
        report = {"cpu": cpu(), "date": datetime.date.today().isoformat(), "options": list(TRAIN),
                  "command": " ".join(["scripts/measure/translator_results.py", *sys.argv[1:]]),
                  "results": results}  # fmt: skip
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
