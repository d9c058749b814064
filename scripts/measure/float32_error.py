#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The error of attention in float32 against the formulas in float64, by row width: qkv, and
PyTorch if it is installed, on the same numbers.

usage: float32_error.py [--queries 128] [--keys 512] [--rounds 4] [--widths 64 128 ...]
       in an environment that has qkv

D = E; q, k, v and the gradient of out are normal with deviation 1; scaled dot products. For each
width, prints the largest error of out, and for out, dq, dk and dv the root mean square of the error
over that of the exact values; all averaged over the rounds, in units of 1e-7.
"""

import argparse

import numpy as np

import qkv

try:
    import torch
except ImportError:
    torch = None

WIDTHS = (64, 128, 256, 512, 1024, 4096)
NAMES = ("out", "dq", "dk", "dv")


def exact(q, k, v, dout):
    """Computes out, dq, dk and dv in float64."""
    q, k, v, dout = (x.astype(np.float64) for x in (q, k, v, dout))
    scale = q.shape[-1] ** -0.5
    s = q @ k.T * scale
    w = np.exp(s - s.max(-1, keepdims=True))
    w /= w.sum(-1, keepdims=True)
    out = w @ v
    dw = dout @ v.T
    ds = w * (dw - (dw * w).sum(-1, keepdims=True)) * scale
    return out, ds @ k, ds.T @ q, w.T @ dout


def by_qkv(q, k, v, dout):
    out, lse = qkv.attention(q, k, v, return_lse=True)
    d = qkv.attention_backward(dout, q, k, v, out, lse)
    return out, d.dq, d.dk, d.dv


def by_torch(q, k, v, dout):
    q, k, v = (torch.tensor(x)[None, None].requires_grad_() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    out.backward(torch.tensor(dout)[None, None])
    return tuple(x[0, 0].numpy() for x in (out.detach(), q.grad, k.grad, v.grad))


def errors(got, want):
    """The largest error of out, and the relative error of each result."""
    wrong = [g.astype(np.float64) - w for g, w in zip(got, want)]
    return [np.abs(wrong[0]).max()] + [
        np.sqrt((x**2).mean() / (w**2).mean()) for x, w in zip(wrong, want)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=128)
    parser.add_argument("--keys", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    options = parser.parse_args()
    packages = {"qkv": by_qkv}
    if torch is not None:
        torch.set_num_threads(1)
        packages["PyTorch"] = by_torch
    versions = f"qkv {qkv.info()['version']}, {qkv.info()['cpu_target']}"
    versions += "" if torch is None else f"; PyTorch {torch.__version__}"
    print(f"{options.queries} queries, {options.keys} keys, {options.rounds} rounds; {versions}")
    columns = ("largest", *NAMES)
    print(" " * 6 + "".join(f"{name:>{9 * len(columns)}}" for name in packages))
    print(f"{'D = E':>6}" + "".join(f"{name:>9}" for name in columns) * len(packages))
    for width in options.widths:
        found = {name: [] for name in packages}
        for seed in range(options.rounds):
            random = np.random.default_rng((seed, width))
            rows = (options.queries, options.keys, options.keys, options.queries)
            x = [random.standard_normal((n, width), np.float32) for n in rows]
            want = exact(*x)
            for name, compute in packages.items():
                found[name].append(errors(compute(*x), want))
        means = [1e7 * np.mean(values, axis=0) for values in found.values()]
        print(f"{width:>6}" + "".join(f"{x:>9.2f}" for mean in means for x in mean), flush=True)


if __name__ == "__main__":
    main()
