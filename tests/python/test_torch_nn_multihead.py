# SPDX-License-Identifier: Apache-2.0
"""Compares qkv.torch.nn.MultiheadAttention with torch's: all options, forward and backward."""

import copy
import itertools
import pickle
import re

import pytest
from torch_versions import VERSION, needs, torch

import qkv
import qkv.torch
from qkv.torch.nn import MultiheadAttention

N, L, S, WIDTH, HEADS, KDIM, VDIM = 3, 4, 5, 12, 3, 7, 5
F64 = torch.float64
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def draw(*shape, seed, dtype=F64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def pair(seed=3, **options):
    """PyTorch's module, and qkv's module with the same parameters."""
    options = {"dtype": F64, **options}
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, **options)
    ours = MultiheadAttention(WIDTH, HEADS, **options)
    torch.manual_seed(seed)
    for parameter in theirs.parameters():  # biases are initialised to zero
        torch.nn.init.normal_(parameter, std=0.4)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


# PADDING masks the last two keys of entry 0, none of entry 1, and the middle key of entry 2.
PADDING = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]], dtype=torch.bool)
HIDDEN = draw(L, S, seed=8) > 0.7
HIDDEN[:, 0] = False
OF_HEADS = draw(N * HEADS, L, S, seed=9) > 0.7
OF_HEADS[..., 0] = False
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "float padding": {"key_padding_mask": draw(N, S, seed=5)},
    "hidden": {"attn_mask": HIDDEN},
    "of heads": {"attn_mask": OF_HEADS},
    "float": {"attn_mask": draw(L, S, seed=6)},
    "float of heads": {"attn_mask": draw(N * HEADS, L, S, seed=7)},
    "both": {"key_padding_mask": PADDING, "attn_mask": OF_HEADS},
}
if VERSION >= (2, 0):
    both = {"key_padding_mask": draw(N, S, seed=5), "attn_mask": draw(L, S, seed=6)}
    MASKS["both float"] = both
KINDS = {
    "plain": {},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "both appended": {"add_bias_kv": True, "add_zero_attn": True},
    "widths": {"kdim": KDIM, "vdim": VDIM},
    "all": {"kdim": KDIM, "vdim": VDIM, "add_bias_kv": True, "add_zero_attn": True, "bias": False},
}
WEIGHTS = ({"need_weights": False}, {}, {"average_attn_weights": False})


def inputs_for(module, batch_first):
    shapes = (L, WIDTH), (S, module.kdim), (S, module.vdim)
    inputs = [draw(N, *shape, seed=20 + n) for n, shape in enumerate(shapes)]
    if not batch_first:
        inputs = [x.transpose(0, 1).contiguous() for x in inputs]
    return [x.requires_grad_() for x in inputs]


def gradients(module, inputs, **options):
    """The results, and the gradients of a loss of all results, by name."""
    floats = {n: x for n, x in options.items() if torch.is_tensor(x) and x.is_floating_point()}
    options.update((name, x.clone().requires_grad_()) for name, x in floats.items())
    out, weights = module(*inputs, **options)
    loss = (out * draw(*out.shape, seed=30)).sum()
    if weights is not None:
        loss = loss + (weights**2 * draw(*weights.shape, seed=31)).sum()
    named = dict(module.named_parameters(), query=inputs[0], key=inputs[1], value=inputs[2])
    named.update((name, options[name]) for name in floats)
    got = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {"out": out, "weights": weights, **dict(zip(named, got))}


def assert_equal(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        if value is None:
            assert got[name] is None, name
            continue
        torch.testing.assert_close(got[name], value, **CLOSE, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients(kind, mask, batch_first):
    theirs, ours = pair(**KINDS[kind], batch_first=batch_first)
    inputs = inputs_for(theirs, batch_first)
    for weights in WEIGHTS:
        options = {**MASKS[mask], **weights}
        assert_equal(gradients(ours, inputs, **options), gradients(theirs, inputs, **options))


@needs(2, 1, "is_causal of torch.nn.MultiheadAttention")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_causal_hint(weights, padded):
    theirs, ours = pair(batch_first=True)
    x = draw(N, L, WIDTH, seed=1).requires_grad_()
    masks = [torch.nn.Transformer.generate_square_subsequent_mask(L, dtype=F64)]
    masks.append(masks[0].isinf())
    for mask in masks:
        options = {"attn_mask": mask.clone(), "is_causal": True, **weights}
        if padded:
            padding = torch.zeros(N, L, dtype=mask.dtype)
            padding[0, 2] = True if mask.dtype == torch.bool else -torch.inf
            options["key_padding_mask"] = padding
        out, got = ours(x, x, x, **options)
        want, want_weights = theirs(x, x, x, **options)
        torch.testing.assert_close(out, want, **CLOSE)
        assert (got is None) == (want_weights is None)
        if got is not None:
            torch.testing.assert_close(got, want_weights, **CLOSE)


@pytest.mark.parametrize("kind", ["bias_kv", "zero_attn"])
def test_appended_keys_are_seen_with_the_causal_hint(kind):
    _, ours = pair(**KINDS[kind], batch_first=True)
    x = draw(N, L, WIDTH, seed=1)
    mask = torch.ones(L, L, dtype=torch.bool).triu(1)
    with_weights, _ = ours(x, x, x, attn_mask=mask, is_causal=True)
    without, _ = ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    torch.testing.assert_close(without, with_weights, **CLOSE)


def test_the_causal_hint_replaces_the_mask():
    """With need_weights=False, is_causal replaces the mask, which PyTorch does not read either."""
    _, ours = pair(batch_first=True)
    x = draw(N, L, WIDTH, seed=1)
    nothing = torch.zeros(L, L, dtype=torch.bool)
    causal = torch.ones(L, L, dtype=torch.bool).triu(1)
    got, _ = ours(x, x, x, attn_mask=nothing, is_causal=True, need_weights=False)
    want, _ = ours(x, x, x, attn_mask=causal, need_weights=False)
    assert torch.equal(got, want)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_without_a_batch(weights, batch_first):
    theirs, ours = pair(**KINDS["both appended"], batch_first=batch_first)
    inputs = [draw(size, WIDTH, seed=n).requires_grad_() for n, size in enumerate((L, S, S))]
    for masks in ({}, {"key_padding_mask": PADDING[0], "attn_mask": OF_HEADS[:HEADS]}):
        options = {**masks, **weights}
        assert_equal(gradients(ours, inputs, **options), gradients(theirs, inputs, **options))


def test_one_tensor_three_times():
    for options, threefold in itertools.product(({}, {"bias": False}), (True, False)):
        theirs, ours = pair(**options)
        x = draw(L, N, WIDTH, seed=2).requires_grad_()
        y = x if threefold else draw(L, N, WIDTH, seed=4).requires_grad_()
        for module in (theirs, ours):
            out, _ = module(x, x, y)
            module.result = (
                out,
                *torch.autograd.grad(out.square().sum(), [x, *module.parameters()]),
            )
        for got, want in zip(ours.result, theirs.result):
            torch.testing.assert_close(got, want, **CLOSE)


@needs(2, 0, "rows without keys that are NaN alone")
def test_a_query_without_keys_gets_the_bias():
    theirs, ours = pair(batch_first=True)
    x = draw(N, L, WIDTH, seed=2).requires_grad_()
    padding = torch.zeros(N, L, dtype=torch.bool)
    padding[1] = True
    out, weights = ours(x, x, x, key_padding_mask=padding)
    torch.testing.assert_close(out[1], ours.out_proj.bias.expand(L, -1), **CLOSE)
    assert not weights[1].any()
    want, _ = theirs(x, x, x, key_padding_mask=padding, need_weights=False)
    torch.testing.assert_close(out, want, **CLOSE)
    out.sum().backward()
    assert x.grad.isfinite().all() and not x.grad[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_go_both_ways(kind):
    theirs, ours = pair(**KINDS[kind])
    state = ours.state_dict()
    assert list(state) == list(theirs.state_dict())
    again = torch.nn.MultiheadAttention(WIDTH, HEADS, dtype=F64, **KINDS[kind])
    again.load_state_dict(state)
    inputs = inputs_for(theirs, False)
    torch.testing.assert_close(again(*inputs), ours(*inputs), **CLOSE)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(copied(*inputs)[0], ours(*inputs)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_of_the_numpy_layer_go_both_ways(kind, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    options = dict(KINDS[kind])
    _, ours = pair(**options, batch_first=True)
    names = {"kdim": "key_width", "vdim": "value_width", "add_bias_kv": "bias_kv",
             "add_zero_attn": "zero_attn", "bias": "bias"}  # fmt: skip
    mine = {names[name]: value for name, value in options.items()}
    layer = qkv.MultiHeadAttention(WIDTH, HEADS, dtype="float64", **mine)
    layer.load_torch(ours.state_dict())
    inputs = [x.detach() for x in inputs_for(ours, True)]
    got = torch.as_tensor(layer.forward(*inputs))
    torch.testing.assert_close(got, ours(*inputs)[0].detach(), **CLOSE)
    other = MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=F64, **options)
    other.load_state_dict(layer.to_torch())
    assert torch.equal(other(*inputs)[0], ours(*inputs)[0])
    # The layer loads the module's parameters from a file of the package safetensors.
    safetensors.save_file(ours.state_dict(), tmp_path / "torch")
    layer.initialise(1)
    layer.load_torch(safetensors.load_file(tmp_path / "torch"))
    torch.testing.assert_close(torch.as_tensor(layer.forward(*inputs)), got, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_start_as_in_pytorch(kind):
    modules = []
    for make in (torch.nn.MultiheadAttention, MultiheadAttention):
        torch.manual_seed(7)
        modules.append(make(WIDTH, HEADS, **KINDS[kind]).state_dict())
    for name, value in modules[0].items():
        assert torch.equal(modules[1][name], value), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(dtype):
    theirs, ours = pair(dtype=dtype, batch_first=True)
    x = draw(N, L, WIDTH, seed=1).to(dtype)
    exact = copy.deepcopy(theirs).double()
    want, want_weights = exact(x.double(), x.double(), x.double())
    out, weights = ours(x, x, x)
    assert out.dtype == weights.dtype == dtype
    bound = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), want, rtol=0, atol=bound * want.abs().max().item())
    torch.testing.assert_close(weights.double(), want_weights, rtol=0, atol=bound)


def test_autocast():
    _, ours = pair(dtype=torch.float32, batch_first=True)
    x = draw(N, L, WIDTH, seed=1).float()
    want, _ = ours(x, x, x)
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = ours(x, x, x, attn_mask=torch.zeros(L, L))
        of_bfloat16, _ = ours(x.bfloat16(), x, x)
    assert out.dtype == torch.bfloat16
    for got in (out, of_bfloat16):
        torch.testing.assert_close(got.float(), want, rtol=0, atol=0.05 * want.abs().max().item())


@pytest.mark.parametrize("narrow", [torch.float16, torch.float32])
@pytest.mark.parametrize("threefold", [False, True])
def test_biases_of_another_type(threefold, narrow):
    theirs, ours = pair(batch_first=True)
    for module in (theirs, ours):
        module.in_proj_bias = torch.nn.Parameter(theirs.in_proj_bias.detach().to(narrow))
    x = draw(N, L, WIDTH, seed=2)
    inputs = [x if threefold else draw(N, L, WIDTH, seed=n) for n in range(3)]
    results = []
    for module in (ours, theirs):
        out, weights = module(*inputs)
        out.square().sum().backward()
        results.append((out, weights, module.in_proj_weight.grad))
        assert module.in_proj_bias.grad.dtype == narrow
    for got, want in zip(*results):
        torch.testing.assert_close(got, want, **CLOSE)


# ---- nested tensors -----------------------------------------------------------------------------


def of_lengths(*lengths, width=WIDTH):
    return torch.nested.nested_tensor(
        [draw(length, width, seed=n) for n, length in enumerate(lengths)]
    )


@needs(2, 1, "nested tensors in torch.nn.MultiheadAttention")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("weights", WEIGHTS)
def test_nested_tensors_without_gradients(weights):
    options = {"batch_first": True, "dtype": F64, "dropout": 0.5}
    theirs = torch.nn.MultiheadAttention(WIDTH, 2, **options).eval()
    ours = MultiheadAttention(WIDTH, 2, **options).eval()
    torch.nn.init.normal_(theirs.in_proj_bias)
    ours.load_state_dict(theirs.state_dict())
    x = of_lengths(3, 5, 0, 1)
    with torch.no_grad():
        (got, got_weights), (want, want_weights) = (m(x, x, x, **weights) for m in (ours, theirs))
    assert got.is_nested and got.layout == want.layout
    for one, two in zip(got.unbind(), want.unbind(), strict=True):
        torch.testing.assert_close(one, two, **CLOSE)
    torch.testing.assert_close(got_weights, want_weights, **CLOSE)


@needs(2, 1, "nested tensors with gradients")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_gradients_of_nested_tensors():
    """Compares with calls for single sequences: PyTorch has no gradients of nested tensors."""
    _, ours = pair(batch_first=True)
    x = of_lengths(3, 5, 1).requires_grad_()
    out, _ = ours(x, x, x)
    parameters = list(ours.parameters())
    got = torch.autograd.grad(out.to_padded_tensor(0.0).square().sum(), [x, *parameters])
    alone = [sequence.detach().requires_grad_() for sequence in x.unbind()]
    want_out = [ours(sequence, sequence, sequence)[0] for sequence in alone]
    loss = sum(one.square().sum() for one in want_out)
    want = torch.autograd.grad(loss, [*alone, *parameters])
    for one, two in zip([*out.unbind(), *got[0].unbind(), *got[1:]], [*want_out, *want]):
        torch.testing.assert_close(one, two, **CLOSE)


# ---- dropout ------------------------------------------------------------------------------------


def test_weights_are_dropped_in_training():
    _, ours = pair(dropout=0.5, batch_first=True)
    x = draw(8, 16, WIDTH, seed=1).requires_grad_()
    _, all_kept = ours.eval()(x, x, x, average_attn_weights=False)
    assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    ours.train()
    torch.manual_seed(11)
    out, weights = ours(x, x, x, average_attn_weights=False)
    torch.manual_seed(11)
    same, _ = ours(x, x, x, need_weights=False)
    assert torch.equal(out, same)
    assert not torch.equal(out, ours(x, x, x)[0])  # a new draw of dropout
    kept = weights != 0
    assert 0.45 < kept.double().mean() < 0.55
    torch.testing.assert_close(weights, all_kept * kept * 2, **CLOSE)
    # The formula, with the same weights dropped, gives the expected results and gradients.
    w, b = ours.in_proj_weight.chunk(3), ours.in_proj_bias.chunk(3)
    q, k, v = ((x @ w[n].T + b[n]).unflatten(-1, (HEADS, -1)).transpose(1, 2) for n in range(3))
    by_formula = torch.softmax(q @ k.mT / (WIDTH / HEADS) ** 0.5, -1) * kept * 2
    want = ours.out_proj((by_formula @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, want, **CLOSE)
    parameters = [x, *ours.parameters()]

    def loss(results, weights):
        return (results**2).sum() + (weights**2 * draw(*weights.shape, seed=3)).sum()

    got = torch.autograd.grad(loss(out, weights), parameters)
    for one, two in zip(got, torch.autograd.grad(loss(want, by_formula), parameters)):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_dropping_everything():
    theirs, ours = pair(dropout=1.0, batch_first=True)
    x = draw(N, L, WIDTH, seed=1)
    for weights in WEIGHTS:
        torch.testing.assert_close(ours(x, x, x, **weights), theirs(x, x, x, **weights), **CLOSE)


def test_an_optimiser_takes_the_parameters():
    torch.manual_seed(0)
    ours = MultiheadAttention(8, 2, batch_first=True)
    assert isinstance(ours, torch.nn.MultiheadAttention)
    optimiser = torch.optim.Adam(ours.parameters(), lr=0.02)
    x = torch.randn(16, 6, 8)
    target = x.roll(1, 2)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = ((ours(x, x, x, need_weights=False)[0] - target) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@needs(2, 1, "is_causal of torch.nn.TransformerEncoder")
def test_inside_pytorchs_layers():
    torch.manual_seed(0)
    layer = torch.nn.TransformerDecoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True, dtype=F64)
    x, memory = draw(N, L, WIDTH, seed=1), draw(N, S, WIDTH, seed=2)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(L, dtype=F64)
    options = {"tgt_mask": mask, "tgt_is_causal": True, "memory_key_padding_mask": PADDING}
    want = layer(x, memory, **options)
    for name in ("self_attn", "multihead_attn"):
        ours = MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=F64)
        ours.load_state_dict(getattr(layer, name).state_dict())
        setattr(layer, name, ours)
    torch.testing.assert_close(layer(x, memory, **options), want, **CLOSE)


# ---- errors -------------------------------------------------------------------------------------

X = torch.zeros(N, L, WIDTH, dtype=F64)
WRONG_CALLS = {
    "query must be a torch.Tensor, got list": {"query": [1]},
    "query must have 3 axes, or 2 without a batch, got [12]": {"query": X[0, 0]},
    "query must have embed_dim = 12 channels, got [3,4,11]": {"query": X[..., 1:]},
    "key must have 3 axes, as query, got [4,12]": {"key": X[0]},
    "key must have kdim = 12 channels, got [3,4,11]": {"key": X[..., 1:]},
    "key must have the batch size of query, 3, got [2,4,12]": {"key": X[1:], "value": X[1:]},
    "value must have vdim = 12 channels, got [3,4,11]": {"value": X[..., 1:]},
    "value must have key's shape but for the channels, [3,4,12], got [3,3,12]": {"value": X[:, 1:]},
    "value must be of the dtype of the parameters, torch.float64, got torch.float32": {
        "value": X.float()
    },
    "key_padding_mask must be [N,S] = [3,4], got [3,5]": {"key_padding_mask": PADDING},
    "key_padding_mask must be bool or floating point, got torch.int64": {
        "key_padding_mask": torch.zeros(N, L, dtype=torch.int64)
    },
    "attn_mask must be [L,S] = [4,4] or [N*num_heads,L,S] = [9,4,4], got [4,5]": {
        "attn_mask": HIDDEN
    },
    "attn_mask must be bool or floating point, got torch.uint8": {
        "attn_mask": torch.zeros(L, L, dtype=torch.uint8)
    },
    "attn_mask must be a torch.Tensor, got list": {"attn_mask": [1]},
    "attn_mask must be given where is_causal is True": {"is_causal": True},
    "need_weights must be True or False, got int": {"need_weights": 1},
}
if VERSION >= (2, 3):
    jagged = torch.nested.nested_tensor(list(X), layout=torch.jagged)
    WRONG_CALLS["query must not be a nested tensor, unless query, key and value are one"] = {
        "query": jagged, "key": jagged, "value": jagged
    }  # fmt: skip
    nested = torch.nested.nested_tensor(list(X))
    WRONG_CALLS["key must not be a nested tensor, unless"] = {"key": nested}
    wide = torch.nested.nested_tensor([X[0, :, 1:], X[0, 1:, 1:]])
    WRONG_CALLS["query must have embed_dim = 12 channels, got [2,*,11]"] = {
        "query": wide, "key": wide, "value": wide
    }  # fmt: skip
    ragged = torch.nested.nested_tensor([X[0], X[1, :, 1:]])
    WRONG_CALLS["query must have embed_dim = 12 channels in each sequence, got 11 and 12"] = {
        "query": ragged, "key": ragged, "value": ragged
    }  # fmt: skip
    empty = torch.nested.nested_tensor([X[0, :0]])
    WRONG_CALLS["query must have at least one sequence that is not empty, got lengths [0]"] = {
        "query": empty, "key": empty, "value": empty
    }  # fmt: skip
    of_one = {"query": nested, "key": nested, "value": nested}
    WRONG_CALLS["key_padding_mask must be None if query is nested, got [3,4]; pad query"] = {
        **of_one, "key_padding_mask": torch.zeros(N, L, dtype=torch.bool)
    }  # fmt: skip
    WRONG_CALLS["attn_mask must be None if query is nested, got [4,4]"] = {
        **of_one, "attn_mask": torch.zeros(L, L, dtype=torch.bool)
    }  # fmt: skip
if VERSION >= (2, 6):
    none = nested.narrow(0, 0, 0)
    WRONG_CALLS["query must have at least one sequence that is not empty, got lengths []"] = {
        "query": none, "key": none, "value": none
    }  # fmt: skip


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_wrong_calls(message):
    _, ours = pair(batch_first=True)
    call = {"query": X, "key": X, "value": X, **WRONG_CALLS[message]}
    with pytest.raises((TypeError, ValueError), match=re.escape(f"MultiheadAttention: {message}")):
        ours(**call)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 0}, "embed_dim must be at least 1, got 0"),
        ({"num_heads": 5}, "num_heads must divide embed_dim = 12, got 5"),
        ({"kdim": 0}, "kdim must be at least 1, got 0"),
        ({"embed_dim": "8"}, "embed_dim must be an integer, got str"),
        ({"num_heads": 2.0}, "num_heads must be an integer, got float"),
        ({"num_heads": None}, "num_heads must be an integer, got NoneType"),
        ({"vdim": "x"}, "vdim must be an integer, got str"),
        ({"dropout": 1.5}, "dropout must be in [0,1], got 1.5"),
        ({"dropout": "much"}, "dropout must be a number, got str"),
        ({"bias": 1}, "bias must be True or False, got int"),
    ],
)
def test_wrong_constructors(options, message):
    options = {"embed_dim": WIDTH, "num_heads": HEADS, **options}
    with pytest.raises((TypeError, ValueError), match=re.escape(f"MultiheadAttention: {message}")):
        MultiheadAttention(**options)
