# SPDX-License-Identifier: Apache-2.0
"""One process of a ring: `ring_worker.py RANK RANKS FILE_OF_GROUP RESULTS`.

It runs every case that is for this number of ranks and saves {case: results} with torch.save.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

import qkv.torch

B, H, G, D, E = 2, 4, 2, 16, 8

# {number of ranks: {name: (sharding, rows of each rank, options)}}
PLAIN: dict[str, Any] = {}
CAUSAL = {"causal": True}
EVERYTHING = {
    "causal": True, "window": (900, 0), "softcap": 20.0, "key_lengths": [2000, 700],
    "dropout": 0.2, "seed": 7,
}  # fmt: skip
CASES: dict[int, dict[str, tuple[str, list[int], dict[str, Any]]]] = {
    1: {"alone": ("zigzag", [1024], CAUSAL)},
    2: {
        "plain": ("contiguous", [1024, 1024], PLAIN),
        "causal": ("contiguous", [512, 1300], CAUSAL),
        "zigzag": ("zigzag", [1024, 1024], CAUSAL),
        "everything": ("zigzag", [1024, 1024], EVERYTHING),
        "equal heads": ("zigzag", [1024, 1024], EVERYTHING),
        "large": ("contiguous", [1024, 1024], {"causal": True, "scale": 20.0}),
        "functions": ("zigzag", [1024, 1024], {"score_mod": lambda s, at: s - abs(at.i - at.j) / 64,
                                               "mask_mod": lambda at: at.i // 700 == at.j // 700}),
        "additive": ("contiguous", [512, 100], {"score": "additive", "causal": True}),
        "float64": ("zigzag", [1024, 1024], CAUSAL),
        "bfloat16": ("zigzag", [1024, 1024], CAUSAL),
    },
    3: {
        "uneven": ("contiguous", [512, 1024, 300], CAUSAL),
        "window": ("contiguous", [1024, 512, 512], {"window": (300, 20)}),
        "zigzag": ("zigzag", [1024, 1024, 1024], CAUSAL),
    },
}  # fmt: skip
DTYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16}


def whole(name: str, rows: list[int], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """q, k, v, dout and dlse of the whole sequence, and the options with their tensors."""
    random = torch.Generator().manual_seed(len(name))
    T = sum(rows)
    dtype = DTYPES.get(name, torch.float32)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    key_heads = H if name == "equal heads" else G
    sizes = ((H, D), (key_heads, D), (key_heads, E), (H, E))
    arrays = [draw(B, heads, T, width).to(dtype) for heads, width in sizes]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    arrays.append(draw(B, H, T).to(wide))
    options = dict(options)
    if name in ("everything", "equal heads"):
        options["alibi_slopes"], options["sinks"] = draw(H).abs().to(wide), draw(H).to(wide)
    if options.get("score") == "additive":
        options["params"] = {"Wq": draw(8, D).to(dtype), "Wk": draw(8, D).to(dtype),
                             "v": draw(8).to(dtype)}  # fmt: skip
    return arrays, options


def rows_of(sharding: str, rows: list[int], rank: int) -> torch.Tensor:
    """The places in the whole sequence of a rank's rows."""
    if sharding == "contiguous":
        return torch.arange(sum(rows[:rank]), sum(rows[: rank + 1]))
    half = rows[0] // 2
    second = 2 * len(rows) - 1 - rank
    return torch.cat([torch.arange(n * half, (n + 1) * half) for n in (rank, second)])


def results_of(call: Any, arrays: list[torch.Tensor], dlse: bool) -> dict[str, torch.Tensor]:
    """out, lse and the gradients of q, k and v."""
    q, k, v = (x.clone().requires_grad_() for x in arrays[:3])
    out, lse = call(q, k, v)
    loss = (out * arrays[3]).sum() + ((lse * arrays[4]).sum() if dlse else 0)
    loss.backward()
    return {"out": out.detach(), "lse": lse.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def main() -> None:
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank,
                            world_size=ranks)  # fmt: skip
    saved = {}
    for name, (sharding, rows, options) in CASES[ranks].items():
        arrays, given = whole(name, rows, options)
        mine = rows_of(sharding, rows, rank)

        def ring(q: Any, k: Any, v: Any, sharding: str = sharding, given: Any = given) -> Any:
            return qkv.torch.ring_attention(
                q, k, v, sharding=sharding, return_lse=True, threads=1, **given
            )

        local = [x.index_select(2, mine) for x in arrays]
        saved[name] = results_of(ring, local, dlse=name == "plain")
        again = results_of(ring, local, dlse=name == "plain")
        assert all(torch.equal(x, again[n]) for n, x in saved[name].items()), name
    torch.save(saved, sys.argv[4])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
