# SPDX-License-Identifier: Apache-2.0
"""Passes a case to the package, and judges the results."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Optional

import numpy as np
from bounds_torch import FLOAT64, LEAST, TERMS, UNIT, largest, magnitudes, naive, score_size, ulp
from judge import as_float64, check, torch
from judge_cases import Case, draw_into, make_case
from layouts import ARRAYS, styled
from oracle_layout import Call
from oracle_torch import evaluate, gradients, pooled

import qkv

# The names of results in the order in which they are returned.
SUMS = ("entropy", "value_sums", "pooled")
RESULTS = ("out", "weights", "scores", "lse", "row_max", "column_sums", "top", *SUMS)


# ---- arguments ----------------------------------------------------------------------------------


def shown(case: Case, name: str, x: Any) -> Any:
    """Converts a float64 or integer tensor to the array kind, dtype and strides of the case."""
    dtype = case.dtypes[name]
    if case.kinds.get(name) == "list":
        return x.tolist()
    if case.kinds.get(name, "numpy") == "torch":
        return styled(x.detach().to(getattr(torch, dtype)), case.styles[name])
    return styled(x.detach().numpy().astype(ARRAYS[dtype]), case.styles[name])


def arguments(case: Case) -> dict[str, Any]:
    """Keyword arguments of `qkv.attention`; those at their defaults are omitted."""
    given = case.call.map(lambda name, x: shown(case, name, x))
    plain = Call(None, None)
    options = {
        f.name: getattr(given, f.name)
        for f in fields(Call)
        if getattr(given, f.name) is not getattr(plain, f.name)
    }
    if not given.params:
        options.pop("params", None)
    return options


# ---- results ------------------------------------------------------------------------------------


def named(case: Case, result: Any) -> dict[str, Any]:
    """The results by the oracle's names."""
    flags = case.returns
    wanted = {
        "out": case.call.v is not None,
        "weights": "return_weights" in flags,
        "scores": "return_scores" in flags,
        "lse": "return_lse" in flags,
        "row_max": "return_row_max" in flags,
        "column_sums": "return_column_sums" in flags,
        "top": "return_top" in flags,
        **{name: f"return_{name}" in flags for name in SUMS},
    }
    order = [name for name in RESULTS if wanted[name]]
    values = (result,) if order == ["out"] else result
    if order != ["out"]:
        assert list(values._fields) == order, f"{values._fields} for {order}"
    assert len(values) == len(order), f"{len(values)} results, expected {order}"
    found = dict(zip(order, values))
    if "weights" in found and flags["return_weights"] == "dropped":
        found["dropped"] = found.pop("weights")
    if "scores" in found:
        found[flags["return_scores"]] = found.pop("scores")
    return found


def looks(case: Case, name: str, x: Any, dtype: str) -> list[str]:
    """A list with a complaint if a result does not have q's array type and this dtype."""
    if case.kinds["q"] == "torch":
        good = isinstance(x, torch.Tensor) and x.dtype == getattr(torch, dtype)
    else:
        good = type(x) is np.ndarray and x.dtype == ARRAYS[dtype]
    return (
        []
        if good
        else [
            f"{name}: {type(x).__name__} of {getattr(x, 'dtype', None)}, "
            f"expected {case.kinds['q']} {dtype}"
        ]
    )


def output_scales(case: Case, want: dict[str, Any]) -> dict[str, float]:
    """The magnitude of each output's terms."""
    call = case.call
    keep = 1 - call.dropout
    s = max(1.0, score_size(call))
    # Column sums and `pooled` add up to 128 positive terms in one sum (docs/mechanisms/sums.md).
    drift = max(1.0, min(128, want["lse"].shape[-1]) / TERMS)
    scales = {
        "weights": 1.0,
        "dropped": 1 / keep,
        "raw": s,
        "capped": s,
        "masked": s,
        "lse": s,
        "row_max": s,
        "column_sums": drift * max(1.0, largest(want["column_sums"])),
        "entropy": s + math.log(call.k.numel() + 2),
        "pooled": drift,
    }
    if call.v is not None:
        scales["out"] = largest(call.v) / keep
        scales["value_sums"] = scales["column_sums"] * largest(call.v.norm(dim=-1))
    return scales


def gap(want: Any, near: Any) -> float:
    """The naive composition's largest error; it may be small by chance: see `draws`."""
    x = torch.where(want == near, 0, (want - near.to(torch.float64)).abs())
    x = x[torch.isfinite(x)]
    return float(x.max()) if x.numel() else 0.0


def tolerance(case: Case, want: Any, error: float, rule: tuple[int, str, float]) -> float:
    """`rule` is (multiple of the naive error, dtype of the result, magnitude of its terms)."""
    times, dtype, scale = rule
    if case.dtype == "float64":
        return FLOAT64 * scale
    sums = TERMS * UNIT["float32"] / 2 * scale
    return times * error + 4 * ulp(largest(want), dtype) + sums + LEAST[dtype]


def forward(case: Case, given: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    """The results of `qkv.attention` for the case, always including lse."""
    given = dict(arguments(case) if given is None else given)
    case.returns["return_lse"] = True
    q, k, v = given.pop("q"), given.pop("k"), given.pop("v", None)
    return named(case, qkv.attention(q, k, v, **given, **case.returns, threads=case.threads))


def judge_outputs(case: Case, given: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Runs the forward pass, and draws `case.into`. Returns complaints, and results with lse."""
    found = forward(case, given)
    want = evaluate(case.call)
    near = {} if case.dtype == "float64" else naive(case.call, {}, "float32")[0]
    if "pooled" in found:
        for of in [want, near] if near else [want]:
            of["pooled"] = pooled(of["weights"], case.returns["return_pooled"])
    if case.dtype in ("bfloat16", "float16") and case.call.v is not None:
        near["out"] = naive(case.call, {}, case.dtype)[0]["out"]
    scales = output_scales(case, want)
    wrong: list[Any] = []
    for name, x in found.items():
        if name == "top":
            wrong += judge_top(case, x, want, top_limit(case, want, near))
            continue
        dtype = case.dtype if name == "out" else case.accumulator
        wrong += looks(case, name, x, dtype)
        error = gap(want[name], near[name]) if near else 0.0
        limit = tolerance(case, want[name], error, (2, dtype, scales[name]))
        wrong += [check(name, x, want[name], limit)]
    draw_into(case, {name: x for name, x in want.items() if name in ("out", "lse", "weights")})
    return [line for line in wrong if line], found


def contents(given: dict[str, Any]) -> dict[str, np.ndarray]:
    """The values of all arrays among the arguments."""
    flat = {**given, **{f"params.{name}": x for name, x in given.get("params", {}).items()}}
    kinds = (np.ndarray, torch.Tensor)
    return {name: as_float64(x) for name, x in flat.items() if isinstance(x, kinds)}


def changed(before: dict[str, np.ndarray], given: dict[str, Any]) -> list[str]:
    now = contents(given)
    return [
        f"{name}: changed by the call"
        for name, x in before.items()
        if not np.array_equal(x, now[name], equal_nan=True)
    ]


def top_limit(case: Case, want: dict[str, Any], near: dict[str, Any]) -> float:
    """The tolerance of the largest weights; from lse in packed calls, which have no weights."""
    name = "weights" if "weights" in want else "lse"
    error = gap(want[name], near[name]) if near else 0.0
    return tolerance(case, torch.ones(()), error, (2, case.accumulator, 1.0))


def judge_top(case: Case, top: Any, want: dict[str, Any], limit: float) -> list[str]:
    """Complaints about the largest weights and their keys.

    Weights must descend, and each key must be unmasked and have its weight. Keys of equal weights
    must ascend. Where a row has too few keys, the weight must be 0 and the key -1.
    """
    weights, keys = as_float64(top[0]), as_float64(top[1]).astype(np.int64)
    count = case.returns["return_top"]
    rows = want.get("weights of each", [want.get("weights")])
    lives = want.get("live of each", [want.get("live")])
    if "weights" not in want:  # packed sequences: [H, sum Tq, count]
        cuts = np.cumsum([0] + [w.shape[1] for w in rows])
        pieces = [(weights[:, a:b], keys[:, a:b]) for a, b in zip(cuts, cuts[1:])]
    else:
        pieces = [(weights, keys)]
    wrong = looks(case, "top_weights", top[0], case.accumulator)
    for w, live, (got, at) in zip(rows, lives, pieces):
        wrong += _top_of(as_float64(w), got, at, (count, limit))
        padded = np.concatenate([live.numpy(), np.ones((*w.shape[:-1], 1), dtype=bool)], axis=-1)
        if at.size and not np.take_along_axis(padded, at, axis=-1).all():
            wrong.append("top keys are not live")
    return wrong


def _top_of(w: Any, got: Any, at: Any, rule: tuple[int, float]) -> list[str]:
    count, limit = rule
    if got.shape != (*w.shape[:-1], count) or at.shape != got.shape:
        return [f"top: shapes {got.shape} and {at.shape}"]
    padded = np.concatenate([w, np.zeros((*w.shape[:-1], count))], axis=-1)
    best = -np.sort(-padded, axis=-1)[..., :count]
    if got.size and np.abs(got - best).max() > limit:
        return [f"top weights are off by {np.abs(got - best).max()}"]
    there = np.take_along_axis(padded, np.where(at < 0, w.shape[-1], at), axis=-1)
    if got.size and np.abs(there - got).max() > limit:
        return ["top keys do not hold the top weights"]
    falling = (np.diff(got, axis=-1) <= 0).all()
    ties = (np.diff(got, axis=-1) == 0) & (at[..., 1:] >= 0)
    ascending = (np.diff(at, axis=-1)[ties] > 0).all()
    rest = (got[at < 0] == 0).all()
    return [] if falling and ascending and rest else ["top is out of order"]


# ---- gradients ----------------------------------------------------------------------------------

FIELDS = {
    "q": "dq",
    "k": "dk",
    "v": "dv",
    "bias": "dbias",
    "alibi_slopes": "dalibi_slopes",
    "sinks": "dsinks",
}


def backward_arguments(
    case: Case, given: dict[str, Any], results: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of `qkv.attention_backward`: the forward pass's results, and `case.into`."""
    flow = {"dout": None, "out": results["out"], "lse": results["lse"]}
    for name, x in case.into.items():
        case.dtypes["d" + name] = case.dtype if name == "out" else case.accumulator
        case.kinds["d" + name] = case.kinds["q"]
        case.styles["d" + name] = ("plain", "permuted", "sliced")[case.seed % 3]
        flow["d" + name] = shown(case, "d" + name, x)
    return {**given, **flow, "threads": case.threads}


def backward(case: Case, given: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Gradients by the oracle's names, from the forward pass's results and `case.into`."""
    got = qkv.attention_backward(**backward_arguments(case, given, results))
    found = {name: getattr(got, attribute) for name, attribute in FIELDS.items()}
    found.update({f"params.{name}": x for name, x in (got.dparams or {}).items()})
    return {name: x for name, x in found.items() if x is not None}


def judge_gradients(case: Case, given: dict[str, Any], results: dict[str, Any]) -> list[str]:
    """Runs the backward pass on the results of the forward pass; returns complaints."""
    got = backward(case, given, results)
    want = gradients(case.call, case.into)
    scales = magnitudes(case.call, case.into)
    errors = dict.fromkeys(want, 0.0)
    wrong = [f"d{name} is given for an absent argument" for name in got if name not in want]
    wrong += [f"d{name} is not given" for name in want if name not in got]
    for name in set(got) & set(want):
        wrong += looks(case, "d" + name, got[name], case.dtypes[name])

    def complaints() -> list[str]:
        lines = []
        for name in set(got) & set(want):
            rule = (3, case.dtypes[name], scales[name])
            limit = slack() * tolerance(case, want[name], errors[name], rule)
            lines.append(check("d" + name, got[name], want[name], limit))
        return [line for line in lines if line]

    for draw in draws(case):
        near = naive(case.call, case.into, case.dtype, draw)[1]
        errors = {name: max(errors[name], gap(want[name], near[name])) for name in want}
        if not complaints():
            break
    return wrong + complaints()


def slack() -> int:
    """The factor by which gradients may exceed the bound: 4 on sse4, which has no fused
    multiply-add and rounds each product (docs/performance.md#paths-and-targets)."""
    return 4 if qkv.info()["cpu_target"] == "sse4" else 1


def draws(case: Case) -> range:
    """The draws of `reduced` to try until naive's error is not too small by chance; only draw 0 in
    float32, whose sums have their own allowance."""
    if case.dtype == "float64":
        return range(0)
    return range(1 if case.dtype == "float32" else 16)


def judge(case: Case) -> list[str]:
    """All complaints about one case: two lines each, the case and what is wrong."""
    given = arguments(case)
    before = contents(given)
    wrong, results = judge_outputs(case, given)
    if case.call.v is not None:
        wrong += judge_gradients(case, given, results)
    wrong += changed(before, given)
    return [f"{case}\n    {line}" for line in wrong]


def right_arguments(function: str, seed: int, kind: Optional[str] = None) -> dict[str, Any]:
    """All arguments of attention or attention_backward; `kind` of arrays, None for any."""
    case = make_case(seed)
    if kind:
        case.kinds = {name: "list" if was == "list" else kind for name, was in case.kinds.items()}
    given = {**arguments(case), "threads": case.threads}
    if function == "attention":
        return {**given, **case.returns}
    if case.call.v is None:
        return right_arguments(function, seed + 1, kind)
    given.pop("threads")
    results = forward(case, given)
    draw_into(case, results)
    return backward_arguments(case, given, results)
