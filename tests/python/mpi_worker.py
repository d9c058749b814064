# SPDX-License-Identifier: Apache-2.0
"""One rank of MPI, which mpirun starts. Rank 0 prints "N ranks agree"; errors are raised."""

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
    places = [rank, 2 * ranks - 1 - rank]
    mine = np.concatenate([np.arange(n * 512, (n + 1) * 512) for n in places])
    own = [np.ascontiguousarray(x[:, :, mine]) for x in (q, k, v, dout)]
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"causal": True, "softcap": 10.0}, {}),
        ({"bias": bias, "padding_mask": padding}, {"bias": bias[mine]}),
        ({"rotary": "halves", "qk_norm": True, "dropout": 0.2, "seed": 3}, {}),
    ]
    for options, local in cases:
        want, lse = qkv.attention(q, k, v, return_lse=True, **options)
        grads = qkv.attention_backward(dout, q, k, v, want, lse, **options)
        given: dict[str, Any] = {**options, **local, "sharding": "zigzag"}
        out, own_lse = qkv.mpi.ring_attention(*own[:3], return_lse=True, **given)
        assert np.array_equal(out, want[:, :, mine])
        assert np.array_equal(own_lse, lse[:, :, mine])
        got = qkv.mpi.ring_attention_backward(own[3], *own[:3], out, own_lse, **given)
        for name in ("dq", "dk", "dv"):
            one, all_rows = getattr(got, name), getattr(grads, name)[:, :, mine]
            if "rotary" in options:  # gradients differ from one call's by rounding
                np.testing.assert_allclose(one, all_rows, atol=2e-4, rtol=1e-4)
            else:
                assert np.array_equal(one, all_rows), name
    message = ""
    try:
        qkv.mpi.ring_attention(*own[:3], sharding="none" if rank == 0 else "zigzag")
    except (ValueError, RuntimeError) as error:
        message = str(error)
    expected = "sharding must be" if rank == 0 else "another rank of the communicator"
    assert expected in message, message
    if rank == 0:
        print(ranks, "ranks agree")


if __name__ == "__main__":
    main()
