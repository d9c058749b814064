# SPDX-License-Identifier: Apache-2.0
"""qkv::attention and numbers given as tensors; results that it does not have."""

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
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


# What records a function of tensors, and calls what it recorded.
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


# ---- integers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("recorder", RECORDERS)
def test_a_window_of_tensors(recorder):
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


def test_other_integers_of_tensors():
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
    with pytest.raises(Exception, match=message):  # of the compiler, around ours
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
def test_real_numbers_are_no_tensors_in_a_graph(name):
    def call(q, number):
        return attention(q, q, q, **{name: number}, **REALS[name])

    with pytest.raises(Exception, match=f"attention: {name} must be a number in a graph, got a te"):
        compiled(call)(Q, torch.tensor(0.5))
    if name != "qk_norm":  # elsewhere this is no number, for None, True and eps are told apart
        torch._dynamo.reset()
        broken = torch.compile(call, backend="aot_eager")(Q, torch.tensor(0.5))
        assert torch.equal(broken, call(Q, 0.5))


# ---- results that it does not have --------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"return_entropy": True}, "return_entropy is not available in graphs"),
        ({"return_value_sums": True}, "return_value_sums is not available in graphs"),
        ({"return_pooled": (2, 2)}, "return_pooled is not available in graphs"),
        ({"return_column_sums": [0, 1]}, "return_column_sums must be True or False in graphs"),
        ({"return_top": torch.tensor(2)}, "return_top must not be a tensor in graphs"),
        ({"return_lse": torch.tensor(True)}, "return_lse must not be a tensor in graphs"),
    ],
)
def test_results_are_refused_not_dropped(options, message):
    def call(q):
        return attention(q, q, q, **options)

    with pytest.raises((ValueError, TypeError), match=f"attention: {message}"):
        call(Q.to("meta"))
    error = pytest.raises((ValueError, TypeError), match=f"attention: {message}")
    with error, torch.autocast("cpu", torch.bfloat16):
        call(Q.float())
    with pytest.raises(Exception, match=f"attention: {message}"):
        compiled(call)(Q)
