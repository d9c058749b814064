# SPDX-License-Identifier: Apache-2.0
"""Tests qkv/c.h by ctypes against the Python package: bits, gradients, plans and errors."""

from __future__ import annotations

from ctypes import byref, c_int32, c_void_p, sizeof
from typing import Any, Optional

import c_library as c
import ml_dtypes
import numpy as np
import pytest

import qkv

pytestmark = pytest.mark.skipif(not c.PATH.is_file(), reason=f"there is no shared library {c.PATH}")

B, H, G, TQ, TK, D, E, U = 2, 4, 2, 9, 13, 8, 6, 5
random = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return random.standard_normal(shape, np.float32)


Q, K, V = normal(B, H, TQ, D), normal(B, G, TK, D), normal(B, G, TK, E)
BILINEAR = {"W": normal(D, D)}
ADDITIVE = {"Wq": normal(U, D), "Wk": normal(U, D), "v": normal(U), "b": normal(U)}
GAINS = {"norm_q": normal(D), "norm_k": normal(G, D)}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dot": {"score": "dot", "scale": 0.3},
    "cosine": {"score": "cosine", "scale": 5.0, "causal": "top_left"},
    "bilinear": {"score": "bilinear", "params": BILINEAR, "causal": True},
    "additive": {"score": "additive", "params": ADDITIVE, "window": (4, 0)},
    "norm": {"qk_norm": 1e-3, "params": GAINS, "rotary": "halves", "rotary_base": 500.0},
    "rotary": {"rotary": "neighbours", "rotary_width": 4, "q_positions": np.arange(TQ) * 2},
    "bias": {"bias": normal(TQ, TK), "softcap": 3.0, "alibi_slopes": np.abs(normal(H))},
    "masks": {
        "mask": random.random((B, 1, TQ, TK)) < 0.8,
        "padding_mask": random.random((B, TK)) < 0.2,
        "key_lengths": np.array([TK, 7]),
    },
    "offset": {"causal": True, "causal_offset": 2, "sinks": normal(H)},
    "offsets": {"causal": True, "causal_offset": np.array([3, 0], np.int32)},
    "dropout": {"dropout": 0.4, "seed": 2**63 + 5},
    "shard": {"causal": True, "shard": (4, 40, 8, 48), "dropout": 0.1, "seed": 1},
}


@pytest.fixture(scope="module")
def library() -> c.Library:
    return c.Library(c.PATH)


def inputs_of(library: c.Library, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Any:
    inputs = library.new(c.Inputs)
    inputs.q, inputs.k, inputs.v = c.tensor(q), c.tensor(k), c.tensor(v)
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        setattr(inputs, name, c.tensor(options.get(name)))
    if "shard" in options:
        inputs.shard = c.Shard(1, 0, *options["shard"])
    return inputs


def set_rows(to: Any, options: dict[str, Any]) -> None:
    """Sets the options that act on rows of q and k before the score, and the parameters."""
    params = options.get("params", {})
    if "qk_norm" in options:
        gains = (c.tensor(params.get(name)) for name in ("norm_q", "norm_k"))
        to.qk_norm = c.QkNorm(1, 0, options["qk_norm"], *gains)
    if "rotary" in options:
        to.rotary.pairs = c.CONSTANTS["QKV_" + options["rotary"].upper()]
        to.rotary.base = options.get("rotary_base", to.rotary.base)
        to.rotary.width = options.get("rotary_width", 0)
        to.rotary.q_positions = c.tensor(options.get("q_positions"))
    to.bilinear.w = c.tensor(params.get("W"))
    to.additive = c.Additive(*(c.tensor(params.get(name)) for name in ("Wq", "Wk", "v", "b")))


def set_diagonal(to: Any, options: dict[str, Any]) -> None:
    offset = options.get("causal_offset")
    if options.get("causal") == "top_left":
        to.diagonal.kind = c.CONSTANTS["QKV_TOP_LEFT"]
    if isinstance(offset, int):
        to.diagonal.kind, to.diagonal.offset = c.CONSTANTS["QKV_OFFSET"], offset
    elif offset is not None:
        to.diagonal.kind = c.CONSTANTS["QKV_OFFSETS"]
        to.diagonal.offsets = c.tensor(offset)


def options_of(library: c.Library, options: dict[str, Any]) -> Any:
    """Converts the options of Python to the struct of C."""
    to = library.new(c.Options)
    set_rows(to, options)
    to.score = c.CONSTANTS["QKV_" + options.get("score", "scaled_dot").upper()]
    if "scale" in options:
        to.scale_given, to.scale = 1, options["scale"]
    to.softcap = options.get("softcap", 0)
    set_diagonal(to, options)
    to.causal = int(bool(options.get("causal")))
    to.window = c.Window(*options.get("window", (-1, -1)))
    arrays = {"bias": "bias", "alibi": "alibi_slopes", "sinks": "sinks", "keep": "mask"}
    arrays |= {"padding": "padding_mask", "key_lengths": "key_lengths"}
    for name, python in arrays.items():
        setattr(to, name, c.tensor(options.get(python)))
    if "dropout" in options:
        to.dropout = c.Dropout(options["dropout"], options["seed"], 1, 0)
    return to


def same(got: Any, want: Any) -> bool:
    return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


class Forward:
    """The forward pass by Python, and the structs of the same call for C."""

    def __init__(self, library: c.Library, q: Any, k: Any, v: Any, options: dict[str, Any]) -> None:
        self.q, self.k, self.v, self.keywords = q, k, v, options
        self.packed = "cu_seqlens_q" in options
        extras = {"return_lse": True, "return_row_max": True, "return_column_sums": True}
        if not self.packed:
            extras |= {"return_weights": True, "return_entropy": True, "return_top": 3}
        self.want = qkv.attention(q, k, v, **options, **extras)
        self.inputs = inputs_of(library, q, k, v, options)
        self.options = options_of(library, options)
        self.outputs = library.new(c.Outputs)
        self.got: dict[str, Any] = {}
        for name, want in self.want._asdict().items():
            if name == "top":
                weights, keys = self.buffer("top", want[0]), self.buffer("top keys", want[1])
                self.outputs.top = c.Top(3, c.tensor(weights), c.tensor(keys))
            elif name == "weights":
                self.outputs.weights.matrix = c.tensor(self.buffer(name, want))
            elif name == "column_sums":
                self.outputs.column_sums.sums = c.tensor(self.buffer(name, want))
            else:
                setattr(self.outputs, name, c.tensor(self.buffer(name, want)))

    def buffer(self, name: str, like: Any) -> Any:
        self.got[name] = np.full(like.shape, 77, like.dtype)  # no result is 77
        return self.got[name]

    def check(self) -> None:
        want = self.want._asdict()
        if "top" in want:
            want["top"], want["top keys"] = want["top"]
        for name, got in self.got.items():
            assert same(got, want[name]), name


class Backward:
    """The backward pass of a Forward by Python, and the structs of the same call for C."""

    def __init__(self, library: c.Library, forward: Forward) -> None:
        f, want = forward, forward.want
        self.dout, self.dlse = (
            random.standard_normal(x.shape).astype(x.dtype) for x in (want.out, want.lse)
        )
        self.want = qkv.attention_backward(
            self.dout, f.q, f.k, f.v, want.out, want.lse, dlse=self.dlse, **f.keywords
        )
        self.saved = library.new(c.Saved)
        self.saved.out, self.saved.lse = c.tensor(want.out), c.tensor(want.lse)
        self.source = library.new(c.OutputGradients)
        self.source.out, self.source.lse = c.tensor(self.dout), c.tensor(self.dlse)
        self.to = library.new(c.InputGradients)
        self.pairs: list[tuple[Any, Any]] = []  # (gradient of C, of Python)
        params = self.want.dparams or {}
        fields = [
            *((self.to, name, getattr(self.want, "d" + name)) for name in ("q", "k", "v", "bias")),
            (self.to, "alibi", self.want.dalibi_slopes),
            (self.to, "sinks", self.want.dsinks),
            *((self.to.score, name.lower(), params.get(name)) for name in (*BILINEAR, *ADDITIVE)),
            *((self.to.qk_norm, name, params.get("norm_" + name)) for name in "qk"),
        ]
        for struct, name, gradient in fields:
            if gradient is not None:
                got = np.full(gradient.shape, 77, gradient.dtype)
                self.pairs.append((got, gradient))
                setattr(struct, name, c.tensor(got))

    def check(self) -> None:
        assert len(self.pairs) >= 3
        for n, (got, want) in enumerate(self.pairs):
            assert same(got, want), n


def attend(library: c.Library, x: Forward, context: Optional[c_void_p] = None) -> None:
    library.call("qkv_attention", byref(x.inputs), byref(x.options), byref(x.outputs), context)


def check_both(library: c.Library, q: Any, k: Any, v: Any, options: dict[str, Any]) -> None:
    forward = Forward(library, q, k, v, options)
    attend(library, forward)
    forward.check()
    backward = Backward(library, forward)
    library.call(
        "qkv_attention_backward",
        byref(forward.inputs),
        byref(forward.options),
        byref(backward.saved),
        byref(backward.source),
        byref(backward.to),
        None,
    )
    backward.check()


@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_python(library: c.Library, case: str) -> None:
    check_both(library, Q, K, V, CASES[case])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_bits_of_dtypes(library: c.Library, dtype: Any) -> None:
    check_both(library, *(x.astype(dtype) for x in (Q, K, V)), {"causal": True})


def test_bits_of_any_strides(library: c.Library) -> None:
    # q is [B,T,H,D] in memory; k has a negative stride along keys, v along heads.
    q = np.ascontiguousarray(Q.swapaxes(1, 2)).swapaxes(1, 2)
    check_both(library, q, K[:, :, ::-1], V[:, ::-1], {"causal": True})


def test_bits_of_packed_sequences(library: c.Library) -> None:
    q, k, v = normal(9, H, D), normal(13, G, D), normal(13, G, E)
    starts = {"cu_seqlens_q": np.array([0, 4, 9]), "cu_seqlens_k": np.array([0, 8, 13], np.int32)}
    check_both(library, q, k, v, {"causal": True, **starts})


def test_plan_on_threads(library: c.Library) -> None:
    forward = Forward(library, Q, K, V, CASES["bias"])
    context, plan = c_void_p(), c_void_p()
    library.call("qkv_context_create", 2, byref(context))
    library.call(
        "qkv_plan_create", byref(forward.inputs), byref(forward.options), context, byref(plan)
    )
    assert library.c.qkv_plan_path(plan)
    library.call("qkv_plan_run", plan, byref(forward.inputs), byref(forward.outputs))
    forward.check()
    backward = Backward(library, forward)
    library.call(
        "qkv_plan_backward",
        plan,
        byref(forward.inputs),
        byref(backward.saved),
        byref(backward.source),
        byref(backward.to),
    )
    backward.check()
    library.c.qkv_context_destroy(context)
    library.c.qkv_plan_destroy(plan)


def test_version(library: c.Library) -> None:
    assert library.c.qkv_version().decode() == qkv.__version__
    major, minor, patch = map(int, qkv.__version__.split("."))
    assert library.c.qkv_version_number() == 10000 * major + 100 * minor + patch


@pytest.mark.parametrize("kind", c.SIZED)
def test_structs_have_the_size_of_the_header(library: c.Library, kind: Any) -> None:
    # The error for a wrong size names the size that the library was compiled with.
    with pytest.raises(c.Failed, match=f"here {sizeof(kind)}, a multiple of 8") as failed:
        library.call(c.SIZED[kind], byref(kind()), 8)
    assert failed.value.status == "QKV_INVALID_ARGUMENT"


def failure(library: c.Library, x: Forward) -> tuple[str, str]:
    with pytest.raises(c.Failed) as failed:
        attend(library, x)
    return failed.value.status, str(failed.value)


def test_errors_are_those_of_python(library: c.Library) -> None:
    x = Forward(library, Q, K, V, {})
    narrow, integers = np.ascontiguousarray(K[..., :5]), K.astype(np.int32)
    with pytest.raises(ValueError) as value_error:
        qkv.attention(Q, narrow, V)
    x.inputs.k = c.tensor(narrow)
    assert failure(library, x) == ("QKV_INVALID_ARGUMENT", str(value_error.value))
    with pytest.raises(TypeError) as type_error:
        qkv.attention(Q, K, V, bias=np.zeros((TQ, TK), np.float64))
    x.inputs.k = c.tensor(K)
    bias = np.zeros((TQ, TK), np.float64)
    x.options.bias = c.tensor(bias)
    assert failure(library, x) == ("QKV_INVALID_TYPE", str(type_error.value))
    x.options.bias = c.Tensor()
    x.inputs.k = c.tensor(integers)
    status, message = failure(library, x)
    assert status == "QKV_INVALID_TYPE"
    assert message.startswith("attention: k must be float64, float32, bfloat16")


def test_a_context_stops(library: c.Library) -> None:
    x = Forward(library, Q, K, V, {})
    context = c_void_p()
    library.call("qkv_context_create", c_int32(1), byref(context))
    library.c.qkv_context_set_stop(context, 1)
    with pytest.raises(c.Failed) as failed:
        attend(library, x, context)
    assert failed.value.status == "QKV_STOPPED"
    library.c.qkv_context_set_stop(context, 0)
    attend(library, x, context)
    x.check()
    library.c.qkv_context_destroy(context)
