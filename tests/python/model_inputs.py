# SPDX-License-Identifier: Apache-2.0
"""Finds inputs for a model of Hugging Face Transformers by the names of its arguments."""

from __future__ import annotations

import inspect
import itertools
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from small_configs import IMAGE, ORDINARY
from transformers.configuration_utils import PreTrainedConfig

F64 = torch.float64
BATCH, LENGTH, PADDED = 2, 9, 2
MOST_TRIED = 48  # the most combinations tried for one set of arguments


def _draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(3))


def _whole(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(3))


def _words(length: int = LENGTH) -> torch.Tensor:
    return _whole(5, ORDINARY, BATCH, length)


def attended(on_the_left: bool, length: int = LENGTH) -> torch.Tensor:
    # An attention mask, 0 at PADDED tokens at one end of the second sequence.
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, slice(0, PADDED) if on_the_left else slice(-PADDED, None)] = 0
    return mask


def _field(config: PreTrainedConfig, names: Tuple[str, ...], default: int) -> int:
    """The first positive integer in these fields of a configuration, then of each of its parts."""
    parts = [config] + [v for v in vars(config).values() if isinstance(v, PreTrainedConfig)]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, (list, tuple)) and value:
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return default


def _images(config: PreTrainedConfig) -> List[torch.Tensor]:
    channels = _field(config, ("num_channels", "in_channels", "in_chans"), 3)
    size = _field(config, ("image_size", "img_size", "input_size"), IMAGE)
    patch = _field(config, ("patch_size",), 8)
    frames = _field(config, ("num_frames", "frames_per_clip", "temporal_patch_size"), 2)
    width = channels * patch * patch
    side = min(size, 256)
    return [
        _draw(BATCH, channels, side, side),
        _draw(BATCH, channels, 64, 64),
        _draw(BATCH, channels, 224, 224),
        _draw(16, width * frames),
        _draw(16, width * 2),
        _draw(16, width),
        _draw(BATCH, 16, width),
        _draw(BATCH, frames, channels, side, side),
        _draw(BATCH, channels, frames, side, side),
        _draw(16, channels, patch, patch),
        _draw(BATCH, 1, channels, side, side),
    ]


def _sounds(config: PreTrainedConfig) -> List[torch.Tensor]:
    bins = _field(
        config, ("num_mel_bins", "feature_size", "input_dim", "input_feat_per_channel"), 80
    )
    positions = _field(config, ("max_source_positions",), 32)
    return [
        _draw(BATCH, bins, 2 * positions),
        _draw(BATCH, 64, bins),
        _draw(BATCH, bins, 64),
        _draw(BATCH, 64, 2 * bins),
        _draw(BATCH, 1, 64, bins),
        _draw(BATCH, 4000),
        _draw(BATCH, 1, 4000),
        _draw(bins, 64),
    ]


def _grid(_: PreTrainedConfig) -> List[torch.Tensor]:
    return [torch.tensor([[1, 4, 4]]), torch.tensor([[4, 4]]), torch.tensor([[1, 4, 4]] * BATCH)]


def _boxes(_: PreTrainedConfig) -> List[torch.Tensor]:
    return [_whole(0, 40, BATCH, LENGTH, 4).sort(-1).values]


def _states(config: PreTrainedConfig) -> List[torch.Tensor]:
    width = _field(config, ("hidden_size", "d_model", "n_embd", "dim", "embed_dim"), 32)
    other = _field(config, ("encoder_hidden_size", "backbone_hidden_size", "hidden_size"), 32)
    return [_draw(BATCH, LENGTH, width), _draw(BATCH, LENGTH, other)]


def _series(config: PreTrainedConfig) -> List[torch.Tensor]:
    length = _field(config, ("context_length",), 32)
    channels = _field(config, ("num_input_channels",), 1)
    lags = getattr(config, "lags_sequence", None)
    if lags:
        return [_draw(BATCH, length + max(lags))]
    return [_draw(BATCH, length, channels), _draw(BATCH, length)]


def _ids(config: PreTrainedConfig) -> List[torch.Tensor]:
    books = _field(config, ("num_codebooks", "num_channels", "num_quantizers", "n_codes_total"), 4)
    return [
        _words(),
        _whole(5, 20, BATCH, LENGTH, books),
        _whole(5, 20, BATCH, books, LENGTH),
        _whole(5, 20, BATCH * books, LENGTH),
        _words(2),
    ]


def _lengths(config: PreTrainedConfig) -> List[torch.Tensor]:
    positions = _field(config, ("max_source_positions",), 32)
    return [torch.ones(BATCH, n, dtype=torch.long) for n in (64, 2 * positions)]


def _one(make_it: Callable[[], torch.Tensor]) -> Callable[[PreTrainedConfig], List[torch.Tensor]]:
    return lambda _: [make_it()]


# The candidates for each argument of `forward`, by its name.
MAKERS: Dict[str, Callable[[PreTrainedConfig], List[Any]]] = {
    "input_ids": _ids,
    "decoder_input_ids": _one(lambda: _words(7)),
    "pixel_values": _images,
    "pixel_values_videos": _images,
    "pixel_values_images": _images,
    "input_features": _sounds,
    "input_values": lambda c: _sounds(c)[5:7] + _sounds(c)[:5] + _series(c),
    "past_values": _series,
    "inputs_embeds": _states,
    "hidden_states": lambda c: _states(c) + [x for x in _images(c) if x.dim() == 2],
    "encoder_hidden_states": _states,
    "bbox": _boxes,
    "image_grid_thw": _grid,
    "grid_thw": _grid,
    "image": _images,
    "query_embeds": _states,
    "query_states": _states,
    "position_embeddings": lambda c: [
        (torch.ones(1, LENGTH, 8, dtype=F64), torch.zeros(1, LENGTH, 8, dtype=F64))
    ],
    "input_features_mask": _lengths,
    "feature_attention_mask": _lengths,
    "states": lambda c: [_draw(BATCH, LENGTH, c.state_dim)],
    "actions": lambda c: [_draw(BATCH, LENGTH, c.act_dim)],
    "returns_to_go": lambda c: [_draw(BATCH, LENGTH, 1)],
    "timesteps": lambda c: [torch.arange(LENGTH).expand(BATCH, -1)],
    "past_time_features": lambda c: [_draw(BATCH, x.shape[1], 1) for x in _series(c)],
    "past_observed_mask": lambda c: [torch.ones_like(x) for x in _series(c)],
}
_TEXT_FIRST = ("input_ids", "decoder_input_ids", "bbox")


def candidates(model: torch.nn.Module) -> Iterator[Dict[str, Any]]:
    """Sets of arguments to try: groups of known arguments, each with several choices of values."""
    names = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    known = [n for n in names if n in MAKERS]
    needed = [n for n, p in names.items() if p.default is p.empty and n in MAKERS]
    config = model.config
    words = [n for n in known if n in _TEXT_FIRST]
    others = [n for n in known if n not in words]
    sets: List[List[str]] = []
    for part in (
        words + [n for n in ("pixel_values", "input_features", "input_values") if n in known],
        words,
        needed,
        [main] + [n for n in ("decoder_input_ids", "image_grid_thw", "grid_thw") if n in known],
        [main] + [n for n in known if n.endswith("_mask")],
        [n for n in known if n not in ("inputs_embeds", "encoder_hidden_states")],
        ["inputs_embeds"] + [n for n in ("encoder_hidden_states",) if n in known],
        ["hidden_states"],
        others,
    ):
        part = [n for n in dict.fromkeys(part + needed) if n in known]
        if part and part not in sets:
            sets.append(part)
    for part in sets:
        choices = itertools.product(*(MAKERS[n](config) for n in part))
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), F64)
        for chosen in itertools.islice(choices, MOST_TRIED):
            yield {
                n: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                for n, x in zip(part, chosen)
            }
