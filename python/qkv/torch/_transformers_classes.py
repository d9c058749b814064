# SPDX-License-Identifier: Apache-2.0
"""Decides which model classes of Hugging Face Transformers run with attn_implementation="qkv"."""

import functools
import inspect
import re
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch

_NAME = "qkv"

# The types of configurations whose models get the masks of "eager", which are arrays added to the
# scores. These masks are made even if the module states that it is causal.
_MASKED_AS_EAGER: Set[type] = set()

# The definition of an attention layer, not of an output such as
# ImageClassifierOutputWithNoAttention.
_ATTENTION = re.compile(r"^class (?!\w*Output)\w*Attention\w*\(", re.MULTILINE)
_INTERFACE = re.compile(r"\bALL_ATTENTION_FUNCTIONS\b")
# A look-up in a table of attention classes by the name of the implementation.
_TABLE = re.compile(r"_CLASSES\[\s*(?:self\.)?config\._attn_implementation\s*\]")
# A branch for "sdpa" in which the model omits masks.
_GUARD = re.compile(r"_attn_implementation\s*(?:==|!=|in|not in)[^\n]*[\"']sdpa[\"']")
# A cast of numbers to the mask's dtype, before the two are combined.
_CAST = re.compile(r"\.to\(attention_mask\.dtype\)")


def _files(cls: type) -> Iterator[Any]:
    """The Python modules that define a model class, its base classes, and their layers."""
    from transformers import PreTrainedModel

    for base in cls.__mro__:
        if base is PreTrainedModel or not issubclass(base, PreTrainedModel):
            continue
        file = sys.modules.get(base.__module__)
        if file is None:
            continue
        yield file
        for layer in list(vars(file).values()):
            # Models that are parts of others are judged separately. Layers that all models of
            # Transformers may use, and those of torch, are not judged.
            if inspect.isclass(layer) and issubclass(layer, torch.nn.Module):
                place = layer.__module__
                is_shared = re.match(r"torch\.|transformers\.(?!models\.)", place)
                if not is_shared and not issubclass(layer, PreTrainedModel):
                    yield sys.modules.get(place)


def _sources(cls: type) -> Iterator[str]:
    for file in {id(file): file for file in _files(cls) if file is not None}.values():
        try:
            yield inspect.getsource(file)
        except (OSError, TypeError):  # defined interactively; its base classes may have files
            continue


@functools.cache
def _judged(cls: type) -> Tuple[Optional[str], bool]:
    """Returns why a class cannot run with qkv, or None; and whether it needs eager's masks."""
    files = list(_sources(cls))
    if not files:
        return "has no source file that says how it computes attention", False
    if any(_TABLE.search(file) for file in files):
        return f"takes its attention from a table of classes, which has no {_NAME!r}", False
    calls = any(_INTERFACE.search(file) for file in files)
    if not calls and any(_ATTENTION.search(file) for file in files):
        return "has attention of its own, which does not call the attention interface", False
    if not calls:
        return None, False
    # "sdpa" gets boolean masks, or no mask if module.is_causal suffices. Two kinds of classes may
    # not work with such masks: those that declare support neither for "sdpa" nor for other
    # implementations, and those that declare only the latter and cast numbers to the mask's dtype.
    as_sdpa: bool = cls._supports_sdpa  # type: ignore[attr-defined]
    as_others: bool = cls._supports_attention_backend  # type: ignore[attr-defined]
    ready = as_sdpa or (as_others and not any(_CAST.search(file) for file in files))
    return None, not ready or any(_GUARD.search(file) for file in files)


def check_class(model: Any) -> None:
    """Raises ValueError if a model cannot run with qkv; notes whether it needs eager's masks."""
    cls: type = type(model)
    why, masked_as_eager = _judged(cls)
    if why is not None:
        raise ValueError(
            f'attn_implementation="{_NAME}": {cls.__name__} {why}; use "eager" for it. '
            "Parts of a model are set by a dictionary, such as "
            f'attn_implementation={{"text_config": "{_NAME}"}}'
        )
    if masked_as_eager:
        _MASKED_AS_EAGER.add(type(model.config))


def is_masked_as_eager(config: Any) -> bool:
    """Whether models of this configuration get the masks of "eager"."""
    return type(config) in _MASKED_AS_EAGER


def make_mask(*arguments: Any, **options: Any) -> Any:
    """Makes a boolean mask, true where a query may attend; None if is_causal suffices.

    Configurations that cannot work with boolean masks get those of "eager". If every query attends
    to every key, Transformers would omit the mask. Here it is made, of one element, because the
    module may state that it is causal, as the module for Phi-4's images does.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    if is_masked_as_eager(options.get("config")):
        return eager_mask(*arguments, **options)
    mask = sdpa_mask(*arguments, **options)
    if mask is None and options.get("allow_is_bidirectional_skip"):
        one: Any = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=options.get("device", "cpu"))
        if not torch.compiler.is_compiling():
            one._sees_all = True
        return one.expand(options["batch_size"], 1, options["q_length"], options["kv_length"])
    return mask


def sees_all(mask: torch.Tensor) -> bool:
    """Whether `make_mask` made this mask for queries that attend to every key."""
    if torch.compiler.is_compiling():
        return False  # compiled code treats it as any other mask
    one = mask._base
    return one is not None and getattr(one, "_sees_all", False) and one._version == 0


# ---- where models are made and changed ----------------------------------------------------------


def _asked(config: Any, implementation: Any) -> List[Tuple[Any, Any]]:
    """Each part of a configuration, paired with the implementation that is requested for it.

    In Transformers, a string is for all parts; a dictionary has names of parts, and "" for the
    whole model.
    """
    own = implementation
    if isinstance(implementation, dict):
        own = implementation.get("", config._attn_implementation)
    pairs = [(config, own)]
    for key in config.sub_configs:
        part = getattr(config, key, None)
        if part is not None:
            asked = implementation
            if isinstance(implementation, dict):
                asked = implementation.get(key, part._attn_implementation)
            pairs += _asked(part, asked)
    return pairs


def _check_parts(model: Any, implementation: Any) -> None:
    """Checks the classes of all parts that are to use qkv, before any part is changed."""
    from transformers import PreTrainedModel

    asked: Dict[int, Any] = {id(part): own for part, own in _asked(model.config, implementation)}
    whole = asked[id(model.config)]
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and asked.get(id(part.config), whole) == _NAME:
            check_class(part)


def _checked_when_made(made: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(made)
    def checked(self: Any, requested_attention: Any, *arguments: Any, **options: Any) -> str:
        if requested_attention == _NAME:
            check_class(self)
        return made(self, requested_attention, *arguments, **options)

    return checked


def _checked_when_set(changed: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(changed)
    def checked(self: Any, attn_implementation: Any, *arguments: Any, **options: Any) -> None:
        if _NAME in repr(attn_implementation):
            _check_parts(self, attn_implementation)
        return changed(self, attn_implementation, *arguments, **options)

    return checked


def watch_models() -> None:
    """Makes Transformers check the class of a model that is made with "qkv" or changed to it.

    Transformers itself checks classes only for its own implementations. Repeated calls are allowed.
    """
    from transformers import PreTrainedModel

    wraps: Dict[str, Callable[..., Callable[..., Any]]] = {
        "get_correct_attn_implementation": _checked_when_made,
        "set_attn_implementation": _checked_when_set,
    }
    for name, wrap in wraps.items():
        method: Any = getattr(PreTrainedModel, name)
        if not hasattr(method, "_by_qkv"):
            wrapped: Any = wrap(method)
            wrapped._by_qkv = True
            setattr(PreTrainedModel, name, wrapped)
