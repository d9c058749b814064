#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks and times attention on a GPU, beside PyTorch's scaled_dot_product_attention.

usage: cuda_peers.py --library build/release/bench/libqkv_cuda_calls.so --out bench/results

The library is a target of CMake (scripts/build.sh release qkv_cuda_calls). Results are compared
with float64 on the GPU, element by element. A row's bits must be equal in 20 runs, whatever batch
entries, heads and queries the call has besides, and with other strides and in packed sequences.
Exits 1 if a check fails. Times are medians of CUDA events of calls that alternate.
"""

import argparse
import math
import pathlib
import sys

import torch
from cuda_calls import Expected, Qkv
from reports import Report
from torch.nn.attention import SDPBackend, sdpa_kernel

RUNS = 20
ROUNDS = 9
sdpa = torch.nn.functional.scaled_dot_product_attention


# ---- calls ---------------------------------------------------------------------------------------


class Case:
    """A call: q [B,H,Tq,D], k [B,G,Tk,D] and v [B,G,Tk,E]. `make` has functions that draw options;
    `numbers` are options of Qkv.prepared()."""

    def __init__(self, name, B=2, H=4, G=2, Tq=200, Tk=300, D=64, E=None, dtype=torch.bfloat16,
                 make=None, hidden_nan=False, rows=None, units=0, **numbers):  # fmt: skip
        self.name, self.dtype, self.rows, self.numbers = name, dtype, rows, numbers
        self.sizes = (B, H, G, Tq, Tk, D, E or D)
        self.make, self.hidden_nan, self.units = make or {}, hidden_nan, units

    def tensors(self, device):
        """q, k, v, and the options."""
        B, H, G, Tq, Tk, D, E = self.sizes
        generator = torch.Generator(device).manual_seed(sum(self.name.encode()))

        def normal(*shape, dtype=self.dtype):
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        q, k, v = normal(B, H, Tq, D), normal(B, G, Tk, D), normal(B, G, Tk, E)
        options = dict(self.numbers)
        if self.units:
            options |= parameters(normal, D, self.units)
        for option, of in self.make.items():
            options[option] = of(Maker(normal, generator, device, self.sizes))
        if self.hidden_nan:  # NaN and infinities at keys that are masked for all queries
            v[:, :, -20:] = math.nan
            k[:, :, -20:] = math.inf
            v[:, :, -7] = -math.inf
        return q, k, v, options


def parameters(normal, D, U, size=1.0):
    """The parameters of an additive score. The products of wq and wk with q and k of deviation 1
    have the deviation `size`."""
    scale = size / math.sqrt(D)
    return {
        "wq": normal(U, D) * scale,
        "wk": normal(U, D) * scale,
        "score_v": normal(U) / math.sqrt(U),
        "score_b": normal(U),
    }


class Maker:
    """Draws options for a case."""

    def __init__(self, normal, generator, device, sizes):
        self.normal, self.generator, self.device, self.sizes = normal, generator, device, sizes

    def shape(self, letters):
        """A shape by the letters of its axes: [B,H,Tq,Tk] for "bhqk", [1,Tk] for "1k"."""
        B, H, _, Tq, Tk, _, _ = self.sizes
        return [{"b": B, "h": H, "q": Tq, "k": Tk, "1": 1}[letter] for letter in letters]

    def flags(self, letters, p):
        x = torch.rand(self.shape(letters), generator=self.generator, device=self.device)
        return x < p

    def integers(self, letters, low, high, dtype):
        shape = self.shape(letters)
        return torch.randint(low, high + 1, shape, generator=self.generator, device=self.device).to(
            dtype
        )


def keep(letters, p=0.7):
    return lambda of: of.flags(letters, p)


def bias(letters, dtype=torch.float32):
    return lambda of: of.normal(*of.shape(letters), dtype=dtype)


def integers(letters, low, high, dtype=torch.int32):
    return lambda of: of.integers(letters, low, high, dtype)


def slopes(of):
    return of.normal(of.sizes[1], dtype=torch.float32).abs() * 0.1


def sinks(of):
    return of.normal(of.sizes[1], dtype=torch.float32)


half = torch.float16


def additive(name, **rest):
    return Case(f"additive-{name}", **{"dtype": torch.float32, "units": 64, **rest})


CASES = [
    *(Case(f"plain-{D}", D=D) for D in (64, 80, 128, 256)),
    *(Case(f"plain-{D}-float16", D=D, dtype=half) for D in (64, 128, 256)),
    *(Case(f"causal-{D}", D=D, causal=True) for D in (64, 80, 128, 256)),
    Case("odd-width", D=37, E=61),
    Case("wide-values", D=64, E=200),
    Case("short", Tq=1, Tk=1),
    Case("one-query", Tq=1, Tk=1001, D=128),
    Case("one-key", Tq=130, Tk=1),
    Case("odd-lengths", Tq=513, Tk=1027, D=128, causal=True),
    Case("more-queries-than-keys", Tq=300, Tk=120, causal=True),
    Case("top-left", causal=True, corner=1),
    Case("window", window_left=70, window_right=3, D=128),
    Case("causal-window", causal=True, window_left=64),
    Case("lengths", make={"key_lengths": integers("b", 0, 300)}),
    Case("lengths-of-queries", make={"key_lengths": integers("bq", 0, 300, torch.int64)}, D=80),
    Case("offsets", causal=True, make={"offsets": integers("b", -50, 150)}),
    Case("keep", make={"keep": keep("qk")}, D=128),
    Case("keep-odd-stride", Tk=301, make={"keep": keep("bhqk")}),
    Case("keep-of-keys", make={"keep": keep("b11k")}, D=256),
    Case("padding", make={"padding": keep("bk", 0.3)}),
    Case("bias", make={"bias": bias("qk", torch.bfloat16)}, D=128),
    Case("bias-float32", make={"bias": bias("bhqk")}, D=80),
    Case("bias-of-keys", make={"bias": bias("h1k")}, causal=True),
    Case("alibi", make={"alibi": slopes}, causal=True),
    Case("softcap", softcap=5.0, D=128),
    Case("scale", scale=-0.3),
    Case("sinks", make={"sinks": sinks}, D=128),
    Case("dropout", dropout=0.1, seed=2**63 + 12345),
    Case("dropout-odd", dropout=0.5, seed=7, Tk=301, D=256),
    Case("dropout-keep-bias", dropout=0.3, seed=9, D=128,
         make={"keep": keep("qk"), "bias": bias("qk", torch.bfloat16)}),
    Case("everything", dropout=0.2, seed=11, softcap=10.0, causal=True, window_left=150,
         make={"keep": keep("b1qk", 0.9), "bias": bias("hqk"), "alibi": slopes, "sinks": sinks,
               "key_lengths": integers("b", 200, 300), "padding": keep("bk", 0.1)}),
    Case("everything-float16", dtype=half, dropout=0.2, seed=11, softcap=10.0, D=128,
         make={"keep": keep("b1qk", 0.9), "bias": bias("hqk"), "alibi": slopes, "sinks": sinks}),
    Case("nan-beyond-lengths", D=128, hidden_nan=True,
         make={"key_lengths": integers("b", 200, 280)}),
    Case("nan-of-padding", softcap=20.0, hidden_nan=True,
         make={"padding": lambda of: last_keys(of)}),
    Case("long", H=2, G=1, B=1, Tq=8192, Tk=8192, D=128, rows=61, causal=True),
    Case("long-dropout", H=2, G=1, B=1, Tq=4096, Tk=8192, D=64, rows=61, dropout=0.1, seed=3,
         make={"keep": keep("qk"), "bias": bias("qk", torch.bfloat16)}),
    *(additive(str(E), E=E) for E in (64, 128, 256)),
    additive("odd", D=37, E=61, units=101, causal=True),
    additive("one-unit", D=8, E=8, units=1),
    additive("everything", dropout=0.2, seed=11, softcap=10.0, causal=True, window_left=150,
             make={"keep": keep("b1qk", 0.9), "bias": bias("hqk"), "alibi": slopes, "sinks": sinks,
                   "key_lengths": integers("b", 200, 300), "padding": keep("bk", 0.1)}),
    additive("nan-beyond-lengths", hidden_nan=True, make={"key_lengths": integers("b", 200, 280)}),
    additive("long", H=2, G=1, B=1, Tq=8192, Tk=8192, rows=61, causal=True),
]  # fmt: skip


def last_keys(of):
    return of.flags("bk", 0) | (torch.arange(of.sizes[4], device=of.device) >= of.sizes[4] - 20)


def bits(results):
    return [x.view(torch.int16 if x.element_size() == 2 else torch.int32) for x in results]


def equal(some, others):
    return all(torch.equal(x, y) for x, y in zip(bits(some), bits(others)))


def check_values(qkv, case, device):
    """The faults of a case as text: values beyond bounds, or bits that differ in RUNS runs."""
    q, k, v, options = case.tensors(device)
    run, results = qkv.prepared(q, k, v, **options)
    run()
    rows = None
    if case.rows is not None:
        rows = torch.linspace(0, q.shape[2] - 1, case.rows, device=device).long()
    want = Expected(q, k, v, rows, **options)
    wrong = [want.difference(results, case.dtype, rows)]
    first = [x.clone() for x in results]
    for _ in range(RUNS - 1):
        for x in results:
            x.fill_(math.nan)
        run()
        if not equal(results, first):
            wrong.append("two runs have different bits")
            break
    return "; ".join(filter(None, wrong))


def check_bits(qkv, device):
    """Yields (claim, whether it holds) for what must have equal bits."""
    every = {"bias": bias("h1k"), "alibi": slopes, "sinks": sinks}
    for name, made, numbers in (
        ("causal", {}, {"causal": True}),
        ("every", every, {"softcap": 9.0}),
        ("additive", {}, {"causal": True, "dtype": torch.float32, "units": 70}),
        ("additive, every", every, {"softcap": 9.0, "dtype": torch.float32, "units": 70}),
    ):
        case = Case(name, B=3, H=8, G=4, Tq=333, Tk=333, D=128, make=made, **numbers)
        q, k, v, options = case.tensors(device)
        whole = qkv.attend(q, k, v, **options)

        def part(entries, heads, first=0, *, whole=whole):
            return [x[entries][:, heads][:, :, first:].contiguous() for x in whole]

        def call(entries, heads, first=0, *, q=q, k=k, v=v, options=options):
            key_heads = slice(heads.start // 2, heads.stop // 2)
            of_heads = {
                n: x[heads] if n in ("bias", "alibi", "sinks") else x for n, x in options.items()
            }
            return qkv.attend(q[entries][:, heads][:, :, first:], k[entries][:, key_heads],
                              v[entries][:, key_heads], **of_heads)  # fmt: skip

        every_head, one_entry = slice(0, 8), slice(2, 3)
        yield (
            f"{name}: bits of one entry alone",
            equal(call(one_entry, every_head), part(one_entry, every_head)),
        )
        yield (
            f"{name}: bits of two heads alone",
            equal(call(one_entry, slice(4, 6)), part(one_entry, slice(4, 6))),
        )
        # The diagonal ends in the bottom right corner, so the last queries alone have the same keys
        # and ALiBi distances as among all queries.
        every_entry = slice(0, 3)
        for count in (1, 7, 100):
            first = 333 - count
            alone = call(every_entry, every_head, first)
            want = part(every_entry, every_head, first)
            yield f"{name}: bits of the last {count} queries alone", equal(alone, want)
        stored = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        yield f"{name}: bits when stored as [B,T,H,D]", equal(qkv.attend(*stored, **options), whole)
        shifted = [torch.cat([x[..., :1], x], -1)[..., 1:] for x in (q, k, v)]
        yield (
            f"{name}: bits of rows at odd addresses",
            equal(qkv.attend(*shifted, **options), whole),
        )
    yield "bits of packed sequences", packed_equals(qkv, device)


def check_sums(qkv, device):
    """Yields (claim, whether it holds) for SUMS, which a second pass over the keys computes."""
    made = {"keep": keep("qk"), "bias": bias("qk"), "sinks": sinks}
    case = Case("sums", B=2, H=4, G=2, Tq=700, Tk=900, D=64, make=made, causal=True, dropout=0.1)
    q, k, v, options = case.tensors(device)
    names = ("column_sums", "value_sums", "entropy", "weights")
    got = dict(zip(names, qkv.attend(q, k, v, sums=names, **options)[3:]))
    w = Expected(q, k, v, **options).weights
    columns = w.sum(-2)
    length = v.double().norm(dim=-1).repeat_interleave(2, 1)
    want = {
        "column_sums": columns,
        "value_sums": columns * length,
        "entropy": -torch.xlogy(w, w).sum(-1),
        "weights": w,
    }
    for name in names:
        yield name, torch.allclose(got[name].double(), want[name], rtol=1e-4, atol=1e-6)
    q, k, v = (torch.randn(1, 2, 16384, 128, device=device, dtype=torch.bfloat16) for _ in range(3))
    run, results = qkv.prepared(q, k, v, sums=("column_sums",), causal=True)
    run()
    first = results[3].clone()
    total = float(first.sum(dtype=torch.float64))
    yield "column sums of 16,384 queries add up to them", abs(total / (2 * 16384) - 1) < 1e-5
    same = True
    for _ in range(RUNS - 1):
        results[3].fill_(math.nan)
        run()
        same = same and torch.equal(results[3], first)
    yield "column sums of 16,384 queries have equal bits in every run", same


def packed_equals(qkv, device):
    q, k, v, _ = Case("packed", B=1, Tq=700, Tk=900, D=128).tensors(device)
    starts_q, starts_k = [0, 100, 100, 350, 700], [0, 200, 260, 500, 900]
    flat = [x[0].transpose(0, 1) for x in (q, k, v)]
    given = {
        f"cu_seqlens_{side}": torch.tensor(starts, dtype=torch.int32, device=device)
        for side, starts in (("q", starts_q), ("k", starts_k))
    }
    out, lse, row_max = qkv.attend(*flat, causal=True, **given)
    holds = True
    for n in range(4):
        i, j = slice(*starts_q[n : n + 2]), slice(*starts_k[n : n + 2])
        if i.start == i.stop:
            continue
        alone = qkv.attend(q[:, :, i], k[:, :, j], v[:, :, j], causal=True)
        got = (
            out[i].transpose(0, 1).contiguous(),
            lse[:, i].contiguous(),
            row_max[:, i].contiguous(),
        )
        holds = holds and equal(got, [x[0].contiguous() for x in alone])
    return holds


# ---- times ---------------------------------------------------------------------------------------


def medians(calls):
    """The median seconds of each of these alternating calls; None for one that PyTorch refuses."""
    works = {}
    for name, call in calls.items():
        try:
            call()
            works[name] = call
        except RuntimeError:
            continue
    events = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, call in works.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    times = {n: sorted(a.elapsed_time(b) for a, b in pairs) for n, pairs in events.items()}
    return {name: times[name][ROUNDS // 2] / 1e3 if name in times else None for name in calls}


def by_backend(backend, *arguments, **options):
    def call():
        with sdpa_kernel(backend):
            return sdpa(*arguments, **options)

    return call


def report_times(report, name, calls, operations):
    seconds = medians(calls)
    own = seconds["qkv"]
    peers = {n: s for n, s in seconds.items() if n != "qkv" and s is not None}
    report.add(
        name,
        seconds=own,
        rate=operations / own,
        ratio=min(peers.values()) / own if peers else None,
        peers=peers or None,
    )


def time_plain(qkv, report, D, T, causal, H=16):
    q, k, v = (torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    calls = {
        "qkv": qkv.prepared(q, k, v, causal=causal)[0],
        "cudnn": by_backend(SDPBackend.CUDNN_ATTENTION, q, k, v, is_causal=causal),
        "flash": by_backend(SDPBackend.FLASH_ATTENTION, q, k, v, is_causal=causal),
    }
    operations = 4 * H * T * T * D * (0.5 if causal else 1)
    report_times(report, f"{'causal' if causal else 'plain'}/D{D}-T{T}", calls, operations)


def time_options(qkv, report, D, T, H=16):
    q, k, v = (torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    kept = torch.rand(T, T, device="cuda") > 0.1
    added = torch.randn(T, T, device="cuda", dtype=torch.bfloat16)
    both = added.masked_fill(~kept, -math.inf)
    dropped = {"dropout": 0.1, "seed": 3}
    cudnn = SDPBackend.CUDNN_ATTENTION
    efficient = SDPBackend.EFFICIENT_ATTENTION
    kinds = {
        "dropout": (dropped, {"dropout_p": 0.1}),
        "keep": ({"keep": kept}, {"attn_mask": kept}),
        "bias": ({"bias": added}, {"attn_mask": added}),
        "all": ({"keep": kept, "bias": added, **dropped}, {"attn_mask": both, "dropout_p": 0.1}),
    }
    for name, (own, theirs) in kinds.items():
        calls = {
            "qkv": qkv.prepared(q, k, v, **own)[0],
            "cudnn": by_backend(cudnn, q, k, v, **theirs),
            "efficient": by_backend(efficient, q, k, v, **theirs),
        }
        if name == "dropout":
            calls["flash"] = by_backend(SDPBackend.FLASH_ATTENTION, q, k, v, **theirs)
        report_times(report, f"{name}/D{D}-T{T}", calls, 4 * H * T * T * D)


def time_sums(qkv, report, D, T, H=16):
    q, k, v = (torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for name in ("column_sums", "entropy"):
        calls = {
            "qkv": qkv.prepared(q, k, v, sums=(name,))[0],
            "without": qkv.prepared(q, k, v)[0],
        }
        report_times(report, f"{name}/D{D}-T{T}", calls, 4 * H * T * T * D)


# Additive calls: heads, queries (and as many keys), channels of v, units, whether causal.
ADDITIVE_SIZES = [
    (8, 8192, 64, 64, False), (8, 8192, 64, 64, True), (8, 8192, 64, 32, False),
    (8, 8192, 64, 256, False), (4, 16384, 64, 128, False), (4, 16384, 64, 128, True),
    (8, 8192, 128, 128, False), (8, 8192, 256, 128, False),
]  # fmt: skip


def additive_scores(q, k, v, wq, wk, score_v, score_b):
    """The call as it is written in PyTorch. torch.compile fuses tanh and the sum over units."""
    x, y = q @ wq.mT + score_b, k @ wk.mT
    s = (torch.tanh(x[..., :, None, :] + y[..., None, :, :]) * score_v).sum(-1)
    return torch.softmax(s, -1) @ v


def time_additive(qkv, report):
    """Adds rows of additive scores, whose rate is (pair, unit) per second."""
    compiled = torch.compile(additive_scores)
    for H, T, E, U, causal in ADDITIVE_SIZES:

        def normal(*shape):
            return torch.randn(shape, device="cuda")

        q, k, v = normal(1, H, T, 64), normal(1, H, T, 64), normal(1, H, T, E)
        score = parameters(normal, 64, U)
        calls = {"qkv": qkv.prepared(q, k, v, causal=causal, **score)[0]}
        first = (H, T, E, U, causal) == ADDITIVE_SIZES[0]
        if first:
            calls["compiled"] = lambda: compiled(q, k, v, **score)  # noqa: B023
            kept, added = torch.rand(T, T, device="cuda") > 0.1, normal(T, T)
            every = {"keep": kept, "bias": added, "dropout": 0.1, "seed": 3}
            # Almost all projections are outside of kPlainBound (cuda/device/additive_pairs.h).
            large = parameters(normal, 64, U, 1000.0)
            more = {"all": {**score, **every}, "large projections": {**large}}
        pairs = H * (T * (T + 1) / 2 if causal else T * T) * U
        kind = "additive-causal" if causal else "additive"
        report_times(report, f"{kind}/E{E}-U{U}-T{T}", calls, pairs)
        if first:
            for name, options in more.items():
                calls = {"qkv": qkv.prepared(q, k, v, **options)[0]}
                report_times(report, f"additive, {name}/E{E}-U{U}-T{T}", calls, pairs)


def table(report):
    """A line for each row, with TFLOP/s; for additive scores with 10^12 (pair, unit) per second."""
    for name, row in report.rows.items():
        rates = [("qkv", row["rate"])]
        for peer, seconds in row.get("peers", {}).items():
            rates.append((peer, row["rate"] * row["seconds"] / seconds))
        digits = 2 if name.startswith("additive") else 0
        yield f"{name:36}" + "".join(f"{n:>10} {rate / 1e12:5.{digits}f}" for n, rate in rates)


def check(qkv, device):
    """Prints what is wrong. Returns the number of checks and of failures."""
    wrong = 0
    for case in CASES:
        reason = check_values(qkv, case, device)
        if reason:
            wrong += 1
            print(f"WRONG {case.name}: {reason}", flush=True)
    claims = [*check_bits(qkv, device), *check_sums(qkv, device)]
    for claim, holds in claims:
        if not holds:
            wrong += 1
            print(f"WRONG {claim}", flush=True)
    return len(CASES) + len(claims), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, help="libqkv_cuda_calls.so")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the JSON")
    parser.add_argument("--commit", help="what was built, where this is no checkout")
    parser.add_argument("--no-times", action="store_true", help="check only")
    options = parser.parse_args()
    torch.zeros(1, device="cuda")
    qkv = Qkv(options.library)
    if qkv.why_no_device():
        sys.exit(f"no device: {qkv.why_no_device()}")
    count, wrong = check(qkv, torch.device("cuda", 0))
    torch.cuda.synchronize()
    print(f"{count} checks, {wrong} wrong", flush=True)
    if not options.no_times:
        card = torch.cuda.get_device_name(0)
        versions = {"PyTorch": torch.__version__, "cuDNN": str(torch.backends.cudnn.version())}
        about = {"commit": options.commit} if options.commit else {}
        report = Report(
            **about, device=card, versions=versions, rounds=ROUNDS, checks=count, wrong=wrong
        )
        short = "-".join(word.lower() for word in card.split()[1:2])
        options.out.mkdir(parents=True, exist_ok=True)
        # The file is written after each group, so that a time limit loses only the groups after it.
        path = options.out / f"cuda-{short}.json"
        time_additive(qkv, report)
        report.write(path)
        for D in (64, 128, 256):
            for T in (8192, 16384):
                for causal in (False, True):
                    time_plain(qkv, report, D, T, causal)
                time_options(qkv, report, D, T)
                time_sums(qkv, report, D, T)
                report.write(path)
        print(f"TFLOP/s on {card}", *table(report), sep="\n")
    print(f"{count} checks, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
