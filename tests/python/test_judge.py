# SPDX-License-Identifier: Apache-2.0
"""Compares thousands of random calls with float64 PyTorch and its autograd.

A failure prints its case; `python tests/python/test_judge.py SEED...` reruns it alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from judge import needs_torch, torch
from layouts import INTEGERS
from scale import some

from qkv import _core

if torch is not None:
    from judge_calls import judge
    from judge_cases import make_case

pytestmark = needs_torch
BLOCKS, PER_BLOCK = 200, 18


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_calls(block: int) -> None:
    wrong = []
    for seed in some(range(block * PER_BLOCK, (block + 1) * PER_BLOCK)):
        wrong += judge(make_case(seed))
    assert not wrong, "\n" + "\n".join(wrong)


# {feature: how many of the first thousand cases must have it}.
AT_LEAST = {
    **{f"score {name}": 80 for name in ("dot", "scaled_dot", "cosine", "bilinear", "additive")},
    **{f"dtype {name}": 100 for name in ("float64", "float32", "bfloat16", "float16")},
    **{f"family {name}": 60 for name in ("two", "three", "four", "five", "mixed", "packed")},
    **{f"style {name}": 300 for name in ("plain", "permuted", "sliced", "reversed", "repeated")},
    **{f"style {name}": 100 for name in ("read-only", "odd", "swapped")},
    **{f"dtype of integers {name}": 30 for name in INTEGERS},
    **{f"return_{name}": 150 for name in ("entropy", "value_sums", "pooled", "top", "weights")},
    **{f"return_{name}": 150 for name in ("row_max", "column_sums", "scores")},
    **{f"kind {name}": 300 for name in ("numpy", "torch")},
    **{name: 150 for name in ("causal", "bias", "key_lengths", "sinks", "softcap", "scale")},
    **{name: 100 for name in ("mask", "padding_mask", "window", "alibi_slopes", "dropout")},
    **{name: 60 for name in ("causal_offset", "family bthd", "float32 queries", "grouped heads")},
    **{name: 30 for name in ("past a chunk of keys", "kind list", "no v", "slopes of entries")},
    **{f"no {name}": 5 for name in ("queries", "keys", "heads", "batch")},
}


def traits(case: Any) -> list[str]:
    call = case.call
    found = [f"score {call.score}", f"dtype {case.dtype}", f"family {case.family}"]
    found += [f"style {style}" for style in set(case.styles.values())]
    found += [f"kind {kind}" for kind in set(case.kinds.values())]
    found += [f"dtype of integers {dtype}" for dtype in set(case.dtypes.values())]
    found += [name for name, value in case.returns.items() if value]
    for name in AT_LEAST:
        value = getattr(call, name, None)
        if value is not None and (isinstance(value, torch.Tensor) or value):
            found.append(name)
    keys = call.k.shape[1 if case.family == "bthd" else 0 if case.family == "packed" else -2]
    slopes = call.alibi_slopes
    facts = {
        "slopes of entries": slopes is not None and slopes.ndim == 2 and slopes.shape[0] > 1,
        "float32 queries": case.dtype != case.dtypes["k"],
        "grouped heads": case.family == "four" and call.q.shape[1] != call.k.shape[1],
        "past a chunk of keys": keys > 512,
        "no v": call.v is None,
        "no queries": case.family in ("two", "three", "four") and call.q.shape[-2] == 0,
        "no keys": keys == 0,
        "no heads": case.family == "four" and call.q.shape[1] == 0,
        "no batch": case.family in ("three", "four") and call.q.shape[0] == 0,
    }
    return found + [name for name, holds in facts.items() if holds]


def test_the_cases_have_everything() -> None:
    counted = Counter(name for seed in range(1000) for name in traits(make_case(seed)))
    few = {name: counted[name] for name, least in AT_LEAST.items() if counted[name] < least}
    assert not few, few


def test_the_cases_request_every_result() -> None:
    drawn = {"out", "lse"}  # which the judge always requests
    for seed in range(200):
        for request, value in make_case(seed).returns.items():
            name = request[len("return_") :]
            if name == "weights":
                name = "dropped_weights" if value == "dropped" else "weights"
            drawn.add(f"{value}_scores" if name == "scores" else name)
    assert drawn == set(_core.RESULT_AXES)


if __name__ == "__main__":
    for number in sys.argv[1:]:
        case = make_case(int(number))
        print(case)
        print("\n".join(judge(case)) or "    agrees")
