# SPDX-License-Identifier: Apache-2.0
"""`qkv.torch.ring_attention`: one long sequence over the processes of a torch.distributed group."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch

from .. import _core
from .._functions import DEFAULTS, Numbers, Window, options_of
from .._mods import MaskFunction, ScoreFunction, ScoreMod, replace_functions
from .._ring import WORD, mask_mod_of, score_mod_of, zigzags_of
from .._words import near_words
from ._kinds import FLAG, SIZE, check_kinds
from ._ring_group import GroupRanks, check_all
from ._schema import refuse_gradients

__all__ = ["ring_attention"]

_PARAMS = "params."
_CAPTURED = "captured."
_SHARED = ("bias", "alibi_slopes", "sinks")  # the options beside params that get a gradient
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _wide(x: torch.Tensor) -> torch.dtype:
    """The dtype of sums and of lse."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _RingAttention(torch.autograd.Function):  # type: ignore[misc]
    """The forward pass; `shared` has the tensors of `call.shared`, which all processes have."""

    @staticmethod
    def forward(ctx: Any, call: "_Call", q: Any, k: Any, v: Any, *shared: Any) -> Any:
        qd, kd, vd = q.detach(), k.detach(), v.detach()
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device="cpu")
        lse = torch.empty(q.shape[:-1], dtype=_wide(q), device="cpu")
        _core.ring_attention(qd, kd, vd, (out, lse), call.options, call.placed, call.threads)
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, lse, *shared, *call.kept)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        saved = ctx.saved_tensors  # raises if one of them was changed
        of_call = saved[: len(saved) - len(ctx.call.kept)]
        return (None, *_RingGradient.apply(ctx.call, dout, dlse, *of_call))


class _RingGradient(torch.autograd.Function):  # type: ignore[misc]
    """The backward pass as a separate function, so that its derivative can be rejected."""

    @staticmethod
    def forward(ctx: Any, call: "_Call", *tensors: Any) -> Any:
        detached: List[Any] = [x if x is None else x.detach() for x in tensors]
        dout, dlse, q, k, v, out, lse, *shared = detached
        grads = [torch.empty(x.shape, dtype=x.dtype, device="cpu") for x in (q, k, v, *shared)]
        of_shared = dict(zip(call.shared, grads[3:]))

        def named(prefix: str) -> Dict[str, Any]:
            return {n[len(prefix) :]: x for n, x in of_shared.items() if n.startswith(prefix)}

        by_name = (named(_PARAMS), named(_CAPTURED))
        given = (*grads[:3], *(of_shared.get(name) for name in _SHARED), *by_name)
        _core.ring_attention_backward(
            q, k, v, (dout, out, lse, dlse), given, call.options, call.placed, call.threads
        )
        if call.placed[0].rank != 0:  # only rank 0 keeps the sums, as the user adds over processes
            for name, grad in of_shared.items():
                if name != "bias":  # a bias has only this process's rows
                    grad.zero_()
        return tuple(grads)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "ring_attention: there is no second derivative of qkv.torch.ring_attention"
        )


class _Call(NamedTuple):
    options: Tuple[Any, ...]
    placed: Tuple[Any, int]  # the ranks and the number of zigzags
    threads: Any
    shared: Tuple[str, ...]  # tensors of the options that get a gradient
    kept: Tuple[torch.Tensor, ...]  # other tensors of the options, for autograd to notice changes


@near_words
def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    group: Any = None,
    sharding: Union[str, int] = "contiguous",
    score: str = "scaled_dot",
    params: Optional[Dict[str, torch.Tensor]] = None,
    qk_norm: Optional[Union[bool, float]] = None,
    rotary: Optional[str] = None,
    rotary_base: Optional[float] = None,
    rotary_width: Optional[int] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[MaskFunction] = None,
    mask: Optional[torch.Tensor] = None,
    padding_mask: Optional[torch.Tensor] = None,
    bias: Optional[torch.Tensor] = None,
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
    sequence. out and lse are bit-identical to `attention` of the whole sequence, and so are the
    gradients of q, k and v for dot products without qk_norm and rotary. Other gradients differ from
    those of one call by rounding, but are bit-identical for any number of processes and any
    sharding. Gradients of alibi_slopes, sinks, params and the tensors that score_mod reads are to
    be added over processes, like those of any parameter that all processes have: the first process
    has the gradients, the others have zeros.
    A process holds its own rows, two parts of other processes' keys and values, what is being sent,
    and 48 bytes for each element of the gradients that processes share.

    Both passes are collective: every process runs the backward passes of the same calls. Autocast
    does not change dtypes here.

    Args:
        q, k, v: this process's rows, [B,H,T,D], [B,G,T,D] and [B,G,T,E], on the CPU.
        group: the process group; None for the default one. gloo sends tensors of the CPU.
        sharding: "contiguous", where the ranks have consecutive rows of the sequence; or "zigzag",
            where rank r of P has parts r and 2P-1-r of 2P equal parts, one after the other, so that
            causal work is equal; or n, where the sequence is divided into n equal spans, each of
            them in zigzag. Parts begin at multiples of 512 rows.
        mask, bias: as in `attention`, with this process's rows of queries and the keys of the whole
            sequence. A bias that has a gradient has a row for each query.
        padding_mask: for the keys of the whole sequence.
        key_lengths: [B], or [B,T] for this process's rows; they count keys of the whole sequence.
        threads: number of threads of this process, as in `attention`.
        score_mod, mask_mod: as in `attention`; they read whole arrays.
        others: as in `attention`.

    Returns:
        out [B,H,T,E], this process's rows; with return_lse, (out, lse [B,H,T]).

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value. The
            other processes of the group raise RuntimeError.
        RuntimeError: another process has raised an error, or a second derivative was requested.

    >>> import torch
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> q = torch.ones(1, 2, 600, 4)
    >>> ring_attention(q, q, q, causal=True).shape
    torch.Size([1, 2, 600, 4])
    >>> dist.destroy_process_group()
    """
    arguments = {
        "score": score, "params": params, "qk_norm": qk_norm, "rotary": rotary,
        "rotary_base": rotary_base, "rotary_width": rotary_width, "scale": scale,
        "softcap": softcap, "score_mod": score_mod, "mask_mod": mask_mod, "mask": mask,
        "padding_mask": padding_mask, "bias": bias, "key_lengths": key_lengths,
        "causal": causal, "window": window, "alibi_slopes": alibi_slopes, "sinks": sinks,
        "dropout": dropout, "seed": seed,
    }  # fmt: skip
    error: Optional[Exception] = None
    options: Tuple[Any, ...] = ()
    checked: Dict[str, Any] = {}
    zigzags = 0
    kept: List[torch.Tensor] = []
    try:
        zigzags = zigzags_of(sharding)
        _check_tensors(q, k, v, return_lse)
        checked = _checked({**DEFAULTS, **arguments}, q)
        mod = checked["score_mod"]
        options = options_of({**checked, "score_mod": mod and mod._detached()})
        arrays = [arguments[n] for n in ("mask", "padding_mask", "key_lengths", *_SHARED)]
        arrays += (params or {}).values()
        kept += [x for x in arrays if isinstance(x, torch.Tensor)]
        for name in ("score_mod", "mask_mod"):
            kept += getattr(checked[name], "_read", [])
    except Exception as raised:  # includes errors of traced functions
        error = raised
    check_all(group, error)
    shared = _with_gradients(arguments, checked.get("score_mod"))
    own = {id(x) for x in shared.values()}
    kept = [x for x in kept if id(x) not in own and not x.is_inference()]
    call = _Call(options, (GroupRanks(group), zigzags), threads, tuple(shared), tuple(kept))
    out, lse = _RingAttention.apply(call, q, k, v, *shared.values())
    return (out, lse) if return_lse else out


def _check_tensors(q: Any, k: Any, v: Any, return_lse: Any) -> None:
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
    check_kinds(WORD, FLAG, return_lse=return_lse)


def _checked(options: Dict[str, Any], q: torch.Tensor) -> Dict[str, Any]:
    """The options as the calls of parts take them."""
    check_kinds(WORD, FLAG, causal=options["causal"])
    params = options["params"]
    if params is not None and not isinstance(params, dict):
        raise TypeError(f"{WORD}: params must be a dict of tensors, got {type(params).__name__}")
    for name in params or ():
        if not isinstance(name, str):
            raise TypeError(f"{WORD}: params must have names as keys, got {name!r}")
    window = options["window"]
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise TypeError(f"{WORD}: window must be a pair (left, right), got {window!r}")
        window = tuple(-1 if side is None else side for side in window)
        check_kinds(WORD, SIZE, **{"window[0]": window[0], "window[1]": window[1]})
    lengths = options["key_lengths"]
    if lengths is not None:
        try:
            lengths = torch.as_tensor(lengths, device="cpu")
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"{WORD}: key_lengths must be integers, [B] or [B,T], got {type(lengths).__name__}"
            ) from None
        if list(lengths.shape) not in ([q.shape[0]], [q.shape[0], q.shape[-2]]):
            raise ValueError(
                f"{WORD}: key_lengths must have the shape [B] = [{q.shape[0]}] or, for this "
                f"process's rows, [B,T] = [{q.shape[0]},{q.shape[-2]}], got {list(lengths.shape)}"
            )
    options = {**options, "window": window, "key_lengths": lengths}
    replace_functions(options)
    options["score_mod"] = score_mod_of(options["score_mod"])
    options["mask_mod"] = mask_mod_of(options["mask_mod"])
    _refuse_gradients(options, q.shape[-2])
    for name in _SHARED:
        options[name] = _detached(options[name])
    if options["params"] is not None:
        options["params"] = {name: _detached(x) for name, x in options["params"].items()}
    return options


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


def _with_gradients(
    options: Dict[str, Any], score_mod: Optional[ScoreMod]
) -> Dict[str, torch.Tensor]:
    """The tensors of options that require a gradient, by name: "sinks", "params.W".

    Tensors that score_mod reads have names like "captured.table".
    """
    if not torch.is_grad_enabled():
        return {}
    given = {name: options[name] for name in _SHARED}
    given.update((_PARAMS + name, x) for name, x in (options["params"] or {}).items())
    if score_mod is not None:
        given.update((_CAPTURED + name, x) for name, x in score_mod._tensors.items())
    return {n: x for n, x in given.items() if isinstance(x, torch.Tensor) and x.requires_grad}


def _refuse_gradients(options: Dict[str, Any], rows: int) -> None:
    if not torch.is_grad_enabled():
        return
    refuse_gradients(options)
    bias = options["bias"]
    has_gradient = isinstance(bias, torch.Tensor) and bias.requires_grad
    if has_gradient and (bias.dim() < 2 or bias.shape[-2] != rows):
        raise ValueError(
            f"{WORD}: bias must have a row for each of this process's {rows} queries to have a "
            f"gradient, got {list(bias.shape)}"
        )
