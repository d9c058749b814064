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

PLAIN: dict[str, Any] = {}
CAUSAL = {"causal": True}
EVERYTHING = {
    "causal": True, "window": (900, 0), "softcap": 20.0, "key_lengths": [2000, 700],
    "dropout": 0.2, "seed": 7,
}  # fmt: skip
# {number of ranks: {name: (sharding, rows of each rank, options)}}
CASES: dict[int, dict[str, tuple[Any, list[int], dict[str, Any]]]] = {
    1: {"alone": ("zigzag", [1024], CAUSAL)},
    2: {
        "plain": ("contiguous", [1024, 1024], PLAIN),
        "causal": ("contiguous", [512, 1300], CAUSAL),
        "zigzag": ("zigzag", [1024, 1024], CAUSAL),
        "many zigzags": (2, [2048, 2048], CAUSAL),
        "everything": ("zigzag", [1024, 1024], EVERYTHING),
        "equal heads": ("zigzag", [1024, 1024], EVERYTHING),
        "large": ("contiguous", [1024, 1024], {"causal": True, "scale": 20.0}),
        "functions": ("zigzag", [1024, 1024], {"score_mod": lambda s, at: s - abs(at.i - at.j) / 64,
                                               "mask_mod": lambda at: at.i // 700 == at.j // 700}),
        "maps": ("zigzag", [1024, 1024], {"causal": True, "rotary": "halves", "qk_norm": True}),
        "learned": ("zigzag", [1024, 1024], CAUSAL),
        "table": ("zigzag", [1024, 1024], CAUSAL),
        "masks": ("contiguous", [512, 700], {"causal": True}),
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
# Cases in which some gradients differ from those of one call by rounding, but not with the number
# of ranks: one rank runs them, too.
ROUNDED = ("additive", "learned", "maps", "table")
for _name in ROUNDED:
    _, _rows, _options = CASES[2][_name]
    CASES[1][_name] = ("contiguous", [sum(_rows)], _options)
# Cases in which tensors among the options, or tensors that score_mod reads, get gradients.
LEARNED = ("learned", "additive", "table")
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
    if name == "learned":
        options.update(alibi_slopes=draw(H).abs().to(wide), sinks=draw(H).to(wide),
                       params={name: draw(D).to(dtype) for name in ("norm_q", "norm_k")},
                       bias=draw(H, T, T).to(dtype), qk_norm=1e-5)  # fmt: skip
    if name == "table":
        options["read"] = {"table": draw(H, 40).to(wide), "slope": draw(1).to(wide)}
    if name == "masks":
        options.update(mask=draw(H, T, T) > -1, padding_mask=draw(B, T) > -1)
    if options.get("score") == "additive":
        options["params"] = {"Wq": draw(8, D).to(dtype), "Wk": draw(8, D).to(dtype),
                             "v": draw(8).to(dtype)}  # fmt: skip
    return arrays, options


def rows_of(sharding: Any, rows: list[int], rank: int) -> torch.Tensor:
    """The indices of a rank's rows in the whole sequence."""
    if sharding == "contiguous":
        return torch.arange(sum(rows[:rank]), sum(rows[: rank + 1]))
    zigzags = 1 if sharding == "zigzag" else sharding
    size, parts = rows[0] // (2 * zigzags), 2 * len(rows)
    blocks = [n * parts + p for n in range(zigzags) for p in (rank, parts - 1 - rank)]
    return torch.cat([torch.arange(p * size, (p + 1) * size) for p in blocks])


def results_of(
    call: Any, arrays: list[torch.Tensor], given: dict[str, Any], dlse: bool, learned: bool
) -> dict[str, torch.Tensor]:
    """out, lse, the gradients of q, k and v and, if learned, those of tensors of the options."""
    q, k, v = (x.clone().requires_grad_() for x in arrays[:3])
    given = dict(given)
    params = dict(given.get("params", {}))
    read = given.pop("read", {})
    tensors = {n: given[n] for n in ("alibi_slopes", "sinks", "bias") if n in given and learned}
    tensors.update({f"params.{name}": x for name, x in params.items() if learned})
    tensors.update({f"read.{name}": x for name, x in read.items()})
    tensors = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    options = {**given, **{n: x for n, x in tensors.items() if "." not in n}}
    if params:
        options["params"] = {name: tensors.get(f"params.{name}", x) for name, x in params.items()}
    if read:
        table, slope = tensors["read.table"], tensors["read.slope"]
        options["score_mod"] = lambda s, at: s + table[at.h, (at.i - at.j) % 40] * slope[0]
    out, lse = call(q, k, v, **options)
    loss = (out * arrays[3]).sum() + ((lse * arrays[4]).sum() if dlse else 0)
    loss.backward()
    return {"out": out.detach(), "lse": lse.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad,
            **{f"d{name}": x.grad for name, x in tensors.items()}}  # fmt: skip


def local_options(given: dict[str, Any], mine: torch.Tensor) -> dict[str, Any]:
    """The options, with a rank's rows of the bias and the mask."""
    return {name: x.index_select(1, mine) if name in ("bias", "mask") else x
            for name, x in given.items()}  # fmt: skip


def message_of(**options: Any) -> str:
    """The error of a call whose arguments are wrong on some rank; "none" if it raises none."""
    x = torch.zeros(B, H, 512, D, dtype=options.pop("dtype", torch.float32))
    try:
        qkv.torch.ring_attention(x, x, x, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def faults(rank: int) -> dict[str, Any]:
    """The errors of wrong calls, and whether right calls after them give the right gradients."""
    first = rank == 0
    found: dict[str, Any] = {
        "seed": message_of(dropout=0.1),
        "causal": message_of(causal=first),
        "dtype": message_of(dtype=torch.float16 if first else torch.bfloat16),
        "one": message_of(sharding="contiguous" if first else "none"),
        "lengths": message_of(key_lengths=torch.zeros(B, 1024, dtype=torch.int64)),
        "window": message_of(window=(1,)),
    }
    q, k, v = (x.index_select(2, rows_of("contiguous", [512, 512], rank)).requires_grad_()
               for x in whole("order", [512, 512], CAUSAL)[0][:3])  # fmt: skip
    calls = [qkv.torch.ring_attention(x, k, v, causal=True) for x in (q, q * 2)]
    want = [torch.autograd.grad(x.sum(), (q, k, v), retain_graph=True) for x in calls]
    outs = [qkv.torch.ring_attention(x, k, v, causal=True) for x in (q, q * 2)]
    got = {n: torch.autograd.grad(outs[n].sum(), (q, k, v)) for n in (1, 0)}
    found["again"] = all(torch.equal(x, y) for n in (0, 1) for x, y in zip(want[n], got[n]))
    # The channels of a row of `strided` are not contiguous.
    strided = q.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    grad = torch.autograd.grad(qkv.torch.ring_attention(strided, k, v, causal=True).sum(), strided)
    found["strides"] = torch.equal(grad[0], want[0][0])
    return found


def main() -> None:
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank,
                            world_size=ranks)  # fmt: skip
    saved = {}
    for name, (sharding, rows, options) in CASES[ranks].items():
        arrays, given = whole(name, rows, options)
        mine = rows_of(sharding, rows, rank)

        def ring(q: Any, k: Any, v: Any, sharding: Any = sharding, **given: Any) -> Any:
            return qkv.torch.ring_attention(
                q, k, v, sharding=sharding, return_lse=True, threads=1, **given
            )

        local = [x.index_select(2, mine) for x in arrays]
        own = local_options(given, mine)
        saved[name] = results_of(ring, local, own, name == "plain", name in LEARNED)
        again = results_of(ring, local, own, name == "plain", name in LEARNED)
        assert all(torch.equal(x, again[n]) for n, x in saved[name].items()), name
    if ranks == 2:
        saved["faults"] = faults(rank)
    torch.save(saved, sys.argv[4])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
