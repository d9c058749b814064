# SPDX-License-Identifier: Apache-2.0
"""Results that add up weights, from the full matrix [B,H,Tq,Tk].

sums_of(state, v, rows) -> results by name; v [B,H,Tk,E]; rows: listed queries, or None.
"""
import numpy as np

POOLED = (3, 4)  # m, n of `pooled` in each case


def entropy(weights):
    """-sum_j w ln w, a weight of 0 adding 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(weights == 0, 0.0, weights * np.log(weights)).sum(axis=-1)


def value_sums(sums, v):
    """sums [B,H,Tk] times |v_j|; 0 where no weight was received, whatever v holds."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(sums == 0, 0.0, sums * np.sqrt((v * v).sum(axis=-1)))


def pooled(weights, m, n):
    """Mean over the queries i with floor(i m / Tq) = a of the sum over the keys j with
    floor(j n / Tk) = c; 0 where there is no query."""
    queries, keys = weights.shape[-2:]
    found = np.zeros((*weights.shape[:2], m, n), weights.dtype)
    for a in range(m):
        rows = [i for i in range(queries) if i * m // queries == a]
        for c in range(n):
            columns = [j for j in range(keys) if j * n // keys == c]
            if rows:
                cell = weights[:, :, rows][..., columns].sum(axis=(2, 3))
                found[:, :, a, c] = cell / len(rows)
    return found


def sums_of(state, v, rows):
    weights = state.weights
    sums = weights.sum(axis=2)
    found = {"entropy": entropy(weights), "column_sums": sums, "value_sums": value_sums(sums, v),
             "pooled": pooled(weights, *POOLED)}
    if rows is not None:
        found["row_column_sums"] = sums = weights[:, :, rows].sum(axis=2)
        found["row_value_sums"] = value_sums(sums, v)
    return found
