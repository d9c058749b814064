# SPDX-License-Identifier: Apache-2.0
"""Attention layers: parameters, a forward pass, and the backward pass of the last forward pass.

Letters: B batch, H query heads, Tq queries, Tk keys, D query/key width, E value width, U units.

A layer keeps the arrays of its last forward pass (inputs, masks and out) for `backward`, without a
copy: writing to them before `backward` gives inconsistent gradients. Several threads may use one
layer at once. Their forward passes are independent, and `backward` uses the pass that finished
last; if that pass failed, `backward` raises an error. A pass reuses the memory of an earlier one.
"""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import DTypeLike

from . import _core
from ._functions import Array, Numbers, Window
from ._layer import Layer, mask_options
from ._mods import MaskFunction, ScoreFunction
from ._results import of_call, results

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

    dq, dk, dv, dbias and the arrays in dcaptured are of q's type; parameters has NumPy arrays.
    parameters and dcaptured are dictionaries by name. dbias is None if the forward pass had no
    bias; dcaptured is None if its score_mod read no array of floats.
    """

    dq: Array
    dk: Array
    dv: Array
    parameters: Dict[str, Any]
    dbias: Optional[Array] = None
    dcaptured: Optional[Dict[str, Array]] = None


class SelfAttentionGradients(NamedTuple):
    """The result of `SelfAttention.backward`; each gradient has the shape and dtype of its source.

    dx and the arrays in dcaptured are of x's type; parameters has NumPy arrays. parameters and
    dcaptured are dictionaries by name. dcaptured is None if score_mod read no array of floats.
    """

    dx: Array
    parameters: Dict[str, Any]
    dcaptured: Optional[Dict[str, Array]] = None


class _Attention(Layer):
    """The base class of the layers that take queries, keys and values."""

    _heads_averaged = 0  # the number of heads over which the last pass averaged weights; 0 if none

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
        score_mod: Optional[ScoreFunction] = None,
        mask_mod: Optional[MaskFunction] = None,
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
        """Computes attention; keeps the arrays that `backward` needs.

        Args:
            q, k, v: queries [B,Tq,.], keys and values [B,Tk,.]; see the class for shapes.
            key_lengths: integers [B] or [B,Tq]: keys from this index on are masked.
            mask, padding_mask, bias, causal, causal_offset, window, score_mod, mask_mod: as in
                `attention`; a query attends to a key only if every mask allows it. score_mod and
                mask_mod are not available with bias_kv.
            train: whether to apply dropout, drawn from (seed, step). Each successful pass with
                train=True adds 1 to step. With train=False nothing is dropped, and step stays.
            seed: 0 to 2^64-1; sets the seed, and step to 0. None keeps seed and step. Required in
                the first pass with train=True if the layer has dropout; not used with train=False.
            return_weights, return_scores, return_lse, return_row_max, return_column_sums,
            return_top, return_entropy, return_value_sums, return_pooled, rows, threads: as in
                `attention`.
            average_weights: whether to average the weights over the heads, to [B,Tq,Tk].

        Returns:
            out [B,Tq,.] of q's type and dtype; with extras a named tuple, as from `attention`.

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
                f"{type(self).__name__}.forward: average_weights requires return_weights=True "
                f'or "dropped", got {return_weights!r}'
            )
        got = self._forward(
            (q, k, v),
            mask_options(key_lengths, mask, padding_mask, causal, window, bias, causal_offset,
                         score_mod, mask_mod),
            (return_weights, return_scores, return_lse, return_row_max, return_column_sums,
             return_top, return_entropy, return_value_sums, return_pooled, rows, results),
            (train, seed),
            threads,
        )  # fmt: skip
        self._heads_averaged = 0
        if not average_weights:
            masks = {
                "score_mod": score_mod, "mask_mod": mask_mod, "mask": mask,
                "padding_mask": padding_mask, "bias": bias, "key_lengths": key_lengths,
                "causal": causal, "window": window, "causal_offset": causal_offset,
            }  # fmt: skip
            # With bias_kv, weights have a column for the learned key, which masks lack.
            known = {} if self._config.get("bias_kv") else masks
            return of_call(got, (q, k, v), {**known, "rows": rows, "return_scores": return_scores})
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
        """Computes the gradients of the last forward pass from those of its results.

        Args:
            dout: gradient of the loss with respect to out, of its shape and dtype; None for zero.
            dlse, dweights: gradients with respect to lse and to weights (before dropout), in their
                shapes; None for zero. One of the three must be given.
            threads: as in `attention`.

        Returns:
            LayerGradients: dq, dk, dv, parameters, dbias and dcaptured. If one array was passed as
            q, k and v, its gradient is dq + dk + dv.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        if dweights is not None and self._heads_averaged:
            one = (dweights / self._heads_averaged)[..., None, :, :]  # for one head
            shape = (*one.shape[:-3], self._heads_averaged, *one.shape[-2:])
            # NumPy arrays have no method expand(), which PyTorch tensors have.
            dweights = (
                np.broadcast_to(one, shape) if isinstance(one, np.ndarray) else one.expand(shape)
            )
        given = (dout, dlse, dweights)
        dq, dk, dv, dbias, dcaptured, parameters = self._layer.backward(given, threads)
        return LayerGradients(dq, dk, dv, parameters, dbias, dcaptured)


class DotProductAttention(_Attention):
    """Scaled dot-product attention, softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, eq. 1).

    The layer has no parameters. Arrays have the shapes and dtypes of `attention`: [B,T,.] if all
    have rank 3, or [B,H,T,.] with heads.

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
        self._make(None, draws=False, dropout=dropout)


class AdditiveAttention(_Attention):
    """Additive attention: scores v^T tanh(W_q q + W_k k) (Bahdanau et al. 2015, appendix A.1.2).

    The inputs are q [B,Tq,Dq], k [B,Tk,Dk] and v [B,Tk,E], or have heads, [B,H,T,.]. The parameters
    are W_q [U,Dq], W_k [U,Dk] and v [U]; there is no bias.

    `load_torch` reads a module with three bias-free torch.nn.Linear W_q, W_k and v. The PyTorch
    listing of `MLPAttention` in "Dive into Deep Learning" (section 10.1) applies the Linear that it
    names W_k to the queries and W_q to the keys: swapped=True reads parameters trained with that
    listing. (The listing also omits tanh; this layer does not.)

    Args:
        query_width, key_width: Dq, Dk.
        units: U, the width of the hidden layer.
        dropout: probability of dropping a weight in training, in [0,1).
        dtype: float32 or float64, the dtype of the parameters, q, k and v.
        seed: seed of the initial parameters, see `initialise`.

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
    """Bilinear attention: scores q^T W k (Luong et al. 2015, section 3.1, "general").

    The inputs are q [B,Tq,Dq], k [B,Tk,Dk] and v [B,Tk,E], or have heads, [B,H,T,.]. The parameter
    is W [Dq,Dk].

    Args:
        query_width, key_width: Dq, Dk.
        dropout: probability of dropping a weight in training, in [0,1).
        dtype: float32 or float64, the dtype of W, q, k and v.
        seed: seed of the initial W, see `initialise`.

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
    """Multi-head attention: projects q, k and v, attends in each head, projects the merged heads.

    form="split" (Vaswani et al. 2017, section 3.2.2): each head has width/heads channels, and
    scores are divided by sqrt(width/heads). The four projections fc_q, fc_k, fc_v and fc_o are
    [width,width], with biases. `load_torch` also takes the state dict of
    torch.nn.MultiheadAttention. (Masks of that module are true where attention is forbidden: its
    key_padding_mask is padding_mask here, its boolean attn_mask is `~mask`.)

    form="wide": each head has all width channels, and q and k are each divided by width^(1/4). The
    projections queries, keys and values are [heads*width,width] without biases; unify_heads is
    [width,heads*width] with a bias.

    The inputs are q [B,Tq,width], k [B,Tk,key_width] and v [B,Tk,value_width]; one array for all
    three is self-attention. Weights, scores and other extras have a head axis: [B,H,Tq,Tk], or
    [1,H,Tq,Tk] if q, k and v have rank 2. With bias_kv the learned key has the last column.

    Args:
        width: channels of q and out, and by default of k and v.
        heads: H; divides width in the split form.
        dropout: probability of dropping a weight in training, in [0,1); by default 0.1 in the
            split form and 0 in the wide one.
        dtype: float32 or float64, the dtype of the parameters, q, k and v.
        bias: whether the projections have biases.
        key_width, value_width: channels of k and of v; None for width (torch's kdim, vdim).
        key_heads: G, the number of heads of keys and values, a divisor of heads; each serves
            heads/G query heads (Ainslie et al. 2023); None for heads.
        sinks: whether each head has one more logit, learned, whose value is 0: the parameter
            sinks [heads].
        bias_kv: whether a learned key and value, never masked, follow the given ones: the
            parameters bias_k and bias_v (torch's add_bias_kv).
        zero_attn: whether a key and a value of zeros, never masked, follow the given ones (torch's
            add_zero_attn). That key has no column in the weights, whose rows then sum to less
            than 1.
        seed: seed of the initial parameters, see `initialise`.

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
    """Self-attention of one head: q, k and v are bias-free projections of x, of the same width.

    q and k are each divided by width^(1/4), so that the scores are divided by sqrt(width). The
    parameters are queries.weight, keys.weight and values.weight, each [width,width]. There is no
    dropout.

    Args:
        width: channels of x and out.
        dtype: float32 or float64, the dtype of the parameters and of x.
        seed: seed of the initial parameters, see `initialise`.

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
        score_mod: Optional[ScoreFunction] = None,
        mask_mod: Optional[MaskFunction] = None,
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
        """Computes self-attention; keeps the arrays that `backward` needs.

        Args:
            x: [B,T,width] or [T,width].
            key_lengths: integers [B] or [B,T]: no position attends to positions from this index on.
                With [B], positions past the length still attend to the others, and must be finite
                for `backward`; with [B,T], a length of 0 makes a position attend to none.
            mask, padding_mask, window, score_mod, mask_mod: as in `attention`; a position attends
                to another only if every mask allows it.
            causal: whether each position attends only to itself and to positions before it.
            train, seed: accepted without effect, because there is no dropout.
            return_weights, return_scores, return_lse, return_row_max, return_column_sums,
            return_top, return_entropy, return_value_sums, return_pooled, rows, threads: as in
                `attention`.

        Returns:
            out, of x's shape, type and dtype; with extras a named tuple, as from `attention`.

        Raises:
            ValueError, TypeError: invalid argument; `backward` is then unavailable.
        """
        got = self._forward(
            (x, None, None),
            mask_options(key_lengths, mask, padding_mask, causal, window,
                         score_mod=score_mod, mask_mod=mask_mod),
            (return_weights, return_scores, return_lse, return_row_max, return_column_sums,
             return_top, return_entropy, return_value_sums, return_pooled, rows, results),
            (train, seed),
            threads,
        )  # fmt: skip
        return of_call(
            got, (x,),
            {"score_mod": score_mod, "mask_mod": mask_mod, "mask": mask,
             "padding_mask": padding_mask, "key_lengths": key_lengths, "causal": causal,
             "window": window, "rows": rows, "return_scores": return_scores},
        )  # fmt: skip

    def backward(
        self,
        dout: Optional[Array],
        *,
        dlse: Optional[Array] = None,
        dweights: Optional[Array] = None,
        threads: Optional[int] = None,
    ) -> SelfAttentionGradients:
        """Computes the gradients of the last forward pass from those of its results.

        Args:
            dout: gradient of the loss with respect to out, of its shape and dtype; None for zero.
            dlse, dweights: gradients with respect to lse [B,T] and weights [B,T,T], in their
                shapes; None for zero. One of the three must be given.
            threads: as in `attention`.

        Returns:
            SelfAttentionGradients: dx, parameters and dcaptured.

        Raises:
            ValueError, TypeError: invalid argument, or the last forward pass failed, or there was
                none.
        """
        dx, dcaptured, parameters = self._layer.backward((dout, dlse, dweights), threads)
        return SelfAttentionGradients(dx, parameters, dcaptured)
