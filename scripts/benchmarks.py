#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/benchmarks-*.md, made from the measurements in bench/results/.

usage: benchmarks.py            print the tables of every page
       benchmarks.py --write    write them into the pages
       benchmarks.py --check    exit 1 if a page has another table than its measurements give

A table stands between <!-- table: NAME --> and <!-- end -->. PAGES names the machine of each page:
the beginning of the names of its files in bench/results/. A new machine gets a new page with the
same marks.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = {
    "benchmarks-amd.md": "amd-epyc-26-2",
    "benchmarks-expressions.md": "amd-epyc-25-17",
    "benchmarks-intel.md": "intel-xeon-6-207",
    "benchmarks-h200.md": "cuda-h200",
}
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


class Results:
    """The measurements of one machine."""

    def __init__(self, machine, root=ROOT):
        self.machine, self.folder, self.reports = machine, root / "bench" / "results", {}

    def rows(self, report):
        if report not in self.reports:
            path = self.folder / f"{self.machine}{report and '-' + report}.json"
            self.reports[report] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return self.reports[report]

    def value(self, report, row, key):
        """A number, or None if it was too noisy to be recorded or was not measured."""
        value = self.rows(report)[row]
        for part in key.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def fastest(self, report, row, names):
        """The package, among `names`, with the shortest time."""
        ratios = self.rows(report)[row]["ratios"]
        return min(names, key=lambda name: ratios[name])

    def cell(self, text, report, row, key, factor=1, none="noisy"):
        value = self.value(report, row, key)
        return none if value is None else text.format(value * factor)

    def ratio(self, report, row, key="ratio", none="noisy"):
        value = self.value(report, row, key)
        return none if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"

    def percent(self, report, row, key):
        return self.cell("{:.0f} %", report, row, key, 100)

    def milliseconds(self, report, row, key="seconds"):
        return self.cell("{:.3g} ms", report, row, key, 1e3)


# ---- each table: its head, and its rows ----------------------------------------------------------


def sdpa(r):
    yield ["T", "call", "float32", "with gradients", "bfloat16", "with gradients"]
    kinds = {
        "plain": "no mask",
        "causal": "causal",
        "padding": "padding mask",
        "bias": "bias [1,8,T,T]",
        "dropout": "dropout 0.1",
    }
    for tokens, kind in ((128, "causal"), *((2048, kind) for kind in kinds)):
        rows = [
            f"calls/T{tokens}-{kind}-{way}-{dtype}"
            for dtype in ("float32", "bfloat16")
            for way in ("forward", "both")
        ]
        yield [f"{tokens:,}", kinds[kind], *(r.ratio("torch", row) for row in rows)]


def sdpa_decode(r):
    yield ["B, H, G, Tq, Tk, D", "float32", "bfloat16"]
    for sizes in (
        (1, 8, 8, 1, 512, 64),
        (1, 32, 8, 1, 8192, 128),
        (8, 32, 8, 1, 2048, 128),
    ):
        names = zip(("B", "H", "G", "Tq", "Tk", "D"), sizes)
        row = "decode/" + "-".join(f"{name}{size}" for name, size in names)
        yield [
            ", ".join(map(str, sizes)),
            *(r.ratio("torch", f"{row}-{dtype}") for dtype in ("float32", "bfloat16")),
        ]


def models(r):
    yield ["", "eager", "sdpa"]
    llama, step = "Llama, 8 heads over 2, causal", "training step"
    for words, row in (
        ("training, Llama, 4 x 512 tokens", f"{llama}, 4 x 512 tokens, float32: {step}"),
        ("training, Llama, 1 x 2,048 tokens, bfloat16 autocast",
         f"{llama}, 1 x 2048 tokens, bfloat16 autocast: {step}"),
        ("training, BERT, padding, dropout 0.1, 4 x 512 tokens",
         f"BERT, padding, dropout 0.1, 4 x 512 tokens, float32: {step}"),
        ("`generate()`, Llama, 128 new tokens after 64",
         "Llama, 128 tokens after 64, dynamic cache: generate()"),
    ):  # fmt: skip
        yield [
            words,
            *(r.ratio("torch", f"models/{row}", f"ratios/{way}") for way in ("eager", "sdpa")),
        ]


LIBRARIES = ("PyTorch", "ONNX Runtime", "OpenVINO", "JAX", "llama.cpp")


def measured(r, report, names):
    """The packages among `names` that a report has."""
    rows = r.rows(report).values()
    return [name for name in names if any(name in row["ratios"] for row in rows)]


def libraries(r):
    names = measured(r, "libraries", LIBRARIES)
    yield ["", "qkv", *names]
    rows = [
        (mask, dtype, f"prefill/B1-H8-G8-Tq2048-Tk2048-D64{suffix}-{dtype}")
        for dtype in ("float32", "bfloat16")
        for mask, suffix in (("no mask", ""), ("causal", "-causal"))
    ]
    rows += [
        (f"decode, {heads} heads, D = {D}", dtype, f"decode/B1-H{heads}-G8-Tq1-Tk8192-D{D}-{dtype}")
        for dtype, heads, D in (("float32", 8, 64), ("float32", 32, 128), ("bfloat16", 32, 128))
    ]
    for words, dtype, row in rows:
        ratios = (r.ratio("libraries", row, f"ratios/{name}", none="none") for name in names)
        label = words if dtype == "float32" else f"{words}, {dtype}"
        yield [label, r.milliseconds("libraries", row), *ratios]


def options(r):
    yield ["with", "forward", "backward"]
    for words, forward, backward in (
        ("dropout", "options/dropout", "backward/dropout"),
        ("boolean mask [Tq,Tk]", "options/mask", "backward/mask"),
        ("bias [Tq,Tk], with its gradient", "options/bias", "backward/bias"),
        ("`score_mod`: `s - slope * abs(at.i - at.j)`", "custom/decay", "backward/decay"),
        ("entropy, column and value sums, pooled weights", "sums/T2048-D64-all", None),
    ):
        yield [
            words,
            *(r.ratio("", row, "ratio_to_plain") if row else "" for row in (forward, backward)),
        ]


def decode(r):
    yield ["keys and values", "1 query head", "8 query heads"]

    def share(n, suffix=""):
        return r.value("decode", f"decode/T16384-D128-queries{n}{suffix}", "share_of_read")

    # The time relative to float32. It is proportional to the bytes of a number (`size`) over the
    # share of the rate of reads.
    def time(n, suffix, size):
        own, float32 = share(n, suffix), share(n)
        return "noisy" if own is None or float32 is None else f"{size / 4 * float32 / own:.2f}"

    # 34 bytes of a q8 block hold 32 numbers.
    for dtype, suffix, size in (
        ("bfloat16", "-bfloat16", 2),
        ("float16", "-float16", 2),
        ("q8", "-q8", 34 / 32),
    ):
        yield [dtype, *(time(n, suffix, size) for n in (1, 8))]


def pages(r):
    yield ["`[B,G,Tk,D]`", "`[B,Tk,G,D]`", "pages of 64 keys"]
    yield [
        r.percent("pages64", f"decode/T16384-G8-D128-queries1{way}", "share_of_read")
        for way in ("", "-by-token", "-pages64")
    ]


def additive(r):
    keops = measured(r, "additive-peers", ("KeOps, factored by hand",))
    names = ("qkv, 10^9 tanh/s", "PyTorch", *(name.removesuffix(" by hand") for name in keops))
    # PyTorch's time is the shorter of eager and compiled.
    ways = [("PyTorch, eager", "PyTorch, compiled"), *((name,) for name in keops)]
    yield ["B, Tq, Tk", *(cell for name in names for cell in (name, "with gradients"))]
    for words, case in (
        ("1, 1024, 1024", "square"), ("64, 30, 30", "translator"), ("16, 1, 800", "speech"),
    ):  # fmt: skip
        rows = [f"{case}-{way}" for way in ("forward", "step")]
        yield [
            words,
            *(r.cell("{:.1f}", "additive-peers", row, "rate", 1e-9) for row in rows),
            *(
                r.ratio("additive-peers", row, f"ratios/{r.fastest('additive-peers', row, way)}")
                for way in ways
                for row in rows
            ),
        ]


def layers(r):
    yield ["forward and backward", "qkv", "torch.nn"]
    for row in (
        "multi-head attention, 4 x 512 tokens, width 512, 8 heads",
        "GRU, 64 x 30 tokens, 256 to 256",
        "linear, 2048 rows, 1024 to 1024",
    ):
        yield [row, r.milliseconds("layers", row), r.ratio("layers", row)]


def translator(r):
    names = ("PyTorch, compiled", "JoeyNMT")
    yield ["", "qkv", *names]
    for words, row, unit in (
        ("training, batches of 4,096 tokens", "training-4096", "target tokens/s"),
        ("translation, beam of 5", "translation-beam5", "sentences/s"),
    ):
        rate = r.cell("{:,.0f} " + unit, "translator-peers", row, "rate")
        yield [words, rate, *(r.ratio("translator-peers", row, f"ratios/{name}") for name in names)]


def teraflops(r, row, peer=None):
    """The rate of qkv, or of a peer in the same row."""
    rate = r.value("", row, "rate")
    if peer is None:
        return f"{rate * 1e-12:.0f}"
    seconds = r.value("", row, f"peers/{peer}")
    own = r.value("", row, "seconds")
    return "refused" if seconds is None else f"{rate * own / seconds * 1e-12:.0f}"


def gpu_forward(r):
    yield ["D", "mask", "qkv", "cuDNN", "flash"]
    for D in (64, 128, 256):
        for kind, words in (("plain", "none"), ("causal", "causal")):
            row = f"{kind}/D{D}-T16384"
            rates = (teraflops(r, row, peer) for peer in (None, "cudnn", "flash"))
            yield [str(D), words, *rates]


def gpu_options(r):
    yield ["with", "qkv", "cuDNN", "flash"]
    kinds = {
        "dropout": "dropout 0.1",
        "keep": "boolean mask [T,T]",
        "bias": "bias [T,T]",
        "all": "all three",
    }
    for kind, words in kinds.items():
        row = f"{kind}/D128-T16384"
        yield [words, *(teraflops(r, row, peer) for peer in (None, "cudnn", "flash"))]


def gpu_sums(r):
    yield ["D", "plain call", "with column sums", "with entropy"]
    for D in (64, 128, 256):
        plain = r.value("", f"column_sums/D{D}-T16384", "peers/without")
        rows = [f"{name}/D{D}-T16384" for name in ("column_sums", "entropy")]
        times = [r.value("", row, "seconds") for row in rows]
        yield [
            str(D),
            f"{plain * 1e3:.3g} ms",
            *(f"{s * 1e3:.3g} ms, {s / plain:.2f} times" for s in times),
        ]


def expressions(r):
    yield ["score or mask", "forward", "backward", "with gradients", "PyTorch, forward"]
    kinds = {
        "alibi": "`s - slope[h] * abs(i - j)`",
        "relative": "`s + table[h, j - i + T - 1]`",
        "t5": "`s + buckets[h, bucket[j - i + T - 1]]`",
        "soft-cap": "`20 * tanh(s / 20)`",
        "causal": "`j <= i`",
        "documents": "`document[i] == document[j]`, four documents",
        "dilated": "`j <= i and (i - j) % 4 == 0`",
    }
    for row, words in kinds.items():
        cells = (
            r.ratio("expressions", row, key, "") for key in ("forward", "backward", "gradients")
        )
        yield [words, *cells, r.ratio("expressions", row, "flex")]


TABLES = {
    "expressions": expressions,
    "gpu-forward": gpu_forward, "gpu-options": gpu_options, "gpu-sums": gpu_sums,
    "sdpa": sdpa, "sdpa-decode": sdpa_decode, "models": models, "libraries": libraries,
    "options": options, "decode": decode, "pages": pages, "additive": additive, "layers": layers,
    "translator": translator,
}  # fmt: skip


# ---- the pages -----------------------------------------------------------------------------------


def rendered(name, results):
    head, *rows = TABLES[name](results)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(cells)}|\n" for cells in lines)


def updated(text, machine, root=ROOT):
    """A page's text with the tables that the measurements give. Raises KeyError for the name of
    an unknown table."""
    results = Results(machine, root)
    return TABLE.sub(lambda found: found[1] + rendered(found[2], results) + found[4], text)


def faults(root=ROOT):
    """Texts that name the pages whose tables are not those of bench/results/."""
    found = []
    for name, machine in PAGES.items():
        text = (root / "docs" / name).read_text(encoding="utf-8")
        marks = TABLE.findall(text)
        if not marks:
            found.append(f"docs/{name}: no table")
        for _, table, body, _ in marks:
            if table not in TABLES:
                found.append(f"docs/{name}: no table is named {table}")
            elif body != rendered(table, Results(machine, root)):
                found.append(
                    f"docs/{name}: table {table} is not that of bench/results: "
                    "run scripts/benchmarks.py --write"
                )
    return found


def main():
    if sys.argv[1:] == ["--check"]:
        wrong = faults()
        print("\n".join([*wrong, f"{len(PAGES)} pages, {len(wrong)} faults"]))
        return 1 if wrong else 0
    if sys.argv[1:] not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    for name, machine in PAGES.items():
        page = ROOT / "docs" / name
        if sys.argv[1:]:
            page.write_text(updated(page.read_text(encoding="utf-8"), machine), encoding="utf-8")
            continue
        results = Results(machine)
        names = [found[2] for found in TABLE.finditer(page.read_text(encoding="utf-8"))]
        print("\n".join(f"{table}\n{rendered(table, results)}" for table in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
