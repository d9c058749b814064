# SPDX-License-Identifier: Apache-2.0
"""Tests that the examples print their expected output and all numbers of the seed documents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "python").glob("seed*.py"))  # other examples need data
SEEDS = ["000", "001", "002", "003"]

# A number or a truth value that is not part of a name or of a longer number.
TOKEN = re.compile(r"(?<![\w.])(True|False|-?\d+(?:\.\d*)?)(?![\w])")


def expected_of(example: Path) -> str:
    """The expected output of an example, without the licence line."""
    return example.with_suffix(".out").read_text(encoding="utf-8").split("\n", 1)[1]


def test_all_are_found():
    assert [path.stem for path in EXAMPLES] == [f"seed{seed}" for seed in SEEDS]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_prints_what_stands_beside_it(example, tmp_path):
    done = subprocess.run(
        [sys.executable, str(example)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout == expected_of(example)


# ---- the numbers of the documents ----------------------------------------------------------------


class SeedRow(NamedTuple):
    """One line of tests/seed_numbers.tsv."""

    document: str
    line: str
    expression: str
    numbers: list[str]
    digits: int

    def is_at(self, tokens: list[str], start: int) -> bool:
        found = tokens[start : start + len(self.numbers)]
        return len(found) == len(self.numbers) and all(map(self.agree, self.numbers, found))

    def agree(self, wanted: str, found: str) -> bool:
        """Whether they agree within half a unit of the last given and last printed decimals."""
        if wanted in ("True", "False") or found in ("True", "False"):
            return wanted == found
        printed = len(found.partition(".")[2]) if "." in found else self.digits
        return abs(float(wanted) - float(found)) <= 0.5 * 10.0 ** -min(self.digits, printed)


def seed_rows(document: str) -> list[SeedRow]:
    rows = []
    for line in (ROOT / "tests" / "seed_numbers.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith(document):
            name, place, expression, numbers, digits = line.split("\t")
            rows.append(SeedRow(name, place, expression, numbers.split(), int(digits)))
    return rows


@pytest.mark.parametrize("document", SEEDS)
def test_prints_the_numbers_of_its_document(document):
    """Each row of the table is in the output, with its numbers in order."""
    tokens = TOKEN.findall(expected_of(ROOT / "examples" / "python" / f"seed{document}.out"))
    for row in seed_rows(document):
        found = any(row.is_at(tokens, start) for start in range(len(tokens)))
        assert found, f"line {row.line}, {row.expression}: {row.numbers}"


def test_counts_the_rows():
    assert [len(seed_rows(document)) for document in SEEDS] == [38, 15, 15, 7]
