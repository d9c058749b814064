# SPDX-License-Identifier: Apache-2.0
"""Tests parameters from PyTorch's state dicts against the results of PyTorch's modules."""

import numpy as np
import pytest
from layer_formulas import CASES

import qkv

torch = pytest.importorskip("torch", reason="state dicts are PyTorch's")
nn = torch.nn
EPS = np.finfo(np.float64).eps


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(module):
    """The module in float64, with nonzero parameters."""
    module = module.double().eval()
    with torch.no_grad():
        for n, parameter in enumerate(module.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=n))
    return module


def assert_same(got, want, rtol=0):
    np.testing.assert_allclose(np.asarray(got), want.detach().numpy(), rtol=rtol, atol=400 * EPS)


# ---- nn.MultiheadAttention ----------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", ["none", "padding", "pairs"])
def test_multihead_attention(bias, mask):
    theirs = drawn(nn.MultiheadAttention(6, 3, bias=bias, batch_first=True))
    layer = qkv.MultiHeadAttention(6, 3, dtype="float64", bias=bias)
    layer.load_torch(theirs.state_dict())
    q, k, v = draw(2, 3, 6), draw(2, 5, 6, seed=1), draw(2, 5, 6, seed=2)
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    hidden = torch.rand(3, 5, generator=torch.Generator().manual_seed(4)) < 0.4
    ours, of_torch = {
        "none": ({}, {}),
        "padding": ({"padding_mask": padding}, {"key_padding_mask": padding}),
        "pairs": ({"mask": ~hidden}, {"attn_mask": hidden}),
    }[mask]
    want, want_weights = theirs(q, k, v, average_attn_weights=False, **of_torch)
    out, weights = layer.forward(q, k, v, **ours, return_weights=True)
    assert isinstance(out, torch.Tensor)
    assert_same(weights, want_weights)
    assert_same(out, want)


MHA_OPTIONS = {
    "widths": {"kdim": 5, "vdim": 3},
    "one other width": {"vdim": 3, "bias": False},
    "learned key": {"add_bias_kv": True},
    "zeros": {"add_zero_attn": True},
    "all": {"kdim": 5, "vdim": 6, "add_bias_kv": True, "add_zero_attn": True},
}
OURS = {
    "kdim": "key_width",
    "vdim": "value_width",
    "add_bias_kv": "bias_kv",
    "add_zero_attn": "zero_attn",
    "bias": "bias",
}


@pytest.mark.parametrize("name", MHA_OPTIONS)
@pytest.mark.parametrize("mask", ["none", "padding", "pairs", "numbers", "causal"])
@pytest.mark.parametrize("averaged", [True, False])
def test_every_option_of_multihead_attention(name, mask, averaged):
    options = MHA_OPTIONS[name]
    theirs = drawn(nn.MultiheadAttention(6, 3, batch_first=True, **options))
    own_options = {OURS[option]: value for option, value in options.items()}
    layer = qkv.MultiHeadAttention(6, 3, dtype="float64", **own_options)
    layer.load_torch(theirs.state_dict())
    widths = (6, options.get("kdim", 6), options.get("vdim", 6))
    shapes = zip((4, 5, 5), widths)
    q, k, v = (draw(2, t, w, seed=n).requires_grad_() for n, (t, w) in enumerate(shapes))
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    hidden = torch.rand(4, 5, generator=torch.Generator().manual_seed(4)) < 0.4
    numbers = draw(2 * 3, 4, 5, seed=8).requires_grad_()
    top_left = torch.ones(4, 5, dtype=torch.bool).triu(1)
    ours, of_torch = {
        "none": ({}, {}),
        "padding": ({"padding_mask": padding}, {"key_padding_mask": padding}),
        "pairs": ({"mask": ~hidden}, {"attn_mask": hidden}),
        "numbers": ({"bias": numbers.detach().view(2, 3, 4, 5)}, {"attn_mask": numbers}),
        "causal": ({"causal": "top_left"}, {"attn_mask": top_left}),
    }[mask]
    want, want_weights = theirs(q, k, v, average_attn_weights=averaged, **of_torch)
    data = [x.detach() for x in (q, k, v)]
    got = layer.forward(*data, **ours, return_weights=True, average_weights=averaged)
    assert_same(got.out, want)
    assert_same(got.weights, want_weights[..., : got.weights.shape[-1]])
    assert (want_weights.shape[-1] - got.weights.shape[-1]) == ("add_zero_attn" in options)

    dout, dweights = draw(*want.shape, seed=5), draw(*got.weights.shape, seed=6)
    without_zeros = want_weights[..., : got.weights.shape[-1]]
    (want * dout).sum().add((without_zeros * dweights).sum()).backward()
    gradients = layer.backward(dout, dweights=dweights)
    for x, gradient in zip((q, k, v), gradients):
        assert_same(gradient, x.grad, 1e-12)
    if mask == "numbers":
        assert_same(gradients.dbias.view(numbers.shape), numbers.grad, 1e-12)
    of_parameters = dict(theirs.named_parameters())
    for name_of_theirs, parameter in layer.to_torch().items():
        assert torch.equal(parameter, of_parameters[name_of_theirs])
    for x in ("bias_k", "bias_v"):
        if x in gradients.parameters:
            assert_same(gradients.parameters[x], of_parameters[x].grad[0, 0], 1e-12)
    if "in_proj_weight" in of_parameters:
        rows = [gradients.parameters[f"fc_{x}.weight"] for x in "qkv"]
        assert_same(np.concatenate(rows), of_parameters["in_proj_weight"].grad, 1e-12)


class D2L(nn.Module):
    """Four nn.Linear with the names of "Dive into Deep Learning" (section 11.5)."""

    def __init__(self, width, bias):
        super().__init__()
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, nn.Linear(width, width, bias=bias))


@pytest.mark.parametrize("bias", [True, False])
def test_names_of_dive_into_deep_learning(bias):
    module = drawn(D2L(6, bias))
    layer = qkv.MultiHeadAttention(6, 3, dtype="float64", bias=bias)
    layer.load_torch(module.state_dict())
    for name, projection in zip(("fc_q", "fc_k", "fc_v", "fc_o"), module.children()):
        assert_same(layer.parameters()[f"{name}.weight"], projection.weight)
    state = layer.to_torch("d2l")
    assert state.keys() == module.state_dict().keys()
    module.load_state_dict(state)
    with pytest.raises(ValueError, match="biases but the layer was made|no biases but the layer"):
        qkv.MultiHeadAttention(6, 3, bias=not bias).load_torch(module.state_dict())

    additive = qkv.AdditiveAttention(3, 4, 5)
    state = additive.to_torch("d2l")
    assert {name: tuple(x.shape) for name, x in state.items()} == {
        "W_q.weight": (5, 3),
        "W_k.weight": (5, 4),
        "w_v.weight": (1, 5),
    }
    other = qkv.AdditiveAttention(3, 4, 5, seed=7)
    other.load_torch(state)
    for name, array in other.parameters().items():
        np.testing.assert_array_equal(array, additive.parameters()[name])


def test_a_part_of_a_model_by_its_prefix():
    model = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    layer = qkv.MultiHeadAttention(8, 2)
    layer.load_torch(model.state_dict(), prefix="self_attn.")
    x = torch.randn(2, 5, 8)
    want = model.self_attn(x, x, x)[0]
    torch.testing.assert_close(layer.forward(x, x, x), want.detach(), rtol=1e-5, atol=1e-6)

    other = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    missing, unknown = other.load_state_dict(layer.to_torch(prefix="self_attn."), strict=False)
    assert not unknown and not any(name.startswith("self_attn") for name in missing)
    torch.testing.assert_close(other.self_attn(x, x, x)[0], want)
    with pytest.raises(
        ValueError, match="no name begins with prefix 'attn.'; there are linear1., "
    ):
        layer.load_torch(model.state_dict(), prefix="attn.")
    with pytest.raises(TypeError, match="prefix must be a str, got int"):
        layer.load_torch(model.state_dict(), prefix=1)


@pytest.mark.parametrize(
    "layer, module",
    [
        (qkv.Linear(3, 4), nn.Linear(3, 4)),
        (qkv.Embedding(5, 2), nn.Embedding(5, 2)),
        (qkv.GRU(3, 4, bidirectional=True), nn.GRU(3, 4, bidirectional=True)),
        (qkv.GRUCell(3, 4), nn.GRUCell(3, 4)),
        (qkv.BilinearAttention(3, 4), nn.Bilinear(3, 4, 1, bias=False)),
        (qkv.MultiHeadAttention(4, 2), nn.MultiheadAttention(4, 2)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_state_dicts_go_both_ways(layer, module):
    module.load_state_dict(layer.to_torch())
    before = {name: array.copy() for name, array in layer.parameters().items()}
    layer.initialise(9)
    layer.load_torch(module.state_dict())
    for name, array in layer.parameters().items():
        np.testing.assert_array_equal(array, before[name])


def test_unknown_names_for_to_torch_are_refused():
    with pytest.raises(ValueError, match='names must be "own", "d2l" for this layer, got .torch.'):
        qkv.MultiHeadAttention(4, 2, key_heads=1).to_torch()
    with pytest.raises(ValueError, match='"own" for this layer, got .d2l.'):
        qkv.SelfAttention(4).to_torch("d2l")


@pytest.mark.parametrize("bias", [True, False])
def test_biases_are_neither_lost_nor_made_up(bias):
    """If absent biases became zeros, training would change them."""
    layer = qkv.MultiHeadAttention(4, 2, bias=bias)
    before = {name: array.copy() for name, array in layer.parameters().items()}
    others = nn.MultiheadAttention(4, 2, bias=not bias), qkv.MultiHeadAttention(4, 2, bias=not bias)
    text = (
        "no biases but the layer has" if bias else "biases but the layer was made with bias=False"
    )
    for state in (others[0].state_dict(), others[1].parameters()):
        with pytest.raises(ValueError, match=f"load_torch: state_dict has {text}"):
            layer.load_torch(state)
    for name, array in layer.parameters().items():
        np.testing.assert_array_equal(array, before[name])


def test_gradients_have_the_names_of_their_parameters():
    theirs = drawn(nn.MultiheadAttention(4, 2, batch_first=True))
    layer = qkv.MultiHeadAttention(4, 2, dtype="float64")
    layer.load_torch(theirs.state_dict())
    x = draw(2, 5, 4).requires_grad_()
    want, _ = theirs(x, x, x)
    dout = draw(*want.shape, seed=5)
    want.backward(dout)
    data = x.detach()
    layer.forward(data, data, data)
    got = layer.backward(dout)
    assert_same(got.dq + got.dk + got.dv, x.grad)
    rows = [got.parameters[f"fc_{name}.weight"] for name in "qkv"]
    assert_same(np.concatenate(rows), theirs.in_proj_weight.grad)
    assert_same(got.parameters["fc_o.bias"], theirs.out_proj.bias.grad)


def test_three_projections_of_one_width():
    theirs = drawn(nn.MultiheadAttention(4, 2, batch_first=True))
    state = dict(theirs.state_dict())
    whole = state.pop("in_proj_weight")
    for name, part in zip("qkv", whole.chunk(3)):
        state[f"{name}_proj_weight"] = part
    layer = qkv.MultiHeadAttention(4, 2, dtype="float64")
    layer.load_torch(state)
    x = draw(2, 5, 4)
    assert_same(layer.forward(x, x, x), theirs(x, x, x)[0])


def test_keys_of_another_width_are_refused():
    layer = qkv.MultiHeadAttention(4, 2)
    before = {name: array.copy() for name, array in layer.parameters().items()}
    for other, text in [
        (
            nn.MultiheadAttention(4, 2, kdim=3),
            r"k_proj_weight must have the shape \[4,4\], got \[4,",
        ),
        (
            nn.MultiheadAttention(4, 2, vdim=3),
            r"v_proj_weight must have the shape \[4,4\], got \[4,",
        ),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), "bias_k cannot be loaded: "),
        (nn.MultiheadAttention(6, 2), r"in_proj_weight must have the shape \[12,4\], got \[18,6\]"),
        (nn.Linear(4, 4), "state_dict is without .*, has an unknown weight, has an unknown bias; "),
    ]:
        with pytest.raises(ValueError, match=r"^MultiHeadAttention\.load_torch: " + text):
            layer.load_torch(other.state_dict())
    for name, array in layer.parameters().items():
        np.testing.assert_array_equal(array, before[name])


# ---- the modules of the seed documents ----------------------------------------------------------


class SplitHeads(nn.Module):
    """Multi-head attention with four nn.Linear, whose channels hold the heads side by side."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        for name in ("fc_q", "fc_k", "fc_v", "fc_o"):
            setattr(self, name, nn.Linear(width, width))

    def forward(self, x):
        def heads(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

        q, k, v = heads(self.fc_q(x)), heads(self.fc_k(x)), heads(self.fc_v(x))
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
        return self.fc_o((weights @ v).transpose(-2, -3).flatten(-2))


class WideHeads(nn.Module):
    """Attention with heads of full width; single-head attention without `unify_heads`."""

    def __init__(self, width, heads, unify):
        super().__init__()
        self.heads, self.divisor = heads, width**0.25
        for name in ("queries", "keys", "values"):
            setattr(self, name, nn.Linear(width, heads * width, bias=False))
        if unify:
            self.unify_heads = nn.Linear(heads * width, width)

    def forward(self, x):
        def heads(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

        q, k = heads(self.queries(x)) / self.divisor, heads(self.keys(x)) / self.divisor
        merged = (torch.softmax(q @ k.mT, -1) @ heads(self.values(x))).transpose(-2, -3).flatten(-2)
        return self.unify_heads(merged) if hasattr(self, "unify_heads") else merged


def test_split_heads():
    theirs, x = drawn(SplitHeads(6, 3)), draw(2, 5, 6)
    layer = qkv.MultiHeadAttention(6, 3, dtype="float64")
    layer.load_torch(theirs.state_dict())
    assert_same(layer.forward(x, x, x), theirs(x))


def test_wide_heads():
    theirs, x = drawn(WideHeads(4, 3, unify=True)), draw(2, 5, 4)
    layer = qkv.MultiHeadAttention(4, 3, form="wide", dtype="float64")
    layer.load_torch(theirs.state_dict())
    assert_same(layer.forward(x, x, x), theirs(x))


def test_self_attention():
    theirs, x = drawn(WideHeads(4, 1, unify=False)), draw(2, 5, 4)
    layer = qkv.SelfAttention(4, dtype="float64")
    layer.load_torch(theirs.state_dict())
    assert_same(layer.forward(x), theirs(x))


class Perceptron(nn.Module):
    """Additive attention, scores v^T tanh(W_k k + W_q q); if swapped, v^T tanh(W_q k + W_k q)."""

    def __init__(self, query_width, key_width, units, swapped):
        super().__init__()
        self.swapped = swapped
        widths = (query_width, key_width) if not swapped else (key_width, query_width)
        self.W_q = nn.Linear(widths[0], units, bias=False)
        self.W_k = nn.Linear(widths[1], units, bias=False)
        self.v = nn.Linear(units, 1, bias=False)

    def forward(self, q, k, v):
        of_q, of_k = (self.W_k, self.W_q) if self.swapped else (self.W_q, self.W_k)
        hidden = torch.tanh(of_q(q).unsqueeze(2) + of_k(k).unsqueeze(1))
        return torch.softmax(self.v(hidden).squeeze(-1), -1) @ v


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("widths", [(3, 4), (4, 4)])
def test_additive(widths, swapped):
    theirs = drawn(Perceptron(*widths, 5, swapped))
    q, k, v = draw(2, 3, widths[0]), draw(2, 6, widths[1], seed=1), draw(2, 6, 2, seed=2)
    layer = qkv.AdditiveAttention(*widths, 5, dtype="float64")
    layer.load_torch(theirs.state_dict(), swapped=swapped)
    assert_same(layer.forward(q, k, v), theirs(q, k, v))
    if widths == (4, 4):
        layer.load_torch(theirs.state_dict(), swapped=not swapped)
        assert (layer.forward(q, k, v) - theirs(q, k, v)).abs().max() > 0.01
    else:
        with pytest.raises(ValueError, match=r"\.weight must have the shape"):
            layer.load_torch(theirs.state_dict(), swapped=not swapped)


def test_a_layer_may_load_its_own_parameters_swapped():
    layer = qkv.AdditiveAttention(3, 3, 2)
    q, k = (layer.parameters()[name].copy() for name in ("W_q", "W_k"))
    layer.load_torch(layer.parameters(), swapped=True)
    np.testing.assert_array_equal(layer.parameters()["W_q"], k)
    np.testing.assert_array_equal(layer.parameters()["W_k"], q)


def test_swapped_is_for_additive_attention():
    for name in ("dot", "bilinear", "self", "split", "wide"):
        layer = CASES[name].make()
        with pytest.raises(ValueError, match="load_torch: swapped is for AdditiveAttention only"):
            layer.load_torch(layer.parameters(), swapped=True)


def test_bilinear():
    theirs = drawn(nn.Bilinear(3, 4, 1, bias=False))
    q, k = draw(2, 5, 3), draw(2, 6, 4, seed=1)
    layer = qkv.BilinearAttention(3, 4, dtype="float64")
    layer.load_torch(theirs.state_dict())
    _, scores = layer.forward(q, k, k, return_scores="raw")
    pairs = [x.expand(2, 5, 6, -1) for x in (q.unsqueeze(2), k.unsqueeze(1))]
    assert_same(scores, theirs(*(x.contiguous() for x in pairs)).squeeze(-1))


# ---- accepted state dicts -----------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_layers_own_names_are_accepted(name):
    layer, other = CASES[name].make(), CASES[name].make()
    other.initialise(8)
    layer.load_torch(other.parameters())
    for key, array in layer.parameters().items():
        np.testing.assert_array_equal(array, other.parameters()[key])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_converted(dtype):
    layer = qkv.BilinearAttention(2, 3)
    value = draw(2, 3).to(dtype).T.contiguous().T
    layer.load_torch({"W": nn.Parameter(value)})  # requires a gradient; not contiguous
    np.testing.assert_array_equal(layer.parameters()["W"], value.float().numpy())
    if dtype != torch.bfloat16:
        layer.load_torch({"W": value.numpy()})
        np.testing.assert_array_equal(layer.parameters()["W"], value.float().numpy())


class OnAnotherDevice:
    shape = (2, 3)

    def __dlpack__(self, **options):
        raise BufferError

    def __dlpack_device__(self):
        return (2, 0)  # kDLCUDA


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        ({"W": np.ones((2, 3)), "b": 1}, ValueError, r"has an unknown b; expected W \[2,3\]; or w"),
        ({}, ValueError, r"is without W; expected W \[2,3\]; or weight \[1,2,3\]$"),
        ({"W": np.ones((3, 2))}, ValueError, r"W must have the shape \[2,3\], got \[3,2\]"),
        ({"W": np.ones((2, 3), int)}, TypeError, r"W must be of a real type, got int64 \[2,3\]"),
        ({"W": np.ones((2, 3), complex)}, TypeError, "W must be of a real type, got complex128"),
        ({"W": OnAnotherDevice()}, TypeError, "W must be an array on the CPU"),
        ({"W": [[1.0] * 3] * 2}, TypeError, "W must be an array, got list"),
        ({1: 2, "W": np.ones((2, 3))}, ValueError, "has an unknown 1; "),
        ([("W", 1)], TypeError, "state_dict must be a mapping of arrays, got list"),
    ],
)
def test_wrong_state_dicts_change_nothing(state, kind, text):
    layer = qkv.BilinearAttention(2, 3)
    before = layer.parameters()["W"].copy()
    with pytest.raises(kind, match=r"^BilinearAttention\.load_torch: .*" + text):
        layer.load_torch(state)
    np.testing.assert_array_equal(layer.parameters()["W"], before)
