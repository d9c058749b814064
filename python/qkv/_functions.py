# SPDX-License-Identifier: Apache-2.0
"""The functions: signatures, defaults and documentation. The work is done in _core.

Letters: B batch, H query heads, G key/value heads, Tq queries, Tk keys, D query/key width, E value
width, U units.
"""

import inspect
from operator import itemgetter
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

from . import _core
from ._mods import MaskFunction, ScoreFunction
from ._results import of_call, results
from ._words import near_words

# A NumPy array or any CPU array with __dlpack__, which `typing` cannot express; results have the
# type of the inputs.
Array = Any
Numbers = Any  # an array, or a list of numbers
Window = Union[Tuple[Optional[int], Optional[int]], Numbers]

__all__ = [
    "Gradients",
    "Shard",
    "attention",
    "attention_backward",
    "batch_dot",
    "masked_softmax",
    "merge",
    "softmax",
]


class Shard(NamedTuple):
    """The positions of a call's arrays in longer sequences, for `attention(..., shard=)`.

    q has the queries first_query .. first_query+Tq-1 of `queries`; k and v have the keys first_key
    .. first_key+Tk-1 of `keys`.
    """

    first_query: int
    queries: int
    first_key: int
    keys: int


class Gradients(NamedTuple):
    """The result of `attention_backward`; None for arguments that the call did not have.

    Each gradient has the shape and dtype of its source.
    """

    dq: Array
    dk: Array
    dv: Optional[Array]
    dbias: Optional[Array]
    dparams: Optional[Dict[str, Array]]
    dalibi_slopes: Optional[Array]
    dsinks: Optional[Array]
    dcaptured: Optional[Dict[str, Array]] = None


@near_words
def attention(
    q: Array,
    k: Array,
    v: Optional[Array],
    *,
    score: str = "scaled_dot",
    params: Optional[Dict[str, Array]] = None,
    qk_norm: Optional[Union[bool, float]] = None,
    rotary: Optional[str] = None,
    rotary_base: Optional[float] = None,
    rotary_width: Optional[int] = None,
    rotary_frequencies: Optional[Numbers] = None,
    q_positions: Optional[Numbers] = None,
    k_positions: Optional[Numbers] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[MaskFunction] = None,
    mask: Optional[Numbers] = None,
    padding_mask: Optional[Numbers] = None,
    bias: Optional[Numbers] = None,
    key_lengths: Optional[Numbers] = None,
    causal: Union[bool, str] = False,
    causal_offset: Optional[Union[int, Numbers]] = None,
    window: Optional[Window] = None,
    alibi_slopes: Optional[Numbers] = None,
    sinks: Optional[Numbers] = None,
    cu_seqlens_q: Optional[Numbers] = None,
    cu_seqlens_k: Optional[Numbers] = None,
    block_tables: Optional[Numbers] = None,
    context_lens: Optional[Numbers] = None,
    shard: Optional[Tuple[int, int, int, int]] = None,
    dropout: float = 0.0,
    seed: Optional[int] = None,
    layout: str = "bhtd",
    heads: Optional[Union[int, Tuple[int, int]]] = None,
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
    """Each query's weighted sum of the values: softmax(scores(q, k)) v.

    The order: QK-norm, rotary positions, score, scale, soft-cap, score_mod, bias and ALiBi, masks,
    sink, softmax over the keys, dropout, weighted sum (Vaswani et al. 2017, eq. 1; Bahdanau et al.
    2015, appendix A.1.2; Luong et al. 2015, section 3.1). Memory grows with Tq + Tk, unless a
    matrix is requested.

    Args:
        q: queries [B,H,Tq,D]; if q, k and v all have rank 3, [B,T,.]; if all have rank 2, [T,.];
            with mixed ranks leading axes align from the right. float32, float64, float16 or
            bfloat16.
        k: keys [B,G,Tk,D], H a multiple of G, of q's dtype. If q is float32, k may also be float16,
            bfloat16 or `qkv.q8` [B,G,Tk,D/32] (without gradients; see `quantize_q8`).
        v: values [B,G,Tk,E] of k's dtype, [B,G,Tk,E/32] for q8; None if neither out nor
            value_sums is requested.
        score: "scaled_dot", "dot", "cosine" (q k / (|q| |k|)), "bilinear" (q W k) or "additive"
            (v tanh(Wq q + Wk k + b)).
        params: {"W": [Dq,Dk]} for bilinear; {"Wq": [U,Dq], "Wk": [U,Dk], "v": [U], "b": [U]} for
            additive, b optional; each also per head, [H,...]. With qk_norm also the gains norm_q
            [Dq] or [H,Dq] and norm_k [Dk] or [G,Dk], each optional.
        qk_norm: each row x of q and k becomes gain * x / sqrt(mean(x^2) + eps) before the score
            (Henry et al. 2020, with RMSNorm); True for eps = 1e-6, or the value of eps.
        rotary: rotary positions (Su et al. 2021): pair m of a row at position p is rotated by the
            angle p * rotary_base^(-2m/rotary_width); pairs are "neighbours" (2m, 2m+1: GPT-J) or
            "halves" (m, m + rotary_width/2: GPT-NeoX, Llama). By default key j has position j and
            query i has i + offset (causal_offset, or the corner given by causal).
        rotary_base: base of the frequencies; 10,000 by default.
        rotary_width: how many leading values of each row are rotated, even; None for all.
        rotary_frequencies: [rotary_width/2] radians per position, replacing those of the base.
        q_positions, k_positions: integers [Tq] or [B,Tq], [Tk] or [B,Tk] (packed: [sum Tq],
            [sum Tk]), replacing the default positions.
        scale: factor of the scores; by default 1/sqrt(D) for scaled_dot and 1 for others.
        softcap: s becomes softcap * tanh(s / softcap); 0 turns it off.
        score_mod: f(s, at), which returns the new score; or a `ScoreMod` of `qkv.score_mod`.
        mask_mod: f(at), true where a query may attend; or a `MaskMod` of `qkv.mask_mod`.
        mask: bool or 0/1, true where a query may attend; broadcasts to [B,H,Tq,Tk].
        padding_mask: [B,Tk], true where a key is padding.
        bias: added to the scores; broadcasts to [B,H,Tq,Tk]; -inf masks.
        key_lengths: integers [B] or [B,Tq]: keys from this index on are masked.
        causal: True or "bottom_right" (the last query attends to all keys), "top_left" (the first
            query attends to the first key only).
        causal_offset: the offset of the diagonal j = i + offset of causal, window, alibi_slopes and
            rotary, instead of a corner; an integer, or one per batch entry [B]. Masks nothing by
            itself.
        window: (left, right): keys at most this far from the diagonal; None or -1 is unbounded.
        alibi_slopes: [H] or [B,H]; adds -slope * distance from the diagonal (Press et al. 2022).
        sinks: [H], one more logit per head in the softmax, without a value vector.
        cu_seqlens_q, cu_seqlens_k: packed sequences, [B+1] from 0 to the total: q is
            [sum Tq,H,D], k and v [sum Tk,G,.].
        block_tables, context_lens: keys in pages, as serving engines keep them: integers
            [B,pages of an entry] and [B]; k is [pages,page,G,D], v [pages,page,G,E], page a
            multiple of 16. Entry b has context_lens[b] keys; key j is row j % page of page
            block_tables[b][j // page]. Not with bias, mask, padding_mask, k_positions, layout or
            heads; the only results are out, lse and row_max, without gradients.
        shard: (first_query, queries, first_key, keys) or `qkv.Shard`, for a part of longer
            sequences: positions (of masks, offsets, lengths, rotary, dropout, functions) count in
            the whole sequence, arrays have the sizes of the call, and the softmax is over its keys.
            `merge` joins results for different keys; pass sinks to one of the calls. Not with
            packed sequences or keys in pages; with dropout, first_key is a multiple of 4.
        dropout: probability of dropping a weight, in [0,1); needs a seed.
        seed: 0 to 2^64-1; the same seed drops the same weights.
        layout: "bhtd", or "bthd" if q, k, v (and the result) are [B,T,H,.].
        heads: H if heads are side by side: q is [B,Tq,H*D], k [B,Tk,G*D], v [B,Tk,G*E] and
            out [B,Tq,H*E]; or (H, G), needed if the widths do not determine G (bilinear and
            additive: G is H).
        return_weights: True for the weights before dropout, "dropped" for those after it, or
            "both": [B,H,Tq,Tk].
        return_scores: "raw" (after scale), "capped" (after soft-cap) or "masked" (after bias and
            masks, -inf where masked), or several of these: [B,H,Tq,Tk].
        return_lse: natural log-sum-exp of each row's scores, [B,H,Tq].
        return_row_max: largest score of each row, [B,H,Tq].
        return_column_sums: weights summed over queries, [B,H,Tk]: over all queries, or over those
            given as integers [R]; one given twice counts twice.
        return_top: how many of each row's largest weights to return, with their keys,
            [B,H,Tq,return_top] each.
        return_entropy: -sum_j w ln w of each row's weights before dropout, [B,H,Tq], in nats; a
            sink has no term.
        return_value_sums: column sums times the norm |v_j| of each value, [B,H,Tk], over the
            queries that return_column_sums names, or all.
        return_pooled: (m, n) for the weights before dropout in m x n cells, [B,H,m,n]. Cell (r, c)
            is the mean, over the queries with floor(i m / Tq) = r, of a query's summed weights for
            the keys with floor(j n / Tk) = c; it is 0 if there is no such query.
        rows: integers [R], the queries whose weights and scores are returned: [B,H,R,Tk].
        threads: number of threads; 0 for one per processor, None for the number of `set_threads`.

    Returns:
        out, [B,H,Tq,E] of q's dtype; with extras, a named tuple of the requested results, in this
        order: out, weights, dropped_weights ("both"), scores (or raw_scores, capped_scores,
        masked_scores if several), lse, row_max, column_sums, top = (weights, keys), entropy,
        value_sums, pooled. With v=None there is no out, and a single result is a named tuple, too.
        Results other than out are float32 (float64 for float64 inputs), keys in top int64. Where a
        query has fewer unmasked keys than return_top, weights 0 with keys -1 fill the rest of top.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> import numpy as np
    >>> q = np.ones((1, 8), np.float32)
    >>> k = np.stack([np.full(8, 2, np.float32), np.ones(8, np.float32)])
    >>> v = np.array([[3], [4]], np.float32)
    >>> out, weights = attention(q, k, v, return_weights=True)
    >>> out.round(4), weights.round(4)
    (array([[3.0558]], dtype=float32), array([[0.9442, 0.0558]], dtype=float32))
    """
    found = _core.attention(
        q, k, v,
        (score, params, qk_norm, rotary, rotary_base, rotary_width, rotary_frequencies,
         q_positions, k_positions, scale, softcap, score_mod, mask_mod, mask, padding_mask, bias,
         key_lengths, causal, causal_offset, window, alibi_slopes, sinks, cu_seqlens_q,
         cu_seqlens_k, block_tables, context_lens, shard, dropout, seed, layout, heads),
        (return_weights, return_scores, return_lse, return_row_max, return_column_sums,
         return_top, return_entropy, return_value_sums, return_pooled, rows, results),
        threads,
    )  # fmt: skip
    # Results that have a matrix get a record of the call, which pictures need.
    if return_weights is False and return_scores is None and return_pooled is None:
        return found
    return of_call(
        found, (q, k, v),
        {"score_mod": score_mod, "mask_mod": mask_mod, "mask": mask, "padding_mask": padding_mask,
         "bias": bias, "key_lengths": key_lengths, "causal": causal, "window": window,
         "causal_offset": causal_offset, "shard": shard, "layout": layout, "rows": rows,
         "return_scores": return_scores},
    )  # fmt: skip


# The options of attention() and their defaults.
DEFAULTS: Dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(attention).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}


_options = itemgetter(*_core.OPTIONS)


def options_of(given: Dict[str, Any]) -> Tuple[Any, ...]:
    """The values in `given` of the options that determine what is computed, in _core's order."""
    values: Tuple[Any, ...] = _options(given)
    return values


def by_name(function: str, add_to: Any) -> Optional[Dict[str, Any]]:
    """The Gradients `add_to` as a dict by field names; None for None; else raises TypeError."""
    if add_to is None:
        return None
    if not isinstance(add_to, Gradients):
        raise TypeError(f"{function}: add_to must be Gradients, got {type(add_to).__name__}")
    return add_to._asdict()


@near_words
def attention_backward(
    dout: Optional[Array],
    q: Array,
    k: Array,
    v: Optional[Array],
    out: Optional[Array],
    lse: Array,
    *,
    dlse: Optional[Array] = None,
    dweights: Optional[Array] = None,
    score: str = "scaled_dot",
    params: Optional[Dict[str, Array]] = None,
    qk_norm: Optional[Union[bool, float]] = None,
    rotary: Optional[str] = None,
    rotary_base: Optional[float] = None,
    rotary_width: Optional[int] = None,
    rotary_frequencies: Optional[Numbers] = None,
    q_positions: Optional[Numbers] = None,
    k_positions: Optional[Numbers] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    score_mod: Optional[ScoreFunction] = None,
    mask_mod: Optional[MaskFunction] = None,
    mask: Optional[Numbers] = None,
    padding_mask: Optional[Numbers] = None,
    bias: Optional[Numbers] = None,
    key_lengths: Optional[Numbers] = None,
    causal: Union[bool, str] = False,
    causal_offset: Optional[Union[int, Numbers]] = None,
    window: Optional[Window] = None,
    alibi_slopes: Optional[Numbers] = None,
    sinks: Optional[Numbers] = None,
    cu_seqlens_q: Optional[Numbers] = None,
    cu_seqlens_k: Optional[Numbers] = None,
    shard: Optional[Tuple[int, int, int, int]] = None,
    dropout: float = 0.0,
    seed: Optional[int] = None,
    layout: str = "bhtd",
    heads: Optional[Union[int, Tuple[int, int]]] = None,
    rows: Optional[Numbers] = None,
    wanted: Optional[Sequence[str]] = None,
    add_to: Optional[Gradients] = None,
    threads: Optional[int] = None,
) -> Gradients:
    """The gradients of `attention` from those of its results (Dao et al. 2022, appendix B.2).

    Needs no memory of size Tq x Tk except for dbias; dropout is regenerated from its seed.

    Args:
        dout: gradient of the loss with respect to out, of its shape and dtype; None for zero.
        q, k, v and all options: as in the call of `attention`.
        out, lse: the results of that call (return_lse=True); out may be None if dout is. For a
            shard of the keys, those of all keys: dq is then to be summed over the shards, dsinks
            is complete in each, and dweights must be None.
        dlse, dweights: gradients with respect to lse [B,H,Tq] and weights [B,H,Tq,Tk] (before
            dropout); None for zero.
        rows: integers [R]: dweights is [B,H,R,Tk], for these queries.
        wanted: the gradients to compute, by their names in Gradients ("dparams.W" for one
            parameter, "dcaptured.table" for one array); None for all. The others are None.
        add_to: Gradients of an earlier call: the new gradients are added to its arrays, and
            rounded to their dtype. The result has these arrays. Since add_to also selects the
            gradients, wanted must be None.
        threads: as in `attention`.

    Returns:
        Gradients: dq, dk, dv, dbias, dparams, dalibi_slopes, dsinks, each with the shape and dtype
        of its source, summed over broadcast axes; and dcaptured, those of the real arrays that
        score_mod reads, by their names (a second one of a name gets a number: "table_2").

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> import numpy as np
    >>> q, k, v = np.ones((1, 2)), np.array([[2.0, 2.0], [1.0, 1.0]]), np.array([[3.0], [4.0]])
    >>> out, lse = attention(q, k, v, return_lse=True)
    >>> attention_backward(np.ones_like(out), q, k, v, out, lse).dv.round(4)
    array([[0.8044],
           [0.1956]])
    """
    return Gradients(*_core.attention_backward(
        q, k, v,
        (dout, out, lse, dlse, dweights, rows, wanted, by_name("attention_backward", add_to)),
        (score, params, qk_norm, rotary, rotary_base, rotary_width, rotary_frequencies,
         q_positions, k_positions, scale, softcap, score_mod, mask_mod, mask, padding_mask, bias,
         key_lengths, causal, causal_offset, window, alibi_slopes, sinks, cu_seqlens_q,
         cu_seqlens_k, None, None, shard, dropout, seed, layout, heads),
        threads,
    ))  # fmt: skip


@near_words
def softmax(x: Numbers, dim: int = -1, *, threads: Optional[int] = None) -> Array:
    """exp(x) / sum of exp(x) along one axis; the largest entry is subtracted first.

    Args:
        x: any rank from 1; float64, float32, bfloat16 or float16. Lists of numbers, and what else
            NumPy can make an array of, count as float64.
        dim: the axis, counted from the end if negative.
        threads: as in `attention`.

    Returns:
        An array with the shape, dtype and type of x (NumPy for a list). A row of only -inf gives
        zeros; NaN or +inf makes its row NaN.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> import numpy as np
    >>> softmax(np.array([4.0, 2.0])).round(4)
    array([0.8808, 0.1192])
    >>> softmax([[4, 1], [2, 1]], dim=0).round(4)
    array([[0.8808, 0.5   ],
           [0.1192, 0.5   ]])
    """
    return _core.softmax(x, dim, threads)


@near_words
def masked_softmax(
    x: Numbers, valid_len: Optional[Numbers] = None, *, threads: Optional[int] = None
) -> Array:
    """softmax over the first `valid_len` entries of each row; 0 for the other entries.

    Args:
        x: [B,T,N] or [B,N]; float64, float32, bfloat16 or float16. Lists of numbers count as
            float64, as in `softmax`.
        valid_len: integers [B] or [B,T], from 0 (a row of zeros) to N; None for all.
        threads: as in `attention`.

    Returns:
        An array with the shape, dtype and type of x (NumPy for a list).

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> import numpy as np
    >>> masked_softmax(np.zeros((2, 1, 4)), [2, 3]).round(4)
    array([[[0.5   , 0.5   , 0.    , 0.    ]],
    <BLANKLINE>
           [[0.3333, 0.3333, 0.3333, 0.    ]]])
    """
    return _core.masked_softmax(x, valid_len, threads)


@near_words
def merge(out: Array, lse: Array, out2: Array, lse2: Array) -> Tuple[Array, Array]:
    """Merges results for two disjoint sets of keys into those for both (see attention's `shard`).

    out = (e^lse out + e^lse2 out2) / (e^lse + e^lse2), rounded once. As lse is rounded, the error
    may reach |lse| eps times the largest value, with eps = 2^-23 (2^-52 for float64).

    Args:
        out, out2: [..,T,E] of one dtype.
        lse, lse2: [..,T], float32, or float64 for float64.

    Returns:
        out and lse, of the type of the argument `out`.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> import numpy as np
    >>> x = np.arange(12.0).reshape(6, 2)
    >>> parts = [
    ...     attention(x, x[j : j + 3], x[j : j + 3], shard=Shard(0, 6, j, 6), return_lse=True)
    ...     for j in (0, 3)
    ... ]
    >>> out, lse = merge(*parts[0], *parts[1])
    >>> bool(abs(out - attention(x, x, x)).max() < 1e-14)
    True
    """
    merged: Tuple[Array, Array] = _core.merge(out, lse, out2, lse2)
    return merged


@near_words
def batch_dot(
    a: Numbers,
    b: Numbers,
    transpose_a: bool = False,
    transpose_b: bool = False,
    *,
    threads: Optional[int] = None,
) -> Array:
    """Batched matrix product: [..,N,L] times [..,L,M] is [..,N,M].

    Args:
        a, b: [..,N,L] and [..,L,M] of one dtype: float64, float32, bfloat16 or float16; leading
            axes broadcast. A list of numbers takes the dtype of the other; two lists are float64.
        transpose_a, transpose_b: whether to swap the last two axes of a or b first.
        threads: as in `attention`.

    Returns:
        [..,N,M], with the dtype and type of a; with those of b if only a is a list.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value.

    >>> import numpy as np
    >>> batch_dot(np.ones((2, 1, 3)), np.ones((2, 5, 3)), transpose_b=True).shape
    (2, 1, 5)
    >>> batch_dot([[1, 2]], [[3], [4]])
    array([[11.]])
    """
    return _core.batch_dot(a, b, transpose_a, transpose_b, threads)
