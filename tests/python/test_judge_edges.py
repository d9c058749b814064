# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of random calls: NaN, masked or not, empty arrays, strides, threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge import as_float64, needs_torch, torch, worst
from scale import some

if torch is not None:
    from judge_calls import arguments, backward, forward, shown
    from judge_cases import Case, draw_into, make_case
    from oracle_layout import Call, gather, lay_out, leaves
    from oracle_torch import dropout_factor, evaluate, scores

    import qkv

pytestmark = needs_torch
ODD = (np.nan, np.inf, -np.inf)
# The results that masked elements do not affect. They do affect raw and capped scores.
STAYS = ("out", "weights", "dropped", "masked", "lse", "row_max", "column_sums", "entropy",
         "value_sums", "pooled")  # fmt: skip


def uses(call: Call, name: str, mark: Any) -> Any:
    """Counts, for each element of the argument `name`, its marked copies in the problems' arrays.

    `mark(p, x)` sums x over the marked elements of the problem p; x is p.q, p.k, p.v or p.bias.
    """
    tracked = call.map(lambda n, x: x.clone().requires_grad_(True) if n == name else x)
    total = torch.zeros(())
    for p in lay_out(tracked):
        total = total + mark(p, torch.ones_like(getattr(p, name)) * getattr(p, name))
    (count,) = torch.autograd.grad(total, [getattr(tracked, name)], allow_unused=True)
    return count if count is not None else torch.zeros_like(getattr(call, name))


def finite(call: Call) -> Call:
    """Replaces -inf by numbers, so that counting by derivatives gives no NaN."""
    return call.map(lambda _n, x: x.nan_to_num() if x.is_floating_point() else x)


def live_of(case: Case) -> list[Any]:
    return [scores(p).live for p in lay_out(case.call)]


def seen(case: Case, name: str) -> Any:
    """Whether an unmasked ("live") pair reads each element of an argument; bool of its shape."""
    lives = iter(live_of(case))

    def mark(p: Any, x: Any) -> Any:
        live = next(lives)
        if name == "bias":
            return (x * p.allowed).sum()
        axis = -1 if name == "q" else -2
        return (x * live.any(axis)[..., None]).sum()

    return uses(finite(case.call), name, mark) > 0


def poisoned(case: Case) -> Case:
    """The case with NaN and infinities in all elements that no unmasked pair reads."""
    rng = np.random.default_rng([case.seed, 2])
    new = {}
    for name in ("q", "k", "v", "bias"):
        x = getattr(case.call, name)
        if x is not None:
            poison = torch.from_numpy(rng.choice(ODD, size=tuple(x.shape)))
            new[name] = torch.where(seen(case, name), x, poison)
    return replace(case, call=replace(case.call, **new))


def differences(clean: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [
        name
        for name, x in clean.items()
        if not np.array_equal(as_float64(x), as_float64(other[name]), equal_nan=True)
    ]


def results_of(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outputs named in STAYS, the largest weights and their keys, and the gradients."""
    found = forward(case)
    if "out" not in case.into:
        draw_into(case, found)
    gradients = {} if case.call.v is None else backward(case, arguments(case), found)
    outputs = {name: x for name, x in found.items() if name in STAYS}
    if "top" in found:
        outputs["top_weights"], outputs["top_keys"] = found["top"]
    return outputs, gradients


@pytest.mark.parametrize("block", range(25))
def test_masked_elements_change_no_bit(block: int) -> None:
    wrong = []
    for seed in some(range(10_000 + block * 10, 10_000 + (block + 1) * 10)):
        case = make_case(seed)
        clean, clean_gradients = results_of(case)
        outputs, gradients = results_of(poisoned(case))
        names = differences(clean, outputs) + differences(clean_gradients, gradients)
        wrong += [f"{case}\n    differ: {names}"] if names else []
    assert not wrong, "\n" + "\n".join(wrong)


def nan_rows(case: Case, name: str, place: int) -> tuple[Case, list[Any]]:
    """The case with NaN at flat index `place` of q or k; for each problem, which rows are NaN."""
    x = getattr(case.call, name).clone()
    marker = torch.zeros_like(x)
    x.view(-1)[place], marker.view(-1)[place] = np.nan, 1.0
    hit = [
        (
            getattr(p, name).amax(-1)[..., :, None]
            if name == "q"
            else getattr(p, name).amax(-1)[..., None, :]
        )
        > 0
        for p in lay_out(replace(finite(case.call), **{name: marker}))
    ]
    rows = [(live & h).any(-1) for live, h in zip(live_of(case), hit)]
    return replace(case, call=replace(case.call, **{name: x})), rows


@pytest.mark.parametrize("name", ["q", "k"])
@pytest.mark.parametrize("block", range(8))
def test_a_live_nan_makes_its_rows_nan_and_no_other(name: str, block: int) -> None:
    wrong = []
    for seed in some(range(20_000 + block * 10, 20_000 + (block + 1) * 10)):
        case = make_case(seed)
        case.call = case.call.map(lambda _n, x: x.contiguous())
        case.styles = dict.fromkeys(case.styles, "plain")
        if getattr(case.call, name).numel() == 0:
            continue
        clean, _ = results_of(case)
        bad, rows = nan_rows(case, name, seed % getattr(case.call, name).numel())
        wrong += [f"{case}\n    {line}" for line in _spread(case, clean, bad, rows)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("block", range(8))
def test_a_live_value_of_nan_stays_in_its_channel(block: int) -> None:
    """NaN enters out also through a dropped weight, as 0 * NaN is NaN.

    The key's value sum is NaN, too. Weights and dv do not depend on v.
    """
    wrong = []
    for seed in some(range(40_000 + block * 10, 40_000 + (block + 1) * 10)):
        case = make_case(seed)
        case.styles = dict.fromkeys(case.styles, "plain")
        if case.call.v is None or case.call.v.numel() == 0:
            continue
        clean, clean_gradients = results_of(case)
        v, marker = case.call.v.clone().contiguous(), torch.zeros(case.call.v.shape)
        place = seed % v.numel()
        v.view(-1)[place], marker.view(-1)[place] = np.nan, 1.0
        outputs, gradients = results_of(replace(case, call=replace(case.call, v=v)))
        marked = lay_out(replace(finite(case.call), v=marker.double()))
        pairs = list(zip(live_of(case), marked))
        hit = {
            "out": [live.double() @ p.v for live, p in pairs],
            "value_sums": [live.any(-2) * p.v.amax(-1) for live, p in pairs],
        }
        names = []
        for name in hit.keys() & clean.keys():
            nan = as_float64(gather(case.call, name, hit[name])) > 0
            got, old = as_float64(outputs.pop(name)), as_float64(clean.pop(name))
            if not np.array_equal(np.isnan(got), nan) or not np.array_equal(got[~nan], old[~nan]):
                names.append(name)
        names += differences(clean, outputs)
        names += differences({"v": clean_gradients["v"]}, gradients)
        wrong += [f"{case}\n    wrong: {names}"] if names else []
    assert not wrong, "\n" + "\n".join(wrong)


def _spread(case: Case, clean: dict[str, Any], bad: Case, rows: list[Any]) -> list[str]:
    # Complains unless NaN is where `rows` says, and lse and out of other rows are unchanged.
    outputs, gradients = results_of(bad)
    hit = as_float64(gather(case.call, "lse", rows)) > 0  # [..,Tq], as lse
    wrong = []
    lse, old = as_float64(outputs["lse"]), as_float64(clean["lse"])
    if not np.array_equal(np.isnan(lse), hit):
        wrong.append(f"lse is NaN in {int(np.isnan(lse).sum())} rows, expected {int(hit.sum())}")
    if not np.array_equal(lse[~hit], old[~hit]):
        wrong.append("lse of other rows changed")
    if case.call.v is None:
        return wrong
    wide = as_float64(gather(case.call, "out", [r[..., None] for r in rows])) > 0
    wide = np.broadcast_to(wide, as_float64(outputs["out"]).shape)
    out, old = as_float64(outputs["out"]), as_float64(clean["out"])
    if not np.isnan(out[wide]).all():
        wrong.append("out of a NaN row shows a number")
    if not np.array_equal(out[~wide], old[~wide]):
        wrong.append("out of other rows changed")
    return wrong + _spread_of_gradients(case, gradients, rows)


def _spread_of_gradients(case: Case, gradients: dict[str, Any], rows: list[Any]) -> list[str]:
    """Complaints unless dq is NaN exactly in NaN rows; dk, dv exactly at their unmasked keys."""
    wrong = []
    for name in ("q", "k", "v"):
        expected = _expected_nan(case, name, rows)
        got = np.isnan(as_float64(gradients[name]))
        if (name == "q" and case.call.score == "additive") or name == "k":
            expected, got = expected.any(-1), got.any(-1)
        if not np.array_equal(got, expected):
            wrong.append(f"d{name} is NaN at {int(got.sum())}, expected {int(expected.sum())}")
    return wrong


def _expected_nan(case: Case, name: str, rows: list[Any]) -> np.ndarray:
    lives, hits = iter(live_of(case)), iter(rows)

    def mark(p: Any, x: Any) -> Any:
        live, hit = next(lives), next(hits)
        if name == "v":  # a dropped weight passes no gradient
            live = live & (dropout_factor(p) != 0) & ("out" in case.into)
        here = hit if name == "q" else (live & hit[..., None]).any(-2)
        return (x * here[..., None]).sum()

    return as_float64(uses(finite(case.call), name, mark)) > 0


@pytest.mark.parametrize("block", range(10))
def test_strides_kinds_and_threads_change_no_bit(block: int) -> None:
    wrong = []
    for seed in some(range(30_000 + block * 10, 30_000 + (block + 1) * 10)):
        case = make_case(seed)
        first = results_of(case)
        other = "numpy" if case.kinds["q"] == "torch" else "torch"
        plain = replace(case, threads=1 if case.threads == 2 else 2)
        plain.styles = dict.fromkeys(case.styles, "plain")
        plain.kinds = dict.fromkeys(case.kinds, other)
        second = results_of(plain)
        names = differences(first[0], second[0]) + differences(first[1], second[1])
        wrong += [f"{case}\n    differ: {names}"] if names else []
    assert not wrong, "\n" + "\n".join(wrong)


# ---- read-only, empty ---------------------------------------------------------------------------


def test_read_only_arrays_are_read_and_results_can_be_written() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape) for shape in ((2, 3, 4), (2, 5, 4), (2, 5, 6))]
    bias, lengths = rng.standard_normal((3, 5)), np.array([5, 2])
    for x in (*arrays, bias, lengths):
        x.flags.writeable = False
    out, lse = qkv.attention(*arrays, bias=bias, key_lengths=lengths, return_lse=True)
    assert out.flags.writeable and lse.flags.writeable
    dout = np.ones_like(out)
    for x in (dout, out, lse):
        x.flags.writeable = False
    g = qkv.attention_backward(dout, *arrays, out, lse, bias=bias, key_lengths=lengths)
    assert all(x.flags.writeable for x in (g.dq, g.dk, g.dv, g.dbias))


EMPTY = {
    "no batch": (0, 4, 2, 3, 5),
    "no heads": (2, 0, 2, 3, 5),
    "no queries": (2, 4, 2, 0, 5),
    "no keys": (2, 4, 2, 3, 0),
    "nothing": (0, 0, 1, 0, 0),
}


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("score", ["scaled_dot", "bilinear", "additive"])
@pytest.mark.parametrize("sizes", EMPTY.values(), ids=EMPTY)
def test_empty_arrays(sizes: tuple[int, ...], score: str, kind: str) -> None:
    b, h, g, tq, tk = sizes
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        x = rng.standard_normal(shape).astype(np.float32)
        return x if kind == "numpy" else torch.from_numpy(x)

    names = {"bilinear": {"W": (4, 4)}, "additive": {"Wq": (3, 4), "Wk": (3, 4), "v": (3,)}}
    params = {name: array(*shape) for name, shape in names.get(score, {}).items()} or None
    q, k, v = array(b, h, tq, 4), array(b, g, tk, 4), array(b, g, tk, 6)
    options = {"score": score, "params": params, "bias": array(tq, tk), "sinks": array(h)}
    found = qkv.attention(
        q,
        k,
        v,
        **options,
        return_weights=True,
        return_lse=True,
        return_row_max=True,
        return_column_sums=True,
        return_top=2,
    )
    shapes = [tuple(x.shape) for x in found[:-1]] + [tuple(x.shape) for x in found[-1]]
    assert shapes == [
        (b, h, tq, 6),
        (b, h, tq, tk),
        (b, h, tq),
        (b, h, tq),
        (b, h, tk),
        (b, h, tq, 2),
        (b, h, tq, 2),
    ]
    out, lse = found[0], found[2]
    wanted = np.broadcast_to(as_float64(options["sinks"])[:, None], (b, h, tq))
    if tk == 0:
        assert not as_float64(out).any() and worst(lse, wanted) == 0
        assert (as_float64(found[-1][1]) == -1).all()
    got = qkv.attention_backward(array(b, h, tq, 6), q, k, v, out, lse, **options)
    pairs = [(got.dq, q), (got.dk, k), (got.dv, v), (got.dbias, options["bias"])]
    pairs += [(got.dparams[name], params[name]) for name in params or {}]
    for x, source in pairs:
        assert tuple(x.shape) == tuple(source.shape) and not as_float64(x).any()


def test_the_oracle_names_arrays_and_results_as_the_package_does() -> None:
    case = make_case(4)
    assert set(leaves(case.call)) >= {"q", "k", "v"}
    assert {*evaluate(case.call), "pooled"} >= {*STAYS, "raw", "capped"}
    assert shown(case, "q", case.call.q).shape == tuple(case.call.q.shape)
