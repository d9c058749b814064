# SPDX-License-Identifier: Apache-2.0
"""Messages among the processes of a torch.distributed group, as the library sends them."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist

from .._ring import WORD

# The number of tags of a call, and the number of calls after which tags repeat. Each call has its
# own tags, because ranks may run backward passes in different orders.
_CHANNELS = 4
_CALLS = 2**20


class _Waiting:
    """Threads that wait for messages, started when the first one is sent."""

    def __init__(self) -> None:
        self._threads: Optional[ThreadPoolExecutor] = None

    def submit(self, wait: Any) -> "Future[Any]":
        if self._threads is None:
            self._threads = ThreadPoolExecutor(64, thread_name_prefix="qkv-ring")
        return self._threads.submit(wait)


_waiting = _Waiting()


class _Request:
    """A message being sent or received. Only a thread that waits for it learns that it is done."""

    def __init__(self, done: "Future[Any]", memory: torch.Tensor) -> None:
        self._done = done
        self._memory = memory  # must stay alive

    def wait(self) -> None:
        self._done.result()

    def is_done(self) -> bool:
        return self._done.done()

    def give_up(self) -> None:
        self._done.cancel()


class GroupRanks:
    """The processes of a group in one call and its backward pass."""

    _numbers: Dict[Any, int] = {}  # {group: number of its next call}

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)
        named = dist.group.WORLD if group is None else group
        number = self._numbers.get(named, 0)
        self._numbers[named] = (number + 1) % _CALLS
        self._first_tag = number * _CHANNELS

    def send(self, memory: memoryview, to: int, channel: int) -> _Request:
        data = torch.frombuffer(memory, dtype=torch.uint8)
        tag = self._first_tag + channel
        work = dist.isend(data, self._peer(to), self.group, tag)
        return _Request(_waiting.submit(work.wait), data)

    def receive(self, memory: memoryview, source: int, channel: int) -> _Request:
        data = torch.frombuffer(memory, dtype=torch.uint8)
        tag = self._first_tag + channel
        work = dist.irecv(data, self._peer(source), self.group, tag)
        return _Request(_waiting.submit(work.wait), data)

    def _peer(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def size_of_group(word: str, group: Any) -> int:
    """The number of processes. Raises TypeError for no group, ValueError for a non-member."""
    others = (None, dist.GroupMember.NON_GROUP_MEMBER)
    if not isinstance(group, dist.ProcessGroup) and not any(group is x for x in others):
        raise TypeError(
            f"{word}: group must be a process group or None, got {type(group).__name__}"
        )
    if dist.get_rank(group) < 0:
        raise ValueError(f"{word}: group must have this process as a member")
    count: int = dist.get_world_size(group)
    return count


def check_all(group: Any, error: Optional[Exception], word: str = WORD) -> None:
    """Raises on every rank if one has an error: that error there, RuntimeError on the others."""
    size_of_group(word, group)
    any_error = torch.tensor([int(error is not None)], device="cpu")
    dist.all_reduce(any_error, dist.ReduceOp.MAX, group=group)
    if error is not None:
        raise error
    if any_error.item():
        raise RuntimeError(f"{word}: another rank of the group has raised an error")
