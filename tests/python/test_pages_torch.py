# SPDX-License-Identifier: Apache-2.0
"""Tests that keys in pages of PyTorch tensors give NumPy's results, and no gradients."""

import numpy as np
import pytest
from torch_versions import needs_operator, torch

import qkv
import qkv.torch

PAGES = {"block_tables": [[1, 0], [2, -1]], "context_lens": [20, 7]}


def arrays():
    r = np.random.default_rng(5)
    shapes = ((2, 4, 1, 8), (3, 16, 2, 8), (3, 16, 2, 6))
    return [r.normal(size=shape).astype(np.float32) for shape in shapes]


def test_tensors_have_the_bits_of_arrays():
    want = qkv.attention(*arrays(), **PAGES)
    tensors = [torch.from_numpy(x) for x in arrays()]
    tables = {name: torch.tensor(x) for name, x in PAGES.items()}
    got = qkv.torch.attention(*tensors, **tables)
    np.testing.assert_array_equal(got.numpy(), want)
    tensors[0].requires_grad_()
    with torch.no_grad():
        np.testing.assert_array_equal(qkv.torch.attention(*tensors, **tables).numpy(), want)


def test_gradients_are_refused():
    q, k, v = (torch.from_numpy(x) for x in arrays())
    with pytest.raises(ValueError, match="block_tables is given, but keys in pages have no backw"):
        qkv.torch.attention(q.requires_grad_(), k, v, **PAGES)


@needs_operator
def test_transforms_are_refused():
    q, k, v = (torch.from_numpy(x) for x in arrays())
    call = torch.func.vmap(lambda x: qkv.torch.attention(x, k, v, **PAGES))
    with pytest.raises(ValueError, match="keys in pages are not available in compiled or trans"):
        call(q[None])
