# SPDX-License-Identifier: Apache-2.0
"""Tests the types: the stub matches the bound functions, and mypy finds no error."""

import pathlib
import subprocess
import sys

import pytest
from patience import PATIENCE

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments, **options):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True,
                          timeout=PATIENCE, **options)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_stub_is_what_is_bound():
    # If this fails: scripts/python_stub.py > python/qkv/_core.pyi
    wanted = ROOT.joinpath("python/qkv/_core.pyi").read_text(encoding="utf-8")
    assert run(ROOT / "scripts/python_stub.py") == wanted


def test_installed_package_has_its_stub(tmp_path):
    # stubtest imports every module, also those of qkv.torch.
    pytest.importorskip("torch")
    # stubtest runs in another directory, to check the installed package and not the checkout.
    allowlist = ROOT / "tests/python/stubtest_allowlist.txt"
    run("-m", "mypy.stubtest", "qkv", "--allowlist", allowlist,
        "--mypy-config-file", ROOT / "pyproject.toml", cwd=tmp_path)  # fmt: skip


def test_strict_types():
    printed = run("-m", "mypy", "python/qkv", cwd=ROOT)
    assert printed.startswith("Success: ")


def test_types_of_the_examples(tmp_path):
    # The examples are scripts without annotations, whose functions mypy does not check by default.
    # To read PyTorch's types would take mypy a minute.
    config = tmp_path / "mypy.ini"
    lines = ["[mypy]", "check_untyped_defs = true",
             "[mypy-torch.*,transformers.*]", "follow_imports = skip"]  # fmt: skip
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    printed = run("-m", "mypy", "--config-file", config, "--cache-dir=build/mypy_cache_examples",
                  "examples/python", cwd=ROOT)  # fmt: skip
    assert printed.startswith("Success: ")


def test_types_reach_the_user(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import qkv\nqkv.attention(1, 2, 3, scale='one')\nreveal_type(qkv.info())\n",
                     encoding="utf-8")  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", wrong], capture_output=True,
                          text=True, timeout=PATIENCE, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 1
    assert 'incompatible type "str"; expected "float | None"' in done.stdout
    assert 'Revealed type is "dict[str, Any]"' in done.stdout
    assert "Found 1 error" in done.stdout
