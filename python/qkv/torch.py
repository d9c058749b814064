# SPDX-License-Identifier: Apache-2.0
"""Attention for PyTorch's autograd. `import qkv` does not import torch; `import qkv.torch` does.

>>> import torch
>>> import qkv.torch
>>> q, k, v = (torch.ones(1, 2, 5, 8, requires_grad=True) for _ in range(3))
>>> qkv.torch.attention(q, k, v, causal=True).sum().backward()
>>> q.grad.shape
torch.Size([1, 2, 5, 8])
"""

import inspect
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar, cast

import numpy as np
import torch

from . import _functions

__all__ = ["attention", "scaled_dot_product_attention"]

_SIGNATURE = inspect.signature(_functions.attention)

# What attention returns, in its order; of these three gradients come back.
_RESULTS = ("out", "weights", "scores", "lse", "row_max", "column_sums", "top_weights", "top_keys")
_DIFFERENTIABLE = ("out", "weights", "lse")


class _Call:
    """The arguments of a call: its tensors by name ("params.W"), and everything else.

    The tensors themselves are not kept: autograd saves them, and lets them go after the backward
    pass.
    """

    def __init__(self, names: Iterable[str], others: Dict[str, Any]) -> None:
        self.names = tuple(names)
        self.others = others

    def arguments(self, tensors: Iterable[Any]) -> Dict[str, Any]:
        """The arguments with these tensors, detached: those that want gradients share no memory."""
        arguments = dict(self.others)
        if isinstance(arguments["params"], dict):
            arguments["params"] = dict(arguments["params"])
        for name, tensor in zip(self.names, tensors):
            if name.startswith("params."):
                arguments["params"][name[len("params.") :]] = tensor.detach()
            else:
                arguments[name] = tensor.detach()
        return arguments

    def results(self) -> List[str]:
        """The names of what the call returns, in order, with lse."""
        asked = {
            "out": "v" in self.names,
            "weights": self.others["return_weights"],
            "scores": self.others["return_scores"] is not None,
            "lse": True,
            "row_max": self.others["return_row_max"],
            "column_sums": self.others["return_column_sums"],
            "top_weights": self.others["return_top"],
            "top_keys": self.others["return_top"],
        }
        return [name for name in _RESULTS if asked[name]]

    def differentiable(self) -> Tuple[str, ...]:
        """Weights after dropout have no gradient."""
        if self.others["return_weights"] == "dropped":
            return ("out", "lse")
        return _DIFFERENTIABLE


def _split(arguments: Dict[str, Any]) -> Tuple[_Call, Tuple[torch.Tensor, ...]]:
    """A call and its tensors, apart."""

    def is_input(name: str, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and not name.startswith(("params", "return_"))

    tensors = {name: value for name, value in arguments.items() if is_input(name, value)}
    others = {name: value for name, value in arguments.items() if name not in tensors}
    if isinstance(others["params"], dict):
        params = others["params"]
        others["params"] = {n: x for n, x in params.items() if not isinstance(x, torch.Tensor)}
        tensors.update((f"params.{n}", x) for n, x in params.items() if n not in others["params"])
    return _Call(tensors, others), tuple(tensors.values())


def _flat(results: Any) -> List[torch.Tensor]:
    flat: List[torch.Tensor] = []
    for result in results:
        flat += result if isinstance(result, tuple) else [result]
    return flat


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Saves its inputs, out and lse: nothing of size Tq x Tk."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> Any:
        arguments = call.arguments(tensors)
        arguments["return_lse"] = True
        flat = _flat(_functions.attention(**arguments))  # says what is wrong, if anything is
        results = dict(zip(call.results(), flat))
        ctx.call = call
        ctx.save_for_backward(*tensors, results.get("out"), results["lse"])
        ctx.set_materialize_grads(False)
        if not call.others["return_lse"]:
            del results["lse"]
        ctx.results = list(results)
        ctx.mark_non_differentiable(
            *(x for name, x in results.items() if name not in call.differentiable())
        )
        return tuple(results.values())

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[torch.Tensor]) -> Any:
        given = dict(zip(ctx.results, gradients))
        needed = ctx.needs_input_grad[1:]
        if all(gradient is None for gradient in gradients):
            return (None,) * (1 + len(needed))
        of_results = (given.get("out"), given.get("lse"), given.get("weights"))
        return (None, *_Gradient.apply(ctx.call, needed, *of_results, *ctx.saved_tensors))


class _Gradient(torch.autograd.Function):  # type: ignore[misc]
    """The backward pass as a function of its own, so that its derivative can be refused."""

    @staticmethod
    def forward(ctx: Any, call: _Call, needed: Tuple[bool, ...], *tensors: Any) -> Any:
        dout, dlse, dweights, *inputs, out, lse = (x if x is None else x.detach() for x in tensors)
        arguments = call.arguments(inputs)
        options = {n: x for n, x in arguments.items() if not n.startswith("return_")}
        got = _functions.attention_backward(
            dout, out=out, lse=lse, dlse=dlse, dweights=dweights, **options
        )
        by_name = {name[1:]: gradient for name, gradient in got._asdict().items()}
        for name, gradient in (got.dparams or {}).items():
            by_name[f"params.{name}"] = gradient
        return tuple(by_name[name] if needs else None for name, needs in zip(call.names, needed))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("attention: there is no second derivative of qkv.torch.attention")


_F = TypeVar("_F", bound=Callable[..., Any])


def _with_arguments_of(function: _F) -> Callable[[Callable[..., Any]], _F]:
    """Shows a function to type checkers and to help() with the arguments of another."""

    def shown(inner: Callable[..., Any]) -> _F:
        inner.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return cast(_F, inner)

    return shown


_FLAG = (bool, np.bool_)
_KINDS = {torch.Tensor: "a torch.Tensor", _FLAG: "True or False", (int, float): "a number"}


def _check_kinds(function: str, kind: Any, **values: Any) -> None:
    """Throws TypeError for a value of another kind, naming it."""
    for name, value in values.items():
        if not isinstance(value, kind):
            wanted = _KINDS[kind]
            raise TypeError(f"{function}: {name} must be {wanted}, got {type(value).__name__}")


@_with_arguments_of(_functions.attention)
def attention(q: torch.Tensor, k: torch.Tensor, v: Optional[torch.Tensor], **options: Any) -> Any:
    """`qkv.attention` of tensors on the CPU, with gradients.

    Gradients go to q, k, v, bias, alibi_slopes, sinks and the tensors in params, from out, lse and
    weights (before dropout); other results have none. Between forward and backward pass it keeps
    its arguments, out and lse.

    Args:
        q, k, v, options: all that `qkv.attention` takes.

    Returns:
        What `qkv.attention` returns, as tensors.

    Raises:
        ValueError, TypeError: a wrong argument; the text names it, the rule and what came.
        RuntimeError: a second derivative was asked for.

    >>> import torch
    >>> W = torch.eye(3, dtype=torch.float64, requires_grad=True)
    >>> x = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    >>> attention(x, x, x, score="bilinear", params={"W": W}).sum().backward()
    >>> W.grad.shape
    torch.Size([3, 3])
    """
    _check_kinds("attention", torch.Tensor, q=q, k=k)
    if v is not None:
        _check_kinds("attention", torch.Tensor, v=v)
    bound = _SIGNATURE.bind(q, k, v, **options)
    bound.apply_defaults()
    _check_kinds("attention", _FLAG, return_lse=bound.arguments["return_lse"])  # set to True below
    call, tensors = _split(bound.arguments)
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return _functions.attention(**call.arguments(tensors))
    results = list(_Attention.apply(call, *tensors))
    if call.others["return_top"]:
        results[-2:] = [tuple(results[-2:])]
    return results[0] if len(results) == 1 and v is not None else tuple(results)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention with this library's kernels.

    Args:
        query, key, value: [..,Tq,D], [..,Tk,D], [..,Tk,E]; the axis before Tq is that of the heads.
        attn_mask: bool, true where a query may attend, or numbers added to the scores; broadcasts
            to [..,Tq,Tk].
        dropout_p: always drops, as PyTorch's does; the seed is drawn from torch's generator.
        is_causal: the first query sees the first key only (not with attn_mask).
        scale: 1/sqrt(D) unless given.
        enable_gqa: key and value may have fewer heads, a divisor of query's.

    Returns:
        [..,Tq,E] of query's dtype. A row that sees no key gives zeros. Gradients go to query, key,
        value and a mask of numbers.

    Raises:
        ValueError, TypeError: a wrong argument; the text names it, the rule and what came.
        RuntimeError: a second derivative was asked for.

    >>> import torch
    >>> q, k, v = (torch.ones(1, 4, 3, 8) for _ in range(3))
    >>> scaled_dot_product_attention(q, k, v, is_causal=True).shape
    torch.Size([1, 4, 3, 8])
    """
    function = "scaled_dot_product_attention"
    _check_kinds(function, torch.Tensor, query=query, key=key, value=value)
    _check_kinds(function, _FLAG, is_causal=is_causal, enable_gqa=enable_gqa)
    _check_kinds(function, (int, float), dropout_p=dropout_p)
    if attn_mask is not None:
        _check_kinds(function, torch.Tensor, attn_mask=attn_mask)
    if is_causal and attn_mask is not None:
        raise ValueError(f"{function}: attn_mask must be None where is_causal is True")
    heads = [x.size(-3) if x.dim() > 3 else 1 for x in (query, key)]
    if not enable_gqa and heads[1] not in (1, heads[0]):
        raise ValueError(
            f"{function}: key has {heads[1]} heads but query has {heads[0]}; "
            "fewer heads need enable_gqa=True"
        )
    masks: Dict[str, Any] = {}
    if attn_mask is not None:
        masks = {"mask" if attn_mask.dtype == torch.bool else "bias": attn_mask}
    if dropout_p > 0:
        masks["seed"] = int(torch.randint(0, 2**63 - 1, ()))
    out: torch.Tensor = attention(
        query,
        key,
        value,
        scale=scale,
        causal="top_left" if is_causal else False,
        dropout=dropout_p,
        **masks,
    )
    return out
