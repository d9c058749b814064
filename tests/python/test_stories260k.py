# SPDX-License-Identifier: Apache-2.0
"""Tests a trained Llama of 260,000 parameters in Transformers: its text and its heads.

The model's files, in llama2.c's format, are data and not part of the project; without them the
tests are skipped.
"""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from patience import PATIENCE

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
pytest.importorskip("transformers", reason="register() is for Transformers")

import transformers  # noqa: E402

import qkv.torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("QKV_DATA_DIR") or ROOT.parent / "shared" / "data")
FOLDER = DATA / "stories260K"
START, STEPS = 1, 200
LOOK_PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "python" / "stories260k.py"

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason="no stories260K in the data folder (set QKV_DATA_DIR)"
)


def example():
    """The module of the example that reads the files."""
    found = importlib.util.spec_from_file_location("stories260k", EXAMPLE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def read_model():
    return example().read_model(FOLDER)


def text_of(tokens):
    """The text of tokens without the first; a token after START loses its leading space."""
    pieces, text = example().read_pieces(FOLDER), b""
    for before, token in zip(tokens, tokens[1:]):
        piece = pieces[token]
        if piece.startswith(b"<0x"):
            piece = bytes([int(piece[3:5], 16)])
        text += piece[1:] if before == START and piece.startswith(b" ") else piece
    return text


def test_its_greedy_text_is_the_reference():
    transformers.logging.set_verbosity_error()
    qkv.torch.register()
    model = read_model()
    start = torch.tensor([[START]])
    options = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": None}
    written = {}
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        for cache in ("dynamic", "static"):
            tokens = model.generate(
                start, attention_mask=torch.ones_like(start), cache_implementation=cache, **options
            )
            written[implementation, cache] = tokens[0].tolist()
    want = written["eager", "dynamic"]
    assert len(want) == 1 + STEPS
    assert [call for call, tokens in written.items() if tokens != want] == []
    assert text_of(want) == (FOLDER / "greedy-200-steps.txt").read_bytes()


def test_a_batch_padded_on_the_left():
    qkv.torch.register()
    model = read_model().double()
    whole = model.generate(torch.tensor([[START]]), max_new_tokens=40, do_sample=False)[0]
    first, second = whole[:30], whole[:12]
    words = torch.stack([first, torch.cat([torch.zeros(18, dtype=torch.long), second])])
    model.set_attn_implementation("qkv")
    got = model.generate(words, attention_mask=(words != 0).long(), max_new_tokens=11,
                         do_sample=False, pad_token_id=0)  # fmt: skip
    assert got[0].tolist() == whole[:41].tolist()
    assert got[1, 18:].tolist() == whole[:23].tolist()


# ---- the model's heads --------------------------------------------------------------------------


def test_every_head_is_eagers():
    model = read_model()
    words = model.generate(torch.tensor([[START]]), max_new_tokens=60, do_sample=False)
    model.set_attn_implementation("eager")
    with torch.no_grad(), qkv.torch.look(model, rows=slice(None), column_sums=True) as seen:
        eager = model(words, output_attentions=True).attentions
    assert len(seen) == len(eager) == 5
    for layer, weights in zip(seen, eager):
        torch.testing.assert_close(layer.weights, weights, rtol=0, atol=1e-6)
        torch.testing.assert_close(layer.column_sums, weights.sum(2), rtol=0, atol=1e-5)


def program(*arguments):
    return subprocess.run([sys.executable, "-m", "qkv", *arguments], capture_output=True, text=True,
                          timeout=PATIENCE)  # fmt: skip


def test_the_file_of_the_example_is_viewed(tmp_path, capsys):
    path = tmp_path / "heads.npz"
    example().main(FOLDER, path)
    assert capsys.readouterr().out.startswith("Once upon a time, there was a little girl named")
    done = program("stats", str(path), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["warnings"] == []
    with np.load(path) as file:
        assert file["attn"].shape == (1, 5, 8, 25, 25)
        assert file["src"][1:4].tolist() == ["Once", "upon", "a"]
    pictures = re.findall(r"(?m)^(qkv view heads\.npz .* -o (\S*)\.svg)$", LOOK_PAGE)
    assert len(pictures) == 1
    for command, name in pictures:
        arguments = shlex.split(command)[1:-1]
        svg = tmp_path / "drawn.svg"
        arguments[1] = str(path)
        done = program(*arguments, str(svg))
        assert done.returncode == 0, done.stderr
        drawn, want = (re.findall(r">([^<]+)</text>", x.read_text(encoding="utf-8"))
                       for x in (svg, ROOT / "docs" / "images" / f"{name}.svg"))  # fmt: skip
        assert drawn == want and len(want) > 50


def test_a_file_of_named_rows_is_viewed(tmp_path):
    model, path = read_model(), tmp_path / "rows.npz"
    words = model.generate(torch.tensor([[START]]), max_new_tokens=20, do_sample=False)
    pieces = example().read_pieces(FOLDER)
    tokens = [pieces[word].decode().strip() for word in words[0]]
    with torch.no_grad(), qkv.torch.look(model, rows=[-1, 4], layers="layers.3", heads=[6]) as seen:
        model(words)
    seen.save(path, tokens=tokens)
    done = program("view", str(path), "--table")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:4]}
    assert tokens[4] in rows and tokens[-1] in rows
    shown = np.array(rows[tokens[4]], float)
    np.testing.assert_allclose(shown, seen[0].weights[0, 0, 1].numpy(), atol=1e-4)
    assert program("stats", str(path)).returncode == 0
