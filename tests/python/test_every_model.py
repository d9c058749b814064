# SPDX-License-Identifier: Apache-2.0
"""Tests that all models of Transformers equal eager attention with "qkv", or are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
pytest.importorskip("transformers", reason="register() is for Transformers")

import every_model
import models_page
import torch
import transformers
from scale import SCALE, scaled
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

ALL = list(CONFIG_MAPPING_NAMES)

# Configurations that showed a defect each: lost options, a special case for "sdpa", attention
# that bypasses the interface, tables of classes, masks that are not created.
TELLING = [
    *("deepseek_v32", "glm_moe_dsa", "axk2", "mistral_large4_text", "minimax_m3_vl_text", "hy_v4"),
    *("inkling2_text", "gemma4_text", "nllb-moe", "splinter", "bigbird_pegasus", "pegasus_x"),
    *("bloom", "big_bird", "canine", "convbert", "gpt_neox_japanese", "ibert", "led", "longformer"),
    *("megatron-bert", "mpnet", "mvp", "nystromformer", "rembert", "roformer", "squeezebert"),
    *("tapas", "trocr", "visual_bert", "xglm", "falcon", "gpt_neo", "data2vec-vision", "sam"),
    *("mpt", "deepseek_v4", "granite_swa", "llava_onevision", "maskformer", "lfm3_vl"),
    "phi4_multimodal_vision",
]


def chosen() -> list[str]:
    """All configurations at full scale, else TELLING and about half of scaled(all) others."""
    sample = ALL if SCALE == 100 else ALL[:: 2 * len(ALL) // scaled(len(ALL))]
    return list(dict.fromkeys([n for n in TELLING if n in ALL] + sample))


@pytest.fixture(autouse=True)
def files_as_they_were():
    """Undoes the changes of every_model in the models' files after each test."""
    yield
    every_model.widen_all(torch.float32)


@pytest.mark.parametrize("name", chosen())
def test_models_equal_eager_or_are_refused(name):
    version, states = models_page.written()
    for result in models_page.judged(name):
        assert result.state != "different", f"{result.model}: {result.text}"
        if version == transformers.__version__:
            listed = states.get(name) or states.get(f"{name} {result.model}")
            # The page was made with a time limit, and without packages that may be installed here.
            assert listed in (result.state, "not tried"), (
                f"docs/transformers-models.md has {name} {result.model} as {listed}, "
                f"now it is {result.state}: {result.text}"
            )


def test_the_page_has_every_configuration():
    version, states = models_page.written()
    if version != transformers.__version__:
        pytest.skip(f"the page is for Transformers {version}")
    assert {key.split()[0] for key in states} == set(ALL)
    assert len(states) > 800
    assert set(TELLING) <= set(ALL)  # chosen() leaves out the names that another version lacks


def replaced(monkeypatch, function):
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "qkv", function)


def test_lost_masks_are_seen(monkeypatch):
    called = transformers.AttentionInterface._global_mapping["qkv"]
    (cls, *_) = every_model.classes_of("llama")

    def without_mask(module, q, k, v, mask, **options):
        return called(module, q, k, v, None, **{**options, "is_causal": False})

    assert every_model.judge("llama", cls).state == "equal"
    replaced(monkeypatch, without_mask)
    found = every_model.judge("llama", cls)
    assert found.state == "different" and "forward: " in found.text and "padding: " in found.text


def test_small_numbers_are_compared_relatively():
    small, zero = torch.tensor([1e-8, 2e-8], dtype=torch.float64), torch.tensor([1e-17]).double()
    want = {"small": small, "zero": zero, "large": torch.ones(1, dtype=torch.float64)}
    assert every_model.difference({**want, "zero": -zero}, want) == 0
    got = every_model.difference({**want, "small": small + 2e-12}, want)
    assert got == pytest.approx(1e-4)
    assert every_model.difference({**want, "small": small * 0}, want) == 1


def test_lost_gradients_are_seen(monkeypatch):
    called = transformers.AttentionInterface._global_mapping["qkv"]

    def detached(module, q, k, v, mask, **options):
        return called(module, q, k.detach(), v, mask, **options)

    replaced(monkeypatch, detached)
    found = every_model.judge("bert", every_model.classes_of("bert")[0])
    assert found.state == "different" and found.text.startswith("gradients: ")
