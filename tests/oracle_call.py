# SPDX-License-Identifier: Apache-2.0
"""Converts a caller's arrays, of any rank or packed, to dense blocks, and the results back.

evaluate(options, inputs) -> outputs by name; gradients(options, inputs) -> gradients by name.
inputs: dict of arrays by the names in the cases of oracle.py; options: the Options below.
"""
from dataclasses import dataclass
from typing import Optional

import numpy as np

from oracle_attention import (Block, backward, forward, mask_mod, top_is_certain, top_of_rows)
from oracle_philox import dropout_factors
from oracle_rows import RowMaps, apply, back
from oracle_sums import sums_of

PARAMETERS = {"bilinear_w": 2, "additive_wq": 2, "additive_wk": 2, "additive_v": 1,
              "additive_b": 1}  # rank without the head axis
GAINS = ("norm_q", "norm_k")  # of the queries' and of the keys' norm, [D] or one for each head
# {incoming gradient: its output}
GRADIENT_NAMES = {"dout": "out", "dlse": "lse", "dweights": "weights",
                  "drow_weights": "row_weights"}
DIFFERENTIABLE = ("q", "k", "v", "bias", "alibi", "sinks", *PARAMETERS, *GAINS)


@dataclass(frozen=True)
class Options:
    """The `set` lines of a case. diagonal: None (bottom_right), "top_left" or a number."""
    norm: Optional[float] = None       # eps of the QK-norm
    rotary: Optional[tuple] = None     # ("halves" or "neighbours", base, width)
    score: str = "scaled_dot"
    scale: Optional[float] = None
    softcap: float = 0.0
    mods: tuple = ()
    diagonal: object = None
    causal: bool = False
    window: Optional[tuple] = None
    mask_mods: tuple = ()
    dropout: Optional[tuple] = None    # (p, seed)
    top: int = 0
    packed: bool = False


def unbroadcast(gradient, shape):
    """Sums a gradient to the shape its input had before broadcasting."""
    extra = gradient.ndim - len(shape)
    gradient = gradient.sum(axis=tuple(range(extra)))
    stretched = tuple(n for n, size in enumerate(shape) if size == 1 != gradient.shape[n])
    return gradient.sum(axis=stretched, keepdims=True)


# ---- ranks -------------------------------------------------------------------------------------


class Dense:
    """How the arrays of an unpacked call map to [B,heads,T,channels]."""

    def __init__(self, q, k, v):
        ranks = {q.ndim, k.ndim, v.ndim}
        self.headless = ranks in ({2}, {3})
        shapes = [self.aligned_shape(x) for x in (q, k, v)]
        heads = [shape[-3] for shape in shapes]
        stretch = len(ranks) > 1
        self.key_heads = max(heads[1:]) if stretch else heads[1]
        self.heads = self.key_heads if stretch and heads[0] == 1 else heads[0]
        self.batch = np.broadcast_shapes(*(shape[:-3] for shape in shapes))
        self.lead = self.batch if self.headless else (*self.batch, self.heads)
        self.flat = int(np.prod(self.batch, dtype=np.int64))
        self.queries, self.keys = q.shape[-2], k.shape[-2]

    def aligned_shape(self, x):
        """x's shape with a head axis at -3."""
        if self.headless:
            return (*x.shape[:-2], 1, *x.shape[-2:])
        return (1,) * (3 - x.ndim) + x.shape

    def spread(self, x, heads):
        """x -> [B,heads,T,C], then each key head once per query head: [B,H,T,C]."""
        aligned = x.reshape(self.aligned_shape(x))
        full = np.broadcast_to(aligned, (*self.batch, heads, *x.shape[-2:]))
        full = full.reshape(self.flat, heads, *x.shape[-2:])
        return full if heads == self.heads else np.repeat(full, self.heads // heads, axis=1)

    def gather(self, gradient, x, heads):
        """The gradient of x, in its own shape, from that of spread(x, heads), [B,H,T,C]."""
        tail = x.shape[-2:]
        if heads != self.heads:
            gradient = gradient.reshape(self.flat, heads, self.heads // heads, *tail).sum(axis=2)
        full = gradient.reshape(*self.batch, heads, *tail)
        return unbroadcast(full, self.aligned_shape(x)).reshape(x.shape)

    def spread_matrix(self, x):
        """A mask or bias that broadcasts to the weights -> [B,H,Tq,Tk]."""
        full = np.broadcast_to(x, (*self.lead, self.queries, self.keys))
        return full.reshape(self.flat, self.heads, self.queries, self.keys)

    def gather_matrix(self, gradient, x):
        """The gradient of x from that of spread_matrix(x)."""
        return unbroadcast(gradient.reshape(*self.lead, self.queries, self.keys), x.shape)

    def result(self, x):
        """[B,H,...] -> the rank of the call's results."""
        return x.reshape(*self.lead, *x.shape[2:])

    def incoming(self, x):
        """The inverse of result."""
        return x.reshape(self.flat, self.heads, *x.shape[len(self.lead):])


# ---- one block from canonical q, k, v ----------------------------------------------------------


def score_options(options, inputs, heads, width):
    """Block arguments that do not depend on the batch."""
    default = 1 / np.sqrt(width) if options.score == "scaled_dot" else 1.0
    params = {}
    for name, rank in PARAMETERS.items():
        if name in inputs:
            x = inputs[name]
            params[name] = np.broadcast_to(x, (heads, *x.shape[x.ndim - rank:]))
    return {"score": "dot" if options.score == "scaled_dot" else options.score,
            "scale": default if options.scale is None else options.scale,
            "softcap": options.softcap, "mods": options.mods, "params": params,
            "sinks": inputs.get("sinks")}


def diagonal_offsets(options, inputs, batches, queries, keys):
    """o for each batch entry named in batches, [B,1,1,1]."""
    if "offsets" in inputs:
        o = inputs["offsets"][batches]
    elif options.diagonal is None:
        o = np.full(len(batches), keys - queries)
    else:
        o = np.full(len(batches), 0 if options.diagonal == "top_left" else options.diagonal)
    return o.reshape(-1, 1, 1, 1)


def allowed_pairs(options, inputs, batches, offsets, queries, keys):
    """The masks that need no broadcasting of leading axes, [B,1,Tq,Tk]."""
    i, j = np.arange(queries)[:, None], np.arange(keys)
    allowed = np.ones((len(batches), 1, queries, keys), dtype=bool)
    if options.causal:
        allowed &= j <= i + offsets
    if options.window is not None:
        left, right = options.window
        if left >= 0:
            allowed &= j >= i + offsets - left
        if right >= 0:
            allowed &= j <= i + offsets + right
    if "padding" in inputs:
        allowed &= ~inputs["padding"][:, None, None, :]
    if "key_lengths" in inputs:
        lengths = inputs["key_lengths"][batches]
        allowed &= j < lengths.reshape(len(batches), 1, -1, 1)
    for name in options.mask_mods:
        allowed &= mask_mod(name, queries, keys)
    return allowed


def row_maps(options, inputs, side, positions, heads):
    """The maps of q or k (`side`); positions [B,T]."""
    gain = inputs.get("norm_" + side)
    if gain is not None:  # norm_k may have one per key head: repeated for the query heads
        gain = np.repeat(gain, heads // len(gain), axis=0) if gain.ndim == 2 \
            else np.broadcast_to(gain, (heads, *gain.shape))
    if options.rotary is None:
        return RowMaps(options.norm, gain)
    form, base, width = options.rotary
    frequencies = inputs.get("frequencies", base ** (-2.0 * np.arange(width // 2) / width))
    return RowMaps(options.norm, gain, positions[..., None] * frequencies, form == "halves")


def positions_of(inputs, side, batches, default, cut):
    """Positions [B,T] of the batch entries' rows, or of the packed sequence with the rows `cut`."""
    given = inputs.get(side + "_positions")
    if given is None:
        return default
    return given[batches] if given.ndim == 2 else np.broadcast_to(given[cut], default.shape)


def make_block(options, inputs, batches, q, k, v, dense=None, cuts=(slice(None),) * 2):
    """The block of the batch entries, or of the one packed sequence, listed in `batches`.

    q, k, v are [B,H,T,C]. dense is the Dense of an unpacked call; cuts are the rows of a packed
    sequence in the call's q and k.
    """
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    offsets = diagonal_offsets(options, inputs, batches, queries, keys)
    maps, mapped = {}, {}
    starts = {"q": offsets[:, 0, 0], "k": np.zeros((len(batches), 1), np.int64)}
    for side, x, cut in (("q", q, cuts[0]), ("k", k, cuts[1])):
        positions = np.arange(x.shape[2]) + starts[side]
        maps[side] = row_maps(options, inputs, side,
                              positions_of(inputs, side, batches, positions, cut), heads)
        mapped[side] = apply(maps[side], x)
    allowed = allowed_pairs(options, inputs, batches, offsets, queries, keys)
    allowed = np.broadcast_to(allowed, (len(batches), heads, queries, keys))
    bias = None
    if "keep" in inputs:
        allowed = allowed & dense.spread_matrix(inputs["keep"])
    if "bias" in inputs:
        bias = dense.spread_matrix(inputs["bias"])
    alibi = inputs.get("alibi")
    if alibi is not None:
        alibi = alibi[batches] if alibi.ndim == 2 \
            else np.broadcast_to(alibi, (len(batches), heads))
    i, j = np.arange(queries)[:, None], np.arange(keys)
    dropout = np.ones(allowed.shape)
    if options.dropout is not None:
        dropout = dropout_factors(*options.dropout, batches, np.arange(heads), i[:, 0], j)
    block = Block(q=mapped["q"], k=mapped["k"], v=v, allowed=allowed, bias=bias, alibi=alibi,
                  dropout=dropout, distance=abs(i + offsets - j),
                  **score_options(options, inputs, heads, q.shape[-1]))
    return MappedBlock(block, maps, {"q": q, "k": k})


@dataclass
class MappedBlock:
    """A block of mapped rows, the maps, and the original rows."""
    block: Block
    maps: dict
    rows: dict

    def backward(self, state, *incoming):
        """The gradients of the block's arrays and of the gains, and of q and k before the maps."""
        grads = backward(self.block, state, *incoming)
        for side, axis in (("q", 3), ("k", 2)):
            used = state.live.any(axis=axis)
            grads[side], grads["norm_" + side] = back(self.maps[side], self.rows[side],
                                                      grads[side], used)
        return grads


def gather_gains(grads, inputs, key_heads):
    """Sums the gains' gradients [H,D] to the shapes of the gains; norm_k may have key heads."""
    for name, x in ((name, inputs[name]) for name in GAINS if name in inputs):
        per_head = grads[name]
        if name == "norm_k":
            per_head = per_head.reshape(key_heads, -1, per_head.shape[-1]).sum(axis=1)
        grads[name] = per_head if x.ndim == 2 else per_head.sum(axis=0)


# ---- dense and packed calls --------------------------------------------------------------------


class DenseCall:
    """One block with all batch entries."""

    def __init__(self, options, inputs):
        self.inputs, self.top = inputs, options.top
        q, k, v = (inputs[name] for name in "qkv")
        self.form = form = Dense(q, k, v)
        self.mapped = make_block(
            options, inputs, np.arange(form.flat), form.spread(q, form.heads),
            form.spread(k, form.key_heads), form.spread(v, form.key_heads), form)
        self.state = forward(self.mapped.block)

    def states(self):
        return [self.state]

    def outputs(self):
        state = self.state
        found = {"out": state.out, "lse": state.lse, "row_max": state.row_max,
                 "weights": state.weights, "dropped_weights": state.dropped,
                 "scores_raw": state.raw, "scores_capped": state.capped,
                 "scores_masked": np.where(state.live, state.final, -np.inf),
                 **sums_of(state, self.mapped.block.v, self.inputs.get("rows"))}
        if "rows" in self.inputs:
            found["row_weights"] = state.weights[:, :, self.inputs["rows"]]
        if self.top:
            found["top_weights"], found["top_keys"] = top_of_rows(state, self.top)
        return {name: self.form.result(x) for name, x in found.items()}

    def incoming(self):
        """dout, dlse, dweights of the block."""
        inputs, state = self.inputs, self.state
        dlse, dweights = np.zeros(state.lse.shape), np.zeros(state.weights.shape)
        if "dlse" in inputs:
            dlse = self.form.incoming(inputs["dlse"])
        if "dweights" in inputs:
            dweights = dweights + self.form.incoming(inputs["dweights"])
        if "drow_weights" in inputs:
            np.add.at(dweights, (slice(None), slice(None), inputs["rows"]),
                      self.form.incoming(inputs["drow_weights"]))
        return self.form.incoming(inputs["dout"]), dlse, dweights

    def gradients(self):
        form, inputs = self.form, self.inputs
        grads = self.mapped.backward(self.state, *self.incoming())
        gather_gains(grads, inputs, form.key_heads)
        for name, heads in (("q", form.heads), ("k", form.key_heads), ("v", form.key_heads)):
            grads[name] = form.gather(grads[name], inputs[name], heads)
        if "bias" in inputs:
            grads["bias"] = form.gather_matrix(grads["bias"], inputs["bias"])
        return grads


class PackedCall:
    """One block per sequence; q [sum Tq,H,D], k, v [sum Tk,G,.]."""

    def __init__(self, options, inputs):
        self.inputs, self.top = inputs, options.top
        self.heads, self.key_heads = inputs["q"].shape[1], inputs["k"].shape[1]
        cuts = {"q": inputs["cu_seqlens_q"], "k": inputs["cu_seqlens_k"]}
        cuts["v"] = cuts["k"]
        self.blocks = []
        for b in range(len(cuts["q"]) - 1):
            at = {name: slice(cuts[name][b], cuts[name][b + 1]) for name in "qkv"}
            q, k, v = (self.spread(inputs[name][at[name]]) for name in "qkv")
            self.blocks.append(make_block(options, inputs, np.array([b]), q, k, v,
                                          cuts=(at["q"], at["k"])))
        self.all_states = [forward(mapped.block) for mapped in self.blocks]

    def spread(self, x):
        """[T,heads,C] -> [1,H,T,C]."""
        return np.repeat(x, self.heads // x.shape[1], axis=1).transpose(1, 0, 2)[None]

    def gather(self, parts, heads):
        """The gradient [sum T,heads,C] of x, from [1,H,T,C] of each sequence's spread(x)."""
        group = self.heads // heads
        folded = [part[0].reshape(heads, group, *part.shape[2:]).sum(axis=1) for part in parts]
        return np.concatenate(folded, axis=1).transpose(1, 0, 2)

    def states(self):
        return self.all_states

    def outputs(self):
        states = self.all_states
        found = {"out": self.gather([state.out for state in states], self.heads)}
        rows = {"lse": [s.lse for s in states], "row_max": [s.row_max for s in states]}
        sums = [sums_of(s, mapped.block.v, None) for s, mapped in zip(states, self.blocks)]
        rows |= {name: [x[name] for x in sums] for name in ("entropy", "column_sums", "value_sums")}
        found["pooled"] = np.concatenate([x["pooled"] for x in sums])
        if self.top:
            tops = [top_of_rows(state, self.top) for state in states]
            rows["top_weights"], rows["top_keys"] = zip(*tops)
        for name, parts in rows.items():
            found[name] = np.concatenate([part[0] for part in parts], axis=1)
        return found

    def gradients(self):
        inputs, parts = self.inputs, []
        cuts = inputs["cu_seqlens_q"]
        for b, (block, state) in enumerate(zip(self.blocks, self.all_states)):
            here = slice(cuts[b], cuts[b + 1])
            dlse = np.zeros(state.lse.shape)
            if "dlse" in inputs:
                dlse = inputs["dlse"][:, here][None]
            parts.append(block.backward(state, inputs["dout"][here].transpose(1, 0, 2)[None],
                                        dlse, np.zeros(state.weights.shape)))
        grads = {name: sum(part[name] for part in parts) for name in parts[0]
                 if name not in ("q", "k", "v", "bias", "alibi")}
        if "alibi" in inputs:
            grads["alibi"] = np.concatenate([part["alibi"] for part in parts])
        for name, heads in (("q", self.heads), ("k", self.key_heads), ("v", self.key_heads)):
            grads[name] = self.gather([part[name] for part in parts], heads)
        gather_gains(grads, inputs, self.key_heads)
        return grads


def call(options, inputs):
    """Runs the forward pass."""
    with np.errstate(all="ignore"):
        return (PackedCall if options.packed else DenseCall)(options, inputs)


def evaluate(options, inputs):
    """All outputs legal for the call, by name."""
    with np.errstate(all="ignore"):
        return call(options, inputs).outputs()


def gradients(options, inputs):
    """{"dq": ..., ...}: each with the shape of its input."""
    with np.errstate(all="ignore"):
        grads = call(options, inputs).gradients()
    return {"d" + name: unbroadcast(grads[name], inputs[name].shape)
            for name in DIFFERENTIABLE if name in inputs}


def order_is_certain(options, inputs):
    """Whether the case may request its largest weights."""
    with np.errstate(all="ignore"):
        return all(top_is_certain(state, options.top) for state in call(options, inputs).states())


def live_share(options, inputs):
    """Share of live pairs."""
    live = [state.live for state in call(options, inputs).states()]
    return sum(x.sum() for x in live) / max(1, sum(x.size for x in live))
