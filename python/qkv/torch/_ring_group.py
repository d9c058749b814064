# SPDX-License-Identifier: Apache-2.0
"""A sequence that is divided among the processes of a group: its parts, and messages about them."""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .._functions import Shard

WORD = "ring_attention"
# Parts of the keys begin at multiples of this number, at which sums over keys are divided.
KEYS = 512
# The numbers of tags that a call has. Calls have different ones, so that ranks which run backward
# passes in different orders do not take one call's messages for another's.
_TAGS = 2**20
_CALLS = 1024
# Tags of messages that arrive in the order in which they are sent: keys and values, and terms of
# their gradients. Those of other messages count from 0.
KEY_TAGS = [-1, -1]
TERM_TAGS = [-2, -2]


class Part(NamedTuple):
    """Rows of the whole sequence that one rank holds, and where they begin in its tensors."""

    begin: int
    end: int
    rank: int
    local: int

    @property
    def rows(self) -> slice:
        return slice(self.local, self.local + self.end - self.begin)


def parts_of(lengths: List[int], sharding: str) -> List[Part]:
    """The parts of the sequence in ascending order, given each rank's number of rows."""
    if sharding == "contiguous":
        pieces = [(rank, 0, length) for rank, length in enumerate(lengths)]
    else:
        if len(set(lengths)) != 1 or lengths[0] % 2 != 0:
            raise ValueError(
                f"{WORD}: q must have an equal and even number of rows on every rank with "
                f'sharding="zigzag", got {lengths}'
            )
        half = lengths[0] // 2
        last = len(lengths) - 1
        pieces = [(rank, 0, half) for rank in range(len(lengths))]
        pieces += [(last - rank, half, half) for rank in range(len(lengths))]
    parts = []
    begin = 0
    for rank, local, length in pieces:
        if begin % KEYS != 0 and length > 0:
            raise ValueError(
                f"{WORD}: parts of the sequence must begin at multiples of {KEYS}, but rank "
                f"{rank} has rows from {begin} on (rows of the ranks: {lengths})"
            )
        parts.append(Part(begin, begin + length, rank, local))
        begin += length
    return [part for part in parts if part.end > part.begin]


def agreed(group: Any, rows: int, same: Dict[str, int], error: Optional[Exception]) -> List[int]:
    """Each rank's number of rows. Raises on every rank if one has an error or another call.

    Args:
        rows: of this rank.
        same: numbers that are equal on all ranks, by what they are called in messages.
        error: what is wrong with this rank's arguments.
    """
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{WORD}: group must have this process as a member")
    mine = torch.tensor([rows, int(error is not None), *same.values()], device="cpu")
    all_ranks = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_ranks, mine, group=group)
    if error is not None:
        raise error
    for other, numbers in enumerate(all_ranks):
        if numbers[1] != 0:
            raise ValueError(f"{WORD}: rank {other} of the group has raised an error")
        for name, here, there in zip(same, mine[2:].tolist(), numbers[2:].tolist()):
            if here != there:
                raise ValueError(
                    f"{WORD}: {name} must be equal on all ranks, got {here} on rank {rank} and "
                    f"{there} on rank {other}"
                )
    return [int(numbers[0]) for numbers in all_ranks]


class Ring:
    """One call: the group, the parts of the sequence, and the options of `qkv.attention`."""

    _numbers: Dict[Any, int] = {}  # of the last call of each group

    def __init__(self, group: Any, parts: List[Part], options: Dict[str, Any]) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.parts = parts
        self.total = parts[-1].end if parts else 0
        self.options = options
        # Pairs of requests and the tensors that they send, which must stay alive.
        self.sent: List[Tuple[Any, torch.Tensor]] = []
        number = self._numbers.get(group, 0)
        self._numbers[group] = (number + 1) % _CALLS
        self._first_tag = number * _TAGS

    @property
    def own(self) -> List[Part]:
        return [part for part in self.parts if part.rank == self.rank]

    def meets(self, queries: Part, keys: Part) -> bool:
        """Whether causal and window let a query of one part attend to a key of the other."""
        left, right = self.options["window"] or (-1, -1)
        if self.options["causal"]:
            right = 0
        return (right < 0 or keys.begin <= queries.end - 1 + right) and (
            left < 0 or keys.end - 1 >= queries.begin - left
        )

    def ranks_of(self, keys: Part) -> List[int]:
        """The ranks with queries that meet these keys, in ascending order."""
        return sorted({part.rank for part in self.parts if self.meets(part, keys)})

    def call(self, queries: Part, keys: Part) -> Dict[str, Any]:
        """The options of the call of a part of the queries and a part of the keys."""
        shard = Shard(queries.begin, self.total, keys.begin, self.total)
        lengths = self.options["key_lengths"]
        if lengths is not None and lengths.dim() == 2:
            lengths = lengths[:, queries.rows]
        return {**self.options, "shard": shard, "key_lengths": lengths}

    # ---- messages -------------------------------------------------------------------------------

    def send(self, tensors: List[torch.Tensor], rank: int, tags: List[int]) -> None:
        for x, tag in zip(tensors, tags):
            self.sent.append((dist.isend(x, self._peer(rank), self.group, self._tag(tag)), x))

    def receive(self, tensors: List[torch.Tensor], rank: int, tags: List[int]) -> List[Any]:
        """The requests to wait for before the tensors are read."""
        return [
            dist.irecv(x, self._peer(rank), self.group, self._tag(tag))
            for x, tag in zip(tensors, tags)
        ]

    def forget_sent(self) -> None:
        """Frees tensors that have been sent."""
        self.sent = [(request, x) for request, x in self.sent if not request.is_completed()]

    def finish(self) -> None:
        """Waits until everything has been sent."""
        for request, _ in self.sent:
            request.wait()
        self.sent.clear()

    def _peer(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def _tag(self, tag: int) -> int:
        return self._first_tag + tag % _TAGS

    def each_keys(
        self, k: torch.Tensor, v: torch.Tensor
    ) -> Iterator[Tuple[Part, torch.Tensor, torch.Tensor]]:
        """Yields (part, its keys, its values) in ascending order, of the parts that meet a query.

        The next part is received while the caller computes.
        """
        for part in self.own:
            rows = [x[..., part.rows, :].contiguous() for x in (k, v)]
            for rank in self.ranks_of(part):
                if rank != self.rank:
                    self.send(rows, rank, KEY_TAGS)
        needed = [part for part in self.parts if self.rank in self.ranks_of(part)]

        def begin(part: Part) -> Tuple[List[torch.Tensor], List[Any]]:
            if part.rank == self.rank:
                return [x[..., part.rows, :] for x in (k, v)], []
            tensors = [empty_rows(x, part, x.dtype) for x in (k, v)]
            return tensors, self.receive(tensors, part.rank, KEY_TAGS)

        coming = begin(needed[0]) if needed else ([], [])
        for n, part in enumerate(needed):
            (keys, values), requests = coming
            if n + 1 < len(needed):
                coming = begin(needed[n + 1])
            for request in requests:
                request.wait()
            yield part, keys, values


def empty_rows(x: torch.Tensor, part: Part, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a part's rows of keys or values."""
    shape = (*x.shape[:-2], part.end - part.begin, x.shape[-1])
    return torch.empty(shape, dtype=dtype, device="cpu")


def wide(x: torch.Tensor) -> torch.dtype:
    """The dtype of sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
