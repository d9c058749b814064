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
import math
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar, cast

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias, CausalVariant

from . import _functions
from ._results import results

__all__ = ["attention", "scaled_dot_product_attention"]


class _Call:
    """The arguments of a call: its tensors by name ("params.W"), and everything else.

    The tensors themselves are not kept: autograd saves them, and releases them after the backward
    pass.
    """

    def __init__(self, names: Iterable[str], others: Dict[str, Any]) -> None:
        self.names = tuple(names)
        self.others = others
        self.fields: List[str] = []  # of the results, once there are some

    def arguments(self, tensors: Iterable[Any]) -> Dict[str, Any]:
        """The arguments with these tensors, detached: others do not export their memory."""
        arguments = dict(self.others)
        if isinstance(arguments["params"], dict):
            arguments["params"] = dict(arguments["params"])
        for name, tensor in zip(self.names, tensors):
            if name.startswith("params."):
                arguments["params"][name[len("params.") :]] = tensor.detach()
            else:
                arguments[name] = tensor.detach()
        return arguments

    def differentiable(self) -> Tuple[str, ...]:
        """The differentiable results: weights after dropout are not."""
        if self.others["return_weights"] == "dropped":
            return ("out", "lse")
        return ("out", "weights", "lse")


def _split(arguments: Dict[str, Any]) -> Tuple[_Call, Tuple[torch.Tensor, ...]]:
    """Splits the arguments into a call and its tensors."""

    def is_input(name: str, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and not name.startswith(("params", "return_"))

    tensors = {name: value for name, value in arguments.items() if is_input(name, value)}
    others = {name: value for name, value in arguments.items() if name not in tensors}
    if isinstance(others["params"], dict):
        params = others["params"]
        others["params"] = {n: x for n, x in params.items() if not isinstance(x, torch.Tensor)}
        tensors.update((f"params.{n}", x) for n, x in params.items() if n not in others["params"])
    return _Call(tensors, others), tuple(tensors.values())


def _flat(results: Any) -> Dict[str, torch.Tensor]:
    """Named results, with `top` split into its two arrays."""
    flat: Dict[str, torch.Tensor] = {}
    for name, value in zip(results._fields, results):
        if isinstance(value, tuple):
            flat[name], flat["top keys"] = value
        else:
            flat[name] = value
    return flat


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Saves its inputs, out and lse: nothing of size Tq x Tk."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> Any:
        arguments = call.arguments(tensors)
        arguments["return_lse"] = True
        results = _flat(_functions.attention(**arguments))  # raises for invalid arguments
        ctx.call = call
        ctx.save_for_backward(*tensors, results.get("out"), results["lse"])
        ctx.set_materialize_grads(False)
        if not call.others["return_lse"]:
            del results["lse"]
        ctx.results = call.fields = list(results)
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
    """The backward pass as a separate function, so that its derivative can be rejected."""

    @staticmethod
    def forward(ctx: Any, call: _Call, needed: Tuple[bool, ...], *tensors: Any) -> Any:
        dout, dlse, dweights, *inputs, out, lse = (x if x is None else x.detach() for x in tensors)
        arguments = call.arguments(inputs)
        options = {n: x for n, x in arguments.items() if not n.startswith("return_")}
        if dweights is None:
            options["rows"] = None
        options["wanted"] = [f"d{name}" for name, needs in zip(call.names, needed) if needs]
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
    """Gives a function the signature of another, for type checkers and help()."""

    def shown(inner: Callable[..., Any]) -> _F:
        inner.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return cast(_F, inner)

    return shown


_FLAG = (bool, np.bool_)
_KINDS = {torch.Tensor: "a torch.Tensor", _FLAG: "True or False", (int, float): "a number"}


def _check_kinds(function: str, kind: Any, **values: Any) -> None:
    """Raises TypeError for a value of another type, naming it."""
    for name, value in values.items():
        if not isinstance(value, kind):
            wanted = _KINDS[kind]
            raise TypeError(f"{function}: {name} must be {wanted}, got {type(value).__name__}")


@_with_arguments_of(_functions.attention)
def attention(q: torch.Tensor, k: torch.Tensor, v: Optional[torch.Tensor], **options: Any) -> Any:
    """`qkv.attention` of tensors on the CPU, with gradients.

    Gradients flow to q, k, v, bias, alibi_slopes, sinks and the tensors in params, from out, lse
    and weights (before dropout); other results are not differentiable. Between the forward and the
    backward pass it keeps its arguments, out and lse.

    Args:
        q, k, v, options: as in `qkv.attention`.

    Returns:
        The results of `qkv.attention`, as tensors.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        RuntimeError: a second derivative was requested.

    >>> import torch
    >>> W = torch.eye(3, dtype=torch.float64, requires_grad=True)
    >>> x = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    >>> attention(x, x, x, score="bilinear", params={"W": W}).sum().backward()
    >>> W.grad.shape
    torch.Size([3, 3])
    """
    Tensor = torch.Tensor
    if (  # fast path: the overhead matters for small calls
        isinstance(q, Tensor)
        and isinstance(k, Tensor)
        and isinstance(v, Tensor)
        and _WANT_GRADIENTS.isdisjoint(options)
        and not (q.requires_grad or k.requires_grad or v.requires_grad)
    ):
        return _functions.attention(q, k, v, **options)
    tensors = [x for x in (q, k, v) if isinstance(x, Tensor)]
    if len(tensors) < 3:
        _check_kinds("attention", torch.Tensor, q=q, k=k)
        if v is not None:
            _check_kinds("attention", torch.Tensor, v=v)
    if options:
        tensors += [x for x in options.values() if isinstance(x, torch.Tensor)]
        if isinstance(options.get("params"), dict):
            tensors += [x for x in options["params"].values() if isinstance(x, torch.Tensor)]
    if not any([x.requires_grad for x in tensors]):
        return _functions.attention(q, k, v, **options)
    _refuse_tangents(tensors)
    if options.keys() - _functions.DEFAULTS.keys():
        return _functions.attention(q, k, v, **options)  # raises for unknown options
    call, inputs = _split({"q": q, "k": k, "v": v, **_functions.DEFAULTS, **options})
    _check_kinds("attention", _FLAG, return_lse=call.others["return_lse"])  # set to True below
    if not torch.is_grad_enabled():
        return _functions.attention(**call.arguments(inputs))
    values = list(_Attention.apply(call, *inputs))
    names = [name for name in call.fields if name != "top keys"]
    if names == ["out"]:
        return values[0]
    if len(names) < len(values):
        values[-2:] = [tuple(values[-2:])]
    return results(tuple(names), tuple(values))


# Options that may require gradients.
_WANT_GRADIENTS = frozenset({"bias", "alibi_slopes", "sinks", "params"})


def _refuse_tangents(tensors: Iterable[torch.Tensor]) -> None:
    """Detaching would lose tangents; tensors that are not detached are rejected when read."""
    if forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise RuntimeError(
            "attention: there is no forward-mode derivative of qkv.torch.attention, got a dual "
            "tensor; gradients come from the backward pass"
        )


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
        query, key, value: [..,Tq,D], [..,Tk,D], [..,Tk,E]; leading axes broadcast.
        attn_mask: bool, true where a query may attend, or numbers added to the scores, of query's
            dtype or float32; broadcasts to [..,Tq,Tk]. Or the result of
            torch.nn.attention.bias.causal_upper_left or causal_lower_right.
        dropout_p: always applied, as in PyTorch; the seed is drawn from torch's generator. 1 gives
            all zeros.
        is_causal: the first query sees only the first key (not with attn_mask).
        scale: 1/sqrt(D) by default.
        enable_gqa: the axis before the sequence is the head axis; key and value may each have
            fewer heads, a divisor of query's.

    Returns:
        [..,Tq,E] of query's dtype. A row that sees no key gives zeros. Gradients flow to query,
        key, value and a mask of numbers. D = 0 makes all scores 0, E = 0 gives an empty result.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        RuntimeError: a second or a forward-mode derivative was requested.

    >>> import torch
    >>> q, k, v = (torch.ones(1, 4, 3, 8) for _ in range(3))
    >>> scaled_dot_product_attention(q, k, v, is_causal=True).shape
    torch.Size([1, 4, 3, 8])
    """
    _check_kinds(_SDPA, torch.Tensor, query=query, key=key, value=value)
    _check_kinds(_SDPA, _FLAG, is_causal=is_causal, enable_gqa=enable_gqa)
    _check_kinds(_SDPA, (int, float), dropout_p=dropout_p)
    if attn_mask is not None:
        _check_kinds(_SDPA, torch.Tensor, attn_mask=attn_mask)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{_SDPA}: dropout_p must be in [0,1], got {dropout_p}")
    if is_causal and attn_mask is not None:
        raise ValueError(f"{_SDPA}: attn_mask must be None where is_causal is True")
    options: Dict[str, Any] = {"scale": scale, "causal": "top_left" if is_causal else False}
    if isinstance(attn_mask, CausalBias):
        options["causal"] = _corner_of(attn_mask, query, key)
    elif attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            options["mask"] = attn_mask
        else:
            wider = query.dtype == torch.float64 and attn_mask.dtype == torch.float32
            options["bias"] = attn_mask.double() if wider else attn_mask
    if 0 < dropout_p < 1:
        options.update(dropout=dropout_p, seed=int(torch.randint(0, 2**63 - 1, ())))
    if value.dim() > 0 and value.size(-1) == 0:
        return query[..., :0]  # PyTorch's shape, even if heads or batches would broadcast
    q, k, v, shape = _aligned(query, key, value, enable_gqa)
    if q.size(-1) == 0 == k.size(-1):  # one channel of zeros gives the same scores
        options["scale"] = 1
        q, k = (torch.nn.functional.pad(x, (0, 1)) for x in (q, k))
    out: torch.Tensor = attention(q, k, v, **options)
    if dropout_p == 1:
        out = out * 0
    whole = (*shape, value.size(-1))
    return out if out.shape == whole else out.reshape(whole)


_SDPA = "scaled_dot_product_attention"


def _corner_of(bias: CausalBias, query: torch.Tensor, key: torch.Tensor) -> str:
    """The diagonal of a PyTorch causal bias."""
    sizes = (bias.seq_len_q, bias.seq_len_kv)
    if sizes != (query.size(-2), key.size(-2)):
        raise ValueError(
            f"{_SDPA}: attn_mask is for {sizes[0]} queries and {sizes[1]} keys but there are "
            f"{query.size(-2)} and {key.size(-2)}"
        )
    corners = {
        CausalVariant.UPPER_LEFT: "top_left",
        CausalVariant.LOWER_RIGHT: "bottom_right",
    }
    return corners[bias.variant]


def _aligned(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tuple[int, ...]]:
    """The three with equal leading axes, except for fewer key and value heads; and [..,Tq]."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 2:
            raise ValueError(f"{_SDPA}: {name} must have at least 2 axes, got {x.dim()}")
    if grouped:
        return _aligned_groups(query, key, value)
    if query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return query, key, value, tuple(query.shape[:-1])
    leading = _broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (x.expand((*leading, *x.shape[-2:])) for x in (query, key, value))
    return q, k, v, (*leading, query.size(-2))


def _aligned_groups(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tuple[int, ...]]:
    """As _aligned; the last leading axis is the head axis, with rank 3 too."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 3:
            raise ValueError(
                f"{_SDPA}: {name} must have an axis of heads with enable_gqa=True, "
                f"got {list(x.shape)}"
            )
    H, groups = query.size(-3), (key.size(-3), value.size(-3))
    for name, G in zip(("key", "value"), groups):
        if G == 0 or H % G != 0:
            raise ValueError(
                f"{_SDPA}: {name} has {G} heads, which do not divide query's {H} (enable_gqa=True)"
            )
    # The least common number of heads; repeating a head does not change the result.
    G = math.lcm(*groups)
    k, v = (
        x if x.size(-3) == G else x.repeat_interleave(G // x.size(-3), -3) for x in (key, value)
    )
    leading = _broadcast(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    q, k, v = (x.expand((*leading, *x.shape[-3:])) for x in (query, k, v))
    shape = (*leading, H, query.size(-2))
    return (q[None], k[None], v[None], shape) if q.dim() == 3 else (q, k, v, shape)


def _broadcast(*leading: Tuple[int, ...]) -> Tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(*leading))
    except RuntimeError:
        shapes = ", ".join(str(list(x)) for x in leading)
        raise ValueError(
            f"{_SDPA}: the leading axes of query, key and value must broadcast, got {shapes}; "
            "fewer heads of keys need enable_gqa=True"
        ) from None
