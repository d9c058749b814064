# SPDX-License-Identifier: Apache-2.0
"""Compares weights that look records in Transformers' models with eager's output_attentions."""

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
pytest.importorskip("transformers", reason="register() is for Transformers")

import transformers  # noqa: E402
from small_models import GENERATORS, LENGTH, MODELS, inputs_for, make, widen  # noqa: E402

import qkv.torch  # noqa: E402

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
ALL = slice(None)
KINDS = ("encoder_attentions", "decoder_attentions", "cross_attentions", "attentions")
WITHOUT_SDPA = ("gemma2", "gpt_oss")
IMPLEMENTATIONS = [
    (name, implementation)
    for name in MODELS
    for implementation in ("eager", "sdpa", "qkv")
    if implementation != "sdpa" or name not in WITHOUT_SDPA
]


def given_to(name):
    inputs = inputs_for(name)
    if name == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"][:, 1:]
    return inputs


def attentions_of(results):
    """The weights of all layers, in the order in which the model computes them."""
    found = {kind: results[kind] for kind in KINDS if results.get(kind)}
    layers = [*found.get("encoder_attentions", ()), *found.get("attentions", ())]
    for pair in zip(found.get("decoder_attentions", ()), found.get("cross_attentions", ())):
        layers += pair
    return layers


@pytest.mark.parametrize(("name", "implementation"), IMPLEMENTATIONS)
def test_weights_are_eagers_and_outputs_unchanged(name, implementation, monkeypatch):
    widen(monkeypatch)
    inputs = given_to(name)
    model = make(name, implementation)
    want = model(**inputs).logits
    with qkv.torch.look(model, rows=ALL, column_sums=True, entropy=True) as seen:
        got = model(**inputs).logits
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    layers = attentions_of(make(name)(**inputs, output_attentions=True))
    assert len(seen) == len(layers) == (6 if name == "t5" else 2)
    real = inputs["attention_mask"].bool()
    for layer, weights in zip(seen, layers):
        rows = real if weights.size(2) == LENGTH else real[:, 1:] | True  # decoder: all rows
        torch.testing.assert_close(
            layer.weights.transpose(1, 2)[rows], weights.transpose(1, 2)[rows], **CLOSE
        )
        torch.testing.assert_close(layer.column_sums, layer.weights.sum(2), **CLOSE)
        entropy = torch.special.entr(layer.weights).sum(-1)
        torch.testing.assert_close(layer.entropy, entropy, **CLOSE)


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "qkv"])
def test_named_rows_of_2048_tokens(implementation):
    model = make("llama", implementation).float()
    words = torch.randint(2, 40, (1, 2048), generator=torch.Generator().manual_seed(0))
    rows = [0, 1, 777, 2046, -1]
    with torch.no_grad():
        with qkv.torch.look(model, rows=rows, heads=[3, 0], top=4) as seen:
            model(words)
        model.set_attn_implementation("eager")
        eager = model(words, output_attentions=True).attentions
    # In float32, implementations round the first layer's output differently, so later layers have
    # other inputs and are not compared. The rounding of scores, which depends on the CPU, changes a
    # weight by some 1e-6.
    same = len(eager) if implementation == "eager" else 1
    for layer, weights in list(zip(seen, eager))[:same]:
        want = weights[:, [3, 0]]
        torch.testing.assert_close(layer.weights, want[:, :, rows], rtol=0, atol=5e-6)
        largest = want.topk(4).values
        torch.testing.assert_close(layer.top.weights, largest, rtol=0, atol=5e-6)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", GENERATORS)
def test_every_step_of_generate(name, cache, monkeypatch):
    widen(monkeypatch)
    inputs = inputs_for(name)
    options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    eager = make(name).generate(
        **inputs, **options, output_attentions=True, return_dict_in_generate=True
    )
    steps = eager.decoder_attentions if name == "t5" else eager.attentions
    chosen = "decoder" if name == "t5" else None
    model = make(name, "qkv")
    with qkv.torch.look(model, rows=[-1], layers=chosen) as seen:
        assert torch.equal(model.generate(**inputs, **options), eager.sequences)
    layers = [layer for layer in seen if "EncDec" not in layer.name]  # not T5's cross-attention
    assert [len(layer.calls) for layer in layers] == [len(steps)] * 2
    for n, layer in enumerate(layers):
        assert torch.equal(layer.weights, layer.calls[len(steps) - 1].weights)
        for step, call in zip(steps, layer.calls):
            assert call.queries == step[n].size(2)
            want = step[n][:, :, -1:]
            Tk = min(call.keys, want.size(-1))  # a static cache has unused slots
            torch.testing.assert_close(call.weights[..., :Tk], want[..., :Tk], **CLOSE)
            assert not call.weights[..., Tk:].any() and not want[..., Tk:].any()


def test_training_with_dropout_is_unchanged():
    model, inputs = make("llama", "qkv", attention_dropout=0.5).train(), inputs_for("llama")
    results = []
    for asked in (None, {"rows": ALL}):
        torch.manual_seed(3)
        model.zero_grad()
        if asked is None:
            model(**inputs).logits.square().sum().backward()
        else:
            with qkv.torch.look(model, **asked) as seen:
                model(**inputs).logits.square().sum().backward()
        results.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *results))
    sums = seen[0].weights.sum(-1)  # the weights are those before dropout
    torch.testing.assert_close(sums[0], torch.ones_like(sums[0]))


def test_names_of_layers():
    model, inputs = make("llama", "sdpa"), inputs_for("llama")
    with qkv.torch.look(model, layers=["layers.1"], top=1) as seen:
        model(**inputs)
    assert seen.names == ("model.layers.1.self_attn",)
    assert seen["layers.1"] is seen["self_attn"] is seen[0]
    message = "got 'layers.2'; it has 'model.layers.0.self_attn', 'model.layers.1.self_attn'$"
    with pytest.raises(ValueError, match=message), qkv.torch.look(model, layers="layers.2", top=1):
        pass


def test_attention_in_a_models_own_code_is_not_recorded():
    sizes = {"vocab_size": 40, "hidden_size": 32, "n_layer": 1, "n_head": 4}
    model = transformers.BloomModel(transformers.BloomConfig(**sizes)).eval()
    with qkv.torch.look(model, top=1) as seen:
        model(inputs_for("gpt2")["input_ids"])
    with pytest.raises(KeyError, match="no layer 'h.0' was recorded; there are none"):
        seen["h.0"]


def eager(module, query, key, value, attention_mask, dropout, scaling):
    return (torch.softmax(query @ key.mT * scaling, -1) @ value).transpose(1, 2), None


class Masked(torch.nn.Module):
    """A module that calls an implementation with arguments by position."""

    is_causal = True

    def forward(self, query, mask, implementation="sdpa"):
        interface = transformers.AttentionInterface()
        function = interface.get_interface(implementation, eager)
        return function(self, query, query, query, mask, 0.0, 0.25)[0]


def test_arguments_by_position_and_other_masks():
    model, query = Masked(), torch.randn(1, 2, 4, 8)
    with qkv.torch.look(model, rows=ALL) as seen:
        model(query, None)
    want = qkv.attention(query, query, None, scale=0.25, causal=True, return_weights=True).weights
    torch.testing.assert_close(seen[0].weights, want)
    with qkv.torch.look(model, rows=ALL) as seen:
        model(query, None, "eager")
    want = qkv.attention(query, query, None, scale=0.25, return_weights=True).weights
    torch.testing.assert_close(seen[0].weights, want)  # without a mask, eager masks nothing
    message = "^look: masks of Masked must be tensors, got str: choose another attn_implementation$"
    with qkv.torch.look(model, rows=ALL), pytest.raises(TypeError, match=message):
        model(query, "a mask")
    # Transformers' own get_interface is back.
    assert "get_interface" in vars(transformers.AttentionInterface)
    name = transformers.AttentionInterface.get_interface.__code__.co_filename
    assert name.endswith("modeling_utils.py")
