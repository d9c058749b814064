# SPDX-License-Identifier: Apache-2.0
"""Attention for the models of Hugging Face Transformers."""

from importlib import import_module
from typing import Any, Dict, Optional, Tuple

import torch

from ._dropout import attend
from ._sdpa import attend_bare

# The oldest version that passed the tests: in 5.18 T5 may run other attention, silently.
OLDEST = (5, 20)
_NAME = "qkv"

# Where Transformers notes what a call of a model records. The name is not public: where it is gone,
# models that pass on output_attentions still work. Found once: torch.compile follows no import.
_RECORDER: Any = None

# Options that change what a single query gives.
_ALTERING = ("softcap", "s_aux", "position_bias")


def register() -> None:
    """Makes attn_implementation="qkv" known to Hugging Face Transformers.

    Models are then made by `AutoModel.from_pretrained(name, attn_implementation="qkv")`, or changed
    by `model.set_attn_implementation("qkv")`. It may be called more than once.

    Returns:
        None.

    Raises:
        ImportError: the package transformers is missing or too old; the message says which is
            needed.
    """
    needed = "register: the package transformers {}.{} or newer must be installed, ".format(*OLDEST)
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"{needed}there is none ({error})") from error
    version = transformers.__version__
    if tuple(int(number) for number in version.split(".")[:2]) < OLDEST:
        raise ImportError(f"{needed}this is {version}")
    from transformers.masking_utils import sdpa_mask

    global _RECORDER
    _RECORDER = getattr(
        import_module("transformers.utils.output_capturing"), "_active_collector", None
    )
    transformers.AttentionInterface.register(_NAME, _forward)
    # Boolean masks, true where a query may attend, and none where is_causal says it all.
    transformers.AttentionMaskInterface.register(_NAME, sdpa_mask)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    **options: Any,
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """What a model calls: query [B,H,Tq,D], key [B,G,Tk,D], value [B,G,Tk,E].

    The options that matter are is_causal, sliding_window, softcap, s_aux (sinks), position_bias and
    output_attentions; models pass others, which are for other implementations.

    Returns:
        out [B,Tq,H,E], and the weights [B,H,Tq,Tk] or None.
    """
    wanted = _wants_weights(module, options)
    is_single = query.size(2) == 1
    if is_single and not (wanted or any(options.get(x) is not None for x in _ALTERING)):
        bare = attend_bare(query, key, value, attention_mask, dropout, False, scaling, True)
        if bare is not None:  # a single query sees all keys that the mask leaves
            return bare.transpose(1, 2), None
    further = _masks(module, query, attention_mask, options)
    if options.get("softcap"):
        further["softcap"] = options["softcap"]
    if options.get("s_aux") is not None:
        further["sinks"] = options["s_aux"]
    if is_single:  # the same memory with either order of axes; one transpose, not three
        out, weights = attend((query, key, value), dropout, wanted, scale=scaling, **further)
        return out.transpose(1, 2), weights
    rows = (query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    return attend(rows, dropout, wanted, layout="bthd", scale=scaling, **further)


def _wants_weights(module: torch.nn.Module, options: Dict[str, Any]) -> bool:
    """Whether the model returns attentions. Not every model passes on output_attentions."""
    if options.get("output_attentions"):
        return True
    # What the call of the model under way records, by name; GPT-2 says it in no other way.
    recorded = None if _RECORDER is None else _RECORDER.get()
    if recorded is not None:  # whoever made this has read the configuration, which takes long
        return any("attentions" in name for name in recorded)
    return bool(getattr(getattr(module, "config", None), "output_attentions", False))


def _masks(
    module: torch.nn.Module,
    query: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    options: Dict[str, Any],
) -> Dict[str, Any]:
    """The options of `attention` for the mask, the bias of positions, causality and the window."""
    masks: Dict[str, Any] = {}
    bias = options.get("position_bias")
    if attention_mask is None:
        causal = options.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        # A mask is left out only if a single query sees all keys, or if the first query sees the
        # first key alone: keys beyond the last query are room in a static cache.
        if causal and query.size(2) > 1:
            masks["causal"] = "top_left"
            if options.get("sliding_window"):
                masks["window"] = (options["sliding_window"] - 1, 0)
    elif attention_mask.dtype == torch.bool:
        masks["mask"] = attention_mask
    else:
        bias = attention_mask if bias is None else bias + attention_mask
    if bias is not None:
        masks["bias"] = bias.to(query.dtype)
    return masks
