# SPDX-License-Identifier: Apache-2.0
"""Compares models of Transformers on two processes, which divide a sequence, with one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")
dist = pytest.importorskip("torch.distributed")
pytest.importorskip("transformers", reason="ring_model() is for Transformers")
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import ring_model_worker as worker  # noqa: E402
import transformers  # noqa: E402

import qkv.torch  # noqa: E402

WORD = 'attn_implementation="qkv_ring": '
# Transformers computes losses, and some norms and experts, in float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> list[dict[str, Any]]:
    """The results of each process."""
    folder = tmp_path_factory.mktemp("ring_model")
    processes = [
        subprocess.Popen(
            [sys.executable, worker.__file__, str(rank), str(folder / "group"),
             str(folder / f"{rank}.pt")],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(worker.RANKS)
    ]  # fmt: skip
    assert [process.wait(timeout=600) for process in processes] == [0] * worker.RANKS
    return [torch.load(folder / f"{rank}.pt") for rank in range(worker.RANKS)]


@pytest.mark.parametrize("name", worker.CASES)
def test_equals_one_process(results: Any, name: str) -> None:
    kind, sharding, way, more = worker.CASES[name]
    want = worker.whole(kind, sharding, **more)
    got = [of_rank[name] for of_rank in results]
    rows = torch.cat([x["own"] for x in got])
    assert torch.equal(rows.sort().values, torch.arange(worker.LENGTHS[sharding]))
    logits = torch.cat([x["logits"] for x in got], 1)
    torch.testing.assert_close(logits, want["logits"][:, rows], rtol=1e-9, atol=1e-9)
    learned = [part for part in want if part != "logits"]
    assert any("sinks" in part for part in learned) == (kind == "gpt_oss")
    for part in learned:
        total = got[0][part] + got[1][part]
        scale = want[part].abs().max()
        assert scale > 0, part
        torch.testing.assert_close(total / scale, want[part] / scale, **CLOSE,
                                   msg=lambda m, p=part: f"{p}: {m}")  # fmt: skip


def test_dropout_drops(results: Any) -> None:
    without, dropped = (results[0][name]["logits"] for name in ("llama", "dropout"))
    assert (without - dropped).abs().max() > 0.01


def test_wrong_calls(results: Any) -> None:
    first, second = (of_rank["faults"] for of_rank in results)
    other = "RuntimeError: " + WORD + "another rank of the group has raised an error"
    value = "ValueError: " + WORD
    wrong = value + "position_ids must be those of this process's rows, ring_positions(1300, "
    wrong += "sharding='contiguous')[None]"
    assert first["positions"] == first["from zero"] == other
    assert second["positions"] == second["from zero"] == wrong
    for rank, found in enumerate((first, second)):
        rows = (512, 788)[rank]
        assert found["none"] == (
            f"{value}position_ids must be ring_positions(length)[None], the positions of this "
            f"process's {rows} rows, got None"
        )
        assert found["no tokens"] == value + "input_ids or inputs_embeds must be given"
        assert found["cache"] == value + "use_cache must be False: a part of the rows has no cache"
        for name in ("given cache", "generate", "weights"):
            assert "must be called without" in found[name], found[name]
        assert found["labels"].startswith(value + "labels must come with shift_labels, the next")
        assert (
            found["padding"] == value + "attention_mask must be None or all ones; pad on the right"
        )
        assert found["copy"] == (
            value + "LlamaForCausalLM is of a model that qkv.torch.ring_model() has not prepared"
        )
        assert found["both ways"] == value + "LlamaConfig has a mask that is not causal"
        assert found["ones"] == found["good"] == found["changed back"] == "none"


def test_a_process_alone(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0,
                            world_size=1)  # fmt: skip
    try:
        model = worker.make("llama")
        classifier = transformers.LlamaForSequenceClassification(model.config)
        bert = transformers.BertModel(
            transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        )
        wrong: list[tuple[Any, type[Exception], str]] = [
            (lambda: qkv.torch.ring_model(torch.nn.Linear(2, 2)), TypeError,
             "ring_model: model must be a transformers.PreTrainedModel, got Linear"),
            (lambda: qkv.torch.ring_model(bert), ValueError,
             f"ring_model: model must be of a type that is tested "
             f"({', '.join(qkv.torch._ring_model.TYPES)}), got bert"),
            (lambda: qkv.torch.ring_model(classifier), ValueError,
             "ring_model: model must be a causal language model or its base model, got "
             "LlamaForSequenceClassification"),
            (lambda: qkv.torch.ring_model(model, sharding="stripes"), ValueError,
             'ring_model: sharding must be "contiguous", "zigzag" or a number of zigzags, got '
             "'stripes'"),
            (lambda: qkv.torch.ring_positions(0), ValueError,
             "ring_positions: length must be at least 1, so that each of the 1 processes has rows, "
             "got 0"),
            (lambda: qkv.torch.ring_positions(1000, sharding="zigzag"), ValueError,
             "ring_positions: length must be a multiple of 1024 for 1 processes and 1 zigzags, got "
             "1000"),
            (lambda: qkv.torch.ring_positions(1.5), TypeError,  # type: ignore[arg-type]
             "ring_positions: length must be an integer, got float"),
        ]  # fmt: skip
        for call, kind, message in wrong:
            with pytest.raises(kind) as error:
                call()
            assert str(error.value) == message
        assert model.config._attn_implementation == "qkv"
        assert torch.equal(qkv.torch.ring_positions(4096, sharding=2), torch.arange(4096))
        qkv.torch.ring_model(model)
        qkv.torch.ring_model(model)  # may be called again
        ids, positions = torch.full((1, 4), 3), torch.arange(4)
        got = model(ids, position_ids=positions[None]).logits
        model.set_attn_implementation("qkv")
        assert torch.equal(got, model(ids).logits)
        fresh = worker.make("llama")
        fresh.set_attn_implementation("qkv_ring")
        with pytest.raises(ValueError, match="that qkv.torch.ring_model.. has not prepared"):
            fresh(ids, position_ids=positions[None])
    finally:
        dist.destroy_process_group()
