# SPDX-License-Identifier: Apache-2.0
"""Compares 500 random calls of scaled_dot_product_attention with PyTorch's math backend."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from typing import Any

import pytest
from torch_versions import requires, torch

requires(2, 5, "torch.nn.attention.bias")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

import qkv.torch  # noqa: E402
import qkv.torch._sdpa as ours  # noqa: E402

sdpa = torch.nn.functional.scaled_dot_product_attention

CALLS = 500
SEED = 20261125
DTYPES = [torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16]


class Draw:
    """Draws the arguments of a call at random; the seed depends on the call's number."""

    def __init__(self, number: int) -> None:
        self.pick = random.Random(SEED + number)
        self.generator = torch.Generator().manual_seed(SEED + number)
        self.dtype = self.pick.choice(DTYPES)
        self.Tq, self.Tk = self._size(0.05, 5), self._size(0.05, 6)
        self.D, self.E = self._size(0.04, 5), self._size(0.04, 5)

    def maybe(self, probability: float) -> bool:
        return self.pick.random() < probability

    def _size(self, none: float, most: int) -> int:
        return 0 if self.maybe(none) else self.pick.randint(1, most)

    def tensor(self, *shape: int, dtype: Any = None) -> Any:
        x = torch.randn(*shape, dtype=torch.float64, generator=self.generator)
        return x.to(dtype or self.dtype)

    def leading(self) -> list[list[int]]:
        """The leading axes of query, key and value, which mostly broadcast."""
        whole = [self.pick.randint(1, 4) for _ in range(self.pick.randint(0, 3))]
        made = []
        for _ in range(3):
            axes = [1 if self.maybe(0.15) else size for size in whole]
            made.append(axes[self.pick.randint(1, 2) :] if self.maybe(0.1) else axes)
        if self.maybe(0.04) and made[1]:
            made[1][-1] += 1
        return made

    def grouped(self) -> list[list[int]]:
        """The leading axes of query, key and value for enable_gqa; the last is the head axis."""
        if self.maybe(0.05):
            return self.leading()
        made = self.leading()
        heads = self.pick.choice([1, 2, 4, 6])
        divisors = [g for g in range(1, heads + 1) if heads % g == 0]
        groups = [heads, *(self.pick.choice(divisors) for _ in range(2))]
        if self.maybe(0.08):
            groups[self.pick.choice([1, 2])] = heads + 1
        return [[*axes[:-1], group] for axes, group in zip(made, groups)]

    def mask(self, lead: list[int]) -> Any:
        """A mask of some kind, whose shape mostly broadcasts to the scores."""
        shape = [*lead, self.Tq, self.Tk]
        shape = [1 if self.maybe(0.2) else size for size in shape]
        shape = shape[self.pick.randint(0, len(shape)) :] if self.maybe(0.4) else shape
        if self.maybe(0.06):
            shape = self.pick.choice([[1, *shape], [*shape[:-1], 7]])
        x = torch.randn(shape, dtype=torch.float64, generator=self.generator)
        kind = self.pick.choice(["bool", "float32", "same", "same", "-inf", "corner", "other"])
        if kind == "bool":
            return x > 0
        if kind == "corner":
            sizes = [self.Tq, self.Tk] if self.maybe(0.8) else [self.Tq + 1, self.Tk]
            return self.pick.choice([causal_lower_right, causal_upper_left])(*sizes)
        if kind == "other" and self.maybe(0.5):
            return x.to(self.pick.choice([torch.int64, torch.float16, torch.float64]))
        if kind == "-inf":
            return torch.where(x > 0, x, -torch.inf).to(self.dtype)
        return x.to(torch.float32 if kind == "float32" else self.dtype)

    def call(self) -> dict[str, Any]:
        options: dict[str, Any] = {"enable_gqa": True} if self.maybe(0.3) else {}
        leading = self.grouped() if options else self.leading()
        shapes = [(self.Tq, self.D), (self.Tk, self.D), (self.Tk, self.E)]
        if self.maybe(0.04):
            wrong = self.pick.randrange(1, 3)
            shapes[wrong] = (shapes[wrong][0] + self.pick.choice([0, 1]), shapes[wrong][1] + 1)
        tensors = [self.tensor(*axes, *shape) for axes, shape in zip(leading, shapes)]
        if self.maybe(0.03):
            place = self.pick.randrange(3)
            tensors[place] = tensors[place].to(self.pick.choice([torch.float32, torch.int64]))
        options.update(zip(("query", "key", "value"), tensors))
        if self.maybe(0.45):
            options["attn_mask"] = self.mask(leading[0])
        if self.maybe(0.2):
            options["is_causal"] = True
        if self.maybe(0.3):
            options["scale"] = self.pick.choice([0.3, 1, 0.0, -0.5, True])
        if self.maybe(0.15):
            options["dropout_p"] = self.pick.choice([0, 1, 1.0, True, -0.5, 2, 1.5])
        return options


class Nested(Draw):
    """A call of jagged tensors."""

    def jagged(self, lengths: list[int], heads: int, width: int) -> Any:
        values = self.tensor(sum(lengths), heads, width)
        starts = torch.tensor([0, *lengths]).cumsum(0)
        x = torch.nested.nested_tensor_from_jagged(values, starts)
        return x if self.maybe(0.1) else x.transpose(1, 2)

    def call(self) -> dict[str, Any]:
        of_q, of_k = ([self.pick.randint(1, 4) for _ in range(3)] for _ in range(2))
        H, D, E = 2, self.D or 1, self.E or 1
        call = {"query": self.jagged(of_q, H, D)}
        of_k = of_q if self.maybe(0.4) else of_k
        call["key"] = self.jagged(of_k, 1 if self.maybe(0.1) else H, D)
        call["value"] = self.jagged(of_k[::-1] if self.maybe(0.1) else of_k, H, E)
        if self.maybe(0.3):
            call["scale"] = 0.3
        if self.maybe(0.1):
            call["is_causal"] = True
        if self.maybe(0.1):
            call["attn_mask"] = torch.ones(1)
        if self.maybe(0.1):
            call["dropout_p"] = self.pick.choice([1.0, 2.0])
        return call


def attempt(function: Any, call: dict[str, Any]) -> Any:
    """The call's result or error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of rows without keys
        try:
            return function(**call)
        except Exception as error:
            return error


def assert_equal(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype and got.is_nested == want.is_nested
    if got.is_nested:
        assert torch.equal(got.offsets(), want.offsets()) and got._ragged_idx == want._ragged_idx
        got, want = (x.transpose(1, 2) if x._ragged_idx == 2 else x for x in (got, want))
        got, want = got.values(), want.values()
    bound = 8 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, want, rtol=bound, atol=4 * bound)


@pytest.fixture(scope="module")
def outcomes() -> Any:
    """Counts calls by outcome: "raised", computed by qkv ("own"), or "handed" to PyTorch."""
    counts: Counter[str] = Counter()
    handed = []
    whole, ours.as_torch = ours.as_torch, lambda *given: handed.append(given) or whole(*given)
    try:
        for number in range(CALLS):
            call = (Nested if number % 10 == 9 else Draw)(number).call()
            handed.clear()
            with sdpa_kernel(SDPBackend.MATH):
                want = attempt(sdpa, call)
            got = attempt(qkv.torch.scaled_dot_product_attention, call)
            if isinstance(want, Exception):
                assert type(got) is type(want), f"call {number}: {want!r}, but {got!r}"
                counts["raised"] += 1
            else:
                assert isinstance(got, torch.Tensor), f"call {number}: {got!r}"
                try:
                    assert_equal(got, want)
                except AssertionError as error:
                    raise AssertionError(f"call {number}") from error
                # Calls with empty tensors, which PyTorch answers before its checks, and jagged
                # tensors whose second axis is the jagged one are left to PyTorch.
                empty = any(call[name].numel() == 0 for name in ("query", "key", "value"))
                jagged_heads = want.is_nested and want._ragged_idx == 1
                assert empty or jagged_heads or not handed, f"call {number} was not computed here"
                counts["handed" if handed else "own"] += 1
    finally:
        ours.as_torch = whole
    return counts


def test_random_calls_are_equal_or_both_raise(outcomes):
    # The fixture compares the calls; only their number is checked here.
    assert sum(outcomes.values()) == CALLS


def test_random_calls_are_of_both_kinds(outcomes):
    """Many calls are computed and many raise, so the comparison covers both."""
    assert outcomes["own"] > 250 and outcomes["raised"] > 100, outcomes
