# SPDX-License-Identifier: Apache-2.0
"""The oracle's checks of itself.

They compare gradients with the complex step, forward rows with loops over single numbers that find
their elements by index (no broadcasting, no blocks), and results of arrays with poison (NaN or inf)
under a mask with those of clean arrays.
"""
import cmath
import math
from dataclasses import replace

import numpy as np

from oracle_call import DIFFERENTIABLE, GRADIENT_NAMES, evaluate
from oracle_philox import philox

STEP = 1e-30
GRADIENT_TOLERANCE = 1e-11
FORWARD_TOLERANCE = 1e-12


# ---- gradients ---------------------------------------------------------------------------------


def loss(case, inputs):
    """The scalar loss: the sum of the finite outputs times their incoming gradients."""
    outputs = evaluate(replace(case.options, top=0), inputs)
    total = 0.0
    for gradient, name in GRADIENT_NAMES.items():
        if gradient in inputs:
            out = outputs[name]
            total = total + (np.where(np.isfinite(out.real), out, 0.0) * inputs[gradient]).sum()
    return total


def directions(rng, x):
    """One random direction over all finite entries, and a few single entries."""
    finite = np.isfinite(x)
    yield np.where(finite, rng.standard_normal(x.shape), 0.0)
    entries = np.flatnonzero(finite)
    for n in rng.permutation(entries)[:8]:
        yield (np.arange(x.size) == n).astype(float).reshape(x.shape)


def gradient_errors(case, rng):
    """Names and relative errors of the gradients that disagree with the complex step."""
    for name in DIFFERENTIABLE:
        if name not in case.inputs:
            continue
        x, gradient = case.inputs[name], case.wants["d" + name]
        if gradient.shape != x.shape:
            yield f"d{name} has shape {gradient.shape}, {name} has {x.shape}"
            continue
        for direction in directions(rng, x):
            inputs = {**case.inputs, name: x + 1j * STEP * direction}
            expected = np.imag(loss(case, inputs)) / STEP
            terms = gradient * direction
            size = max(1.0, abs(terms).sum(), abs(gradient).max(initial=0))
            error = abs(terms.sum() - expected) / size
            if not error <= GRADIENT_TOLERANCE:
                yield f"d{name} differs from the complex step by {error:.2g}"
                break


# ---- forward, one row at a time ----------------------------------------------------------------


def entry(x, index):
    """x at an index of the array it broadcasts to, aligned from the right."""
    tail = index[len(index) - x.ndim:]
    return x[tuple(0 if size == 1 else n for n, size in zip(tail, x.shape))]


class Row:
    """The query, keys and values that one row of the result depends on."""

    def __init__(self, case, index):
        self.options, self.inputs, self.index = case.options, case.inputs, index
        q, k, v = (case.inputs[name] for name in "qkv")
        (self.packed if case.options.packed else self.dense)(q, k, v, index)

    def packed(self, q, k, v, index):
        row, self.h = index
        ends_q, ends_k = self.inputs["cu_seqlens_q"], self.inputs["cu_seqlens_k"]
        self.b = int(np.searchsorted(ends_q, row, side="right")) - 1
        first, last = ends_k[self.b], ends_k[self.b + 1]
        self.i, self.tq = int(row - ends_q[self.b]), int(ends_q[self.b + 1] - ends_q[self.b])
        self.g = g = self.h * k.shape[1] // q.shape[1]
        self.first = {"q": int(ends_q[self.b]), "k": int(first)}
        self.q, self.k, self.v = q[row, self.h], k[first:last, g], v[first:last, g]

    def dense(self, q, k, v, index):
        *lead, self.i = index
        self.tq, self.g, self.first = q.shape[-2], 0, {"q": 0, "k": 0}
        if q.ndim == k.ndim == v.ndim <= 3:
            self.h, batch = 0, lead
            self.q, self.k, self.v = (self.rows(x, x.shape[:-2], lead) for x in (q, k, v))
        else:
            *batch, self.h = lead
            g = max(x.shape[-3] if x.ndim > 2 else 1 for x in (k, v))
            heads = self.query_heads(q, g)
            self.g = self.h * g // heads
            key = (*batch, self.g)
            self.q = self.rows(q, q.shape[:-2], lead)
            self.k, self.v = (self.rows(x, x.shape[:-2], key) for x in (k, v))
        self.q = self.q[self.i]
        self.b = self.flat(q, k, v, batch)

    @staticmethod
    def query_heads(q, key_heads):  # H
        heads = q.shape[-3] if q.ndim > 2 else 1
        return key_heads if heads == 1 else heads

    @staticmethod
    def rows(x, shape, lead):
        """The [T,C] matrix of x for leading indices of the result."""
        tail = list(lead)[len(lead) - len(shape):]
        return x[tuple(0 if size == 1 else n for n, size in zip(tail, shape))]

    @staticmethod
    def flat(q, k, v, batch):
        """b, the number of a batch entry in row-major order."""
        sizes, headless = [1] * len(batch), q.ndim == k.ndim == v.ndim <= 3
        for x in (q, k, v):
            own = x.shape[:-2] if headless else x.shape[:-3]
            for n in range(1, len(own) + 1):
                sizes[-n] = max(sizes[-n], own[-n])
        b = 0
        for n, size in zip(batch, sizes):
            b = b * size + n
        return int(b)

    def param(self, name):
        """This head's parameter; None when the call has none."""
        if name not in self.inputs:
            return None
        x = self.inputs[name]
        return x[self.h] if x.ndim > {"additive_v": 1, "additive_b": 1}.get(name, 2) else x


def mapped_row(row, side, x, n, position):
    """Row x of q or k, the n-th of its sequence, after the norm and the rotation.

    position: that of the row if the call gives none.
    """
    x, inputs = [float(value) for value in x], row.inputs
    if row.options.norm is not None:
        size = math.sqrt(sum(value * value for value in x) / len(x) + row.options.norm)
        gain = inputs.get("norm_" + side, np.ones(len(x)))
        gain = gain[row.h if side == "q" else row.g] if gain.ndim == 2 else gain
        x = [0.0 if size == 0 else value / size * g for value, g in zip(x, gain)]
    if row.options.rotary is None:
        return x
    form, base, width = row.options.rotary
    given = inputs.get(side + "_positions")
    if given is not None:
        position = given[row.b, n] if given.ndim == 2 else given[row.first[side] + n]
    for m in range(width // 2):
        u, v = (m, m + width // 2) if form == "halves" else (2 * m, 2 * m + 1)
        frequency = inputs["frequencies"][m] if "frequencies" in inputs \
            else math.pow(base, -2 * m / width)
        both = complex(x[u], x[v]) * cmath.exp(1j * float(position) * frequency)
        x[u], x[v] = both.real, both.imag
    return x


def plain_score(row, j):
    q = mapped_row(row, "q", row.q, row.i, row.i + diagonal_of(row))
    k, score = mapped_row(row, "k", row.k[j], j, j), row.options.score
    if score == "additive":
        wq, wk, v, b = (row.param("additive_" + name) for name in ("wq", "wk", "v", "b"))
        return sum(v[u] * math.tanh(sum(wq[u, c] * q[c] for c in range(len(q)))
                                    + sum(wk[u, c] * k[c] for c in range(len(k)))
                                    + (0.0 if b is None else b[u])) for u in range(len(v)))
    if score == "bilinear":
        w = row.param("bilinear_w")
        return sum(q[c] * w[c, d] * k[d] for c in range(len(q)) for d in range(len(k)))
    if score == "cosine":
        sizes = [math.sqrt(sum(x * x for x in row)) for row in (q, k)]
        dot = sum(q[c] * k[c] for c in range(len(q)))
        return 0.0 if 0.0 in sizes else dot / (sizes[0] * sizes[1])
    return sum(q[c] * k[c] for c in range(len(q)))


def diagonal_of(row):
    if "offsets" in row.inputs:
        return int(row.inputs["offsets"][row.b])
    return {None: len(row.k) - row.tq, "top_left": 0}.get(row.options.diagonal,
                                                          row.options.diagonal)


def may_attend(row, j):
    options, inputs, i, o = row.options, row.inputs, row.i, diagonal_of(row)
    if options.causal and j > i + o:
        return False
    if options.window is not None:
        left, right = options.window
        if (left != -1 and j < i + o - left) or (right != -1 and j > i + o + right):
            return False
    if "keep" in inputs and not entry(inputs["keep"], (*row.index, j)):
        return False
    if "bias" in inputs and entry(inputs["bias"], (*row.index, j)) == -math.inf:
        return False
    if "padding" in inputs and inputs["padding"][row.b, j]:
        return False
    if "key_lengths" in inputs:
        length = inputs["key_lengths"][row.b]
        if j >= (length if np.ndim(length) == 0 else length[i]):
            return False
    tests = {"band3": abs(i - j) <= 3, "doc": i // 3 == j // 3}
    return all(tests[name] for name in options.mask_mods)


def final_score(row, j):
    """The score before the masks."""
    options, inputs = row.options, row.inputs
    scale = options.scale
    if scale is None:
        scale = 1 / math.sqrt(len(row.q)) if options.score == "scaled_dot" else 1.0
    s = plain_score(row, j) * scale
    if options.softcap:
        s = options.softcap * math.tanh(s / options.softcap)
    for name in options.mods:
        s = {"decay": s - 0.25 * (row.h + 1) * abs(row.i - j), "quad": s + 0.05 * s * s,
             "leaky": s if s >= 0 else 0.5 * s}[name]
    if "bias" in inputs:
        s += entry(inputs["bias"], (*row.index, j))
    if "alibi" in inputs:
        slopes = inputs["alibi"][row.b] if inputs["alibi"].ndim == 2 else inputs["alibi"]
        s -= slopes[row.h] * abs(row.i + diagonal_of(row) - j)
    return s


def dropout_factor(row, j):
    if row.options.dropout is None:
        return 1.0
    p, seed = row.options.dropout
    words = philox((j // 4, row.i, row.h, row.b), (seed % 2**32, seed // 2**32))
    return 0.0 if int(words[j % 4]) < math.floor(p * 2**32) else 1 / (1 - p)


def row_by_loops(row):
    """out [E] and lse of one row."""
    scores = {j: final_score(row, j) for j in range(len(row.k)) if may_attend(row, j)}
    scores = {j: s for j, s in scores.items() if s != -math.inf}
    logits = list(scores.values())
    if "sinks" in row.inputs:
        logits.append(row.inputs["sinks"][row.h])
    out = np.zeros(row.v.shape[-1])
    if not scores:
        return out, logits[0] if logits else -math.inf
    if any(math.isnan(x) or x == math.inf for x in logits):
        return out + math.nan, math.nan
    top = max(logits)
    lse = top + math.log(sum(math.exp(s - top) for s in logits))
    for j, s in scores.items():
        out += math.exp(s - lse) * dropout_factor(row, j) * row.v[j]
    return out, lse


def close(a, b, tolerance):
    a, b = np.asarray(a), np.asarray(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return bool(np.all(same | (abs(a - b) <= tolerance * np.maximum(1, abs(b)))))


def forward_errors(case, rng, most):
    """Compares up to `most` random rows with row_by_loops()."""
    out, lse = case.wants["out"], case.wants["lse"]
    for n in rng.permutation(int(np.prod(out.shape[:-1])))[:most]:
        at = np.unravel_index(n, out.shape[:-1])
        with np.errstate(invalid="ignore"):  # inf - inf
            expected_out, expected_lse = row_by_loops(Row(case, tuple(int(x) for x in at)))
        found_lse = lse[at[::-1]] if case.options.packed else lse[at]
        if not (close(out[at], expected_out, FORWARD_TOLERANCE)
                and close(found_lse, expected_lse, FORWARD_TOLERANCE)):
            yield f"row {tuple(map(int, at))} differs from the loops"


# ---- NaN and inf -------------------------------------------------------------------------------


def cleaned(case):
    """The inputs with non-finite values of k, v and bias replaced by 0.5, except -inf in bias."""
    found = dict(case.inputs)
    for name in ("k", "v", "bias"):
        if name in found:
            x = found[name]
            bad = ~np.isfinite(x) & ~((name == "bias") & (x == -np.inf))
            found[name] = np.where(bad, 0.5, x)
    return found


def poison_errors(case, all_results):
    """Poison under a mask must change only raw and capped scores."""
    clean = all_results(case.options, cleaned(case))
    for name, x in case.wants.items():
        if name not in ("scores_raw", "scores_capped") and not np.array_equal(x, clean[name]):
            yield f"{name} changed with what stands under a mask"


def broken_row_errors(case):
    """If a live weight is NaN, the whole row must be NaN, and no other row.

    A row of dq must be NaN if a channel of out is, and one of dv if a weight of its key is. row_max
    is NaN in empty rows of a NaN sink, too.
    """
    wants = case.wants
    broken = np.isnan(wants["weights"]).any(axis=-1)
    sinks = case.inputs.get("sinks", np.zeros(broken.shape[-2]))
    rows = {"top_weights": broken[..., None], "entropy": broken,
            "row_max": broken | np.isnan(sinks)[:, None],
            "dq": np.isnan(wants["out"]).any(axis=-1, keepdims=True),
            "dv": np.isnan(wants["weights"]).any(axis=-2)[..., None]}
    for name, nan in rows.items():
        if name in wants and not (np.isnan(wants[name]) == nan).all():
            yield f"NaN rows of {name} are not the broken ones"
