# SPDX-License-Identifier: Apache-2.0
"""Random attention weights for tests."""

import numpy as np


def weights(*shape, seed=0):
    """Returns float32 maps of this shape, whose rows sum to 1."""
    scores = 2 * np.random.default_rng(seed).normal(size=shape)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)
