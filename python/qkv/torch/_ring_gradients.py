# SPDX-License-Identifier: Apache-2.0
"""The backward pass of `qkv.torch.ring_attention`."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _core, _functions
from .._functions import DEFAULTS, options_of
from ._ring_group import TERM_TAGS, Part, Ring, empty_rows, wide

# The keys of a piece that goes from process to process.
_PIECE = 1024
# Above this |lse|, gradients are corrected for the rounding of lse.
_LARGE_LSE = 16

Gradients = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_OF_BACKWARD = frozenset(
    name
    for name in DEFAULTS
    if not name.startswith("return_")
    and name not in ("rows", "threads", "block_tables", "context_lens")
)


def gradients_of(
    ring: Ring, tensors: Tuple[torch.Tensor, ...], dout: Any, dlse: Any, threads: Any
) -> Gradients:
    """dq, dk and dv of this rank's rows; `tensors` are q, k, v, out and lse."""
    ratio = tensors[0].shape[1] // max(tensors[1].shape[1], 1)
    of_heads = ring.options["dropout"] != 0 or ring.options["score_mod"] or ring.options["mask_mod"]
    if ring.options["score"] in ("dot", "scaled_dot") and (ratio == 1 or not of_heads):
        return _Pipeline(ring, ratio).run(tensors, dout, dlse, threads)
    return _sums_of_terms(ring, tensors, dout, dlse, threads)


def _zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape, dtype=wide(x), device="cpu")


def _sums_of_terms(
    ring: Ring, tensors: Tuple[torch.Tensor, ...], dout: Any, dlse: Any, threads: Any
) -> Gradients:
    """Sums, over parts of the keys and over ranks in ascending order, of each call's gradients."""
    q, k, v, out, lse = tensors
    dq, dk, dv = (_zeros(x) for x in (q, k, v))
    for keys, k_part, v_part in ring.each_keys(k, v):
        terms = [_zeros(x) for x in (k_part, v_part)]
        for part in ring.own:
            if not ring.meets(part, keys):
                continue
            options = {n: x for n, x in ring.call(part, keys).items() if n in _OF_BACKWARD}
            got = _functions.attention_backward(
                None if dout is None else dout[..., part.rows, :],
                q[..., part.rows, :],
                k_part,
                v_part,
                out[..., part.rows, :],
                lse[..., part.rows],
                dlse=None if dlse is None else dlse[..., part.rows],
                wanted=("dq", "dk", "dv"),
                threads=threads,
                **options,
            )
            dq[..., part.rows, :] += got.dq
            for to, term in zip(terms, (got.dk, got.dv)):
                to += term
        if keys.rank != ring.rank:
            ring.send(terms, keys.rank, TERM_TAGS)
            continue
        for rank in ring.ranks_of(keys):
            of_rank = terms
            if rank != ring.rank:
                of_rank = [empty_rows(x, keys, wide(x)) for x in (k, v)]
                for request in ring.receive(of_rank, rank, TERM_TAGS):
                    request.wait()
            for to, term in zip((dk, dv), of_rank):
                to[..., keys.rows, :] += term
    ring.finish()
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


# ---- gradients with the bits of one process ------------------------------------------------------


class _Station(NamedTuple):
    """A place that each piece of the keys visits: a part of the queries, of every R-th head."""

    number: int
    first_head: int
    queries: Part


class _Task(NamedTuple):
    """One piece of the keys at one station, between the stations before and after it."""

    piece: int
    station: _Station
    before: Optional[_Station]
    after: Optional[_Station]


class _Pipeline:
    """Gradients with the bits of one process.

    A piece of the keys visits the queries that it meets in ascending order, with its keys, its
    values and the sums of its gradients; the queries add the pieces in ascending order.
    """

    def __init__(self, ring: Ring, ratio: int) -> None:
        self.ring = ring
        self.ratio = ratio
        self.pieces = [
            Part(begin, min(begin + _PIECE, part.end), part.rank, part.local + begin - part.begin)
            for part in ring.parts
            for begin in range(part.begin, part.end, _PIECE)
        ]
        self.stations = [
            _Station(head * len(ring.parts) + n, head, part)
            for head in range(ratio)
            for n, part in enumerate(ring.parts)
        ]
        self.paths = [
            [x for x in self.stations if ring.meets(x.queries, piece)] for piece in self.pieces
        ]

    def tasks(self) -> List[_Task]:
        """This rank's tasks, in an order in which every rank can wait for the others.

        A task needs the one of the station before, and queries add pieces in ascending order: both
        have a smaller sum of piece and station.
        """
        tasks = []
        for piece, path in enumerate(self.paths):
            for station, before, after in zip(path, [None, *path], [*path[1:], None]):
                if station.queries.rank == self.ring.rank:
                    tasks.append(_Task(piece, station, before, after))
        return sorted(tasks, key=lambda task: (task.piece + task.station.number, task.piece))

    def tags(self, piece: int, station: Optional[_Station], count: int) -> List[int]:
        """The tags of messages to a station, or of the last one to the owner of the piece."""
        place = len(self.stations) if station is None else station.number
        first = (piece * (len(self.stations) + 1) + place) * 4
        return list(range(first, first + count))

    def run(
        self, tensors: Tuple[torch.Tensor, ...], dout: Any, dlse: Any, threads: Any
    ) -> Gradients:
        q, k, v, out, lse = tensors
        ring = self.ring
        weight_sums = self._weight_sums(q, k, lse, threads)
        dq, dk, dv = (_zeros(x) for x in (q, k, v))
        held: Dict[int, List[torch.Tensor]] = {}  # pieces that go on to a station of this rank

        def own(piece: Part) -> List[torch.Tensor]:
            keys = [x[..., piece.rows, :].contiguous() for x in (k, v)]
            return [*keys, *(_zeros(x) for x in keys)]

        last_ones = []  # sums of own pieces that another rank completes
        for n, piece in enumerate(self.pieces):
            if piece.rank != ring.rank:
                continue
            first, last = self.paths[n][0].queries.rank, self.paths[n][-1].queries.rank
            if first != ring.rank:
                ring.send(own(piece)[:2], first, self.tags(n, self.paths[n][0], 2))
            if last != ring.rank:
                sums = [empty_rows(x, piece, wide(x)) for x in (k, v)]
                last_ones.append((piece, sums, ring.receive(sums, last, self.tags(n, None, 2))))

        def begin(task: _Task) -> Tuple[Optional[List[torch.Tensor]], List[Any]]:
            """The tensors of a task and the requests that bring them; None if they are here."""
            piece = self.pieces[task.piece]
            source = piece.rank if task.before is None else task.before.queries.rank
            if source == ring.rank:
                return None, []
            keys = [empty_rows(x, piece, x.dtype) for x in (k, v)]
            arrays = [*keys, *(_zeros(x) for x in keys)]
            tags = self.tags(task.piece, task.station, 2 if task.before is None else 4)
            return arrays, ring.receive(arrays[: len(tags)], source, tags)

        tasks = self.tasks()
        coming = begin(tasks[0]) if tasks else (None, [])
        for n, task in enumerate(tasks):
            arrays, requests = coming
            if n + 1 < len(tasks):
                coming = begin(tasks[n + 1])
            for request in requests:
                request.wait()
            piece = self.pieces[task.piece]
            if arrays is None:
                arrays = own(piece) if task.before is None else held.pop(task.piece)
            part, heads = task.station.queries, slice(task.station.first_head, None, self.ratio)
            of_rows = [
                None if x is None else x[:, heads, part.rows]
                for x in (q, dout, out, lse, dlse, weight_sums, dq)
            ]
            _core.attention_backward_step(
                of_rows[0],
                arrays[0],
                arrays[1],
                tuple(of_rows[1:6]),
                (of_rows[6], arrays[2], arrays[3]),
                options_of(self._options(part, piece, heads)),
                threads,
            )
            if task.after is None and piece.rank == ring.rank:
                dk[..., piece.rows, :], dv[..., piece.rows, :] = arrays[2:]
            elif task.after is None:
                ring.send(arrays[2:], piece.rank, self.tags(task.piece, None, 2))
            elif task.after.queries.rank == ring.rank:
                held[task.piece] = arrays
            else:
                tags = self.tags(task.piece, task.after, 4)
                ring.send(arrays, task.after.queries.rank, tags)
            ring.forget_sent()
        for piece, sums, requests in last_ones:
            for request in requests:
                request.wait()
            dk[..., piece.rows, :], dv[..., piece.rows, :] = sums
        ring.finish()
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    def _weight_sums(
        self, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, threads: Any
    ) -> torch.Tensor:
        """Sums that correct the rounding of large lse, if a rank has one."""
        ring = self.ring
        sums = torch.zeros(lse.shape, dtype=torch.float64, device="cpu")
        any_large = bool((lse.abs().nan_to_num(0, 0, 0) > _LARGE_LSE).any())
        is_large = torch.tensor([int(any_large)], device="cpu")
        dist.all_reduce(is_large, dist.ReduceOp.MAX, group=ring.group)
        if not is_large.item():
            return sums
        for keys, k_part, _ in ring.each_keys(k, k[..., :0]):
            for part in ring.own:
                if ring.meets(part, keys):
                    _core.add_weight_sums(
                        q[..., part.rows, :],
                        k_part,
                        lse[..., part.rows],
                        sums[..., part.rows],
                        options_of(ring.call(part, keys)),
                        threads,
                    )
        ring.finish()
        return sums

    def _options(self, queries: Part, keys: Part, heads: slice) -> Dict[str, Any]:
        options = self.ring.call(queries, keys)
        for name in ("alibi_slopes", "sinks"):
            if options[name] is not None:
                options[name] = torch.as_tensor(options[name])[..., heads]
        return options
