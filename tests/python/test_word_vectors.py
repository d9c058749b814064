# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.read_word_vectors with files of each format, and with real GloVe vectors."""

import os
import pathlib
import struct
import threading

import numpy as np
import pytest
from ctrl_c import ctrl_c_after
from patience import PATIENCE

import qkv

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("QKV_DATA_DIR") or ROOT.parent / "shared" / "data")
GLOVE = DATA / "glove.6B.50d.top5050.txt"

# The second "cat" is ignored: a word's first vector counts.
TEXT = "the 1 2\ncat 3 -4e-1\nmat 5 6\ncat 9 9\n"
WORDS, NUMBERS = ["the", "cat", "mat"], np.array([[1, 2], [3, -0.4], [5, 6]], np.float32)


def binary():
    records = (word.encode() + b" " + struct.pack("<2f", *row) for word, row in zip(WORDS, NUMBERS))
    return b"3 2\n" + b"\n".join(records)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "v.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.mark.parametrize("content", [TEXT.encode(), b"4 2\n" + TEXT.encode(), binary()],
                         ids=["glove", "header", "binary"])  # fmt: skip
def test_formats(tmp_path, content):
    path = tmp_path / "v"
    path.write_bytes(content)
    words, vectors = qkv.read_word_vectors(path)
    assert words == WORDS
    assert vectors.dtype == np.float32 and vectors.flags.writeable and vectors.flags.c_contiguous
    np.testing.assert_array_equal(vectors, NUMBERS)
    found = qkv.read_word_vectors(os.fsencode(path), ("mat", "the", "mat"))
    assert isinstance(found, qkv.WordVectors)
    assert found.words == ["mat", "the", "mat"]
    np.testing.assert_array_equal(found.vectors, NUMBERS[[2, 0, 2]])


def test_limit_and_no_words(path):
    words, vectors = qkv.read_word_vectors(path, limit=2)
    assert (words, vectors.shape) == (WORDS[:2], (2, 2))
    assert qkv.read_word_vectors(path, []).vectors.shape == (0, 2)
    assert qkv.read_word_vectors(path, width=2).words == WORDS


def test_unknown_words(path):
    wanted = ["dog", "cat"]
    assert qkv.read_word_vectors(path, wanted, unknown="skip").words == ["cat"]
    words, vectors = qkv.read_word_vectors(path, wanted, unknown="zero")
    assert words == wanted
    np.testing.assert_array_equal(vectors, [[0, 0], NUMBERS[1]])
    with pytest.raises(ValueError, match="no vector for") as caught:
        qkv.read_word_vectors(path, ["cats", "The"])
    assert str(caught.value) == (
        f'{path}: no vector for "cats" (near spellings: cat), "The" (near spellings: the); '
        'unknown="skip" or "zero" continues without'
    )
    with pytest.raises(ValueError, match="no vector for") as caught:
        qkv.read_word_vectors(path, [f"missing{n}" for n in range(100)])
    assert " more; unknown=" in str(caught.value)
    assert len(str(caught.value)) - len(str(path)) < 220


def test_words_of_other_bytes(tmp_path):
    path = tmp_path / "v.txt"
    path.write_bytes(b"caf\xe9 1 2\ncaf\xc3\xa9 3 4\n")
    words, _ = qkv.read_word_vectors(path)
    assert words == ["caf\udce9", "café"]
    np.testing.assert_array_equal(qkv.read_word_vectors(path, words).vectors, [[1, 2], [3, 4]])


@pytest.mark.parametrize(("call", "kind", "text"), [
    (lambda p: qkv.read_word_vectors(p, "cat"), TypeError,
     "read_word_vectors: words must be an iterable of str, got str"),
    (lambda p: qkv.read_word_vectors(p, 3), TypeError,
     "read_word_vectors: words must be an iterable of str, got int"),
    (lambda p: qkv.read_word_vectors(p, ["cat", b"the"]), TypeError,
     "read_word_vectors: words[1] must be a str, got bytes"),
    (lambda p: qkv.read_word_vectors(p, ["\ud800"]), ValueError,
     "read_word_vectors: words[0] must be text that UTF-8 can hold, got str '\\ud800'"),
    (lambda p: qkv.read_word_vectors(p, limit=0), ValueError,
     "read_word_vectors: limit must be 1 or more, got 0"),
    (lambda p: qkv.read_word_vectors(p, limit="3"), TypeError,
     "read_word_vectors: limit must be an integer, got str '3'"),
    (lambda p: qkv.read_word_vectors(p, ["cat"], limit=3), ValueError,
     "read_word_vectors: limit must be None with words"),
    (lambda p: qkv.read_word_vectors(p, width=-1), ValueError,
     "read_word_vectors: width must be 1 or more, got -1"),
    (lambda p: qkv.read_word_vectors(p, unknown="none"), ValueError,
     'read_word_vectors: unknown must be "error", "skip" or "zero", got str \'none\''),
    (lambda p: qkv.read_word_vectors(p, ["dog"], unknown=None), TypeError,
     'read_word_vectors: unknown must be "error", "skip" or "zero", got None'),
    (lambda p: qkv.read_word_vectors(3), TypeError, "expected str, bytes or os.PathLike"),
    (lambda p: qkv.read_word_vectors(p, limits=3), TypeError,
     "read_word_vectors() got an unexpected keyword argument 'limits'. Did you mean 'limit'?"),
    (lambda p: qkv.read_word_vectors(p.parent / "none"), FileNotFoundError, "No such file"),
    (lambda p: qkv.read_word_vectors(p.parent), IsADirectoryError, "Is a directory"),
    (lambda p: qkv.read_word_vectors(p, width=3), ValueError,
     "v.txt:1: expected a word and a vector of width 3, got a field count of 3"),
])  # fmt: skip
def test_wrong_calls(path, call, kind, text):
    with pytest.raises(kind) as caught:
        call(path)
    assert text in str(caught.value)


def test_a_file_that_may_not_be_read(path):
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(PermissionError):
        qkv.read_word_vectors(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_pipes_and_ctrl_c(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(TEXT, encoding="utf-8"))
    writer.start()
    np.testing.assert_array_equal(qkv.read_word_vectors(pipe).vectors, NUMBERS)
    writer.join(PATIENCE)
    # Nobody writes, so the read waits until Ctrl-C.
    with ctrl_c_after(0.3), pytest.raises(KeyboardInterrupt):
        qkv.read_word_vectors(pipe)


@pytest.mark.skipif(not GLOVE.exists(), reason="no GloVe vectors in the data folder")
def test_glove():
    words, vectors = qkv.read_word_vectors(GLOVE)
    assert vectors.shape == (5050, 50)
    with open(GLOVE, encoding="utf-8") as file:
        lines = [line.split(" ") for line in file.read().splitlines()]
    assert words == [line[0] for line in lines]
    np.testing.assert_array_equal(vectors, np.array([line[1:] for line in lines], np.float32))
    some = qkv.read_word_vectors(GLOVE, ["cat", "walk", "street"])
    rows = [words.index(word) for word in some.words]
    np.testing.assert_array_equal(some.vectors, vectors[rows])
    with pytest.raises(ValueError, match='no vector for "walks" \\(near spellings: walk'):
        qkv.read_word_vectors(GLOVE, ["walks"])
