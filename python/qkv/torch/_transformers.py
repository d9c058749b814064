# SPDX-License-Identifier: Apache-2.0
"""The attention function and the registration of "qkv" for Hugging Face Transformers."""

import sys
from importlib import import_module
from typing import Any, Dict, Optional, Tuple

import torch

from ._dropout import attend
from ._flex import of_block_mask
from ._sdpa import attend_bare
from ._transformers_classes import is_masked_as_eager, make_mask, sees_all, watch_models

# The oldest version that passed the tests; in 5.18, T5 may silently run another implementation.
OLDEST = (5, 20)
_NAME = "qkv"

# Transformers' context variable for the outputs that the current model call records. Its name is
# not public; without it, models that pass on output_attentions still work. register() looks it up,
# because torch.compile cannot trace an import.
_RECORDER: Any = None

# Options that change the result of a single query.
_ALTERING = ("softcap", "s_aux", "sinks", "position_bias")

# Options that _forward() computes.
_COMPUTED = (*_ALTERING, "is_causal", "sliding_window", "output_attentions")

# Options that do not change the result, grouped by the reason.
_UNUSED = frozenset(
    (
        # Options for other outputs of the model and for its loss.
        "output_hidden_states",
        "output_router_logits",
        "logits_to_keep",
        "num_items_in_batch",
        "return_dict",
        # Inputs of the model, from which it makes embeddings, masks and losses outside attention.
        "input_ids",
        "token_type_ids",
        "mm_token_type_ids",
        "moe_mm_token_type_ids",
        "grid_thw",
        "image_grid_thw",
        "video_grid_thw",
        "labels",
        "shift_labels",
        # Options for rotary embeddings and caches, which the model applies before attention.
        "position_ids",
        "position_embeddings",
        "use_cache",
        "cache_position",
        # Options for FlashAttention only.
        "max_length_q",
        "max_length_k",
        "cu_seq_lens_k",
        "deterministic",
    )
)

# With "eager", the returned weights of these classes are computed without the sinks, but the output
# with them. The call of attention does not show this.
_WEIGHTS_WITHOUT_SINKS = ("GraniteSWAAttention", "GraniteMoeSWAAttention")

# Options that separate sequences packed in one row; qkv needs a mask from position_ids instead.
_PACKED = ("cu_seq_lens_q", "seq_idx")


def register() -> None:
    """Registers attn_implementation="qkv" with Hugging Face Transformers.

    Models can then be made by `AutoModel.from_pretrained(name, attn_implementation="qkv")`, or
    changed by `model.set_attn_implementation("qkv")`. Further calls of `register` are allowed.

    Returns:
        None.

    Raises:
        ImportError: the package transformers is missing or too old; the message names the oldest
            version that works.
    """
    needed = "register: the package transformers {}.{} or newer must be installed, ".format(*OLDEST)
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"{needed}there is none ({error})") from error
    version = transformers.__version__
    if tuple(int(number) for number in version.split(".")[:2]) < OLDEST:
        raise ImportError(f"{needed}this is {version}")
    global _RECORDER
    _RECORDER = getattr(
        import_module("transformers.utils.output_capturing"), "_active_collector", None
    )
    transformers.AttentionInterface.register(_NAME, _forward)
    transformers.AttentionMaskInterface.register(_NAME, make_mask)
    watch_models()


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    **options: Any,
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """The function that models call: query [B,H,Tq,D], key [B,G,Tk,D], value [B,G,Tk,E].

    attention_mask is None, a tensor, or a BlockMask.

    The function supports the options is_causal, sliding_window, softcap, s_aux or sinks,
    position_bias and output_attentions. It ignores options in _UNUSED; any other raises an error.

    Returns:
        out [B,Tq,H,E], and the weights [B,H,Tq,Tk] or None.
    """
    refuse_unknown(module, attention_mask, options, _NAME)
    in_blocks = _is_block_mask(attention_mask)
    if attention_mask is not None and not in_blocks and sees_all(attention_mask):
        attention_mask, options["is_causal"] = None, False
    wanted = wants_weights(module, options)
    is_single = query.size(2) == 1
    if (
        is_single
        and not in_blocks
        and not (wanted or any(options.get(x) is not None for x in _ALTERING))
    ):
        bare = attend_bare(query, key, value, attention_mask, dropout, False, scaling, True)
        if bare is not None:  # a single query attends to all keys that the mask allows
            return bare.transpose(1, 2), None
    if in_blocks:
        further = _masks_of_blocks(query, key, attention_mask, options)
    else:
        further = _masks(module, query, attention_mask, options)
    if options.get("softcap"):
        further["softcap"] = options["softcap"]
    if options.get("s_aux") is not None:
        further["sinks"] = options["s_aux"]
    if options.get("sinks") is not None:
        return _with_sinks((query, key, value), options["sinks"], dropout, wanted, scaling, further)
    if wanted and "sinks" in further and type(module).__name__ in _WEIGHTS_WITHOUT_SINKS:
        return _with_weights_without_sinks(module, (query, key, value), dropout, scaling, further)
    if is_single:  # with Tq = 1 both layouts are the same memory: one transpose instead of three
        out, weights = attend((query, key, value), dropout, wanted, scale=scaling, **further)
        return out.transpose(1, 2), weights
    rows = (query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    return attend(rows, dropout, wanted, layout="bthd", scale=scaling, **further)


def wants_weights(module: torch.nn.Module, options: Dict[str, Any]) -> bool:
    """Whether the model returns weights, also if it does not pass on output_attentions."""
    if options.get("output_attentions"):
        return True
    # The names of the outputs that the current model call records, the only sign that GPT-2 gives.
    recorded = None if _RECORDER is None else _RECORDER.get()
    if recorded is not None:  # avoids reading the configuration, which is slow
        return any("attentions" in name for name in recorded)
    return bool(getattr(getattr(module, "config", None), "output_attentions", False))


def refuse_unknown(
    module: torch.nn.Module, attention_mask: Any, options: Dict[str, Any], implementation: str
) -> None:
    """Raises ValueError for an option, not None or False, that would have no effect."""
    for name, value in options.items():
        if name in _COMPUTED or name in _UNUSED or value is None or value is False:
            continue
        rule = "which these kernels do not compute"
        if name in _PACKED:
            if attention_mask is not None or (name == "cu_seq_lens_q" and value.numel() <= 2):
                continue
            rule = (
                "but no mask that separates the sequences (give position_ids and use_cache=False)"
            )
        raise ValueError(
            f'attn_implementation="{implementation}": {type(module).__name__} passes {name} to '
            "attention, " + rule
        )


def is_causal(module: torch.nn.Module, options: Dict[str, Any]) -> bool:
    """Whether, without a mask, a query attends only to itself and the keys before it."""
    causal = options.get("is_causal")
    if causal is not None:
        return bool(causal)
    if is_masked_as_eager(getattr(module, "config", None)):
        return False  # the causality of such a model is always in its mask
    causal = getattr(module, "is_causal", None)
    if causal is None:
        raise ValueError(
            f'attn_implementation="{_NAME}": {type(module).__name__} passes no mask and does not '
            "say whether it is causal (by is_causal, an option or an attribute)"
        )
    return bool(causal)


def _masks(
    module: torch.nn.Module,
    query: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    options: Dict[str, Any],
) -> Dict[str, Any]:
    """The options of `attention` for the mask, the position bias, causality and the window."""
    masks: Dict[str, Any] = {}
    bias = options.get("position_bias")
    if attention_mask is None:
        causal = query.size(2) > 1 and is_causal(module, options)
        # Transformers omits a mask only if a single query attends to all keys, or if the first
        # query attends only to the first key: keys past the last query are unused slots of a
        # static cache.
        if causal:
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


def _is_block_mask(mask: Any) -> bool:
    """Whether a mask is a BlockMask, as models pass on to "flex_attention"."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    return not (mask is None or isinstance(mask, torch.Tensor)) and (
        flex is not None and isinstance(mask, flex.BlockMask)
    )


def _masks_of_blocks(
    query: torch.Tensor, key: torch.Tensor, block_mask: Any, options: Dict[str, Any]
) -> Dict[str, Any]:
    """The options of `attention` for a BlockMask, which is the whole mask, and position bias."""
    word = f'attn_implementation="{_NAME}"'
    if options.get("sinks") is not None:
        raise ValueError(f"{word}: the model passes sinks to attention, which take no BlockMask")
    masks = of_block_mask(word, block_mask, query, key)
    if options.get("position_bias") is not None:
        masks["bias"] = options["position_bias"].to(query.dtype)
    return masks


def _with_sinks(
    inputs: Tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    sinks: torch.Tensor,
    dropout: float,
    wanted: bool,
    scaling: Optional[float],
    further: Dict[str, Any],
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Attention with sinks: one more logit for each query, [B,H,Tq,1], whose value is zero.

    A key of zeros is appended; its score is zero, and the logit is added to it as a bias.
    """
    query, key, value = inputs
    queries, keys = query.size(2), key.size(2)
    bias = query.new_zeros(queries, keys)
    if further.pop("causal", None) is not None:
        places = (torch.arange(n, device=query.device) for n in (queries, keys))
        distance = next(places)[:, None] - next(places)
        window = further.pop("window", (queries, 0))[0]
        bias = bias.masked_fill((distance < 0) | (distance > window), -torch.inf)
    if "bias" in further:
        bias = bias + further["bias"]
    if "mask" in further:
        bias = bias.masked_fill(~further.pop("mask"), -torch.inf)
    shape = (*sinks.shape[:-1], keys)
    further["bias"] = torch.cat([bias.expand(shape), sinks.to(bias.dtype)], -1)
    padded = tuple(torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
    rows = tuple(x.transpose(1, 2) for x in (query, *padded))
    out, weights = attend(
        (rows[0], rows[1], rows[2]), dropout, wanted, layout="bthd", scale=scaling, **further
    )
    return out, None if weights is None else weights[..., :-1]


def _with_weights_without_sinks(
    module: torch.nn.Module,
    inputs: Tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    dropout: float,
    scaling: Optional[float],
    further: Dict[str, Any],
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """The output computed with sinks, [B,Tq,H,E], and the weights computed without them."""
    if dropout > 0:  # the two calls would have to drop the same weights
        raise ValueError(
            f'attn_implementation="{_NAME}": {type(module).__name__} returns no weights with '
            f"dropout, got {dropout}"
        )
    out, _ = attend(inputs, 0.0, False, scale=scaling, **further)
    del further["sinks"]
    return out.transpose(1, 2), attend(inputs, 0.0, True, scale=scaling, **further)[1]
