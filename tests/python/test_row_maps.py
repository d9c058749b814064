# SPDX-License-Identifier: Apache-2.0
"""Compares QK-norm and rotary positions with the formulas of models that have them, in PyTorch."""

import itertools
import math

import numpy as np
import pytest

import qkv

torch = pytest.importorskip("torch")

import qkv.torch as qkv_torch  # noqa: E402

BOUNDS = {torch.float64: 1e-12, torch.float32: 3e-5, torch.bfloat16: 3e-2}


def rotate_half(x):
    """The function that rotates "halves", as written in Llama and GPT-NeoX."""
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], dim=-1)


def rotate_every_two(x):
    """The function that rotates "neighbours", as written in GPT-J."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)


def rotated(x, positions, pairs, width, frequencies):
    """x with the first `width` values of each row rotated; positions are [T] or [B,1,T]."""
    angles = positions[..., None].double() * frequencies
    angles = (
        torch.cat([angles, angles], -1) if pairs == "halves" else angles.repeat_interleave(2, -1)
    )
    first, rest = x[..., :width], x[..., width:]
    rotate = rotate_half if pairs == "halves" else rotate_every_two
    first = first * angles.cos().to(x.dtype) + rotate(first) * angles.sin().to(x.dtype)
    return torch.cat([first, rest], dim=-1)


def rms_norm(x, gain, eps):
    return gain * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)


def leaf(*shape, dtype):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def compare(ours, theirs, leaves, bound):
    weight = torch.randn_like(theirs)
    pairs = [(ours, theirs)]
    pairs += zip(
        torch.autograd.grad((ours * weight).sum(), leaves),
        torch.autograd.grad((theirs * weight).sum(), leaves),
    )
    for got, want in pairs:
        assert (got - want).abs().max() <= bound * max(1, want.abs().max())


CASES = list(itertools.product(
    ("halves", "neighbours"), (16, 10), ("corner", "offset", "given"), (True, False),
    (torch.float64, torch.float32, torch.bfloat16),
))  # fmt: skip


@pytest.mark.parametrize(("pairs", "width", "positions", "norm", "dtype"), CASES)
def test_agrees_with_the_models_formulas(pairs, width, positions, norm, dtype):
    torch.manual_seed(1)
    exact = torch.float64 if dtype == torch.bfloat16 else dtype
    shapes = ((2, 4, 9, 16), (2, 2, 13, 16), (2, 2, 13, 5))
    leaves = [leaf(*shape, dtype=exact) for shape in shapes]
    gains = [leaf(16, dtype=exact), leaf(2, 16, dtype=exact)] if norm else []
    if dtype == torch.bfloat16:  # the formula and the call get the rounded numbers
        leaves = [x.detach().to(dtype).double().requires_grad_() for x in leaves]
        gains = [x.detach().to(dtype).double().requires_grad_() for x in gains]
    at_q, at_k = torch.arange(9) + 4, torch.arange(13)
    options = {"rotary": pairs, "rotary_width": width}
    if positions == "offset":
        options["causal_offset"], at_q = 2, torch.arange(9) + 2
    if positions == "given":
        at_q, at_k = torch.randint(-5, 50, (2, 9)), torch.randint(-5, 50, (2, 13))
        options.update(q_positions=at_q, k_positions=at_k, rotary_base=50.0)
        at_q, at_k = at_q[:, None], at_k[:, None]
    if norm:
        params = {"norm_q": gains[0].to(dtype), "norm_k": gains[1].to(dtype)}
        options.update(qk_norm=1e-3, params=params)
    frequencies = options.get("rotary_base", 1e4) ** (
        -torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    q, k, v = leaves
    if norm:
        q, k = rms_norm(q, gains[0], 1e-3), rms_norm(k, gains[1][:, None], 1e-3)
    q = rotated(q, at_q, pairs, width, frequencies)
    k = rotated(k, at_k, pairs, width, frequencies).repeat_interleave(2, dim=1)
    weights = torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1)
    theirs = weights @ v.repeat_interleave(2, dim=1)
    ours = qkv_torch.attention(*(x.to(dtype) for x in leaves), **options).to(exact)
    compare(ours, theirs, leaves + gains, BOUNDS[dtype])


def test_frequencies_replace_those_of_the_base():
    x = np.random.default_rng(2).standard_normal((7, 8))
    base = qkv.attention(x, x, x, rotary="halves", rotary_base=100.0)
    given = qkv.attention(
        x, x, x, rotary="halves", rotary_frequencies=100.0 ** (-2 * np.arange(4) / 8)
    )
    np.testing.assert_allclose(given, base, rtol=1e-13)
    other = qkv.attention(x, x, x, rotary="halves", rotary_frequencies=[1.0, 0.5, 0.5, 0.1])
    assert not np.allclose(other, base)


def test_positions_of_either_sign_up_to_2_53():
    """Angles are position times frequency, rounded once; scores are their cosine and sine."""
    positions = [1, 3, 10**6 + 1, 2**31, 2**40 + 1, 2**53 - 1, 2**53]
    positions = np.array([0, *positions, *(-p for p in positions)])
    axes = np.eye(2)[None]  # scores with these keys are the cosine and the sine
    for frequency in (1.0, 0.1, 1e-4):
        angles = [float(int(p)) * frequency for p in positions]
        got = qkv.attention(
            np.array([[[1.0, 0.0]] * len(positions)]), axes, axes, rotary="halves", score="dot",
            rotary_frequencies=[frequency], q_positions=positions, k_positions=np.zeros(2, int),
            return_scores="raw",
        ).scores[0]  # fmt: skip
        want = np.array([[math.cos(a), math.sin(a)] for a in angles])
        assert np.abs(got - want).max() < 3e-16
        assert (got[8:] == got[1:8] * [1, -1]).all(), "a negative position turns the other way"


def test_one_step_of_decoding_is_a_row_of_the_prefill():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 20, 16)).astype(np.float32) for _ in range(3))
    options = {"rotary": "halves", "qk_norm": True, "causal": True}
    prefill = qkv.attention(q, k, v, **options)
    for t in (1, 7, 20):
        step = qkv.attention(q[:, t - 1 : t], k[:, :t], v[:, :t], **options)
        np.testing.assert_array_equal(step[:, 0], prefill[:, t - 1])


def test_packed_sequences_are_the_padded_call():
    rng = np.random.default_rng(4)
    lengths, heads = [5, 0, 130, 49], 2
    total = sum(lengths)
    q, k, v = (rng.standard_normal((total, heads, 8)).astype(np.float32) for _ in range(3))
    gain = rng.standard_normal((heads, 8)).astype(np.float32)
    ends = np.cumsum([0, *lengths])
    options = {"rotary": "neighbours", "qk_norm": True, "params": {"norm_q": gain, "norm_k": gain}}
    packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "causal": "top_left", **options}
    out, lse = qkv.attention(q, k, v, **packed, return_lse=True)
    got = qkv.attention_backward(out, q, k, v, out, lse, **packed)

    def pad(x):
        y = np.zeros((len(lengths), heads, max(lengths), x.shape[-1]), np.float32)
        for b, n in enumerate(lengths):
            y[b, :, :n] = x[ends[b] : ends[b + 1]].transpose(1, 0, 2)
        return y

    rows = np.arange(max(lengths)) < np.array(lengths)[:, None]
    padded = {
        "key_lengths": lengths,
        "mask": rows[:, None, :, None],
        "causal": "top_left",
        **options,
    }
    qp, kp, vp = pad(q), pad(k), pad(v)
    outp, lsep = qkv.attention(qp, kp, vp, **padded, return_lse=True)
    np.testing.assert_array_equal(pad(out), outp)
    want = qkv.attention_backward(outp, qp, kp, vp, outp, lsep, **padded)
    np.testing.assert_array_equal(pad(got.dq), want.dq)
    for name in ("norm_q", "norm_k"):
        np.testing.assert_array_equal(got.dparams[name], want.dparams[name])


def test_gradients_of_gains_do_not_depend_on_threads():
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((2, 3, 200, 24)).astype(np.float32) for _ in range(3))
    params = {"norm_q": np.ones(24, np.float32), "norm_k": np.ones((3, 24), np.float32)}
    options = {"rotary": "halves", "qk_norm": True, "params": params}
    out, lse = qkv.attention(q, k, v, **options, return_lse=True)
    one, two = (
        qkv.attention_backward(out, q, k, v, out, lse, **options, threads=n) for n in (1, 2)
    )
    for a, b in zip(
        (one.dq, one.dk, *one.dparams.values()), (two.dq, two.dk, *two.dparams.values())
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rotary": "half"}, 'rotary must be None, "neighbours" or "halves"'),
        ({"rotary_base": 2.0}, "rotary_base is given but rotary is not"),
        ({"q_positions": [1] * 5}, "q_positions is given but rotary is not"),
        ({"rotary": "halves", "rotary_width": 0}, "rotary_width must be 2 or more"),
        ({"rotary": "halves", "rotary_width": 3}, "rotary_width must be even and in 2 to D = 8"),
        ({"rotary": "halves", "rotary_base": 0.0}, "rotary_base must be finite and above 0"),
        ({"rotary": "halves", "q_positions": [1] * 4}, r"q_positions must have the shape"),
        ({"rotary": "halves", "k_positions": [0.5] * 5}, "k_positions must be an integer"),
        ({"rotary": "halves", "q_positions": [2**60] * 5}, r"must be in -2\^53 to 2\^53, got"),
        ({"rotary": "halves", "rotary_frequencies": [1.0]}, r"must have the shape \[width/2\]"),
        (
            {"rotary": "halves", "rotary_frequencies": [1.0, np.inf, 1.0, 1.0]},
            "rotary_frequencies must be finite, got inf for pair 1",
        ),
        ({"qk_norm": "yes"}, "qk_norm must be None, a bool or the eps"),
        ({"qk_norm": 0}, "qk_norm must be None, a bool or the eps, a float; got int 0"),
        ({"qk_norm": np.int64(1)}, "qk_norm must be None, a bool or the eps"),
        ({"qk_norm": -1.0}, "qk_norm must be finite and 0 or more"),
        ({"qk_norm": True, "params": {"norm_x": [1.0]}}, 'may have the keys "norm_q", "norm_k"'),
        ({"qk_norm": True, "params": {"norm_q": np.ones(7)}}, r"norm_q.* must have the shape"),
        ({"params": {"norm_q": np.ones(8)}}, "params is given but the score"),
        ({"rope": True}, "Did you mean 'rotary'"),
    ],
)
def test_wrong_arguments_are_named(options, text):
    x = np.ones((5, 8))
    with pytest.raises((TypeError, ValueError), match=text):
        qkv.attention(x, x, x, **options)


def test_an_odd_width_is_not_rotated_as_a_whole():
    x = np.ones((5, 7))
    with pytest.raises(ValueError, match="rotary_width must be even and in 2 to D = 7, got 7"):
        qkv.attention(x, x, x, rotary="halves")
    assert qkv.attention(x, x, x, rotary="halves", rotary_width=6).shape == (5, 7)
