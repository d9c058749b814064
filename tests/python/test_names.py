# SPDX-License-Identifier: Apache-2.0
"""Tests that errors escape names with control characters, for every error that shows a name."""

import os
import subprocess
import sys

import numpy as np
import pytest

import qkv

# The name has a colour, a bell, delete, a C1 sequence that clears the screen, reversed text order,
# a line break and a byte that is not UTF-8.
NAME = "a\x1b[31mb\x07\x7f\x9b2J\u202e\nFORGED\udcff"
X = np.ones((1, 2, 4), np.float32)


def linear():
    return qkv.Linear(2, 2)


def damaged(path, content=b"\x10\0\0\0\0\0\0\0{"):
    path.write_bytes(content)
    return path


def calls(path):
    """Yields calls whose error shows NAME."""
    attend = lambda **options: qkv.attention(X, X, X, **options)  # noqa: E731
    yield lambda: linear().load(path / NAME)
    yield lambda: linear().load(damaged(path / f"{NAME}1"))
    yield lambda: linear().save(path / "none" / NAME)
    yield lambda: qkv.KvCache.from_file(path / NAME)
    yield lambda: qkv.KvCache.from_file(damaged(path / f"{NAME}2"))
    yield lambda: qkv.KvCache(1, 2, 4).save(path / "none" / NAME)
    yield lambda: qkv.Translator.load(path / NAME)
    yield lambda: qkv.Translator.load(damaged(path / f"{NAME}3"))
    yield lambda: qkv.Translator.load(damaged(path / f"{NAME}4", b"text"))
    yield lambda: qkv.Translator.dates().translate("1", unknown=NAME)
    yield lambda: qkv.read_word_vectors(path / NAME)
    yield lambda: qkv.read_word_vectors(damaged(path / f"{NAME}5"))
    yield lambda: qkv.read_word_vectors(damaged(path / f"{NAME}6", b"a 1"), [NAME[:-1]])
    yield lambda: qkv.read_word_vectors(path / NAME, unknown=NAME)
    yield lambda: linear().load_torch({NAME: np.ones(2)})
    yield lambda: linear().load_torch({f"{NAME}.x": np.ones(2)}, prefix="y")
    yield lambda: attend(**{NAME: 1})
    yield lambda: qkv.KvCache(1, 2, 4).attention(X, **{NAME: 1})
    yield lambda: attend(score=NAME)
    yield lambda: attend(score="bilinear", params={NAME: X})
    yield lambda: attend(causal=NAME)
    yield lambda: attend(bias=NAME)
    yield lambda: attend(bias=np.zeros(2, [(NAME[:-1], "f4")]))
    yield lambda: attend(seed=NAME)
    yield lambda: attend(threads=NAME)
    yield lambda: qkv.Linear(2, 2, dtype=NAME)
    yield lambda: qkv.CrossEntropy(reduction=NAME)


def test_errors_are_one_printable_line(tmp_path):
    for n, call in enumerate(calls(tmp_path)):
        with pytest.raises((ValueError, TypeError, OSError)) as caught:
            call()
        text = str(caught.value)
        assert text.isprintable() and "FORGED" in text, (n, text)


@pytest.mark.parametrize("value", ["\x1b[31mavx2", "avx2\n", "\x9b", NAME])
def test_an_invalid_target_in_the_environment(value):
    program = (
        "import numpy, qkv\n"
        "x = numpy.ones((1, 2, 4))\n"
        "try: qkv.attention(x, x, x)\n"
        "except ValueError as error: print(ascii(str(error).isprintable()), ascii(str(error)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=True, env={**os.environ, "QKV_TARGET": value})  # fmt: skip
    assert done.stdout.startswith("True 'attention: QKV_TARGET is "), done.stdout
