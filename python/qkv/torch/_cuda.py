# SPDX-License-Identifier: Apache-2.0
"""Attention of CUDA tensors: addresses, strides and the current stream are passed as integers.

The call is put into the stream; nothing waits for the device, and no number of a tensor is copied
to the host. PyTorch allocates the memory of the results.
"""

from typing import Any, Iterable, List, Tuple

import numpy as np
import torch

from .. import _core
from .._functions import DEFAULTS, options_of
from .._results import results
from .._words import unknown_keyword

# The options that are arrays. Lists become float32 for _REAL and keep their type for the others.
_REAL = ("bias", "alibi_slopes", "sinks", "rotary_frequencies")
_ARRAYS = (
    "mask", "padding_mask", "key_lengths", "causal_offset", "q_positions", "k_positions",
    "cu_seqlens_q", "cu_seqlens_k", "block_tables", "context_lens", *_REAL,
)  # fmt: skip
# The arguments whose values the host needs.
_ON_HOST = ("seed", "rows", "return_column_sums")


def refuse_gradients(tensors: Iterable[Any]) -> None:
    """Raises for CUDA tensors that require a gradient, where gradients are recorded."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        no_gradients()


def no_gradients() -> None:
    raise ValueError(
        "attention: qkv.torch has no gradients for CUDA tensors yet; use torch.no_grad()"
    )


def attention(**arguments: Any) -> Any:
    """Computes `qkv.attention` on the device of q; takes all arguments by name."""
    unknown = arguments.keys() - DEFAULTS.keys() - {"q", "k", "v"}
    if unknown:
        raise unknown_keyword("attention", min(unknown), {"q", "k", "v", *DEFAULTS})
    given = {**DEFAULTS, **arguments}
    device = given["q"].device
    for name in _ON_HOST:
        x = given[name]
        if isinstance(x, torch.Tensor) and x.device.type != "cpu":
            raise ValueError(
                f"attention: {name} must be known to the host, got a tensor on {x.device}"
            )
    if given["threads"] is not None:
        raise ValueError(
            f"attention: threads is for calls on the CPU, got {given['threads']} for {device}"
        )
    held: List[torch.Tensor] = []  # tensors made here, alive until the call is in the stream
    given["causal_offset"] = _offset(given["causal_offset"])
    q, k, v = (_memory_of(name, given[name], device, held) for name in ("q", "k", "v"))
    for name in _ARRAYS:
        if given[name] is not None and not isinstance(given[name], int):
            given[name] = _memory_of(name, given[name], device, held)
    if isinstance(given["params"], dict):
        given["params"] = {
            name: _memory_of(f'params["{name}"]', x, device, held)
            for name, x in given["params"].items()
        }

    def empty(shape: Tuple[int, ...], dtype: str) -> Tuple[torch.Tensor, int]:
        made = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        return made, made.data_ptr()

    wanted = (*(given[name] for name in _core.REQUESTS), results)
    return _core.cuda_attention(
        q, k, v, options_of(given), wanted, empty, device.index or 0, _stream_of(device)
    )


def _stream_of(device: torch.device) -> int:
    """The address of PyTorch's current stream of the device."""
    stream: int = torch.cuda.current_stream(device).cuda_stream
    return stream


def _offset(x: Any) -> Any:
    """causal_offset as a number or a tensor [B]."""
    if isinstance(x, torch.Tensor) and x.dim() == 0:
        if x.device.type != "cpu":
            raise ValueError(
                "attention: causal_offset must be an integer or a tensor [B], got a single number "
                f"on {x.device}, which the host does not read"
            )
        return int(x)
    if isinstance(x, (np.integer, np.ndarray)) and x.ndim == 0:
        return x.item()
    return x


def _memory_of(name: str, x: Any, device: torch.device, held: List[torch.Tensor]) -> Any:
    """An array as _core takes it: (address, dtype, shape, strides); None for None."""
    if x is None:
        return None
    if isinstance(x, (list, tuple, np.ndarray)) and name in _ARRAYS:
        x = torch.as_tensor(x, device=device, dtype=torch.float32 if name in _REAL else None)
        held.append(x)
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"attention: {name} must be a tensor, got {type(x).__name__}")
    if x.device != device:
        raise ValueError(f"attention: {name} must be on the device of q, {device}, got {x.device}")
    if type(x) is not torch.Tensor:
        _core.check_tensor(x, name)
    if x.layout != torch.strided or x.is_nested:
        raise TypeError(f"attention: {name} must be a strided tensor, got one of {x.layout}")
    if x.is_neg():  # the memory has the negated values
        x = x.resolve_neg()
        held.append(x)
    return x.data_ptr(), str(x.dtype)[len("torch.") :], tuple(x.shape), x.stride()


def takes(*tensors: Any) -> bool:
    """Whether the kernels take a call of these q, k, v and mask, which are on a GPU."""
    given = [x for x in tensors if isinstance(x, torch.Tensor)]
    q = given[0]
    return (
        q.dtype in (torch.bfloat16, torch.float16)
        and max(given[0].shape[-1], given[2].shape[-1]) <= _MOST_CHANNELS
        and all(x.device == q.device for x in given)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in given))
        and q.device.index in _usable()
    )


_MOST_CHANNELS = 256
_USABLE: List[Any] = []


def _usable() -> Any:
    """The numbers of the devices that the kernels run on."""
    if not _USABLE:
        devices = _core.info()["cuda_devices"]
        _USABLE.append({x["number"] for x in devices if x["compute_capability"][0] >= 8})
    return _USABLE[0]
