#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The error of additive scores in float32 against the formula in float64: on the fused path, which
computes tanh from two exponentials, and on the reference, which calls tanh.

usage: additive_accuracy.py [--T 256] [--units 256]     in an environment that has qkv

Wq and Wk are the identity, so that projections are the numbers of q and k, which are drawn with
several deviations; v has deviation 1/sqrt(U), of either sign or all positive. Prints the largest
error of T x T scores, also relative to the sum of |v_u|, in units of 2^-24, half the spacing of
float32 numbers at 1.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

DEVIATIONS = (0.01, 0.1, 1, 5, 20, 100)
# A process has one CPU target, so a child process computes the scores, on the target QKV_TARGET.
CHILD = """
import sys
import numpy as np
import qkv
x = dict(np.load(sys.argv[1]))
params = {"Wq": x["one"], "Wk": x["one"], "v": x["v"]}
_, scores = qkv.attention(x["q"], x["k"], x["k"], score="additive", params=params,
                          return_scores="raw")
np.save(sys.argv[2], scores)
print(qkv.info()["cpu_target"])
"""


def exact_scores(q, k, v):
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    return np.stack([np.tanh(row + k) @ v for row in q])


def scores_on(target, folder, x):
    """(the CPU target in use, its scores). If `target` is None, this is the processor's best."""
    environment = dict(os.environ)
    environment.pop("QKV_TARGET", None)
    if target:
        environment["QKV_TARGET"] = target
    inputs, scores = os.path.join(folder, "x.npz"), os.path.join(folder, "scores.npy")
    np.savez(inputs, **x)
    done = subprocess.run([sys.executable, "-c", CHILD, inputs, scores], env=environment,
                          stdout=subprocess.PIPE, check=True, encoding="ascii")
    return done.stdout.strip(), np.load(scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--T", type=int, default=256)
    parser.add_argument("--units", type=int, default=256)
    options = parser.parse_args()
    T, U = options.T, options.units
    random = np.random.default_rng(7)
    print(f"{T} x {T} scores, U = {U}; largest error, and 2^24 of it over the sum of |v|")
    head = ""
    for signs in ("either", "positive"):
        for deviation in DEVIATIONS:
            q, k = (random.normal(0, deviation, (T, U)).astype(np.float32) for _ in "qk")
            v = random.normal(0, U**-0.5, U).astype(np.float32)
            v = np.abs(v) if signs == "positive" else v
            want = exact_scores(q, k, v)
            x = {"q": q, "k": k, "v": v, "one": np.eye(U, dtype=np.float32)}
            with tempfile.TemporaryDirectory() as folder:
                found = [scores_on(target, folder, x) for target in (None, "reference")]
            if not head:
                head = "".join(f"{target:>18}" for target, _ in found)
                print(f"{'v':<10}{'deviation':>9}{head}")
            errors = [np.abs(scores - want).max() for _, scores in found]
            unit = np.abs(v).astype(np.float64).sum() * 2**-24
            shown = "".join(f"{error:>11.1e}{error / unit:>7.2f}" for error in errors)
            print(f"{signs:<10}{deviation:>9}{shown}", flush=True)


if __name__ == "__main__":
    main()
