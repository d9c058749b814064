# SPDX-License-Identifier: Apache-2.0
"""Calls of qkv.torch.attention that the CUDA kernels support, and bounds of their errors.

The calls run on a GPU (test_torch_cuda.py), and with a fake driver that runs the kernels in an
emulator (emulated_torch_cuda.py).
"""

import torch

# The relative error of one rounding; float32's is larger, because sums may be in another order.
UNITS = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-18}


def _normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(B=2, H=4, G=2, Tq=70, Tk=90, D=64, E=None, dtype=torch.bfloat16):
    shapes = (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, E or D)
    return [_normal(*shape, dtype=dtype, seed=n) for n, shape in enumerate(shapes)]


def _mask(*shape):
    return _normal(*shape, seed=5) > -0.5


def _transposed(x):
    return x.transpose(1, 2).contiguous()


def _cases():
    """(name, q, k, v, options) of each call, on the CPU."""
    plain = inputs()
    yield ("plain", *plain, {})
    yield ("float16", *inputs(dtype=torch.float16, D=128), {"causal": True})
    yield ("odd widths", *inputs(D=37, E=61), {"scale": 0.2})
    yield ("wide", *inputs(D=256, Tq=20, Tk=40), {"causal": "top_left"})
    yield ("window", *plain, {"window": (20, 3)})
    yield ("lengths", *plain, {"key_lengths": torch.tensor([50, 0])})
    yield ("lists", *plain, {"key_lengths": [50, 0], "sinks": [0.5, -1.0, 2.0, 0.0]})
    yield ("offsets", *plain, {"causal": True, "causal_offset": torch.tensor([3, -4])})
    yield ("offset", *plain, {"causal": True, "causal_offset": torch.tensor(3)})
    yield ("mask", *plain, {"mask": _mask(70, 90)})
    yield ("integer mask", *plain, {"mask": _mask(2, 1, 1, 90).to(torch.int32)})
    yield ("padding", *plain, {"padding_mask": ~_mask(2, 90)})
    yield ("bias", *plain, {"bias": _normal(4, 70, 90, seed=6)})
    yield ("bias of 16 bits", *plain, {"bias": _normal(70, 90, seed=6).bfloat16(), "softcap": 4.0})
    yield ("alibi", *plain, {"alibi_slopes": torch.tensor([0.1, 0.2, 0.3, 0.4]), "causal": True})
    yield ("dropout", *plain, {"dropout": 0.3, "seed": 2**64 - 5})
    yield ("seed of a tensor", *plain, {"dropout": 0.3, "seed": torch.tensor(77)})
    every = {"mask": _mask(70, 90), "bias": _normal(70, 90, seed=6), "dropout": 0.2, "seed": 3}
    yield ("mask, bias and dropout", *plain, every)
    yield ("bthd", *map(_transposed, plain), {"layout": "bthd", "causal": True})
    yield ("strided", *(_transposed(x).transpose(1, 2) for x in plain), {"causal": True})
    yield ("side by side", *(_transposed(x).flatten(2) for x in plain), {"heads": (4, 2)})
    packed = [_transposed(x)[0] for x in inputs(B=1)]
    starts = {"cu_seqlens_q": torch.tensor([0, 20, 20, 70]),
              "cu_seqlens_k": torch.tensor([0, 30, 40, 90])}  # fmt: skip
    yield ("packed", *packed, {**starts, "causal": True})
    yield ("no values", *plain[:2], None, {"return_lse": True})
    yield ("one query", *inputs(Tq=1, Tk=300), {"return_lse": True, "return_row_max": True})
    asked = {"return_column_sums": True, "return_entropy": True, "return_weights": True}
    yield ("sums", *plain, {"mask": _mask(70, 90), "sinks": [0.5, -1.0, 2.0, 0.0], **asked})
    yield ("packed sums", *packed, {**starts, "return_column_sums": True})
    yield ("no batch", *(x[0, 0] for x in plain), {"return_row_max": True})
    yield ("no queries", *inputs(Tq=0), {"return_lse": True})
    yield from _float_cases()
    yield from _additive_cases()


def _float_cases():
    plain = inputs(dtype=torch.float32)
    yield ("float32", *plain, {"causal": True})
    every = {"mask": _mask(70, 90), "bias": _normal(70, 90, seed=6), "softcap": 3.0, "scale": 0.7}
    every |= {"alibi_slopes": [0.1, 0.2, 0.3, 0.4], "sinks": [0.5, -1.0, 2.0, 0.0]}
    every |= {"dropout": 0.2, "seed": 3, "return_lse": True, "return_row_max": True}
    yield ("float32 with every option", *plain, every)
    packed = [_transposed(x)[0] for x in inputs(B=1, dtype=torch.float32)]
    starts = {name: torch.tensor([0, 20, end]) for name, end in
              (("cu_seqlens_q", 70), ("cu_seqlens_k", 90))}  # fmt: skip
    yield ("float32, packed", *packed, starts)
    yield ("float32, no values", *plain[:2], None, {"return_lse": True})


def additive(U=40, Dq=20, Dk=24, heads=()):
    """Options of an additive score; `heads` are the parameters that have an axis of 4 heads."""
    shapes = {"Wq": (U, Dq), "Wk": (U, Dk), "v": (U,), "b": (U,)}
    params = {
        name: _normal(*((4,) if name in heads else ()), *shape, seed=10 + n) / shape[-1] ** 0.5
        for n, (name, shape) in enumerate(shapes.items())
    }
    return {"score": "additive", "params": params}


def additive_inputs(B=2, H=4, G=2, Tq=70, Tk=90, E=30, dtype=torch.float32):
    shapes = (B, H, Tq, 20), (B, G, Tk, 24), (B, G, Tk, E)
    return [_normal(*shape, dtype=dtype, seed=n) for n, shape in enumerate(shapes)]


def _additive_cases():
    plain = additive_inputs()
    yield ("additive", *plain, {**additive(), "causal": True})
    yield ("additive per head", *plain, additive(U=70, heads=("Wq", "Wk", "v", "b")))
    every = {"mask": _mask(70, 90), "bias": _normal(70, 90, seed=6), "softcap": 3.0, "scale": 0.7}
    every |= {"dropout": 0.2, "seed": 3, "return_lse": True, "return_row_max": True}
    yield ("additive with every option", *plain, {**additive(heads=("Wk",)), **every})
    yield (
        "additive, wide values",
        *additive_inputs(E=256, Tq=20),
        {**additive(), "window": (20, 3)},
    )
    packed = [_transposed(x)[0] for x in additive_inputs(B=1)]
    starts = {name: torch.tensor([0, 20, end]) for name, end in
              (("cu_seqlens_q", 70), ("cu_seqlens_k", 90))}  # fmt: skip
    yield ("additive, packed", *packed, {**additive(), **starts})
    yield ("additive, no values", *plain[:2], None, {**additive(), "return_lse": True})
    yield ("additive, no queries", *additive_inputs(Tq=0), additive())


CASES = {name: rest for name, *rest in _cases()}

# The calls whose gradients the kernels compute.
WITH_GRADIENTS = (
    "plain", "float16", "odd widths", "wide", "window", "lengths", "lists", "offset", "mask",
    "padding", "bias of 16 bits", "bias", "offsets", "integer mask", "alibi", "seed of a tensor",
    "mask, bias and dropout", "bthd",
    "strided", "side by side", "packed", "no values", "one query", "no batch", "no queries",
    "additive", "additive per head", "additive with every option", "additive, wide values",
    "additive, packed", "additive, no values", "additive, no queries",
    "float32", "float32 with every option", "float32, packed", "float32, no values",
)  # fmt: skip


def gradients(attention, name, to="cpu", needed="qkv"):
    """Gradients of a call of CASES by the letter of their tensor; see gradients_of()."""
    q, k, v, options = (moved(x, to) for x in CASES[name])
    return gradients_of(attention, q, k, v, options, needed)


def exact_gradients(attention, name):
    """The gradients that gradients() gives, of the same numbers in float64."""

    return gradients_of(attention, *(wide(x) for x in CASES[name]), "qkv")


def wide(x):
    """Real numbers in float64, also in dictionaries."""
    if isinstance(x, dict):
        return {n: wide(y) for n, y in x.items()}
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def gradients_of(attention, q, k, v, options, needed):
    """Gradients of a sum of the real results, with a random factor for each number."""
    given = {n: x.requires_grad_(n in needed) for n, x in zip("qkv", (q, k, v)) if x is not None}
    try:
        results = [x for x in results_of(attention(q, k, v, **options)) if x.requires_grad]
        factors = [  # rounded to bfloat16, so that they are equal for every dtype of the results
            _normal(*x.shape, seed=20 + n).to(torch.bfloat16).to(x) for n, x in enumerate(results)
        ]
        torch.autograd.backward(results, factors)
        return {n: given[n].grad for n in needed if n in given}
    finally:
        for x in given.values():  # the tensors of CASES
            x.requires_grad_(False).grad = None


def assert_gradients_near(got, want, dtype):
    """For 16-bit calls, weights and gradients of scores are rounded before they are multiplied."""
    unit = UNITS[dtype]
    assert got.keys() == want.keys()
    for name, x in got.items():
        y = want[name]
        assert x.dtype == dtype and x.shape == y.shape
        largest = float(y.abs().max()) if y.numel() > 0 else 0
        torch.testing.assert_close(x.cpu().double(), y, atol=2 * unit * largest, rtol=3 * unit)


def moved(x, to):
    """x with its tensors on the device `to`, except single numbers, which the host needs."""
    if isinstance(x, dict):
        return {n: y if n == "seed" else moved(y, to) for n, y in x.items()}
    if isinstance(x, torch.Tensor) and x.dim() > 0:
        return x.to(to).as_strided(x.shape, x.stride()) if x.is_contiguous() else _like(x, to)
    return x


def _like(x, to):
    """A copy that keeps strides."""
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=to)
    return made.copy_(x)


def results_of(got):
    return got if isinstance(got, tuple) else (got,)


def assert_near(got, want, dtype, v):
    """In 16-bit calls, results are rounded, and so are weights before they multiply values."""
    assert type(got) is type(want)
    unit = UNITS[dtype]
    largest = 1 if v is None or v.numel() == 0 else float(v.abs().max())
    for x, y in zip(results_of(got), results_of(want)):
        assert x.shape == y.shape and x.dtype == y.dtype
        tolerance = 2 * unit * largest if x.dtype == dtype else 1e-4
        torch.testing.assert_close(x.cpu(), y, atol=tolerance, rtol=3 * unit)


def dropped_weights(attention, to="cpu"):
    """The weights of a call after dropout, which are its result, as v is the identity."""
    q, k, _ = inputs(Tk=64, dtype=torch.bfloat16)
    v = torch.eye(64).to(torch.bfloat16).expand(2, 2, 64, 64)
    q, k, v = (x.to(to) for x in (q, k, v))
    return attention(q, k, v, dropout=0.4, seed=123456789123).cpu()
