# SPDX-License-Identifier: Apache-2.0
"""Attention of one long sequence over the processes of an MPI communicator, by mpi4py.

>>> import numpy as np
>>> import qkv.mpi
>>> q = np.ones((1, 2, 600, 4))
>>> qkv.mpi.ring_attention(q, q, q, causal=True).shape  # doctest: +SKIP
(1, 2, 600, 4)
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

import numpy as np

from . import _core
from ._functions import DEFAULTS, Array, Numbers, Window, options_of
from ._mods import MaskFunction, ScoreFunction
from ._ring import WORD, mask_mod_of, score_mod_of, zigzags_of
from ._words import near_words

__all__ = ["RingGradients", "ring_attention", "ring_attention_backward"]


class RingGradients(NamedTuple):
    """The gradients of a rank's rows."""

    dq: Array
    dk: Array
    dv: Array


# The options of `attention` that the functions below take.
_OPTIONS = frozenset((
    "score", "params", "qk_norm", "rotary", "rotary_base", "rotary_width", "scale", "softcap",
    "score_mod", "mask_mod", "mask", "padding_mask", "bias", "key_lengths", "causal", "window",
    "alibi_slopes", "sinks", "dropout", "seed",
))  # fmt: skip

# MPI counts the bytes of a message in an int, so that longer messages are sent in parts.
_MOST_BYTES = 2**30


class _Request:
    """A message on its way, in parts."""

    def __init__(self, start: Any, memory: memoryview, is_receive: bool) -> None:
        self._memory = memory  # must stay alive
        self._is_receive = is_receive
        size = len(memory)
        self._parts = [
            start(memory[first : first + _MOST_BYTES]) for first in range(0, size, _MOST_BYTES)
        ]

    def wait(self) -> None:
        for part in self._parts:
            part.Wait()

    def is_done(self) -> bool:
        return all([part.Test() for part in self._parts])

    def give_up(self) -> None:
        if self._is_receive:
            for part in self._parts:
                part.Cancel()
                part.Wait()


class _CommRanks:
    """The processes of a communicator. They use a duplicate of it, where nobody else sends."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm.Dup()
        self.rank: int = comm.Get_rank()
        self.count: int = comm.Get_size()

    def send(self, memory: memoryview, to: int, channel: int) -> _Request:
        comm = self._comm
        return _Request(lambda part: comm.Isend(part, dest=to, tag=channel), memory, False)

    def receive(self, memory: memoryview, source: int, channel: int) -> _Request:
        comm = self._comm
        return _Request(lambda part: comm.Irecv(part, source=source, tag=channel), memory, True)

    def free(self) -> None:
        """Not called after an error: messages may still be on their way."""
        self._comm.Free()


def _communicator(comm: Any) -> Any:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD if comm is None else comm
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(
            f"{WORD}: comm must be an mpi4py.MPI.Intracomm or None, got {type(comm).__name__}"
        )
    return comm


def _prepared(
    arguments: Dict[str, Any], arrays: Tuple[Any, ...], sharding: Any, comm: Any
) -> Tuple[Tuple[Any, ...], Tuple[Any, int]]:
    """The options, and the ranks with the number of zigzags, as _core takes them.

    Raises on every rank if one has an error.
    """
    comm = _communicator(comm)
    error: Optional[Exception] = None
    options: Tuple[Any, ...] = ()
    zigzags = 0
    try:
        zigzags = zigzags_of(sharding)
        for name, x in zip(("q", "k", "v"), arrays):
            if not isinstance(x, np.ndarray) or x.ndim != 4:
                got = f"{type(x).__name__} {list(getattr(x, 'shape', []))}"
                raise ValueError(f"{WORD}: {name} must be a NumPy array [B,H,T,D], got {got}")
        given = {**DEFAULTS, **arguments}
        given["score_mod"] = score_mod_of(given["score_mod"])
        given["mask_mod"] = mask_mod_of(given["mask_mod"])
        options = options_of(given)
    except Exception as raised:  # of functions that are traced, too
        error = raised
    any_error = comm.allreduce(error is not None)
    if error is not None:
        raise error
    if any_error:
        raise RuntimeError(f"{WORD}: another rank of the communicator has raised an error")
    return options, (_CommRanks(comm), zigzags)


@near_words
def ring_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    comm: Any = None,
    sharding: Union[str, int] = "contiguous",
    score: str = "scaled_dot",
    params: Optional[Dict[str, Array]] = None,
    qk_norm: Optional[Union[bool, float]] = None,
    rotary: Optional[str] = None,
    rotary_base: Optional[float] = None,
    rotary_width: Optional[int] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[MaskFunction] = None,
    mask: Optional[Array] = None,
    padding_mask: Optional[Array] = None,
    bias: Optional[Array] = None,
    key_lengths: Optional[Numbers] = None,
    causal: Union[bool, str] = False,
    window: Optional[Window] = None,
    alibi_slopes: Optional[Array] = None,
    sinks: Optional[Array] = None,
    dropout: float = 0.0,
    seed: Optional[int] = None,
    return_lse: bool = False,
    threads: Optional[int] = None,
) -> Union[Array, Tuple[Array, Array]]:
    """Attention of one sequence that is divided among the processes of a communicator.

    Every process calls it with its own rows and the same options; positions count in the whole
    sequence. out and lse are bit-identical to `attention` of the whole sequence, for any number of
    processes.

    Args:
        q, k, v: this process's rows, NumPy arrays [B,H,t,D], [B,G,t,D] and [B,G,t,E].
        comm: an mpi4py.MPI.Intracomm; None for MPI.COMM_WORLD.
        sharding: as in `qkv.torch.ring_attention`.
        mask, bias: as in `attention`, with this process's rows of queries and all T keys.
        padding_mask: [B,T], of all keys.
        key_lengths: [B], or [B,t] for this process's rows; they count keys of the whole sequence.
        others: as in `attention`.

    Returns:
        out [B,H,t,E], this process's rows; with return_lse, (out, lse [B,H,t]).

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        RuntimeError: another process has raised an error.
        ImportError: mpi4py is not installed.
    """
    arguments = {name: value for name, value in locals().items() if name in _OPTIONS}
    options, placed = _prepared(arguments, (q, k, v), sharding, comm)
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    lse = np.empty(q.shape[:-1], np.float64 if q.dtype == np.float64 else np.float32)
    _core.ring_attention(q, k, v, (out, lse), options, placed, threads)
    placed[0].free()
    return (out, lse) if return_lse else out


@near_words
def ring_attention_backward(
    dout: Optional[Array],
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Optional[Array] = None,
    comm: Any = None,
    sharding: Union[str, int] = "contiguous",
    score: str = "scaled_dot",
    params: Optional[Dict[str, Array]] = None,
    qk_norm: Optional[Union[bool, float]] = None,
    rotary: Optional[str] = None,
    rotary_base: Optional[float] = None,
    rotary_width: Optional[int] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[MaskFunction] = None,
    mask: Optional[Array] = None,
    padding_mask: Optional[Array] = None,
    bias: Optional[Array] = None,
    key_lengths: Optional[Numbers] = None,
    causal: Union[bool, str] = False,
    window: Optional[Window] = None,
    alibi_slopes: Optional[Array] = None,
    sinks: Optional[Array] = None,
    dropout: float = 0.0,
    seed: Optional[int] = None,
    threads: Optional[int] = None,
) -> RingGradients:
    """The gradients of q, k and v of `ring_attention`, for this process's rows.

    For dot products without QK-norm and rotary positions, the gradients are bit-identical to those
    of `attention_backward` of the whole sequence. For other scores the gradients differ by rounding
    from those, but not with the number of processes or the sharding.

    Args:
        dout, dlse: gradients of the loss with respect to this process's out and lse; None for zero.
        q, k, v, comm and all options: as in the call of `ring_attention`.
        out, lse: the results of that call.

    Returns:
        RingGradients: dq, dk, dv, of the shapes and dtypes of q, k and v.

    Raises:
        ValueError, TypeError, RuntimeError, ImportError: as `ring_attention`.
    """
    arguments = {name: value for name, value in locals().items() if name in _OPTIONS}
    options, placed = _prepared(arguments, (q, k, v), sharding, comm)
    gradients = RingGradients(*(np.empty(x.shape, x.dtype) for x in (q, k, v)))
    _core.ring_attention_backward(
        q,
        k,
        v,
        (dout, out, lse, dlse),
        (*gradients, None, None, None, {}, {}),
        options,
        placed,
        threads,
    )
    placed[0].free()
    return gradients
