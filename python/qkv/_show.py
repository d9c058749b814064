# SPDX-License-Identifier: Apache-2.0
"""`show`: pictures of attention from Python, with the options of `qkv view`."""

import operator
import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar, Union

import numpy as np

from ._functions import attention
from ._masked import unmasked
from ._picture import BFLOAT16, Picture, Row, Steps
from ._results import Results, call_of
from ._words import near_words

Array = Any
Tokens = Union[Sequence[str], Sequence[Sequence[str]]]
Indices = Union[None, str, int, Sequence[int], range, slice]

_F = TypeVar("_F", bound=Callable[..., Any])

# The values of each option that selects one of several, in the order of `qkv view --help`.
CHOICES: Dict[str, Tuple[str, ...]] = {
    "scale": ("linear", "sqrt", "log"),
    "range": ("row", "head", "all"),
    "colours": ("blue", "grey", "viridis", "cividis", "red-blue"),
    "notes": ("under", "aside"),
    "cell_titles": ("auto", "always", "never"),
    "reduce": ("mean-heads", "max-heads", "mean-layers", "max-layers"),
}

# The meaning of the axes before queries and keys, by their number.
_ORDERS = ("", "heads", "examples,heads", "examples,layers,heads")
_AXES = ("examples", "layers", "heads")

# A list of indices from 0, as the program takes it.
_INDICES = re.compile(r"all|\d+(-\d+)?(,\d+(-\d+)?)*")

# {result that can be drawn: the quantity that it holds}; of several results, the first is drawn.
_DRAWN = {
    "weights": "weight",
    "dropped_weights": "weight",
    "pooled": "weight",
    "scores": "score",
    "raw_scores": "score",
    "capped_scores": "score",
    "masked_scores": "score",
}


def _called(name: str) -> Callable[[_F], _F]:
    """A decorator that sets the function's name in messages."""

    def rename(function: _F) -> _F:
        function.__qualname__ = name
        return function

    return rename


class _Show:
    @near_words
    @_called("show")
    def __call__(
        self,
        weights: Any,
        queries: Union[Tokens, Indices] = None,
        keys: Union[Tokens, Indices] = None,
        *,
        mask: Optional[Array] = None,
        quantity: Optional[str] = None,
        order: Union[None, str, Sequence[str]] = None,
        minus: Any = None,
        title: Optional[str] = None,
        axes: Optional[Sequence[str]] = None,
        example: Optional[int] = None,
        layers: Indices = None,
        heads: Indices = None,
        rows: Indices = None,
        columns: Indices = None,
        tokens: Indices = None,
        hide_special: bool = False,
        keep: Union[str, Sequence[str]] = (),
        reduce: Union[str, Sequence[str]] = (),
        scale: str = "linear",
        range: str = "all",
        min: Optional[float] = None,
        max: Optional[float] = None,
        colours: Optional[str] = None,
        font: Optional[str] = None,
        notes: str = "under",
        cell_titles: str = "auto",
    ) -> Picture:
        """Draws attention weights: in a notebook a picture, printed a map of characters.

        Letters: B examples, L layers, H heads, Tq queries, Tk keys. Rows are queries.

        Args:
            weights: an array [Tq,Tk], [H,Tq,Tk], [B,H,Tq,Tk] (as `qkv.attention` returns them) or
                [B,L,H,Tq,Tk], of NumPy, PyTorch or any library that NumPy reads; a list of one
                such array for each layer, such as `output_attentions` of Transformers; the results
                of a call with `return_weights`, `return_scores` or `return_pooled`; a record of
                `qkv.torch.look`; or a translation.
            queries, keys: the tokens, [Tq] and [Tk], or one such list for each example. Where
                there are as many queries as keys, the tokens of the keys serve both. Or, as
                `--queries` and `--keys` of `qkv view`, the indices to show: 3, [0, 2],
                range(8), slice(-8, None) or "0,2-5".
            mask: bool or integers that broadcast to the weights: 0 is masked, and drawn hatched. If
                `weights` are results of a call, the default is what that call masked.
            quantity: the name of the numbers, which is written at the colours: "weight" (the
                default for arrays), "score" or another. Only for weights, a note tells of rows that
                do not sum to 1.
            order: the axes before Tq and Tk, such as "layers,heads". By default a single axis is
                "heads", for results of a call without heads "examples".
            minus: weights of the same shape to subtract; the picture shows the difference.
            title: the text above the picture.
            axes: the names of the rows and of the columns.
            example: the index of the example to show; by default the first that is not empty.
            layers, heads: which to show: an index, several, or "all". By default all, or where
                these are more than 12 maps, 12 heads of the first layer; a note says so.
            rows, columns: the indices of the queries and keys to show, where `queries` and `keys`
                are their tokens.
            tokens: the indices of the tokens to show, both as queries and as keys.
            hide_special: whether to hide [CLS], </s>, <pad> and the like.
            keep: special tokens that hide_special does not hide.
            reduce: "mean-heads", "max-heads", "mean-layers" or "max-layers", or several in order.
            scale: how numbers map to colours: "linear", "sqrt", or "log" over four decades.
            range: which numbers share a range of colours: those of each "row", of each "head", or
                "all".
            min, max: the numbers at the ends of the range "all"; by default 0 and the largest
                shown. min is for pictures, not for pages (`.html`).
            colours: "blue", "grey", "viridis", "cividis" or "red-blue", which is centred at 0.
            font: the font of `.svg`, `.png` and `.pdf`.
            notes: "under" the picture, or "aside": only in the SVG's description.
            cell_titles: whether browsers show the number under the pointer: "auto" (up to 20,000
                cells), "always" or "never".

        Returns:
            A `Picture`, which notebooks draw; `.save("x.svg")` writes it, also as `.png`, `.pdf`,
            `.html`, `.npz` and other formats.

        Raises:
            ValueError, TypeError: an invalid argument; the message names it.

        >>> import numpy as np, qkv
        >>> qkv.show(np.eye(3), keys=["a", "b", "c"], title="a title").text().split()[:5]
        ['a', 'title', 'a', 'b', 'c']
        """
        queries, name_of_rows, rows = _tokens_or_indices("queries", queries, "rows", rows)
        keys, name_of_columns, columns = _tokens_or_indices("keys", keys, "columns", columns)
        maps = _maps("weights", weights, quantity, order, queries, keys)
        arrays, shape = dict(maps.arrays), maps.shape
        sizes = _sizes(shape, maps.order)
        if mask is not None:
            arrays["mask"] = _mask(mask, shape)
        options = [
            *_order_option(maps.order),
            *_text_option("title", title),
            *_axes_option(axes),
            *_example_option(example, sizes["examples"]),
            *_indices_option("layers", layers, sizes["layers"]),
            *_indices_option("heads", heads, sizes["heads"]),
            *_indices_option(name_of_rows, rows, None if "rows" in arrays else shape[-2]),
            *_indices_option(name_of_columns, columns, shape[-1]),
            *_indices_option("tokens", tokens, shape[-1]),
            *(["--hide-special"] if _flag("hide_special", hide_special) else []),
            *(f"--keep={_checked('keep', one)}" for one in _texts("keep", keep)),
            *(f"--reduce={one}" for one in _chosen("reduce", _texts("reduce", reduce))),
            *_choice_option("scale", scale),
            *_choice_option("range", range),
            *_end_option("min", min),
            *_end_option("max", max),
            *_choice_option("colours", colours),
            *_text_option("font", font),
            *_choice_option("notes", notes),
            *_choice_option("cell_titles", cell_titles),
        ]
        if hide_special and not ("src" in arrays or "tgt" in arrays):
            raise ValueError("show: hide_special needs tokens: queries and keys were not given")
        if min is not None and max is not None and min >= max:
            raise ValueError(f"show: min must be below max = {max!r}, got {min!r}")
        other: Optional[Dict[str, Any]] = None
        if minus is not None:
            other = {n: x for n, x in arrays.items() if n in ("src", "tgt", "mask")}
            other.update(_maps("minus", minus, maps.quantity, order, None, None).arrays)
            if other["attn"].shape != shape:
                raise ValueError(
                    f"show: minus must have the shape of the weights, {list(shape)}, got "
                    f"{list(other['attn'].shape)}"
                )
        names = {"queries": name_of_rows, "keys": name_of_columns}
        return Picture(arrays, options, other, names)

    __doc__ = __call__.__doc__

    @near_words
    @_called("show.steps")
    def steps(
        self,
        q: Array,
        k: Array,
        v: Array,
        queries: Optional[Sequence[str]] = None,
        keys: Optional[Sequence[str]] = None,
        *,
        score: str = "scaled_dot",
        params: Optional[Dict[str, Array]] = None,
        scale: Optional[float] = None,
        softcap: float = 0.0,
        mask: Optional[Array] = None,
        bias: Optional[Array] = None,
        causal: Union[bool, str] = False,
    ) -> Steps:
        """Draws the three steps of one call of attention side by side.

        Energies are the scores of all query-key pairs before the softmax, weights are the softmax
        of each row of energies, and the output is each query's weighted sum of the values.

        Args:
            q, k, v: one head's arrays [Tq,D], [Tk,D] and [Tk,E].
            queries, keys: the tokens, [Tq] and [Tk].
            score, params, scale, softcap, mask, bias, causal: as in `qkv.attention`.

        Returns:
            `Steps` with the pictures `energies`, `weights` and `output`; `.save` writes them as one
            `.svg`, `.png` or `.pdf`.

        Raises:
            ValueError, TypeError: an invalid argument; the message names it.

        >>> import numpy as np, qkv
        >>> steps = qkv.show.steps(np.eye(2), np.eye(2), np.ones((2, 3)), keys=["a", "b"])
        >>> [part.text(40).splitlines()[0] for part in (steps.energies, steps.weights)]
        ['energies', 'weights']
        """
        q, k, v = (_numbers(name, x, "show.steps") for name, x in (("q", q), ("k", k), ("v", v)))
        for name, one in (("q", q), ("k", k), ("v", v)):
            if one.ndim != 2:
                raise ValueError(
                    f"show.steps: {name} must be one head's array with 2 axes, got shape "
                    f"{list(one.shape)}: select an example and a head"
                )
        try:
            found = attention(
                q, k, v, score=score, params=params, scale=scale, softcap=softcap, mask=mask,
                bias=bias, causal=causal, return_weights=True, return_scores=("capped", "masked"),
            )  # fmt: skip
        except (ValueError, TypeError) as error:
            raise type(error)(re.sub("^attention: ", "show.steps: ", str(error))) from None
        masked = np.isneginf(found.masked_scores) & ~np.isneginf(found.capped_scores)
        energies = np.where(masked, found.capped_scores, found.masked_scores)
        allowed = None if not masked.any() else ~masked
        tokens_of_queries = queries
        if queries is None and keys is not None and len(q) == len(k):
            tokens_of_queries = keys
        output = np.asarray(found.out)
        return Steps(
            self(energies, queries, keys, mask=allowed, quantity="score", title="energies",
                 colours="red-blue" if (energies < 0).any() else None),
            self(found.weights, queries, keys, mask=allowed, title="weights"),
            self(output, tokens_of_queries, quantity="output", title="output",
                 axes=("queries", "channels"),
                 colours="red-blue" if (output < 0).any() else None),
        )  # fmt: skip

    def row(self, *pictures: Picture) -> Row:
        """Sets pictures side by side.

        Args:
            pictures: what `show` returned, at least one.

        Returns:
            A `Row`; `.save` writes it as one `.svg`, `.png` or `.pdf`.

        Raises:
            TypeError, ValueError: there is no argument, or one is not a `Picture`.

        >>> import numpy as np, qkv
        >>> row = qkv.show.row(qkv.show(np.eye(2)), qkv.show(np.ones((2, 2)) / 2))
        >>> len(row.pictures)
        2
        """
        if not pictures:
            raise ValueError("show.row: pictures must be one or more, got none")
        for one in pictures:
            if not isinstance(one, Picture):
                kind = type(one).__name__
                raise TypeError(f"show.row: pictures must be those that show returns, got {kind}")
        return Row(pictures)


show = _Show()


# ---- what is drawn ------------------------------------------------------------------------------


class _Maps:
    """Maps to draw: the arrays of an attention file, their quantity, and their leading axes."""

    def __init__(self, arrays: Dict[str, Any], quantity: str, order: str) -> None:
        self.arrays = arrays if quantity == "weight" else {**arrays, "quantity": [quantity]}
        self.quantity = quantity
        self.order = order

    @property
    def shape(self) -> Tuple[int, ...]:
        """The shape of the array that is drawn."""
        shape: Tuple[int, ...] = self.arrays["attn"].shape
        return shape


def _maps(
    name: str, value: Any, quantity: Optional[str], order: Any, queries: Any, keys: Any
) -> _Maps:
    """The maps in a value, with their tokens; `name` is the argument in messages."""
    if hasattr(value, "_attention_arrays_"):
        if order is not None:
            raise ValueError(f"show: order is for arrays, and {name} is a {type(value).__name__}")
        arrays = dict(value._attention_arrays_(queries, keys))
        held = arrays.pop("quantity", ["weight"])[0]
        usual = _ORDERS[arrays["attn"].ndim - 2]
        return _Maps(arrays, _quantity(quantity, held), arrays.pop("order", usual))
    held, allowed = "weight", None
    orders = list(_ORDERS)
    if isinstance(value, Results):
        orders[1], allowed = _axis_before_maps(value), _unmasked(name, value)
        value, held = _drawn(name, value)
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    if is_list and hasattr(value[0], "_attention_arrays_"):
        kind = type(value[0]).__name__
        raise TypeError(
            f"show: {name} must be one {kind}, got a {type(value).__name__} of {len(value)}: show "
            f"one of them, such as {name}[0]"
        )
    if is_list and all(isinstance(one, Results) for one in value):
        orders[1] = _axis_before_maps(value[0])
        allowed = [_unmasked(name, one) for one in value]
        value, kinds = zip(*(_drawn(name, one) for one in value))
        held = kinds[0]
    if is_list and all(len(getattr(one, "shape", ())) >= 2 for one in value):
        array = _stack(name, value)
        usual = ",".join(["layers", *filter(None, [orders[array.ndim - 3]])])
    else:
        array = _numbers(name, value)
        if not 2 <= array.ndim <= 5:
            raise ValueError(
                f"show: {name} must have 2 to 5 axes, [Tq,Tk] with examples, layers and heads "
                f"before them, got shape {list(array.shape)}"
            )
        usual = orders[array.ndim - 2]
    order = _order(order, usual, array)
    arrays, examples = {"attn": array}, _sizes(array.shape, order)["examples"]
    if isinstance(allowed, list):  # of each layer
        every = [np.ones(array.shape[1:], bool) if one is None else one for one in allowed]
        allowed = None if all(one is None for one in allowed) else np.stack(every)
    if allowed is not None:
        arrays["mask"] = allowed
    if is_list and all(_is_bfloat16(one) for one in value) or _is_bfloat16(value):
        arrays[BFLOAT16] = True
    _label(arrays, "tgt", "queries", queries, array.shape[-2], examples)
    _label(arrays, "src", "keys", keys, array.shape[-1], examples)
    return _Maps(arrays, _quantity(quantity, held), order)


def _drawn_field(name: str, results: Results) -> str:
    """The name of the array of a call's results that is drawn."""
    drawn = next((field for field in _DRAWN if field in results._fields), None)
    if drawn is None:
        raise ValueError(
            f"show: {name} must hold weights, scores or pooled weights, and these results have "
            f"{', '.join(results._fields)}; request them by return_weights=True"
        )
    return drawn


def _drawn(name: str, results: Results) -> Tuple[Any, str]:
    """The array of a call's results that is drawn, and its quantity."""
    drawn = _drawn_field(name, results)
    return getattr(results, drawn), _DRAWN[drawn]


def _axis_before_maps(results: Results) -> str:
    """The name of the first axis of results with three axes, such as weights [B,Tq,Tk]."""
    call = call_of(results)
    return "heads" if call is not None and call.has_heads else "examples"


def _unmasked(name: str, results: Results) -> Any:
    """True for each drawn pair that the call did not mask; None if no masked pair is known."""
    call, drawn = call_of(results), _drawn_field(name, results)
    if call is None or not call.masks or drawn == "pooled":
        return None
    after_masks = "scores" if call.stage == "masked" else "masked_scores"
    if after_masks in results._fields:
        allowed = ~np.isneginf(_numbers(name, getattr(results, after_masks)))
        return None if allowed.all() else allowed
    weights = _numbers(name, getattr(results, drawn))
    return unmasked(call, weights.shape, weights if "weights" in drawn else None)


def _stack(name: str, values: Sequence[Any]) -> Any:
    """The arrays of several layers as one; all must have the same shape."""
    arrays = [_numbers(name, one) for one in values]
    first = arrays[0].shape
    for layer, array in enumerate(arrays):
        if array.shape != first:
            raise ValueError(
                f"show: all arrays of {name} must have the same shape, got {list(first)} in layer "
                f"0 and {list(array.shape)} in layer {layer}"
            )
    if arrays[0].ndim > 4:
        raise ValueError(
            f"show: a layer of {name} must have 2 to 4 axes, [examples,] [heads,] queries, keys, "
            f"got shape {list(first)}"
        )
    return np.stack(arrays)


def _numbers(name: str, value: Any, function: str = "show") -> Any:
    """A copy of the value as an array of floats; bfloat16 becomes float32, integers float64."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{function}: {name} must be an array without a mask of its own, got a masked array: "
            "pass its data, and mask=~array.mask"
        )
    if hasattr(value, "detach"):  # a tensor of PyTorch
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    try:
        array = np.array(value)
    except ValueError:  # lists of different lengths
        array = np.array(None)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind in "biu":
        array = array.astype(np.float64)
    if array.dtype.kind in "OUSV":
        kind = type(value).__name__
        raise TypeError(
            f"{function}: {name} must be an array of floats or a list of numbers, got {kind}"
        )
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise TypeError(f"{function}: {name} must be an array of floats, got {array.dtype.name}")
    if array.size == 0:
        raise ValueError(f"{function}: {name} must not be empty, got shape {list(array.shape)}")
    return array


def _is_bfloat16(value: Any) -> bool:
    return str(getattr(value, "dtype", "")) in ("bfloat16", "torch.bfloat16")


def _quantity(quantity: Any, usual: str) -> str:
    if quantity is None:
        return usual
    if not isinstance(quantity, str) or not quantity or not quantity.isprintable():
        raise ValueError(f"show: quantity must be the name of the numbers, got {quantity!r}")
    return quantity


def _order(order: Any, usual: str, array: Any) -> str:
    if order is None:
        return usual
    names = _listed("order", "the names of axes, such as 'layers,heads'", order)
    if any(name not in _AXES for name in names) or len(set(names)) != len(names):
        raise ValueError(
            f"show: order must name axes of {', '.join(_AXES)}, each once, got {order!r}"
        )
    if len(names) != array.ndim - 2:
        raise ValueError(
            f"show: order must name the {array.ndim - 2} axes before queries and keys of shape "
            f"{list(array.shape)}, got {order!r}"
        )
    return ",".join(names)


def _sizes(shape: Tuple[int, ...], order: str) -> Dict[str, int]:
    """The numbers of examples, layers and heads; 1 for an axis that is not there."""
    return {**dict.fromkeys(_AXES, 1), **dict(zip(order.split(","), shape))}


def _label(
    arrays: Dict[str, Any], array: str, name: str, tokens: Any, count: int, examples: int
) -> None:
    """Adds the tokens of an axis to the arrays, [count] or [examples, count]."""
    if tokens is None:
        return
    if isinstance(tokens, (str, bytes)):
        raise TypeError(
            f"show: {name} must be a list of {count} strings, got one text; text.split() makes a "
            "list of its words"
        )
    try:
        every = list(tokens)
    except TypeError:
        kind = type(tokens).__name__
        raise TypeError(
            f"show: {name} must be a list of {count} strings, or indices, got {kind}"
        ) from None
    nested = len(every) > 0 and isinstance(every[0], (list, tuple, np.ndarray))
    lists: List[Any] = [list(one) for one in every] if nested else [every]
    if nested and len(lists) != examples:
        raise ValueError(
            f"show: {name} must be a list of strings for each of {examples} examples, got "
            f"{len(lists)} lists"
        )
    for one in lists:
        others = [type(token).__name__ for token in one if not isinstance(token, str)]
        if others:
            raise TypeError(f"show: {name} must be strings, got one of type {others[0]}")
        if len(one) != count:
            raise ValueError(
                f"show: {name} must have a string for each of {count} {name}, got {len(one)}"
            )
        for token in one:
            if any("\ud800" <= letter <= "\udfff" for letter in token):
                raise ValueError(f"show: {name} must be Unicode text, got {token!r}")
    arrays[array] = np.array(lists if nested else lists[0], dtype=np.str_)


def _mask(mask: Any, shape: Tuple[int, ...]) -> Any:
    if hasattr(mask, "detach"):
        mask = mask.detach().cpu().numpy()
    array = np.array(mask)
    while array.ndim > len(shape) and array.shape[0] == 1:  # [1,1,Tq,Tk] for [Tq,Tk]
        array = array[0]
    if array.dtype.kind not in "biu":
        raise TypeError(
            f"show: mask must be bool or integers, where 0 is masked, got {array.dtype.name}"
        )
    try:
        np.broadcast_shapes(array.shape, shape)
        if np.broadcast_shapes(array.shape, shape) != shape:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"show: mask must broadcast to the weights' shape {list(shape)}, got "
            f"{list(array.shape)}"
        ) from None
    return array


# ---- options, as the program takes them ---------------------------------------------------------


def _order_option(order: str) -> List[str]:
    return [f"--order={order}"] if order not in ("", "heads") else []


def _text_option(name: str, text: Any) -> List[str]:
    if text is None:
        return []
    if not isinstance(text, str):
        raise TypeError(f"show: {name} must be a text, got {type(text).__name__}")
    return [f"--{name}={_checked(name, text)}"]


def _checked(name: str, text: str) -> str:
    """The text, if the program can take it."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"show: {name} must be Unicode text without zeros, got {text!r}")
    return text


def _axes_option(axes: Any) -> List[str]:
    if axes is None:
        return []
    names = [] if isinstance(axes, str) else _listed("axes", "two texts", axes)
    if len(names) != 2 or not all(isinstance(one, str) and one and "," not in one for one in names):
        raise ValueError(
            f"show: axes must be the names of rows and columns, two texts without commas, got "
            f"{axes!r}"
        )
    return [f"--axes={_checked('axes', ','.join(names))}"]


def _example_option(example: Any, count: int) -> List[str]:
    if example is None:
        return []
    return [f"--example={_index('example', example, count)}"]


def _indices_option(name: str, indices: Any, count: Optional[int]) -> List[str]:
    """The option of a list of indices; negative ones count from the end where `count` is known."""
    if indices is None:
        return []
    option = {"rows": "queries", "columns": "keys"}.get(name, name)
    if isinstance(indices, str):
        if not _INDICES.fullmatch(indices):
            raise ValueError(
                f'show: {name} must be indices from 0 such as [0, 2, 3], "0,2-3" or "all", got '
                f"{indices!r}"
            )
        return [f"--{option}={indices}"]
    if isinstance(indices, slice):
        if count is None:
            raise TypeError(f"show: {name} must be a list of indices where only some rows are kept")
        indices = range(*indices.indices(count))
    several = list(indices) if hasattr(indices, "__iter__") else [indices]
    if several and isinstance(several[0], str) and name == "tokens":
        raise TypeError("show: tokens must be indices; the texts of tokens are queries= and keys=")
    if not several:
        raise ValueError(f"show: {name} must have one index or more, got none")
    texts = [str(_index(name, one, count)) for one in several]
    if len(set(texts)) != len(texts):
        raise ValueError(f"show: {name} must name each index once, got {list(several)!r}")
    return [f"--{option}={','.join(texts)}"]


def _index(name: str, value: Any, count: Optional[int]) -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        index = operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"show: an index in {name} must be an integer, got {kind}") from None
    if count is None:
        return index
    if not -count <= index < count:
        raise ValueError(f"show: {name} must be from {-count} to {count - 1}, got {index}")
    return index % count


def _tokens_or_indices(
    name: str, value: Any, selection: str, indices: Indices
) -> Tuple[Optional[Tokens], str, Indices]:
    """The tokens of an axis, the name of the argument with the axis's indices, and the indices."""
    is_list = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)
    first = value[0] if is_list and len(value) > 0 else value
    is_text = isinstance(value, str) and _INDICES.fullmatch(value) is not None
    is_index = isinstance(first, (int, np.integer, range, slice)) and not isinstance(first, bool)
    if not is_text and not is_index:
        return value, selection, indices
    if indices is not None:
        raise ValueError(
            f"show: {name} must be tokens if {selection} has the indices, got {value!r}"
        )
    return None, name, value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"show: {name} must be True or False, got {type(value).__name__}")
    return bool(value)


def _texts(name: str, texts: Any) -> List[str]:
    return [texts] if isinstance(texts, str) else _listed(name, "a text or a list of texts", texts)


def _listed(name: str, what: str, texts: Any) -> List[str]:
    """A list of texts, or the parts of a text between commas; errors say that `what` is needed."""
    if isinstance(texts, str):
        return texts.split(",")
    try:
        several = list(texts)
    except TypeError:
        raise TypeError(f"show: {name} must be {what}, got {type(texts).__name__}") from None
    for one in several:
        if not isinstance(one, str):
            raise TypeError(f"show: {name} must be {what}, got {type(one).__name__} in the list")
    return several


def _chosen(name: str, values: List[str]) -> List[str]:
    for value in values:
        if value not in CHOICES[name]:
            raise ValueError(
                f"show: {name} must be one of {', '.join(CHOICES[name])}, got {value!r}"
            )
    return values


def _choice_option(name: str, value: Any) -> List[str]:
    if value is None:
        return []
    return [f"--{name.replace('_', '-')}={one}" for one in _chosen(name, _texts(name, value))]


def _end_option(name: str, value: Any) -> List[str]:
    """The option of an end of the range of colours: any number for min, one above 0 for max."""
    if value is None:
        return []
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not np.isfinite(value) or (name == "max" and value <= 0):
        above = " above 0" if name == "max" else ""
        raise ValueError(f"show: {name} must be a number{above}, got {value!r}")
    return [f"--{name}={float(value)!r}"]
