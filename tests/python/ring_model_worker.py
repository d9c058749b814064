# SPDX-License-Identifier: Apache-2.0
"""One process of a group that divides a model's sequence.

    ring_model_worker.py RANK FILE RESULTS [CASE...]

The processes find each other by FILE. Each runs the given cases, or all of `CASES`, and saves
{case: results} and "faults" to its RESULTS with torch.save.
"""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no files are downloaded
import transformers
from scale import SCALE

import qkv.torch

qkv.torch.register()

RANKS, VOCABULARY, WINDOW = 2, 50, 700
LENGTHS: dict[Any, int] = {"contiguous": 1300, "zigzag": 2048}

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "max_position_embeddings": 4096, "pad_token_id": 0, "sliding_window": WINDOW,
    "attention_dropout": 0.0, "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0,
    "use_sliding_window": True, "max_window_layers": 1, "tie_word_embeddings": False,
    "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 4096, "rotary_pct": 0.5,
    "partial_rotary_factor": 1.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "sliding_window_pattern": 2, "eos_token_id": 1,
    "bos_token_id": 1, "residual_dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip


def make(kind: str, implementation: str = "qkv", seed: int = 1, **more: Any) -> Any:
    """A small model in float64, whose results depend on attention."""
    config_class = type(transformers.AutoConfig.for_model(kind))
    known = vars(config_class())
    given = {name: x for name, x in _SIZES.items() if name in known}
    if "num_experts" in known or "num_local_experts" in known:
        given["experts_implementation"] = "eager"
    config = config_class(**{**given, **more})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).double().train()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or "sinks" in name:
            torch.nn.init.normal_(parameter, std=0.4)
    model.set_attn_implementation(implementation)
    return model


def words(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sequences, and the token after each token; -100, which has no loss, after the last."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, VOCABULARY, (2, length), generator=generator)
    return ids, torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)


def run(model: Any, ids: torch.Tensor, following: torch.Tensor, own: torch.Tensor) -> Any:
    """Logits of the rows `own`, the sum of their losses, and its gradients by parameter name."""
    model.zero_grad()
    given = {"input_ids": ids[:, own], "position_ids": own[None]}
    results = model(**given, labels=ids[:, own], shift_labels=following[:, own],
                    num_items_in_batch=1)  # fmt: skip
    results.loss.backward()
    grads = {name.removeprefix("module."): x.grad.clone()
             for name, x in model.named_parameters() if x.grad is not None}  # fmt: skip
    return {"logits": results.logits.detach(), "loss": results.loss.detach(), **grads}


def whole(kind: str, sharding: Any, **more: Any) -> Any:
    """The results of one process for all rows; dropout uses torch's seed 5."""
    length = LENGTHS[sharding]
    model = make(kind, **more)
    torch.manual_seed(5)
    return run(model, *words(length), torch.arange(length))


def divided(kind: str, sharding: Any, rank: int, way: str = "", **more: Any) -> Any:
    """The results of this process for its rows, whose positions are "own"."""
    length = LENGTHS[sharding]
    model = make(kind, **more)
    qkv.torch.ring_model(model, sharding=sharding)
    own = qkv.torch.ring_positions(length, sharding=sharding)
    if way == "checkpoints":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if way == "data parallel":
        model = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(5 + rank)  # rank 0 draws the dropout seed for all ranks
    return {"own": own, **run(model, *words(length), own)}


def message_of(model: Any, **given: Any) -> str:
    try:
        model(**given)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def faults(rank: int) -> dict[str, str]:
    """Each call's error, or "none": most calls are wrong, and the model still works after them."""
    model = make("llama").eval()
    qkv.torch.ring_model(model)
    ids = words(1300)[0]
    own = qkv.torch.ring_positions(1300)
    good = {"input_ids": ids[:, own], "position_ids": own[None]}
    mask = torch.ones(2, len(own))
    found = {
        "none": message_of(model, input_ids=ids[:, own]),
        "positions": message_of(model, **{**good, "position_ids": own[None] + rank}),
        "from zero": message_of(model.model, **{**good, "position_ids": own[None] - own[0]}),
        "no tokens": message_of(model, position_ids=own[None]),
        "cache": message_of(model, **good, use_cache=True),
        "given cache": message_of(model, **good, past_key_values=transformers.DynamicCache()),
        "labels": message_of(model, **good, labels=ids[:, own]),
        "ones": message_of(model, **good, attention_mask=mask),
        "padding": message_of(model, **good, attention_mask=mask - torch.eye(len(own))[:2]),
        "weights": message_of(model, **good, output_attentions=True),
        "copy": message_of(copy.deepcopy(model), **good),
    }
    try:
        model.generate(ids[:, :5], max_new_tokens=2)
    except (TypeError, ValueError) as error:
        found["generate"] = str(error)
    model.config.is_causal = False
    found["both ways"] = message_of(model, **good)
    model.config.is_causal = True
    found["good"] = message_of(model, **good)
    model.set_attn_implementation("qkv")
    found["changed back"] = message_of(model, input_ids=ids[:, own])
    return found


ALL = qkv.torch._ring_model.TYPES
KINDS = ALL if SCALE >= 50 else ("gemma2", "gpt_oss", "llama")
CASES: dict[str, tuple[str, Any, str, dict[str, Any]]] = {
    **{kind: (kind, "zigzag", "", {}) for kind in KINDS},
    "contiguous": ("gpt_oss", "contiguous", "", {}),
    "checkpoints": ("llama", "zigzag", "checkpoints", {}),
    "data parallel": ("llama", "zigzag", "data parallel", {}),
    "dropout": ("llama", "zigzag", "", {"attention_dropout": 0.3}),
    "dropout, checkpoints": ("llama", "contiguous", "checkpoints", {"attention_dropout": 0.3}),
}


def main() -> None:
    rank = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank,
                            world_size=RANKS)  # fmt: skip
    saved: dict[str, Any] = {"faults": faults(rank)}
    for name in sys.argv[4:] or CASES:
        kind, sharding, way, more = CASES[name]
        saved[name] = divided(kind, sharding, rank, way, **more)
    torch.save(saved, sys.argv[3])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
