# SPDX-License-Identifier: Apache-2.0
"""Tests pictures of what qkv.torch.look records: in notebooks, and by qkv.show."""

import re

import numpy as np
import pytest
from torch_versions import requires, torch

requires(2, 5, "scaled_dot_product_attention and torch._dynamo")
from look_models import HEADS, B, Calls, S, T, draw, ours  # noqa: E402

import qkv.torch  # noqa: E402
from qkv import _picture  # noqa: E402
from qkv.torch import _look_seen  # noqa: E402

if not _picture.PROGRAM.is_file():
    pytest.skip("no program qkv in this build of the package", allow_module_level=True)


def looked(queries=T, **asked):
    model, k = Calls(ours), draw(B, HEADS, S, 8, seed=1)
    with qkv.torch.look(model, **asked) as seen:
        model(draw(B, HEADS, queries, 8), k, k)
    return seen


def arrays(picture, tmp_path):
    picture.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        return dict(file)


def titles(svg):
    return re.findall(r">((?:layer \d+, )?head \d+)<", svg)


def test_notebooks_show_every_head():
    seen = looked()
    forms = seen._repr_mimebundle_()
    want = [f"layer {layer}, head {head}" for layer in range(2) for head in range(HEADS)]
    assert titles(forms["image/svg+xml"]) == want
    assert "weight" in forms["image/svg+xml"] and forms["text/plain"] == repr(seen)


def test_the_largest_weights_become_maps(tmp_path):
    whole, some = looked(rows=slice(None)), looked(top=2)
    attn = arrays(qkv.show(some, example=1, layers="all", heads="all"), tmp_path)["attn"]
    for layer in range(2):
        W = whole[layer].weights[1].numpy()
        is_largest = np.sort(W, -1)[..., -2:-1] <= W
        np.testing.assert_allclose(attn[layer], np.where(is_largest, W, 0), rtol=1e-6)
    got = arrays(qkv.show(some), tmp_path)
    assert got["quantity"].tolist() == ["weight (2 largest of a row, others as 0)"]
    assert "quantity" not in arrays(qkv.show(looked(top=S)), tmp_path)


def test_the_quantity_names_the_chosen_heads(tmp_path):
    part = looked(rows=slice(None), heads=[1, 3])
    for shown in (part, part[0], part[0].calls[0], looked(pool=(2, 2), heads=[1, 3])):
        got = arrays(qkv.show(shown), tmp_path)
        assert got["quantity"].tolist() == ["weight (heads 1, 3 of the layer)"]
    got = arrays(qkv.show(looked(top=1, heads=[2])), tmp_path)
    wanted = "weight (1 largest of a row, others as 0; heads 2 of the layer)"
    assert got["quantity"].tolist() == [wanted]
    assert "quantity" not in arrays(qkv.show(looked(rows=[0], heads=[0, 1])), tmp_path)


def test_fewer_keys_than_requested_and_rows_of_nan(tmp_path):
    model, q = Calls(lambda q, k, v: ours(q, k, v, is_causal=True)), draw(B, HEADS, 3, 8)
    with qkv.torch.look(model, top=3) as seen:
        model(q, q, q)
    with qkv.torch.look(model, rows=slice(None)) as whole:
        model(q, q, q)
    got = arrays(qkv.show(seen), tmp_path)["attn"]
    np.testing.assert_array_equal(got[0], whole[0].weights[0].numpy())
    q[0, 1, 2] = torch.nan
    with qkv.torch.look(model, top=1) as seen:
        model(q, q, q)
    got = arrays(qkv.show(seen[0]), tmp_path)["attn"][0]
    assert np.isnan(got[1, 2]).all() and not np.isnan(got[0]).any()


def test_layers_calls_and_tokens(tmp_path):
    seen = looked(rows=[-1, 0])
    keys = list("abcdefg")
    got = arrays(qkv.show(seen[1], keys=keys, example=1), tmp_path)
    np.testing.assert_array_equal(got["attn"][0], seen[1].weights[1, :, [1, 0]].numpy())
    assert got["src"].tolist() == keys and got["tgt"].tolist() == ["c", "g"]
    assert titles(qkv.show(seen[1].calls[0]).svg) == [f"head {n}" for n in range(HEADS)]
    got = arrays(qkv.show(seen, list("vwxyz"), keys, layers=1), tmp_path)
    assert got["tgt"].tolist() == ["v", "z"] and got["attn"].shape == (1, HEADS, 2, S)
    pooled = arrays(qkv.show(looked(pool=(2, 3))), tmp_path)
    assert pooled["attn"].shape[-2:] == (2, 3) and pooled["tgt"].tolist() == ["0-2", "3-4"]


def test_a_query_that_sees_only_the_last_key(tmp_path):
    last = torch.arange(S) == S - 1
    model, q = Calls(lambda q, k, v: ours(q, k, v, attn_mask=last)), draw(B, HEADS, S, 8)
    with qkv.torch.look(model, top=3) as seen:
        model(q, q, q)
    got = arrays(qkv.show(seen[0]), tmp_path)["attn"]
    assert (got == last.numpy()).all()


def test_of_too_many_maps_the_first_layers_are_shown(monkeypatch):
    assert len(titles(looked(heads=[0] * 7)._repr_mimebundle_()["image/svg+xml"])) == 14
    with monkeypatch.context() as fewer:
        fewer.setattr(_look_seen, "_MOST_MAPS", 13)
        svg = looked(heads=[0] * 7)._repr_mimebundle_()["image/svg+xml"]
    assert len(titles(svg)) == 7 and "layer 0 of 2 shown" in svg
    monkeypatch.setattr(_look_seen, "_MOST_CELLS", 14 * T * S - 1)
    assert "layer 0 of 2 shown" in looked(heads=[0] * 7)._repr_mimebundle_()["image/svg+xml"]


def test_errors_say_why_nothing_can_be_drawn():
    for seen, reason in (
        (looked(entropy=True), "none were recorded: request rows by look"),
        (looked(layers="norm"), "layers= selects none of"),
    ):
        forms = seen._repr_mimebundle_()
        assert set(forms) == {"text/plain"} and reason in forms["text/plain"]
        with pytest.raises(ValueError, match=f"^show: .*{reason}"):
            qkv.show(seen)
    with pytest.raises(ValueError, match="^show: keys must have 7 strings, got 1"):
        qkv.show(looked(), keys=["a"])
    with pytest.raises(ValueError, match="^show: tokens are for rows, and only pooled weights"):
        qkv.show(looked(pool=(2, 2)), keys=["a"] * S)
    with pytest.raises(ValueError, match="^show: order is for arrays, and weights is a Seen"):
        qkv.show(looked(), order="layers,heads")


def test_maps_too_large_to_be_made(monkeypatch):
    from qkv.torch import _look_file

    monkeypatch.setattr(_look_file, "_MOST_NUMBERS", B * 2 * HEADS * T * S - 1)
    with pytest.raises(ValueError, match=r"^show: maps of shape .* request a few rows by look"):
        qkv.show(looked())
