# SPDX-License-Identifier: Apache-2.0
"""Tests layers in safetensors files of this package and of the package `safetensors`."""

import os
import pathlib

import numpy as np
import pytest
from layer_formulas import CASES, WITH_PARAMETERS

import qkv


def values_of(layer):
    return {name: array.copy() for name, array in layer.parameters().items()}


def assert_values(layer, want):
    got = layer.parameters()
    assert list(got) == list(want)
    for name, array in got.items():
        np.testing.assert_array_equal(array, want[name])


@pytest.mark.parametrize("kind", [str, pathlib.Path, lambda path: os.fsencode(str(path))])
@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_what_is_saved_is_loaded(name, kind, tmp_path):
    layer, other = CASES[name].make(), CASES[name].make()
    other.initialise(99)
    views = other.parameters()
    layer.save(kind(tmp_path / "layer.safetensors"))
    other.load(kind(tmp_path / "layer.safetensors"))
    assert_values(other, values_of(layer))
    for parameter, view in views.items():  # load() writes in place
        np.testing.assert_array_equal(view, layer.parameters()[parameter])
    assert os.listdir(tmp_path) == ["layer.safetensors"]


def test_file_names_may_be_any_bytes(tmp_path, monkeypatch):
    layer = qkv.SelfAttention(2)
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.safetensors")
    layer.save(strange)
    layer.load(strange)
    with pytest.raises(FileNotFoundError):
        layer.load(strange + "x")
    with open(strange, "wb"):
        pass
    with pytest.raises(ValueError, match=r"\\xff\\xfe.safetensors: "):
        layer.load(strange)
    monkeypatch.chdir(tmp_path)
    layer.save("-")  # "-" is an ordinary file name
    assert os.path.getsize("-") > 48  # the bytes of three float32 matrices [2,2]
    layer.load("-")


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_the_package_safetensors_reads_and_writes_the_same(name, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    layer, other = CASES[name].make(), CASES[name].make()
    layer.save(tmp_path / "ours")
    theirs = safetensors.load_file(tmp_path / "ours")
    assert_values(layer, {key: theirs[key] for key in layer.parameters()})
    assert len(theirs) == len(layer.parameters())
    changed = {key: array + 1 for key, array in values_of(layer).items()}
    safetensors.save_file(changed, tmp_path / "theirs", metadata={"format": "np", "note": '"a"'})
    other.load(tmp_path / "theirs")
    assert_values(other, changed)


# ---- wrong files --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """Returns a function that saves any arrays under any names, by the format's specification."""

    def save(**arrays):
        import json

        header, data = {}, b""
        # NumPy's bytes stand for I128, a type that the format does not have.
        for name, array in arrays.items():
            letters = {"float32": "F32", "float64": "F64", "int32": "I32", "bytes128": "I128"}[
                array.dtype.name
            ]
            offsets = [len(data), len(data) + array.nbytes]
            header[name] = {"dtype": letters, "shape": array.shape, "data_offsets": offsets}
            data += array.tobytes()
        text = json.dumps(header).encode()
        path = tmp_path / "f.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return path

    return save


SQUARE = np.full((2, 2), 7, np.float32)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"W_q": SQUARE, "W_k": SQUARE}, "tensor v is missing"),
        ({"W_q": SQUARE, "W_k": SQUARE, "v": SQUARE}, r"tensor v: expected float32 \[2\], got fl"),
        (
            {"W_q": SQUARE, "W_k": SQUARE, "v": SQUARE[0].astype(float)},
            r"tensor v: expected float32 \[2\], got float64 \[2\]",
        ),
        (
            {"W_q": SQUARE, "W_k": SQUARE, "v": SQUARE[0], "b": SQUARE},
            'tensor "b" is not of this layer, which has W_q, W_k, v',
        ),
        (
            {"W_q": SQUARE, "W_k": SQUARE.astype("i4"), "v": SQUARE[0]},
            r"tensor W_k: expected float32 \[2,2\], got int32 \[2,2\]",
        ),
        ({}, "tensor W_q is missing"),
        (
            {"W_q": SQUARE, "W_k": SQUARE.astype("S16"), "v": SQUARE[0]},
            r"tensor W_k: expected float32 \[2,2\], got I128 \[2,2\] \(unsupported type\)",
        ),
        (
            {"W_q": SQUARE, "W_k": SQUARE, "v": SQUARE[0], "b": SQUARE.astype("S16")},
            'tensor "b" is not of this layer, which has W_q, W_k, v',
        ),
    ],
)
def test_a_file_of_another_layer_changes_nothing(saved, arrays, text):
    layer = qkv.AdditiveAttention(2, 2, 2)
    before = values_of(layer)
    with pytest.raises(ValueError, match=r"f\.safetensors: " + text):
        layer.load(saved(**arrays))
    assert_values(layer, before)
    layer.load(saved(W_q=SQUARE, W_k=SQUARE, v=SQUARE[0]))
    assert_values(layer, {"W_q": SQUARE, "W_k": SQUARE, "v": SQUARE[0]})


def test_files_that_cannot_be_read_or_written(tmp_path):
    layer = qkv.SelfAttention(2)
    before = values_of(layer)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        layer.load(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError):
        layer.load(tmp_path)
    (tmp_path / "text").write_text("not a safetensors file, but long enough")
    with pytest.raises(ValueError, match="text: byte"):
        layer.load(tmp_path / "text")
    assert_values(layer, before)
    with pytest.raises(OSError, match="cannot be written: No such file or directory"):
        layer.save(tmp_path / "nowhere" / "file")
    with pytest.raises(OSError, match="cannot be written"):
        layer.save(tmp_path)
    with pytest.raises(TypeError):
        layer.save(3.5)
    with pytest.raises(ValueError, match="null"):
        layer.save("a\0b")
    with pytest.raises(ValueError, match="null"):
        layer.load("a\0b")
    for call in (qkv.DotProductAttention().save, qkv.DotProductAttention().load):
        with pytest.raises(ValueError, match="the layer has no parameters to "):
            call(tmp_path / "text")
    assert os.listdir(tmp_path) == ["text"]
