# SPDX-License-Identifier: Apache-2.0
"""Tests that calls with mods are bit-identical in graphs, under torch.func and autocast."""

import io
import operator

import numpy as np
import pytest
from torch_versions import needs, needs_operator, torch

import qkv
import qkv.torch

flex = pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = needs_operator
needs_modes = needs(2, 13, "torch.compile traces modes of functions")

B, H, T, D = 2, 4, 12, 8


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = (draw(B, H, T, D, seed=n) for n in range(3))
TABLE = draw(H, 2 * T, seed=3)
GAIN = draw(H, seed=4)
DOCUMENT = torch.arange(T) // 4
BY_KEY = np.linspace(-1, 1, T)
OF_KEYS, WEIGHTS = draw(H, T, 3, seed=5), draw(3, seed=6)
LISTED = torch.tensor([[0, 3], [1, 2], [2, 2], [3, 0]])


def relative(q, k, v, table):
    """Reads a table twice, a tensor computed from it, global tensors and a NumPy array."""

    def score(s, at):
        twice = table[at.h, at.i - at.j + T] * table[at.h][at.i]
        return s * GAIN[at.h] + twice + (2 * table)[at.h, at.j] + BY_KEY[at.j]

    def mask(at):
        return (DOCUMENT[at.i] == DOCUMENT[at.j]) | (at.j < at.b)

    return qkv.torch.attention(q, k, v, score_mod=score, mask_mod=mask)


def like_flex(q, k, v, table):
    def score(score, b, h, q_idx, kv_idx):
        near = torch.where((q_idx - kv_idx).abs() < 5, score, torch.tanh(score / 3) * 3)
        return near + table[h, q_idx - kv_idx + T].clamp(max=2.0)

    return qkv.torch.flex_attention(q, k, v, score)


def from_the_end(q, k, v, table):
    """Reads arrays at computed indices; negative ones count from the end."""

    def score(score, b, h, q_idx, kv_idx):
        later = table[h - 2, q_idx - kv_idx] * table[h, -1]
        return score + later + GAIN[DOCUMENT[kv_idx - q_idx] - h] + BY_KEY[kv_idx - 5]

    return qkv.torch.flex_attention(q, k, v, score)


CALLS = pytest.mark.parametrize("call", [relative, like_flex, from_the_end])


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def leaves(*tensors):
    return [x.clone().requires_grad_() for x in tensors]


def results(call, *tensors):
    """out, and the gradients of the tensors that require one."""
    out = call(*tensors)
    wanted = [x for x in tensors if x.requires_grad]
    return (out, *torch.autograd.grad(out.float().square().sum(), wanted))


def check(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@needs_modes
@CALLS
def test_compiled(call):
    tensors = leaves(Q, K, V, TABLE)
    check(results(compiled(call), *tensors), results(call, *tensors))


class Biased(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(TABLE.clone())
        self.register_buffer("gain", torch.tensor(1.5))
        self.slope = 0.5

    def forward(self, q, k, v, mask=None):
        table, gain, slope, queries = self.table, self.gain, self.slope, q.shape[2]

        def score(score, b, h, q_idx, kv_idx):
            far = slope * (q_idx - kv_idx).abs() * (1.0 / queries)
            return gain * score + table[h, q_idx - kv_idx + queries] - far

        return qkv.torch.flex_attention(q, k, v, score, mask, return_lse=True)


@needs_modes
def test_a_compiled_module_of_other_sizes_and_numbers():
    module = Biased()
    call = compiled(module, dynamic=False)
    for size, slope in ((7, 0.5), (9, 0.5), (12, 0.25), (10, 0.75)):
        module.slope = slope
        x = draw(B, H, size, D)
        got, want = call(x, x, x), module(x, x, x)
        check(got, want)
        of_table = [torch.autograd.grad(y[0].square().sum(), module.table) for y in (got, want)]
        check(*of_table)


@needs_modes
@pytest.mark.parametrize("name", ["causal", "document"])
def test_block_masks(name):
    functions = {"causal": lambda b, h, i, j: i >= j,
                 "document": lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]}  # fmt: skip
    mask = flex.create_block_mask(functions[name], None, None, T, T, device="cpu", BLOCK_SIZE=4)
    module = Biased()
    want = module(Q, K, V, mask)
    check(compiled(module)(Q, K, V, mask), want)
    check([torch.vmap(lambda q: module(q, K, V, mask))(Q[None])[0][0]], want[:1])


# Arithmetic, then six comparisons.
BINARY = [
    *(getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")),
    *(getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")),
]


def in_every_order(s, at, one, integer):
    """Applies operators to a symbol and a number or a tensor without axes, in both orders."""
    total = s
    for function in BINARY:
        for x, y in (
            (s, one),
            (one, s),
            (s, 0.75),
            (0.75, s),
            (at.i, integer),
            (integer, at.i + 1),
        ):
            result = function(x, y)
            total = total + torch.where(result, 0.5, -0.5) if function in BINARY[6:] else total + (
                result * 0.125)  # fmt: skip
    return total + 1.25**s - s**2 + (at.i << 2) % 3 + (at.j >> 1) + (at.i & 3) - +s


def with_functions(s, at, one, integer):
    change = torch.where(torch.logical_not(at.i < at.j) ^ (at.h == integer), s.abs(), -s)
    change = change + qkv.where(at.i < at.j, qkv.minimum(s, 2), qkv.maximum(s, one))
    change = change + abs(at.i - at.j).to(torch.float32) * (at.i - 3).float().relu()
    return torch.clamp(change, min=-1.5, max=5) + qkv.captured(GAIN, "gain")[at.h].sigmoid()


@needs_modes
@pytest.mark.parametrize("function", [in_every_order, with_functions])
def test_operations_keep_their_order_and_bits(function):
    def call(q, one, integer):
        return qkv.torch.attention(q, K, V, score_mod=lambda s, at: function(s, at, one, integer))

    tensors = (*leaves(Q, torch.tensor(1.5)), torch.tensor(3))
    want = results(call, *tensors)
    got = results(compiled(call), *tensors)
    check(got[:2], want[:2])
    # torch.compile swaps the operands of + and *, and with them the order of a sum of derivatives.
    torch.testing.assert_close(got[2], want[2], rtol=1e-5, atol=1e-5)
    out = torch.vmap(call, in_dims=(0, None, None))(Q[None], *tensors[1:])
    check([out[0]], want[:1])


def with_bits(s, at):
    return torch.where(((at.i ^ at.j) & 5 | 2) == 7, s, s * 0.5) + (at.i & at.j) * 0.125


def with_rows(s, at):
    row = OF_KEYS[at.h, at.j]
    part = (row * OF_KEYS[at.h][at.i]).sum(-1) + abs(row - 1)[..., 1:].mean(-1) + row[-1]
    is_listed = (LISTED[at.h] == (at.j // 3).unsqueeze(-1)).any(dim=-1)
    near = torch.dot(row, WEIGHTS) - WEIGHTS @ (WEIGHTS - row) + (row * WEIGHTS).sum()
    near = near + (BY_KEY[LISTED[at.h]] * 0.5).sum() / row.shape[-1]
    return s + torch.where(is_listed, part, near)


OF_PLACES = {
    "gelu": lambda s, at: torch.nn.functional.gelu(2 * s) + torch.erf(s),
    "modules": lambda s, at: torch.nn.GELU(approximate="tanh")(torch.nn.SiLU()(s)).to(s.device),
    "numbers": lambda s, at: s * ((at.j + 1) / at.Tk) + (at.Tq - at.i) * 0.25,
    "bits": with_bits,
    "rows": with_rows,
}


@needs_modes
@pytest.mark.parametrize("name", OF_PLACES)
def test_rows_bits_composed_functions_and_numbers_of_keys(name):
    def call(q, k, v):
        return qkv.torch.attention(q, k, v, score_mod=OF_PLACES[name])

    tensors = leaves(Q, *(torch.cat([x, x[:, :, :5]], 2) for x in (K, V)))
    if name == "rows":
        tensors = leaves(Q, K, V)
    want = results(call, *tensors)
    check(results(compiled(call), *tensors), want)
    check([torch.vmap(call, (0, None, None))(Q[None], *tensors[1:])[0]], want[:1])


@needs_modes
def test_the_type_of_the_score():
    def call(q):
        def score(score, b, h, q_idx, kv_idx):
            return score + (q_idx - kv_idx).to(score.dtype) / 9

        return qkv.torch.flex_attention(q, K.to(q.dtype), V.to(q.dtype), score)

    for q in (Q, Q.double()):
        assert torch.equal(compiled(call)(q), call(q))
        assert torch.equal(torch.vmap(call)(q[None])[0], call(q))


@needs_modes
def test_a_broken_graph_has_the_same_bits():
    def call(q):
        return qkv.torch.attention(q, K, V, mask_mod=lambda at: ~(at.j > at.i))

    torch._dynamo.reset()
    assert torch.equal(torch.compile(call, backend="aot_eager")(Q), call(Q))
    with pytest.raises(Exception, match="does not know how to trace builtin operator `invert`"):
        compiled(call)(Q)


@needs_modes
def test_numbers_that_vary_are_refused():
    def equal(q, n):
        return qkv.torch.attention(q, K, V, score_mod=lambda s, at: s + (at.i == n) * 2.0)

    call = compiled(equal, dynamic=False)
    for n in (3, 5, 8):
        assert torch.equal(call(Q, n), equal(Q, n))
    with pytest.raises(Exception, match="sizes or numbers that vary between runs; compile it with"):
        compiled(equal, dynamic=True)(Q, 5)
    call = compiled(equal)
    assert torch.equal(call(Q, 3), equal(Q, 3))
    with pytest.raises(Exception, match="sizes or numbers that vary between runs; compile it with"):
        call(Q, 5)


@needs_modes
def test_mods_created_outside_and_inside_the_graph():
    mod = qkv.score_mod(lambda s, at: s * GAIN[at.h] + (2 * TABLE)[at.h, at.j])
    document = qkv.mask_mod(lambda at: DOCUMENT[at.i] == DOCUMENT[at.j])
    both = qkv.mask_mod(lambda at: document(at) & (at.j <= at.i))

    def before(q):
        return qkv.torch.attention(q, K, V, score_mod=mod, mask_mod=both)

    def inside(q):
        made = qkv.score_mod(lambda s, at: s * GAIN[at.h] + (2 * TABLE)[at.h, at.j])
        return qkv.torch.attention(q, K, V, score_mod=made, mask_mod=both)

    want = before(Q)
    for got in (compiled(before)(Q), compiled(inside)(Q), torch.vmap(before)(Q[None])[0]):
        assert torch.equal(got, want)


@CALLS
def test_autocast(call):
    tensors = leaves(Q, K, V, TABLE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = results(call, *tensors)

    def narrow(q, k, v, table):
        return call(*(x.to(torch.bfloat16) for x in (q, k, v)), table)

    check(got, results(narrow, *tensors))


@CALLS
def test_func(call):
    def loss(*tensors):
        return call(*tensors).square().sum()

    stacks = [torch.stack([x, x + 1, x * 2]) for x in (Q, TABLE)]
    entries = [(q, K, V, table) for q, table in zip(*stacks)]
    axes = (0, None, None, 0)
    want = [results(call, *leaves(*entry)) for entry in entries]
    of_all = (stacks[0], K, V, stacks[1])
    check([torch.vmap(call, in_dims=axes)(*of_all)], [torch.stack([x[0] for x in want])])
    gradient = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    check(gradient(*entries[1]), want[1][1:])
    got = torch.vmap(gradient, in_dims=axes)(*of_all)
    check(got, [torch.stack(slot) for slot in list(zip(*want))[1:]])


def test_an_axis_of_vmap_is_no_batch_axis():
    def call(q):
        return qkv.torch.attention(q, K, V, mask_mod=lambda at: at.j <= at.i + 3 * at.b)

    batch = torch.stack([Q, Q + 1, Q * 2])
    assert torch.equal(torch.vmap(call)(batch), torch.stack([call(q) for q in batch]))


def test_a_batch_of_gradients():
    def call(q, k, v, table, other):
        return qkv.torch.attention(
            q, k, v, score_mod=lambda s, at: s * other[at.h, at.i] + table[at.h, at.i - at.j + T]
        )

    tensors = leaves(Q, K, V, TABLE, TABLE.flip(0))
    out = call(*tensors)
    along = draw(2, *out.shape)
    got = torch.autograd.grad(out, tensors, along, is_grads_batched=True, retain_graph=True)
    for n in range(2):
        check([x[n] for x in got], torch.autograd.grad(out, tensors, along[n], retain_graph=True))
    out = from_the_end(*tensors[:4])
    got = torch.autograd.grad(out, tensors[:4], along, is_grads_batched=True, retain_graph=True)
    want = torch.autograd.grad(out, tensors[:4], along[1], retain_graph=True)
    check([x[1] for x in got], want)
    out = relative(*tensors[:4])
    with pytest.raises(ValueError, match="score_mod computes array from other tensors, which a b"):
        torch.autograd.grad(out, tensors[:4], torch.ones(2, *out.shape), is_grads_batched=True)


@needs_modes
@pytest.mark.parametrize("strict", [False, True])
def test_exported_and_saved(strict):
    module = Biased()
    program = torch.export.export(module, (Q, K, V), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    loaded.table.data.mul_(2)
    module.table.data.mul_(2)
    check(loaded(K, Q, V), module(K, Q, V))


@needs_modes
def test_exported_with_a_size_that_varies():
    class Near(torch.nn.Module):
        def forward(self, q):
            n = q.shape[2]

            def mask(at):
                return (at.i == n - 3) | (n - 2 == at.j) | (n - at.i >= at.j) | (n // 2 > at.i)

            out = qkv.torch.attention(q, q, q, mask_mod=mask, score_mod=lambda s, at: s * n)
            return out + qkv.torch.flex_attention(
                q, q, q, lambda s, b, h, i, j: s + TABLE[h, i - j]
            )

    sizes = ({2: torch.export.Dim("n", min=4)},)
    program = torch.export.export(Near(), (Q,), dynamic_shapes=sizes).module()
    for n in (5, T, 17):
        x = draw(B, H, n, D)
        assert torch.equal(program(x), Near()(x))


@CALLS
def test_recorded_by_tracers(call):
    from torch.fx.experimental.proxy_tensor import make_fx

    want = call(K, Q, V, TABLE * 2)
    assert torch.equal(make_fx(call)(Q, K, V, TABLE)(K, Q, V, TABLE * 2), want)
    traced = torch.jit.trace(call, (Q, K, V, TABLE), check_trace=False)
    assert torch.equal(traced(K, Q, V, TABLE * 2), want)


MANY = [draw(T, seed=n) for n in range(17)]
REFUSED = {
    "atan": (dict(score_mod=lambda s, at: torch.atan(s)), r"torch\.atan does not take expressio"),
    "if": (dict(score_mod=lambda s, at: s if at.i > at.j else 0), "a symbol has no value while"),
    "many": (dict(score_mod=lambda s, at: s + sum([x[at.i] for x in MANY])),
             "score_mod and mask_mod may read 16 arrays in graphs, under .* got 17"),
    "none": (dict(score_mod=lambda s, at: None), "score_mod: f must return an expression, got No"),
    "kind": (dict(score_mod=3), "score_mod must be a function f.* got int"),
    "tensor": (dict(score_mod=GAIN), "score_mod must be a function f.* got Tensor"),
    "number": (dict(mask_mod=lambda at: at.i + 1), "the result of f must be a truth value, s"),
    "list": (dict(score_mod=lambda s, at: s + [1]), "operand must be a number, got list"),
    "row": (dict(score_mod=lambda s, at: s + TABLE[at.h]), r"got values of the shape \[24\]; re"),
    "length": (dict(score_mod=lambda s, at: s + len(TABLE[at.h])), r"len\(\) needs one"),
    "in place": (dict(score_mod=lambda s, at: torch.nn.functional.relu(s, inplace=True)),
                 "takes inplace False, got True"),
}  # fmt: skip


@needs_modes
@pytest.mark.parametrize("name", REFUSED)
def test_errors_come_when_the_call_is_recorded(name):
    options, rule = REFUSED[name]

    def call(q):
        return qkv.torch.attention(q, K, V, **options)

    with pytest.raises((TypeError, ValueError), match=rule):
        torch.vmap(call)(Q[None])
    runs = []
    torch._dynamo.reset()

    def backend(graph, inputs):
        runs.append(graph)
        return graph

    with pytest.raises(Exception, match=rule):
        torch.compile(call, fullgraph=True, backend=backend)(Q)
    assert not runs


@needs_modes
def test_an_index_out_of_bounds_is_an_error_at_run_time():
    def call(q, table):
        return qkv.torch.attention(q, K, V, score_mod=lambda s, at: s + table[at.h, at.i + 20])

    rule = "score_mod reads array at index 24 of axis 1"
    with pytest.raises(ValueError, match=rule):
        compiled(call)(Q, TABLE)
    with pytest.raises(ValueError, match=rule):
        torch.vmap(call, in_dims=(None, 0))(Q, TABLE[None])


def test_opcheck():
    text = "symbol i\nsymbol s\nread @0 %0\noperator mul %1 %2\noperator add %3 #0\nreturn %4"
    tensors = leaves(Q, K, V, GAIN.repeat(3))
    options = dict(captured_0=tensors[3], score_mod=text, mod_numbers=[0.5])
    torch.library.opcheck(torch.ops.qkv.attention, tuple(tensors[:3]), options)
