# SPDX-License-Identifier: Apache-2.0
"""The calls of torch_comparison.py: PyTorch's attention and qkv's on the same tensors."""

from functools import partial
from typing import Any, NamedTuple

import torch

import qkv.torch

HEADS, WIDTH = 8, 64
DTYPES = (torch.float32, torch.bfloat16)
CACHES = [  # B, H, G, Tq, Tk, D
    (1, 8, 8, 1, 512, 64),
    (1, 8, 8, 1, 8192, 64),
    (1, 32, 8, 1, 8192, 128),
    (8, 32, 8, 1, 2048, 128),
    (1, 32, 8, 4, 8192, 128),
]


class Case(NamedTuple):
    name: str
    dtype: torch.dtype
    ours: Any  # a function without arguments that returns tensors
    theirs: Any
    random: bool = False  # the two calls draw different numbers, so results are not compared

    def results(self, call):
        found = call()
        return found if isinstance(found, tuple) else (found,)


def forward(attention, tensors, options):
    with torch.inference_mode():
        return attention(*tensors, **options)


def training(attention, tensors, dout, options):
    """Computes out and the gradients of q, k, v and of a mask that requires a gradient."""
    out = attention(*tensors, **options)
    needs = [*tensors, *(x for x in options.values() if getattr(x, "requires_grad", False))]
    return (out.detach(), *torch.autograd.grad(out, needs, dout))


def kinds(tokens, dtype):
    """The options of each kind of call on q, k and v of [1, 8, tokens, 64].

    With enable_gqa k and v have two heads.
    """
    keep = torch.rand(1, 1, tokens, tokens) > 0.25
    keep[..., 0] = True
    padding = torch.arange(tokens).expand(1, 1, 1, tokens) < 3 * tokens // 4
    bias = torch.randn(1, HEADS, tokens, tokens, dtype=dtype)
    return {
        "plain": {},
        "causal": {"is_causal": True},
        "padding": {"attn_mask": padding},
        "mask": {"attn_mask": keep},
        "bias": {"attn_mask": bias},
        "bias-gradient": {"attn_mask": bias.clone().requires_grad_()},
        "dropout": {"dropout_p": 0.1},
        "two-key-heads-causal": {"is_causal": True, "enable_gqa": True},
    }


def inputs(shape, key_shape, dtype):
    return tuple(torch.randn(s, dtype=dtype) for s in (shape, key_shape, key_shape))


def case_of(name, dtype, call, random=False):
    pytorch = torch.nn.functional.scaled_dot_product_attention
    ours, theirs = (partial(call, a) for a in (qkv.torch.scaled_dot_product_attention, pytorch))
    return Case(name, dtype, ours, theirs, random)


def call_cases(token_counts):
    for tokens in token_counts:
        shape = (1, HEADS, tokens, WIDTH)
        for dtype in DTYPES:
            for kind, options in kinds(tokens, dtype).items():
                heads = 2 if "enable_gqa" in options else HEADS
                tensors = inputs(shape, (1, heads, tokens, WIDTH), dtype)
                random = "dropout_p" in options
                name = f"T{tokens}-{kind}"
                if "gradient" not in kind:
                    call = partial(forward, tensors=tensors, options=options)
                    yield case_of(f"{name}-forward", dtype, call, random)
                leaves = tuple(x.clone().requires_grad_() for x in tensors)
                dout = torch.randn(shape, dtype=dtype)
                call = partial(training, tensors=leaves, dout=dout, options=options)
                yield case_of(f"{name}-both", dtype, call, random)


def decode_cases():
    """Cases of decoding: the last queries of a sequence attend to the keys in a cache."""
    for B, H, G, Tq, Tk, D in CACHES:
        for dtype in DTYPES:
            tensors = inputs((B, H, Tq, D), (B, G, Tk, D), dtype)
            options = {"enable_gqa": True} if H != G else {}
            call = partial(forward, tensors=tensors, options=options)
            yield case_of(f"B{B}-H{H}-G{G}-Tq{Tq}-Tk{Tk}-D{D}", dtype, call)
