#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks and times gradients on a GPU, beside those of PyTorch's scaled_dot_product_attention.

usage: cuda_gradients.py --library build/release/bench/libqkv_cuda_calls.so --out bench/results

The gradients of q, k and v are compared with float64 on the GPU, element by element, and computed
20 times, with equal bits every time. Exits 1 if a check fails. Times are medians of CUDA events of
calls that alternate. test_cuda compares every option with the reference.
"""

import argparse
import math
import pathlib
import sys

import torch
from cuda_calls import UNITS, Expected, Qkv
from cuda_peers import ROUNDS, RUNS, Case, bias, equal, half, integers, keep, medians
from reports import Report
from torch.nn.attention import SDPBackend, sdpa_kernel

sdpa = torch.nn.functional.scaled_dot_product_attention

CASES = [
    *(Case(f"plain-{D}", D=D) for D in (64, 80, 128, 256)),
    *(Case(f"plain-{D}-float16", D=D, dtype=half) for D in (64, 128, 256)),
    *(Case(f"causal-{D}", D=D, causal=True) for D in (64, 128, 256)),
    Case("odd-width", D=37, E=61),
    Case("one-query", Tq=1, Tk=1001, D=128),
    Case("more-queries-than-keys", Tq=300, Tk=120, causal=True),
    Case("causal-window", causal=True, window_left=64),
    Case("keep-bias", D=128, make={"keep": keep("qk"), "bias": bias("qk", torch.bfloat16)}),
    Case(
        "nan-beyond-lengths", D=128, hidden_nan=True, make={"key_lengths": integers("b", 200, 280)}
    ),
    Case("large-scores", scale=40.0, D=64),
    Case("long", H=2, G=1, B=1, Tq=4096, Tk=4096, D=128, causal=True),
    Case("long-float16", H=2, G=1, B=1, Tq=4096, Tk=4096, D=128, dtype=half),
]


def expected(q, k, v, out, dout, **options):
    """dq, dk and dv in float64, and bounds of their errors, which come from: weights and gradients
    of scores, rounded before they are multiplied; the rounded out in delta; scores; sums in
    float32; and the rounding of a result."""
    call = Expected(q, k, v, **options)
    H, G = q.shape[1], k.shape[1]
    scale = options.get("scale") or 1 / math.sqrt(q.shape[3])
    unit = UNITS[q.dtype]
    q, k, v, out, dout = (x.double().nan_to_num(0, 0, 0) for x in (q, k, v, out, dout))
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    w = call.weights
    dw = dout @ v.mT
    delta = (w * dw).sum(-1, keepdim=True)
    ds = w * (dw - delta)
    size = dout.abs() @ v.abs().mT  # of the terms of dw
    error = unit + 2 * call.score_error + 2**-14
    ds_error = error * (ds.abs() + w * (dout.abs() * out.abs()).sum(-1, keepdim=True))
    ds_error += 2**-16 * w * (size + (w * size).sum(-1, keepdim=True))

    def heads(x):
        return x.unflatten(1, (G, H // G)).sum(2)

    results = (scale * ds @ k, scale * heads(ds.mT @ q), heads(w.mT @ dout))
    errors = (
        scale * ds_error @ k.abs(),
        scale * heads(ds_error.mT @ q.abs()),
        heads((error * w).mT @ dout.abs()),
    )
    return results, [x + unit * y.abs() + 1e-6 for x, y in zip(errors, results)]


def check_values(qkv, case, device):
    """The faults of a case as text: values beyond bounds, or bits that differ in RUNS runs."""
    q, k, v, options = case.tensors(device)
    generator = torch.Generator(device).manual_seed(5)
    shape = (*q.shape[:-1], v.shape[-1])
    dout = torch.randn(shape, generator=generator, device=device).to(q.dtype)
    run, results = qkv.prepared_backward(dout, q, k, v, **options)
    run()
    want, bounds = expected(q, k, v, run.arrays["out"], dout, **options)
    wrong = []
    for name, got, x, bound in zip(("dq", "dk", "dv"), results, want, bounds):
        right = (got.double() - x).abs() <= bound
        if not bool(right.all()):
            worst = ((got.double() - x).abs() / bound).nan_to_num(math.inf).max()
            wrong.append(
                f"{name}: {int((~right).sum())} of {right.numel()} differ, "
                f"worst {float(worst):.3g} bounds"
            )
    first = [x.clone() for x in results]
    for _ in range(RUNS - 1):
        for x in results:
            x.fill_(math.nan)
        run()
        if not equal(results, first):
            wrong.append("two runs have different bits")
            break
    return "; ".join(wrong)


def backward_of(backend, dout, q, k, v, **options):
    """A call of sdpa's backward pass on one backend. Its first run also runs the forward pass."""

    def call():
        with sdpa_kernel(backend):
            if not call.graph:
                inputs = [x.detach().requires_grad_() for x in (q, k, v)]
                call.graph = [sdpa(*inputs, **options), inputs]
            torch.autograd.grad(*call.graph, dout, retain_graph=True)

    call.graph = []
    return call


def time_one(qkv, report, D, T, causal, H=16):
    q, k, v, dout = (torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    calls = {"qkv": qkv.prepared_backward(dout, q, k, v, causal=causal)[0]}
    for name, backend in (
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
    ):
        calls[name] = backward_of(backend, dout, q, k, v, is_causal=causal)
    seconds = medians(calls)
    own = seconds.pop("qkv")
    peers = {name: s for name, s in seconds.items() if s is not None}
    # Five products of tiles count, as is usual; the kernels compute seven.
    operations = 10 * H * T * T * D * (0.5 if causal else 1)
    report.add(
        f"backward, {'causal' if causal else 'plain'}/D{D}-T{T}",
        seconds=own,
        rate=operations / own,
        ratio=min(peers.values()) / own if peers else None,
        peers=peers or None,
    )
    rates = {"qkv": own} | peers
    print(f"backward {'causal' if causal else 'plain':8} D{D:<4} T{T:<6}"
          + "".join(f"{n:>8} {operations / s / 1e12:5.0f}" for n, s in rates.items()), flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, help="libqkv_cuda_calls.so")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the JSON")
    parser.add_argument("--commit", help="what was built, where this is no checkout")
    options = parser.parse_args()
    torch.zeros(1, device="cuda")
    qkv = Qkv(options.library)
    if qkv.why_no_device():
        sys.exit(f"no device: {qkv.why_no_device()}")
    wrong = 0
    for case in CASES:
        reason = check_values(qkv, case, torch.device("cuda", 0))
        if reason:
            wrong += 1
            print(f"WRONG {case.name}: {reason}", flush=True)
    print(f"{len(CASES)} checks of gradients, {wrong} wrong", flush=True)
    card = torch.cuda.get_device_name(0)
    versions = {"PyTorch": torch.__version__, "cuDNN": str(torch.backends.cudnn.version())}
    about = {"commit": options.commit} if options.commit else {}
    report = Report(
        **about, device=card, versions=versions, rounds=ROUNDS, checks=len(CASES), wrong=wrong
    )
    short = "-".join(word.lower() for word in card.split()[1:2])
    options.out.mkdir(parents=True, exist_ok=True)
    for D in (64, 128, 256):
        for T in (8192, 16384):
            for causal in (False, True):
                time_one(qkv, report, D, T, causal)
        report.write(options.out / f"cuda-gradients-{short}.json")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
