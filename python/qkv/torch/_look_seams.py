# SPDX-License-Identifier: Apache-2.0
"""Replaces PyTorch's and Transformers' attention functions while a `look` is active.

Each replacement reports the call to the watchers (see _watch) and then makes it unchanged.
"""

import inspect
import sys
from functools import cache, wraps
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch.nn.functional import layer_norm, linear

from ._attention import attention
from ._questions import is_compiling
from ._replaced import set_function
from ._ring_model import RING
from ._torchs import FUNCTION, scripted_as
from ._transformers import _forward as registered
from ._watch import WATCHERS, is_quiet, probe, quiet, running

# The replaced functions, (holder, name, original), and the hooks to remove.
_ORIGINALS: List[Tuple[Any, str, Any]] = []
_HOOKS: List[Any] = []


def install() -> None:
    """Installs all replacements and hooks; must not be called again before remove()."""
    _watch_modules()
    set_function()
    if FUNCTION is not None:  # PyTorch 1.13 has other functions, which are not watched
        _replace(torch.nn.functional, "multi_head_attention_forward", _multi_head)
    _replace(torch, "_native_multi_head_attention", _native_multi_head)
    _replace(torch, "_transformer_encoder_layer_fwd", _native_layer)
    interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    if interface is not None:
        _replace(interface, "get_interface", _get_interface)


def remove() -> None:
    """Restores the original functions and removes the hooks."""
    for holder, name, original in _ORIGINALS:
        setattr(holder, name, original)
    for hook in _HOOKS:
        hook.remove()
    _ORIGINALS.clear()
    _HOOKS.clear()
    set_function()


def _replace(holder: Any, name: str, watched: Callable[[Any], Any]) -> None:
    original = getattr(holder, name, None)
    if original is not None:  # this version of the library may not have the function
        _ORIGINALS.append((holder, name, original))
        setattr(holder, name, _replacement(watched, original))


@cache  # keeps every replacement alive, as scripted_as() requires
def _replacement(watched: Callable[[Any], Any], original: Any) -> Any:
    function = wraps(original)(watched(original))
    scripted_as(function, original)
    return function


# ---- the running modules ------------------------------------------------------------------------


def _watch_modules() -> None:
    """Adds hooks for all modules; a hook on one module would turn off its fast path in torch."""
    hooks = torch.nn.modules.module
    after: Dict[str, Any] = {}
    if "always_call" in inspect.signature(hooks.register_module_forward_hook).parameters:
        after["always_call"] = True  # the hook then also runs after an exception
    _HOOKS.append(hooks.register_module_forward_pre_hook(_entered))
    _HOOKS.append(hooks.register_module_forward_hook(_left, **after))


def _entered(module: torch.nn.Module, inputs: Any) -> None:
    if is_compiling():
        return
    # Every watcher is asked, because knows() also notes modules that cannot be recorded. The list
    # is copied because another thread may change it.
    known = [watcher.knows(module) for watcher in list(WATCHERS)]
    if any(known):
        running().append(module)


def _left(module: torch.nn.Module, inputs: Any, output: Any) -> None:
    if is_compiling():
        return
    modules = running()
    if module in modules:
        while modules.pop() is not module:
            pass


# ---- torch.nn -----------------------------------------------------------------------------------


def _multi_head(original: Any) -> Any:
    signature = inspect.signature(original)

    def called(*arguments: Any, **options: Any) -> Any:
        if is_compiling() or is_quiet() or not running():
            return original(*arguments, **options)
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        if not given.arguments["need_weights"]:
            return original(*arguments, **options)  # this calls a function that is watched
        # With need_weights, is_causal is only a hint: attn_mask has the causal mask.
        alike = {**given.arguments, "need_weights": False, "is_causal": False}
        probe(original, **alike)
        with quiet():
            return original(*arguments, **options)

    return called


def _native_multi_head(original: Any) -> Any:
    def called(*arguments: Any, **options: Any) -> Any:
        if not is_compiling() and running():
            query, _, _, _, heads, weight, bias = arguments[:7]
            mask, kind = _mask_of(arguments, options, 9, 12)
            _native(query, heads, (weight, bias), mask, kind)
        return original(*arguments, **options)

    return called


def _native_layer(original: Any) -> Any:
    def called(*arguments: Any, **options: Any) -> Any:
        if not is_compiling() and running():
            x, width, heads, weight, bias = arguments[:5]
            norm_first, eps, norm_weight, norm_bias = arguments[8:12]
            if norm_first:
                x = layer_norm(x, (width,), norm_weight, norm_bias, eps)
            mask, kind = _mask_of(arguments, options, 18, 19)
            _native(x, heads, (weight, bias), mask, kind)
        return original(*arguments, **options)

    return called


def _mask_of(arguments: Tuple[Any, ...], options: Dict[str, Any], at: int, kind_at: int) -> Any:
    """The mask and its type, which are arguments number `at` and `kind_at`, or options."""
    mask = arguments[at] if len(arguments) > at else options.get("mask")
    return mask, arguments[kind_at] if len(arguments) > kind_at else options.get("mask_type")


def _native(x: torch.Tensor, heads: int, projection: Tuple[Any, Any], mask: Any, kind: Any) -> None:
    """Reports self-attention of torch's fast path, which projects x to q, k and v at once.

    The mask is true where a pair is masked. The fast path converts masks of numbers to booleans:
    every number that is not 0 masks.
    """
    masks: Dict[str, Any] = {}
    if x.is_nested:
        lengths = [entry.size(0) for entry in x.unbind()]
        x = x.to_padded_tensor(0.0)
        # Padding queries get length 0 and attend to no key, since the layer has no such queries.
        rows = torch.arange(x.size(1))
        masks["key_lengths"] = torch.stack([(rows < length) * length for length in lengths])
    if mask is not None:
        hidden = mask.bool()
        if kind == 1:
            masks["padding_mask"] = hidden
        else:  # 0: [Tq,Tk]; 2: [B,H,Tq,Tk]
            masks["mask"] = ~hidden
    modules = running()
    owner = [m for m in modules[-1].children() if getattr(m, "in_proj_weight", 0) is projection[0]]
    modules.extend(owner[:1])  # the attention module, which a layer's fast path does not call
    try:
        q, k, v = linear(x, *projection).chunk(3, -1)
        probe(attention, q, k, v, heads=heads, **masks)
    finally:
        if owner:
            modules.pop()


# ---- Transformers -------------------------------------------------------------------------------


def _get_interface(original: Any) -> Any:
    def called(self: Any, attn_implementation: Any, default: Any) -> Any:
        found = original(self, attn_implementation, default)
        # RING attends to keys of other processes, too.
        if is_compiling() or attn_implementation == RING:
            return found
        return _watched(found, is_eager=found is default)

    return called


_INPUTS = ("module", "query", "key", "value", "attention_mask")


def _watched(function: Any, is_eager: bool) -> Any:
    """Wraps an attention function of Transformers: reports its calls as "qkv" would make them.

    Eager functions are causal only by their masks.
    """

    @wraps(function)
    def called(module: Any, *arguments: Any, **options: Any) -> Any:
        if not running() or is_quiet():
            return function(module, *arguments, **options)
        names = [*_INPUTS, *list(inspect.signature(function).parameters)[len(_INPUTS) :]]
        given = {**dict(zip(names, (module, *arguments))), **options, "dropout": 0.0}
        mask = given.setdefault("attention_mask", None)
        if mask is not None and not isinstance(mask, torch.Tensor):
            raise TypeError(
                f"look: masks of {type(module).__name__} must be tensors, got "
                f"{type(mask).__name__}: choose another attn_implementation"
            )
        if given.get("sinks") is not None:
            given["s_aux"] = given["sinks"]
        if is_eager:
            given["is_causal"] = False
        probe(registered, **given)
        with quiet():
            return function(module, *arguments, **options)

    return called
