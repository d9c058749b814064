# SPDX-License-Identifier: Apache-2.0
"""The operators under torch.func: custom operators have no rule for its grad, functions have."""

from typing import Any, Tuple

import torch

from ._operator import SECOND_DERIVATIVE, gradients_of, save
from ._questions import transforms
from ._schema import DIFFERENTIABLE, PLAIN, TENSORS
from ._vmap import backward_rule, forward_rule

_N = len(TENSORS)
_P = len(PLAIN)


class Transformed(torch.autograd.Function):  # type: ignore[misc]
    """qkv::attention, of the same arguments."""

    @staticmethod
    def forward(*every: Any) -> Any:
        return torch.ops.qkv.attention(*every)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
        save(ctx, inputs[:_N], inputs[_N : _N + _P], output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        needed = ctx.needs_input_grad
        got = gradients_of(gradients[:3], ctx.saved_tensors, ctx.plain, needed, backward_call)
        return (*got, *((None,) * (len(needed) - _N)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *every: Any) -> Any:
        return forward_rule(info, in_dims, list(every), forward_call)


class TransformedGradient(torch.autograd.Function):  # type: ignore[misc]
    """qkv::attention_backward, of the same arguments."""

    @staticmethod
    def forward(*every: Any) -> Any:
        return torch.ops.qkv.attention_backward(*every)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
        wanted = inputs[-1].split(",")
        ctx.mark_non_differentiable(
            *(x for name, x in zip(DIFFERENTIABLE, output) if name not in wanted)
        )

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(SECOND_DERIVATIVE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *every: Any) -> Any:
        return backward_rule(info, in_dims, list(every), backward_call)


def forward_call(*every: Any) -> Any:
    """qkv::attention, whether or not something of torch.func remains to be applied."""
    return (Transformed.apply if transforms() else torch.ops.qkv.attention)(*every)


def backward_call(*every: Any) -> Any:
    """qkv::attention_backward, likewise."""
    return (TransformedGradient.apply if transforms() else torch.ops.qkv.attention_backward)(*every)
