# SPDX-License-Identifier: Apache-2.0
"""Compares score_mod and mask_mod of qkv.torch.attention with a composition of PyTorch calls."""

import pytest
from torch_versions import torch

import qkv
import qkv.torch

B, H, TQ, TK, D = 2, 4, 9, 11, 8
GENERATOR = torch.Generator().manual_seed(45)
TABLE = torch.randn(H, 2 * TK, dtype=torch.float64, generator=GENERATOR)
DOCUMENT = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3])


def draw(*shape):
    x = torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)
    return x.requires_grad_()


def relative(s, at):
    return s + TABLE[at.h, at.i - at.j + TK - 1]


def document(at):
    return DOCUMENT[at.i] == DOCUMENT[at.j]


def test_gradients():
    q, k, v = draw(B, H, TQ, D), draw(B, H, TK, D), draw(B, H, TK, 5)
    for score, mask in ((relative, document), (qkv.score_mod(relative), qkv.mask_mod(document))):
        got, lse = qkv.torch.attention(q, k, v, score_mod=score, mask_mod=mask, return_lse=True)
        i, j = torch.arange(TQ)[:, None], torch.arange(TK)
        s = q @ k.mT / D**0.5 + TABLE[:, i - j + TK - 1]
        s = s.masked_fill(DOCUMENT[i] != DOCUMENT[j], -torch.inf)
        want = s.softmax(-1) @ v
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(lse, s.logsumexp(-1), rtol=1e-10, atol=1e-12)
        along = torch.cos(want.detach())
        for one, other in zip(torch.autograd.grad([got, lse], [q, k, v], [along, lse.detach()]),
                              torch.autograd.grad([want, s.logsumexp(-1)], [q, k, v],
                                                  [along, lse.detach()])):  # fmt: skip
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"score_mod": lambda s, at: s if at.i > at.j else -s},
        {"mask_mod": lambda at: at.i >= at.j and at.i < 3},
    ],
)
def test_advice_is_in_words_of_pytorch(options):
    x = draw(1, 1, 4, D)
    with pytest.raises(TypeError, match=r"Write torch.where\(c, a, b\) for if, .* torch.maximum$"):
        qkv.torch.attention(x, x, x, **options)
    with pytest.raises(TypeError, match=r"Write qkv.where\(c, a, b\) for if, .* qkv.maximum$"):
        qkv.attention(x.detach(), x.detach(), x.detach(), **options)


@pytest.mark.parametrize("largest", [lambda x: torch.max(x, 0), lambda x: torch.max(x, dim=0)])
def test_torch_max_of_an_axis_is_refused_with_advice(largest):
    x = draw(1, 1, 4, D)
    table = torch.arange(12.0).reshape(4, 3)
    with pytest.raises(TypeError, match=r"torch.max of a row and an axis .* write row.amax\(\)$"):
        qkv.torch.attention(x, x, x, score_mod=lambda s, at: s + largest(table[at.i]))


def test_advice_to_a_function_that_uses_pytorch():
    def score(s, at):
        return torch.tanh(s) if at.i > at.j else -s

    with pytest.raises(TypeError, match=r"Write torch.where\(c, a, b\) for if"):
        qkv.score_mod(score)


def test_without_gradients():
    q, k, v = (draw(B, H, TK, D).detach() for _ in range(3))
    got = qkv.torch.attention(q, k, v, mask_mod=document)
    want = qkv.torch.attention(q, k, v, mask=DOCUMENT[:, None] == DOCUMENT)
    assert torch.equal(got, want)
