# SPDX-License-Identifier: Apache-2.0
"""Tests qkv::attention with numbers given as tensors, and the results that it returns."""

import pytest
from torch_versions import OPERATOR, requires, torch

requires(2, 5, OPERATOR)
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import qkv.torch  # noqa: E402

attention = qkv.torch.attention
Q = torch.randn(2, 4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def exported(function, strict):
    def call(*tensors):
        return torch.export.export(Module(function), tensors, strict=strict).module()(*tensors)

    return call


# Functions that record a function of tensors and return the recorded function.
RECORDERS = {
    "compiled": compiled,
    "exported, strict": lambda function: exported(function, strict=True),
    "exported": lambda function: exported(function, strict=False),
    "make_fx": lambda function: (
        lambda *tensors: make_fx(function, tracing_mode="symbolic")(*tensors)(*tensors)
    ),
}


def of_sides(q, side):
    return attention(q, q, q, window=(side, None))


def of_pair(q, pair):
    return attention(q, q, q, window=pair)


# ---- lists of tensors ---------------------------------------------------------------------------


@pytest.mark.parametrize("recorder", RECORDERS)
def test_lists_of_tensors(recorder):
    def call(q, sink, length):
        sinks, bias = [sink, 0.25] * 2, [[sink, 1, 2, 3, 4, -sink]]
        return attention(q, q, q, sinks=sinks, bias=bias, key_lengths=[length, 5])

    sink, length = torch.tensor(0.1, dtype=torch.float64), torch.tensor(3)
    want = call(Q, sink, length)
    with torch.no_grad():
        got = RECORDERS[recorder](call)(Q, sink.requires_grad_(), length)
    assert torch.equal(got, want)


def test_lists_of_a_batch():
    def call(sink, length):
        return attention(Q, Q, Q, sinks=[sink, 0.25] * 2, key_lengths=[length, 5])

    sinks, lengths = torch.tensor([0.1, -2.0], dtype=torch.float64), torch.tensor([3, 4])
    want = [call(*each) for each in zip(sinks, lengths)]
    assert torch.equal(torch.vmap(call)(sinks, lengths), torch.stack(want))


# ---- integers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("recorder", RECORDERS)
def test_a_window_given_as_tensors(recorder):
    got = RECORDERS[recorder](of_sides)(Q, torch.tensor(2))
    assert torch.equal(got, attention(Q, Q, Q, window=(2, None)))
    got = RECORDERS[recorder](of_pair)(Q, torch.tensor([2, 1]))
    assert torch.equal(got, attention(Q, Q, Q, window=(2, 1)))


def test_a_window_that_changes_needs_no_new_graph():
    call = compiled(of_sides)
    for side in (2, 0, 3, -1):
        want = attention(Q, Q, Q, window=(side, None))
        assert torch.equal(call(Q, torch.tensor(side)), want), side
    assert not torch.equal(of_sides(Q, torch.tensor(2)), of_sides(Q, torch.tensor(0)))


def test_other_integers_given_as_tensors():
    def call(q, heads, threads):
        return attention(q, q, q, heads=(heads, 4), threads=threads)

    x = Q.transpose(1, 2).flatten(2)
    numbers = torch.tensor(4), torch.tensor(1)
    assert torch.equal(compiled(call)(x, *numbers), attention(x, x, x, heads=(4, 4)))

    def rotated(q, width):
        return attention(q, q, q, rotary="halves", rotary_width=width)

    got = compiled(rotated)(Q, torch.tensor(4))
    assert torch.equal(got, attention(Q, Q, Q, rotary="halves", rotary_width=4))


def test_integers_without_a_value():
    meta = Q.to("meta")
    known = r"attention: window\[0\] must be an integer whose value is known here, got a tensor"
    for window in (torch.tensor(2), None), torch.tensor([2, 1]):
        with pytest.raises(TypeError, match=known):
            attention(meta, meta, meta, window=[x if x is None else x.to("meta") for x in window])
    with pytest.raises(TypeError, match=known):
        of_pair(meta, torch.ones(2, dtype=torch.int64, device="meta"))
    with pytest.raises(TypeError, match=known):
        torch.func.vmap(of_sides)(Q, torch.tensor([2, 1]))


@pytest.mark.parametrize(
    "window, message",
    [
        ((torch.tensor(2.0), 1), r"window\[0\] must be an integer, got a tensor \[\] of torch.flo"),
        (
            (1, torch.tensor(True)),
            r"window\[1\] must be an integer, got a tensor \[\] of torch.boo",
        ),
        ((torch.tensor([1, 2]), 1), r"window\[0\] must be an integer, got a tensor \[2\] of"),
        (torch.tensor([1, 2, 3]), r"window must be a pair, got an array of shape \[3\]"),
        (3, "window must be a pair, got int"),
    ],
)
def test_wrong_windows(window, message):
    meta = Q.to("meta")
    with pytest.raises(TypeError, match=message):
        attention(meta, meta, meta, window=window)
    with pytest.raises(Exception, match=message):  # the compiler's error quotes ours
        compiled(lambda q: attention(q, q, q, window=window))(Q)


# ---- numbers that a graph has to know -----------------------------------------------------------

REALS = {
    "scale": {},
    "softcap": {},
    "dropout": {"seed": 1},
    "rotary_base": {"rotary": "halves"},
    "qk_norm": {},
}


@pytest.mark.parametrize("name", REALS)
def test_real_numbers_must_not_be_tensors_in_graphs(name):
    def call(q, number):
        return attention(q, q, q, **{name: number}, **REALS[name])

    with pytest.raises(Exception, match=f"attention: {name} must be a number in a graph, got a te"):
        compiled(call)(Q, torch.tensor(0.5))
    if name != "qk_norm":  # qk_norm takes None, True or a float, but no tensor
        torch._dynamo.reset()
        got = torch.compile(call, backend="aot_eager")(Q, torch.tensor(0.5))
        assert torch.equal(got, call(Q, 0.5))


# ---- results ------------------------------------------------------------------------------------

STATISTICS = {"return_entropy": True, "return_value_sums": True, "return_pooled": (2, 3)}


@pytest.mark.parametrize("recorder", RECORDERS)
def test_statistics_in_graphs(recorder):
    def call(q, rows):
        return tuple(attention(q, q, q, causal=True, return_column_sums=rows, **STATISTICS))

    rows = torch.tensor([5, 0, 3])
    for got, want in zip(RECORDERS[recorder](call)(Q, rows), call(Q, rows)):
        assert torch.equal(got, want)


def test_statistics_under_autocast():
    want = attention(*[Q.bfloat16()] * 3, return_column_sums=[1, 2], **STATISTICS)
    with torch.autocast("cpu", torch.bfloat16):
        got = attention(*[Q.float()] * 3, return_column_sums=[1, 2], **STATISTICS)
    assert got._fields == want._fields
    assert all(torch.equal(x, y) for x, y in zip(got, want))


def test_vmap_over_the_rows_of_column_sums():
    def sums(rows):
        return attention(Q, Q, Q, return_column_sums=rows, return_value_sums=True).value_sums

    rows = torch.tensor([[0, 1], [5, 2], [3, 3]])
    assert torch.equal(torch.vmap(sums)(rows), torch.stack([sums(one) for one in rows]))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"return_top": torch.tensor(2)}, "return_top must not be a tensor in graphs"),
        ({"return_lse": torch.tensor(True)}, "return_lse must not be a tensor in graphs"),
        ({"return_entropy": torch.tensor(True)}, "return_entropy must not be a tensor in graphs"),
        ({"return_pooled": torch.tensor([2, 2])}, "return_pooled must not be a tensor in graphs"),
        (
            {"return_pooled": (torch.tensor(2), 2)},
            r"return_pooled must be integers \(m, n\) in graphs",
        ),
        ({"return_pooled": 2}, r"return_pooled must be None or \(m, n\), got int"),
        ({"return_pooled": (2, 2, 2)}, r"return_pooled must be None or \(m, n\), got tuple"),
        (
            {"return_column_sums": "yes"},
            r"return_column_sums must be False, True or integers \[R\], got str",
        ),
    ],
)
def test_wrong_requests(options, message):
    def call(q):
        return attention(q, q, q, **options)

    with pytest.raises((ValueError, TypeError), match=f"attention: {message}"):
        call(Q.to("meta"))
    error = pytest.raises((ValueError, TypeError), match=f"attention: {message}")
    with error, torch.autocast("cpu", torch.bfloat16):
        call(Q.float())
    with pytest.raises(Exception, match=f"attention: {message}"):
        compiled(call)(Q)


@pytest.mark.parametrize(
    "options",
    [
        {"score": None}, {"score": "Dot"}, {"score": "bilinear", "params": 3},
        {"qk_norm": "1"}, {"rotary": True},
        {"rotary": "halves", "rotary_base": "1"}, {"scale": "1"}, {"scale": True},
        {"softcap": True}, {"mask": "abc"}, {"bias": "abc"}, {"key_lengths": "abc"},
        {"causal": 1}, {"causal_offset": 2**70}, {"window": (1, "a")}, {"dropout": "0.1"},
        {"dropout": 0.1, "seed": 2**70}, {"layout": None}, {"heads": 2**70},
        {"return_weights": None}, {"return_weights": "kept"}, {"return_scores": "all"},
        {"return_top": 1.5}, {"rows": slice(None)}, {"threads": 0.5}, {"sinks": {}},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_named_as_in_plain_calls(options):
    q = Q.float()
    with pytest.raises((ValueError, TypeError)) as plain:
        attention(q, q, q, **options)
    with pytest.raises((ValueError, TypeError)) as caught, torch.autocast("cpu", torch.bfloat16):
        attention(q, q, q, **options)
    assert type(caught.value) is type(plain.value)
    assert str(caught.value) == str(plain.value)


@pytest.mark.parametrize("name", ["seed", "causal_offset"])
@pytest.mark.parametrize("value", [0.5, True])
def test_integers_must_not_be_floats_or_bools(name, value):
    q, options = Q.float(), {"dropout": 0.5, name: value}
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(TypeError, match=f"^attention: {name} must be an integer, got "):
            attention(q, q, q, **options)
        assert attention(q, q, q, softcap=None, dropout=None).shape == q.shape


def test_requests_that_only_the_graphs_run_can_check():
    def call(q, rows, cells):
        return attention(q, q, q, return_column_sums=rows, return_pooled=cells)

    for rows, cells, message in (
        (torch.tensor([0, 6]), (2, 2), r"return_column_sums.*6"),
        (torch.tensor([0.5]), (2, 2), "return_column_sums"),
        (torch.tensor([0]), (0, 2), r"return_pooled must be \(m, n\), both 1 or more"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            compiled(call)(Q, rows, cells)
