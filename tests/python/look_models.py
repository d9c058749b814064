# SPDX-License-Identifier: Apache-2.0
"""Models that call a function of attention, for the tests of qkv.torch.look."""

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
import torch.nn.functional as F  # noqa: E402

import qkv.torch  # noqa: E402

F64 = torch.float64
CLOSE = {"rtol": 1e-12, "atol": 1e-13}
ALL = slice(None)
B, T, S, WIDTH, HEADS = 2, 5, 7, 16, 4
PADDING = torch.tensor([[0] * 5, [0] * 3 + [1] * 2], dtype=torch.bool)
FUTURE = torch.ones(T, T).triu(1).bool()


def draw(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def of_formula(q, k, added=0.0, scale=None):
    """The weights by the formula, for q [..,Tq,D] and k [..,Tk,D]."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale) + added
    return torch.softmax(scores, -1)


def only(allowed):
    # The bias that masks all pairs except those in `allowed`.
    return torch.zeros(allowed.shape, dtype=F64).masked_fill(~allowed, -torch.inf)


class Calls(torch.nn.Module):
    """A model with two layers, each of which calls a given function with the model's arguments."""

    def __init__(self, function):
        super().__init__()
        self.inner = torch.nn.ModuleList([Layer(function) for _ in range(2)])

    def forward(self, *arguments, **options):
        return [layer(*arguments, **options) for layer in self.inner]


class Layer(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.norm = torch.nn.Identity()

    def forward(self, *arguments, **options):
        self.norm(arguments[0])  # a module that has returned is not the innermost
        return self.function(*arguments, **options)


def by_torch(*arguments, **options):
    return F.scaled_dot_product_attention(*arguments, **options)


ours = qkv.torch.scaled_dot_product_attention
