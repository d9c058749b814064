# SPDX-License-Identifier: Apache-2.0
"""Attention of CUDA tensors: addresses, strides and the current stream are passed as integers.

The call is put into the stream without waiting for the device, unless a list or NumPy array has to
be copied there, or a number such as scale is a CUDA tensor. PyTorch allocates the memory of the
results.
"""

import math
from typing import Any, Collection, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from .. import _core
from .._functions import DEFAULTS, Gradients, options_of
from .._results import results
from .._words import unknown_keyword

# The options that are arrays. Lists and NumPy arrays become tensors: float32 for _REAL, else of the
# type that torch.as_tensor() gives them.
_REAL = ("bias", "alibi_slopes", "sinks", "rotary_frequencies")
_ARRAYS = (
    "mask", "padding_mask", "key_lengths", "causal_offset", "q_positions", "k_positions",
    "cu_seqlens_q", "cu_seqlens_k", "block_tables", "context_lens", *_REAL,
)  # fmt: skip
# The arguments that have a gradient on a GPU, for each kind of scores.
_WITH_GRADIENT = {
    "additive": ("q", "k", "v", "params.Wq", "params.Wk", "params.v", "params.b"),
    "16-bit product": ("q", "k", "v", "bias", "alibi_slopes", "sinks"),
    "float32 product": ("q", "k", "v"),
}
# The arguments whose values the host needs.
_ON_HOST = ("seed", "rows", "return_column_sums")


def is_on_gpu(x: torch.Tensor) -> bool:
    """Whether the functions of this module compute the calls whose q is `x`."""
    return bool(x.is_cuda)


def refuse_gradients(
    options: Dict[str, Any], inputs: Sequence[Any], needing: Collection[str]
) -> None:
    """Raises ValueError if an argument that needs a gradient gets none on a GPU.

    Args:
        options: options of the call, at least score and heads.
        inputs: q, k and v.
        needing: names of the arguments that need a gradient.
    """
    product = "float32 product" if inputs[0].dtype == torch.float32 else "16-bit product"
    kind = "additive" if options["score"] == "additive" else product
    for name in needing:
        if name not in _WITH_GRADIENT[kind]:
            group, _, key = name.partition(".")
            shown = f'{group}["{key}"]' if key else name
            raise ValueError(
                f"attention: {shown} requires a gradient, but for CUDA tensors {kind} scores have "
                f"those of {', '.join(_WITH_GRADIENT[kind])} only; detach it or use torch.no_grad()"
            )
    axes = -2 if options["heads"] is not None else -3  # the axes behind the batch axes
    batches = {name: x.shape[:axes] for name, x in zip("qkv", inputs) if x is not None}
    most = max(map(math.prod, batches.values()))
    for name in needing:
        if name in batches and math.prod(batches[name]) < most:
            raise ValueError(
                f"attention: {name} requires a gradient, but is broadcast over batch entries, as "
                f"CUDA tensors with gradients may not be; use {name}.expand(...)"
            )


class _Call:
    """The arguments of a call, as _core takes them."""

    def __init__(self, arguments: Dict[str, Any]) -> None:
        self.held: List[torch.Tensor] = []  # tensors made here, alive until the call is queued
        self.given = _checked({**DEFAULTS, **arguments})
        self.device: torch.device = arguments["q"].device
        self.inputs = [self.memory_of(name, self.given.pop(name)) for name in ("q", "k", "v")]
        for name in _ARRAYS:
            if self.given[name] is not None and not isinstance(self.given[name], int):
                self.given[name] = self.memory_of(name, self.given[name])
        if isinstance(self.given["params"], dict):
            self.given["params"] = {
                name: self.memory_of(f'params["{name}"]', x)
                for name, x in self.given["params"].items()
            }

    def memory_of(self, name: str, x: Any) -> Any:
        """An array: (address, dtype, shape, strides); None for None."""
        return _memory_of(name, x, self.device, self.held)

    def result(self, shape: Tuple[int, ...], dtype: str) -> Tuple[torch.Tensor, int]:
        """Memory for a result; rows outside of all packed sequences are not written and stay 0."""
        packed = self.given["cu_seqlens_q"] is not None or self.given["cu_seqlens_k"] is not None
        make = torch.zeros if packed else torch.empty
        made = make(shape, dtype=getattr(torch, dtype), device=self.device)
        return made, made.data_ptr()

    def run(self, function: Any, *more: Any) -> Any:
        """Calls a function of _core with q, k, v and `more`; result() makes its results."""
        place = self.device.index or 0, _stream_of(self.device)
        return function(*self.inputs, *more, self.result, *place)


def attention(**arguments: Any) -> Any:
    """Computes `qkv.attention` on the device of q; takes all arguments by name."""
    unknown = arguments.keys() - DEFAULTS.keys() - {"q", "k", "v"}
    if unknown:
        raise unknown_keyword("attention", min(unknown), {"q", "k", "v", *DEFAULTS})
    call = _Call(arguments)
    wanted = (*(call.given[name] for name in _core.REQUESTS), results)
    return call.run(_core.cuda_attention, options_of(call.given), wanted)


def attention_backward(
    dout: Optional[torch.Tensor], *, out: Optional[torch.Tensor], lse: torch.Tensor,
    dlse: Optional[torch.Tensor] = None, dweights: Optional[torch.Tensor] = None,
    wanted: Optional[List[str]] = None, **arguments: Any
) -> Gradients:  # fmt: skip
    """Computes `qkv.attention_backward` on the device of q."""
    if dweights is not None:
        raise ValueError(
            "attention: weights have no gradient for CUDA tensors; use weights.detach()"
        )
    call = _Call(arguments)
    of_results = {"dout": dout, "out": out, "lse": lse, "dlse": dlse}
    outputs = [call.memory_of(name, x) for name, x in of_results.items()]
    return Gradients(*call.run(
        _core.cuda_attention_backward, (*outputs, None, None, wanted, None), options_of(call.given)
    ))  # fmt: skip


def _checked(given: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments; ValueError if threads is given or a tensor of _ON_HOST is not on the CPU."""
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
    return {**given, "causal_offset": _offset(given["causal_offset"])}


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
        if x.dtype == torch.bool or x.is_floating_point() or x.is_complex():
            raise TypeError(f"attention: causal_offset must be an integer, got {x.dtype}")
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
        kinds = "a tensor, a NumPy array or a list" if name in _ARRAYS else "a tensor"
        raise TypeError(f"attention: {name} must be {kinds}, got {type(x).__name__}")
    if x.device != device:
        raise ValueError(f"attention: {name} must be on the device of q, {device}, got {x.device}")
    if type(x) is not torch.Tensor:
        _core.check_tensor(x, name)
    if x.layout != torch.strided or x.is_nested:
        got = "a nested one" if x.is_nested else f"one of {x.layout}"
        raise TypeError(f"attention: {name} must be a strided tensor, got {got}")
    if x.is_neg():  # the memory has the negated values
        x = x.resolve_neg()
        held.append(x)
    return x.data_ptr(), str(x.dtype)[len("torch.") :], tuple(x.shape), x.stride()


def takes(*tensors: Any) -> bool:
    """Whether the 16-bit kernels take these q, k, v and mask on a GPU, without gradients."""
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
