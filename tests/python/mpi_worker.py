# SPDX-License-Identifier: Apache-2.0
"""Runs as one rank under mpirun. Rank 0 prints "N ranks agree"; a wrong result raises an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

import qkv
import qkv.mpi

B, H, G, D, E = 2, 4, 4, 16, 8


def main() -> None:
    comm = MPI.COMM_WORLD
    rank, ranks = comm.Get_rank(), comm.Get_size()
    T = 1024 * ranks
    random = np.random.default_rng(1)
    q, k, v, dout = (
        random.standard_normal((B, heads, T, width)).astype(np.float32)
        for heads, width in ((H, D), (G, D), (G, E), (H, E))
    )
    bias = random.standard_normal((T, T)).astype(np.float32)
    padding = random.random((B, T)) < 0.1
    blocks = [rank, 2 * ranks - 1 - rank]  # this rank's parts of 512 rows (zigzag sharding)
    own_rows = np.concatenate([np.arange(n * 512, (n + 1) * 512) for n in blocks])
    own_arrays = [np.ascontiguousarray(x[:, :, own_rows]) for x in (q, k, v, dout)]
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"causal": True, "softcap": 10.0}, {}),
        ({"bias": bias, "padding_mask": padding}, {"bias": bias[own_rows]}),
        ({"rotary": "halves", "qk_norm": True, "dropout": 0.2, "seed": 3}, {}),
    ]
    for options, local in cases:
        want, lse = qkv.attention(q, k, v, return_lse=True, **options)
        grads = qkv.attention_backward(dout, q, k, v, want, lse, **options)
        given: dict[str, Any] = {**options, **local, "sharding": "zigzag"}
        out, own_lse = qkv.mpi.ring_attention(*own_arrays[:3], return_lse=True, **given)
        assert np.array_equal(out, want[:, :, own_rows])
        assert np.array_equal(own_lse, lse[:, :, own_rows])
        got = qkv.mpi.ring_attention_backward(own_arrays[3], *own_arrays[:3], out, own_lse, **given)
        for name in ("dq", "dk", "dv"):
            gradient, expected_gradient = getattr(got, name), getattr(grads, name)[:, :, own_rows]
            if "rotary" in options:  # gradients differ from one call's by rounding
                np.testing.assert_allclose(gradient, expected_gradient, atol=2e-4, rtol=1e-4)
            else:
                assert np.array_equal(gradient, expected_gradient), name
    message = ""
    try:
        qkv.mpi.ring_attention(*own_arrays[:3], sharding="none" if rank == 0 else "zigzag")
    except (ValueError, RuntimeError) as error:
        message = str(error)
    expected = "sharding must be" if rank == 0 else "another rank of the communicator"
    assert expected in message, message
    if rank == 0:
        print(ranks, "ranks agree")


if __name__ == "__main__":
    main()
