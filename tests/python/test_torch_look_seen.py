# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.torch.look: the layers and calls that it records, saved files, and errors."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from torch_versions import requires, torch

requires(2, 5, "scaled_dot_product_attention and torch._dynamo")
import torch.nn.functional as F  # noqa: E402
from look_models import (  # noqa: E402
    CLOSE,
    HEADS,
    WIDTH,
    B,
    Calls,
    S,
    T,
    by_torch,
    draw,
    of_formula,
    ours,
)  # fmt: skip

import qkv.torch  # noqa: E402

# ---- layers and calls ---------------------------------------------------------------------------


def seen_by(layers, model=None, calls=1):
    model = model or Calls(ours)
    q = draw(B, HEADS, T, 8)
    with qkv.torch.look(model, layers=layers, top=1) as seen:
        for _ in range(calls):
            model(q, q, q)
    return seen


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (None, ("inner.0", "inner.1")),
        ("inner.1", ("inner.1",)),
        ("1", ("inner.1",)),
        ("inner", ("inner.0", "inner.1")),
        (re.compile("0$"), ("inner.0",)),
        (1, ("inner.1",)),
        ([0, "1"], ("inner.0", "inner.1")),
        (range(1), ("inner.0",)),
        ("norm", ()),
    ],
)
def test_layers_are_chosen(layers, names):
    assert seen_by(layers).names == names


@pytest.mark.parametrize("layers", [2, [0, 2], range(1, 3), ["inner.0", 2]])
def test_layer_indices_that_are_too_large_are_refused(layers):
    message = "^look: layers must be below 2, the number of layers that attended, got 2; they are "
    with pytest.raises(ValueError, match=message + "'inner.0', 'inner.1'$"):
        seen_by(layers)
    assert type(F.scaled_dot_product_attention).__name__ == "builtin_function_or_method"


def test_a_look_that_was_not_entered_has_no_results():
    look = qkv.torch.look(Calls(ours))
    message = "^look returns a context manager without 'names': write with look"
    with pytest.raises(AttributeError, match=message):
        _ = look.names


def test_layer_indices_are_not_checked_without_layers_or_after_an_error():
    with qkv.torch.look(Calls(ours), layers=2) as seen:
        pass  # no layer attended, so no index is too large
    assert len(seen) == 0
    with pytest.raises(ZeroDivisionError), qkv.torch.look(model := Calls(ours), layers=2):
        model(*[draw(B, HEADS, T, 8)] * 3)
        raise ZeroDivisionError  # look's ValueError must not replace an error of the block


def test_many_names_in_a_message():
    model = torch.nn.ModuleList([torch.nn.Identity() for _ in range(100)])
    with pytest.raises(ValueError, match=r"got '100'; it has '', '0', .* more$") as caught:
        qkv.torch.look(model, layers="100")
    # A message lists as many names as fit in 220 characters.
    assert 200 < len(str(caught.value)) <= 220


def test_calls_in_order():
    model = Calls(qkv.torch.attention)
    q, keys = draw(B, HEADS, 1, 8), [draw(B, HEADS, n, 8, seed=n) for n in (1, 2, 3)]
    with qkv.torch.look(model, rows=[-1], layers=1) as seen:
        for k in keys:
            model(q, k, k)
    layer = seen["inner.1"]
    assert [call.keys for call in layer.calls] == [1, 2, 3]
    for call, k in zip(layer.calls, keys):
        torch.testing.assert_close(call.weights, of_formula(q, k), **CLOSE)
    assert layer.weights is layer.calls[-1].weights
    assert layer.heads == layer.calls[-1].heads == tuple(range(HEADS))
    assert layer.rows == layer.calls[-1].rows == (0,)


def test_only_this_models_calls_inside_the_block_are_recorded():
    watched, other = Calls(by_torch), Calls(by_torch)
    q = draw(B, HEADS, T, 8)
    native = torch._transformer_encoder_layer_fwd
    with qkv.torch.look(watched, top=1) as seen:
        other(q, q, q)
        F.scaled_dot_product_attention(q, q, q)
        with qkv.torch.look(other, top=2) as of_other:
            other(q, q, q)
            watched(q, q, q)
        watched(q, q, q)
    watched(q, q, q)
    assert [len(layer.calls) for layer in seen] == [2, 2]
    assert [len(layer.calls) for layer in of_other] == [1, 1]
    assert of_other[0].top.keys.size(-1) == 2 and seen[0].top.keys.size(-1) == 1
    assert torch._transformer_encoder_layer_fwd is native
    assert type(F.scaled_dot_product_attention).__name__ == "builtin_function_or_method"
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks


def test_calls_that_fail_are_not_recorded():
    model, broken = Calls(by_torch), Calls(lambda *_: 1 / 0)
    both = torch.nn.ModuleList([broken, model])
    q = draw(B, HEADS, T, 8)
    with qkv.torch.look(both, top=1) as seen:
        with pytest.raises(ZeroDivisionError):
            broken(q)
        F.scaled_dot_product_attention(q, q, q)  # no module runs here
        with pytest.raises(RuntimeError, match="Expected size"):
            model(q, q[..., 1:], q)
        model(q, q, q)
    assert seen.names == ("1.inner.0", "1.inner.1")
    with pytest.raises(KeyError), qkv.torch.look(both, top=1):
        raise KeyError
    assert type(F.scaled_dot_product_attention).__name__ == "builtin_function_or_method"


def test_inside_and_around_replaced():
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)
    with qkv.torch.look(model, top=1) as seen:
        with qkv.torch.replaced():
            inside = model(q, q, q)
        model(q, q, q)
    with qkv.torch.replaced():
        with qkv.torch.look(model, top=1) as around:
            assert torch.equal(model(q, q, q)[0], inside[0])
        assert torch.equal(model(q, q, q)[0], ours(q, q, q))
    assert [len(layer.calls) for layer in (*seen, *around)] == [2, 2, 1, 1]


def test_the_default_is_the_largest_weights_and_the_entropy():
    model, q = Calls(by_torch), draw(B, HEADS, T, 8)
    for asked, results in (
        ({}, ("top", "entropy")),
        ({"heads": [1]}, ("top", "entropy")),
        ({"entropy": False}, ("top",)),
        ({"top": 0}, ("entropy",)),
        ({"rows": [0]}, ("weights",)),
    ):
        with qkv.torch.look(model, **asked) as seen:
            model(q, q, q)
        assert seen.names == ("inner.0", "inner.1")
        assert tuple(seen[0].calls[0].results) == results
        if "top" in results:
            assert seen[0].top.keys.shape[-1] == 8


# ---- files --------------------------------------------------------------------------------------


def saved(tmp_path, seen, **options):
    seen.save(tmp_path / "a.npz", **options)
    with np.load(tmp_path / "a.npz") as file:
        return dict(file)


def looked(function=ours, keys=S, **asked):
    model, k = Calls(function), draw(B, HEADS, keys, 8, seed=1)
    with qkv.torch.look(model, **asked) as seen:
        model(draw(B, HEADS, T, 8), k, k)
        model(draw(B, HEADS, T, 8, seed=3), k, k)
    return seen


def test_a_file_of_named_rows(tmp_path):
    seen = looked(rows=[0, -2], heads=[2], top=2, column_sums=True)
    tokens = ["a", "b", "c", "d", "e", "f", "g"]
    file = saved(tmp_path, seen, tokens=tokens)
    assert file["attn"].shape == (B, 2, 1, 2, S)
    assert (file["attn"][:, 1] == seen[1].weights.numpy()).all()
    assert file["src"].tolist() == tokens
    assert file["tgt"].tolist() == ["c", "f"]  # the queries are the last T keys
    assert file["layers"].tolist() == ["inner.0", "inner.1"]
    assert (file["heads"].tolist(), file["rows"].tolist()) == ([2], [0, 3])
    assert (file["column_sums"][:, 0] == seen[0].column_sums.numpy()).all()
    assert file["top_keys"].shape == (B, 2, 1, T, 2)
    first = saved(tmp_path, seen, layers=["inner.1"], call=0)
    assert (first["attn"][:, 0] == seen[1].calls[0].weights.numpy()).all()
    assert first["tgt"].tolist() == ["0", "3"] and first["src"].tolist() == list("0123456")
    lists = [tokens, tokens[::-1]]
    of_each = saved(tmp_path, seen, tokens=lists, query_tokens=list("vwxyz"))
    assert of_each["src"].tolist() == lists and of_each["tgt"].tolist() == ["v", "y"]
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]


def test_rows_of_a_file_ascend(tmp_path):
    seen = looked(rows=[-1, 0, 2, 0])
    file = saved(tmp_path, seen)
    assert file["rows"].tolist() == [0, 2, 4] and file["tgt"].tolist() == ["0", "2", "4"]
    assert (file["attn"][:, 1] == seen[1].weights[:, :, [1, 2, 0]].numpy()).all()


def test_the_program_names_the_queries_of_a_file(tmp_path):
    seen = looked(rows=[1, 4], heads=[2])
    saved(tmp_path, seen)
    weights = seen[0].weights[0, 0].numpy()
    far = np.abs(np.array([[1], [4]]) - np.arange(S))

    def run_program(command, *options):
        called = [sys.executable, "-m", "qkv", command, "a.npz", *options]
        return subprocess.run(called, capture_output=True, text=True, cwd=tmp_path)

    head = json.loads(run_program("stats", "--json").stdout)["heads"][0]
    assert abs(head["distance"] - (weights * far).sum(1).mean()) < 1e-6
    run_program("view", "--queries", "2-4", "-o", "b.npz", "-o", "b.json")
    shown = json.loads((tmp_path / "b.json").read_text())
    assert shown["queries"] == [4] and shown["tgt"] == ["4"]
    assert np.load(tmp_path / "b.npz")["rows"].tolist() == [4]
    assert "mask no, rows of queries 1, 4" in run_program("inspect").stdout
    for options, message in (
        (("--queries", "2"), "--queries 2: the file has queries 1, 4"),
        (("--queries", "4,1-4"), "--queries names 4 twice"),
        (("--tokens", "1"), "--tokens is for maps"),
    ):
        done = run_program("view", *options)
        assert done.returncode == 2 and message in done.stderr


def test_a_file_of_pooled_weights(tmp_path):
    seen = looked(pool=(2, 9), entropy=True)
    file = saved(tmp_path, seen)
    assert (file["attn"][:, 1] == seen[1].pooled.numpy()).all()
    assert file["attn"].shape == (B, 2, HEADS, 2, 9) and not {"pooled", "rows"} & set(file)
    np.testing.assert_allclose(file["attn"].sum(-1), 1)
    assert file["tgt"].tolist() == ["0-2", "3-4"]
    assert file["src"].tolist() == ["0", "1", "2", "3", "", "4", "5", "6", ""]
    assert (file["entropy"][:, 0] == seen[0].entropy.numpy()).all()
    for j, name in enumerate(file["src"]):
        assert file["attn"][..., j].any() == (name != "")
    with pytest.raises(ValueError, match="^save: tokens are for rows, and only pooled weights"):
        saved(tmp_path, seen, tokens=["a"] * S)
    both = saved(tmp_path, looked(pool=(2, 2), rows=[0]))
    assert both["attn"].shape[3:] == (1, S) and both["pooled"].shape[3:] == (2, 2)


SAVED_WRONG = {
    "ending": ({"path": "a.npy"}, ValueError, "save: path must end in .npz, got 'a.npy'"),
    "tokens": ({"tokens": ["a"]}, ValueError, "save: tokens must have 7 strings, got 1"),
    "numbers": (
        {"tokens": ["a"] * 6 + [1]}, ValueError, "tokens must have 7 strings, got one of type int"
    ),
    "text": ({"tokens": "abcdefg"}, ValueError, "must be a list of 7 strings, got 'abcdefg'"),
    "lists": ({"tokens": [["a"] * 7]}, ValueError, "must be a list for each of B = 2, got 1"),
    "queries": ({"query_tokens": ["a"]}, ValueError, "query_tokens must have 5 strings, got 1"),
    "layer": ({"layers": ["inner.7"]}, KeyError, "no layer 'inner.7' was recorded; there are"),
    "no layers": ({"layers": []}, ValueError, "save: no layers"),
    "call": ({"call": 2}, IndexError, "save: 'inner.0' has 2 calls, got call = 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED_WRONG)
def test_files_that_cannot_be_saved(name, tmp_path):
    options, kind, message = SAVED_WRONG[name]
    path = options.get("path", tmp_path / "a.npz")
    options = {n: x for n, x in options.items() if n != "path"}
    with pytest.raises(kind, match=re.escape(message)):
        looked(rows=[0]).save(path, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_file_needs_rows_and_equal_sizes(tmp_path):
    with pytest.raises(ValueError, match="^save: an attention file holds weights, and none were"):
        looked(entropy=True).save(tmp_path / "a.npz")
    assert saved(tmp_path, looked(top=1))["attn"].shape == (B, 2, HEADS, T, S)
    torch.manual_seed(0)
    model = torch.nn.Transformer(WIDTH, HEADS, 1, 1, 32, batch_first=True).eval()
    with qkv.torch.look(model, rows=[0]) as seen:
        model(draw(B, S, WIDTH).float(), draw(B, T, WIDTH).float())
    message = (
        r"'encoder.* weights \[2,4,1,7\] of Tq = 7, Tk = 7 and 'decoder.*\[2,4,1,5\] of Tq = 5"
    )
    with pytest.raises(ValueError, match=message):
        seen.save(tmp_path / "a.npz")


def test_layers_of_a_file_have_the_same_queries(tmp_path):
    # Layers that differ in Tq are not saved in one file, even if their weights have equal shapes.
    torch.manual_seed(0)
    model = torch.nn.Transformer(WIDTH, HEADS, 1, 1, 32, batch_first=True).eval()
    layers = ["encoder.layers.0", "multihead_attn"]
    with qkv.torch.look(model, rows=[-1], layers=layers) as seen:
        model(draw(B, S, WIDTH).float(), draw(B, T, WIDTH).float())
    assert seen[0].weights.shape == seen[1].weights.shape
    with pytest.raises(ValueError, match="of Tq = 7, Tk = 7 and .* of Tq = 5, Tk = 7; choose"):
        seen.save(tmp_path / "a.npz")


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    path.write_bytes(b"before")
    path.chmod(0o640)

    def fails(*_, **__):
        raise OSError("full")

    seen = looked(rows=[0])
    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", fails)
        with pytest.raises(OSError, match="full"):
            seen.save(path)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
    seen.save(path)
    assert path.stat().st_mode & 0o777 == 0o640


# ---- errors -------------------------------------------------------------------------------------

WRONG = {
    "nothing": (
        {"top": 0, "entropy": False}, ValueError,
        "entropy, value_sums or pool must be requested, got none of",
    ),
    "model": ({"model": 3, "top": 1}, TypeError, "look: model must be a torch.nn.Module, got int"),
    "name": (
        {"layers": "inner.2", "top": 1}, ValueError,
        "look: layers must be names of the model's modules, got 'inner.2'; it has '', 'inner', "
        "'inner.0', 'inner.0.norm', 'inner.1', 'inner.1.norm'",
    ),
    "half a name": ({"layers": "inn", "top": 1}, ValueError, "got 'inn'; it has"),
    "pattern": (
        {"layers": re.compile("x$"), "top": 1}, ValueError,
        "layers must be patterns of names of the model's modules, got 'x$'; it has '', 'inner', ",
    ),
    "keyword": ({"return_weights": True}, TypeError, "'return_weights'. Did you mean 'rows'"),
    "no layers": ({"layers": [], "top": 1}, ValueError, "must name one or more"),
    "layer": (
        {"layers": -1, "top": 1}, ValueError,
        "look: layers must be indices from 0, or names, of the model's modules, got -1; it has '',",
    ),
    "layers": ({"layers": [0, 7], "top": 1}, ValueError, "got 7; it has '', 'inner', 'inner.0'"),
    "layer kind": (
        {"layers": slice(2), "top": 1}, TypeError,
        "look: layers must be names, compiled patterns, indices or a list of them, got slice(None,",
    ),
    "heads": ({"heads": 1, "top": 1}, TypeError, "heads must be a list of integers, got int 1"),
    "head kind": ({"heads": ["a"], "top": 1}, TypeError, "heads must be a list of integers, got s"),
    "row": (
        {"rows": -1}, TypeError, "look: rows must be a list of integers or a slice, got int -1",
    ),
    "rows": (
        {"rows": [True]}, TypeError,
        "look: rows must be a list of integers or a slice, got bool True in the list",
    ),
    "text of rows": ({"rows": "all"}, TypeError, "must be a list of integers or a slice, got str"),
    "slice": (
        {"rows": slice(0.5)}, TypeError,
        "look: rows must be a list of integers or a slice, got slice(None, 0.5, None)",
    ),
    "top": ({"top": -1}, ValueError, "look: top must be 0 or more, got -1"),
    "top kind": ({"top": 1.5}, TypeError, "look: top must be an integer, got float 1.5"),
    "sums": (
        {"column_sums": 1}, TypeError,
        "look: column_sums must be True, False, a list of integers or a slice, got int 1",
    ),
    "entropy": ({"entropy": 1}, TypeError, "look: entropy must be True or False, got int"),
    "pool": ({"pool": (2, 0)}, ValueError, "pool must be (m, n) of 1 or more each, got (2, 0)"),
    "pool size": ({"pool": [2]}, ValueError, "pool must be (m, n) of 1 or more each, got [2]"),
    "pool kind": ({"pool": 2}, TypeError, "look: pool must be (m, n), two integers, got int 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors_before_the_model_runs(name):
    options, kind, message = WRONG[name]
    model = options.get("model", Calls(ours))
    options = {n: x for n, x in options.items() if n != "model"}
    with pytest.raises(kind, match=re.escape(message)), qkv.torch.look(model, **options):
        pass
    assert type(F.scaled_dot_product_attention).__name__ == "builtin_function_or_method"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rows": [5]}, "rows must be at least -Tq and below Tq = 5 in layer 'inner.0', got 5"),
        ({"rows": [-6]}, "got -6"),
        ({"column_sums": [5]}, "look: column_sums must be at least -Tq and below Tq = 5 in"),
        ({"heads": [4], "top": 1}, "heads must be at least -H and below H = 4 in layer '"),
    ],
)
def test_indices_that_a_call_does_not_have(asked, message):
    q, model = draw(B, HEADS, T, 8), Calls(by_torch)
    with pytest.raises(ValueError, match=re.escape(message)), qkv.torch.look(model, **asked):
        model(q, q, q)


def test_names_of_what_was_recorded():
    seen = seen_by(None)
    for name, message in {
        "inner.2": "no layer 'inner.2' was recorded; there are 'inner.0', 'inner.1'",
        "inner": "'inner' is the name of 2 recorded layers: 'inner.0', 'inner.1'",
    }.items():
        with pytest.raises(KeyError, match=re.escape(message)):
            seen[name]
    assert "1" in seen and "2" not in seen
    with pytest.raises(IndexError):
        seen[2]
    with pytest.raises(KeyError, match=r"layers= selects none of 'inner\.0', 'inner\.1', the"):
        seen_by("norm")[""]
    softmax = Calls(lambda q, k, v: torch.softmax(q @ k.mT / math.sqrt(8), -1) @ v)
    with pytest.raises(KeyError, match="there are none: the model called no attention function"):
        seen_by(None, softmax)["inner.0"]
    with pytest.raises(AttributeError, match=r"^weights was not recorded: request it by rows="):
        _ = seen[0].weights


def test_tensors_without_values():
    q, model = draw(B, HEADS, T, 8), Calls(ours)
    message = "^look: layer 'inner.0' was called under torch.func or with tensors that have no v"
    with qkv.torch.look(model, top=1), pytest.raises(RuntimeError, match=message):
        model(*[q.to("meta")] * 3)
    with qkv.torch.look(model, top=1), pytest.raises(RuntimeError, match=message):
        torch.func.vmap(lambda x: model(x, x, x)[0])(q)
