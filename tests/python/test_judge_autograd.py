# SPDX-License-Identifier: Apache-2.0
"""Compares qkv.torch on random calls with attention_backward and with torch's own function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judge import check, needs_torch, torch
from scale import some

if torch is not None:
    from bounds_torch import ulp
    from judge_calls import arguments, backward, forward, named, shown
    from judge_cases import draw_into, make_case

    import qkv.torch

pytestmark = needs_torch


def leaf(x: Any, wanted: bool) -> Any:
    return x.requires_grad_(True) if wanted and x.is_floating_point() else x


def through_autograd(case: Any, given: dict[str, Any], flow: dict[str, Any]) -> dict[str, Any]:
    """Gradients by the oracle's names, of q and about three quarters of the other arrays."""
    rng = np.random.default_rng([9, case.seed])
    options = dict(given)
    params = options.pop("params", {})
    tensors = {name: x for name, x in options.items() if isinstance(x, torch.Tensor)}
    tensors.update({f"params.{name}": x for name, x in params.items()})
    leaves = {name: leaf(x, name == "q" or rng.random() < 0.75) for name, x in tensors.items()}
    if params:
        options["params"] = {name: leaves[f"params.{name}"] for name in params}
    options.update({name: x for name, x in leaves.items() if not name.startswith("params.")})
    q, k, v = (options.pop(name) for name in ("q", "k", "v"))
    result = qkv.torch.attention(q, k, v, **options, **case.returns, threads=case.threads)
    found = named(case, result)
    asked = {name: x for name, x in leaves.items() if x.requires_grad}
    got = torch.autograd.grad(
        [found[name] for name in flow], list(asked.values()), list(flow.values())
    )
    return dict(zip(asked, got))


@pytest.mark.parametrize("block", range(15))
def test_autograd_gives_the_bits_of_attention_backward(block: int) -> None:
    wrong = []
    for seed in some(range(50_000 + block * 10, 50_000 + (block + 1) * 10)):
        case = make_case(seed)
        if case.call.v is None:
            continue
        case.kinds = {name: "list" if kind == "list" else "torch"
                      for name, kind in case.kinds.items()}  # fmt: skip
        given = arguments(case)
        results = forward(case, given)
        draw_into(case, results)
        want = backward(case, given, results)
        flow = {name: shown(case, "d" + name, x) for name, x in case.into.items()}
        got = through_autograd(case, given, flow)
        names = [name for name, x in got.items() if not torch.equal(x, want[name])]
        wrong += [f"{case}\n    differ: {names}"] if names else []
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("block", range(10))
def test_scaled_dot_product_attention_equals_torchs(block: int) -> None:
    wrong = []
    for seed in some(range(block * 10, block * 10 + 10)):
        rng = np.random.default_rng([11, seed])
        heads, key_heads = ((4, 2), (3, 1), (3, 3), (1, 1))[seed % 4]
        tq, tk, d, e = (int(n) for n in rng.integers(1, 20, 4))
        dtype = (torch.float64, torch.float32)[seed // 4 % 2]
        lead = (int(rng.integers(1, 4)),)
        shapes = ((*lead, heads, tq, d), (*lead, key_heads, tk, d), (*lead, key_heads, tk, e))
        arrays = [
            torch.from_numpy(rng.standard_normal(shape)).to(dtype).requires_grad_(True)
            for shape in shapes
        ]
        options: dict[str, Any] = {"enable_gqa": heads != key_heads}
        mask_kind = seed % 3
        if mask_kind == 0:
            keep = torch.from_numpy(rng.random((tq, tk)) < 0.7)
            keep[:, 0] = True
            options["attn_mask"] = keep
        elif mask_kind == 1:
            options["attn_mask"] = torch.from_numpy(rng.standard_normal((heads, tq, tk))).to(dtype)
        else:
            options["is_causal"] = True
        if rng.random() < 0.5:
            options["scale"] = 0.4
        wrong += _compare(seed, arrays, options)
    assert not wrong, "\n".join(wrong)


def _compare(seed: int, arrays: list[Any], options: dict[str, Any]) -> list[str]:
    ours = qkv.torch.scaled_dot_product_attention(*arrays, **options)
    theirs = torch.nn.functional.scaled_dot_product_attention(*arrays, **options)
    dout = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(seed))
    dout = dout.to(theirs.dtype)
    got = [ours, *torch.autograd.grad(ours, arrays, dout)]
    want = [theirs, *torch.autograd.grad(theirs, arrays, dout)]
    dtype = str(theirs.dtype).split(".")[1]
    lines = []
    for name, x, y in zip(("out", "dq", "dk", "dv"), got, want):
        limit = 64 * ulp(max(1.0, float(y.detach().abs().max())), dtype)
        lines.append(check(f"{seed} {name}", x, y, limit))
    return [line for line in lines if line]
