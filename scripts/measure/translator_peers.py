#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The translator beside PyTorch and JoeyNMT: training, translation, memory.

usage: translator_peers.py --data PAIRS.tsv [--program build/release/bin/qkv]
                           [--peers eager,compiled,joeynmt] [--joeynmt FOLDER] [--work FOLDER]
                           [--threads 2] [--blocks 7] [--updates 60] [--model-updates 1500]
                           [--sentences 2000] [--quick] [-o RESULTS.json]

Run it in an environment that has NumPy and, if PyTorch is to take part, PyTorch (pip install
torch==2.13.0). JoeyNMT is installed in an environment of its own, the folder `--joeynmt`. A missing
program is named. PAIRS.tsv is English, tab, French, such as the pairs of manythings.org/anki. Rows
are printed, and with -o written as JSON, which scripts/benchmarks.py reads.

Text is split here into words and marks, so that all read the same tokens. Rare tokens are unknown:
the target vocabulary has about 8,000. One English sentence in 40 is held out. A model is trained
with `qkv train`. PyTorch reads it, and before anything is timed must have our loss per token of the
held-out pairs, our loss in training from the same parameters without dropout, and our translations.
PyTorch has our batches; JoeyNMT makes its own, of as many tokens, and has a model of its own,
trained for as many updates.

Then the programs take turns, a block each, with a pause between. A block of training is the first
`--updates` updates. Its rate is target tokens per second, with end tokens and without padding, from
our train.jsonl, from JoeyNMT's log, or from the time of PyTorch's loop, which makes tensors of the
batches. A block of translation is all held-out sentences. Our time includes starting the program
and reading the model; PyTorch's and JoeyNMT's times do not, and these two translate 64 sentences of
similar length at once. A row has the median rate, the range of rates, and the median of the rounds'
ratios, our rate over the other's. PyTorch runs as it is ("eager") and with its steps through
torch.compile ("compiled"); a first block, in which it compiles, does not count. "busy" is the
number of processors that other programs took in the pauses; if it is given, repeat the measurement
on a quiet machine.

Memory: the peak of each process, and the largest in each quarter of the training of our model.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time
from functools import partial

from bursts import others_seconds
from joeynmt_peer import NEEDS, JoeyNmt
from reports import Report, names_of
from translator_data import least_count, read_pairs, split, write_pairs
from translator_peer import Ours, Torch
from watched import Failed

PEERS = ["eager", "compiled", "joeynmt"]
PAUSE = 0.5  # seconds
VOCABULARY = 8000
BUSY = 0.1  # the processors that other programs may take before a row says so


def say(*words):
    print(*words, file=sys.stderr, flush=True)


# ---- data and models -----------------------------------------------------------------------------


def write_data(options, work):
    pairs = read_pairs(options.data)
    train, held_out = split(pairs)
    test = held_out[: options.sentences]
    if len(test) < options.sentences:
        raise SystemExit(
            f"{options.data}: expected {options.sentences} to hold out, got {len(test)}"
        )
    options.min_count = least_count(train, VOCABULARY)
    write_pairs(work / "train.tsv", train)
    write_pairs(work / "test.tsv", test)
    lines = (" ".join(pair.source) + "\n" for pair in test)
    (work / "test.txt").write_text("".join(lines), encoding="utf-8")
    return train, test


def started(options, work, data):
    """The programs that are installed, and why the others are missing."""
    peers, missing = [], []

    def start(name, needs, make):
        say(name)
        try:
            peers.append(make())
        except Failed as error:
            missing.append(f"{name} ({error}): pip install {needs}")

    for way in ("eager", "compiled"):
        if way in options.peers:
            start(f"PyTorch, {way}", Torch.needs, partial(Torch, way, work, options))
    if "joeynmt" in options.peers:
        start("JoeyNMT", " ".join(NEEDS), partial(JoeyNmt, options.joeynmt, work, options))
        for peer in peers:
            if isinstance(peer, JoeyNmt):
                peer.write_data(*data)
    return peers, missing


def ready(peers, ours, options):
    """Prepares the models, and checks PyTorch's results. Returns (programs, failures)."""
    say("qkv: trains the model")
    ours.prepare()
    wanted = {"loss": ours.loss_per_token(), "follow": ours.loss_without_dropout(options.followed)}
    wanted |= {beam: ours.translations(beam) for beam in options.beams}
    good, failed = [ours], []
    for peer in peers:
        say(f"{peer.label}: prepares")
        try:
            peer.prepare()
            if isinstance(peer, Torch):
                peer.check(wanted)
            good.append(peer)
        except Failed as error:
            failed.append(f"{peer.label}: {error}")
    return good, failed


# ---- alternating blocks --------------------------------------------------------------------------


class Case:
    """A row of the results: its title, the block to run, and the speeds of each program."""

    def __init__(self, title, block):
        self.title, self.block = title, block
        self.speeds = {}
        self.others = []
        self.failed = {}

    def measure(self, peers, blocks):
        for n in range(blocks):
            say(f"{self.title}: block {n + 1} of {blocks}")
            for peer in peers:
                self.measure_one(peer)
                time.sleep(PAUSE / 5)  # worker threads may still spin for a while
                begin = others_seconds()
                time.sleep(PAUSE)
                self.others.append((others_seconds() - begin) / PAUSE)

    def measure_one(self, peer):
        """Measures a block of a program, unless the program has failed in this case."""
        if peer.label in self.failed:
            return
        try:
            speed = self.block(peer)
        except Failed as error:
            self.failed[peer.label] = str(error)
            say(f"  {peer.label} FAILED: {error}")
            return
        self.speeds.setdefault(peer.label, []).append(speed)
        say(f"  {peer.label} {speed.rate:,.1f}")

    def rates(self, label):
        return [speed.rate for speed in self.speeds[label]]

    def ratio(self, label):
        pairs = zip(self.rates(Ours.label), self.rates(label))
        return statistics.median(own / other for own, other in pairs)

    def add(self, report):
        busy = statistics.median(self.others)
        texts = {label: speeds[-1].remark for label, speeds in self.speeds.items()}
        report.add(
            self.title,
            rate=statistics.median(self.rates(Ours.label)),
            ratios={label: self.ratio(label) for label in self.speeds if label != Ours.label},
            ranges={label: [min(self.rates(label)), max(self.rates(label))]
                    for label in self.speeds},
            notes=texts | {label: f"FAILED: {error}" for label, error in self.failed.items()},
            busy=busy if busy > BUSY else None,
        )  # fmt: skip


def cases(options):
    def train(tokens):
        return Case(f"training-{tokens}", lambda peer: peer.train_block(tokens))

    def translate(beam):
        name = f"beam{beam}" if beam > 1 else "greedy"
        return Case(f"translation-{name}", lambda peer: peer.translate_block(beam))

    return [*map(train, options.batch_tokens), *map(translate, options.beams)]


def notes_of(peer):
    if isinstance(peer, Torch):
        first = f"{peer.first:.0f} s for the first block of everything, not counted"
        return [*peer.notes, first, f"Adam is {peer.ask('which_adam')}"]
    return []


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="English, tab, French")
    parser.add_argument("--program", default="build/release/bin/qkv")
    parser.add_argument("--peers", type=names_of(PEERS), default=PEERS)
    parser.add_argument("--joeynmt", default="build/joeynmt", help="JoeyNMT's environment")
    parser.add_argument("--work", type=pathlib.Path, default="build/translator-peers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--updates", type=int, help="updates of a block")
    parser.add_argument("--model-updates", type=int)
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--quick", action="store_true", help="two short blocks of everything")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="write the rows there, as JSON")
    options = parser.parse_args()
    small = options.quick
    options.blocks = options.blocks or (2 if small else 7)
    options.updates = options.updates or (4 if small else 60)
    options.model_updates = options.model_updates or (20 if small else 1500)
    options.sentences = options.sentences or (200 if small else 2000)
    options.batch_tokens = [2048] if small else [2048, 4096]
    options.followed = 4 if small else 20
    options.beams = [1, 5]
    options.hidden, options.embedding, options.units = 256, 128, 128
    options.dropout, options.label_smoothing = 0.1, 0.1
    return options


def main():
    options = parsed()
    # The processors are limited before a library or a program starts its threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    data = write_data(options, work)
    ours = Ours(work, options)
    peers, missing = started(options, work, data)
    good, failed = ready(peers, ours, options)
    measured = cases(options)
    for case in measured:
        case.measure(good, options.blocks)
        if Ours.label in case.failed:
            raise SystemExit(f"{case.title}: {case.failed[Ours.label]}")
    report = Report(
        threads=options.threads, blocks=options.blocks, pairs=len(data[0]), sentences=len(data[1]),
        least_count=options.min_count, versions=[peer.version for peer in good],
        missing=missing, failed=failed, quick=options.quick,
    )  # fmt: skip
    for case in measured:
        case.add(report)
    for peer in good:
        quarters = getattr(peer, "quarters", None)
        report.add(f"memory {peer.label}", peak=peer.peak, quarters=quarters or None,
                   notes="; ".join(notes_of(peer)) or None)
    for peer in peers:
        if isinstance(peer, Torch):
            peer.end()
    if options.output:
        report.write(options.output)
    if missing or failed or any(case.failed for case in measured):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
