# SPDX-License-Identifier: Apache-2.0
"""Attention in plain dense float64, forward and backward, on arrays of a single layout.

q, k, v and out have the axes [B,H,T,channels]: one key head per query head, all broadcasting done.
oracle_call.py converts a caller's arrays to this layout and the results back. The forward pass also
accepts complex inputs, in which it is analytic: oracle_check.py checks gradients by the complex
step.
"""
from dataclasses import dataclass, field
from typing import Optional

import numpy as np

INF = np.inf


@dataclass
class Block:
    """One dense problem. Parameters of the score carry a head axis, [H,...]."""
    score: str
    scale: float
    q: np.ndarray                      # [B,H,Tq,Dq]
    k: np.ndarray                      # [B,H,Tk,Dk]
    v: np.ndarray                      # [B,H,Tk,E]
    allowed: np.ndarray                # bool [B,H,Tq,Tk]: allowed by every mask
    distance: np.ndarray               # |i + o - j|, [B,1,Tq,Tk]
    dropout: np.ndarray                # 0 or 1/(1-p), [B,H,Tq,Tk]
    params: dict = field(default_factory=dict)
    softcap: float = 0.0
    mods: tuple = ()
    bias: Optional[np.ndarray] = None  # [B,H,Tq,Tk]
    alibi: Optional[np.ndarray] = None  # [B,H]
    sinks: Optional[np.ndarray] = None  # [H]


@dataclass
class State:
    """Results of the forward pass, [B,H,Tq,Tk]; sink_weight, lse and row_max are [B,H,Tq]."""
    raw: np.ndarray
    capped: np.ndarray
    mod_inputs: list
    final: np.ndarray      # after mods, bias and ALiBi
    live: np.ndarray
    weights: np.ndarray
    sink_weight: np.ndarray
    lse: np.ndarray
    row_max: np.ndarray
    dropped: np.ndarray    # weights after dropout
    out: np.ndarray        # [B,H,Tq,E]


# ---- named score and mask functions ------------------------------------------------------------


def index_grids(shape):
    """h, i, j as arrays that broadcast to [B,H,Tq,Tk]."""
    heads, queries, keys = shape[-3:]
    return (np.arange(heads)[:, None, None], np.arange(queries)[:, None], np.arange(keys))


def apply_mod(name, s):
    """A named score function, s [B,H,Tq,Tk]."""
    h, i, j = index_grids(s.shape)
    if name == "decay":
        return s - 0.25 * (h + 1) * abs(i - j)
    if name == "quad":
        return s + 0.05 * s * s
    if name == "leaky":
        return np.where(s.real >= 0, s, 0.5 * s)
    raise ValueError(name)


def mod_slope(name, s):
    """Derivative of the named score function at s."""
    if name == "decay":
        return np.ones_like(s)
    if name == "quad":
        return 1 + 0.1 * s
    if name == "leaky":
        return np.where(s >= 0, 1.0, 0.5)
    raise ValueError(name)


def mask_mod(name, queries, keys):
    """A named mask function, bool [Tq,Tk]."""
    i, j = np.arange(queries)[:, None], np.arange(keys)
    if name == "band3":
        return abs(i - j) <= 3
    if name == "doc":
        return i // 3 == j // 3
    raise ValueError(name)


# ---- scores ------------------------------------------------------------------------------------


def projected(x, w):
    """w_h x_t for each row: x [B,H,T,D], w [H,U,D] -> [B,H,T,U]."""
    return np.einsum("bhtd,hud->bhtu", x, w)


def additive_units(block):
    """tanh((Wq q_i + b)_u + (Wk k_j)_u), [B,H,Tq,Tk,U]."""
    a = projected(block.q, block.params["additive_wq"])
    if "additive_b" in block.params:
        a = a + block.params["additive_b"][:, None, :]
    c = projected(block.k, block.params["additive_wk"])
    return np.tanh(a[:, :, :, None, :] + c[:, :, None, :, :])


def lengths(x):
    """|x_t| of each row, [B,H,T,1], without absolute values, which are not analytic."""
    return np.sqrt((x * x).sum(axis=-1, keepdims=True))


def over_lengths(x, by):
    """x_t / |by_t| of each row, 0 where by_t is 0."""
    size = lengths(by)
    return np.where(size == 0, 0, x / np.where(size == 0, 1, size))


def plain_scores(block):
    """Scores before the scale, [B,H,Tq,Tk]."""
    q = block.q
    if block.score == "cosine":
        return np.einsum("bhid,bhjd->bhij", over_lengths(q, q), over_lengths(block.k, block.k))
    if block.score == "additive":
        return np.einsum("bhiju,hu->bhij", additive_units(block), block.params["additive_v"])
    if block.score == "bilinear":
        q = np.einsum("bhid,hde->bhie", q, block.params["bilinear_w"])
    return np.einsum("bhid,bhjd->bhij", q, block.k)


# ---- forward -----------------------------------------------------------------------------------


def final_scores(block):
    """raw, capped, inputs of the score functions, final scores."""
    raw = plain_scores(block) * block.scale
    capped = block.softcap * np.tanh(raw / block.softcap) if block.softcap else raw
    s, mod_inputs = capped, []
    for name in block.mods:
        mod_inputs.append(s)
        s = apply_mod(name, s)
    if block.bias is not None:
        s = s + block.bias
    if block.alibi is not None:
        s = s - block.alibi[..., None, None] * block.distance
    return raw, capped, mod_inputs, s


def live_pairs(block, final):
    """The pairs that all masks allow and whose bias and final score are not -inf."""
    live = block.allowed & (final.real != -INF)
    if block.bias is not None:
        live &= block.bias.real != -INF
    return live


def softmax_rows(final, live, sinks):
    """weights [B,H,Tq,Tk]; sink weight, lse, row maximum [B,H,Tq]."""
    any_live = live.any(axis=-1)
    sink = np.full(final.shape[1], -INF) if sinks is None else sinks
    sink = np.broadcast_to(sink[:, None], any_live.shape)
    has_sink = sink.real != -INF

    live_max = np.max(np.where(live, final.real, -INF), axis=-1, initial=-INF)
    row_max = np.maximum(live_max, sink.real)
    broken = any_live & (np.isnan(row_max) | (row_max == INF))
    shift = np.where(np.isfinite(row_max), row_max, 0.0)

    e = np.where(live, np.exp(np.where(live, final, 0.0) - shift[..., None]), 0.0)
    e_sink = np.where(has_sink, np.exp(np.where(has_sink, sink, 0.0) - shift), 0.0)
    total = e.sum(axis=-1) + e_sink
    total = np.where(any_live, total, 1.0)

    nan_pairs = broken[..., None] & live
    weights = np.where(nan_pairs, np.nan, np.where(live, e / total[..., None], 0.0))
    sink_weight = np.where(broken, np.nan, np.where(any_live, e_sink / total, 1.0))
    sink_weight = np.where(has_sink, sink_weight, 0.0)
    lse = np.where(broken, np.nan, np.where(any_live, shift + np.log(total), sink))
    return weights, sink_weight, lse, np.where(broken, np.nan, row_max)


def forward(block):
    """The whole forward pass of a block."""
    raw, capped, mod_inputs, final = final_scores(block)
    live = live_pairs(block, final)
    weights, sink_weight, lse, row_max = softmax_rows(final, live, block.sinks)
    dropped = np.where(block.dropout == 0, 0.0, weights * block.dropout)
    out = sum_over_keys(live, dropped, block.v)
    return State(raw, capped, mod_inputs, final, live, weights, sink_weight, lse, row_max,
                 dropped, out)


# ---- sums over live pairs and rows, whatever the others hold -----------------------------------


def sum_over_keys(live, pairs, x):
    """sum over live j of pairs_ij x_j: pairs [B,H,Tq,Tk], x [B,H,Tk,C] -> [B,H,Tq,C]."""
    return np.where(live[..., None], pairs[..., None] * x[:, :, None], 0.0).sum(axis=3)


def sum_over_queries(live, pairs, x):
    """sum over live i of pairs_ij x_i: pairs [B,H,Tq,Tk], x [B,H,Tq,C] -> [B,H,Tk,C]."""
    return np.where(live[..., None], pairs[..., None] * x[:, :, :, None], 0.0).sum(axis=2)


def sum_of_outers(used, a, x):
    """sum over batch and rows t of a_t x_t^T where used [B,H,T]: -> [H,A,X]."""
    return np.einsum("bhta,bhtx->hax", a, np.where(used[..., None], x, 0.0))


# ---- backward ----------------------------------------------------------------------------------


def backward(block, state, dout, dlse, dweights):
    """Gradients with the block's shapes; parameters and sinks per head, [H,...].

    dout [B,H,Tq,E], dlse [B,H,Tq], dweights [B,H,Tq,Tk] (into the weights before dropout).
    """
    live, p = state.live, state.weights
    dp = np.einsum("bhie,bhje->bhij", dout, block.v) * block.dropout + dweights
    dp = np.where(live, dp, 0.0)
    delta = np.where(live, p * dp, 0.0).sum(axis=-1)
    ds = np.where(live, p * (dp - delta[..., None] + dlse[..., None]), 0.0)

    grads = {"v": sum_over_queries(live, state.dropped, dout), "bias": ds}
    if block.alibi is not None:
        grads["alibi"] = (-ds * block.distance).sum(axis=(2, 3))
    if block.sinks is not None:
        dsink = np.where(block.sinks[:, None] == -INF, 0.0, state.sink_weight * (dlse - delta))
        grads["sinks"] = dsink.sum(axis=(0, 2))
    grads.update(score_gradients(block, live, score_chain(block, state, ds)))
    return grads


def score_chain(block, state, ds):
    """The gradient of plain_scores(), from ds, that of the final scores."""
    for name, s in zip(reversed(block.mods), reversed(state.mod_inputs)):
        ds = ds * mod_slope(name, s)
    if block.softcap:
        ds = ds / np.cosh(state.raw / block.softcap) ** 2
    return np.where(state.live, ds * block.scale, 0.0)


def score_gradients(block, live, ds):
    """Gradients of q, k and the score's parameters from ds [B,H,Tq,Tk]."""
    if block.score == "additive":
        return additive_gradients(block, live, ds)
    if block.score == "bilinear":
        return bilinear_gradients(block, live, ds)
    if block.score == "cosine":
        return cosine_gradients(block, live, ds)
    return {"q": sum_over_keys(live, ds, block.k), "k": sum_over_queries(live, ds, block.q)}


def cosine_gradients(block, live, ds):
    """s = q . k / (|q| |k|): ds/dq = (k / |k| - s q / |q|) / |q|, likewise for k."""
    q, k = over_lengths(block.q, block.q), over_lengths(block.k, block.k)
    weighted = np.where(live, ds * np.einsum("bhid,bhjd->bhij", q, k), 0.0)
    dq = sum_over_keys(live, ds, k) - q * weighted.sum(axis=3)[..., None]
    dk = sum_over_queries(live, ds, q) - k * weighted.sum(axis=2)[..., None]
    return {"q": np.where(live.any(axis=3)[..., None], over_lengths(dq, block.q), 0.0),
            "k": np.where(live.any(axis=2)[..., None], over_lengths(dk, block.k), 0.0)}


def bilinear_gradients(block, live, ds):
    """s = q^T W k: dq = W g with g_i = sum_j ds_ij k_j, dW = sum_i q_i g_i^T."""
    w = block.params["bilinear_w"]
    g = sum_over_keys(live, ds, block.k)
    qw = np.einsum("bhid,hde->bhie", block.q, w)
    outers = sum_of_outers(live.any(axis=3), g, block.q)
    return {"q": np.einsum("bhie,hde->bhid", g, w), "k": sum_over_queries(live, ds, qw),
            "bilinear_w": outers.transpose(0, 2, 1)}


def additive_gradients(block, live, ds):
    """s = v . t, t = tanh(Wq q + b + Wk k): dt_ij = ds_ij v (1 - t^2)."""
    params, t = block.params, additive_units(block)
    alive = live[..., None]
    dt = ds[..., None] * params["additive_v"][:, None, None, :] * (1 - t * t)
    dt = np.where(alive, dt, 0.0)
    da, dc = dt.sum(axis=3), dt.sum(axis=2)
    grads = {
        "q": np.einsum("bhiu,hud->bhid", da, params["additive_wq"]),
        "k": np.einsum("bhju,hud->bhjd", dc, params["additive_wk"]),
        "additive_wq": sum_of_outers(live.any(axis=3), da, block.q),
        "additive_wk": sum_of_outers(live.any(axis=2), dc, block.k),
        "additive_v": np.where(alive, ds[..., None] * t, 0.0).sum(axis=(0, 2, 3)),
    }
    if "additive_b" in params:
        grads["additive_b"] = da.sum(axis=(0, 2))
    return grads


# ---- the largest weights -----------------------------------------------------------------------


def top_of_rows(state, count):
    """The count largest weights of each row and their keys, [B,H,Tq,count] each."""
    live, weights = state.live, state.weights
    order = np.argsort(np.where(live, -weights, INF), axis=-1, kind="stable")[..., :count]
    found = np.take_along_axis(live, order, axis=-1)
    values = np.where(found, np.take_along_axis(weights, order, axis=-1), 0.0)
    keys = np.where(found, order, -1)
    missing = [(0, 0)] * 3 + [(0, count - order.shape[-1])]
    values, keys = np.pad(values, missing), np.pad(keys, missing, constant_values=-1)
    broken = np.isnan(np.where(live, weights, 0.0)).any(axis=-1)[..., None]
    return np.where(broken, np.nan, values), np.where(broken, -1, keys)


def top_is_certain(state, count):
    """True when no rounding can change the order: neighbours are equal by construction
    (same raw and final score) or clearly apart."""
    weights = np.where(state.live, state.weights, 0.0)
    for at in np.ndindex(*weights.shape[:-1]):
        row, live = weights[at], state.live[at]
        order = [j for j in np.argsort(-row, kind="stable") if live[j]][:count + 1]
        for a, b in zip(order, order[1:]):
            tie = state.raw[at][a] == state.raw[at][b] and state.final[at][a] == state.final[at][b]
            if not tie and not np.isnan(row[a]) and row[a] - row[b] <= 1e-9 * row[a]:
                return False
    return True
