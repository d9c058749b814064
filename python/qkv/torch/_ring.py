# SPDX-License-Identifier: Apache-2.0
"""`qkv.torch.ring_attention`: one long sequence over the processes of a torch.distributed group.

The keys and values of every process reach all others, part by part in ascending order, and the
softmax continues from one part to the next. Its order of sums is that of one process.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
import torch.distributed as dist

from .. import _core, _functions
from .._functions import DEFAULTS, Numbers, Shard, Window, options_of
from .._mods import MaskFunction, MaskMod, ScoreFunction, ScoreMod
from .._mods import mask_mod as make_mask_mod
from .._mods import score_mod as make_score_mod
from .._words import near_words
from ._kinds import FLAG, check_kinds

__all__ = ["ring_attention"]

_WORD = "ring_attention"
_SHARDINGS = ("contiguous", "zigzag")
# Parts of the keys begin at multiples of this number, at which sums over keys are divided.
_KEYS = 512
# The keys of a piece that goes from process to process in the backward pass.
_PIECE = 1024
# Above this |lse|, gradients are corrected for the rounding of lse.
_LARGE_LSE = 16


class _Part(NamedTuple):
    """Rows of the whole sequence that one rank holds, and where they begin in its tensors."""

    begin: int
    end: int
    rank: int
    local: int

    @property
    def rows(self) -> slice:
        return slice(self.local, self.local + self.end - self.begin)


def _parts(lengths: List[int], sharding: str) -> List[_Part]:
    """The parts of the sequence in ascending order, given each rank's number of rows."""
    if sharding == "contiguous":
        pieces = [(rank, 0, length) for rank, length in enumerate(lengths)]
    else:
        if len(set(lengths)) != 1 or lengths[0] % 2 != 0:
            raise ValueError(
                f"{_WORD}: q must have an equal and even number of rows on every rank with "
                f'sharding="zigzag", got {lengths}'
            )
        half = lengths[0] // 2
        last = len(lengths) - 1
        pieces = [(rank, 0, half) for rank in range(len(lengths))]
        pieces += [(last - rank, half, half) for rank in range(len(lengths))]
    parts = []
    begin = 0
    for rank, local, length in pieces:
        if begin % _KEYS != 0 and length > 0:
            raise ValueError(
                f"{_WORD}: parts of the sequence must begin at multiples of {_KEYS}, but rank "
                f"{rank} has rows from {begin} on (rows of the ranks: {lengths})"
            )
        parts.append(_Part(begin, begin + length, rank, local))
        begin += length
    return [part for part in parts if part.end > part.begin]


class _Ring:
    """One call: the group, the parts of the sequence, and the options of `qkv.attention`."""

    def __init__(self, group: Any, length: int, sharding: str, options: Dict[str, Any]) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
        dist.all_gather(lengths, torch.tensor([length]), group=group)
        self.parts = _parts([int(x) for x in lengths], sharding)
        self.total = sum(int(x) for x in lengths)
        self.options = options
        self.sent: List[Any] = []  # what is being sent: requests, and tensors that must stay alive

    @property
    def own(self) -> List[_Part]:
        return [part for part in self.parts if part.rank == self.rank]

    def meets(self, queries: _Part, keys: _Part) -> bool:
        """Whether causal and window let a query of one part attend to a key of the other."""
        left, right = self.options["window"] or (-1, -1)
        left = -1 if left is None else left
        right = -1 if right is None else right
        if self.options["causal"]:
            right = 0 if right < 0 else min(right, 0)
        return (right < 0 or keys.begin <= queries.end - 1 + right) and (
            left < 0 or keys.end - 1 >= queries.begin - left
        )

    def ranks_of(self, keys: _Part) -> List[int]:
        """The ranks with queries that meet these keys, in ascending order."""
        return sorted({part.rank for part in self.parts if self.meets(part, keys)})

    def call(self, queries: _Part, keys: _Part) -> Dict[str, Any]:
        shard = Shard(queries.begin, self.total, keys.begin, self.total)
        lengths = self.options["key_lengths"]
        if lengths is not None:
            lengths = torch.as_tensor(lengths)
            lengths = lengths[:, queries.rows] if lengths.dim() == 2 else lengths
        return {**self.options, "shard": shard, "key_lengths": lengths}

    def send(self, tensors: List[torch.Tensor], rank: int) -> None:
        peer = _global(self.group, rank)
        for x in tensors:
            self.sent.append((dist.isend(x, peer, group=self.group), x))

    def receive(self, like: List[torch.Tensor], rank: int) -> Tuple[List[torch.Tensor], List[Any]]:
        """Tensors that are being received, and the requests to wait for."""
        peer = _global(self.group, rank)
        return like, [dist.irecv(x, peer, group=self.group) for x in like]

    def finish(self) -> None:
        """Waits until everything has been sent."""
        for request, _ in self.sent:
            request.wait()
        self.sent.clear()

    def each_keys(self, k: torch.Tensor, v: torch.Tensor) -> Any:
        """Yields (part, its keys, its values) in ascending order, of the parts that meet a query.

        The next part is received while the caller computes.
        """
        for part in self.own:
            rows = [x[..., part.rows, :].contiguous() for x in (k, v)]
            for rank in self.ranks_of(part):
                if rank != self.rank:
                    self.send(rows, rank)
        needed = [part for part in self.parts if self.rank in self.ranks_of(part)]

        def begin(part: _Part) -> Tuple[List[torch.Tensor], List[Any]]:
            if part.rank == self.rank:
                return [x[..., part.rows, :] for x in (k, v)], []
            length = part.end - part.begin
            empty = [x.new_empty((*x.shape[:-2], length, x.shape[-1])) for x in (k, v)]
            return self.receive(empty, part.rank)

        coming = begin(needed[0]) if needed else None
        for n, part in enumerate(needed):
            (keys, values), requests = coming  # type: ignore[misc]
            coming = begin(needed[n + 1]) if n + 1 < len(needed) else None
            for request in requests:
                request.wait()
            yield part, keys, values


def _global(group: Any, rank: int) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _forward(
    ring: _Ring, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, threads: Any
) -> Tuple[torch.Tensor, torch.Tensor]:
    wide = _wide(q)
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty(q.shape[:-1], dtype=wide)
    states = [
        (
            lse.new_full((*q.shape[:-2], part.end - part.begin), -torch.inf),
            lse.new_zeros((*q.shape[:-2], part.end - part.begin)),
            lse.new_zeros((*q.shape[:-2], part.end - part.begin, v.shape[-1])),
        )
        for part in ring.own
    ]
    last = [max(n for n, keys in enumerate(ring.parts) if ring.meets(x, keys)) for x in ring.own]
    for keys, k_part, v_part in ring.each_keys(k, v):
        for part, state, end in zip(ring.own, states, last):
            if not ring.meets(part, keys):
                continue
            is_last = ring.parts[end] is keys
            outputs = (out[..., part.rows, :], lse[..., part.rows]) if is_last else (None, None)
            _core.attention_step(
                q[..., part.rows, :], k_part, v_part, state, outputs,
                options_of(ring.call(part, keys)), threads,
            )  # fmt: skip
    ring.finish()
    return out, lse


def _backward(
    ring: _Ring, tensors: Tuple[torch.Tensor, ...], dout: Any, dlse: Any, threads: Any
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sums are in float32 (float64): over parts of the keys, and over ranks, in their order."""
    q, k, v, out, lse = tensors
    wide = _wide(q)
    dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
    mine: Dict[_Part, List[torch.Tensor]] = {}  # this rank's terms of the gradients of its own keys
    for keys, k_part, v_part in ring.each_keys(k, v):
        terms = [torch.zeros_like(x, dtype=wide) for x in (k_part, v_part)]
        for part in ring.own:
            if not ring.meets(part, keys):
                continue
            got = _functions.attention_backward(
                None if dout is None else dout[..., part.rows, :],
                q[..., part.rows, :], k_part, v_part, out[..., part.rows, :], lse[..., part.rows],
                dlse=None if dlse is None else dlse[..., part.rows],
                wanted=("dq", "dk", "dv"), threads=threads,
                **{n: x for n, x in ring.call(part, keys).items() if n in _OF_BACKWARD},
            )  # fmt: skip
            dq[..., part.rows, :] += got.dq
            for to, term in zip(terms, (got.dk, got.dv)):
                to += term
        if keys.rank == ring.rank:
            mine[keys] = terms
        else:
            ring.send(terms, keys.rank)
    for keys in ring.own:
        for rank in ring.ranks_of(keys):
            terms = mine[keys] if rank == ring.rank else []
            if rank != ring.rank:
                like = [torch.empty(x[..., keys.rows, :].shape, dtype=x.dtype) for x in (dk, dv)]
                terms, requests = ring.receive(like, rank)
                for request in requests:
                    request.wait()
            for to, term in zip((dk, dv), terms):
                to[..., keys.rows, :] += term
    ring.finish()
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class _Station(NamedTuple):
    """A place that each piece of the keys visits: the queries of a part, and every R-th head."""

    index: int
    first_head: int
    queries: _Part


class _Task(NamedTuple):
    """One piece of the keys at one station, between the stations before and after it."""

    piece: int
    station: _Station
    before: Optional[_Station]
    after: Optional[_Station]


_KEY, _VALUE, _KEY_SUM, _VALUE_SUM = range(4)


class _Pipeline:
    """Gradients with the bits of one process.

    A piece of the keys visits the queries that it meets in ascending order, with its keys, its
    values and the sums of its gradients; the queries add the pieces in ascending order.
    """

    def __init__(self, ring: _Ring, ratio: int) -> None:
        self.ring = ring
        self.ratio = ratio
        self.pieces = [
            part._replace(begin=begin, end=min(begin + _PIECE, part.end),
                          local=part.local + begin - part.begin)
            for part in ring.parts
            for begin in range(part.begin, part.end, _PIECE)
        ]  # fmt: skip
        self.stations = [
            _Station(head * len(ring.parts) + n, head, part)
            for head in range(ratio)
            for n, part in enumerate(ring.parts)
        ]
        self.paths = [
            [x for x in self.stations if ring.meets(x.queries, piece)] for piece in self.pieces
        ]

    def tasks(self) -> List[_Task]:
        """This rank's tasks, in an order in which every rank can wait for the others."""
        tasks = []
        for piece, path in enumerate(self.paths):
            for station, before, after in zip(path, [None, *path], [*path[1:], None]):
                if station.queries.rank == self.ring.rank:
                    tasks.append(_Task(piece, station, before, after))
        return sorted(tasks, key=lambda task: (task.piece + task.station.index, task.piece))

    def tag(self, piece: int, station: Optional[_Station], slot: int) -> int:
        """The number of a message to a station, or to the owner of the piece."""
        place = len(self.stations) if station is None else station.index
        return (piece * (len(self.stations) + 1) + place) * 4 + slot

    def run(
        self, tensors: Tuple[torch.Tensor, ...], dout: Any, dlse: Any, threads: Any
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, out, lse = tensors
        ring, wide = self.ring, _wide(q)
        dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
        weight_sums = self._weight_sums(q, k, v, lse, threads)
        held: Dict[int, List[torch.Tensor]] = {}  # pieces that go on to a station of this rank

        def own(piece: _Part) -> List[torch.Tensor]:
            keys = [x[..., piece.rows, :].contiguous() for x in (k, v)]
            return [*keys, *(torch.zeros_like(x, dtype=wide) for x in keys)]

        def empty(piece: _Part) -> List[torch.Tensor]:
            length = piece.end - piece.begin
            shapes = [(*x.shape[:-2], length, x.shape[-1]) for x in (k, v)]
            return [torch.empty(shapes[n % 2], dtype=k.dtype if n < 2 else wide) for n in range(4)]

        for n, piece in enumerate(self.pieces):
            first = self.paths[n][0]
            if piece.rank == ring.rank and first.queries.rank != ring.rank:
                self._send(own(piece)[:2], first.queries.rank, n, first, 0)

        def begin(task: _Task) -> Any:
            """What a task needs, or the requests that bring it."""
            piece = self.pieces[task.piece]
            source = piece.rank if task.before is None else task.before.queries.rank
            if source == ring.rank:
                return None, []
            count = 2 if task.before is None else 4
            arrays = empty(piece)
            for x in arrays[count:]:
                x.zero_()
            return arrays, self._receive(arrays[:count], source, task.piece, task.station, 0)

        tasks = self.tasks()
        coming = begin(tasks[0]) if tasks else None
        for n, task in enumerate(tasks):
            arrays, requests = coming
            coming = begin(tasks[n + 1]) if n + 1 < len(tasks) else None
            for request in requests:
                request.wait()
            piece = self.pieces[task.piece]
            if arrays is None:
                arrays = own(piece) if task.before is None else held.pop(task.piece)
            part, heads = task.station.queries, slice(task.station.first_head, None, self.ratio)

            def rows(x: Any, part: _Part = part, heads: slice = heads) -> Any:
                return None if x is None else x[:, heads, part.rows]

            _core.attention_backward_step(
                rows(q), arrays[_KEY], arrays[_VALUE],
                (rows(dout), rows(out), rows(lse), rows(dlse), rows(weight_sums)),
                (rows(dq), arrays[_KEY_SUM], arrays[_VALUE_SUM]),
                options_of(self._options(part, piece, heads)), threads,
            )  # fmt: skip
            if task.after is not None and task.after.queries.rank == ring.rank:
                held[task.piece] = arrays
            elif task.after is not None:
                self._send(arrays, task.after.queries.rank, task.piece, task.after, 0)
            elif piece.rank == ring.rank:
                dk[..., piece.rows, :], dv[..., piece.rows, :] = arrays[_KEY_SUM:]
            else:
                self._send(arrays[_KEY_SUM:], piece.rank, task.piece, None, _KEY_SUM)
        for n, piece in enumerate(self.pieces):
            last = self.paths[n][-1]
            if piece.rank != ring.rank or last.queries.rank == ring.rank:
                continue
            arrays = empty(piece)[_KEY_SUM:]
            for request in self._receive(arrays, last.queries.rank, n, None, _KEY_SUM):
                request.wait()
            dk[..., piece.rows, :], dv[..., piece.rows, :] = arrays
        ring.finish()
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    def _weight_sums(self, q: Any, k: Any, v: Any, lse: torch.Tensor, threads: Any) -> torch.Tensor:
        """Sums that correct the rounding of large lse, if a rank has one."""
        ring = self.ring
        sums = torch.zeros(lse.shape, dtype=torch.float64)
        is_large = torch.tensor([int((lse.abs().nan_to_num(0, 0, 0) > _LARGE_LSE).any())])
        dist.all_reduce(is_large, dist.ReduceOp.MAX, group=ring.group)
        if not is_large.item():
            return sums
        for keys, k_part, _ in ring.each_keys(k, v):
            for part in ring.own:
                if ring.meets(part, keys):
                    _core.add_weight_sums(
                        q[..., part.rows, :], k_part, lse[..., part.rows], sums[..., part.rows],
                        options_of(ring.call(part, keys)), threads,
                    )  # fmt: skip
        ring.finish()
        return sums

    def _options(self, queries: _Part, keys: _Part, heads: slice) -> Dict[str, Any]:
        options = self.ring.call(queries, keys)
        for name in ("alibi_slopes", "sinks"):
            if options[name] is not None:
                options[name] = torch.as_tensor(options[name])[..., heads]
        return options

    def _send(self, arrays: List[torch.Tensor], rank: int, piece: int, to: Any, first: int) -> None:
        ring = self.ring
        ring.sent = [(request, x) for request, x in ring.sent if not request.is_completed()]
        for n, x in enumerate(arrays):
            tag = self.tag(piece, to, first + n)
            peer = _global(ring.group, rank)
            ring.sent.append((dist.isend(x, peer, group=ring.group, tag=tag), x))

    def _receive(
        self, arrays: List[torch.Tensor], rank: int, piece: int, to: Any, first: int
    ) -> List[Any]:
        peer = _global(self.ring.group, rank)
        return [
            dist.irecv(x, peer, group=self.ring.group, tag=self.tag(piece, to, first + n))
            for n, x in enumerate(arrays)
        ]


def _has_steps(options: Dict[str, Any], ratio: int) -> bool:
    """Whether gradients have steps: dot products, whose heads may be taken apart if they differ."""
    depends_on_head = options["dropout"] != 0 or options["score_mod"] or options["mask_mod"]
    return options["score"] in ("dot", "scaled_dot") and (ratio == 1 or not depends_on_head)


_OF_BACKWARD = frozenset(
    name for name in DEFAULTS
    if not name.startswith("return_") and name not in ("rows", "threads", "block_tables",
                                                       "context_lens")
)  # fmt: skip


class _RingAttention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, ring: _Ring, threads: Any, q: Any, k: Any, v: Any) -> Any:
        out, lse = _forward(ring, q.detach(), k.detach(), v.detach(), threads)
        ctx.ring, ctx.threads = ring, threads
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        saved = tuple(x.detach() for x in ctx.saved_tensors)
        ratio = saved[0].shape[1] // saved[1].shape[1]
        if _has_steps(ctx.ring.options, ratio):
            gradients = _Pipeline(ctx.ring, ratio).run(saved, dout, dlse, ctx.threads)
        else:
            gradients = _backward(ctx.ring, saved, dout, dlse, ctx.threads)
        return (None, None, *gradients)


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
    differ from those of one process by rounding. A process holds its own rows, a few parts of other
    processes' keys and values, and no matrix.

    Args:
        q, k, v: this process's rows, [B,H,T,D], [B,G,T,D] and [B,G,T,E], on the CPU.
        group: the process group; None for the default one. gloo sends tensors of the CPU.
        sharding: "contiguous", where the ranks have consecutive rows of the sequence; or "zigzag",
            where rank r of P has parts r and 2P-1-r of 2P equal parts, one after the other, so that
            causal work is equal. Parts begin at multiples of 512 rows.
        key_lengths: [B] or [B,T], positions in the whole sequence.
        threads: number of threads of this process, as in `attention`.
        others: as in `attention`. They have no gradients.

    Returns:
        out [B,H,T,E], this process's rows; with return_lse, (out, lse [B,H,T]).

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value. The
            other processes of the group then wait for this one until their timeout.
        RuntimeError: a second derivative was requested.
    """
    check_kinds(_WORD, torch.Tensor, q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or x.device.type != "cpu":
            raise ValueError(
                f"{_WORD}: {name} must be [B,H,T,D] on the CPU, got {list(x.shape)} on {x.device}"
            )
    if not q.shape[-2] == k.shape[-2] == v.shape[-2]:
        rows = [x.shape[-2] for x in (q, k, v)]
        raise ValueError(f"{_WORD}: q, k and v must have the same rows of the sequence, got {rows}")
    if sharding not in _SHARDINGS:
        raise ValueError(f'{_WORD}: sharding must be "contiguous" or "zigzag", got {sharding!r}')
    check_kinds(_WORD, FLAG, causal=causal, return_lse=return_lse)
    options = {
        **DEFAULTS, "score": score, "params": params, "scale": scale, "softcap": softcap,
        "score_mod": _made(score_mod, ScoreMod, make_score_mod), "key_lengths": key_lengths,
        "mask_mod": _made(mask_mod, MaskMod, make_mask_mod), "causal": causal, "window": window,
        "alibi_slopes": alibi_slopes, "sinks": sinks, "dropout": dropout, "seed": seed,
    }  # fmt: skip
    _refuse_gradients(options)
    ring = _Ring(group, q.shape[-2], sharding, options)
    out, lse = _RingAttention.apply(ring, threads, q, k, v)
    return (out, lse) if return_lse else out


def _made(function: Any, kind: Any, make: Any) -> Any:
    return function if function is None or isinstance(function, kind) else make(function)


def _refuse_gradients(options: Dict[str, Any]) -> None:
    given = {name: options[name] for name in ("alibi_slopes", "sinks")}
    given.update((f'params["{name}"]', x) for name, x in (options["params"] or {}).items())
    if options["score_mod"] is not None:
        given.update((f"score_mod's {n}", x) for n, x in options["score_mod"]._tensors.items())
    for name, x in given.items():
        if torch.is_grad_enabled() and isinstance(x, torch.Tensor) and x.requires_grad:
            raise ValueError(f"{_WORD}: {name} requires a gradient, but only q, k and v get one")
