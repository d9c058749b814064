# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.show: what is drawn, the forms of pictures, their files, and errors."""

import pickle
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile

import ml_dtypes
import numpy as np
import pytest

import qkv
from qkv import _picture, _show

if not _picture.PROGRAM.is_file():
    pytest.skip("no program qkv in this build of the package", allow_module_level=True)

TOKENS = ["the", "cat", "sat"]


def weights(*shape):
    """Rows of weights that differ, each with the sum 1."""
    raw = np.random.default_rng(3).random(shape) + 0.01
    return raw / raw.sum(-1, keepdims=True)


def arrays(picture, tmp_path):
    """The arrays of the picture's .npz."""
    picture.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        return dict(file)


def texts(svg):
    """The text elements of an SVG document."""
    root = ET.fromstring(svg)
    return ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]


# ---- what is drawn ------------------------------------------------------------------------------


def test_numbers_and_tokens(tmp_path):
    W = weights(3, 3)
    got = arrays(qkv.show(W, keys=TOKENS), tmp_path)
    np.testing.assert_array_equal(got["attn"], W)
    assert got["src"].tolist() == got["tgt"].tolist() == TOKENS
    shown = texts(qkv.show(W, ["q0", "q1", "q2"], TOKENS, title="a <title> & more").svg)
    assert {"q0", "q1", "q2", *TOKENS, "a <title> & more"} <= set(shown)
    assert f"{W[1, 2]:.2f}" in shown


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_types(tmp_path, name):
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
    W = np.eye(3).astype(dtype)
    got = arrays(qkv.show(W), tmp_path)["attn"]
    np.testing.assert_array_equal(got, np.eye(3))


def test_rows_of_bfloat16_are_summed_with_its_precision(tmp_path):
    W = weights(2, 40, 40).astype(ml_dtypes.bfloat16)
    assert np.abs(W.astype(float).sum(-1) - 1).max() > 1e-4
    tokens = [str(n) for n in range(40)]
    for one in (W, list(W)):
        picture = qkv.show(one, keys=tokens, mask=np.ones((40, 40), np.uint8), heads=0)
        assert "do not sum to 1" not in picture.svg
    got = arrays(qkv.show(W, keys=tokens, mask=np.tri(40, dtype=bool)), tmp_path)
    np.testing.assert_array_equal(got["attn"].astype(np.float32), W.astype(np.float32))
    assert got["src"].tolist() == tokens and got["mask"].shape == (2, 40, 40)
    assert "do not sum to 1" in qkv.show(W.astype(np.float32)).svg
    qkv.show(W, minus=W.astype(np.float32)).save(tmp_path / "x.svg")


def test_lists_of_numbers_are_one_map():
    assert "0.75" in texts(qkv.show([[0.25, 0.75], [1.0, 0.0]]).svg)


@pytest.mark.parametrize(
    ("shape", "order", "titles"),
    [
        ((2, 3, 3), None, ["head 0", "head 1"]),
        ((1, 2, 3, 3), None, ["head 0", "head 1"]),
        ((2, 1, 3, 3), "layers,heads", ["layer 0, head 0", "layer 1, head 0"]),
        ((2, 3, 3), ["layers"], ["layer 0", "layer 1"]),
        ((1, 2, 1, 3, 3), None, ["layer 0, head 0", "layer 1, head 0"]),
    ],
)
def test_titles_name_layers_and_heads(shape, order, titles):
    shown = texts(qkv.show(weights(*shape), order=order).svg)
    assert [one for one in shown if re.match("layer|head", one)] == titles


def test_a_list_has_an_array_for_each_layer(tmp_path):
    layers = [weights(2, 4, 3, 3), weights(2, 4, 3, 3)[:, ::-1]]
    got = arrays(qkv.show(tuple(layers), example=1, layers="all", heads="all"), tmp_path)
    np.testing.assert_array_equal(got["attn"], np.stack(layers)[:, 1])


def test_results_of_a_call(tmp_path):
    q, k, v = weights(1, 2, 3, 4), weights(1, 2, 5, 4), weights(1, 2, 5, 4)
    found = qkv.attention(q, k, v, return_weights=True, return_scores="raw", return_top=2)
    np.testing.assert_array_equal(arrays(qkv.show(found), tmp_path)["attn"], found.weights)
    scores = qkv.attention(q, k, v, return_scores="raw")
    got = arrays(qkv.show(scores), tmp_path)
    np.testing.assert_array_equal(got["attn"], scores.scores)
    assert got["quantity"].tolist() == ["score"]


def test_results_without_heads_are_examples(tmp_path):
    x, q = weights(2, 3, 4), weights(4, 3, 4)
    found = qkv.attention(x, x, x, return_weights=True, return_pooled=(2, 2))
    assert "head" not in qkv.show(found).svg
    got = arrays(qkv.show(found, example=1), tmp_path)["attn"]
    np.testing.assert_array_equal(got[0], found.weights[1])
    assert texts(qkv.show([found, found]).svg).count("layer 1") == 1
    pooled = qkv.attention(x, x, x, return_pooled=(2, 2))
    got = arrays(qkv.show(pooled, example=1), tmp_path)["attn"]
    np.testing.assert_array_equal(got[0], pooled.pooled[1])
    layer = qkv.SelfAttention(4).forward(x.astype(np.float32), return_weights=True)
    got = arrays(qkv.show(layer, example=1), tmp_path)["attn"]
    np.testing.assert_array_equal(got[0], layer.weights[1])
    # If q has one axis more than k, the first axis of the weights has heads, as in a plain array.
    mixed = qkv.attention(q, x[0], x[0], return_weights=True)
    for heads in (qkv.show(mixed), qkv.show(mixed.weights)):
        assert {"head 0", "head 3"} <= set(texts(heads.svg))


LENGTHS = np.array([5, 2])


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"causal": "top_left", "window": (1, None)},
        {"causal": True, "causal_offset": 1},
        {"key_lengths": LENGTHS},
        {"padding_mask": np.arange(5) >= LENGTHS[:, None]},
        {"mask": np.tri(4, 5, dtype=np.uint8)},
        {"bias": np.where(np.tri(4, 5) > 0, 0.0, -np.inf)},
        {"mask_mod": lambda at: at.j != at.h},
        {"score_mod": lambda s, at: qkv.where(at.j > at.i, -np.inf, s)},
        {"key_lengths": LENGTHS, "causal": True, "layout": "bthd"},
    ],
)
def test_masked_pairs_of_results_are_hatched(tmp_path, options):
    q, k = weights(2, 3, 4, 6), weights(2, 3, 5, 6)
    axes = (0, 2, 1, 3) if "layout" in options else (0, 1, 2, 3)
    call = [x.transpose(axes) for x in (q, k, k)]
    found = qkv.attention(*call, return_weights=True, return_scores="masked", **options)
    allowed = ~np.isneginf(found.scores)
    assert not allowed.all()
    for wanted in (
        {"return_weights": True},
        {"return_weights": "dropped", "dropout": 0.5, "seed": 1},
        {"return_scores": "masked"},
        {"return_scores": ("raw", "masked")},
    ):
        picture = qkv.show(qkv.attention(*call, **options, **wanted), example=1, heads="all")
        np.testing.assert_array_equal(arrays(picture, tmp_path)["mask"][0], allowed[1])
        assert "url(#masked)" in picture.svg
    rows = qkv.attention(*call, return_weights=True, rows=[2, 0], **options)
    got = arrays(qkv.show(rows, example=1, heads="all"), tmp_path)
    np.testing.assert_array_equal(got["mask"][0], allowed[1][:, [2, 0]])


def test_which_results_have_no_masked_pairs(tmp_path):
    x = weights(2, 3, 4)
    for found in (
        qkv.attention(x, x, x, return_weights=True),
        qkv.attention(x, x, x, return_weights=True, score_mod=lambda s, at: s - at.j),
        qkv.attention(x, x, x, causal=True, return_pooled=(2, 2)),
        pickle.loads(pickle.dumps(qkv.attention(x, x, x, causal=True, return_weights=True))),
    ):
        assert "mask" not in arrays(qkv.show(found), tmp_path)
    found = qkv.attention(x, x, x, causal=True, return_weights=True)
    got = arrays(qkv.show(found, mask=np.array([1, 0, 1])), tmp_path)["mask"]
    np.testing.assert_array_equal(got[0], np.tile([True, False, True], (3, 1)))


def test_masked_pairs_of_other_results(tmp_path):
    x = weights(2, 3, 4)
    causal = np.tri(3, dtype=bool)
    memory = qkv.AdditiveMemory(x, {"Wq": np.ones((5, 4)), "Wk": np.ones((5, 4)), "v": np.ones(5)})
    layer = qkv.MultiHeadAttention(4, 2, dtype="float64")
    for found in (
        qkv.SelfAttention(4, "float64").forward(x, causal=True, return_weights=True),
        qkv.DotProductAttention().forward(x, x, x, causal=True, return_weights=True),
        layer.forward(x, x, x, causal=True, return_weights=True),
        memory.attention(x, x, causal=True, return_weights=True),
        [qkv.attention(x, x, x, causal=c, return_weights=True) for c in (True, False)],
    ):
        mask = arrays(qkv.show(found), tmp_path)["mask"]
        if isinstance(found, list):
            assert mask[1].all()
            mask = mask[0]
        np.testing.assert_array_equal(mask, np.broadcast_to(causal, mask.shape))


def test_lists_of_results_are_layers(tmp_path):
    x = weights(6, 6)
    each = [qkv.attention(x * n, x, x, return_weights=True) for n in (1, 2)]
    got = arrays(qkv.show(each), tmp_path)["attn"]
    np.testing.assert_array_equal(got.reshape(2, 6, 6), [one.weights for one in each])


def test_a_picture_copies_its_arrays(tmp_path):
    W, mask = weights(3, 3), np.tri(3, dtype=bool)
    before, picture = W.copy(), qkv.show(W, mask=mask)
    W[:], mask[:] = 0, False
    got = arrays(picture, tmp_path)
    np.testing.assert_array_equal(got["attn"], before)
    np.testing.assert_array_equal(got["mask"], np.tri(3, dtype=bool))


def test_masks_and_indices_of_other_forms(tmp_path):
    got = arrays(qkv.show(weights(3, 3), mask=np.tri(3, dtype=bool)[None, None]), tmp_path)
    np.testing.assert_array_equal(got["mask"], np.tri(3, dtype=bool))
    got = arrays(qkv.show(weights(4, 5), rows=slice(-2, None), columns=slice(0, 5, 2)), tmp_path)
    np.testing.assert_array_equal(got["attn"], weights(4, 5)[2:, ::2])


def test_what_is_large_is_not_printed(monkeypatch):
    tall = qkv.show(np.eye(400))
    lines = len(tall.text().splitlines())
    assert repr(tall).startswith(f"<qkv.Picture of {lines} lines: text() has them, save() writes")
    assert "image/svg+xml" in tall._repr_mimebundle_()
    monkeypatch.setattr(_picture, "_MOST_BYTES", 1000)
    forms = qkv.show(np.eye(3))._repr_mimebundle_()
    assert set(forms) == {"text/plain"} and "too large to show here" in forms["text/plain"]
    forms = qkv.show.row(qkv.show(np.eye(3)))._repr_mimebundle_()
    assert set(forms) == {"text/plain"}


def test_selected_parts(tmp_path):
    W = weights(4, 5, 6)
    got = arrays(qkv.show(W, heads=[3, -4], rows="1-2", columns=range(2, 6)), tmp_path)
    np.testing.assert_array_equal(got["attn"], W[[3, 0]][:, 1:3, 2:])
    got = arrays(qkv.show(weights(5, 5), tokens=[0, 4]), tmp_path)
    np.testing.assert_array_equal(got["attn"], weights(5, 5)[[0, 4]][:, [0, 4]])
    got = arrays(qkv.show(W, reduce="mean-heads"), tmp_path)
    np.testing.assert_allclose(got["attn"].reshape(5, 6), W.mean(0), rtol=1e-15)
    got = arrays(qkv.show(weights(3, 3), keys=["[CLS]", "a", "[SEP]"], hide_special=True,
                          keep="[SEP]"), tmp_path)  # fmt: skip
    assert got["src"].tolist() == ["a", "[SEP]"]


def test_queries_and_keys_may_be_indices(tmp_path):
    W = weights(4, 5, 6)
    for queries, keys in (
        ("1-2", "2-5"),
        ([1, 2], range(2, 6)),
        (slice(1, 3), slice(2, None)),
        (np.array([1, 2]), [-4, -3, -2, -1]),
    ):
        got = arrays(qkv.show(W, queries=queries, keys=keys, heads=1), tmp_path)
        np.testing.assert_array_equal(got["attn"].reshape(2, 4), W[1, 1:3, 2:])
    tokens = list("abcdef")
    got = arrays(qkv.show(W, keys=tokens, columns="2-5", queries=0, heads=1), tmp_path)
    np.testing.assert_array_equal(got["attn"].ravel(), W[1, 0, 2:])
    assert got["src"].tolist() == tokens[2:]
    for options, message in (
        ({"queries": 5}, r"show: queries must be from -5 to 4, got 5"),
        ({"keys": [0, 0]}, r"show: keys must name each index once, got \[0, 0\]"),
        ({"queries": [1, 2], "rows": 1}, r"show: queries must be tokens if rows has the indices"),
        ({"keys": "0-9,"}, r"show: keys must be a list of 6 strings, got one text"),
        ({"keys": [True] * 6}, r"show: keys must be strings, got one of type bool"),
        ({"rows": 7}, r"show: rows must be from -5 to 4, got 7"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            qkv.show(W, **options)


def test_the_difference_of_two_arrays(tmp_path):
    A, B = weights(2, 3, 3), weights(2, 3, 3)[::-1]
    picture = qkv.show(A, keys=TOKENS, minus=B)
    np.testing.assert_array_equal(arrays(picture, tmp_path)["difference"], A - B)
    assert "difference" in texts(picture.svg)
    assert "weights minus other weights" in "".join(texts(picture.svg))


def test_masked_pairs_are_hatched():
    W = np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None]
    assert "url(#masked)" in qkv.show(W, mask=np.tri(3, dtype=bool)).svg
    assert "url(#masked)" not in qkv.show(W).svg


def test_notes_on_rows_are_for_weights_alone():
    numbers = np.array([[2.0, -1.0], [0.5, 0.5]])
    assert "negative weights" in qkv.show(numbers).svg
    for quantity in ("score", "output"):
        shown = qkv.show(numbers, quantity=quantity).svg
        assert "negative weights" not in shown and quantity in texts(shown)


def test_styles_are_those_of_the_program():
    listed = subprocess.run([_picture.PROGRAM, "view", "--help"], stdout=subprocess.PIPE, text=True,
                            check=True).stdout  # fmt: skip
    for name, values in _show.CHOICES.items():
        found = re.search(rf"--{name.replace('_', '-')} (\S+)", listed)
        assert found[1].rstrip(".").split("|") == list(values), name
    W = weights(2, 3, 3)
    usual = qkv.show(W).svg
    for options in ({"scale": "log"}, {"range": "row"}, {"max": 2}, {"min": 0.1},
                    {"colours": "grey"}, {"font": "Arial"}, {"axes": ("from", "to")},
                    {"title": "--x"},
                    {"cell_titles": "never"}, {"heads": 0}, {"example": 0}):  # fmt: skip
        assert (qkv.show(W, **options).svg != usual) == (options != {"example": 0}), options
    omitted = qkv.show(weights(20, 3, 3), notes="aside").svg
    assert "heads 0-11 of 20 shown" in omitted
    assert not any("of 20 shown" in text for text in texts(omitted))


# ---- forms and files ----------------------------------------------------------------------------


def test_forms_in_a_notebook_and_elsewhere(monkeypatch):
    picture = qkv.show(np.eye(3), keys=TOKENS)
    forms = picture._repr_mimebundle_(include=None, exclude=None)
    assert set(forms) == {"image/svg+xml", "text/plain"}
    assert forms["image/svg+xml"] == picture.svg and picture.svg.startswith("<?xml")
    assert "██" in forms["text/plain"] and "\x1b" not in forms["text/plain"]
    monkeypatch.setenv("COLUMNS", "40")
    wide = qkv.show(weights(2, 12, 12))
    assert max(map(len, repr(wide).splitlines())) <= 40 < max(map(len, wide.text(90).splitlines()))
    code = [sys.executable, "-c", "import qkv; print(qkv.show([[1.0]]))"]
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    assert subprocess.run(code, env=ascii_only, capture_output=True, check=True).stdout.isascii()


def test_files(tmp_path):
    picture = qkv.show(np.eye(3), keys=TOKENS)
    picture.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == picture.svg
    picture.save(str(tmp_path / "x.txt"))
    assert "cat" in (tmp_path / "x.txt").read_text(encoding="utf-8")
    picture.save(tmp_path / "x.npz")
    assert zipfile.is_zipfile(tmp_path / "x.npz")
    steps = qkv.show.steps(np.eye(2), np.eye(2), np.eye(2))
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        for one in (picture, steps):
            one.save(tmp_path / f"x.{kind}")
            assert (tmp_path / f"x.{kind}").read_bytes().startswith(start)


def test_errors_leave_files_as_they_are(tmp_path):
    (tmp_path / "x.svg").write_text("old")
    bad = qkv.show(np.ones((2, 2)), keys=["[CLS]", "[SEP]"], hide_special=True)
    with pytest.raises(ValueError, match="show: hide_special leaves no keys"):
        bad.save(tmp_path / "x.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["x.svg"]
    assert (tmp_path / "x.svg").read_text() == "old"
    assert repr(bad) == "<qkv.Picture: show: hide_special leaves no keys>"
    assert bad._repr_mimebundle_() == {"text/plain": repr(bad)}
    good = qkv.show(np.eye(2))
    with pytest.raises(OSError, match="save: .*missing/x.svg: cannot be written"):
        good.save(tmp_path / "missing" / "x.svg")
    for path in ("x.gif", "x"):
        with pytest.raises(ValueError, match=r"save: path must end in \.svg, .* or \.npy, got 'x"):
            good.save(path)
    with pytest.raises(ValueError, match=r"save: path must end in \.svg, \.png or \.pdf, got 'x.n"):
        qkv.show.steps(np.eye(2), np.eye(2), np.eye(2)).save("x.npz")


def test_without_the_program(monkeypatch, tmp_path):
    monkeypatch.setattr(_picture, "PROGRAM", tmp_path / "none")
    with pytest.raises(
        RuntimeError, match="show: the program qkv, which draws pictures, is not in"
    ):
        print(qkv.show(np.eye(2)).svg)


def test_too_many_cells_say_how_to_select():
    large = qkv.show(np.zeros((2100, 2100), np.float32))
    with pytest.raises(ValueError, match="heads, rows, columns or reduce"):
        print(large.svg)


# ---- steps --------------------------------------------------------------------------------------


def test_steps_have_the_numbers_of_the_call(tmp_path):
    q, k, v = (np.random.default_rng(n).normal(size=(4, 3)) for n in range(3))
    steps = qkv.show.steps(q, k, v, ["a", "b", "c", "d"], ["w", "x", "y", "z"], causal=True)
    found = qkv.attention(q, k, v, causal=True, return_weights=True, return_scores="raw")
    energies = arrays(steps.energies, tmp_path)
    np.testing.assert_array_equal(energies["attn"], found.scores)
    np.testing.assert_array_equal(energies["mask"], np.tri(4, dtype=bool))
    np.testing.assert_array_equal(arrays(steps.weights, tmp_path)["attn"], found.weights)
    output = arrays(steps.output, tmp_path)
    np.testing.assert_array_equal(output["attn"], found.out)
    assert output["tgt"].tolist() == ["a", "b", "c", "d"] and "src" not in output
    shown = texts(steps.svg)
    assert [one for one in shown if one in ("energies", "weights", "output")] == [
        "energies", "weights", "output", "output"]  # fmt: skip


def test_the_tokens_of_the_keys_serve_the_queries():
    same = qkv.show.steps(np.eye(3), np.eye(3), np.eye(3), keys=TOKENS)
    other = qkv.show.steps(np.eye(3)[:2], np.eye(3), np.eye(3), keys=TOKENS)
    assert "cat" in texts(same.output.svg) and "cat" not in texts(other.output.svg)


def test_steps_of_other_scores():
    k, params = np.eye(3), {"Wq": np.eye(3), "Wk": np.eye(3), "v": np.ones(3)}
    got = qkv.show.steps(k, k, k, score="additive", params=params)
    assert f"{np.tanh(1) * 2:.2f}" in texts(got.energies.svg)
    assert "energies" in repr(got) and "image/svg+xml" in got._repr_mimebundle_()


def test_pictures_in_a_row(tmp_path):
    left, right = qkv.show(np.eye(2), title="left"), qkv.show(np.ones((3, 3)) / 3, title="right")
    row = qkv.show.row(left, right)
    shown = texts(row.svg)
    assert row.pictures == (left, right) and shown.index("left") < shown.index("right")
    row.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == row.svg
    assert repr(row) == f"{left!r}\n\n{right!r}"
    with pytest.raises(ValueError, match="show.row: pictures must be one or more, got none"):
        qkv.show.row()
    with pytest.raises(TypeError, match="show.row: pictures must be those .* got list"):
        qkv.show.row([left, right])


def test_hints_are_about_arguments():
    text = qkv.show(weights(2, 3, 3, 3)).text(60)
    assert re.search(r"example 0 of 2 shown;\s+example=N\s+shows\s+others", text), text
    many = qkv.show(weights(20, 3, 3), keys=["--heads", "; --keys all", "c"]).text()
    assert re.search(r";\s+heads=LIST", many) and "--heads" not in many.split("heads 0-11")[1]


def test_energies_are_what_the_softmax_gets():
    x, bias = weights(4, 4), np.arange(16.0).reshape(4, 4)
    steps = qkv.show.steps(x, x, x, bias=bias, softcap=0.5, causal=True)
    found = qkv.attention(x, x, x, bias=bias, softcap=0.5, causal=True, return_scores="masked")
    assert f"{found.scores[3, 2]:.1f}" in steps.energies.svg
    with pytest.raises((ValueError, TypeError), match="^show.steps: mask must be bool"):
        qkv.show.steps(x, x, x, mask=bias)


def test_ids_in_the_svg_of_steps_are_unique():
    svg = qkv.show.steps(np.eye(2), np.eye(2), -np.eye(2), causal=True).svg
    names = re.findall(r' id="([^"]+)"', svg)
    assert len(names) == len(set(names)) and set(re.findall(r"url\(#([^)]+)\)", svg)) <= set(names)


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": np.ones(3)}, "weights must have 2 to 5 axes"),
        ({"weights": np.ones((0, 3))}, r"weights must not be empty, got shape \[0, 3\]"),
        ({"weights": None}, "weights must be an array of floats or a list of .*, got NoneType"),
        ({"weights": (None, None)}, "weights must be an array of floats or a list .*, got tuple"),
        ({"weights": [[1.0], [1.0, 2.0]]}, "weights must be an array of floats or .*, got list"),
        ({"weights": np.ma.masked_array(np.eye(3))}, "weights must be an array without a mask of"),
        ({"minus": np.eye(4)}, r"minus must have the shape of the weights, \[3, 3\], got \[4, 4\]"),
        ({"min": 2, "max": 1}, "min must be below max = 1, got 2"),
        ({"tokens": TOKENS}, "tokens must be indices; the texts of tokens are queries= and keys="),
        ({"hide_special": True}, "hide_special needs tokens"),
        ({"keys": ["a", "\ud800", "c"]}, "keys must be Unicode text"),
        ({"weights": np.ones((2, 2), complex)}, "weights must be an array of floats, got complex"),
        ({"weights": np.array([["a"]])}, "weights must be an array of floats or a list .* ndarray"),
        ({"weights": [np.ones((2, 2)), np.ones((2, 3))]}, r"all arrays of weights .* in layer 1"),
        ({"keys": "a b c"}, "keys must be a list of 3 strings, got one text"),
        ({"keys": ["a", "b"]}, "keys must have a string for each of 3 keys, got 2"),
        ({"queries": [1, 2, 3]}, "queries must be from -3 to 2, got 3"),
        ({"keys": ["a", "b", 1]}, "keys must be strings, got one of type int"),
        ({"keys": [TOKENS, TOKENS]}, "keys must be a list of strings for each of 1 examples"),
        ({"mask": np.ones((3, 3))}, "mask must be bool or integers"),
        ({"mask": np.ones((2, 3, 3), bool)}, r"mask must broadcast to the weights' shape \[3, 3\]"),
        ({"quantity": ""}, "quantity must be the name"),
        ({"order": "heads"}, "order must name the 0 axes"),
        ({"order": "head"}, "order must name axes of examples, layers, heads"),
        ({"order": 3}, "order must be the names of axes, such as 'layers,heads', got int"),
        ({"axes": 3}, "axes must be two texts, got int"),
        ({"reduce": 3}, "reduce must be a text or a list of texts, got int"),
        ({"keep": [3]}, "keep must be a text or a list of texts, got int in the list"),
        ({"keys": True}, "keys must be a list of 3 strings, or indices, got bool"),
        ({"queries": np.array(0)}, "queries must be a list of 3 strings, or indices, got ndarray"),
        (
            {"queries": [["a"], ["b", "c"]]},
            "queries must be a list of strings for each of 1 examples",
        ),
        ({"axes": "a,b"}, "axes must be the names of rows and columns"),
        ({"title": 3}, "title must be a text, got int"),
        ({"example": 1}, "example must be from -1 to 0, got 1"),
        ({"heads": [1]}, "heads must be from -1 to 0, got 1"),
        ({"rows": []}, "rows must have one index or more"),
        ({"rows": [0, 0]}, "rows must name each index once"),
        ({"columns": 1.5}, "an index in columns must be an integer, got float"),
        ({"tokens": [True]}, "an index in tokens must be an integer, got bool"),
        ({"heads": "1-"}, "heads must be indices from 0 such as"),
        ({"hide_special": 1}, "hide_special must be True or False, got int"),
        ({"scale": "ln"}, "scale must be one of linear, sqrt, log, got 'ln'"),
        ({"reduce": ["mean"]}, "reduce must be one of mean-heads"),
        ({"max": 0}, "max must be a number above 0, got 0"),
        ({"max": "1"}, "max must be a number above 0, got '1'"),
        ({"min": "0"}, "min must be a number, got '0'"),
        ({"min": float("nan")}, "min must be a number, got nan"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    call = {"weights": np.eye(3), **options}
    with pytest.raises((ValueError, TypeError), match=f"^show: ({message})"):
        qkv.show(**call)


@pytest.mark.parametrize("name", ["queries", "rows"])
def test_errors_of_the_program_name_the_argument(name):
    picture = qkv.show(np.eye(3), **{name: "0-99"})
    with pytest.raises(ValueError, match=f"^show: {name} 99: queries are 0-2"):
        picture.text()


def test_a_wide_row_is_a_smaller_png(tmp_path):
    if shutil.which("rsvg-convert") is None:
        pytest.skip("no rsvg-convert")
    one = qkv.show(np.eye(2))
    row = qkv.show.row(*[one] * 150)
    row.save(tmp_path / "row.png")
    width = int.from_bytes((tmp_path / "row.png").read_bytes()[16:20], "big")
    assert 16384 < width <= 32767  # more than half of rsvg-convert's limit


def test_errors_name_the_function_and_the_argument():
    with pytest.raises(TypeError, match=r"show\(\) got an unexpected .* Did you mean 'colours'"):
        qkv.show(np.eye(2), colors="blue")
    with pytest.raises(TypeError, match=r"show.steps\(\) got an unexpected keyword argument 'sink"):
        qkv.show.steps(np.eye(2), np.eye(2), np.eye(2), sinks=1)
    with pytest.raises(TypeError, match=r"^show.steps: k must be an array of floats or a list"):
        qkv.show.steps(np.eye(2), "x", np.eye(2))
    with pytest.raises(ValueError, match=r"show.steps: q must be one head's array with 2 axes"):
        qkv.show.steps(np.ones((1, 2, 2)), np.eye(2), np.eye(2))
    found = qkv.attention(np.eye(2), np.eye(2), np.eye(2), return_entropy=True)
    with pytest.raises(
        ValueError, match="these results have out, entropy; request them by return_w"
    ):
        qkv.show(found)
