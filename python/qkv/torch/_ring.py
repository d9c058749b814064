# SPDX-License-Identifier: Apache-2.0
"""`qkv.torch.ring_attention`: one long sequence over the processes of a torch.distributed group.

The keys and values of every process reach all others, part by part in ascending order, and the
softmax continues from one part to the next. Its order of sums is that of one process.
"""

from typing import Any, Dict, List, Optional, Tuple, Union

import torch

from .. import _core
from .._functions import DEFAULTS, Numbers, Shard, Window, options_of
from .._mods import MaskFunction, MaskMod, ScoreFunction, ScoreMod
from .._mods import mask_mod as make_mask_mod
from .._mods import score_mod as make_score_mod
from .._words import near_words
from ._kinds import FLAG, SIZE, check_kinds
from ._ring_gradients import gradients_of
from ._ring_group import WORD, Ring, agreed, parts_of, wide
from ._schema import refuse_gradients

__all__ = ["ring_attention"]

_SHARDINGS = ("contiguous", "zigzag")
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

# The state of the softmax of some rows: max, sum and the weighted sum of values.
_State = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _empty_state(q: torch.Tensor, rows: int, E: int) -> _State:
    shape = (*q.shape[:-2], rows)
    of: Dict[str, Any] = {"dtype": wide(q), "device": "cpu"}
    return (
        torch.full(shape, -torch.inf, **of),
        torch.zeros(shape, **of),
        torch.zeros((*shape, E), **of),
    )


def _forward(
    ring: Ring, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, threads: Any
) -> Tuple[torch.Tensor, torch.Tensor]:
    E = v.shape[-1]
    out = torch.empty((*q.shape[:-1], E), dtype=q.dtype, device="cpu")
    lse = torch.empty(q.shape[:-1], dtype=wide(q), device="cpu")
    states = [_empty_state(q, part.end - part.begin, E) for part in ring.own]
    last = [max(n for n, keys in enumerate(ring.parts) if ring.meets(x, keys)) for x in ring.own]
    for keys, k_part, v_part in ring.each_keys(k, v):
        for part, state, end in zip(ring.own, states, last):
            if not ring.meets(part, keys):
                continue
            is_last = ring.parts[end] is keys
            outputs = (out[..., part.rows, :], lse[..., part.rows]) if is_last else (None, None)
            _core.attention_step(
                q[..., part.rows, :],
                k_part,
                v_part,
                state,
                outputs,
                options_of(ring.call(part, keys)),
                threads,
            )
    ring.finish()
    return out, lse


class _RingAttention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, ring: Ring, threads: Any, q: Any, k: Any, v: Any) -> Any:
        out, lse = _forward(ring, q.detach(), k.detach(), v.detach(), threads)
        ctx.ring, ctx.threads = ring, threads
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        saved = tuple(x.detach() for x in ctx.saved_tensors)
        return (None, None, *gradients_of(ctx.ring, saved, dout, dlse, ctx.threads))


@near_words
def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any = None,
    sharding: str = "contiguous",
    score: str = "scaled_dot",
    params: Optional[Dict[str, torch.Tensor]] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[MaskFunction] = None,
    key_lengths: Optional[Numbers] = None,
    causal: bool = False,
    window: Optional[Window] = None,
    alibi_slopes: Optional[torch.Tensor] = None,
    sinks: Optional[torch.Tensor] = None,
    dropout: float = 0.0,
    seed: Optional[int] = None,
    return_lse: bool = False,
    threads: Optional[int] = None,
) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Attention of one sequence that is divided among the processes of a group.

    Every process calls it with its own rows and the same options; positions count in the whole
    sequence. out and lse are bit-identical to `attention` of the whole sequence, for any number of
    processes, and so are the gradients of q, k and v for dot products, if H = G or without dropout,
    score_mod and mask_mod. Other gradients are sums of the processes' terms in a fixed order, which
    differ from those of one process by rounding. A process holds its own rows and, if all have
    about equal work, a few parts of other processes' keys and values.

    Both passes are collective: every process runs the backward passes of the same calls. Autocast
    does not change dtypes here.

    Args:
        q, k, v: this process's rows, [B,H,T,D], [B,G,T,D] and [B,G,T,E], on the CPU.
        group: the process group; None for the default one. gloo sends tensors of the CPU.
        sharding: "contiguous", where the ranks have consecutive rows of the sequence; or "zigzag",
            where rank r of P has parts r and 2P-1-r of 2P equal parts, one after the other, so that
            causal work is equal. Parts begin at multiples of 512 rows.
        key_lengths: [B], or [B,T] for this process's rows; they count keys of the whole sequence.
        threads: number of threads of this process, as in `attention`.
        others: as in `attention`. They have no gradients.

    Returns:
        out [B,H,T,E], this process's rows; with return_lse, (out, lse [B,H,T]).

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value. All
            processes of the group then raise an error.
        RuntimeError: a second derivative was requested.

    >>> import torch
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> q = torch.ones(1, 2, 600, 4)
    >>> ring_attention(q, q, q, causal=True).shape
    torch.Size([1, 2, 600, 4])
    >>> dist.destroy_process_group()
    """
    arguments = {
        "score": score, "params": params, "scale": scale, "softcap": softcap,
        "score_mod": score_mod, "mask_mod": mask_mod, "key_lengths": key_lengths,
        "causal": causal, "window": window, "alibi_slopes": alibi_slopes, "sinks": sinks,
        "dropout": dropout, "seed": seed,
    }  # fmt: skip
    error: Optional[Exception] = None
    options: Dict[str, Any] = {}
    try:
        _check_tensors(q, k, v, sharding, return_lse)
        options = _checked({**DEFAULTS, **arguments}, q)
        _try_one_row(q, k, v, options, threads)
    except (TypeError, ValueError) as raised:
        error = raised
    is_right = error is None
    same = _of_all_ranks(q, k, v, sharding, options) if is_right else dict.fromkeys(_SAME, 0)
    lengths = agreed(group, q.shape[-2] if is_right else 0, same, error)
    ring = Ring(group, parts_of(lengths, sharding), options)
    out, lse = _RingAttention.apply(ring, threads, q, k, v)
    return (out, lse) if return_lse else out


# Names, in messages, of the numbers that are equal on all ranks.
_SAME = (
    "B", "H", "G", "D", "E", "the dtype of q", "the dtype of k", "sharding", "causal",
    "window[0]", "window[1]",
)  # fmt: skip


def _of_all_ranks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sharding: str, options: Dict[str, Any]
) -> Dict[str, int]:
    left, right = options["window"] or (-1, -1)
    numbers = [
        q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3], _DTYPES.index(q.dtype),
        _DTYPES.index(k.dtype), _SHARDINGS.index(sharding), int(options["causal"]), left, right,
    ]  # fmt: skip
    return dict(zip(_SAME, numbers))


def _check_tensors(q: Any, k: Any, v: Any, sharding: Any, return_lse: Any) -> None:
    check_kinds(WORD, torch.Tensor, q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or x.device.type != "cpu":
            raise ValueError(
                f"{WORD}: {name} must be [B,H,T,D] on the CPU, got {list(x.shape)} on {x.device}"
            )
        if x.dtype not in _DTYPES:
            raise TypeError(f"{WORD}: {name} must be of a real type, got {x.dtype}")
    if not q.shape[-2] == k.shape[-2] == v.shape[-2]:
        rows = [x.shape[-2] for x in (q, k, v)]
        raise ValueError(f"{WORD}: q, k and v must have the same rows of the sequence, got {rows}")
    if sharding not in _SHARDINGS:
        raise ValueError(f'{WORD}: sharding must be "contiguous" or "zigzag", got {sharding!r}')
    check_kinds(WORD, FLAG, return_lse=return_lse)


def _checked(options: Dict[str, Any], q: torch.Tensor) -> Dict[str, Any]:
    """The options as the calls of parts take them."""
    check_kinds(WORD, FLAG, causal=options["causal"])
    if options["params"] is not None and not isinstance(options["params"], dict):
        raise TypeError(
            f"{WORD}: params must be a dict of tensors, got {type(options['params']).__name__}"
        )
    window = options["window"]
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise TypeError(f"{WORD}: window must be a pair (left, right), got {window!r}")
        window = tuple(-1 if side is None else side for side in window)
        check_kinds(WORD, SIZE, **{"window[0]": window[0], "window[1]": window[1]})
    lengths = options["key_lengths"]
    if lengths is not None:
        lengths = torch.as_tensor(lengths, device="cpu")
        if list(lengths.shape) not in ([q.shape[0]], [q.shape[0], q.shape[-2]]):
            raise ValueError(
                f"{WORD}: key_lengths must have the shape [B] = [{q.shape[0]}] or, for this "
                f"process's rows, [B,T] = [{q.shape[0]},{q.shape[-2]}], got {list(lengths.shape)}"
            )
    options = {**options, "window": window, "key_lengths": lengths}
    options["score_mod"] = _made(options["score_mod"], ScoreMod, make_score_mod)
    options["mask_mod"] = _made(options["mask_mod"], MaskMod, make_mask_mod)
    _refuse_gradients(options)
    return options


def _try_one_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Dict[str, Any], threads: Any
) -> None:
    """Raises what a call with these options would raise, before any process waits for another."""
    lengths = options["key_lengths"]
    if lengths is not None:
        lengths = torch.zeros((q.shape[0],), dtype=lengths.dtype, device="cpu")
    row = [x.detach()[..., :1, :] for x in (q, k, v)]
    state = _empty_state(row[0], row[0].shape[-2], v.shape[-1])
    rows = max(row[0].shape[-2], 1)
    given = {**options, "shard": Shard(0, rows, 0, rows), "key_lengths": lengths}
    try:
        _core.attention_step(
            row[0], row[1], row[2], state, (None, None), options_of(given), threads
        )
    except (TypeError, ValueError) as error:
        _, _, rule = str(error).partition(": ")
        raise type(error)(f"{WORD}: {rule}") from None


def _made(function: Any, kind: Any, make: Any) -> Any:
    return function if function is None or isinstance(function, kind) else make(function)


def _refuse_gradients(options: Dict[str, Any]) -> None:
    if not torch.is_grad_enabled():
        return
    refuse_gradients(options)
    given: List[Tuple[str, Any]] = [(name, options[name]) for name in ("alibi_slopes", "sinks")]
    given += [(f'params["{name}"]', x) for name, x in (options["params"] or {}).items()]
    if options["score_mod"] is not None:
        given += [(f"score_mod's {n}", x) for n, x in options["score_mod"]._tensors.items()]
    for name, x in given:
        if isinstance(x, torch.Tensor) and x.requires_grad:
            raise ValueError(f"{WORD}: {name} requires a gradient, but only q, k and v get one")
