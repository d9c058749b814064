# SPDX-License-Identifier: Apache-2.0
"""Reads sentence pairs and models of `qkv train`, and makes batches, for translator_peers.py."""

import collections
import json
import re
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

PADDING, START, END, UNKNOWN = range(4)
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
HELD_OUT = 40  # one of so many distinct source sentences is held out, to be translated
# Soft hyphens and zero-width spaces, which are invisible, and typographic quotation marks, which
# qkv would read as straight ones. tokens_of() replaces each by an apostrophe.
REPLACED = re.compile("[\u00ad\u200b\u2018\u2019\u201c\u201d]")


class Pair(NamedTuple):
    source: list
    target: list


# ---- text ----------------------------------------------------------------------------------------


def tokens_of(text):
    """Words and single marks. If blanks separate them, `--tokenize word` finds the same tokens."""
    return re.findall(r"\w+|[^\w\s]", REPLACED.sub("'", text))


def read_pairs(path):
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    pairs = [Pair(tokens_of(row[0]), tokens_of(row[1])) for row in rows if len(row) > 1]
    return [pair for pair in pairs if pair.source and pair.target]


def split(pairs):
    """Pairs to train on, and held-out pairs with distinct sources, none of which is trained on."""
    numbers = {}
    train, held_out = [], {}
    for pair in pairs:
        number = numbers.setdefault(" ".join(pair.source), len(numbers))
        if number % HELD_OUT:
            train.append(pair)
        else:
            held_out.setdefault(number, pair)
    return train, list(held_out.values())


def write_pairs(path, pairs):
    lines = ("\t".join(" ".join(side) for side in pair) + "\n" for pair in pairs)
    path.write_text("".join(lines), encoding="utf-8")


def least_count(pairs, wanted):
    """The --min-count with which the size of the target vocabulary is nearest to `wanted`."""
    counts = collections.Counter(token for pair in pairs for token in pair.target)
    sizes = [sum(count >= least for count in counts.values()) for least in range(1, 100)]
    return 1 + min(range(len(sizes)), key=lambda n: abs(sizes[n] - wanted))


# ---- models --------------------------------------------------------------------------------------


class Model:
    """A model.safetensors of `qkv train`: its settings, vocabularies and parameters by name."""

    def __init__(self, path):
        data = Path(path).read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + size])
        texts = {name: json.loads(text) for name, text in header.pop("__metadata__").items()}
        self.settings = dict(texts["settings"])
        self.arrays = {}
        for name, entry in header.items():
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            dtype = {"F32": np.float32, "F64": np.float64, "I64": np.int64}[entry["dtype"]]
            self.arrays[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
        self.tokens = {side: SPECIAL + texts[f"{side}_tokens"] for side in ("source", "target")}
        self.ids = {
            side: {token: n for n, token in enumerate(tokens)}
            for side, tokens in self.tokens.items()
        }

    def encode(self, side, tokens):
        ids = self.ids[side]
        return [*(ids.get(token, UNKNOWN) for token in tokens), END]

    def encoded(self, pairs):
        return [
            Pair(self.encode("source", p.source), self.encode("target", p.target)) for p in pairs
        ]

    def check_tokens(self, pairs):
        """Raises ValueError unless the model's counts of tokens are those of these pairs."""
        for side in ("source", "target"):
            counts = collections.Counter(token for pair in pairs for token in getattr(pair, side))
            known = zip(self.tokens[side][len(SPECIAL) :], self.arrays[f"{side}_counts"].tolist())
            for token, count in known:
                if counts[token] != count:
                    raise ValueError(
                        f"{side} token {token!r} occurs {counts[token]} times, in the model {count}"
                    )


# ---- batches -------------------------------------------------------------------------------------


def philox_words(counters, epoch, order, seed):
    """The first word of Philox4x32-10 (src/core/philox.h) at each (counter, epoch, 0, order)."""
    low = np.uint64(0xFFFFFFFF)
    c = [
        counters.astype(np.uint64),
        *(np.full(len(counters), x, np.uint64) for x in (epoch, 0, order)),
    ]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]),
            b & low,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]),
            a & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def shuffled(values, order, seed):
    sizes = np.arange(len(values), 1, -1)
    words = philox_words(sizes, 0, order, seed)
    others = (words * sizes.astype(np.uint64)) >> np.uint64(32)
    for size, other in zip(sizes.tolist(), others.tolist()):
        values[size - 1], values[other] = values[other], values[size - 1]
    return values


def epoch_batches(pairs, most_tokens, seed):
    """The first epoch's batches, lists of pairs, as app/translator/data/batches.cc makes them."""

    def sort_key(n):
        return len(pairs[n].source) + len(pairs[n].target), len(pairs[n].source)

    batches, longest = [], (0, 0)
    for n in sorted(shuffled(list(range(len(pairs))), 16, seed), key=sort_key):
        sizes = len(pairs[n].source), len(pairs[n].target)
        grown = max(longest[0], sizes[0]), max(longest[1], sizes[1])
        if batches and sum(grown) * (len(batches[-1]) + 1) <= most_tokens:
            longest = grown
        else:
            batches.append([])
            longest = sizes
        batches[-1].append(pairs[n])
    return shuffled(batches, 17, seed)


def target_tokens(batch):
    return sum(len(pair.target) for pair in batch)


def padded(lists):
    width = max(map(len, lists))
    return np.array([row + [PADDING] * (width - len(row)) for row in lists], np.int64)
