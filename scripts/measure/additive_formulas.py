# SPDX-License-Identifier: Apache-2.0
"""Additive attention as different packages compute it, for additive_peers.py, which runs this file
in each package's environment and exchanges lines of JSON with it.

usage: additive_formulas.py NAME     one of FORMULAS

Arrays: q [B,Tq,D], k [B,Tk,D], values [B,Tk,E], Wq and Wk [U,D], b and v [U], dout [B,Tq,E]. A
formula takes a dictionary of them. For the pass "forward" and, unless it has no gradients, for
"step" (forward and all gradients), it returns functions by name, of which the fastest is used. A
function computes the pass once and returns out, for "step" also dq.
"""

import importlib.metadata
import itertools
import json
import os
import sys
import time

import numpy as np

NAMES = ("q", "k", "values", "Wq", "Wk", "b", "v")
MIB = 1 << 20


def ours(x):
    import qkv

    call = {"score": "additive", "threads": 1,
            "params": {name: x[name] for name in ("Wq", "Wk", "v", "b")}}
    tokens = x["q"], x["k"], x["values"]

    def step():
        out, lse = qkv.attention(*tokens, **call, return_lse=True)
        return out, qkv.attention_backward(x["dout"], *tokens, out, lse, **call).dq

    return {"forward": {"": lambda: (qkv.attention(*tokens, **call),)}, "step": {"": step}}


# ---- PyTorch -------------------------------------------------------------------------------------


def tensors(x, gradients):
    import torch

    torch.set_num_threads(1)
    return {name: torch.from_numpy(x[name]).requires_grad_(gradients) for name in NAMES}


def projected(x):
    return x["q"] @ x["Wq"].T + x["b"], x["k"] @ x["Wk"].T


def by_product(a, r, v, values):
    import torch

    return torch.softmax(torch.tanh(a[:, :, None] + r[:, None]) @ v, -1) @ values


def by_sum(a, r, v, values):
    import torch

    return torch.softmax((torch.tanh(a[:, :, None] + r[:, None]) * v).sum(-1), -1) @ values


def blocks(shape, most_bytes):
    """Equal blocks of (batch entries, queries), each with an array of tanh that fits in most_bytes
    if that of one query does."""
    B, Tq, Tk, U = shape
    row = 4 * Tk * U

    def largest_part(count, each):
        fitting = max(1, most_bytes // each)
        return max(n for n in range(1, count + 1) if count % n == 0 and n <= fitting)

    entries = largest_part(B, Tq * row)
    rows = largest_part(Tq, row)
    return [(slice(b, b + entries), slice(i, i + rows))
            for b in range(0, B, entries) for i in range(0, Tq, rows)]


def torch_forward(x, attend, parts):
    import torch

    with torch.no_grad():
        a, r = projected(x)
        out = torch.empty(*a.shape[:2], x["values"].shape[-1])
        for b, i in parts:
            out[b, i] = attend(a[b, i], r[b], x["v"], x["values"][b])
    return (out.numpy(),)


def torch_step(x, attend, parts, dout):
    """Runs the backward pass after each block, so that its array of tanh can be freed."""
    import torch

    for tensor in x.values():
        tensor.grad = None
    a, r = projected(x)
    leaves = a.detach().requires_grad_(), r.detach().requires_grad_()
    out = torch.empty(dout.shape)
    for b, i in parts:
        part = attend(leaves[0][b, i], leaves[1][b], x["v"], x["values"][b])
        out[b, i] = part.detach()
        part.backward(dout[b, i])
    torch.autograd.backward([a, r], [leaf.grad for leaf in leaves])
    return out.numpy(), x["q"].grad.numpy()


def torch_formula(x, scores, sizes, wrap=lambda attend: attend):
    import torch

    fixed, learning = tensors(x, False), tensors(x, True)
    dout = torch.from_numpy(x["dout"])
    shape = (*x["q"].shape[:2], x["k"].shape[1], x["v"].size)
    forward, step = {}, {}
    for (name, attend), size in itertools.product(scores.items(), sizes):
        parts = blocks(shape, size * MIB)
        how = f"{name}, blocks of {size} MiB"
        run = wrap(attend)
        forward[how] = lambda run=run, parts=parts: torch_forward(fixed, run, parts)
        step[how] = lambda run=run, parts=parts: torch_step(learning, run, parts, dout)
    return {"forward": forward, "step": step}


def eager(x):
    return torch_formula(x, {"product with v": by_product, "sum of products": by_sum}, (1, 16, 256))


def compiled(x):
    import torch

    torch._dynamo.reset()  # each shape is compiled separately
    return torch_formula(x, {"sum of products": by_sum}, (1, 16, 256),
                         lambda attend: torch.compile(attend, dynamic=False))


# ---- KeOps ---------------------------------------------------------------------------------------


def keops_scores(a, r, v):
    """tanh(x) = 1 - 2 / (1 + e^(2x)); KeOps has no tanh."""
    return (v * (1 - 2 / (1 + (2 * (a + r)).exp()))).sum(-1)


def keops_factored_scores(a, r, v):
    """The scores from e^(2a) and e^(2r), which are computed once for each token: valid for small
    values only. The sum of v is left out, since it is equal for all keys and softmax cancels it."""
    return -2 * (v / (1 + a * r)).sum(-1)


def keops_formula(x, scores, prepare):
    import torch
    from pykeops.torch import LazyTensor

    def attend(x):
        a, r = (prepare(p) for p in projected(x))
        s = scores(LazyTensor(a[:, :, None].contiguous()), LazyTensor(r[:, None].contiguous()),
                   LazyTensor(x["v"].view(1, 1, 1, -1)))
        return s.sumsoftmaxweight(LazyTensor(x["values"][:, None].contiguous()), axis=2)

    fixed, learning = tensors(x, False), tensors(x, True)
    dout = torch.from_numpy(x["dout"])

    def step():
        for tensor in learning.values():
            tensor.grad = None
        out = attend(learning)
        out.backward(dout)
        return out.detach().numpy(), learning["q"].grad.numpy()

    return {"forward": {"": lambda: (attend(fixed).numpy(),)}, "step": {"": step}}


def keops(x):
    return keops_formula(x, keops_scores, lambda p: p)


def keops_factored(x):
    return keops_formula(x, keops_factored_scores, lambda p: (2 * p).exp())


# ---- Keras ---------------------------------------------------------------------------------------


def keras_layer(x):
    """The layer has no projections: it gets projected inputs, and the projections are not timed."""
    os.environ["KERAS_BACKEND"] = "torch"
    import torch
    from keras.layers import AdditiveAttention

    fixed = tensors(x, False)
    a, r = projected(fixed)
    layer = AdditiveAttention()
    layer.build([a.shape, fixed["values"].shape, r.shape])
    layer.set_weights([x["v"]])

    def forward():
        with torch.no_grad():
            return (layer([a, fixed["values"], r]).numpy(),)

    return {"forward": {"": forward}}


FORMULAS = {"qkv": ours, "eager": eager, "compile": compiled, "keops": keops,
            "keops-factored": keops_factored, "keras": keras_layer}

# ---- the conversation ----------------------------------------------------------------------------


def seconds(run, calls):
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls


def bind(formula, request):
    """(the fastest function for a request, the answer). Writes the function's results to the file
    request["results"]."""
    ways = formula(dict(np.load(request["inputs"]))).get(request["pass"])
    if ways is None:
        return None, {"absent": True}
    times = {}
    for how, run in ways.items():
        run()  # the first call compiles and allocates
        times[how] = seconds(run, 1)
    how = min(times, key=times.get)
    results = dict(zip(("out", "dq"), ways[how]()))
    np.savez(request["results"], **results)
    return ways[how], {"seconds": times[how], "how": how}


def versions():
    found = {}
    for package in ("qkv", "torch", "pykeops", "keras", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "qkv" in found:
        import qkv

        found["CPU target"] = qkv.info()["cpu_target"]
    elif "torch" in found:
        import torch

        found["CPU capability"] = torch.backends.cpu.get_cpu_capability()
    return found


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of packages out of the answers

    def answer(message):
        print(json.dumps(message), file=answers, flush=True)

    formula = FORMULAS[sys.argv[1]]
    answer({"versions": versions()})
    run = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "calls" in request:
                answer({"seconds": seconds(run, request["calls"])})
            else:
                run, message = bind(formula, request)
                answer(message)
        except Exception as error:  # any error, so that other packages continue
            answer({"error": f"{type(error).__name__}: {error}".splitlines()[0]})


if __name__ == "__main__":
    main()
