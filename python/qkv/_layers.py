# SPDX-License-Identifier: Apache-2.0
"""Layers: parameters, a forward pass, and a backward pass for the last forward pass.

Letters: B batch, H query heads, Tq queries, Tk keys, D query/key width, E value width, U units.

A layer keeps the arrays of its last forward pass (inputs, masks and out) for `backward`, without a
copy: writing to them before `backward` gives inconsistent gradients. Several threads may use one
layer at once; forward passes are independent, and `backward` uses the one that finished last (if
that one failed, there is none). The memory of the previous pass is reused by the next one.
"""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import DTypeLike

from . import _core
from ._functions import Array, Numbers, Window
from ._layer import Layer, mask_options
from ._results import results

__all__ = [
    "AdditiveAttention",
    "BilinearAttention",
    "DotProductAttention",
    "LayerGradients",
    "MLPAttention",
    "MultiHeadAttention",
    "SelfAttention",
    "SelfAttentionGradients",
]


class LayerGradients(NamedTuple):
    """The result of `backward`; each gradient has the shape and dtype of its source.

    dq, dk, dv, dbias have the type of q; those of the parameters are NumPy arrays, by name. dbias
    is None if the forward pass had no bias.
    """

    dq: Array
    dk: Array
    dv: Array
    parameters: Dict[str, Any]
    dbias: Optional[Array] = None


class SelfAttentionGradients(NamedTuple):
    """The result of `SelfAttention.backward`: dx of x's type and shape, and NumPy arrays."""

    dx: Array
    parameters: Dict[str, Any]


class _Attention(Layer):
    """The base of layers that take queries, keys and values."""

    _heads_averaged = 0  # in the weights of the last forward pass

    def forward(
        self,
        q: Array,
        k: Array,
        v: Array,
        key_lengths: Optional[Numbers] = None,
        *,
        mask: Optional[Numbers] = None,
        padding_mask: Optional[Numbers] = None,
        bias: Optional[Numbers] = None,
        causal: Union[bool, str] = False,
        causal_offset: Optional[Union[int, Numbers]] = None,
        window: Optional[Window] = None,
        train: bool = False,
        seed: Optional[int] = None,
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
        average_weights: bool = False,
        threads: Optional[int] = None,
    ) -> Any:
        """Attends; keeps what `backward` needs.

        Args:
            q, k, v: queries [B,Tq,.], keys and values [B,Tk,.]; see the class for shapes.
            key_lengths: integers [B] or [B,Tq]: keys from this index on are masked.
            mask, padding_mask, bias, causal, causal_offset, window: as in `attention`; a pair must
                be allowed by every mask.
            train: applies dropout. Each such pass advances one step: its dropout is drawn from
                (seed, step). In evaluation nothing is dropped.
            seed: 0 to 2^64-1; restarts the steps from this seed. Required with the first train=True
                of a layer with dropout; without it the steps continue. Not used in evaluation.
            return_weights, return_scores, return_lse, return_row_max, return_column_sums,
            return_top, return_entropy, return_value_sums, return_pooled, rows, threads: as in
            `attention`.
            average_weights: averages the weights over the heads, [B,Tq,Tk].

        Returns:
            out [B,Tq,.] of q's type and dtype, or a named tuple with extras, as `attention`.

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        if not isinstance(average_weights, (bool, np.bool_)):
            raise TypeError(
                f"{type(self).__name__}.forward: average_weights must be True or False, "
                f"got {type(average_weights).__name__}"
            )
        word = return_weights if isinstance(return_weights, (bool, np.bool_, str)) else None
        if average_weights and word not in (True, "dropped"):
            raise ValueError(
                f"{type(self).__name__}.forward: average_weights goes with return_weights=True "
                f'or "dropped", got {return_weights!r}'
            )
        got = self._forward(
            (q, k, v),
            mask_options(key_lengths, mask, padding_mask, causal, window, bias, causal_offset),
            (return_weights, return_scores, return_lse, return_row_max, return_column_sums,
             return_top, return_entropy, return_value_sums, return_pooled, rows, results),
            (train, seed),
            threads,
        )  # fmt: skip
        self._heads_averaged = 0
        if not average_weights:
            return got
        if got.weights.ndim < 4:
            raise ValueError(
                f"{type(self).__name__}.forward: average_weights is for weights with heads, "
                f"[B,H,Tq,Tk], got {list(got.weights.shape)}"
            )
        self._heads_averaged = int(got.weights.shape[-3])
        return got._replace(weights=got.weights.mean(-3))

    def backward(
        self,
        dout: Optional[Array],
        *,
        dlse: Optional[Array] = None,
        dweights: Optional[Array] = None,
        threads: Optional[int] = None,
    ) -> LayerGradients:
        """The gradients of the last forward pass from those of its results.

        Args:
            dout: gradient of the loss with respect to out, of its shape and dtype; None for zero.
            dlse, dweights: with respect to lse and weights (before dropout), in their shapes; None
                for zero. One of the three must be given.
            threads: as in `attention`.

        Returns:
            LayerGradients: dq, dk, dv, parameters and dbias. If one array was passed as q, k and v,
            its gradient is the sum of the three.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        if dweights is not None and self._heads_averaged:
            each = (dweights / self._heads_averaged)[..., None, :, :]
            shape = (*each.shape[:-3], self._heads_averaged, *each.shape[-2:])
            # NumPy arrays have no expand().
            dweights = (
                np.broadcast_to(each, shape) if isinstance(each, np.ndarray) else each.expand(shape)
            )
        dq, dk, dv, dbias, parameters = self._layer.backward((dout, dlse, dweights), threads)
        return LayerGradients(dq, dk, dv, parameters, dbias)


class DotProductAttention(_Attention):
    """softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, eq. 1). No parameters.

    Shapes and dtypes are those of `attention`: [B,T,.] if all have rank 3, or with heads.

    Args:
        dropout: probability of dropping a weight in training, in [0,1).

    >>> import numpy as np
    >>> q, k = np.ones((2, 1, 2)), np.ones((2, 10, 2))
    >>> v = np.tile(np.arange(40.0).reshape(1, 10, 4), (2, 1, 1))
    >>> DotProductAttention(dropout=0.5).forward(q, k, v, [2, 6])
    array([[[ 2.,  3.,  4.,  5.]],
    <BLANKLINE>
           [[10., 11., 12., 13.]]])
    """

    _core_class = _core.DotProductAttention

    def __init__(self, dropout: float = 0.0) -> None:
        self._make(None, dropout=dropout)


class AdditiveAttention(_Attention):
    """Scores v^T tanh(W_q q + W_k k) (Bahdanau et al. 2015, appendix A.1.2), without bias.

    q [B,Tq,Dq], k [B,Tk,Dk], v [B,Tk,E], or with heads. Parameters: W_q [U,Dq], W_k [U,Dk], v [U].

    `load_torch` reads a module with three bias-free torch.nn.Linear W_q, W_k and v. The PyTorch
    listing of `MLPAttention` in "Dive into Deep Learning" (section 10.1) applies the one it names
    W_k to the queries and W_q to the keys: swapped=True reads parameters trained with it. (It
    also omits tanh; this layer does not.)

    Args:
        query_width, key_width: Dq, Dk.
        units: U, the width of the hidden layer.
        dropout: probability of dropping a weight in training, in [0,1).
        dtype: float32 or float64, of the parameters, q, k and v.
        seed: of the parameters, see `initialise`.

    >>> import numpy as np
    >>> layer = AdditiveAttention(query_width=3, key_width=2, units=8)
    >>> q, k, v = (np.ones(shape, np.float32) for shape in [(1, 4, 3), (1, 5, 2), (1, 5, 6)])
    >>> layer.forward(q, k, v).shape
    (1, 4, 6)
    """

    _core_class = _core.AdditiveAttention

    def __init__(
        self,
        query_width: int,
        key_width: int,
        units: int,
        dropout: float = 0.0,
        dtype: DTypeLike = "float32",
        *,
        seed: int = 0,
    ) -> None:
        self._make(
            seed,
            query_width=query_width,
            key_width=key_width,
            units=units,
            dropout=dropout,
            dtype=dtype,
        )


MLPAttention = AdditiveAttention


class BilinearAttention(_Attention):
    """Scores q^T W k (Luong et al. 2015, section 3.1, "general").

    q [B,Tq,Dq], k [B,Tk,Dk], v [B,Tk,E], or with heads. Parameter: W [Dq,Dk].

    Args:
        query_width, key_width: Dq, Dk.
        dropout: probability of dropping a weight in training, in [0,1).
        dtype: float32 or float64, of W, q, k and v.
        seed: of W, see `initialise`.

    >>> import numpy as np
    >>> layer = BilinearAttention(3, 2, dtype="float64")
    >>> layer.parameters()["W"][:] = 0
    >>> layer.forward(np.ones((4, 3)), np.ones((2, 2)), np.array([[1.0], [3.0]]))[0]
    array([2.])
    """

    _core_class = _core.BilinearAttention

    def __init__(
        self,
        query_width: int,
        key_width: int,
        dropout: float = 0.0,
        dtype: DTypeLike = "float32",
        *,
        seed: int = 0,
    ) -> None:
        self._make(seed, query_width=query_width, key_width=key_width, dropout=dropout, dtype=dtype)


class MultiHeadAttention(_Attention):
    """Projections of q, k and v, attention in each head, and a projection of the merged heads.

    form="split" (Vaswani et al. 2017, section 3.2.2): each head has width/heads channels; four
    projections [width,width] with biases fc_q, fc_k, fc_v, fc_o; scores are divided by
    sqrt(width/heads). `load_torch` also takes the state dict of torch.nn.MultiheadAttention
    (whose masks have the opposite sense: its key_padding_mask is padding_mask here, its boolean
    attn_mask is `~mask`).

    form="wide": each head has the full width; projections queries, keys, values [heads*width,width]
    without biases, q and k each divided by width^(1/4); unify_heads [width,heads*width] with bias.

    q [B,Tq,width], k [B,Tk,key_width], v [B,Tk,value_width] (self-attention if they are one
    array); weights, scores and other extras have a head axis: [B,H,Tq,Tk], [1,H,Tq,Tk] if q, k and
    v have rank 2. With bias_kv the learned key's column comes last.

    Args:
        width: channels of q, k, v and out.
        heads: H; divides width in the split form.
        dropout: probability of dropping a weight in training, in [0,1); by default 0.1 in the
            split form and 0 in the wide one.
        dtype: float32 or float64, of the parameters, q, k and v.
        bias: False for projections without biases.
        key_width, value_width: channels of k and of v; None: width (torch's kdim, vdim).
        key_heads: G, the number of heads of keys and values, a divisor of heads; each serves
            heads/G query heads (Ainslie et al. 2023); None: heads.
        sinks: one more logit per head, learned, with value 0: the parameter sinks [heads].
        bias_kv: a learned key and value appended to the given ones, never masked: the parameters
            bias_k and bias_v (torch's add_bias_kv).
        zero_attn: a key and value of zeros, likewise (torch's add_zero_attn). Its weight is the
            remainder to 1; it has no column in weights.
        seed: of the parameters, see `initialise`.

    >>> import numpy as np
    >>> layer = MultiHeadAttention(width=8, heads=2, seed=42)
    >>> x = np.ones((1, 5, 8), np.float32)
    >>> out, weights = layer.forward(x, x, x, [3], return_weights=True)
    >>> out.shape, weights.shape
    ((1, 5, 8), (1, 2, 5, 5))
    >>> gradients = layer.backward(np.ones_like(out))
    >>> for name, parameter in layer.parameters().items():
    ...     parameter -= 0.1 * gradients.parameters[name]
    """

    _core_class = _core.MultiHeadAttention

    def __init__(
        self,
        width: int,
        heads: int,
        form: str = "split",
        dropout: Optional[float] = None,
        dtype: DTypeLike = "float32",
        *,
        bias: bool = True,
        key_width: Optional[int] = None,
        value_width: Optional[int] = None,
        key_heads: Optional[int] = None,
        sinks: bool = False,
        bias_kv: bool = False,
        zero_attn: bool = False,
        seed: int = 0,
    ) -> None:
        self._make(
            seed,
            width=width,
            heads=heads,
            form=form,
            dropout=dropout,
            dtype=dtype,
            bias=bias,
            key_width=key_width,
            value_width=value_width,
            key_heads=key_heads,
            sinks=sinks,
            bias_kv=bias_kv,
            zero_attn=zero_attn,
        )


class SelfAttention(Layer):
    """One head over one sequence: q, k, v are bias-free projections of x, of the same width.

    q and k are each divided by width^(1/4), so that the scores are divided by sqrt(width).
    Parameters: queries.weight, keys.weight, values.weight, each [width,width]. No dropout.

    Args:
        width: channels of x and out.
        dtype: float32 or float64, of the parameters and x.
        seed: of the parameters, see `initialise`.

    >>> import numpy as np
    >>> SelfAttention(width=50).forward(np.ones((1, 6, 50), np.float32)).shape
    (1, 6, 50)
    """

    _core_class = _core.SelfAttention

    def __init__(self, width: int, dtype: DTypeLike = "float32", *, seed: int = 0) -> None:
        self._make(seed, width=width, dtype=dtype)

    def forward(
        self,
        x: Array,
        key_lengths: Optional[Numbers] = None,
        *,
        mask: Optional[Numbers] = None,
        padding_mask: Optional[Numbers] = None,
        causal: Union[bool, str] = False,
        window: Optional[Window] = None,
        train: bool = False,
        seed: Optional[int] = None,
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
        """Attends; keeps what `backward` needs.

        Args:
            x: [B,T,width] or [T,width].
            key_lengths: integers [B] or [B,T]: no position attends to those from this index on.
                With [B] these still attend to others, and must be finite for `backward`; with
                [B,T] a length of 0 prevents that too.
            mask, padding_mask, window: as in `attention`; a pair must be allowed by every mask.
            causal: True: a position sees itself and those before it.
            train, seed: no effect: there is no dropout.
            return_weights, return_scores, return_lse, return_row_max, return_column_sums,
            return_top, return_entropy, return_value_sums, return_pooled, rows, threads: as in
            `attention`.

        Returns:
            out, of x's shape, type and dtype, or a tuple with extras, as `attention`.

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        return self._forward(
            (x, None, None),
            mask_options(key_lengths, mask, padding_mask, causal, window),
            (return_weights, return_scores, return_lse, return_row_max, return_column_sums,
             return_top, return_entropy, return_value_sums, return_pooled, rows, results),
            (train, seed),
            threads,
        )  # fmt: skip

    def backward(
        self,
        dout: Optional[Array],
        *,
        dlse: Optional[Array] = None,
        dweights: Optional[Array] = None,
        threads: Optional[int] = None,
    ) -> SelfAttentionGradients:
        """The gradients of the last forward pass from those of its results.

        Args:
            dout: gradient of the loss with respect to out, of its shape and dtype; None for zero.
            dlse, dweights: with respect to lse [B,T] and weights [B,T,T], in their shapes; None for
                zero. One of the three must be given.
            threads: as in `attention`.

        Returns:
            SelfAttentionGradients: dx and parameters.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        dx, parameters = self._layer.backward((dout, dlse, dweights), threads)
        return SelfAttentionGradients(dx, parameters)
