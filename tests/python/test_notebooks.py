# SPDX-License-Identifier: Apache-2.0
"""Tests the notebooks of the four seed documents: outputs, printed numbers, pages' pictures."""

import copy
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from qkv import _picture

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
DATA = Path(os.environ.get("QKV_DATA_DIR") or ROOT.parent / "shared" / "data")
GLOVE = DATA / "glove.6B.50d.top5050.txt"
DOCUMENTS = ["000", "001", "002", "003"]

# A number or a truth value that is not part of a name or of a longer number.
TOKEN = re.compile(r"(?<![\w.])(True|False|-?\d+(?:\.\d*)?)(?![\w])")


def script(name):
    """The module of a file in scripts/."""
    found = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(name="notebooks")
def notebooks_fixture():
    """The module scripts/notebooks.py, where its packages are installed."""
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package, reason=f"no {package}, which executes notebooks")
    return script("notebooks")


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def printed(path):
    """The stored text output of all cells."""
    outputs = [output for cell in cells_of(path) for output in cell.get("outputs", [])]
    return "".join("".join(output.get("text", [])) for output in outputs)


# ---- form ---------------------------------------------------------------------------------------


def test_all_are_found():
    assert [path.stem for path in NOTEBOOKS] == DOCUMENTS


def test_the_function_check_is_the_same_in_all():
    (code,) = {
        "".join(cell["source"]).partition("import re\n")[2]
        for path in NOTEBOOKS
        for cell in cells_of(path)
        if cell["id"] == "check"
    }
    assert "def check(" in code


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_code_cell_was_executed_in_order(path):
    counts = [cell["execution_count"] for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


# ---- outputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_executed_again_a_notebook_has_the_stored_outputs(path, notebooks):
    if not _picture.PROGRAM.is_file():
        pytest.skip("no program qkv in this build of the package")
    assert notebooks.differences(notebooks.read(path), notebooks.executed(path)) == []


def test_notebook_001_reads_real_vectors_if_present(notebooks, tmp_path):
    if not _picture.PROGRAM.is_file():
        pytest.skip("no program qkv in this build of the package")
    if not GLOVE.is_file():
        pytest.skip(f"no {GLOVE}, which has vectors of GloVe")
    # The file lacks the word "walks" of the sentence; "walks" gets the vector of "walked".
    text = GLOVE.read_text(encoding="utf-8")
    (walked,) = re.findall(r"(?m)^walked (.*)$", text)
    (tmp_path / "glove.6B.50d.txt").write_text(f"{text}walks {walked}\n", encoding="utf-8")
    stored = notebooks.read(ROOT / "examples" / "notebooks" / "001.ipynb")
    fresh = notebooks.executed(ROOT / "examples" / "notebooks" / "001.ipynb", tmp_path)
    values = np.array([float(number) for number in walked.split()], np.float32)
    picture = next(
        output.data["image/svg+xml"]
        for cell in fresh.cells
        if cell.id == "words"
        for output in cell.outputs
        if "image/svg+xml" in output.get("data", {})
    )
    assert all(f"walks → {n}: {value:+.4g}" in picture for n, value in enumerate(values[:3]))
    assert notebooks.differences(stored, fresh) != []


def test_differences_are_found(notebooks):
    stored = notebooks.read(NOTEBOOKS[0])
    shown = {cell.id: cell for cell in stored.cells}
    assert notebooks.differences(stored, stored) == []

    def after(change):
        fresh = copy.deepcopy(stored)
        change({cell.id: cell for cell in fresh.cells})
        return [line.split(":")[0] for line in notebooks.differences(stored, fresh)]

    def replaced(cell, kind, old, new):
        def change(cells):
            (output,) = (x for x in cells[cell].outputs if kind in x.get("data", {}))
            assert old in output.data[kind]
            output.data[kind] = output.data[kind].replace(old, new)

        return change

    def printed_otherwise(cells):
        cells["softmax"].outputs[0].text += "more"

    picture = "image/svg+xml"
    assert "0.8808" in shown["softmax"].outputs[1].data[picture]
    assert after(printed_otherwise) == ["cell softmax"]
    assert after(replaced("softmax", picture, "0.8808", "0.8809")) == []
    assert after(replaced("softmax", picture, "0.8808", "0.8810")) == ["cell softmax"]
    assert after(replaced("widths", picture, "7.315e-16", "7.316e-16")) == []
    assert after(replaced("widths", picture, "7.315e-16", "7.318e-16")) == ["cell widths"]
    assert after(replaced("softmax", picture, ">k1<", ">k3<")) == ["cell softmax"]
    assert after(replaced("toy", picture, ">3<", ">4<")) == ["cell toy"]
    assert after(lambda cells: cells["toy"].outputs.pop()) == ["cell toy"]


# ---- the numbers of the documents ----------------------------------------------------------------


class SeedRow(NamedTuple):
    """One row of tests/seed_numbers.tsv, which explains its columns."""

    document: str
    line: str
    expression: str
    numbers: list[str]
    digits: int

    @property
    def array(self) -> str:
        """The expression without an index at its end, such as [2]."""
        return re.sub(r"\[\d+\]$", "", self.expression)

    def is_in(self, tokens: list[str]) -> bool:
        size = len(self.numbers)
        starts = range(len(tokens) - size + 1)
        return any(all(map(self.agree, self.numbers, tokens[n : n + size])) for n in starts)

    def agree(self, wanted: str, found: str) -> bool:
        """Whether both agree within half a unit of the last decimal that both have."""
        if wanted in ("True", "False") or found in ("True", "False"):
            return wanted == found
        decimals = len(found.partition(".")[2]) or self.digits  # "4." is whole, like "4"
        return abs(float(wanted) - float(found)) <= 0.5 * 10.0 ** -min(self.digits, decimals)


def seed_rows(document: str) -> list[SeedRow]:
    rows = []
    for line in (ROOT / "tests" / "seed_numbers.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith(document):
            name, place, expression, numbers, digits = line.split("\t")
            rows.append(SeedRow(name, place, expression, numbers.split(), int(digits)))
    return rows


def run_of(rows: list[SeedRow], tokens: list[str]) -> list[SeedRow]:
    """The first rows whose numbers, row after row, are all of the tokens; none if they differ."""
    run, left = [], tokens
    for row in rows:
        here, left = left[: len(row.numbers)], left[len(row.numbers) :]
        if len(here) < len(row.numbers) or not row.is_in(here):
            return []
        run.append(row)
        if not left:
            return run
    return []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_shows_the_numbers_of_its_document(document):
    """Each line that is printed for qkv or for the document has the numbers of rows, in order.

    A row may be skipped only if its numbers are in lines printed for other rows of its array.
    """
    text = printed(ROOT / "examples" / "notebooks" / f"{document}.ipynb")
    rows = seed_rows(document)
    if document == "003":
        rows.insert(2, rows.pop(3))  # the notebook shows all kinds of scores before the projections
    for whose in ("qkv", "document"):
        shown: dict[str, list[str]] = {}
        after = 0
        for line in re.findall(rf"(?m)^ +{whose} +(.*)$", text):
            tokens = TOKEN.findall(line)
            runs = [(start, run_of(rows[start:], tokens)) for start in range(after, len(rows))]
            start, run = next(((start, run) for start, run in runs if run), (after, []))
            repeated = after > 0 and run_of([rows[after - 1]], tokens)  # the last row again
            assert run or repeated, f"{whose}: no row after line {rows[after - 1].line} has {line}"
            after = start + len(run)
            for row in run:
                shown[row.array] = shown.get(row.array, []) + tokens
        for row in rows:
            found = row.is_in(shown.get(row.array, []))
            assert found, f"{whose}: line {row.line}, {row.expression}: {row.numbers}"


def test_each_document_has_all_rows():
    assert [len(seed_rows(document)) for document in DOCUMENTS] == [38, 15, 15, 7]


# ---- pictures of the pages ----------------------------------------------------------------------

PAGES = [ROOT / "docs" / name for name in ("seeds.md", "gallery.md")]


def test_pictures_of_the_pages_are_those_of_the_notebooks():
    gallery = script("gallery")
    for name, (notebook, cells, columns) in gallery.FROM_NOTEBOOKS.items():
        svg = gallery.grid(gallery.outputs(notebook, cells), columns)
        assert svg == (gallery.IMAGES / name).read_text(encoding="utf-8"), name


def test_the_pooled_picture_is_computed_again():
    if not _picture.PROGRAM.is_file():
        pytest.skip("no program qkv in this build of the package")
    gallery = script("gallery")
    stored = (gallery.IMAGES / "gallery" / "pooled.svg").read_text(encoding="utf-8")
    cells = gallery.cells_of(stored)
    assert len(cells) == 3 * 96 * 96  # three maps of 96 x 96 cells
    assert gallery.is_close(stored, gallery.pooled())
    assert not gallery.is_close(stored, stored.replace("by topic", "by colour"))
    other = stored.replace(cells[0, 0, 0].hex(), "ffffff")
    assert other != stored and not gallery.is_close(stored, other)


def test_every_picture_is_on_a_page():
    gallery = script("gallery")
    shown = [
        name
        for page in PAGES
        for name in re.findall(r'(?:src="|\]\()images/([\w/-]+\.svg)', page.read_text("utf-8"))
    ]
    assert set(gallery.FROM_NOTEBOOKS) | set(gallery.COMPUTED) <= set(shown)
    assert [name for name in shown if not (gallery.IMAGES / name).is_file()] == []
