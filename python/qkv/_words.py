# SPDX-License-Identifier: Apache-2.0
"""Names in errors: the closest known name for an unknown keyword, and lists of known names."""

import inspect
import re
from difflib import get_close_matches
from functools import wraps
from typing import Any, Callable, Dict, Iterable, Optional, Set, TypeVar, cast

# {an argument's name in another function: the name here, or a phrase that quotes names here}.
_ELSEWHERE = {
    "attn_bias": "bias",
    "attn_mask": "'mask' (bool) or 'bias' (numbers)",
    "attention_mask": "'mask' or 'padding_mask'",
    "axis": "dim",
    "average_attn_weights": "average_weights",
    "block_mask": "mask_mod",
    "dropout_p": "dropout",
    "embed_dim": "width",
    "enable_gqa": "'k' with fewer heads: no option is needed",
    "inv_freq": "rotary_frequencies",
    "is_causal": "causal",
    "kdim": "key_width",
    "key_padding_mask": "padding_mask",
    "key_size": "key_width",
    "logits_soft_cap": "softcap",
    "logit_cap": "softcap",
    "need_weights": "return_weights",
    "output_attentions": "rows",
    "nheads": "heads",
    "num_heads": "heads",
    "p": "dropout",
    "position_ids": "'q_positions' and 'k_positions'",
    "qk_layernorm": "qk_norm",
    "query_size": "query_width",
    "rate": "dropout",
    "return_top": "top",
    "return_weights": "rows",
    "rms_norm_eps": "qk_norm",
    "rope": "rotary",
    "rope_theta": "rotary_base",
    "rotary_dim": "rotary_width",
    "s_aux": "sinks",
    "sliding_window": "window",
    "sm_scale": "scale",
    "softmax_scale": "scale",
    "valid_len": "key_lengths",
    "valid_length": "key_lengths",
    "valid_lens": "key_lengths",
    "vdim": "value_width",
    "window_size": "window",
}

MOST_TEXT = 220  # characters of a message

_F = TypeVar("_F", bound=Callable[..., Any])


def _meant(word: str, known: Set[str]) -> Optional[str]:
    elsewhere = _ELSEWHERE.get(word)
    if elsewhere is not None and elsewhere.lstrip("'").split("'")[0] in known:
        return elsewhere
    near = get_close_matches(word.lower(), sorted(known), n=1)
    return near[0] if near else None


def with_names(start: str, names: Iterable[str]) -> str:
    """`start` and the names, as many as a message has room for, and the number of the others."""
    known, text = sorted(names), start
    for shown in range(len(known), 0, -1):
        rest = f" and {len(known) - shown} more" if shown < len(known) else ""
        text = start + ", ".join(known[:shown]) + rest
        if len(text) <= MOST_TEXT:
            break
    return text


def on_one_line(name: str) -> str:
    """A name for use in messages: unprintable characters are escaped as in a Python literal."""
    return name if name.isprintable() else repr(name)[1:-1]


def unknown_keyword(function: str, word: str, known: Set[str]) -> TypeError:
    """The error for an unknown keyword, worded as in Python 3.13."""
    meant = _meant(word, known)
    quoted = meant if meant and meant.startswith("'") else f"'{meant}'"
    hint = f". Did you mean {quoted}?" if meant else ""
    word = on_one_line(word)
    return TypeError(f"{function}() got an unexpected keyword argument '{word}'{hint}")


def near_words(function: _F) -> _F:
    """A decorator whose errors for an unknown keyword suggest the closest known one.

    In errors, a method of an internal base class has the name of its object's class.
    """
    known = {name for name in inspect.signature(function).parameters if name != "self"}

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            text, name = str(error), function.__qualname__
            if name.startswith("_") and args:
                name = f"{type(args[0]).__name__}.{function.__name__}"
            unknown = [word for word in options if word not in known]
            if unknown:
                raise unknown_keyword(name, unknown[0], known) from None
            start = f"{function.__qualname__}()"
            if name == function.__qualname__ or not text.startswith(start):
                raise
            raise TypeError(f"{name}()" + text[len(start) :]) from None

    return cast(_F, call)


def in_words_of(error: Exception, function: str, names: Dict[str, str]) -> Exception:
    """An error of `attention` as an error of another function; `names` maps names of arguments."""
    start, text = "attention: ", str(error)
    if not text.startswith(start):
        return error
    every = "|".join(re.escape(name) for name in names)
    if not names:
        return type(error)(f"{function}: {text[len(start) :]}")
    found = re.compile(rf"(?<![\w\"])(?:{every})(?![\w\"])")
    return type(error)(f"{function}: " + found.sub(lambda name: names[name[0]], text[len(start) :]))
