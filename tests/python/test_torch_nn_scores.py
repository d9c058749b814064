# SPDX-License-Identifier: Apache-2.0
"""Compares dot, additive and bilinear modules of qkv.torch.nn with formulas and qkv's layers."""

import copy
import pickle
import re

import pytest

import qkv

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")

import qkv.torch  # noqa: E402
from qkv.torch.nn import AdditiveAttention, BilinearAttention, DotProductAttention  # noqa: E402

B, TQ, TK, DQ, DK, E, U = 2, 3, 5, 4, 6, 3, 7
F64 = torch.float64
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def draw(*shape, seed):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


class Case:
    """Functions that make a module and the same layer of qkv; the keys' width; a score formula."""

    def __init__(self, module, layer, key_width, scores):
        self.module, self.layer, self.key_width, self.scores = module, layer, key_width, scores

    def inputs(self):
        shapes = (TQ, DQ), (TK, self.key_width), (TK, E)
        return [draw(B, *s, seed=n).requires_grad_() for n, s in enumerate(shapes)]


CASES = {
    "dot": Case(
        lambda **o: DotProductAttention(**o),
        lambda **o: qkv.DotProductAttention(**o),
        DQ,
        lambda m, q, k: q @ k.mT / DQ**0.5,
    ),
    "additive": Case(
        lambda **o: AdditiveAttention(DQ, DK, U, dtype=F64, **o),
        lambda **o: qkv.AdditiveAttention(DQ, DK, U, dtype="float64", **o),
        DK,
        lambda m, q, k: torch.tanh((q @ m.W_q.T)[:, :, None] + (k @ m.W_k.T)[:, None]) @ m.v,
    ),
    "bilinear": Case(
        lambda **o: BilinearAttention(DQ, DK, dtype=F64, **o),
        lambda **o: qkv.BilinearAttention(DQ, DK, dtype="float64", **o),
        DK,
        lambda m, q, k: q @ m.W @ k.mT,
    ),
}
LEARNED = ["additive", "bilinear"]
LENGTHS = [5, 2]


def formula(case, module, q, k, v, bias):
    scores = case.scores(module, q, k) + bias
    beyond = torch.arange(TK) >= torch.tensor(LENGTHS)[:, None, None]
    scores = scores.masked_fill(beyond, -torch.inf)
    weights = torch.softmax(scores, -1)
    return weights @ v, weights, torch.logsumexp(scores, -1)


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name):
    case = CASES[name]
    module = case.module()
    inputs, bias = case.inputs(), draw(TQ, TK, seed=9).requires_grad_()
    got = module(*inputs, LENGTHS, bias=bias, return_weights=True, return_lse=True)
    want = formula(case, module, *inputs, bias)
    wrt = [*inputs, bias, *module.parameters()]

    def gradients(results):
        loss = sum((x**2 * draw(*x.shape, seed=4 + n)).sum() for n, x in enumerate(results))
        return torch.autograd.grad(loss, wrt)

    for one, two in zip((*got, *gradients(got)), (*want, *gradients(want))):
        torch.testing.assert_close(one, two, **CLOSE)


def flat(results):
    """All tensors of a call's results, including the two of `top`."""
    return [x for one in results for x in (one if isinstance(one, tuple) else (one,))]


@pytest.mark.parametrize("name", CASES)
def test_all_options_give_the_results_of_the_layer(name):
    case = CASES[name]
    module, layer = case.module(), case.layer()
    if name in LEARNED:
        layer.load_torch(module.state_dict())
    inputs = [x.detach() for x in case.inputs()]
    options = {
        "mask": draw(TQ, TK, seed=1) > -1,
        "padding_mask": torch.tensor([[0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool),
        "bias": draw(TQ, TK, seed=3),
        "causal": True,
        "causal_offset": 1,
        "window": (2, 1),
        "return_weights": True,
        "return_scores": "masked",
        "return_lse": True,
        "return_row_max": True,
        "return_column_sums": [1, 0],
        "return_top": 2,
        "return_entropy": True,
        "return_value_sums": True,
        "return_pooled": (2, 3),
        "rows": [2, 0],
        "threads": 1,
    }
    got, want = module(*inputs, [5, 4], **options), layer.forward(*inputs, [5, 4], **options)
    assert got._fields == want._fields and {"entropy", "value_sums", "pooled"} <= set(got._fields)
    for one, two in zip(flat(got), flat(want)):
        assert torch.equal(one.detach(), two)
    for option in options:  # each option has an effect
        if option in ("threads", "rows") or option.startswith("return"):
            continue
        without = {n: x for n, x in options.items() if n != option}
        assert not torch.equal(module(*inputs, [5, 4], **without)[0], got[0]), option
    with_heads = [x.unsqueeze(1).expand(-1, 2, -1, -1) for x in inputs]
    assert module(*with_heads).shape == (B, 2, TQ, E)


@pytest.mark.parametrize("name", LEARNED)
def test_state_dicts_and_files_go_both_ways(name, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    case = CASES[name]
    module, layer = case.module(), case.layer(seed=5)
    inputs = [x.detach() for x in case.inputs()]

    def result(one):
        return torch.as_tensor(one.forward(*inputs)).detach()

    assert set(module.state_dict()) == set(layer.parameters())
    assert not torch.equal(result(module), result(layer))
    module.load_state_dict(layer.to_torch("own"))
    assert torch.equal(result(module), result(layer))
    layer.save(tmp_path / "layer")  # the module loads the layer's file
    other = case.module()
    other.load_state_dict(safetensors.load_file(tmp_path / "layer"))
    assert torch.equal(result(other), result(layer))
    other = case.module()  # the layer loads the module's file
    safetensors.save_file(other.state_dict(), tmp_path / "module")
    layer.load(tmp_path / "module")
    assert torch.equal(result(other), result(layer))
    layer.initialise(3)
    layer.load_torch(other.state_dict())
    assert torch.equal(result(other), result(layer))
    for copied in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert torch.equal(result(copied), result(other))


@pytest.mark.parametrize(
    ("make", "fan_ins"),
    [
        (lambda: AdditiveAttention(400, 900, 100), {"W_q": 400, "W_k": 900, "v": 100}),
        (lambda: BilinearAttention(400, 100), {"W": 400}),
    ],
)
def test_parameters_start_in_the_ranges_of_the_layers(make, fan_ins):
    torch.manual_seed(0)
    module = make()
    assert module.state_dict().keys() == fan_ins.keys()
    before = copy.deepcopy(module.state_dict())
    # Parameters are uniform in (-b, b) with b = 1/sqrt(fan-in).
    for name, fan_in in fan_ins.items():
        largest = before[name].abs().max() * fan_in**0.5
        assert 0.97 < largest <= 1, name
        assert before[name].dtype == torch.float32
    module.reset_parameters()
    for name in fan_ins:
        assert not torch.equal(module.state_dict()[name], before[name])


@pytest.mark.parametrize("name", CASES)
def test_dropout_in_training(name):
    case = CASES[name]
    module = case.module(dropout=0.5)
    inputs = case.inputs()
    whole, weights = module.eval()(*inputs, return_weights=True)
    assert torch.equal(module(*inputs), whole)
    module.train()
    torch.manual_seed(2)
    out, kept = module(*inputs, return_weights="dropped")
    torch.manual_seed(2)
    assert torch.equal(module(*inputs), out)
    assert not torch.equal(module(*inputs), out)
    torch.testing.assert_close(kept, weights * (kept != 0) * 2, **CLOSE)
    torch.testing.assert_close(out, kept @ inputs[2], **CLOSE)
    assert 0 < (kept != 0).sum() < kept.numel()


@pytest.mark.parametrize("name", LEARNED)
def test_an_optimiser_takes_the_parameters(name):
    torch.manual_seed(0)
    module = CASES[name].module()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    q, k, v = (x.detach() for x in CASES[name].inputs())
    target = v[:, [1, 0, 2]]
    losses = []
    for _ in range(100):
        optimiser.zero_grad()
        loss = ((module(q, k, v) - target) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_modules_are_printed_with_their_options():
    assert str(DotProductAttention(0.1)) == "DotProductAttention(dropout=0.1)"
    shown = "AdditiveAttention(query_width=3, key_width=2, units=8, dropout=0.0)"
    assert str(AdditiveAttention(3, 2, 8)) == shown
    assert (
        str(BilinearAttention(3, 2)) == "BilinearAttention(query_width=3, key_width=2, dropout=0.0)"
    )


ONE = torch.ones(4, 3)
WRONG = {
    "DotProductAttention: dropout must be in [0,1), got 1.0": lambda: DotProductAttention(1.0),
    "DotProductAttention: dropout must be a number, got str": lambda: DotProductAttention("x"),
    "AdditiveAttention: key_width must be at least 1, got 0": lambda: AdditiveAttention(3, 0, 8),
    "AdditiveAttention: units must be at least 1, got -1": lambda: AdditiveAttention(3, 2, -1),
    "BilinearAttention: key_width must be an integer, got float": lambda: BilinearAttention(3, 2.5),
    "BilinearAttention: k must have 2 channels (key_width), got [4, 3]": lambda: BilinearAttention(
        3, 2
    )(ONE, ONE, ONE),
    "AdditiveAttention: q must have 2 channels (query_width), got [4, 3]": lambda: (
        AdditiveAttention(2, 3, 8)(ONE, ONE, ONE)
    ),
    "BilinearAttention: W must be float64 where q is float64, got float32 [3,3]": lambda: (
        BilinearAttention(3, 3)(ONE.double(), ONE.double(), ONE.double())
    ),
    "AdditiveAttention: W_q must be float64 where q is float64, got float32 [8,3]": lambda: (
        AdditiveAttention(3, 3, 8)(ONE.double(), ONE.double(), ONE.double())
    ),
    "DotProductAttention: v has Tk = 3 but k has Tk = 4": lambda: DotProductAttention()(
        ONE, ONE, ONE[1:]
    ),
    "DotProductAttention.forward() got an unexpected keyword argument 'attn_mask'. Did": lambda: (
        DotProductAttention()(ONE, ONE, ONE, attn_mask=ONE)
    ),
    "DotProductAttention.forward() missing 1 required positional argument: 'v'": lambda: (
        DotProductAttention()(ONE, ONE)
    ),
    "k must be a torch.Tensor, got ndarray": lambda: DotProductAttention()(ONE, ONE.numpy(), ONE),
    "mask must be bool": lambda: DotProductAttention()(ONE, ONE, ONE, mask=ONE[:, :1] @ ONE[:1]),
}


@pytest.mark.parametrize("message", WRONG)
def test_errors_name_the_argument(message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        WRONG[message]()
