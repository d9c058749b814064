# SPDX-License-Identifier: Apache-2.0
"""Makes small configurations of any class of Hugging Face Transformers.

There are hundreds of classes, whose fields have similar names. Three ways are tried: all sizes
small; default widths, but few layers and tokens; all defaults. The first of them with which a model
can be made and run is used.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Dict, Iterator, List, Tuple

from transformers import CONFIG_MAPPING
from transformers.configuration_utils import PreTrainedConfig

WORDS = 128  # size of each vocabulary; tokens of the input are below ORDINARY
ORDINARY = 60
HEADS, HEAD, WIDTH, INNER, IMAGE, PATCH = 4, 8, 32, 48, 32, 8  # HEAD: channels of a head

_LAYERS = re.compile(
    r"^(?!.*(?:feat_extract|residual|adapter|lstm|dense|conv|shared|nextn|kv|norm)).*"
    r"(?:num_(?:hidden_|encoder_|decoder_|prediction_)?layers|^n_layers?|^depth|_layers|_depth|num_layer|num_blocks)$"
)
_FEW: List[Tuple[str, int]] = [  # (name of a field, its largest value)
    (r".*vocab_size.*|num_(bpe|wordpiece)_labels", WORDS),
    (r"(max_position_embeddings|n_positions|n_ctx|max_(source|target)_positions|max_seq_len)", 512),
    (r"(num_local_experts|num_experts|n_routed_experts|moe_num_experts|num_routed_experts)", 4),
    (r"(num_experts_per_tok|num_experts_per_token|moe_k|moe_topk|moe_top_k|top_k_experts)", 2),
    (r"(n_group|topk_group|num_expert_group)", 1),
    (r"(n_shared_experts|moe_num_shared_experts|num_shared_experts)", 1),
    (r"(num_queries|num_query_tokens|num_latents|num_denoising)", 8),
    (r"(index_topk|index_topk_blocks)", 4),
    (r"index_n_heads", 2),
    (r"(sliding_window|sliding_window_size|attention_chunk_size)", 4),
    (r"first_k_dense_replace|num_dense_layers", 1),
    (r"max_image_size|max_resolution|max_img_len|encoder_hash_byte_group_vocab", 64),
]
_NARROW: List[Tuple[str, int]] = [
    (
        r"(.*_)?(num_attention_heads|num_heads|n_heads?|attention_heads|num_query_groups"
        r"|num_self_attention_heads|num_cross_attention_heads)",
        HEADS,
    ),
    (r"(.*_)?(num_key_value_heads|num_kv_heads|multi_query_group_num)", 2),
    (r"linear_num_key_heads", 2),
    (r"linear_num_value_heads", 2),
    (r"(.*_)?(qk_head_dim)", 2 * HEAD),
    (
        r"(.*_)?(head_dim|d_kv|v_head_dim|qk_nope_head_dim|qk_rope_head_dim|head_size|dim_head)",
        HEAD,
    ),
    (r"(.*_)?(kv_lora_rank|q_lora_rank|o_lora_rank|rotary_dim)", 8),
    (
        r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|embedding_dim|dim"
        r"|projection_dim|word_embed_proj_dim|d_embed|emb_dim|d_latents|query_dim|output_dim|proj_size)",
        WIDTH,
    ),
    (r"(.*_)?(intermediate_size|ffn_dim|mlp_dim|d_ff|d_inner|n_inner|feedforward_dim)", INNER),
    (r"image_size|pretrain_image_size", IMAGE),
    (r"patch_size", PATCH),
]

_UNSET = {"head_dim": HEAD, "num_key_value_heads": HEADS, "num_experts_per_tok": 2}


def _match(rules: List[Tuple[str, int]], field: str) -> int | None:
    return next((size for name, size in rules if re.fullmatch(name, field)), None)


def _shorter(values: Dict[str, Any]) -> Dict[str, Any]:
    """The fields for two layers, or for one of each of up to four types; cuts lists per layer."""
    more: Dict[str, Any] = {}
    kinds = values.get("layer_types") or values.get("layers_block_type")
    picked = [0, 1]
    if "num_kv_shared_layers" in values and kinds:
        # The last layers take the keys of an earlier layer of their type: two of each type stay.
        firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
        picked = firsts * 2
        more["num_kv_shared_layers"] = len(firsts)
    elif isinstance(kinds, (list, tuple)) and kinds:
        firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
        picked = sorted(set(firsts[:4] + [0, 1][: max(0, 2 - len(firsts))]))
        picked = [n for n in picked if n < len(kinds)]
    counts = {values[f] for f in values if _LAYERS.fullmatch(f) and isinstance(values[f], int)}
    for field, value in values.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and _LAYERS.fullmatch(field) and value > len(picked):
            more[field] = len(picked)
        elif isinstance(value, (list, tuple)) and len(value) in counts and len(value) > len(picked):
            more[field] = [value[n] for n in picked]
        elif field == "depths" and isinstance(value, (list, tuple)):
            more[field] = [1 for _ in value]
    return more


def _small(config: PreTrainedConfig, narrow: bool, taken: List[int]) -> Dict[str, Any]:
    """Arguments of a small configuration; `taken` gets an element for each replaced token id."""
    values = {k: v for k, v in vars(config).items() if not k.startswith("_")}
    more = _shorter(values)
    for field, value in values.items():
        if isinstance(value, PreTrainedConfig):
            more[field] = {
                **_small(value, narrow, taken),
                "model_type": value.model_type,
            }
        elif field == "rope_parameters" and isinstance(value, dict) and narrow:
            more[field] = _rope(value)
        elif isinstance(value, (list, tuple)) and field in ("image_size", "patch_size") and narrow:
            more[field] = [IMAGE if field == "image_size" else PATCH for _ in value]
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if re.fullmatch(r".*token_(id|index)", field) and value >= ORDINARY:
            taken.append(0)
            more[field] = ORDINARY + len(taken) % (WORDS - ORDINARY)
            continue
        size = _match(_FEW, field)
        if size is None and narrow:
            size = _match(_NARROW, field)
        if size is not None and value > size:
            more[field] = size
    for field, size in _UNSET.items():
        if narrow and field in values and values[field] is None:
            more[field] = size
    if "experts_implementation" not in more and any("expert" in field for field in values):
        more["experts_implementation"] = "eager"
    heads, groups = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if narrow and groups is not None and heads == groups:
        more["num_key_value_heads"] = more.get("num_attention_heads", heads)
    # A copy, because configurations write into the dictionaries that they are given.
    return {**more, **(copy.deepcopy(HINTS.get(config.model_type, {})) if narrow else {})}


def _rope(value: Dict[str, Any]) -> Dict[str, Any]:
    small = dict(value)
    for key, inner in value.items():
        if isinstance(inner, dict):
            small[key] = _rope(inner)
    if isinstance(value.get("mrope_section"), (list, tuple)):
        small["mrope_section"] = [2, 1, 1]
    return small


# Fields that no rule can derive, by the name of the configuration.
_SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2]}
_SWIN = {
    "embed_dim": 16,
    "depths": [1, 1, 1, 1],
    "num_heads": [2, 2, 2, 2],
    "window_size": 4,
    "pretrained_window_sizes": [0, 0, 0, 0],
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MROPE = {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}
HINTS: Dict[str, Dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32},
    "autoformer": _SERIES,
    "bamba": {"attn_layer_indices": [1]},
    "bridgetower_vision_model": {"hidden_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 7}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": INNER, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": INNER},
    "donut-swin": _SWIN,
    "dory": {
        "num_hidden_layers": 4,
        "n_input_layers": 1,
        "n_recurrent_layers": 2,
        "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_audio_encoder": {"adapter_input_size": WIDTH},
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]},
        "moe_intermediate_size": [INNER, INNER],
    },
    "esm": {"vocab_size": WORDS, "pad_token_id": 1, "mask_token_id": 4, "token_dropout": False},
    "glm5_next_text": {"index_topk": 16, "head_dim": 0},
    "glm4v_moe_text": {**_MROPE, "head_dim": HEAD},
    "glm4v_text": _MROPE,
    "glm_image_text": _MROPE,
    "granite4_vision": {"deepstack_layer_map": [[0, 0]]},
    "granitemoehybrid": {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "hunyuan_vl_text": {"rope_parameters": {**_ROPE, "mrope_section": [1, 1, 1, 1]}},
    "informer": _SERIES,
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lw_detr_vit": {"image_size": 64, "num_windows": 4, "num_windows_side": 2},
    "mamba2": {"num_heads": 8, "head_dim": HEAD},
    "maskformer-swin": _SWIN,
    "mimi": {"upsample_groups": WIDTH},
    "minimax_m3_vl_text": {
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse"],
        "index_n_heads": 2,
        "index_head_dim": HEAD,
        "index_block_size": 2,
        "index_topk_blocks": 2,
    },
    "mistral4": {"head_dim": 2 * HEAD},
    "moonshine_streaming": {"num_key_value_heads": HEADS},
    "neomme": {"head_dim": 16},
    "pegasus_x": {"block_size": 16},
    "qwen2_5_omni_talker": _MROPE,
    "qwen2_5_omni_text": _MROPE,
    "qwen2_5_vl_text": _MROPE,
    "qwen2_vl_text": _MROPE,
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": INNER},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "sam2_hiera_det_model": {
        "hidden_size": 16,
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 2, 4, 8],
        "blocks_per_stage": [1, 1, 1, 1],
        "window_size_per_stage": [4, 2, 2, 2],
        "global_attention_blocks": [2],
        "image_size": [64, 64],
    },
    "sam2_vision_model": {"backbone_channel_list": [128, 64, 32, 16]},
    "swin": _SWIN,
    "swin2sr": _SWIN,
    "swinv2": _SWIN,
    "time_series_transformer": _SERIES,
    "step3p5": {"sliding_window": 4},
    "vitmatte": {"fusion_hidden_sizes": [16, 16, 16, 16]},
    "wav2vec2-bert": {"feature_projection_input_dim": 160},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 2 * WIDTH,
        "attention_head_dim": 2 * HEAD,
    },
}


def ways(name: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The arguments to try, the smallest first."""
    kind = CONFIG_MAPPING[name]
    default = kind()
    for way, narrow in (("small", True), ("short", False)):
        yield way, _small(default, narrow, [])
    yield "as it is", {}
