# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch.attention as a function of PyTorch's autograd."""

import gc
import re
import warnings
import weakref

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch_versions import VERSION, needs, torch

import qkv
import qkv.torch

B, H, G, TQ, TK, D, E, U = 2, 4, 2, 3, 5, 4, 3, 6
F64 = torch.float64


def draw(*shape, seed=0, dtype=F64, wants=True):
    x = torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).requires_grad_(wants)


def qkv_of(dtype=F64, heads=G):
    shapes = (B, H, TQ, D), (B, heads, TK, D), (B, heads, TK, E)
    return tuple(draw(*shape, seed=n, dtype=dtype) for n, shape in enumerate(shapes))


# ---- gradients against finite differences -------------------------------------------------------

CASES = {
    "plain": ({}, ()),
    "lengths": ({"key_lengths": [5, 2], "causal": True, "softcap": 2.0}, ()),
    "masks": ({"mask": draw(TQ, TK, seed=7, wants=False) > 0, "window": (2, 1)}, ()),
    "dropout": ({"dropout": 0.4, "seed": 3}, ()),
    "bias": ({"scale": 0.3}, ("bias",)),
    "alibi": ({"causal": "top_left"}, ("alibi_slopes", "sinks")),
    "bilinear": ({"score": "bilinear"}, ("W",)),
    "additive": ({"score": "additive"}, ("Wq", "Wk", "v", "b")),
    "per head": ({"score": "bilinear", "causal": True}, ("W of heads", "bias", "sinks")),
}
SHAPES = {
    "bias": (H, TQ, TK),
    "alibi_slopes": (H,),
    "sinks": (H,),
    "W": (D, D),
    "W of heads": (H, D, D),
    "Wq": (U, D),
    "Wk": (U, D),
    "v": (U,),
    "b": (U,),
}


def call_with(options, names, tensors, **more):
    """Calls attention: the first 3 tensors are q, k and v, the others the arguments in `names`."""
    q, k, v, *rest = tensors
    options = {**options, **more}
    for name, tensor in zip(names, rest):
        if name in ("bias", "alibi_slopes", "sinks"):
            options[name] = tensor
        else:
            options.setdefault("params", {})[name.split()[0]] = tensor
    return qkv.torch.attention(q, k, v, **options)


@pytest.mark.parametrize("more", [{}, {"return_weights": True, "return_lse": True}])
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_finite_differences(name, more):
    options, names = CASES[name]
    inputs = (*qkv_of(), *(draw(*SHAPES[n], seed=10 + i) for i, n in enumerate(names)))

    def call(*tensors):
        given = {key: value for key, value in options.items()}
        return call_with(given, names, tensors, **more)

    assert torch.autograd.gradcheck(call, inputs, eps=1e-6, atol=1e-7, rtol=1e-6)


@needs(2, 1, "autograd.grad(materialize_grads=True)")
@pytest.mark.parametrize("names", [("out",), ("weights",), ("lse",), ("out", "lse")])
def test_a_loss_may_be_of_any_result(names):
    q, k, v = inputs = qkv_of(heads=H)

    def of_torch():
        scores = q @ k.mT / D**0.5
        weights = torch.softmax(scores, -1)
        return {"out": weights @ v, "weights": weights, "lse": torch.logsumexp(scores, -1)}

    def ours():
        results = qkv.torch.attention(q, k, v, return_weights=True, return_lse=True)
        return dict(zip(("out", "weights", "lse"), results))

    def gradients(results):
        loss = sum((results[name] ** 2).sum() for name in names)
        return torch.autograd.grad(loss, inputs, materialize_grads=True)

    for got, want in zip(gradients(ours()), gradients(of_torch())):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


def test_packed_sequences_and_other_memory_orders():
    q, k, v = qkv_of()
    out = qkv.torch.attention(q, k, v)
    dout = draw(*out.shape, seed=5, wants=False)
    want = torch.autograd.grad(out, (q, k, v), dout)

    transposed = [x.transpose(1, 2) for x in (q, k, v)]
    other = qkv.torch.attention(*transposed, layout="bthd")
    torch.testing.assert_close(other.transpose(1, 2), out, rtol=0, atol=0)
    for got, x in zip(torch.autograd.grad(other, (q, k, v), dout.transpose(1, 2)), want):
        torch.testing.assert_close(got, x, rtol=0, atol=0)

    packed = [x.flatten(0, 1) for x in transposed]
    starts = {f"cu_seqlens_{x}": [0, t, 2 * t] for x, t in (("q", TQ), ("k", TK))}
    other = qkv.torch.attention(*packed, **starts)
    torch.testing.assert_close(other, out.transpose(1, 2).flatten(0, 1), rtol=0, atol=0)
    gradients = torch.autograd.grad(other, (q, k, v), dout.transpose(1, 2).flatten(0, 1))
    for got, x in zip(gradients, want):
        torch.testing.assert_close(got, x, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_have_the_types_of_their_inputs(dtype):
    q, k, v = qkv_of(dtype)
    out = qkv.torch.attention(q, k, v, causal=True)
    assert out.dtype == dtype
    out.sum().backward()  # dout has strides 0
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    qkv.torch.attention(*exact, causal=True).sum().backward()
    for x, want in zip((q, k, v), exact):
        assert x.grad.dtype == dtype
        bound = 8 * torch.finfo(dtype).eps * want.grad.abs().max().item()
        torch.testing.assert_close(x.grad.double(), want.grad, rtol=0, atol=bound)


def test_float32_queries_on_bfloat16_keys():
    q, k, v = (x.detach() for x in qkv_of(torch.bfloat16))
    q = q.float().requires_grad_()
    k.requires_grad_()
    qkv.torch.attention(q, k, v).sum().backward()
    assert (q.grad.dtype, k.grad.dtype, v.grad) == (torch.float32, torch.bfloat16, None)


# ---- rules of autograd --------------------------------------------------------------------------


def test_only_tensors_that_require_gradients_get_them():
    q, k, v = qkv_of()
    bias = draw(TQ, TK, wants=False)
    W = draw(D, D, seed=4)
    out = qkv.torch.attention(
        q.detach(), k, v.detach(), score="bilinear", params={"W": W}, bias=bias
    )
    out.sum().backward()
    assert q.grad is None and v.grad is None and bias.grad is None
    assert k.grad is not None and W.grad.shape == (D, D)


def test_calls_without_gradients_equal_qkv_attention():
    q, k, v = qkv_of()
    want = qkv.attention(q.detach(), k.detach(), v.detach(), return_lse=True, return_top=2)
    with torch.no_grad():
        got = qkv.torch.attention(q, k, v, return_lse=True, return_top=2)
    for x, y in zip((*got[:2], *got[2]), (*want[:2], *want[2])):
        assert torch.equal(x, y) and x.grad_fn is None
    assert qkv.torch.attention(q.detach(), k.detach(), v.detach()).grad_fn is None


def test_results_without_gradients_do_not_require_them():
    q, k, v = qkv_of()
    options = {
        "return_weights": "dropped",
        "return_scores": "raw",
        "return_lse": True,
        "return_row_max": True,
        "return_column_sums": True,
        "return_top": 2,
        "dropout": 0.5,
        "seed": 1,
    }
    results = qkv.torch.attention(q, k, v, **options)
    want = qkv.attention(q.detach(), k.detach(), v.detach(), **options)
    *flat, top = results
    assert [x.requires_grad for x in flat] == [True, False, False, True, False, False]
    assert [x.requires_grad for x in top] == [False, False]
    for x, y in zip((*flat, *top), (*want[:-1], *want[-1])):
        assert torch.equal(x, y)
    (flat[0].sum() + flat[3].sum()).backward()
    assert q.grad is not None


def test_weights_and_lse_do_not_need_v():
    q, k, _ = qkv_of()
    weights, lse = qkv.torch.attention(q, k, None, return_weights=True, return_lse=True)
    (got,) = torch.autograd.grad((weights**2).sum() + lse.sum(), q)
    scores = q @ k.repeat_interleave(H // G, 1).mT / D**0.5
    want = (torch.softmax(scores, -1) ** 2).sum() + torch.logsumexp(scores, -1).sum()
    torch.testing.assert_close(got, *torch.autograd.grad(want, q), rtol=1e-12, atol=1e-13)
    (only,) = qkv.torch.attention(q, k, None, return_weights=True)
    assert torch.equal(only, weights)


@pytest.mark.parametrize("loss", [torch.sum, lambda out: (out**2).sum()])
def test_a_second_derivative_is_refused(loss):
    q, k, v = qkv_of()
    value = loss(qkv.torch.attention(q, k, v))
    (want,) = torch.autograd.grad(value, q, retain_graph=True)
    (gradient,) = torch.autograd.grad(value, q, create_graph=True)
    assert torch.equal(gradient, want)
    with pytest.raises(RuntimeError, match=r"there is no second derivative of qkv\.torch\.atten"):
        (gradient**2).sum().backward()


def test_inputs_changed_after_the_call_are_refused():
    q, k, v = qkv_of()
    mask = torch.ones(TQ, TK, dtype=torch.bool)
    for changed in (k, mask):
        out = qkv.torch.attention(q, k, v, mask=mask)
        with torch.no_grad():
            changed.copy_(changed.clone())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("name", ["score_mod", "mask_mod"])
def test_tensors_that_mods_read_must_not_change_before_the_backward_pass(name):
    q, k, v = qkv_of()
    limit = torch.tensor(TK - 1)
    mods = {
        "score_mod": lambda s, at: torch.where(at.j < limit, s, -torch.inf),
        "mask_mod": lambda at: at.j < limit,
    }
    out = qkv.torch.attention(q, k, v, **{name: mods[name]})
    limit.sub_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_all_results_keep_their_names_where_gradients_are_needed():
    q, k, v = qkv_of()
    asked = {"return_top": 2, "return_entropy": True, "return_value_sums": True,
             "return_pooled": (1, 1)}  # fmt: skip
    got = qkv.torch.attention(q, k, v, **asked)
    want = qkv.torch.attention(q.detach(), k.detach(), v.detach(), **asked)
    assert got._fields == want._fields
    for name, x, y in zip(got._fields, got, want):
        pairs = zip(x, y) if name == "top" else ((x, y),)
        assert all(torch.equal(a, b) for a, b in pairs), name


def test_the_graph_may_be_kept():
    q, k, v = qkv_of()
    out = qkv.torch.attention(q, k, v)
    first = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
    for x, y in zip(first, torch.autograd.grad(out.sum(), (q, k, v))):
        assert torch.equal(x, y)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


def test_a_module_learns_with_it():
    torch.manual_seed(0)
    project = torch.nn.Linear(4, 4)
    optimiser = torch.optim.Adam(project.parameters(), lr=0.05)
    x = torch.randn(8, 6, 4)
    target = x.flip(1)

    def loss():
        q = project(x)
        return ((qkv.torch.attention(q, x, target, scale=4.0) - target) ** 2).mean()

    first = loss().item()
    for _ in range(100):
        optimiser.zero_grad()
        value = loss()
        value.backward()
        optimiser.step()
    assert value.item() < 0.5 * first


# ---- errors -------------------------------------------------------------------------------------


def test_wrong_calls():
    q, k, v = qkv_of()
    with pytest.raises(TypeError, match=r"^attention: k must be a torch\.Tensor, got ndarray$"):
        qkv.torch.attention(q, k.detach().numpy(), v)
    with pytest.raises(TypeError, match="unexpected keyword argument 'maks'"):
        qkv.torch.attention(q, k, v, maks=None)
    with pytest.raises(ValueError, match="^attention: k has D = 3 but q has D = 4 "):
        qkv.torch.attention(q, k[..., :3], v)
    with pytest.raises(TypeError, match="^attention: mask must be bool or an integer type"):
        qkv.torch.attention(q, k, v, mask=torch.ones(TQ, TK))
    with pytest.raises(TypeError, match="^attention: params must be a dict"):
        qkv.torch.attention(q, k, v, score="bilinear", params=[1])
    with pytest.raises(ValueError, match="^attention: params may have the keys"):
        qkv.torch.attention(q, k, v, score="bilinear", params={"V": q})


def test_inputs_are_freed_after_the_backward_pass():
    """The backward pass releases the saved tensors even while the result still exists."""
    q, k, v = (1 * x for x in qkv_of())
    W, bias = 1 * draw(D, D), 1 * draw(H, TQ, TK)
    out = qkv.torch.attention(q, k, v, score="bilinear", params={"W": W}, bias=bias)
    held = [weakref.ref(x) for x in (q, k, v, W, bias)]
    del q, k, v, W, bias
    out.sum().backward()
    gc.collect()
    assert [x() for x in held] == [None] * 5
    assert out.grad_fn is not None


class Named(torch.Tensor):
    """A tensor subclass that overrides no functions."""


@pytest.mark.parametrize("kind", [Named, torch.nn.Parameter])
def test_subclasses_of_tensors(kind):
    plain = qkv_of()
    want = qkv.torch.attention(*plain, causal=True)
    want.sum().backward()

    def of_kind(x):
        x = x.detach().clone()
        return kind(x) if kind is torch.nn.Parameter else x.as_subclass(kind).requires_grad_()

    tensors = [of_kind(x) for x in plain]
    for q, k, v in (tensors, [x.detach() for x in tensors]):
        out, lse = qkv.torch.attention(q, k, v, causal=True, return_lse=True)
        assert isinstance(out, torch.Tensor) and isinstance(lse, torch.Tensor)
        assert torch.equal(torch.Tensor(out.detach()), want.detach())
    qkv.torch.attention(*tensors, causal=True).sum().backward()
    for got, x in zip(tensors, plain):
        assert torch.equal(got.grad.as_subclass(torch.Tensor), x.grad)
    out = qkv.torch.scaled_dot_product_attention(*tensors, enable_gqa=True)
    assert out.shape == want.shape


# ---- tensors whose memory is not their value ----------------------------------------------------


class Hooked(torch.Tensor):
    """A tensor subclass that overrides functions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def odd_tensors(shape):
    plain = torch.ones(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that masked tensors are a prototype
        masked = torch.masked.masked_tensor(plain, plain > 0)
    with FakeTensorMode():
        fake = torch.ones(shape)
    found = {
        "Hooked": plain.as_subclass(Hooked),
        "MaskedTensor": masked,
        "FakeTensor": fake,
        "UninitializedParameter": torch.nn.UninitializedParameter(),
    }
    if VERSION >= (2, 3):
        parts = [torch.ones(1, 2)] * 2
        found["NestedTensor"] = torch.nested.nested_tensor(parts, layout=torch.jagged)
        found["CausalBias"] = causal_bias(*shape[-2:])
    return found


def test_nested_tensors_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(3, 2)])
    message = "k must have one shape, got a nested tensor; qkv.torch's scaled_dot"
    with pytest.raises(TypeError, match=message):
        qkv.attention(torch.ones(2, 2), nested, torch.ones(2, 2))


def causal_bias(queries, keys):
    from torch.nn.attention.bias import causal_upper_left

    return causal_upper_left(queries, keys)


ODD = sorted(odd_tensors((2, 2)))


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("argument", ["q", "bias", "mask", "key_lengths", "W", "dout"])
def test_tensors_whose_memory_is_not_their_value_are_refused(kind, argument):
    x = torch.ones(2, 2)
    odd = odd_tensors((2, 2))[kind]
    called = {"q": x, "k": x, "v": x, "score": "bilinear", "params": {"W": x}}
    function = qkv.attention
    if argument == "W":
        called["params"] = {"W": odd}
    elif argument == "dout":
        function = qkv.attention_backward
        called.update(dout=odd, out=x, lse=x[0])
    else:
        called[argument] = odd
    name = 'params["W"]' if argument == "W" else argument
    text = (
        rf"{re.escape(name)} must be a tensor whose memory is its value, got \S*\.{kind}, a class"
    )
    with pytest.raises(TypeError, match=text):
        function(**called)


@pytest.mark.parametrize("kind", ODD)
def test_other_functions_refuse_odd_tensors(kind):
    odd = odd_tensors((2, 2))[kind]
    for call in (
        lambda: qkv.softmax(odd),
        lambda: qkv.masked_softmax(torch.ones(2, 2), odd),
        lambda: qkv.batch_dot(torch.ones(2, 2), odd),
        lambda: qkv.Linear(2, 2).forward(odd),
    ):
        with pytest.raises(TypeError, match=f"a tensor whose memory is its value, got .*{kind}"):
            call()


def test_state_dicts_refuse_odd_tensors():
    odd = odd_tensors((2, 2))["Hooked"]
    with pytest.raises(TypeError, match="a tensor whose memory is its value, got .*Hooked"):
        qkv.BilinearAttention(2, 2).load_torch({"W": odd})


@needs(2, 3, "torch.nn.attention.bias")
def test_the_error_for_a_causal_bias_says_what_to_write():
    x = torch.ones(2, 2)
    with pytest.raises(TypeError, match='use causal="top_left" or "bottom_right" instead$'):
        qkv.torch.attention(x, x, x, mask=causal_bias(2, 2))


@pytest.mark.parametrize("argument", ["q", "v", "bias", "W"])
@pytest.mark.parametrize(
    "function, wants",  # qkv.attention refuses tensors that require gradients, whatever else is set
    [(qkv.attention, False), (qkv.torch.attention, False), (qkv.torch.attention, True)],
)
def test_tangents_are_not_lost(argument, wants, function):
    """A dual tensor without requires_grad is rejected, whether or not k requires gradients."""
    x = torch.ones(2, 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone(), x)
        k = x.clone().requires_grad_(wants)
        called = {"q": x, "k": k, "v": x, "score": "bilinear", "params": {"W": x}}
        if argument == "W":
            called["params"] = {"W": dual}
        else:
            called[argument] = dual
        with pytest.raises((TypeError, RuntimeError), match=r"forward-mode d.*backward pass"):
            function(**called)
        with torch.no_grad(), pytest.raises((TypeError, RuntimeError), match="forward-mode d"):
            qkv.torch.attention(**called)
        # Inside a dual level, tensors without a tangent are accepted.
        assert torch.equal(qkv.attention(x, x, x), qkv.torch.attention(x, x, x))


def test_negated_views_have_their_sign():
    x = torch.ones(2, 2, dtype=torch.complex128).mul(1 + 2j)
    negative = torch.resolve_conj(x).conj().imag
    assert negative.is_neg()
    want = qkv.attention(*[negative.clone().resolve_neg()] * 3)
    assert torch.equal(qkv.attention(negative, negative, negative), want)
