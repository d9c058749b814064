# SPDX-License-Identifier: Apache-2.0
"""Compares attn_implementation="qkv" with eager in models of Hugging Face Transformers."""

import sys

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
pytest.importorskip("transformers", reason="register() is for Transformers")

import transformers  # noqa: E402
from small_models import GENERATORS, LENGTH, MODELS, WINDOW, inputs_for, make, widen  # noqa: E402

import qkv.torch  # noqa: E402

F64 = torch.float64
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
CALLED = transformers.AttentionInterface()["qkv"]


@pytest.fixture(autouse=True)
def float64_everywhere(monkeypatch):
    widen(monkeypatch)


@pytest.fixture
def calls(monkeypatch):
    """The modules from which the registered function was called."""
    modules = []

    def counted(module, *arguments, **options):
        modules.append(type(module).__name__)
        return CALLED(module, *arguments, **options)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "qkv", counted)
    return modules


def attentions_of(results):
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return {name: results[name] for name in names if results.get(name)}


# ---- outputs and gradients ----------------------------------------------------------------------


def outputs_and_gradients(name, model, padded):
    """The logits without padding, the weights, and all gradients, by name."""
    inputs = inputs_for(name)
    if not padded:
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    real = inputs["attention_mask"].bool()
    if name == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"][:, 1:]
        real = real[:, 1:] | True  # the decoder gets no padding mask
    results = model(**inputs, output_attentions=True)
    logits = results.logits[real]
    weights = attentions_of(results)
    generator = torch.Generator().manual_seed(5)
    loss = (logits * torch.randn(logits.shape, dtype=F64, generator=generator)).sum()
    first = next(iter(weights.values()))[0]
    queries = inputs["attention_mask"].bool()  # in causal models, a padding row attends to no key
    loss = loss + (first.transpose(1, 2)[queries] ** 2).sum()  # the weights get a gradient too
    model.zero_grad()
    loss.backward()
    got = {"logits": logits.detach()}
    for kind, layers in weights.items():
        for n, layer in enumerate(layers):
            rows = (
                real
                if name == "t5" and "decoder" in kind or kind == "cross_attentions"
                else queries
            )
            got[f"{kind} {n}"] = layer.detach().transpose(1, 2)[rows]
    got.update((n, p.grad.clone()) for n, p in model.named_parameters() if p.grad is not None)
    return got


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_eagers(name, padded, calls):
    model = make(name)
    want = outputs_and_gradients(name, model, padded)
    assert calls == []
    model.set_attn_implementation("qkv")
    got = outputs_and_gradients(name, model, padded)
    # Each model has 2 layers; t5 has 2 in the encoder and 2 with cross-attention in the decoder.
    assert len(calls) == (6 if name == "t5" else 2)
    assert got.keys() == want.keys()
    for part, value in want.items():
        torch.testing.assert_close(got[part], value, **CLOSE, msg=lambda m, p=part: f"{p}: {m}")
    wanted = {"gpt_oss": "sinks", "t5": "relative_attention_bias"}.get(name, "weight")
    learned = [value for part, value in want.items() if wanted in part]
    assert learned and all(value.any() for value in learned)


# ---- block masks --------------------------------------------------------------------------------


def block_mask_of(function, batch=2, length=LENGTH):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    options = {"device": "cpu", "BLOCK_SIZE": 4}
    return flex.create_block_mask(function, batch, None, length, length, **options)


def mask_functions():
    masking = transformers.masking_utils
    padding = torch.ones(2, LENGTH, dtype=torch.bool)
    padding[1, 6:] = False
    documents = torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    causal = masking.causal_mask_function
    return {
        "causal": causal,
        "window": masking.sliding_window_causal_mask_function(3),
        "chunks": masking.chunked_causal_mask_function(4, torch.tensor([0, 1])),
        "padding": masking.and_masks(causal, masking.padding_mask_function(padding)),
        "packed": masking.and_masks(causal, masking.packed_sequence_mask_function(documents)),
        "blocks": masking.or_masks(causal, masking.blockwise_overlay(documents - 1)),
        "offsets": masking.add_offsets_to_mask_function(causal, 2, 1),
        "both ways": masking.sliding_window_bidirectional_mask_function(2),
    }


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_block_masks_of_transformers_are_masks(name, calls):
    model, inputs = make(name), inputs_for(name)
    for kind, function in mask_functions().items():
        indices = [torch.arange(n).reshape(shape) for n, shape in (
            (2, (2, 1, 1, 1)), (1, (1, 1, 1, 1)), (LENGTH, (1, 1, -1, 1)), (LENGTH, (1, 1, 1, -1)),
        )]  # fmt: skip
        allowed = function(*indices).expand(2, 1, LENGTH, LENGTH)
        model.set_attn_implementation("eager")
        bias = torch.zeros(allowed.shape, dtype=F64).masked_fill(~allowed, -1e300)
        want = model(**{**inputs, "attention_mask": bias}, output_attentions=True)
        model.set_attn_implementation("qkv")
        masked = {**inputs, "attention_mask": block_mask_of(function)}
        for more in ({}, {"output_attentions": True}):
            got = model(**masked, **more)
            torch.testing.assert_close(got.logits, want.logits, **CLOSE, msg=kind)
        torch.testing.assert_close(got.attentions, want.attentions, **CLOSE, msg=kind)
    grads = []
    for implementation, mask in (("eager", bias), ("qkv", masked["attention_mask"])):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(**{**inputs, "attention_mask": mask}).logits.square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(grads[1], grads[0], **CLOSE)
    # In each of 2 layers, qkv is called twice for each mask, and once for gradients.
    assert len(calls) == 2 * (2 * len(mask_functions()) + 1)


@pytest.mark.parametrize("kind", ["packed", "bits"])
def test_block_masks_in_graphs(kind):
    model = make("llama", "qkv")
    functions = {**mask_functions(), "bits": lambda b, h, i, j: (i + 1 & 8) == (j + 1 & 8)}
    masked = {**inputs_for("llama"), "attention_mask": block_mask_of(functions[kind])}
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    found = []
    for one in (model, compiled):
        model.zero_grad()
        logits = one(**masked).logits
        logits.square().sum().backward()
        found.append([logits, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(x, y) for x, y in zip(*found)) and len(found[0]) == len(found[1]) > 5


def test_block_masks_that_do_not_fit():
    model, inputs = make("llama", "qkv"), inputs_for("llama")
    causal = transformers.masking_utils.causal_mask_function
    for sizes, text in (
        ({"length": 12}, r'implementation="qkv": block_mask must be for 9 queries and 9 keys, got'),
        ({"batch": 3}, r"block_mask must be for 1 or 2 batch entries, got 3"),
    ):
        with pytest.raises(ValueError, match=text):
            model(**{**inputs, "attention_mask": block_mask_of(causal, **sizes)})


def test_the_window_and_the_softcap_have_an_effect():
    """The window and the soft-cap change the results."""
    for name, more in (("gemma2", "attn_logit_softcapping"), ("gemma2", "sliding_window")):
        inputs = inputs_for(name)
        with_it = make(name, "qkv")(**inputs).logits
        without = make(name, "qkv")
        for module in without.modules():
            if more == "attn_logit_softcapping" and hasattr(module, more):
                setattr(module, more, None)
        if more == "sliding_window":
            without.config.sliding_window = LENGTH + 1
        assert (with_it - without(**inputs).logits).abs().max() > 1e-3, more


def test_attentions_only_where_they_are_asked_for():
    for name in MODELS:
        model, inputs = make(name, "qkv"), inputs_for(name)
        if name == "t5":
            inputs["decoder_input_ids"] = inputs["input_ids"]
        assert attentions_of(model(**inputs)) == {}, name
        assert len(attentions_of(model(**inputs, output_attentions=True))) == (
            3 if name == "t5" else 1
        )


def test_a_saved_model_is_loaded_with_it(tmp_path, calls):
    model = make("llama")
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="qkv", dtype=F64
    )
    inputs = inputs_for("llama")
    real = inputs["attention_mask"].bool()
    want = model(**inputs).logits[real]
    torch.testing.assert_close(loaded.eval()(**inputs).logits[real], want, **CLOSE)
    assert len(calls) == 2


def test_training_with_dropout():
    model = make("llama", "qkv", attention_dropout=0.5)
    inputs = inputs_for("llama")
    whole = model(**inputs).logits
    model.train()
    torch.manual_seed(0)
    one = model(**inputs).logits
    assert not torch.equal(one, model(**inputs).logits) and not torch.equal(one, whole)
    torch.manual_seed(0)
    assert torch.equal(one, model(**inputs).logits)


# ---- generation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_tokens_are_eagers(name, calls):
    model, inputs = make(name), inputs_for(name)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}

    def tokens(implementation, cache, **more):
        model.set_attn_implementation(implementation)
        return model.generate(**inputs, **options, cache_implementation=cache, **more)

    want = tokens("eager", "dynamic")
    assert len(want[:, -12:].unique()) > 5
    for cache in ("dynamic", "static"):
        assert torch.equal(tokens("eager", cache), want)
        del calls[:]
        assert torch.equal(tokens("qkv", cache), want)
        assert len(calls) == (2 + 4 * 12 if name == "t5" else 2 * 12)
        written = {"return_dict_in_generate": True, "output_attentions": True}
        got = tokens("qkv", cache, **written)
        assert torch.equal(got.sequences, want)
        steps = got.decoder_attentions if name == "t5" else got.attentions
        by_eager = tokens("eager", cache, **written)
        steps_of_eager = by_eager.decoder_attentions if name == "t5" else by_eager.attentions
        assert len(steps) == len(steps_of_eager) == 12
        # Step 0 has padding rows, whose weights differ.
        for mine, theirs in zip(steps[1:], steps_of_eager[1:]):
            assert len(mine) == len(theirs) == 2
            for layer, layer_of_eager in zip(mine, theirs):
                torch.testing.assert_close(layer, layer_of_eager, **CLOSE)


def test_generation_with_beams():
    model, inputs = make("llama"), inputs_for("llama")
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    want = model.generate(**inputs, **options)
    model.set_attn_implementation("qkv")
    assert torch.equal(model.generate(**inputs, **options), want)


# ---- the registered function --------------------------------------------------------------------


class Module(torch.nn.Module):
    is_causal = True


def tensors(batch=2):
    generator = torch.Generator().manual_seed(2)
    shapes = (batch, 4, LENGTH, 8), (2, 2, LENGTH, 8), (2, 2, LENGTH, 6)
    return [torch.randn(shape, dtype=F64, generator=generator) for shape in shapes]


def by_formula(query, key, value, added):
    key, value = (x.repeat_interleave(2, 1) for x in (key, value))
    weights = torch.softmax(query @ key.mT / 8**0.5 + added, -1)
    return (weights @ value).transpose(1, 2)


def only(allowed):
    return torch.zeros(allowed.shape, dtype=F64).masked_fill(~allowed, -torch.inf)


FROM, TO = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]
BIAS = torch.randn(1, 4, LENGTH, LENGTH, dtype=F64, generator=torch.Generator().manual_seed(4))
ALLOWED = (FROM - TO).abs() <= 2
CALLS = {
    "causal by the module": ({}, only(TO <= FROM)),
    "not causal": ({"is_causal": False}, 0),
    "window": ({"sliding_window": WINDOW}, only((TO <= FROM) & (FROM - TO < WINDOW))),
    "mask": ({"attention_mask": ALLOWED[None, None]}, only(ALLOWED)),
    "numbers": ({"attention_mask": BIAS}, BIAS),
    "float32 numbers": ({"attention_mask": BIAS.float()}, BIAS.float().double()),
    "bias": ({"position_bias": BIAS, "is_causal": False}, BIAS),
    "causal bias": ({"position_bias": BIAS}, BIAS + only(TO <= FROM)),
    "bias and mask": ({"position_bias": BIAS, "attention_mask": ALLOWED}, BIAS + only(ALLOWED)),
    "bias and numbers": (
        {"position_bias": BIAS, "attention_mask": BIAS[:, :1]},
        BIAS + BIAS[:, :1],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    options, added = CALLS[name]
    inputs = tensors()
    options = {"attention_mask": None, "use_cache": True, "unknown": None, **options}
    out, weights = CALLED(Module(), *inputs, scaling=8**-0.5, **options)
    assert weights is None and out.is_contiguous()
    torch.testing.assert_close(out, by_formula(*inputs, added), **CLOSE)


def test_learned_queries_for_the_whole_batch():
    inputs = [x.requires_grad_() for x in tensors(batch=1)]
    out, _ = CALLED(Module(), *inputs, None, is_causal=False)
    want = by_formula(*inputs, 0)
    torch.testing.assert_close(out, want, **CLOSE)
    got, wanted = (torch.autograd.grad(x.square().sum(), inputs) for x in (out, want))
    torch.testing.assert_close(got, wanted, **CLOSE)


def test_room_in_a_static_cache_is_not_seen():
    query, key, value = tensors()
    out, _ = CALLED(Module(), query[:, :, :5], key, value, None)
    want = by_formula(query[:, :, :5], key[:, :, :5], value[:, :, :5], only(TO <= FROM)[:5, :5])
    torch.testing.assert_close(out, want, **CLOSE)
    one, _ = CALLED(Module(), query[:, :, :1], key, value, None)  # a single query sees all keys
    torch.testing.assert_close(one, by_formula(query[:, :, :1], key, value, 0), **CLOSE)


def test_dropped_weights_are_returned():
    inputs = tensors()
    torch.manual_seed(0)
    out, weights = CALLED(Module(), *inputs, None, dropout=0.5, output_attentions=True)
    assert 0.5 < (weights == 0).double().mean() < 0.95  # half of the keys are in the future
    want = weights @ inputs[2].repeat_interleave(2, 1)
    torch.testing.assert_close(out, want.transpose(1, 2), **CLOSE)


def test_a_query_that_sees_no_key_gives_zeros():
    mask = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    mask[1, :, 3] = False
    out, _ = CALLED(Module(), *tensors(), mask)
    assert not out[1, 3].any() and out[0, 3].all()


# ---- errors -------------------------------------------------------------------------------------


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = "^register: the package transformers 5.20 or newer must be installed, there is none"
    with pytest.raises(ImportError, match=message):
        qkv.torch.register()


def test_with_an_older_package(monkeypatch):
    package = sys.modules["transformers"]  # the package replaces itself while it is imported
    monkeypatch.setattr(package, "__version__", "5.19.1")
    message = "^register: the package transformers 5.20 or newer must be installed, this is 5.19.1$"
    with pytest.raises(ImportError, match=message):
        qkv.torch.register()
    monkeypatch.setattr(package, "__version__", "5.20.0.dev0")
    qkv.torch.register()
    monkeypatch.setattr(package, "__version__", "6.0.0")
    qkv.torch.register()


@pytest.mark.parametrize("name", ["indices", "block_indices", "unknown", "seq_idx"])
def test_options_that_would_be_lost_are_refused(name):
    message = f'^attn_implementation="qkv": Module passes {name} to attention, '
    with pytest.raises(ValueError, match=message):
        CALLED(Module(), *tensors(), None, **{name: torch.zeros(2, LENGTH, 3)})
    with pytest.raises(ValueError, match=message):  # also for a single query
        CALLED(Module(), *(x[:, :, :1] for x in tensors()), None, **{name: torch.zeros(2)})


def test_packed_sequences_need_a_mask():
    one, two = torch.tensor([0, LENGTH]), torch.tensor([0, 4, LENGTH])
    options = {"cu_seq_lens_k": two, "max_length_q": 5, "max_length_k": 5}
    inputs = tensors()
    out, _ = CALLED(Module(), *inputs, None, cu_seq_lens_q=one)
    torch.testing.assert_close(out, by_formula(*inputs, only(TO <= FROM)), **CLOSE)
    message = "passes cu_seq_lens_q to attention, but no mask that separates the sequences"
    with pytest.raises(ValueError, match=message):
        CALLED(Module(), *inputs, None, cu_seq_lens_q=two, **options)
    apart = (TO <= FROM) & ((FROM < 4) == (TO < 4))
    out, _ = CALLED(Module(), *inputs, apart, cu_seq_lens_q=two, seq_idx=two, **options)
    torch.testing.assert_close(out, by_formula(*inputs, only(apart)), **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
def test_sinks_of_each_query(causal):
    inputs = tensors()
    sinks = torch.randn(2, 4, LENGTH, 1, dtype=F64, generator=torch.Generator().manual_seed(6))
    leaves = [x.requires_grad_() for x in (*inputs, sinks)]
    allowed = (TO <= FROM) & (FROM - TO < WINDOW) if causal else TO < LENGTH
    options = {"is_causal": causal, "sliding_window": WINDOW if causal else None}
    out, weights = CALLED(
        Module(), *inputs, None, sinks=sinks, position_bias=BIAS, output_attentions=True, **options
    )
    key, value = (x.repeat_interleave(2, 1) for x in inputs[1:])
    scores = inputs[0] @ key.mT / 8**0.5 + BIAS + only(allowed)
    wanted = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    want = (wanted @ value).transpose(1, 2)
    torch.testing.assert_close((out, weights), (want, wanted), **CLOSE)
    got, by_hand = (torch.autograd.grad(x.square().sum(), leaves) for x in (out, want))
    torch.testing.assert_close(got, by_hand, **CLOSE)
    masked, _ = CALLED(Module(), *inputs, allowed, sinks=sinks, position_bias=BIAS)
    torch.testing.assert_close(masked, want, **CLOSE)


def test_a_module_that_does_not_say_whether_it_is_causal():
    class Silent(torch.nn.Module):
        pass

    inputs = tensors()
    with pytest.raises(ValueError, match="Silent passes no mask and does not say whether it is"):
        CALLED(Silent(), *inputs, None)
    out, _ = CALLED(Silent(), *inputs, None, is_causal=False)
    torch.testing.assert_close(out, by_formula(*inputs, 0), **CLOSE)
    one, _ = CALLED(Silent(), inputs[0][:, :, :1], *inputs[1:], None)  # one query sees all keys
    torch.testing.assert_close(one, by_formula(inputs[0][:, :, :1], *inputs[1:], 0), **CLOSE)


def test_errors_name_arguments():
    query, key, value = tensors()
    with pytest.raises(ValueError, match="^attention: k has D = 7 but q has D = 8"):
        CALLED(Module(), query, key[..., 1:], value, None)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models_are_compiled_whole(name):
    torch._dynamo.reset()
    model = make(name, "qkv").eval()
    inputs = inputs_for(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(
        compiled(**inputs).logits[real], model(**inputs).logits[real], **CLOSE
    )
