# SPDX-License-Identifier: Apache-2.0
"""Gradients of the tensors that score_mod reads, by autograd."""

import subprocess
import sys

import numpy as np
import pytest
from patience import PATIENCE

torch = pytest.importorskip("torch")

import qkv  # noqa: E402
import qkv.torch  # noqa: E402

B, H, G, T, D = 2, 4, 2, 33, 8


def normal(seed, *shape, dtype=torch.float64):
    values = np.random.default_rng(seed).standard_normal(shape)
    return torch.tensor(values, dtype=dtype)


def leaves(dtype=torch.float64):
    shapes = ((B, H, T, D), (B, G, T, D), (B, G, T, D))
    return [normal(n, *shape, dtype=dtype).requires_grad_() for n, shape in enumerate(shapes)]


def composition(q, k, v, change):
    """Attention by formula, with scores changed by `change`."""
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    return torch.softmax(change(q @ k.transpose(-1, -2) / D**0.5), -1) @ v


def gradients(out, *tensors):
    return torch.autograd.grad(out.square().sum(), tensors)


def test_gradients_are_those_of_the_composition():
    q, k, v = leaves()
    gain = (1 + 0.3 * normal(5, H)).requires_grad_()
    table = normal(6, H, 2 * T - 1).requires_grad_()
    i, j = torch.arange(T)[:, None], torch.arange(T)
    h = torch.arange(H)[:, None, None]

    def score(s, at):
        return np.tanh(s * gain[at.h]) * 3 + table[at.h, at.i - at.j + T - 1]

    got = gradients(qkv.torch.attention(q, k, v, score_mod=score), q, k, v, gain, table)
    want = composition(
        q, k, v, lambda s: torch.tanh(s * gain[:, None, None]) * 3 + table[h, i - j + T - 1]
    )
    for one, other in zip(got, gradients(want, q, k, v, gain, table)):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def test_gradients_reach_the_source_of_a_captured_tensor():
    q, k, v = (x.detach() for x in leaves())
    raw = normal(7, H).requires_grad_()
    slope = raw.exp()  # not a leaf, so the gradient goes on to raw
    distance = (torch.arange(T)[:, None] - torch.arange(T)).abs()
    mod = qkv.score_mod(lambda s, at: s - slope[at.h] * abs(at.i - at.j))
    out = qkv.torch.attention(q, k, v, score_mod=mod, causal=True)
    (got,) = gradients(out, raw)
    allowed = torch.ones(T, T).tril() > 0
    want = composition(
        q,
        k,
        v,
        lambda s: torch.where(allowed, s - raw.exp()[:, None, None] * distance, -torch.inf),
    )
    torch.testing.assert_close(got, gradients(want, raw)[0], rtol=1e-10, atol=1e-11)


def test_a_module_with_a_relative_bias_trains():
    class Biased(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.zeros(2 * T - 1))

        def forward(self, q, k, v):
            table = self.table
            return qkv.torch.attention(
                q, k, v, score_mod=lambda s, at: s + table[at.i - at.j + T - 1]
            )

    q, k, v = (x.detach() for x in leaves(torch.float32))
    with torch.no_grad():
        teacher = Biased()
        teacher.table.copy_(torch.linspace(-1.5, 1.5, 2 * T - 1))
        target = teacher(q, k, v)
    model = Biased()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = (model(q, k, v) - target).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 100


def test_a_mod_made_once_sees_new_values_and_refuses_changed_ones():
    q, k, v = (x.detach() for x in leaves())
    table = torch.zeros(H, dtype=torch.float64, requires_grad=True)
    mod = qkv.score_mod(lambda s, at: s * table[at.h])
    flat = qkv.torch.attention(q, k, v, score_mod=mod)
    with torch.no_grad():
        table.fill_(2.0)
    steep = qkv.torch.attention(q, k, v, score_mod=mod)
    assert not torch.equal(flat, steep)
    gradients(steep, table)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(flat, table)


def test_gradients_are_not_lost_silently():
    # qkv.attention has no autograd, so it raises instead of losing a gradient.
    q, k, v = (x.detach() for x in leaves())
    table = torch.zeros(H, dtype=torch.float64, requires_grad=True)
    mod = qkv.score_mod(lambda s, at: s * table[at.h])
    with pytest.raises(TypeError, match=r"score_mod reads table, a tensor that requires a gradi"):
        qkv.attention(q, k, v, score_mod=mod)
    with torch.no_grad():
        got = qkv.attention(q, k, v, score_mod=mod)
    assert torch.equal(got, qkv.torch.attention(q, k, v, score_mod=mod))


@pytest.mark.parametrize(
    "call",
    [
        "attention(x, x, x, score_mod=lambda s, at: s * table[at.h])",
        "attention(x, x, x, score_mod=qkv.score_mod(lambda s, at: s * table[at.h]))",
    ],
)
def test_no_report_of_a_graph_that_is_alive_at_exit(call):
    # Objects that a global variable holds at exit must not be reported as leaks.
    program = (
        "import torch, qkv, qkv.torch\n"
        "x, table = torch.ones(1, 1, 3, 4), torch.ones(1, requires_grad=True)\n"
        f"loss = qkv.torch.{call}.sum()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
