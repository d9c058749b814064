# SPDX-License-Identifier: Apache-2.0
"""Tests which calls of scaled_dot_product_attention are read in C++, and which in Python."""

import contextlib

import pytest
from torch_versions import requires, torch

requires(2, 10, "the functions that its tensors export")

import qkv.torch  # noqa: E402
from qkv import _core  # noqa: E402
from qkv.torch import _sdpa  # noqa: E402

B, H, TQ, TK, D, E = 2, 4, 3, 5, 8, 6
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

sdpa = qkv.torch.scaled_dot_product_attention


def draw(*shape, seed=0, dtype=torch.float32):
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype)


def inputs(dtype=torch.float32, key_heads=H, **others):
    shapes = {"query": (B, H, TQ, D), "key": (B, key_heads, TK, D), "value": (B, key_heads, TK, E)}
    made = {name: draw(*x, seed=n, dtype=dtype) for n, (name, x) in enumerate(shapes.items())}
    return {**made, **others}


def bare(**given):
    """The result of C++ for a call; None for a call that it leaves to Python."""
    rest = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None}
    return _core.torch_attention(*{**inputs(), **rest, "enable_gqa": False, **given}.values())


def on_the_long_way(monkeypatch, **given):
    """The result of a call that goes through Python instead of C++."""
    with monkeypatch.context() as patched:
        patched.setattr(_sdpa, "torch_attention", lambda *_: None)
        return sdpa(**given)


SEEN = draw(TQ, TK, seed=7) > 0
TAKEN = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": -0.25},
    "no scale": {"scale": 0.0},
    "no dropout": {"dropout_p": 0},
    "boolean mask": {"attn_mask": SEEN},
    "rows without keys": {"attn_mask": torch.zeros(TQ, TK, dtype=torch.bool)},
    "padding": {"attn_mask": draw(B, 1, 1, TK, seed=8) > 0},
    "mask of heads": {"attn_mask": draw(1, H, TQ, TK, seed=8) > 0},
    "mask of queries": {"attn_mask": draw(TQ, 1, seed=8) > 0},
    "one for all": {"attn_mask": torch.tensor(True)},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TAKEN)
def test_calls_in_cpp_have_the_bits_of_calls_through_python(monkeypatch, dtype, name):
    for key_heads in (H, 2, 1):
        given = inputs(dtype, key_heads, **TAKEN[name], enable_gqa=key_heads < H)
        got = bare(**given)
        assert got.dtype == dtype and torch.equal(got, sdpa(**given))
        assert torch.equal(got, on_the_long_way(monkeypatch, **given))


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_of_the_querys_dtype_are_taken(monkeypatch, dtype):
    for shape in ((TQ, TK), (B, 1, 1, TK), (1, H, TQ, TK)):
        given = inputs(dtype, attn_mask=draw(*shape, seed=9, dtype=dtype))
        assert torch.equal(bare(**given), on_the_long_way(monkeypatch, **given))


def test_any_strides(monkeypatch):
    given = inputs()
    transposed = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in given.items()}
    transposed["key"] = transposed["key"].flip(-1).clone().flip(-1)
    transposed["value"] = transposed["value"][:, :, :1].expand(B, H, TK, E)
    transposed["attn_mask"] = SEEN.T.contiguous().T
    assert torch.equal(bare(**transposed), on_the_long_way(monkeypatch, **transposed))


class Own(torch.Tensor):
    pass


# Returns -x, stored as x with PyTorch's negative bit (Tensor.is_neg).
def with_the_sign_apart(x):
    return torch.complex(x, x).conj().imag


LEFT = {
    "gradient": {"key": draw(B, H, TK, D).requires_grad_()},
    "gradient of the mask": {"attn_mask": draw(TQ, TK).requires_grad_()},
    "class": {"query": draw(B, H, TQ, D).as_subclass(Own)},
    "class of the value": {"value": draw(B, H, TK, E).as_subclass(Own)},
    "parameter": {"key": torch.nn.Parameter(draw(B, H, TK, D), requires_grad=False)},
    "sign": {"key": with_the_sign_apart(draw(B, H, TK, D))},
    "device": {"query": draw(B, H, TQ, D).to("meta")},
    "nested": {"query": torch.nested.nested_tensor([draw(H, TQ, D), draw(H, 2, D)])},
    "sparse": {"attn_mask": torch.eye(TQ, TK).to_sparse()},
    "no tensor": {"query": None},
    "array": {"key": draw(B, H, TK, D).numpy()},
    "rank": {"query": draw(H, TQ, D)},
    "ranks": {"query": draw(1, B, H, TQ, D)},
    "batch": {"key": draw(1, H, TK, D)},
    "batch of values": {"value": draw(1, H, TK, E)},
    "heads": {"key": draw(B, 2, TK, D), "value": draw(B, 2, TK, E)},
    "heads of values": {"value": draw(B, 1, TK, E)},
    "groups": {"key": draw(B, 3, TK, D), "value": draw(B, 3, TK, E), "enable_gqa": True},
    "no heads": {"key": draw(B, 0, TK, D), "value": draw(B, 0, TK, E), "enable_gqa": True},
    "width": {"key": draw(B, H, TK, D - 1)},
    "keys": {"value": draw(B, H, TK - 1, E)},
    "no queries": {"query": draw(B, H, 0, D)},
    "no keys": {"key": draw(B, H, 0, D), "value": draw(B, H, 0, E)},
    "no channels": {"query": draw(B, H, TQ, 0), "key": draw(B, H, TK, 0)},
    "no values": {"value": draw(B, H, TK, 0)},
    "dtype": {"value": draw(B, H, TK, E, dtype=torch.float64)},
    "dtype of the keys": {"key": draw(B, H, TK, D, dtype=torch.bfloat16)},
    "integers": {name: x.long() for name, x in inputs().items()},
    "booleans": {name: x > 0 for name, x in inputs().items()},
    "complex": {name: x.cdouble() for name, x in inputs().items()},
    "dtype of the mask": {"attn_mask": SEEN.long()},
    "wider mask": {"attn_mask": draw(TQ, TK).double()},
    "shape of the mask": {"attn_mask": SEEN[:, 1:]},
    "rank of the mask": {"attn_mask": SEEN[None, None, None]},
    "list as mask": {"attn_mask": [True]},
    "both masks": {"attn_mask": SEEN, "is_causal": True},
    "dropout": {"dropout_p": 0.1},
    "dropout of a class": {"dropout_p": torch.tensor(0.0)},
    "no number": {"dropout_p": None},
    "large scale": {"scale": 1e39},
    "infinite scale": {"scale": float("-inf")},
    "NaN scale": {"scale": float("nan")},
    "integer scale": {"scale": 1},
    "scale of a class": {"scale": torch.tensor(1.0)},
    "flag": {"is_causal": 1},
    "flag of a class": {"is_causal": torch.tensor(True)},
    "other flag": {"enable_gqa": 0},
}


@pytest.mark.parametrize("name", LEFT)
def test_calls_that_are_left_to_python(name):
    assert bare() is not None
    assert bare(**LEFT[name]) is None


@contextlib.contextmanager
def watched():
    model = torch.nn.Linear(2, 2)
    with qkv.torch.look(model, entropy=True):
        yield


@contextlib.contextmanager
def mode():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        yield


@pytest.mark.parametrize(
    "around",
    [watched, mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["watched", "mode", "autocast"],
)
def test_calls_that_others_watch_or_change_are_left(around):
    given = [*inputs().values(), None, 0.0, False, None, False]
    assert _sdpa.attend_bare(*given) is not None
    with around():
        assert _sdpa.attend_bare(*given) is None


def test_transformed_tensors_are_left():
    given = inputs()
    rest = (given["key"], given["value"], None, 0.0, False, None, False)

    def inside(query):
        assert _core.torch_attention(query, *rest) is None
        return sdpa(query, given["key"], given["value"])

    want = sdpa(**given)
    got = torch.func.vmap(inside, in_dims=0)(given["query"][None])[0]
    torch.testing.assert_close(got, want)
    torch.func.grad(lambda query: inside(query).sum())(given["query"])


def test_calls_in_forward_mode_are_left():
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        assert bare() is None
    assert bare() is not None
