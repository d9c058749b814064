# SPDX-License-Identifier: Apache-2.0
"""The translator of docs/translator-reference.md, with additive attention, in PyTorch.

translator_peers.py measures it. The decoder's loop is over target positions. Outside the loop, all
positions are computed at once: embeddings, the keys' projection, the embeddings' part of the gates,
and, except for padding, readout and output. In the loop, query, gates and new state come from one
product with the state. B sentences, S source and T target positions, H hidden units, C = 2 H,
U units of the attention, E channels of the embeddings, R target tokens without padding.
"""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from translator_data import PADDING, START, padded


def step(state, given, keys, values, beyond, loop):
    """Returns s_i [B,H], c_i [B,C] of s_{i-1} [B,H], given() [B,3H], keys [B,S,U], values [B,S,C].

    `beyond` [B,S] is 0 for tokens and -inf for padding; `loop` is loop_weights().
    """
    state_weight, state_bias, context_weight, v = loop
    query, *from_state = torch.addmm(state_bias, state, state_weight).split(widths(state, v), 1)
    scores = torch.tanh(keys + query[:, None]) @ v
    attention = torch.softmax(scores + beyond, 1)
    context = torch.bmm(attention[:, None], values)[:, 0]
    return gru(state, torch.addmm(given, context, context_weight), *from_state), context


def widths(state, v):
    """The widths of the parts of the product with the state: query, two gates, new state."""
    hidden = state.shape[-1]
    return [v.shape[0], 2 * hidden, hidden]


def gru(state, from_input, gates_of_state, new_of_state):
    """nn.GRUCell after its two products. Uses split(), since gradients of slices are padded."""
    hidden = state.shape[1]
    gates, new = from_input.split([2 * hidden, hidden], 1)
    reset, update = torch.sigmoid(gates + gates_of_state).chunk(2, 1)
    return torch.lerp(torch.tanh(torch.addcmul(new, reset, new_of_state)), state, update)


def read_out(rows, weight, bias):
    """The readout [R,H] of rows [R,H+C+E]: the larger of each two neighbours of a product."""
    return functional.linear(rows, weight, bias).unflatten(1, (-1, 2)).amax(2)


def cross_entropy(largest, targets, weight, bias, smoothing):
    logits = functional.linear(largest, weight, bias)
    return functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)


class Batch:
    """Sentence pairs as tensors."""

    def __init__(self, pairs):
        self.source = torch.from_numpy(padded([pair.source for pair in pairs]))
        self.lengths = torch.tensor([len(pair.source) for pair in pairs])
        targets = torch.from_numpy(padded([pair.target for pair in pairs])).T.contiguous()
        self.before = torch.cat([torch.full_like(targets[:1], START), targets[:-1]])  # [T,B]
        self.rows = (targets.flatten() != PADDING).nonzero()[:, 0]
        self.targets = targets.flatten()[self.rows]


class Translator(nn.Module):
    """The translator. If `compiled`, torch.compile compiles the functions for varying sizes."""

    def __init__(self, model, compiled=False):
        super().__init__()
        sizes = {name: array.shape for name, array in model.arrays.items()}
        (units, hidden), embedding = sizes["attention.W_q"], sizes["source_embedding.weight"][1]
        self.sizes = hidden, units, embedding
        self.dropout = float(model.settings["dropout"])
        self.smoothing = float(model.settings["label_smoothing"])
        self.source_embedding = nn.Embedding(*sizes["source_embedding.weight"])
        self.encoder = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)
        self.start = nn.Linear(hidden, hidden)
        self.attention = nn.ParameterDict(
            {name: torch.empty(sizes[f"attention.{name}"]) for name in ("W_q", "W_k", "v")}
        )
        self.target_embedding = nn.Embedding(*sizes["target_embedding.weight"])
        self.decoder = nn.GRUCell(2 * hidden + embedding, hidden)
        self.readout = nn.Linear(3 * hidden + embedding, 2 * hidden)
        self.output = nn.Linear(hidden, sizes["output.weight"][0])
        functions = step, read_out, cross_entropy
        if compiled:
            functions = [torch.compile(function, dynamic=True) for function in functions]
        self.step, self.read_out, self.cross_entropy = functions
        self.load(model)

    def load(self, model):
        """Copies the parameters from a model file, where they have the same names as here."""
        arrays = {n: a for n, a in model.arrays.items() if not n.endswith("_counts")}
        self.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})

    def dropped(self, x):
        return functional.dropout(x, self.dropout, self.training)

    def encode(self, source, lengths):
        """Returns (keys, values, beyond) for step(), and s_0 [B,H], for tokens [B,S]."""
        embedded = self.dropped(self.source_embedding(source))
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        values, _ = pad_packed_sequence(states, batch_first=True)
        keys = functional.linear(values, self.attention["W_k"])
        beyond = torch.zeros(source.shape).masked_fill_(source == PADDING, -math.inf)
        return (keys, values, beyond), torch.tanh(self.start(last[1]))

    def loop_weights(self):
        """The weights and biases of the products in the loop, which are the same in all steps."""
        hidden = self.sizes[0]
        weight = torch.cat([self.attention["W_q"], self.decoder.weight_hh]).T
        bias = torch.cat([torch.zeros(self.sizes[1]), self.decoder.bias_hh])
        context_weight = self.decoder.weight_ih[:, : 2 * hidden].T
        return weight, bias, context_weight, self.attention["v"]

    def given(self, embedded):
        """The part of gates and new state [...,3H] that comes from embeddings [...,E]."""
        weight = self.decoder.weight_ih[:, 2 * self.sizes[0] :]
        return functional.linear(embedded, weight, self.decoder.bias_ih)

    def loss(self, batch):
        """The sum of the losses of the batch's target tokens."""
        sources, state = self.encode(batch.source, batch.lengths)
        embedded = self.dropped(self.target_embedding(batch.before))
        weights = self.loop_weights()
        states, contexts = [], []
        for gates in self.given(embedded).unbind():
            state, context = self.step(state, gates, *sources, weights)
            states.append(state)
            contexts.append(context)
        rows = torch.cat([torch.stack(states), torch.stack(contexts), embedded], 2)
        rows = rows.flatten(0, 1).index_select(0, batch.rows)
        largest = self.dropped(self.read_out(rows, self.readout.weight, self.readout.bias))
        smoothing = self.smoothing if self.training else 0.0
        return self.cross_entropy(
            largest, batch.targets, self.output.weight, self.output.bias, smoothing
        )


# ---- training ------------------------------------------------------------------------------------


def learning_rate(settings, update):
    """The rate of app/translator/optimiser/schedule.h: a warm-up, then an inverse square root."""
    past = update - settings["warmup"]
    if past < 0:
        return settings["learning_rate"] * update / settings["warmup"]
    return settings["learning_rate"] / math.sqrt(1 + past / settings["decay"])


class Training:
    """Updates of a translator as by `qkv train`, except that dropout has other random numbers."""

    def __init__(self, translator, settings, kind):
        self.translator, self.settings, self.updates = translator, settings, 0
        self.adam = torch.optim.Adam(
            translator.parameters(),
            betas=(settings["beta1"], settings["beta2"]),
            eps=settings["epsilon"],
            **{kind: True},
        )

    def update(self, pairs):
        """Makes an update. Returns the mean loss per target token and the number of tokens."""
        batch = Batch(pairs)
        tokens = len(batch.targets)
        loss = self.translator.loss(batch) / tokens
        self.adam.zero_grad(set_to_none=True)
        loss.backward()
        parameters = list(self.translator.parameters())
        nn.utils.clip_grad_norm_(parameters, self.settings["clip"], foreach=True)
        self.updates += 1
        for group in self.adam.param_groups:
            group["lr"] = learning_rate(self.settings, self.updates)
        self.adam.step()
        return loss.detach(), tokens
