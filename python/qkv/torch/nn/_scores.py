# SPDX-License-Identifier: Apache-2.0
"""The attention layers of qkv as PyTorch modules, with parameters of the same names."""

import math
from typing import Any, Dict, Optional, Sequence, Tuple, Union

import torch

from ..._functions import Numbers, Window
from ..._words import in_words_of, near_words
from .._attention import attention
from .._dropout import dropout_options
from .._kinds import check_kinds
from .._questions import is_compiling

__all__ = ["AdditiveAttention", "BilinearAttention", "DotProductAttention"]


class _ScoreAttention(torch.nn.Module):  # type: ignore[misc]
    """The base class: calls `attention` with a module's score, parameters and dropout."""

    dropout: float

    def __init__(self, dropout: float, **widths: int) -> None:
        name = type(self).__name__
        check_kinds(name, (int, float), dropout=dropout)
        if not 0 <= dropout < 1:
            raise ValueError(f"{name}: dropout must be in [0,1), got {dropout}")
        for argument, width in widths.items():
            if isinstance(width, bool) or not isinstance(width, int):
                kind = type(width).__name__
                raise TypeError(f"{name}: {argument} must be an integer, got {kind}")
            if width < 1:
                raise ValueError(f"{name}: {argument} must be at least 1, got {width}")
        super().__init__()
        self.dropout = float(dropout)

    def _parameter(self, name: str, shape: Tuple[int, ...], device: Any, dtype: Any) -> None:
        parameter = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.register_parameter(name, parameter)

    def _score(self) -> Dict[str, Any]:
        """The options of `attention` for the score function and its parameters."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draws all parameters uniformly from (-b, b), b = 1/sqrt(fan-in), by torch's generator."""

    def extra_repr(self) -> str:
        """The text that print() shows in the module's parentheses.

        Returns:
            The arguments of the constructor.
        """
        return f"dropout={self.dropout}"

    @near_words
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        key_lengths: Optional[Numbers] = None,
        *,
        mask: Optional[Numbers] = None,
        padding_mask: Optional[Numbers] = None,
        bias: Optional[torch.Tensor] = None,
        causal: Union[bool, str] = False,
        causal_offset: Optional[Union[int, Numbers]] = None,
        window: Optional[Window] = None,
        return_weights: Union[bool, str] = False,
        return_scores: Optional[Union[str, Sequence[str]]] = None,
        return_lse: bool = False,
        return_row_max: bool = False,
        return_column_sums: Union[bool, Numbers] = False,
        return_top: int = 0,
        return_entropy: bool = False,
        return_value_sums: bool = False,
        return_pooled: Optional[Tuple[int, int]] = None,
        rows: Optional[Numbers] = None,
        threads: Optional[int] = None,
    ) -> Any:
        """Computes attention, with gradients.

        Gradients flow from out, weights and lse to q, k, v, bias and the parameters. In training
        mode weights are dropped, with a seed drawn from torch's generator.

        Args:
            q, k, v: queries [B,Tq,.], keys [B,Tk,.] and values [B,Tk,E]; or with heads [B,H,T,.],
                or without a batch [T,.].
            key_lengths: integers [B] or [B,Tq]: keys from this index on are masked.
            mask, padding_mask, bias, causal, causal_offset, window: as in `qkv.attention`; a query
                attends to a key only if every mask allows it.
            return_weights, return_scores, return_lse, return_row_max, return_column_sums,
            return_top, return_entropy, return_value_sums, return_pooled, rows, threads: as in
                `qkv.attention`.

        Returns:
            out [B,Tq,E]; with extras a named tuple, as from `qkv.attention`.

        Raises:
            ValueError, TypeError: invalid argument; the message names it, the rule and the value.
        """
        options: Dict[str, Any] = dict(
            **self._score(),
            **dropout_options(self.dropout if self.training else 0.0),
            key_lengths=key_lengths, mask=mask, padding_mask=padding_mask, bias=bias,
            causal=causal, causal_offset=causal_offset, window=window,
            return_weights=return_weights, return_scores=return_scores, return_lse=return_lse,
            return_row_max=return_row_max, return_column_sums=return_column_sums,
            return_top=return_top, return_entropy=return_entropy,
            return_value_sums=return_value_sums, return_pooled=return_pooled, rows=rows,
            threads=threads,
        )  # fmt: skip
        if is_compiling():
            return attention(q, k, v, **options)
        name = type(self).__name__
        widths = self._widths()
        for argument, x in (("q", q), ("k", k)):
            width = widths.get(argument)
            if width is not None and isinstance(x, torch.Tensor) and x.shape[-1:] != (width,):
                word = "query_width" if argument == "q" else "key_width"
                raise ValueError(
                    f"{name}: {argument} must have {width} channels ({word}), got {list(x.shape)}"
                )
        try:
            return attention(q, k, v, **options)
        except (TypeError, ValueError) as error:
            parameters = {'params["Wq"]': "W_q", 'params["Wk"]': "W_k", 'params["W"]': "W"}
            raise in_words_of(error, name, {**parameters, 'params["v"]': "parameter v"}) from None

    def _widths(self) -> Dict[str, int]:
        """The widths that the parameters determine, by argument: "q" and "k"."""
        return {}


def _draw(parameter: torch.Tensor, fan_in: int) -> None:
    bound = 1 / math.sqrt(fan_in)
    torch.nn.init.uniform_(parameter, -bound, bound)


class DotProductAttention(_ScoreAttention):
    """Scaled dot-product attention, softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, eq. 1).

    The module has no parameters.

    Args:
        dropout: probability of dropping a weight in training, in [0,1).

    >>> import torch
    >>> q, k = torch.ones(2, 1, 2), torch.ones(2, 10, 2)
    >>> v = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    >>> DotProductAttention(dropout=0.5).eval()(q, k, v, [2, 6])
    tensor([[[ 2.,  3.,  4.,  5.]],
    <BLANKLINE>
            [[10., 11., 12., 13.]]])
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)

    def _score(self) -> Dict[str, Any]:
        return {}


class AdditiveAttention(_ScoreAttention):
    """Additive attention: scores v^T tanh(W_q q + W_k k) (Bahdanau et al. 2015, appendix A.1.2).

    The parameters are W_q [U,Dq], W_k [U,Dk] and v [U], without bias, as in
    `qkv.AdditiveAttention`: state dicts and safetensors files of the two can be exchanged.

    Args:
        query_width, key_width: Dq, Dk.
        units: U, the width of the hidden layer.
        dropout: probability of dropping a weight in training, in [0,1).
        device, dtype: device and dtype of the parameters, as in PyTorch's modules.

    >>> import torch
    >>> module = AdditiveAttention(query_width=3, key_width=2, units=8)
    >>> q, k, v = (torch.ones(shape) for shape in [(1, 4, 3), (1, 5, 2), (1, 5, 6)])
    >>> out, weights = module(q, k, v, return_weights=True)
    >>> out.shape, weights.shape
    (torch.Size([1, 4, 6]), torch.Size([1, 4, 5]))
    """

    def __init__(
        self,
        query_width: int,
        key_width: int,
        units: int,
        dropout: float = 0.0,
        *,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(dropout, query_width=query_width, key_width=key_width, units=units)
        self._parameter("W_q", (units, query_width), device, dtype)
        self._parameter("W_k", (units, key_width), device, dtype)
        self._parameter("v", (units,), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters uniformly from (-b, b), b = 1/sqrt(fan-in), by torch's generator."""
        for parameter in (self.W_q, self.W_k, self.v):
            _draw(parameter, parameter.size(-1))

    def extra_repr(self) -> str:
        """The text that print() shows in the module's parentheses.

        Returns:
            The arguments of the constructor.
        """
        units, query_width = self.W_q.shape
        widths = f"query_width={query_width}, key_width={self.W_k.size(1)}, units={units}"
        return f"{widths}, {super().extra_repr()}"

    def _score(self) -> Dict[str, Any]:
        return {"score": "additive", "params": {"Wq": self.W_q, "Wk": self.W_k, "v": self.v}}

    def _widths(self) -> Dict[str, int]:
        return {"q": self.W_q.size(1), "k": self.W_k.size(1)}


class BilinearAttention(_ScoreAttention):
    """Bilinear attention: scores q^T W k (Luong et al. 2015, section 3.1, "general").

    The parameter is W [Dq,Dk], as in `qkv.BilinearAttention`: state dicts and safetensors files of
    the two can be exchanged.

    Args:
        query_width, key_width: Dq, Dk.
        dropout: probability of dropping a weight in training, in [0,1).
        device, dtype: device and dtype of the parameter, as in PyTorch's modules.

    >>> import torch
    >>> module = BilinearAttention(3, 2)
    >>> _ = torch.nn.init.zeros_(module.W)
    >>> module(torch.ones(4, 3), torch.ones(2, 2), torch.tensor([[1.0], [3.0]]))[0].item()
    2.0
    """

    def __init__(
        self,
        query_width: int,
        key_width: int,
        dropout: float = 0.0,
        *,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(dropout, query_width=query_width, key_width=key_width)
        self._parameter("W", (query_width, key_width), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws W uniformly from (-b, b), b = 1/sqrt(query_width), by torch's generator."""
        _draw(self.W, self.W.size(0))

    def extra_repr(self) -> str:
        """The text that print() shows in the module's parentheses.

        Returns:
            The arguments of the constructor.
        """
        query_width, key_width = self.W.shape
        return f"query_width={query_width}, key_width={key_width}, {super().extra_repr()}"

    def _score(self) -> Dict[str, Any]:
        return {"score": "bilinear", "params": {"W": self.W}}

    def _widths(self) -> Dict[str, int]:
        return {"q": self.W.size(0), "k": self.W.size(1)}
