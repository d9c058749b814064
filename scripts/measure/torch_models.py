# SPDX-License-Identifier: Apache-2.0
"""Small models of Hugging Face Transformers with random parameters, for torch_comparison.py."""

from typing import Any, NamedTuple

import torch
import transformers

import qkv.torch

IMPLEMENTATIONS = ("qkv", "eager", "sdpa")
VOCABULARY = 1000


class Case(NamedTuple):
    name: str
    calls: dict[str, Any]  # by implementation


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=8192,
            bos_token_id=1, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def bert():
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
            num_attention_heads=4, max_position_embeddings=512, pad_token_id=0,
        )
    )  # fmt: skip


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=256, n_layer=4, n_head=4, n_positions=2048,
            bos_token_id=1, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def made(make, implementation):
    torch.manual_seed(1)
    model = make()
    model.set_attn_implementation(implementation)
    return model


def training_step(make, tokens, batch, padded, autocast):
    def step_of(implementation):
        model = made(make, implementation).train()
        adam = torch.optim.AdamW(model.parameters(), lr=1e-4)
        words = torch.randint(1, VOCABULARY, (batch, tokens))
        attended = torch.ones_like(words)
        if padded:
            for row in range(batch):
                attended[row, tokens - row * tokens // (2 * batch) :] = 0
        arguments = {"input_ids": words, "labels": words}
        if padded:
            arguments["attention_mask"] = attended

        def step():
            adam.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(**arguments).loss
            loss.backward()
            adam.step()

        return step

    return {name: step_of(name) for name in IMPLEMENTATIONS}


def generation(make, prompt, new, cache):
    def generate_with(implementation):
        model = made(make, implementation).eval()
        words = torch.randint(1, VOCABULARY, (1, prompt))

        def generate():
            model.generate(words, max_new_tokens=new, min_new_tokens=new, do_sample=False,
                           cache_implementation=cache)  # fmt: skip

        return generate

    return {name: generate_with(name) for name in IMPLEMENTATIONS}


def cases():
    qkv.torch.register()
    transformers.logging.set_verbosity_error()
    for name, make, tokens, batch, padded in (
        ("Llama, 8 heads over 2, causal", llama, 512, 4, False),
        ("Llama, 8 heads over 2, causal", llama, 2048, 1, False),
        ("GPT-2, dropout 0.1", gpt2, 512, 4, False),
        ("BERT, padding, dropout 0.1", bert, 512, 4, True),
    ):
        for autocast in (False, True):
            numbers = "bfloat16 autocast" if autocast else "float32"
            yield Case(f"{name}, {batch} x {tokens} tokens, {numbers}: training step",
                       training_step(make, tokens, batch, padded, autocast))  # fmt: skip
    for prompt, new in ((1024, 32), (64, 128)):
        for cache in (None, "static"):
            name = f"Llama, {new} tokens after {prompt}, {cache or 'dynamic'} cache: generate()"
            yield Case(name, generation(llama, prompt, new, cache))
