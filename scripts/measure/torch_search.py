# SPDX-License-Identifier: Apache-2.0
"""Greedy and beam search in PyTorch, of many sentences at once: see translator_peers.py.

The search is that of app/translator/search/hypotheses.cc: a sentence is done once K hypotheses have
ended and no live one has a better score than the best ended one. Sentences that are done leave the
batch. B sentences, K hypotheses of each, S source tokens, H hidden, E embedding, V tokens in the
target vocabulary.
"""

import math
from typing import NamedTuple

import torch
from torch.nn import functional
from torch_translator import gru, read_out, widths
from translator_data import END, PADDING, START, padded


class Translation(NamedTuple):
    tokens: list  # with the end token, if it was reached
    log_probability: float


def next_logits(state, embedded, given, sources, loop, readout, output):
    """Computes logits [B K,V] and new states [B K,H] from states [B,K,H], embeddings [B,K,E] and
    `given` [B,K,3H], the part of the gates that the embeddings give."""
    keys, values, beyond = sources
    state_weight, state_bias, context_weight, v = loop
    flat = state.flatten(0, 1)
    query, *from_state = torch.addmm(state_bias, flat, state_weight).split(widths(state, v), 1)
    query = query.unflatten(0, state.shape[:2])
    scores = torch.tanh(keys[:, None] + query[:, :, None]) @ v
    attention = torch.softmax(scores + beyond[:, None], 2)
    context = torch.bmm(attention, values).flatten(0, 1)
    gates = torch.addmm(given.flatten(0, 1), context, context_weight)
    state = gru(flat, gates, *from_state)
    rows = torch.cat([state, context, embedded.flatten(0, 1)], 1)
    return functional.linear(read_out(rows, *readout), *output), state


class Searcher:
    def __init__(self, translator, compiled=False):
        self.translator = translator
        self.next_logits = next_logits
        if compiled:
            self.next_logits = torch.compile(next_logits, dynamic=True)

    @torch.inference_mode()
    def translate(self, sources, beam, sentences=64, length_penalty=1.0):
        """Translates each list of ids, and returns a Translation for each."""
        self.translator.eval()
        order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
        results = [None] * len(sources)
        for first in range(0, len(order), sentences):
            numbers = order[first : first + sentences]
            block = Block(self, [sources[n] for n in numbers], beam, length_penalty)
            for n, result in zip(numbers, block.run()):
                results[n] = result
        return results


class Block:
    """The search for some sentences. Axis 0 of each tensor has the sentences not yet done."""

    def __init__(self, searcher, sources, beam, length_penalty):
        self.searcher, self.K, self.penalty = searcher, beam, length_penalty
        translator = self.translator = searcher.translator
        self.results = [None] * len(sources)
        self.numbers = torch.arange(len(sources))
        lengths = torch.tensor([len(source) for source in sources])
        self.most = 2 * lengths + 10
        self.sources, state = translator.encode(torch.from_numpy(padded(sources)), lengths)
        self.loop = translator.loop_weights()
        B = len(sources)
        self.state = state[:, None].repeat(1, beam, 1)
        self.last = torch.full((B, beam), START)
        self.tokens = torch.full((B, beam, int(self.most.max())), PADDING)
        self.total = torch.full((B, beam), -math.inf)
        self.total[:, 0] = 0
        self.best = torch.full((B,), -math.inf)  # the best score of hypotheses that have ended
        self.best_total = torch.zeros(B)
        self.best_tokens = self.tokens[:, 0].clone()
        self.ended = torch.zeros(B, dtype=torch.long)

    def run(self):
        length = 0
        while len(self.numbers):
            length += 1
            logits = self.step()
            done = self.extend_one(logits, length) if self.K == 1 else self.extend(logits, length)
            if done.any():
                self.finish(done)
        return self.results

    def step(self):
        """Computes the logits [B K,V] of the next tokens, and updates the states."""
        translator = self.translator
        embedded = translator.target_embedding(self.last)
        readout = translator.readout.weight, translator.readout.bias
        output = translator.output.weight, translator.output.bias
        logits, state = self.searcher.next_logits(
            self.state,
            embedded,
            translator.given(embedded),
            self.sources,
            self.loop,
            readout,
            output,
        )
        self.state = state.unflatten(0, self.last.shape)
        return logits

    def extend_one(self, logits, length):
        """Adds the likeliest token (greedy search). Returns whether each sentence is done."""
        normaliser = logits.logsumexp(1)
        logits[:, :END] = -math.inf
        largest, token = logits.max(1)
        self.total += (largest - normaliser)[:, None]
        self.last = token[:, None]
        self.tokens[:, 0, length - 1] = token
        return (token == END) | (length >= self.most)

    def extend(self, logits, length):
        """Keeps the best K continuations that have not ended: of 2 K, since up to K are ends.

        Returns whether each sentence is done."""
        K, wanted = self.K, 2 * self.K
        normaliser = logits.logsumexp(1, keepdim=True)
        logits[:, :END] = -math.inf
        row_best, row_tokens = logits.topk(wanted, 1)
        totals = self.total.flatten()[:, None] + (row_best - normaliser)
        best, places = totals.view(-1, K * wanted).topk(wanted, 1)
        parents = places.div(wanted, rounding_mode="floor")
        tokens = row_tokens.view(-1, K * wanted).gather(1, places)
        ends = tokens == END
        self.take_ends(best, parents, ends, length)
        order = (torch.arange(wanted) + wanted * ends).argsort(1)[:, :K]
        parents = parents.gather(1, order)
        self.last = tokens.gather(1, order)
        self.total = best.gather(1, order)
        self.state = self.state.gather(1, parents[:, :, None].expand_as(self.state))
        self.tokens = self.tokens.gather(1, parents[:, :, None].expand_as(self.tokens))
        self.tokens[:, :, length - 1] = self.last
        best_has_ended = ~(self.total.amax(1) / length**self.penalty > self.best)
        return ((self.ended >= K) & best_has_ended) | (length >= self.most)

    def take_ends(self, totals, parents, ends, length):
        """Records the hypotheses whose ends are among the K best continuations."""
        ends = ends[:, : self.K]
        if not ends.any():
            return
        self.ended += ends.sum(1)
        scores = torch.where(ends, totals[:, : self.K] / length**self.penalty, -math.inf)
        score, place = scores.max(1)
        better = (score > self.best).nonzero()[:, 0]
        place = place[better, None]
        self.best[better] = score[better]
        self.best_total[better] = totals[better].gather(1, place)[:, 0]
        parent = parents[better].gather(1, place)[:, 0]
        self.best_tokens[better] = self.tokens[better, parent]
        self.best_tokens[better, length - 1] = END

    def finish(self, done):
        """Stores results of the sentences that are done, and removes these from the tensors."""
        has_ended = (self.best > -math.inf)[done, None]
        tokens = torch.where(has_ended, self.best_tokens[done], self.tokens[done, 0])
        totals = torch.where(has_ended[:, 0], self.best_total[done], self.total[done, 0])
        for number, row, total in zip(
            self.numbers[done].tolist(), tokens.tolist(), totals.tolist()
        ):
            length = row.index(PADDING) if PADDING in row else len(row)
            self.results[number] = Translation(row[:length], total)
        rest = (~done).nonzero()[:, 0]
        for name in ("numbers", "most", "state", "last", "tokens", "total"):
            setattr(self, name, getattr(self, name)[rest])
        for name in ("best", "best_total", "best_tokens", "ended"):
            setattr(self, name, getattr(self, name)[rest])
        self.sources = tuple(x[rest] for x in self.sources)
