# SPDX-License-Identifier: Apache-2.0
"""Translates the rows of tests/errors.tsv to calls of the package.

The head of the table describes its language. `translate` gives a Call, or the reason why Python
has no such call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import ml_dtypes
import numpy as np

TABLE = Path(__file__).resolve().parents[1] / "errors.tsv"

FUNCTIONS = (
    "attention", "attention_backward", "merge", "softmax", "masked_softmax", "batch_dot",
)  # fmt: skip

# {name in the table: name in Python}, for arguments and messages.
NAMES = {
    "keep": "mask",
    "padding": "padding_mask",
    "alibi": "alibi_slopes",
    "diagonal": "causal_offset",
    "dropout.p": "dropout",
    "dropout.seed": "seed",
    "bilinear.w": 'params["W"]',
    "additive.wq": 'params["Wq"]',
    "additive.wk": 'params["Wk"]',
    "additive.v": 'params["v"]',
    "additive.b": 'params["b"]',
    "qk_norm.q": 'params["norm_q"]',
    "qk_norm.k": 'params["norm_k"]',
    "qk_norm.eps": "qk_norm",
    "rotary.base": "rotary_base",
    "rotary.width": "rotary_width",
    "rotary.frequencies": "rotary_frequencies",
    "rotary.q_positions": "q_positions",
    "rotary.k_positions": "k_positions",
    "saved.out": "out",
    "saved.lse": "lse",
    "output_gradients.out": "dout",
    "output_gradients.lse": "dlse",
    "output_gradients.weights": "dweights",
    "top.count": "return_top",
    "weights": "return_weights",
    "dropped_weights": "return_weights",
    "raw_scores": "return_scores",
    "capped_scores": "return_scores",
    "masked_scores": "return_scores",
    "entropy": "return_entropy",
    "column_sums": "return_column_sums",
    "value_sums": "return_value_sums",
    "pooled": "return_pooled",
    "mods": "score_mod",
    "mods[0]": "score_mod",
    "window.left": "window[0]",
    "window.right": "window[1]",
    "column_sums.rows": "return_column_sums",
    "weights.rows": "rows",
    "raw_scores.rows": "rows",
    "capped_scores.rows": "rows",
    "masked_scores.rows": "rows",
    "output_gradients.weights.rows": "rows",
}
# Further names, of the arguments of one function.
NAMES_OF = {
    "masked_softmax": {"lengths": "valid_len"},
}
# The option of Python that requests each result.
WANTED = {
    "lse": {"return_lse": True},
    "row_max": {"return_row_max": True},
    "entropy": {"return_entropy": True},
    "column_sums": {"return_column_sums": True},
    "value_sums": {"return_value_sums": True},
    "pooled": {"return_pooled": (2, 2)},
    "weights": {"return_weights": True},
    "dropped_weights": {"return_weights": "dropped"},
    "raw_scores": {"return_scores": "raw"},
    "capped_scores": {"return_scores": "capped"},
    "masked_scores": {"return_scores": "masked"},
}
RESULTS = {*WANTED, "out", "top.weights", "top.keys"}
SIGNED = {f"i{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)}
UNSIGNED = {f"u{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}
DTYPES = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "c128": np.complex128,
    **SIGNED,
    **UNSIGNED,
}

# The reasons for which a row has no call in Python.
NO_FUNCTION = "the function is one of C++ only"
EMPTY_FUNCTION = "score_mod and mask_mod are functions, which are never empty"
PRECOMPUTED = "precomputed masks are C++"
CONTEXT = "contexts are C++"
RESULT = "results are made by the call"
GRADIENT = "gradients are made by the call"
PAGES = "attention_backward has no keys in pages"
NONE_IS_DEFAULT = "None means that the option is not given"
TOO_LARGE = "NumPy has no array of 2^63 bytes or more"


@dataclass(frozen=True)
class Row:
    """A row of the table: an invalid call and its error."""

    line: int
    id: str
    call: str
    kind: str
    message: str

    @property
    def function(self) -> str:
        return self.call.split(" ")[0]

    @property
    def arguments(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.call.split(" ")[1:])

    @property
    def subject(self) -> str:
        """The argument that the message is about."""
        return self.message.split(": ")[1].split(" ")[0]


@dataclass
class Call:
    """The call of a row: positional arguments (q, k, v and so on), and options by name."""

    function: str
    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)
    message: str = ""


def read_table() -> list[Row]:
    rows = []
    for number, line in enumerate(TABLE.read_text(encoding="utf-8").splitlines(), 1):
        if line and not line.startswith("#"):
            rows.append(Row(number, *line.split("\t")))
    return rows


# ---- arrays --------------------------------------------------------------------------------------


def list_of(text: str) -> list[int]:
    return [int(number) for number in text.strip("[]").split(",") if number]


def make_array(text: str) -> np.ndarray:
    """The array of DTYPE[SIZES]/[STRIDES]{VALUES}, in memory just large enough for its strides."""
    parts = re.fullmatch(r"(\w+)(\[[^]]*\])(?:/(\[[^]]*\]))?(?:\{(.*)\})?", text)
    assert parts is not None, f"{text} is no array of the table"
    dtype = np.dtype(DTYPES[parts[1]])
    shape = list_of(parts[2])
    default = 0 if dtype.kind in "iu" else 1
    if parts[3] is None:
        array = np.full(shape, default, dtype)
    else:
        strides = list_of(parts[3])
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides))
        assert 0 <= reach < 2**20 and min(strides) >= 0
        memory = np.full(reach + 1, default, dtype)
        in_bytes = [stride * dtype.itemsize for stride in strides]
        array = np.lib.stride_tricks.as_strided(memory, shape, in_bytes)
    if parts[4] is not None:
        array[...] = np.array([int(v) for v in parts[4].split(",")], dtype).reshape(shape)
    return array


def is_too_large(text: str) -> bool:
    shape = list_of(re.split(r"[/@{]", text.split("[", 1)[1])[0])
    elements = 1
    for size in shape:
        elements *= max(size, 1)
    return elements * np.dtype(DTYPES[text.split("[")[0]]).itemsize >= 2**63


def arrays_of(call: Call) -> Iterator[np.ndarray]:
    """Every array passed to the call."""
    values = [*call.positional, *call.keywords.values(), *call.keywords.get("params", {}).values()]
    return (value for value in values if isinstance(value, np.ndarray))


# ---- calls ---------------------------------------------------------------------------------------


def reason_against(row: Row) -> Union[str, None]:
    """The reason why Python has no such call; None if it has one."""
    arguments = row.arguments
    if row.function not in FUNCTIONS:
        return NO_FUNCTION
    if any("empty" in arguments.get(name, "").split(",") for name in ("mods", "mask_mod")):
        return EMPTY_FUNCTION
    if "precomputed" in arguments:
        return PRECOMPUTED
    if any(name.split(".")[0] == "context" for name in arguments):
        return CONTEXT
    if row.subject.split(".")[0] == "input_gradients":
        return GRADIENT
    if row.function == "attention_backward" and row.subject == "block_tables":
        return PAGES
    if row.function == "merge":
        return RESULT if "share memory" in row.message else None
    if row.subject in RESULTS and "is not available" not in row.message:
        return RESULT
    if "absent" in arguments.values():
        return NONE_IS_DEFAULT
    sized = ("q", "k", "v", "block_tables")
    if any(is_too_large(value) for name, value in arguments.items() if name in sized):
        return TOO_LARGE
    return None


def value_of(name: str, text: str) -> Any:
    if "[" in text:
        return make_array(text)
    if name in ("mods", "mask_mod"):
        return {"identity": lambda s, at: s, "all": lambda at: True}[text]
    if name in ("transpose_a", "transpose_b", "causal"):
        return True
    if name in ("window", "shard"):
        return tuple(list_of(text))
    if name in ("dropout.seed", "top.count", "diagonal", "rotary.width"):
        return int(text)
    return text if name in ("score", "rotary") else float(text)


def python_text(function: str, text: str) -> str:
    """A message with the Python names of the arguments."""
    names = {**NAMES, **NAMES_OF.get(function, {})}
    # Longer names are replaced first, "dropout.p" before "dropout"; never inside other words.
    longest = sorted(names, key=len, reverse=True)
    any_name = "|".join(re.escape(name) for name in longest)
    pattern = rf"(?<![\w.\"])({any_name})(?![\w\"]|\.\w)"
    return re.sub(pattern, lambda found: names[found[1]], text)


def order_of(function: str) -> tuple[str, ...]:
    """The names of the positional parameters of a function."""
    return {
        "attention": ("q", "k", "v"),
        "attention_backward": ("output_gradients.out", "q", "k", "v", "saved.out", "saved.lse"),
        "merge": ("out", "lse", "out2", "lse2"),
        "softmax": ("x",),
        "masked_softmax": ("x", "lengths"),
        "batch_dot": ("a", "b"),
    }[function]


def translate(row: Row) -> Union[Call, str]:
    """The row as a call of the package, or the reason why there is none."""
    reason = reason_against(row)
    if reason is not None:
        return reason
    call = Call(row.function, message=python_text(row.function, row.message))
    values = row.arguments
    for name in order_of(row.function):
        call.positional.append(value_of(name, values.pop(name)) if name in values else None)
    for name, text in values.items():
        if name.split(".")[0] == "input_gradients" or name in ("out", "top.weights", "top.keys"):
            continue  # Python makes the outputs itself
        if name in WANTED:
            call.keywords.update(WANTED[name])
        elif NAMES.get(name, name).startswith("params["):
            key = NAMES[name].split('"')[1]
            call.keywords.setdefault("params", {})[key] = value_of(name, text)
        else:
            call.keywords[NAMES.get(name, name)] = value_of(name, text)
    return call
