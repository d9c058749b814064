#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much memory a call takes that gives out, entropy, column sums, value sums and pooled weights.

usage: .venv-python/bin/python scripts/measure/sums_memory.py [TOKENS [QUERIES]]

One head of width 64 in float32, TOKENS keys (default 100,000) and as many queries, or the last
QUERIES of them, which takes a fraction of the time: memory does not depend on it but for rows of
queries. Two processes each: one makes the arrays alone, one computes as well; the
largest resident set of each (ru_maxrss), which has Python and NumPy in it.
"""

import resource
import subprocess
import sys

import numpy as np

import qkv

WIDTH, CELLS = 64, (64, 64)


def measure(tokens: int, queries: int, computes: bool) -> int:
    """Kilobytes."""
    random = np.random.default_rng(1)
    q, k, v = (
        random.standard_normal((1, 1, n, WIDTH), np.float32) for n in (queries, tokens, tokens)
    )
    if computes:
        found = qkv.attention(
            q, k, v, causal=True, return_entropy=True, return_column_sums=True,
            return_value_sums=True, return_pooled=CELLS, threads=2,
        )  # fmt: skip
        assert abs(float(found.column_sums.sum(dtype=np.float64)) / queries - 1) < 1e-4
        assert np.allclose(found.pooled.sum(-1), 1, atol=1e-4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    if len(sys.argv) == 4:
        print(measure(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "all"))
        return
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    queries = int(sys.argv[2]) if len(sys.argv) > 2 else tokens
    for what in ("arrays", "all"):
        command = [sys.executable, __file__, str(tokens), str(queries), what]
        kilobytes = int(subprocess.run(command, check=True, capture_output=True).stdout)
        print(f"{queries:,} queries, {tokens:,} keys, {what}: {kilobytes / 1024:.1f} MiB")


if __name__ == "__main__":
    main()
