# SPDX-License-Identifier: Apache-2.0
"""Tests torch.export of qkv::attention with sizes known only at run time, and saved programs."""

import io
import subprocess
import sys

import pytest
from torch_versions import requires, torch

requires(2, 8, "guard_or_false and guard_or_true")
import torch.nn.functional as F  # noqa: E402

import qkv.torch  # noqa: E402

N, T, WIDTH, HEADS = 6, 5, 8, 2

attention = qkv.torch.attention
ours = qkv.torch.scaled_dot_product_attention


def by_torch(*arguments, **options):
    return F.scaled_dot_product_attention(*arguments, **options)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, ONE = draw(N, T, WIDTH), draw(1, HEADS, T, 4, seed=1)
MASK = draw(N, 1, T, T, seed=2) > -0.5
MASK[..., 0] = True  # every query attends to a key
NUMBERS = draw(N, HEADS, T, T, seed=3)
LENGTHS = torch.tensor([3, 4, 2, 1, 5, 5])


def heads(x):
    """x as [N,H,T,D]."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def packed(x, chosen):
    starts = torch.arange(chosen.shape[0] + 1) * T
    rows = x.flatten(0, 1).unflatten(-1, (HEADS, -1))
    return attention(rows, rows, rows, cu_seqlens_q=starts, cu_seqlens_k=starts)


def of_heads(function, **options):
    """A function for CALLS; an option may be a function of the chosen indices."""

    def call(module, x, chosen):
        q = heads(x)
        given = {n: x(chosen) if callable(x) else x for n, x in options.items()}
        return function(q, q, q, **given)

    return call


def multihead(**options):
    def call(module, x, chosen):
        given = {n: x(chosen) if callable(x) else x for n, x in options.items()}
        return module.inner(x, x, x, **given)

    return call


def again(chosen):
    """The indices 0 to len(chosen) - 1. An exported program cannot know how many there are."""
    return (chosen >= 0).nonzero().squeeze(1)


EVERYTHING = {
    "return_weights": True, "return_lse": True, "return_column_sums": True, "return_entropy": True
}  # fmt: skip


def fewer_keys(module, x, chosen):
    keys = heads(x)[:, :, : (chosen < 4).sum().item() + 1]
    return ours(heads(x), keys, keys)


def other_keys(module, x, chosen):
    keys = heads(X[again(chosen)])
    return ours(heads(x), keys, keys)


# {group: {name: function of a Chosen module, the chosen entries of x and their indices}}.
CALLS = {
    "attention": {
        "results": lambda *call: tuple(of_heads(attention, causal=True, **EVERYTHING)(*call)),
        "merged heads": lambda _, x, chosen: attention(x, x, x, heads=HEADS),
        "packed": lambda _, x, chosen: packed(x, chosen),
        "padding": of_heads(attention, padding_mask=lambda n: ~MASK[n, 0, 0]),
        "lengths": of_heads(attention, key_lengths=lambda n: LENGTHS[n]),
        "bias": of_heads(attention, bias=lambda n: NUMBERS[n], mask=lambda n: MASK[n]),
    },
    "sdpa": {
        "causal": of_heads(ours, is_causal=True),
        "mask": of_heads(ours, attn_mask=lambda n: MASK[n]),
        "numbers": of_heads(ours, attn_mask=lambda n: NUMBERS[n]),
        "other mask": of_heads(ours, attn_mask=lambda n: MASK[again(n)]),
        "one mask": of_heads(ours, attn_mask=MASK[1:2, 0]),
        "groups": lambda _, x, chosen: ours(
            heads(x), heads(x)[:, :1], heads(x)[:, 1:], enable_gqa=True
        ),
        "one entry": lambda _, x, chosen: ours(ONE, heads(x), heads(x)),
        "other keys": other_keys,
        "fewer keys": fewer_keys,
        "replaced": of_heads(by_torch, attn_mask=lambda n: MASK[n]),
    },
    "modules": {
        "self-attention": multihead(),
        "padding": multihead(key_padding_mask=lambda n: ~MASK[n, 0, 0]),
        "mask": multihead(attn_mask=~MASK[0, 0], need_weights=False),
        "masks of heads": multihead(attn_mask=lambda n: NUMBERS[n].flatten(0, 1)),
        "additive": lambda module, x, chosen: module.additive(x, x, x, key_lengths=LENGTHS[chosen]),
    },
}


class Chosen(torch.nn.Module):
    """Computes attention of the entries of x where keep is not 0; the data determine how many."""

    def __init__(self, calls):
        super().__init__()
        torch.manual_seed(0)
        self.inner = qkv.torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.additive = qkv.torch.nn.AdditiveAttention(WIDTH, WIDTH, 4)
        self.calls = calls

    def forward(self, x, keep):
        chosen = keep.nonzero().squeeze(1)
        return {name: call(self, x[chosen], chosen) for name, call in self.calls.items()}


def in_file(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.filterwarnings("ignore:No complete tensor found")  # for constants that are views
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("group", CALLS)
def test_entries_chosen_by_the_data(group, strict):
    module = Chosen(CALLS[group]).eval()
    with qkv.torch.replaced(), torch.no_grad():
        program = torch.export.export(module, (X, torch.ones(N)), strict=strict)
    calls = program.graph_module.code.count("torch.ops.qkv.attention.default")
    assert calls == len(CALLS[group])
    run = in_file(program)
    for keep in ([1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 0, 0], [1] * N, [0] * N):
        got = run(X, torch.tensor(keep, dtype=torch.float32))
        with qkv.torch.replaced():
            want = module(X, torch.tensor(keep))
        for name in CALLS[group]:
            if name == "one entry" and not any(keep):
                continue  # outside a graph, PyTorch computes the empty call, with ONE's entry
            torch.testing.assert_close(got[name], want[name], rtol=0, atol=0, msg=name)


# ---- loaded by another process ------------------------------------------------------------------

LOAD = """
import sys, torch
{imported}
for load, path in ((torch.jit.load, {trace!r}), (torch.export.load, {program!r})):
    try:
        program = load(path)
    except RuntimeError as error:
        print(error, file=sys.stderr)
    else:
        run = program if load is torch.jit.load else program.module()
        torch.save(run(torch.load({given!r})), path + ".got")
"""


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # torch.jit is deprecated
def test_files_are_loaded_where_the_operator_is_imported(tmp_path):
    """Without the import PyTorch raises an error in its own words, which docs/pytorch.md quotes."""

    class Module(torch.nn.Module):
        def forward(self, q):
            return attention(q, q, q, causal=True)

    paths = {name: str(tmp_path / name) for name in ("trace", "program.pt2", "given")}
    torch.jit.save(torch.jit.trace(Module(), (ONE,)), paths["trace"])
    torch.export.save(torch.export.export(Module(), (ONE,)), paths["program.pt2"])
    torch.save(ONE, paths["given"])

    def printed(imported):
        of_files = {name.partition(".")[0]: path for name, path in paths.items()}
        command = [sys.executable, "-c", LOAD.format(imported=imported, **of_files)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    without = printed("")
    assert "Unknown builtin op: qkv::attention" in without
    assert "We failed to resolve torch.ops.qkv.attention.default to an operator" in without
    assert "Please import the custom op to register it before deserializing" in without
    assert "qkv" not in printed("import qkv.torch")
    for name in ("trace", "program.pt2"):
        assert torch.equal(torch.load(paths[name] + ".got"), Module()(ONE))
