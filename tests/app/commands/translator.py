# SPDX-License-Identifier: Apache-2.0
"""A translator in NumPy, and the bytes of a model file from which `qkv` reads it.

Bahdanau, Cho, Bengio 2015, appendix A, with additive attention: a bidirectional GRU (PyTorch's
equations), a GRU that attends with its previous state, maxout of pairs.
"""

import json

import numpy as np

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
START, END, UNKNOWN = 1, 2, 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def safetensors(arrays, text):
    """Returns the bytes of a safetensors file; `text` is its metadata by name."""
    header, data = {"__metadata__": {name: json.dumps(value) for name, value in text.items()}}, b""
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        kind = {"float32": "F32", "int64": "I64"}[array.dtype.name]
        begin = len(data)
        data += np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, len(data)]}
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


class Translator:
    """A translator with random parameters; vocabularies are token lists without special tokens."""

    def __init__(self, source="abc ", target="xyz ", seed=0, tokenize="char", letters="kept",
                 attention="additive", sizes=(4, 6, 5)):
        self.source, self.target = list(source), list(target)
        embedding, hidden, units = sizes
        self.settings = {"attention": attention, "embedding": embedding, "hidden": hidden,
                         "units": units, "heads": 2, "dropout": 0.1, "label_smoothing": 0.1, "dtype": "float32",
                         "tokenize": tokenize, "letters": letters}
        random = np.random.default_rng(seed)
        self.p = {name: random.normal(size=shape).astype(np.float32)
                  for name, shape in self.shapes()}
        self.p["output.bias"][END] += 1  # so that translations end
        self.p["output.bias"][UNKNOWN] -= 50

    def shapes(self):
        e, h, u = (self.settings[name] for name in ("embedding", "hidden", "units"))
        yield "source_embedding.weight", (len(self.source) + 4, e)
        for suffix in ("", "_reverse"):
            yield from ((f"encoder.weight_ih_l0{suffix}", (3 * h, e)),
                        (f"encoder.weight_hh_l0{suffix}", (3 * h, h)),
                        (f"encoder.bias_ih_l0{suffix}", (3 * h,)),
                        (f"encoder.bias_hh_l0{suffix}", (3 * h,)))
        yield from (("start.weight", (h, h)), ("start.bias", (h,)))
        if self.settings["attention"] == "additive":
            yield from (("attention.W_q", (u, h)), ("attention.W_k", (u, 2 * h)),
                        ("attention.v", (u,)))
        yield from (("target_embedding.weight", (len(self.target) + 4, e)),
                    ("decoder.weight_ih", (3 * h, 2 * h + e)), ("decoder.weight_hh", (3 * h, h)),
                    ("decoder.bias_ih", (3 * h,)), ("decoder.bias_hh", (3 * h,)),
                    ("readout.weight", (2 * h, 3 * h + e)), ("readout.bias", (2 * h,)),
                    ("output.weight", (len(self.target) + 4, h)),
                    ("output.bias", (len(self.target) + 4,)))

    def file(self):
        arrays = dict(self.p)
        for side, tokens in (("source", self.source), ("target", self.target)):
            arrays[f"{side}_counts"] = np.arange(len(tokens), 0, -1)
        text = {"settings": [[name, str(value)] for name, value in self.settings.items()],
                "source_tokens": self.source, "target_tokens": self.target}
        return safetensors(arrays, text)

    def ids(self, tokens, known):
        return [known.index(token) + 4 if token in known else UNKNOWN for token in tokens] + [END]

    def gru(self, x, h, name, suffix=""):
        w_x, w_h, b_x, b_h = (self.p[f"{name}.{part}{suffix}"].astype(float)
                              for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        (r, z, n), (hr, hz, hn) = np.split(w_x @ x + b_x, 3), np.split(w_h @ h + b_h, 3)
        z = sigmoid(z + hz)
        return (1 - z) * np.tanh(n + sigmoid(r + hr) * hn) + z * h

    def encode(self, ids):
        x = self.p["source_embedding.weight"][ids].astype(float)
        nothing = np.zeros(self.settings["hidden"])
        forward, backward = [nothing], [nothing]
        for row in x:
            forward.append(self.gru(row, forward[-1], "encoder", "_l0"))
        for row in x[::-1]:
            backward.append(self.gru(row, backward[-1], "encoder", "_l0_reverse"))
        return np.concatenate([forward[1:], backward[:0:-1]], 1)

    def steps(self, source, choose):
        """Yields each target token, the end token last, and its weights [source].

        choose(log-probabilities) returns the next token.
        """
        keys = self.encode(self.ids(source, self.source))
        state = np.tanh(self.p["start.weight"] @ keys[0, self.settings["hidden"]:] + self.p["start.bias"])
        token = START
        while token != END:
            scores = np.tanh(self.p["attention.W_q"] @ state + keys @ self.p["attention.W_k"].T)
            weights = np.exp(scores @ self.p["attention.v"])
            weights /= weights.sum()
            context = weights @ keys
            before = self.p["target_embedding.weight"][token].astype(float)
            state = self.gru(np.concatenate([context, before]), state, "decoder")
            pairs = (self.p["readout.weight"] @ np.concatenate([state, context, before])
                     + self.p["readout.bias"])
            logits = (self.p["output.weight"] @ pairs.reshape(-1, 2).max(1).astype(float)
                      + self.p["output.bias"])
            token = choose(logits - np.log(np.exp(logits).sum()))
            yield token, weights

    def translate(self, source, most=None):
        """Translates greedily; returns the tokens with the end token, unless cut off at `most`, the
        log-probability and the weights [target, source]."""
        most = most or 2 * (len(source) + 1) + 10  # the default of --most-tokens
        total, tokens, rows = 0.0, [], []

        def choose(log_probabilities):
            nonlocal total
            best = END + int(np.argmax(log_probabilities[END:]))
            total += log_probabilities[best]
            return best

        for token, weights in self.steps(source, choose):
            tokens.append((SPECIALS + self.target)[token])
            rows.append(weights)
            if len(tokens) == most:
                break
        return tokens, total, np.array(rows)

    def log_probability(self, source, target):
        total, ids = 0.0, iter(self.ids(target, self.target))

        def choose(log_probabilities):
            nonlocal total
            token = next(ids)
            total += log_probabilities[token]
            return token

        for _ in self.steps(source, choose):
            pass
        return total
