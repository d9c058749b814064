# SPDX-License-Identifier: Apache-2.0
"""The layers as NumPy formulas in float64, and one small example of each layer."""

from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np

import qkv

Arrays = Tuple[np.ndarray, ...]


def softmax_rows(scores: np.ndarray, keep: np.ndarray) -> np.ndarray:
    scores = np.where(keep, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total > 0, total, 1)


def dot_scores(p: Dict[str, np.ndarray], q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])


def additive_scores(p: Dict[str, np.ndarray], q: np.ndarray, k: np.ndarray) -> np.ndarray:
    hidden = np.tanh((q @ p["W_q"].T)[..., :, None, :] + (k @ p["W_k"].T)[..., None, :, :])
    return hidden @ p["v"]


def bilinear_scores(p: Dict[str, np.ndarray], q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return q @ p["W"] @ k.swapaxes(-1, -2)


def by_scores(scores: Callable[..., np.ndarray]) -> Callable[..., Tuple[np.ndarray, np.ndarray]]:
    def layer(p: Dict[str, np.ndarray], arrays: Arrays, keep: np.ndarray):
        q, k, v = arrays
        weights = softmax_rows(scores(p, q, k), keep)
        return weights @ v, weights

    return layer


def self_attention(p: Dict[str, np.ndarray], arrays: Arrays, keep: np.ndarray):
    (x,) = arrays
    q, k, v = (x @ p[f"{name}.weight"].T for name in ("queries", "keys", "values"))
    return by_scores(dot_scores)(p, (q, k, v), keep)


def of_inputs(gradients: Any) -> List[Any]:
    """The gradients of a pass with respect to its inputs."""
    named = zip(gradients._fields, gradients)
    return [x for name, x in named if name != "parameters" and x is not None]


def multi_head(
    names: List[str], heads: int, key_heads: int = 0, zero: bool = False
) -> Callable[..., Tuple[np.ndarray, np.ndarray]]:
    """Multi-head attention; `names` are those of the projections of q, k, v and the output.

    A learned key is part of the returned weights; a key of zeros and a sink are not.
    """
    key_heads = key_heads or heads

    def project(p: Dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
        return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)

    def split(x: np.ndarray, count: int) -> np.ndarray:
        apart = np.stack(np.split(x, count, axis=-1), axis=-3)
        return np.repeat(apart, heads // count, axis=-3)

    def with_row(x: np.ndarray, row: Any) -> np.ndarray:
        return np.concatenate([x, np.broadcast_to(row, (*x.shape[:-2], 1, x.shape[-1]))], axis=-2)

    def layer(p: Dict[str, np.ndarray], arrays: Arrays, keep: np.ndarray):
        q, k, v = (project(p, name, x) for name, x in zip(names, arrays))
        given = k.shape[-2]
        if "bias_k" in p:
            k, v = with_row(k, p["bias_k"]), with_row(v, p["bias_v"])
            given += 1
        if zero:
            k, v = with_row(k, 0), with_row(v, 0)
        q, k, v = split(q, heads), split(k, key_heads), split(v, key_heads)
        scores = dot_scores(p, q, k)
        if "sinks" in p:
            sinks = np.broadcast_to(p["sinks"][:, None, None], (*scores.shape[:-1], 1))
            scores, v = np.concatenate([scores, sinks], axis=-1), with_row(v, 0)
        ones = np.ones((*keep.shape[:-1], scores.shape[-1] - keep.shape[-1]), bool)
        keep = np.concatenate([keep, ones], axis=-1)[..., None, :, :]
        weights = softmax_rows(scores, keep)
        out, weights = weights @ v, weights[..., :given]
        merged = np.concatenate([out[..., h, :, :] for h in range(heads)], axis=-1)
        return project(p, names[3], merged), weights

    return layer


class Case(NamedTuple):
    make: Callable[..., Any]  # makes a layer for float64; takes dropout= if the layer has it
    widths: Tuple[int, ...]  # the widths of q, k and v, or of x
    formula: Callable[..., Tuple[np.ndarray, np.ndarray]]

    def arrays(self, seed: int, batch: Tuple[int, ...] = (2,), tq: int = 3, tk: int = 5) -> Arrays:
        rng = np.random.default_rng(seed)
        lengths = (tk,) if len(self.widths) == 1 else (tq, tk, tk)
        return tuple(rng.normal(size=(*batch, t, w)) for t, w in zip(lengths, self.widths))


SPLIT = ["fc_q", "fc_k", "fc_v", "fc_o"]
WIDE = ["queries", "keys", "values", "unify_heads"]
CASES = {
    "dot": Case(lambda **p: qkv.DotProductAttention(**p), (4, 4, 3), by_scores(dot_scores)),
    "additive": Case(
        lambda **p: qkv.AdditiveAttention(3, 4, 5, dtype="float64", seed=1, **p),
        (3, 4, 2),
        by_scores(additive_scores),
    ),
    "bilinear": Case(
        lambda **p: qkv.BilinearAttention(3, 4, dtype="float64", seed=2, **p),
        (3, 4, 2),
        by_scores(bilinear_scores),
    ),
    "self": Case(
        lambda **p: qkv.SelfAttention(4, dtype="float64", seed=3, **p), (4,), self_attention
    ),
    "split": Case(
        lambda **p: qkv.MultiHeadAttention(6, 3, dtype="float64", seed=4, **p),
        (6, 6, 6),
        multi_head(SPLIT, 3),
    ),
    "split without biases": Case(
        lambda **p: qkv.MultiHeadAttention(6, 3, dtype="float64", bias=False, seed=4, **p),
        (6, 6, 6),
        multi_head(SPLIT, 3),
    ),
    "other widths": Case(
        lambda **p: qkv.MultiHeadAttention(
            8, 4, dtype="float64", key_width=5, value_width=3, key_heads=2, sinks=True, seed=4, **p
        ),
        (8, 5, 3),
        multi_head(SPLIT, 4, 2),
    ),
    "learned key": Case(
        lambda **p: qkv.MultiHeadAttention(6, 3, dtype="float64", bias_kv=True, seed=4, **p),
        (6, 6, 6),
        multi_head(SPLIT, 3),
    ),
    "learned key and zeros": Case(
        lambda **p: qkv.MultiHeadAttention(
            6, 2, dtype="float64", key_heads=1, bias_kv=True, zero_attn=True, seed=4, **p
        ),
        (6, 6, 6),
        multi_head(SPLIT, 2, 1, zero=True),
    ),
    "wide without bias": Case(
        lambda **p: qkv.MultiHeadAttention(
            3, 2, form="wide", dtype="float64", bias=False, seed=5, **p
        ),
        (3, 3, 3),
        multi_head(WIDE, 2),
    ),
    "wide": Case(
        lambda **p: qkv.MultiHeadAttention(3, 2, form="wide", dtype="float64", seed=5, **p),
        (3, 3, 3),
        multi_head(WIDE, 2),
    ),
}
DROPPING = [name for name in CASES if name != "self"]
WITH_PARAMETERS = [name for name in CASES if name != "dot"]
