# SPDX-License-Identifier: Apache-2.0
"""Makes small models of Hugging Face Transformers, in float64, from their configurations.

Some models compute softmax or norms in float32 whatever their parameters are. `widen` replaces
float32 by float64 in the files of the models, so that eager attention can be compared with qkv to
the precision of float64.
"""

import importlib
import os

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no files are downloaded
transformers = pytest.importorskip("transformers", reason="register() is for Transformers")

import qkv.torch  # noqa: E402

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
qkv.torch.register()

VOCABULARY, LENGTH, WINDOW = 40, 9, 4
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 8}


def _llama(**more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_GROUPED, **more))


def _bert(**more):
    return transformers.BertForMaskedLM(transformers.BertConfig(**_SIZES, **more))


def _gpt2(**more):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, pad_token_id=0, **sizes, **more)
    return transformers.GPT2LMHeadModel(config)


def _gemma2(**more):
    options = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "sliding_window": WINDOW}
    # With tied random embeddings the model would always repeat the last token.
    config = transformers.Gemma2Config(**_GROUPED, **options, tie_word_embeddings=False, **more)
    return transformers.Gemma2ForCausalLM(config)


def _gpt_oss(**more):
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
    config = transformers.GptOssConfig(**_GROUPED, sliding_window=WINDOW, **experts, **more)
    return transformers.GptOssForCausalLM(config)


def _t5(**more):
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(
        vocab_size=VOCABULARY, pad_token_id=0, decoder_start_token_id=0, **sizes, **more
    )
    return transformers.T5ForConditionalGeneration(config)


MODELS = {
    "llama": _llama,
    "bert": _bert,
    "gpt2": _gpt2,
    "gemma2": _gemma2,
    "gpt_oss": _gpt_oss,
    "t5": _t5,
}
GENERATORS = [name for name in MODELS if name != "bert"]


def make(name, implementation="eager", **more):
    """A model in evaluation mode, with parameters large enough for attention to affect results."""
    torch.manual_seed(1)
    model = MODELS[name](**more).double().eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() > 1 or "sinks" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.4)
    model.set_attn_implementation(implementation)
    return model


class _Widened:
    """The module torch, with float64 under the name float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def widen(monkeypatch):
    """Replaces float32 by float64 in the files of the models, until the test ends."""
    for name in MODELS:
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        monkeypatch.setattr(module, "torch", _Widened())


def inputs_for(name):
    """Two sequences, the second padded: on the left for decoders, on the right for encoders."""
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(2, VOCABULARY, (2, LENGTH), generator=generator)
    attended = torch.ones(2, LENGTH, dtype=torch.long)
    padding = slice(-3, None) if name in ("bert", "t5") else slice(0, 3)
    words[1, padding] = attended[1, padding] = 0
    return {"input_ids": words, "attention_mask": attended}
