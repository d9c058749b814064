# SPDX-License-Identifier: Apache-2.0
"""Tests arrays of packages other than NumPy and PyTorch, and unusual tensors of PyTorch."""

import subprocess
import sys

import numpy as np
import pytest
from random_calls import needs_torch, torch

import qkv


class Namespace:
    """A package whose from_dlpack copies, which the array API allows."""

    @staticmethod
    def from_dlpack(x):
        return Foreign(np.from_dlpack(x).copy())


class Foreign:
    def __init__(self, array):
        self.array = array

    def __array_namespace__(self):
        return Namespace

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


RANDOM = np.random.default_rng(0)
Q, K, V = (RANDOM.standard_normal((2, 5, 4)) for _ in range(3))


def flat(result):
    if isinstance(result, (tuple, list)):
        return [x for part in result for x in flat(part)]
    if isinstance(result, dict):
        return flat(list(result.values()))
    if isinstance(result, Foreign):
        return [result.array]
    return [] if result is None else [result]


CALLS = {
    "softmax": lambda q, k, v: qkv.softmax(q),
    "masked_softmax": lambda q, k, v: qkv.masked_softmax(q, [2, 3]),
    "batch_dot": lambda q, k, v: qkv.batch_dot(q, k, transpose_b=True),
    "attention": lambda q, k, v: qkv.attention(q, k, v),
    "all of attention": lambda q, k, v: qkv.attention(
        q, k, v, return_weights=True, return_scores="raw", return_lse=True, return_row_max=True,
        return_column_sums=True, return_top=2, return_entropy=True, return_value_sums=True,
        return_pooled=(2, 2)),
    "backward": lambda q, k, v: qkv.attention_backward(
        v, q, k, v, *qkv.attention(q, k, v, score="bilinear", params={"W": np.eye(4)},
                                   return_lse=True),
        score="bilinear", params={"W": np.eye(4)}),
    "layer": lambda q, k, v: layer_and_gradients(q, k, v),
}  # fmt: skip


def layer_and_gradients(q, k, v):
    layer = qkv.MultiHeadAttention(4, 2, dtype="float64", seed=3)
    out = layer.forward(q, k, v)
    gradients = layer.backward(out)
    return [out, gradients.dq, gradients.dk, gradients.dv]


@pytest.mark.parametrize("name", CALLS)
def test_a_package_may_copy_what_it_is_given(name):
    wanted = flat(CALLS[name](Q, K, V))
    got = flat(CALLS[name](Foreign(Q), Foreign(K), Foreign(V)))
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted):
        np.testing.assert_array_equal(one, other)


def test_tensors_with_the_negative_bit():
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1 + 2j, 3 + 5j]]).conj().imag
    assert x.is_neg()
    assert torch.equal(qkv.softmax(x), qkv.softmax(x.resolve_neg()))


def test_a_subclass_of_tensors_is_accepted():
    torch = pytest.importorskip("torch")

    class Mine(torch.Tensor):
        pass

    x = torch.randn(2, 3).as_subclass(Mine)
    assert torch.equal(qkv.softmax(x), qkv.softmax(torch.Tensor(x)))


def test_tensors_that_require_gradients_are_referred_to_qkv_torch():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="; under autograd call qkv.torch.attention$"):
        qkv.softmax(torch.ones(2, requires_grad=True))


class Itself(np.ndarray):
    """A NumPy subclass whose methods return wrong values."""

    def copy(self, *arguments, **options):
        return self

    astype = view = copy


@pytest.mark.parametrize("kind", ["in place", "not aligned", "swapped", "bfloat16"])
def test_methods_of_a_subclass_are_not_called(kind):
    """Arrays that must be copied are copied by methods of np.ndarray, not of the subclass."""
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if kind == "bfloat16" else np.float32
    plain = Q.astype(dtype)
    x = plain
    if kind == "not aligned":
        x = np.frombuffer(b"x" + plain.tobytes(), np.uint8)[1:].view(dtype).reshape(plain.shape)
        assert not x.flags.aligned
    if kind == "swapped":
        x = plain.astype(plain.dtype.newbyteorder())
    mine = np.ndarray.view(x, Itself)
    got, want = qkv.attention(mine, mine, mine), qkv.attention(plain, plain, plain)
    assert np.asarray(got).tobytes() == want.tobytes()


OLDER = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__
import qkv
x = torch.arange(12.0).reshape(1, 2, 6)
out, lse = qkv.attention(x, x, x[..., ::2], return_lse=True)
assert isinstance(out, torch.Tensor) and out.shape == (1, 2, 3)
exported = torch.Tensor.__dlpack__
def without_booleans(self, *arguments, **options):
    if self.dtype == torch.bool:
        raise RuntimeError("Bool type is not supported by dlpack")
    return exported(self, *arguments, **options)
torch.Tensor.__dlpack__ = without_booleans
hidden = qkv.attention(x, x, x, mask=torch.tensor([[False, True], [True, True]])[1:, ::2])
try:
    qkv.attention(x, x, x, bias=x[0] > 1)
except TypeError as error:
    print(str(error).splitlines()[0])
print(out.tolist(), lse.tolist(), hidden.tolist())
"""


@needs_torch
def test_a_pytorch_without_exchange_functions():
    # An older PyTorch, whose DLPack does not support bool either, gives equal results.
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no exchange functions of DLPack: it is the older one")
    x = torch.arange(12.0).reshape(1, 2, 6)
    out, lse = qkv.attention(x, x, x[..., ::2], return_lse=True)
    older = subprocess.run(
        [sys.executable, "-c", OLDER], capture_output=True, text=True, check=True
    )
    hidden = qkv.attention(x, x, x, mask=torch.tensor([[True]]))
    wrong, results = older.stdout.splitlines()
    assert wrong == "attention: bias must be float32 where q is float32, got bool [2,6]"
    assert results == f"{out.tolist()} {lse.tolist()} {hidden.tolist()}"
