#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/benchmarks-*.md, made from the measurements in bench/results/.

usage: benchmarks.py            print the tables of every page
       benchmarks.py --write    write them into the pages
       benchmarks.py --check    exit 1 if a page has another table than its measurements give

A table stands between <!-- table: NAME --> and <!-- end -->. PAGES names the machine of each page,
with which the names of its files in bench/results/ begin. A new machine is a new page with the same
marks.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = {"benchmarks-amd.md": "amd-epyc-26-2"}
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


class Results:
    """The measurements of one machine."""

    def __init__(self, machine, root=ROOT):
        self.machine, self.folder, self.reports = machine, root / "bench" / "results", {}

    def value(self, report, row, key):
        """A number, or None where it was too noisy to be kept or was not measured."""
        if report not in self.reports:
            path = self.folder / f"{self.machine}{report and '-' + report}.json"
            self.reports[report] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        value = self.reports[report][row]
        for part in key.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def cell(self, text, report, row, key, factor=1, none="noisy"):
        value = self.value(report, row, key)
        return none if value is None else text.format(value * factor)

    def ratio(self, report, row, key="ratio", none="noisy"):
        value = self.value(report, row, key)
        return none if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"

    def percent(self, report, row, key="share_of_peak"):
        return self.cell("{:.0f} %", report, row, key, 100)

    def gigaflops(self, row, report=""):
        return self.cell("{:.0f}", report, row, "rate", 1e-9)

    def milliseconds(self, report, row, key="seconds"):
        return self.cell("{:.3g} ms", report, row, key, 1e3)


# ---- each table: its head, and its rows ----------------------------------------------------------


def sdpa(r):
    yield ["T", "call", "float32", "with gradients", "bfloat16", "with gradients"]
    kinds = {"plain": "plain", "causal": "causal", "padding": "padding mask",
             "bias": "bias [1,8,T,T]", "dropout": "dropout 0.1"}
    for tokens in (128, 512, 2048):
        for kind, words in kinds.items() if tokens == 2048 else list(kinds.items())[:2]:
            rows = [f"calls/T{tokens}-{kind}-{way}-{dtype}"
                    for dtype in ("float32", "bfloat16") for way in ("forward", "both")]
            yield [f"{tokens:,}", words, *(r.ratio("torch", row) for row in rows)]


def sdpa_decode(r):
    yield ["B, H, G, Tq, Tk, D", "float32: ours", "PyTorch", "bfloat16: ours", "PyTorch"]
    for sizes in ((1, 8, 8, 1, 512, 64), (1, 8, 8, 1, 8192, 64), (1, 32, 8, 1, 8192, 128),
                  (8, 32, 8, 1, 2048, 128)):
        names = zip(("B", "H", "G", "Tq", "Tk", "D"), sizes)
        row = "decode/" + "-".join(f"{name}{size}" for name, size in names)
        cells = [", ".join(map(str, sizes))]
        for dtype in ("float32", "bfloat16"):
            cells.append(r.milliseconds("torch", f"{row}-{dtype}"))
            cells.append(r.ratio("torch", f"{row}-{dtype}"))
        yield cells


def models(r):
    yield ["", "with qkv", "eager", "sdpa"]
    llama, gpt, bert = ("Llama, 8 heads over 2, causal", "GPT-2, dropout 0.1",
                        "BERT, padding, dropout 0.1")
    step = "training step"
    for name in (f"{llama}, 4 x 512 tokens, float32: {step}",
                 f"{llama}, 1 x 2048 tokens, float32: {step}",
                 f"{llama}, 1 x 2048 tokens, bfloat16 autocast: {step}",
                 f"{gpt}, 4 x 512 tokens, float32: {step}",
                 f"{bert}, 4 x 512 tokens, float32: {step}",
                 "Llama, 32 tokens after 1024, dynamic cache: generate()",
                 "Llama, 128 tokens after 64, dynamic cache: generate()"):
        row = f"models/{name}"
        yield [name, r.milliseconds("torch", row),
               r.ratio("torch", row, "ratios/eager"), r.ratio("torch", row, "ratios/sdpa")]


LIBRARIES = ("PyTorch", "ONNX Runtime", "OpenVINO", "JAX", "llama.cpp")


def libraries(r):
    yield ["", "dtype", "ours", *LIBRARIES]
    rows = [(f"forward, T = {T:,}, D = {D}{', causal' if causal else ''}", dtype,
             f"prefill/B1-H8-G8-Tq{T}-Tk{T}-D{D}{'-causal' if causal else ''}-{dtype}")
            for dtype in ("float32", "bfloat16")
            for T, D, causal in ((512, 64, False), (2048, 64, False), (2048, 64, True))]
    rows += [(f"decode, {heads} heads, {cache:,} keys, D = {D}", dtype,
              f"decode/B1-H{heads}-G8-Tq1-Tk{cache}-D{D}-{dtype}")
             for dtype in ("float32", "bfloat16")
             for heads, cache, D in ((32, 8192, 128), (8, 8192, 64))]
    for words, dtype, row in rows:
        ratios = (r.ratio("libraries", row, f"ratios/{name}", none="none") for name in LIBRARIES)
        yield [words, dtype, r.milliseconds("libraries", row), *ratios]


def peak(r):
    yield ["", "forward", "of the peak", "oneDNN", "gradients", "of the peak", "oneDNN"]
    for row, words in {
        "T512-D64": "T = 512, D = 64", "T2048-D64": "T = 2,048, D = 64",
        "T2048-D128": "T = 2,048, D = 128", "T2048-D64-causal": "T = 2,048, D = 64, causal",
        "T2048-D64-bfloat16": "T = 2,048, D = 64, bfloat16",
        "T2048-D64-float64": "T = 2,048, D = 64, float64",
    }.items():  # fmt: skip
        cells = [words]
        for group in ("forward", "backward"):
            name = f"{group}/{row}"
            cells += [r.gigaflops(name), r.percent("", name),
                      r.ratio("", name, "peer_ratio", none="")]
        yield cells
    cells = ["T = 2,048, D = 64, two threads"]
    for name in ("threads/T2048-D64-share", "backward/T2048-D64-threads"):
        cells += [r.gigaflops(name), r.percent("", name), r.ratio("", name, "peer_ratio")]
    yield cells


def small(r):
    yield ["T", "forward: 1 head", "64 heads", "gradients: 1 head", "64 heads"]
    for tokens in (16, 32, 64, 128):
        rows = [f"many/B{heads}-T{tokens}{way}" for way in ("", "-backward") for heads in (1, 64)]
        yield [str(tokens), *(r.percent("", row) for row in rows)]


def options(r):
    yield ["with", "forward", "gradients"]
    for words, forward, backward in (
        ("dropout", "options/dropout", "backward/dropout"),
        ("boolean mask [Tq,Tk]", "options/mask", "backward/mask"),
        ("soft-cap", "options/soft-cap", "backward/soft-cap"),
        ("bias [Tq,Tk], with its gradient", "options/bias", "backward/bias"),
        ("padding", "options/padding", "backward/padding"),
        ("padding, NaN in its keys and values", "options/padding-nan", "backward/padding-nan"),
        ("ALiBi", "options/alibi", None),
        ("own score, `s - slope * abs(at.i - at.j)`", "custom/decay", "backward/decay"),
        ("own mask, four documents, precomputed", "custom/documents-precomputed", None),
        ("bilinear score", "bilinear/T2048-D64", "bilinear/T2048-D64-backward"),
        ("entropy, column and value sums, pooled weights", "sums/T2048-D64-all", None),
        ("column sums of the last 32 queries", "sums/T2048-D64-last-32-queries", None),
    ):
        yield [words, *(r.ratio("", row, "ratio_to_plain") if row else ""
                        for row in (forward, backward))]


def decode(r):
    yield ["keys and values", "1 query", "4 queries", "8 queries"]
    for dtype, suffix in (("float32", ""), ("bfloat16", "-bfloat16"), ("float16", "-float16"),
                          ("q8", "-q8")):
        rows = (f"decode/T16384-D128-queries{n}{suffix}" for n in (1, 4, 8))
        yield [dtype, *(r.percent("decode", row, "share_of_read") for row in rows)]


def pages(r):
    yield ["pages of", "[B,G,Tk,D]", "[B,Tk,G,D]", "in pages"]
    for size in (16, 64, 256):
        row = "decode/T16384-G8-D128-queries1"
        yield [str(size), *(r.percent(f"pages{size}", f"{row}{way}", "share_of_read")
                            for way in ("", "-by-token", f"-pages{size}"))]


def additive(r):
    yield ["", "forward, 10^9/s", "backward, 10^9/s"]
    for words, row in (
        ("T = 2,048, U = 256", "T2048-U256-D64"), ("the same, float64", "T2048-U256-D64-float64"),
        ("64 sentences of 30 words, U = 256", "translator-D64"),
        ("128 sets of 100 points, U = 256", "pointer-D64"),
        ("a query over 30 keys, `AdditiveMemory`", "translator-step-D64-memory"),
        ("a query over 800 keys, `AdditiveMemory`", "speech-step-D64-memory"),
    ):  # fmt: skip
        names = (f"additive/{row}", backward_of(f"additive/{row}"))
        yield [words, *(r.cell("{:.1f}", "additive", name, "units_per_second", 1e-9)
                        for name in names)]


def backward_of(row):
    memory = row.endswith("-memory")
    return f"{row.removesuffix('-memory')}-backward{'-memory' if memory else ''}"


def additive_packages(r):
    packages = ("PyTorch, compiled", "KeOps, factored by hand")
    yield ["", *(f"{name}{way}" for name in packages for way in ("", ", with gradients"))]
    for words, case in (
        ("T = 1,024", "square"), ("64 sentences of 30 words", "translator"),
        ("16 queries, 800 keys each", "speech"), ("128 sets of 100 points", "pointer"),
    ):  # fmt: skip
        yield [words, *(r.ratio("additive-peers", f"{case}-{way}", f"ratios/{name}")
                        for name in packages for way in ("forward", "step"))]


def layers(r):
    yield ["forward and backward", "ours", "torch.nn"]
    for row in ("multi-head attention, 4 x 512 tokens, width 512, 8 heads",
                "GRU, 32 x 25 tokens, 32 to 64", "GRU, 64 x 30 tokens, 256 to 256",
                "linear, 24 rows, 224 to 128", "linear, 2048 rows, 1024 to 1024"):
        yield [row, r.milliseconds("layers", row), r.ratio("layers", row)]


def translator(r):
    names = ("PyTorch, eager", "PyTorch, compiled", "JoeyNMT")
    yield ["", "qkv", *names]
    for words, row, unit in (
        ("training, batches of 4,096 tokens", "training-4096", "target tokens/s"),
        ("translation, greedy", "translation-greedy", "sentences/s"),
        ("translation, beam of 5", "translation-beam5", "sentences/s"),
    ):
        rate = r.cell("{:,.0f} " + unit, "translator-peers", row, "rate")
        yield [words, rate, *(r.ratio("translator-peers", row, f"ratios/{name}") for name in names)]


def float32_error(r):
    yield ["D", "out: qkv", "PyTorch", "dq: qkv", "PyTorch"]
    for width in (64, 128, 1024, 4096):
        keys = (f"{result}/{name}" for result in ("out", "dq") for name in ("qkv", "PyTorch"))
        yield [f"{width:,}", *(r.cell("{:.2f}", "float32-error", f"D{width}", key, 1e7)
                               for key in keys)]


TABLES = {
    "sdpa": sdpa, "sdpa-decode": sdpa_decode, "models": models, "libraries": libraries,
    "peak": peak, "small": small, "options": options, "decode": decode, "pages": pages,
    "additive": additive, "additive-packages": additive_packages, "layers": layers,
    "translator": translator, "float32-error": float32_error,
}  # fmt: skip


# ---- the pages -----------------------------------------------------------------------------------


def rendered(name, results):
    head, *rows = TABLES[name](results)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def updated(text, machine, root=ROOT):
    """A page's text with the tables that the measurements give. Raises KeyError for a name that
    is no table's."""
    results = Results(machine, root)
    return TABLE.sub(lambda found: found[1] + rendered(found[2], results) + found[4], text)


def faults(root=ROOT):
    """Pages whose tables are not those of bench/results/, as text."""
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
                found.append(f"docs/{name}: table {table} is not that of bench/results: "
                             "run scripts/benchmarks.py --write")
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
        print("\n".join(f"{table}\n{rendered(table, results)}" for table in TABLES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
