# SPDX-License-Identifier: Apache-2.0
"""Tests the operator qkv::attention: graphs, transformations, tensors without values."""

import pytest
from torch_versions import OPERATOR, requires, torch

requires(2, 5, OPERATOR)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import qkv.torch  # noqa: E402
from qkv.torch import _attention, _questions, _schema  # noqa: E402

B, H, G, TQ, TK, D, E, U = 2, 4, 2, 3, 5, 4, 3, 6
F64 = torch.float64

attention = qkv.torch.attention


def draw(*shape, seed=0, dtype=F64):
    x = torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype)


def inputs_of(dtype=F64, heads=G):
    shapes = (B, H, TQ, D), (B, heads, TK, D), (B, heads, TK, E)
    return tuple(draw(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes))


def wanting(tensors):
    return [x.clone().requires_grad_() for x in tensors]


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


EVERYTHING = {
    "return_weights": "both",
    "return_scores": ("raw", "capped", "masked"),
    "return_lse": True,
    "return_row_max": True,
    "return_column_sums": True,
    "return_top": 2,
    "return_entropy": True,
    "return_value_sums": True,
    "return_pooled": (2, 3),
}
ADDITIVE = {"Wq": draw(U, D), "Wk": draw(U, D), "v": draw(U), "b": draw(U)}

CASES = {
    "plain": {},
    "causal": {"causal": True, "softcap": 2.0, "scale": 0.3},
    "top left": {"causal": "top_left"},
    "lengths": {"key_lengths": [5, 2], "window": (2, None), "threads": 1},
    "padding": {"padding_mask": torch.tensor([[False] * TK, [False] * 3 + [True] * 2])},
    "mask": {"mask": draw(TQ, TK, seed=7) > -1, "causal_offset": 1, "causal": True},
    "offsets": {"causal_offset": [1, 2], "window": (2, 1), "qk_norm": True},
    "bias": {"bias": draw(H, TQ, TK), "sinks": [0.5] * H, "alibi_slopes": draw(H)},
    "dropout": {"dropout": 0.4, "seed": 2**64 - 3},
    "rotary": {
        "rotary": "halves",
        "rotary_base": 100.0,
        "rotary_width": 2,
        "k_positions": range(TK),
    },
    "bilinear": {"score": "bilinear", "params": {"W": draw(D, D)}},
    "additive": {"score": "additive", "params": ADDITIVE},
    "everything": {**EVERYTHING, "dropout": 0.3, "seed": 3, "softcap": 2.0},
    "rows": {"return_weights": True, "return_scores": "raw", "rows": [2, 0]},
    "dropped": {"return_weights": "dropped", "dropout": 0.3, "seed": 3},
    "sums": {"return_column_sums": [2, 0, 2], "return_value_sums": True},
}
# {name: (function that changes q, k or v, options for the changed tensors)}.
VARIANTS = {
    "bhtd": (lambda x: x, {}),
    "bthd": (lambda x: x.transpose(1, 2), {"layout": "bthd"}),
    "merged": (lambda x: x.transpose(1, 2).flatten(2), {"heads": (H, G)}),
    "rank 5": (lambda x: x[None], {}),
}


def call(options, tensors, **more):
    return attention(*tensors, **{**options, **more})


def flat(results):
    parts = results if isinstance(results, tuple) else (results,)
    return [x for part in parts for x in (part if isinstance(part, tuple) else (part,))]


def assert_same(got, want):
    assert type(got).__name__ == type(want).__name__
    for x, y in zip(flat(got), flat(want)):
        assert torch.equal(x, y)


# ---- registration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["causal", "lengths", "bias", "dropout", "additive", "everything", "sums"]
)
def test_opcheck(name):
    q, k, v = wanting(inputs_of(heads=H))
    tensors, plain = _schema.operands({"q": q, "k": k, "v": v, **CASES[name]})
    asked = _schema.requests_of(CASES[name], _schema.returned_of(CASES[name]))
    torch.library.opcheck(
        torch.ops.qkv.attention.default,
        (*tensors, *plain, *asked),
        rtol=0,
        atol=0,
    )


def test_opcheck_of_the_backward_pass():
    q, k, v = inputs_of()
    bias = draw(H, TQ, TK)
    tensors, plain = _schema.operands({"q": q, "k": k, "v": v, "bias": bias, "causal": True})
    out, lse = torch.ops.qkv.attention(*tensors, *plain)[:2]
    torch.library.opcheck(
        torch.ops.qkv.attention_backward.default,
        (draw(*out.shape, seed=5), None, None, out, lse, *tensors, *plain, "q,v,bias"),
    )


@pytest.mark.parametrize("name", ["plain", "lengths", "dropout", "bias", "additive"])
def test_gradients_equal_finite_differences(name):
    def outputs(q, k, v):
        tensors, plain = _schema.operands({"q": q, "k": k, "v": v, **CASES[name]})
        out, lse, weights, *_ = torch.ops.qkv.attention(*tensors, *plain, "weights")
        return out, lse.nan_to_num(neginf=0.0), weights  # lse is -inf in empty rows

    inputs = wanting(inputs_of())
    assert torch.autograd.gradcheck(outputs, inputs, eps=1e-6, atol=1e-7, rtol=1e-6)


def test_defaults_of_the_schema_are_those_of_the_function():
    q, k, v = inputs_of()
    assert torch.equal(torch.ops.qkv.attention(q, k, v)[0], attention(q, k, v))
    got = torch.ops.qkv.attention(q, k, v, causal="top_left", returned="row_max")
    want = attention(q, k, v, causal="top_left", return_row_max=True)
    assert torch.equal(got[0], want.out) and torch.equal(got[7], want.row_max)
    assert got[2].numel() == 0


def test_plain_calls_do_not_use_the_operator(monkeypatch):
    """Calls that nothing records do not pay for the operator's dispatch."""

    def refuse(*_):
        raise AssertionError("the operator was called")

    monkeypatch.setattr(_attention, "_operator_call", refuse)
    q, k, v = inputs_of()
    attention(q, k, v, causal=True)
    attention(*wanting((q, k, v))).sum().backward()
    with pytest.raises(AssertionError, match="the operator was called"):
        attention(q.to("meta"), k.to("meta"), v.to("meta"))


# ---- graphs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_compiled_calls_give_the_same_bits(name):
    inputs = inputs_of()
    got = compiled(lambda *tensors: call(CASES[name], tensors))(*inputs)
    assert_same(got, call(CASES[name], inputs))


@pytest.mark.parametrize("name", ["causal", "lengths", "bias", "dropout", "additive"])
def test_compiled_gradients_have_the_same_bits(name):
    def loss(*tensors):
        out, lse, weights = call(CASES[name], tensors, return_lse=True, return_weights=True)
        return (out**2).sum() + lse.sum() + (weights**2).sum()

    inputs = wanting(inputs_of())
    want = torch.autograd.grad(loss(*inputs), inputs)
    got = torch.autograd.grad(compiled(loss)(*inputs), inputs)
    for x, y in zip(got, want):
        assert torch.equal(x, y)


def test_inductor_compiles_it():
    torch._dynamo.reset()
    inputs = wanting(inputs_of())

    def loss(q, k, v):
        return (attention(q * 2, k, v, causal=True) ** 2).sum()

    got = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*inputs), inputs)
    for x, y in zip(got, torch.autograd.grad(loss(*inputs), inputs)):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13)


def test_sizes_may_be_symbols():
    function = compiled(lambda q, k, v: attention(q, k, v, causal=True), dynamic=True)
    q, k, v = inputs_of()
    for n in (3, 2):
        assert torch.equal(function(q[:, :, :n], k, v), attention(q[:, :, :n], k, v, causal=True))


def test_a_drawn_seed_is_drawn_when_the_graph_runs():
    def dropped(q, k, v):
        seed = torch.randint(0, 2**63 - 1, ())
        return attention(q, k, v, dropout=0.5, seed=seed)

    function, inputs = compiled(dropped), inputs_of()
    torch.manual_seed(1)
    first, second = function(*inputs), function(*inputs)
    torch.manual_seed(1)
    assert not torch.equal(first, second)
    assert torch.equal(first, function(*inputs))
    torch.manual_seed(1)
    assert torch.equal(first, dropped(*inputs))


@pytest.mark.parametrize("training", [False, True])
def test_modules_are_compiled_whole(training):
    x = draw(2, 5, 8).float()
    attend = qkv.torch.nn.DotProductAttention(0.5)
    multihead = qkv.torch.nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    for module in (attend, multihead):
        module.train(training)
        function = compiled(module)
        torch.manual_seed(1)
        first, second = flat(function(x, x, x)), flat(function(x, x, x))
        torch.manual_seed(1)
        for got, again, want in zip(first, second, flat(module(x, x, x))):
            torch.testing.assert_close(got, want)
            assert torch.equal(got, again) is not training


def test_unknown_options_are_named_in_graphs_too():
    with pytest.raises(Exception, match="unexpected keyword argument 'maks'"):
        compiled(lambda q, k, v: attention(q, k, v, maks=None))(*inputs_of())


class Module(torch.nn.Module):
    def forward(self, q, k, v):
        return attention(q, k, v, causal=True, return_lse=True).out


def test_export():
    q, k, v = inputs_of()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(Module(), (q, k, v), dynamic_shapes=({0: batch},) * 3)
    assert "torch.ops.qkv.attention.default" in program.graph_module.code
    got = program.module()(q[:1], k[:1], v[:1])
    assert torch.equal(got, Module()(q[:1], k[:1], v[:1]))


def test_make_fx_records_it():
    graph = make_fx(lambda q, k, v: attention(q, k, v))(*inputs_of())
    assert "torch.ops.qkv.attention.default" in graph.code
    other = tuple(2 * x for x in inputs_of())
    assert torch.equal(graph(*other), attention(*other))


# ---- tensors without values ---------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["plain", "everything", "rows", "dropped", "sums"])
def test_meta_tensors_give_the_shapes_of_real_ones(name, variant):
    change, layout = VARIANTS[variant]
    tensors = [change(x) for x in inputs_of()]
    want = call({**CASES[name], **layout}, tensors)
    got = call({**CASES[name], **layout}, [x.to("meta") for x in tensors])
    for x, y in zip(flat(got), flat(want)):
        assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
        assert x.device.type == "meta"


SHAPES = {
    "rank 2": ((3, 4), (5, 4), (5, 6)),
    "rank 3": ((2, 3, 4), (2, 5, 4), (2, 5, 6)),
    "rank 3 and 2": ((2, 3, 4), (5, 4), (5, 6)),
    "rank 2 and 3": ((3, 4), (1, 5, 4), (1, 5, 6)),
    "rank 2 and 4": ((3, 4), (2, 4, 5, 4), (2, 4, 5, 6)),
    "rank 3 and 4": ((1, 3, 4), (2, 4, 5, 4), (2, 4, 5, 6)),
    "broadcast": ((7, 1, 4, 3, 4), (2, 2, 5, 4), (2, 5, 6)),
    "one batch": ((1, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_meta_tensors_of_other_ranks(name):
    tensors = [draw(*shape, dtype=torch.bfloat16) for shape in SHAPES[name]]
    asked = {"return_weights": True, "return_lse": True, "return_column_sums": True,
             "return_entropy": True, "return_pooled": (2, 2)}  # fmt: skip
    want = attention(*tensors, **asked)
    got = attention(*(x.to("meta") for x in tensors), **asked)
    assert [(x.shape, x.dtype) for x in got] == [(x.shape, x.dtype) for x in want]
    without = attention(*(x.to("meta") for x in tensors[:2]), None, **asked)
    assert [x.shape for x in without] == [x.shape for x in want[1:]]


def test_packed_and_merged_meta_tensors():
    asked = {"return_lse": True, "return_entropy": True, "return_pooled": (3, 2)}
    starts = {"cu_seqlens_q": [0, 2, 6], "cu_seqlens_k": [0, 4, 6], **asked}
    for shape, options in (((6, 4, 8), {}), ((6, 32), {"heads": 4})):
        x = draw(*shape)
        want = attention(x, x, x, **starts, **options)
        got = attention(*[x.to("meta")] * 3, **starts, **options)
        assert [x.shape for x in got] == [x.shape for x in want]
    x = draw(6, 32)
    got = attention(*[x.to("meta")] * 3, heads=4, **asked)
    assert [y.shape for y in got] == [y.shape for y in attention(x, x, x, heads=4, **asked)]


def test_fake_tensors():
    with FakeTensorMode() as mode:
        inputs = [mode.from_tensor(x) for x in inputs_of()]
        assert attention(*inputs).shape == (B, H, TQ, E)
    weights = attention(*inputs, return_weights=True).weights  # outside of the mode
    assert type(weights).__name__ == "FakeTensor" and weights.shape == (B, H, TQ, TK)


def test_too_few_axes_are_named_without_values():
    with pytest.raises(ValueError, match=r"^attention: q must have at least 2 axes, got \[3\]"):
        attention(*[torch.ones(3, device="meta")] * 3)


# ---- torch.func ---------------------------------------------------------------------------------

STATISTICS = {"return_entropy": True, "return_value_sums": True, "return_column_sums": True}
VMAPPED = {
    "rank 4": ((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6), {}),
    "rank 3": ((2, 3, 4), (2, 5, 4), (2, 5, 6), {"causal": True}),
    "rank 2": ((3, 4), (5, 4), (5, 6), {"mask": draw(3, 5, seed=7) > 0}),
    "mixed": ((2, 3, 4), (5, 4), (5, 6), {"softcap": 2.0}),
    "one head of q": ((2, 1, 3, 4), (4, 5, 4), (4, 5, 6), {}),
    "bias": ((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6), {"bias": draw(4, 3, 5)}),
    "bias of rank 3": ((2, 3, 4), (2, 5, 4), (2, 5, 6), {"bias": draw(2, 3, 5)}),
    "sinks": ((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6), {"sinks": draw(4)}),
    "lengths": ((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6), {"key_lengths": [5, 2]}),
    "dropout": ((2, 4, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6), {"dropout": 0.4, "seed": 3}),
    "merged": ((2, 3, 8), (2, 5, 8), (2, 5, 8), {"heads": 2}),
    "sums": ((2, 3, 4), (2, 5, 4), (2, 5, 6), {"return_column_sums": [2, 0]}),
    "statistics": ((2, 3, 4), (2, 5, 4), (2, 5, 6), {**STATISTICS, "return_pooled": (2, 3)}),
}


@pytest.mark.parametrize("name", VMAPPED)
@pytest.mark.parametrize("batched", [(0, 0, 0), (1, None, None), (None, 0, -1)])
def test_vmap_gives_the_bits_of_single_calls(name, batched):
    *shapes, options = VMAPPED[name]
    size = 3

    def with_batch(n, shape, axis):
        x = draw(*(shape if axis is None else (size, *shape)), seed=n)
        return x if axis is None else x.movedim(0, axis)

    inputs = [with_batch(n, s, axis) for n, (s, axis) in enumerate(zip(shapes, batched))]
    single = [
        [x if a is None else x.select(a, i) for x, a in zip(inputs, batched)] for i in range(size)
    ]

    def results(*tensors):
        return tuple(attention(*tensors, **options, return_lse=True, return_weights=True))

    def gradients(*tensors):
        return torch.func.grad(lambda *x: sum((y**2).sum() for y in results(*x)), (0, 1, 2))(
            *tensors
        )

    for function in (results, gradients):
        got = torch.vmap(function, in_dims=batched)(*inputs)
        for x, y in zip(got, zip(*(function(*tensors) for tensors in single))):
            assert torch.equal(x, torch.stack(y))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_lists_of_frequencies_have_the_bits_of_plain_calls(dtype):
    tensors = inputs_of(dtype)
    options = {"rotary": "halves", "rotary_frequencies": [0.1, 0.3]}
    want = attention(*tensors, **options)
    assert torch.equal(compiled(lambda *x: attention(*x, **options))(*tensors), want)
    got = torch.func.vmap(lambda *x: attention(*x, **options))(*(x[None] for x in tensors))
    assert torch.equal(got[0], want)


def test_vmap_of_a_bias_has_its_gradient():
    q, k, v = inputs_of()
    biases = draw(3, H, TQ, TK, seed=4)
    gradient = torch.func.grad(lambda bias: (attention(q, k, v, bias=bias) ** 2).sum())
    got = torch.vmap(gradient)(biases)
    assert torch.equal(got, torch.stack([gradient(bias) for bias in biases]))


def test_vmap_gives_a_gradient_of_shared_sinks_for_each_entry():
    q, k, v = (x[None].expand(3, *x.shape) * 1.5 for x in inputs_of())
    q = q * torch.arange(1.0, 4.0, dtype=F64).reshape(3, 1, 1, 1, 1)
    sinks = draw(H, seed=5)
    gradient = torch.func.grad(lambda s, *x: (attention(*x, sinks=s) ** 2).sum())
    got = torch.vmap(gradient, in_dims=(None, 0, 0, 0))(sinks, q, k, v)
    assert torch.equal(got, torch.stack([gradient(sinks, *x) for x in zip(q, k, v)]))


def test_transformations_may_be_nested():
    inputs = inputs_of(heads=H)

    def loss(q, k, v):
        return (attention(q, k, v, causal=True) ** 2).sum()

    want = torch.autograd.grad(loss(*(leaves := wanting(inputs))), leaves)
    got = torch.func.grad(loss, (0, 1, 2))(*inputs)
    outer = torch.func.grad(lambda *x: torch.vmap(loss)(*x).sum(), (0, 1, 2))(*inputs)
    twice = torch.vmap(torch.vmap(torch.func.grad(loss, (0, 1, 2))))(*inputs)
    for x, y, z in zip(want, got, outer):
        assert torch.equal(x, y) and torch.equal(x, z)
    one = torch.func.grad(loss)(*(x[1, 1] for x in inputs))
    assert torch.equal(twice[0][1, 1], one)


def test_jacobians_are_rows_of_single_gradients():
    q, k, v = inputs_of()
    (q,) = wanting([q])
    out = attention(q, k, v, causal=True)
    every = torch.eye(out.numel(), dtype=F64).reshape(-1, *out.shape)
    want = torch.stack([torch.autograd.grad(out, q, x, retain_graph=True)[0] for x in every])
    (batched,) = torch.autograd.grad(out, q, every, is_grads_batched=True, retain_graph=True)
    assert torch.equal(batched, want)
    jacobian = torch.func.jacrev(lambda q: attention(q, k, v, causal=True))(q.detach())
    assert torch.equal(jacobian.reshape(want.shape), want)


def test_other_derivatives_are_refused_everywhere():
    inputs = inputs_of()

    def loss(q):
        return (attention(q, *inputs[1:]) ** 2).sum()

    q = inputs[0]
    second = r"there is no second derivative of qkv\.torch\.attention"
    with pytest.raises(RuntimeError, match=second):
        torch.func.jacrev(torch.func.jacrev(loss))(q)
    leaf = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(compiled(loss)(leaf), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="twice|second derivative|double backward"):
        gradient.sum().backward()
    out = torch.ops.qkv.attention(leaf, *inputs[1:])[0]
    (gradient,) = torch.autograd.grad((out**2).sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match=second):
        gradient.sum().backward()
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(loss, (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            torch.ops.qkv.attention(dual, *inputs[1:])


# ---- autocast -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_chooses_the_dtype(dtype):
    inputs = inputs_of(torch.float32)
    bias = draw(TQ, TK, dtype=torch.float32)
    want = attention(*(x.to(dtype) for x in inputs), bias=bias)
    leaves = wanting(inputs)
    with torch.autocast("cpu", dtype=dtype):
        got = attention(*leaves, bias=bias)
        assert attention(*inputs_of()).dtype == F64  # autocast keeps float64, as in PyTorch
        in_graph = compiled(lambda *x: attention(*x, bias=bias))(*inputs)
    assert got.dtype == dtype and torch.equal(got, want) and torch.equal(in_graph, want)
    got.sum().backward()
    assert leaves[0].grad.dtype == torch.float32


@pytest.mark.parametrize("name", ["return_lse", "return_row_max", "return_value_sums"])
def test_a_flag_is_true_or_false_under_autocast_too(name):
    for asked in (1, "yes"):
        for enabled in (False, True):
            with (
                torch.autocast("cpu", enabled=enabled),
                pytest.raises(TypeError, match=f"^attention: {name} must be True or False, got "),
            ):
                attention(*inputs_of(), **{name: asked})


# ---- a PyTorch without operators ----------------------------------------------------------------


def test_an_old_pytorch_is_named(monkeypatch):
    monkeypatch.setattr(_questions, "AVAILABLE", False)
    with pytest.raises(RuntimeError, match=r"of PyTorch 2\.5 or newer; this is "):
        attention(*(x.to("meta") for x in inputs_of()))
    assert attention(*inputs_of()).shape == (B, H, TQ, E)
