# SPDX-License-Identifier: Apache-2.0
"""Messages among the processes of a torch.distributed group, as the library sends them."""

from typing import Any, Dict, Optional

import torch
import torch.distributed as dist

from .._ring import WORD

# The numbers of tags that a call has, and of calls with tags of their own, so that ranks which run
# backward passes in different orders do not take one call's messages for another's.
_CHANNELS = 4
_CALLS = 2**20


class _Request:
    """A message on its way."""

    def __init__(self, work: Any, memory: torch.Tensor) -> None:
        self._work = work
        self._memory = memory  # must stay alive

    def wait(self) -> None:
        self._work.wait()

    def is_done(self) -> bool:
        return bool(self._work.is_completed())


class GroupRanks:
    """The processes of a group in one call and its backward pass."""

    _numbers: Dict[Any, int] = {}  # of the last call of each group

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)
        number = self._numbers.get(group, 0)
        self._numbers[group] = (number + 1) % _CALLS
        self._first_tag = number * _CHANNELS

    def send(self, memory: memoryview, to: int, channel: int) -> _Request:
        data = torch.frombuffer(memory, dtype=torch.uint8)
        return _Request(
            dist.isend(data, self._peer(to), self.group, self._first_tag + channel), data
        )

    def receive(self, memory: memoryview, source: int, channel: int) -> _Request:
        data = torch.frombuffer(memory, dtype=torch.uint8)
        tag = self._first_tag + channel
        return _Request(dist.irecv(data, self._peer(source), self.group, tag), data)

    def _peer(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def check_all(group: Any, error: Optional[Exception]) -> None:
    """Raises on every rank if one has an error: its own, or RuntimeError."""
    if dist.get_rank(group) < 0:
        raise ValueError(f"{WORD}: group must have this process as a member")
    any_error = torch.tensor([int(error is not None)], device="cpu")
    dist.all_reduce(any_error, dist.ReduceOp.MAX, group=group)
    if error is not None:
        raise error
    if any_error.item():
        raise RuntimeError(f"{WORD}: another rank of the group has raised an error")
