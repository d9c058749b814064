# SPDX-License-Identifier: Apache-2.0
"""`look`: records the attention of a model while the model runs."""

import operator
import re
import threading
from contextlib import ContextDecorator
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import torch

from .._words import near_words
from ._kinds import FLAG, check_kinds
from ._look_names import has_name, with_names_of
from ._look_record import Asked, record
from ._look_seams import install, remove
from ._look_seen import ASKED_BY, Seen, layer_of, layers_that_attended, note_compiled, note_thread
from ._watch import WATCHERS, running

__all__ = ["look"]

Which = Union[str, int, "re.Pattern[str]"]

_LOCK = threading.Lock()


_TOP = 8  # how many of each query's largest weights look(model) records


class _Looker:
    """Records the calls of attention by one model's modules, on the thread that made the looker."""

    def __init__(self, model: torch.nn.Module, layers: Tuple[Which, ...], asked: Asked) -> None:
        self.thread = threading.get_ident()
        self.depth = len(running())  # the number of modules that run already
        self.names = {id(module): name for name, module in model.named_modules()}
        self.layers = layers  # empty for all
        self.asked = asked
        self.seen = Seen()
        self.wanted: Dict[str, bool] = {}  # whether a layer that attended is recorded, by name
        for name, module in model.named_modules():
            if _before_compile(module) is not None or _is_compiled_in_place(module):
                note_compiled(self.seen, name)

    def knows(self, module: torch.nn.Module) -> bool:
        """Whether the module is part of the model and runs on self.thread.

        Notes in self.seen that a module of the model ran compiled or on another thread.
        """
        name = self.names.get(id(module))
        if threading.get_ident() != self.thread:
            if name is not None:
                note_thread(self.seen)
            return False
        if name is None:
            inner = _before_compile(module)
            if inner is not None and id(inner) in self.names:
                note_compiled(self.seen, self.names[id(inner)])
        return name is not None

    def take(self, modules: List[torch.nn.Module], q: Any, k: Any, v: Any, options: Any) -> None:
        """Records a call of attention by the innermost of `modules` that is part of the model."""
        name = next((self.names[id(m)] for m in reversed(modules) if self.knows(m)), None)
        if name is None:
            return
        if name not in self.wanted:
            self.wanted[name] = self._is_wanted(name, layers_that_attended(self.seen))
        layer = layer_of(self.seen, name, self.wanted[name])
        if layer is not None:
            layer.calls.append(record(name, self.asked, q, k, v, options))

    def check_layers(self) -> None:
        """Raises ValueError for an index in `layers` that no layer had, if any layer attended."""
        count = layers_that_attended(self.seen)
        for which in self.layers if count else ():
            if isinstance(which, int) and which >= count:
                rule = f"layers must be below {count}, the number of layers that attended"
                text = f"look: {rule}, got {which}; they are "
                raise ValueError(with_names_of(text, self.wanted))

    def _is_wanted(self, name: str, index: int) -> bool:
        def is_named(which: Which) -> bool:
            if isinstance(which, int):
                return which == index
            return has_name(name, which) if isinstance(which, str) else bool(which.search(name))

        return not self.layers or any(is_named(which) for which in self.layers)


class _Look(ContextDecorator):
    """Makes a looker for each `with`; several threads may enter it, and it may be nested."""

    def __init__(self, model: torch.nn.Module, layers: Tuple[Which, ...], asked: Asked) -> None:
        self._looks_at = (model, layers, asked)
        self._inside: List[_Looker] = []

    def __enter__(self) -> Seen:
        looker = _Looker(*self._looks_at)
        _enter(looker)
        self._inside.append(looker)
        return looker.seen

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"look returns a context manager without {name!r}: write with look(model) as seen, "
            "call the model inside, and read seen"
        )

    def __exit__(self, error: Any = None, *_: Any) -> None:
        if not self._inside:
            raise RuntimeError("look: must be entered before it is left, got __exit__ alone")
        thread = threading.get_ident()
        own = [looker for looker in self._inside if looker.thread == thread]
        looker = (own or self._inside)[-1]  # a generator may be closed by another thread
        self._inside.remove(looker)
        _leave(looker)
        if looker.thread == thread and not any(one.thread == thread for one in WATCHERS):
            del running()[looker.depth :]  # modules that Ctrl-C ended, which hooks do not remove
        if error is None:
            looker.check_layers()


@near_words
def look(
    model: torch.nn.Module,
    *,
    layers: Union[None, Which, Sequence[Which]] = None,
    heads: Optional[Sequence[int]] = None,
    rows: Union[None, Sequence[int], slice] = None,
    top: Optional[int] = None,
    column_sums: Union[bool, Sequence[int], slice] = False,
    entropy: Optional[bool] = None,
    value_sums: bool = False,
    pool: Optional[Tuple[int, int]] = None,
) -> _Look:
    """Records the attention weights of a model, whichever implementation computes them.

    In this context, each call of attention that a module of the model makes is accompanied by a
    second call, which computes the requested results in memory that grows with Tq + Tk. The model's
    own call and its results are unchanged. The calls recorded are those of Transformers' attention
    interface (eager, sdpa, qkv), of torch.nn.MultiheadAttention and the layers made of it (in their
    fast paths, too), of the modules of `qkv.torch.nn`, and of modules that call
    `torch.nn.functional.scaled_dot_product_attention`, `qkv.torch.scaled_dot_product_attention` or
    `qkv.torch.attention`. Code that computes a softmax itself, and compiled code (torch.compile,
    torch.jit), is not recorded.

    Only calls on the thread that entered the context are recorded; other threads may run the model
    at the same time, each with a `look` of its own.

    `look(model)` records, in all layers, each query's 8 largest weights and its entropy.

    Args:
        model: the module that will be called, or one that contains it; it runs on the CPU.
        layers: the layers to record: names ("layers.3" also means "model.layers.3.self_attn"),
            compiled regular expressions to search for in names, or indices in the order in which
            layers first attend; one of these or a list of them. None for all.
        heads: indices of the heads to record; None for all.
        rows: the queries whose weights to keep: indices (negative ones count from the end), or a
            slice. None for no weights.
        top: how many of each query's largest weights to keep, with their keys; weights 0 with keys
            -1 fill the rest if there are fewer. None means 8 if no other result is requested, else
            0.
        column_sums: whether to keep each key's weights summed over all queries; or the indices or a
            slice of the queries to sum over.
        entropy: whether to keep the entropy of every query's weights. None means True if no other
            result is requested, else False.
        value_sums: whether to keep each key's column sum times |v|, the norm of its value. The sums
            are over the queries that column_sums gives, or over all.
        pool: (m, n) to keep the weights pooled in m x n cells, as by return_pooled of
            `qkv.attention`.

    Returns:
        A context manager whose `with` gives a `Seen`, which maps names and indices to layers. A
        layer's results are those of its last call; its `calls` lists every call. Each `with` gives
        a new `Seen`. The context manager may also decorate a function.

    Raises:
        ValueError, TypeError: invalid argument; the message names it, the rule and the value. Rows
            and heads that a call does not have raise the error inside the model's call; indices of
            layers that did not attend raise it when the context ends.

    >>> import torch
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    >>> with look(model, rows=[-1], top=3, column_sums=True) as seen:
    ...     out = model(torch.ones(1, 4, 8))
    >>> seen.names
    ('self_attn',)
    >>> seen["self_attn"].weights.shape, seen[0].top.keys.shape, seen[0].column_sums.shape
    (torch.Size([1, 2, 1, 4]), torch.Size([1, 2, 4, 3]), torch.Size([1, 2, 4]))
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"look: model must be a torch.nn.Module, got {type(model).__name__}")
    check_kinds("look", FLAG, value_sums=value_sums)
    if entropy is not None:
        check_kinds("look", FLAG, entropy=entropy)
    asked = Asked(
        None if heads is None else _indices("heads", heads),
        _rows("rows", rows, "a list of integers or a slice"),
        0 if top is None else _count("top", top),
        _sum_rows(column_sums),
        bool(entropy),
        bool(value_sums),
        _pool(pool),
    )
    if asked.is_nothing():
        asked = asked._replace(top=_TOP if top is None else 0, entropy=entropy is None)
    if asked.is_nothing():
        raise ValueError(f"look: {_results()} must be requested, got none of them")
    return _Look(model, _layers(model, layers), asked)


def _before_compile(module: torch.nn.Module) -> Optional[torch.nn.Module]:
    """The module that torch.compile wrapped in this one, or None."""
    if "_orig_mod" not in module._modules:  # in modules of torch.jit, _modules has no get()
        return None
    return module._modules["_orig_mod"]


def _is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Whether the module was compiled by module.compile()."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _enter(looker: _Looker) -> None:
    with _LOCK:
        WATCHERS.append(looker)
        if len(WATCHERS) == 1:
            install()


def _leave(looker: _Looker) -> None:
    with _LOCK:
        WATCHERS.remove(looker)
        if not WATCHERS:
            remove()


# ---- arguments ----------------------------------------------------------------------------------


def _results() -> str:
    """The names of the arguments that request a result, listed for an error message."""
    *names, last = [asked.split("=")[0] for asked in ASKED_BY.values()]
    return f"{', '.join(names)} or {last}"


def _shown(value: Any) -> str:
    """A value that an argument does not take, for an error."""
    if isinstance(value, slice):
        return repr(value)
    kind = type(value).__name__
    return f"{kind} {value!r}" if isinstance(value, (bool, int, float)) else kind


def _integer(name: str, value: Any, forms: str = "an integer", where: str = "") -> int:
    """The value as an int; for the error, `forms` is what the argument may be."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"look: {name} must be {forms}, got {_shown(value)}{where}") from None


def _indices(name: str, values: Any, forms: str = "a list of integers") -> Tuple[int, ...]:
    try:
        if isinstance(values, (str, bytes)):
            raise TypeError
        every = list(values)
    except TypeError:
        raise TypeError(f"look: {name} must be {forms}, got {_shown(values)}") from None
    return tuple(_integer(name, value, forms, " in the list") for value in every)


def _rows(name: str, rows: Any, forms: str) -> Any:
    if rows is None:
        return None
    if not isinstance(rows, slice):
        return _indices(name, rows, forms)
    try:
        rows.indices(1)
    except (TypeError, ValueError):
        raise TypeError(f"look: {name} must be {forms}, got {_shown(rows)}") from None
    return rows


def _sum_rows(rows: Any) -> Any:
    if isinstance(rows, FLAG):
        return bool(rows)
    return _rows("column_sums", rows, "True, False, a list of integers or a slice")


def _pool(pool: Any) -> Optional[Tuple[int, int]]:
    if pool is None:
        return None
    sizes = _indices("pool", pool, "(m, n), two integers")
    if len(sizes) != 2 or min(sizes) < 1:
        raise ValueError(f"look: pool must be (m, n) of 1 or more each, got {pool!r}")
    return sizes[0], sizes[1]


def _count(name: str, value: Any) -> int:
    count = _integer(name, value)
    if count < 0:
        raise ValueError(f"look: {name} must be 0 or more, got {count}")
    return count


def _layers(model: torch.nn.Module, layers: Any) -> Tuple[Which, ...]:
    """The argument `layers` as a tuple; raises ValueError for names that no module has."""
    if layers is None:
        return ()
    several = list(layers) if isinstance(layers, (list, tuple, range)) else [layers]
    if not several:
        raise ValueError("look: layers must name one or more, or be None for all, got none")
    names = [name for name, _ in model.named_modules()]
    checked: List[Which] = []
    for which in several:
        if isinstance(which, str):
            rule, is_known = "names", any(has_name(name, which) for name in names)
            got = repr(which)
        elif isinstance(which, re.Pattern):
            rule, is_known = "patterns of names", any(which.search(name) for name in names)
            got = repr(which.pattern)
        else:
            which = _integer("layers", which, "names, compiled patterns, indices or a list of them")
            rule, is_known = "indices from 0, or names,", 0 <= which < len(names)
            got = str(which)
        if not is_known:
            text = f"look: layers must be {rule} of the model's modules, got {got}; it has "
            raise ValueError(with_names_of(text, _likely(model)))
        checked.append(which)
    return tuple(checked)


def _likely(model: torch.nn.Module) -> List[str]:
    """Names of modules that have children and "att" in their own name; all names if none do."""
    modules = dict(model.named_modules())
    found = [n for n, m in modules.items() if "att" in n.rpartition(".")[2].lower()]
    return [n for n in found if next(modules[n].children(), None) is not None] or list(modules)
