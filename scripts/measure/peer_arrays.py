# SPDX-License-Identifier: Apache-2.0
"""Attention in the libraries that compute on arrays: qkv, PyTorch, JAX. See peer_case."""

import importlib
from functools import partial

import ml_dtypes
import numpy as np
from peer_case import folded, heads_last, with_folded


class Ours:
    label, needs = "qkv", []

    def __init__(self, threads):
        self.qkv = importlib.import_module("qkv")
        self.qkv.set_threads(threads)
        self.versions = {"qkv": self.qkv.__version__}

    def ways(self, case):
        return {"": partial(self.backward if case.kind == "backward" else self.forward, case)}

    def forward(self, case):
        def bind(x):
            q, k, v = x["q"], x["k"], x["v"]
            return lambda: self.qkv.attention(q, k, v, causal=case.causal), lambda out: [out]

        return bind

    def backward(self, case):
        def bind(x):
            q, k, v = x["q"], x["k"], x["v"]

            def call():
                out, lse = self.qkv.attention(q, k, v, causal=case.causal, return_lse=True)
                gradients = self.qkv.attention_backward(
                    x["dout"], q, k, v, out, lse, causal=case.causal
                )
                return out, gradients

            return call, lambda result: [result[0], *result[1][:3]]

        return bind


class Torch:
    label, needs = "PyTorch", ["torch==2.13.0"]

    def __init__(self, threads):
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(threads)
        self.attention = self.torch.nn.functional.scaled_dot_product_attention
        self.versions = {"PyTorch": self.torch.__version__}

    def ways(self, case):
        if case.kind == "backward":
            return {"": partial(self.backward, case)}
        if case.H == case.G:
            return {"": partial(self.forward, case)}
        return {
            "enable_gqa": partial(self.forward, case, enable_gqa=True),
            "expanded": partial(self.expanded, case),
            "folded": partial(folded, self.forward, case),
        }

    def tensor(self, x):
        if x.dtype != ml_dtypes.bfloat16:
            return self.torch.from_numpy(x)
        return self.torch.from_numpy(x.view(np.int16)).view(self.torch.bfloat16)

    def forward(self, case, **options):
        def bind(x):
            q, k, v = (self.tensor(x[name]) for name in "qkv")
            call = partial(self.attention, q, k, v, is_causal=case.causal, **options)
            return call, lambda out: [out.float().numpy()]

        return bind

    def expanded(self, case):
        """Repeats key heads by a stride of 0: q, k and v become [B G,H/G,T,D]."""

        def bind(x):
            group = case.H // case.G
            q = self.tensor(x["q"]).view(-1, group, case.Tq, case.D)
            k, v = (self.tensor(x[name]).view(-1, 1, case.Tk, case.D) for name in "kv")
            k, v = (t.expand(-1, group, -1, -1) for t in (k, v))
            return partial(self.attention, q, k, v), lambda out: [out.float().numpy()]

        return bind

    def backward(self, case):
        def bind(x):
            inputs = [self.tensor(x[name]).requires_grad_() for name in "qkv"]
            dout = self.tensor(x["dout"])

            def call():
                out = self.attention(*inputs, is_causal=case.causal)
                return out, *self.torch.autograd.grad(out, inputs, dout)

            return call, lambda result: [t.detach().float().numpy() for t in result]

        return bind

    def layer(self):
        """A call of a linear layer, such as a model runs before attention."""
        x, weight = (self.torch.randn(512, 512) for _ in range(2))
        return partial(self.torch.nn.functional.linear, x, weight)


class Jax:
    label, needs = "JAX", ["jax"]

    def __init__(self, threads):
        # JAX's pool has a thread for each processor that the process may use: see peers.py.
        self.jax = importlib.import_module("jax")
        self.versions = {"JAX": self.jax.__version__}

    def ways(self, case):
        if case.kind == "backward":
            return {
                "": partial(self.bound, case, self.step),
                "[B,H,T,D]": partial(self.bound, case, self.step, heads_first=True),
            }
        ways = with_folded(partial(self.bound, function=self.attention), case)
        return ways | {"[B,H,T,D]": partial(self.bound, case, self.attention, heads_first=True)}

    def attention(self, case, q, k, v):
        return self.jax.nn.dot_product_attention(q, k, v, is_causal=case.causal)

    def step(self, case, q, k, v, dout):
        out, pull = self.jax.vjp(partial(self.attention, case), q, k, v)
        return out, *pull(dout)

    def bound(self, case, function, heads_first=False):
        """Binds arrays [B,T,H,D], JAX's order, or [B,H,T,D], which the function transposes."""

        def transposed(*arrays):
            results = function(case, *(x.swapaxes(1, 2) for x in arrays))
            return self.jax.tree.map(lambda x: x.swapaxes(1, 2), results)

        compiled = self.jax.jit(transposed if heads_first else partial(function, case))

        def bind(x):
            arrays = x.values() if heads_first else map(heads_last, x.values())
            arrays = [self.jax.device_put(x) for x in arrays]

            def read(results):
                results = results if isinstance(results, tuple) else (results,)
                results = [np.asarray(x) for x in results]
                return results if heads_first else [x.swapaxes(1, 2) for x in results]

            return lambda: self.jax.block_until_ready(compiled(*arrays)), read

        return bind
