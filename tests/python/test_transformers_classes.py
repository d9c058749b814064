# SPDX-License-Identifier: Apache-2.0
"""Tests which classes of Transformers can be made with or changed to "qkv", and its masks."""

import importlib

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
pytest.importorskip("transformers", reason="register() is for Transformers")

import transformers  # noqa: E402
from small_models import make  # noqa: E402

import qkv.torch  # noqa: E402

BLOOM = {"vocab_size": 40, "hidden_size": 32, "n_layer": 1, "n_head": 4}
REFUSED = '^attn_implementation="qkv": BloomForCausalLM has attention of its own, which does not '


def bloom(implementation="eager"):
    config = transformers.BloomConfig(**BLOOM)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)


def test_a_class_without_the_interface_is_not_made(tmp_path):
    with pytest.raises(ValueError, match=REFUSED):
        bloom("qkv")
    bloom().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=REFUSED):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="qkv")


def test_a_class_without_the_interface_is_not_changed():
    model = bloom()
    with pytest.raises(ValueError, match=REFUSED):
        model.set_attn_implementation("qkv")
    with pytest.raises(ValueError, match=REFUSED):
        model.set_attn_implementation({"": "qkv"})
    assert model.config._attn_implementation == "eager"
    model.set_attn_implementation("eager")


def test_a_table_of_classes_is_refused():
    config = transformers.SamVisionConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=32, patch_size=8
    )
    with pytest.raises(ValueError, match="SamVisionModel takes its attention from a table"):
        transformers.SamVisionModel._from_config(config, attn_implementation="qkv")


def of_two_parts():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    encoder = transformers.BertConfig(vocab_size=40, intermediate_size=48, **sizes)
    decoder = transformers.RemBertConfig(vocab_size=40, is_decoder=True, **sizes)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    return transformers.EncoderDecoderModel(config)


def test_parts_are_judged_and_nothing_changes_if_one_is_refused():
    model = of_two_parts()
    before = model.encoder.config._attn_implementation
    with pytest.raises(ValueError, match="RemBert\\w+ has attention of its own"):
        model.set_attn_implementation("qkv")
    assert model.encoder.config._attn_implementation == before
    assert model.config._attn_implementation != "qkv"


def test_a_part_is_changed_by_a_dictionary():
    model = of_two_parts()
    model.set_attn_implementation({"encoder": "qkv"})
    assert model.encoder.config._attn_implementation == "qkv"
    assert model.decoder.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="RemBert\\w+ has attention of its own"):
        model.set_attn_implementation({"decoder": "qkv"})


def test_a_class_derived_from_one_that_calls_the_interface():
    class Mine(transformers.LlamaForCausalLM):
        pass

    model = Mine(make("llama").config)
    model.set_attn_implementation("qkv")
    assert model.config._attn_implementation == "qkv"


def test_a_class_without_a_file():
    kinds = {"config_class": transformers.BertConfig, "__module__": "typed in"}
    Typed = type("Typed", (transformers.PreTrainedModel,), kinds)
    config = transformers.BertConfig()
    config._attn_implementation = "qkv"
    with pytest.raises(ValueError, match="Typed has no source file that says how it computes"):
        Typed(config)


def test_attention_in_a_file_beside_the_model(tmp_path, monkeypatch):
    (tmp_path / "their_layers.py").write_text(
        "import torch\nclass OwnAttention(torch.nn.Module):\n    pass\n"
    )
    (tmp_path / "their_model.py").write_text(
        "import transformers\nfrom their_layers import OwnAttention\n"
        "class Theirs(transformers.PreTrainedModel):\n"
        "    config_class = transformers.BertConfig\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = transformers.BertConfig()
    config._attn_implementation = "qkv"
    with pytest.raises(ValueError, match="Theirs has attention of its own"):
        importlib.import_module("their_model").Theirs(config)


def test_registering_again_wraps_nothing_twice():
    before = transformers.PreTrainedModel.set_attn_implementation
    qkv.torch.register()
    assert transformers.PreTrainedModel.set_attn_implementation is before
    with pytest.raises(ValueError, match="not_there"):
        make("llama").set_attn_implementation("not_there")


def test_other_names_are_transformers_own_matter():
    for name in ("eager", "sdpa"):
        assert make("llama", name).config._attn_implementation == name
    with pytest.raises(ValueError, match="does not support an attention implementation through"):
        bloom("sdpa")


# ---- masks --------------------------------------------------------------------------------------


def masks_of(monkeypatch, model, **inputs):
    """The masks that the attention function gets."""
    called = transformers.AttentionInterface._global_mapping["qkv"]
    masks = []

    def kept(module, query, key, value, mask, *rest, **options):
        masks.append(mask)
        return called(module, query, key, value, mask, *rest, **options)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "qkv", kept)
    model(**inputs)
    return masks


def test_masks_are_left_out_where_the_class_declares_sdpa(monkeypatch):
    words = torch.arange(5, 14)[None]
    assert masks_of(monkeypatch, make("llama", "qkv"), input_ids=words) == [None, None]


def test_a_mask_that_sees_all_is_not_taken_for_a_causal_one(monkeypatch):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.BertConfig(vocab_size=40, intermediate_size=48, **sizes)
    model = transformers.BertModel._from_config(config, attn_implementation="qkv").eval()
    words = torch.arange(5, 14)[None]
    want = model(words)[0]
    (mask,) = masks_of(monkeypatch, model, input_ids=words)
    assert mask.shape == (1, 1, 9, 9) and mask.all() and mask.untyped_storage().nbytes() == 1
    for layer in model.encoder.layer:
        layer.attention.self.is_causal = True  # the module's attribute is wrong
    assert torch.equal(model(words)[0], want)
    # All elements share one byte, so this masks every pair; a mask that a model changes is obeyed.
    mask[0, 0, 0, 0] = False
    called = transformers.AttentionInterface._global_mapping["qkv"]
    inputs = [torch.ones(1, 4, 9, 8)] * 3
    assert not called(model.encoder.layer[0].attention.self, *inputs, mask)[0].any()


def test_masks_are_eagers_where_the_class_declares_nothing(monkeypatch):
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    config = transformers.NllbMoeConfig(
        vocab_size=40, encoder_sparse_step=0, decoder_sparse_step=0, **sizes, **heads
    )
    model = transformers.NllbMoeModel._from_config(config, attn_implementation="qkv").eval()
    words = torch.arange(5, 14)[None]
    inputs = {"input_ids": words, "decoder_input_ids": words}
    encoder, decoder, cross = masks_of(monkeypatch, model, **inputs)
    assert encoder is None and cross is None  # no mask means all keys, as with eager
    future = torch.ones(9, 9).triu(1).bool()
    assert torch.equal(decoder[0, 0] < -1e30, future)
