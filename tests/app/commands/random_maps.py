# SPDX-License-Identifier: Apache-2.0
"""Softmax, and random attention weights for tests."""

import numpy as np


def softmax(scores):
    """Returns the weights of scores, 0 in rows that are -inf throughout."""
    largest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    sums = e.sum(-1, keepdims=True)
    return e / np.where(sums == 0, 1, sums)


def weights(*shape, seed=0, dtype=np.float32):
    """Returns maps of this shape, whose rows sum to 1."""
    return softmax(2 * np.random.default_rng(seed).normal(size=shape)).astype(dtype)
