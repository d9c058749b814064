# SPDX-License-Identifier: Apache-2.0
"""Compares qkv.torch.ring_attention on processes of this machine with one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import ring_worker  # noqa: E402
from torch_versions import needs  # noqa: E402

import qkv  # noqa: E402
import qkv.torch  # noqa: E402

WORKER = Path(ring_worker.__file__)
# The results that are bit-identical to one call, by case; other results of these cases differ by
# rounding. In cases that are not listed, every result is bit-identical.
SAME_BITS = {name: {"out", "lse"} for name in ring_worker.ROUNDED}
SAME_BITS["table"] |= {"dq", "dk", "dv"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> dict[int, list[dict[str, Any]]]:
    """{number of ranks: the results of each rank}."""
    found = {}
    for ranks in ring_worker.CASES:
        folder = tmp_path_factory.mktemp(f"ring{ranks}")
        processes = [
            subprocess.Popen(
                [sys.executable, str(WORKER), str(rank), str(ranks), str(folder / "group"),
                 str(folder / f"{rank}.pt")],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            )
            for rank in range(ranks)
        ]  # fmt: skip
        assert [process.wait(timeout=300) for process in processes] == [0] * ranks
        found[ranks] = [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]
    return found


@pytest.mark.parametrize(
    "ranks, name", [(ranks, name) for ranks, cases in ring_worker.CASES.items() for name in cases]
)
def test_equals_one_process(results: Any, ranks: int, name: str) -> None:
    sharding, rows, options = ring_worker.CASES[ranks][name]
    arrays, given = ring_worker.whole(name, rows, options)
    want = ring_worker.results_of(
        lambda q, k, v, **options: qkv.torch.attention(q, k, v, return_lse=True, threads=1,
                                                       **options),
        arrays, given, name == "plain", name in ring_worker.LEARNED,
    )  # fmt: skip
    compared: set[str] = set()
    same_bits = SAME_BITS.get(name, set(want))
    bound = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.05}[arrays[0].dtype]
    for rank in range(ranks):
        mine = ring_worker.rows_of(sharding, rows, rank)
        got = results[ranks][rank][name]
        for what, x in want.items():
            if what.startswith(("dparams", "dread")) or what in ("dalibi_slopes", "dsinks"):
                if rank == 0:
                    total = sum(of_rank[name][what] for of_rank in results[ranks])
                    torch.testing.assert_close(total, x, atol=20 * bound, rtol=bound)
                continue
            part = x.index_select(1 if what == "dbias" else 2, mine)
            if what in same_bits:
                assert torch.equal(part, got[what]), f"{what} of rank {rank}"
                compared.add(what)
            else:
                torch.testing.assert_close(got[what], part, atol=bound, rtol=bound)
    assert compared == same_bits


@pytest.mark.parametrize("name", ring_worker.ROUNDED)
def test_does_not_depend_on_the_processes(results: Any, name: str) -> None:
    sharding, rows, _ = ring_worker.CASES[2][name]
    (alone,) = results[1]
    for rank in range(2):
        mine = ring_worker.rows_of(sharding, rows, rank)
        for what, x in alone[name].items():
            got = results[2][rank][name][what]
            if what.startswith(("dparams", "dread")) or what in ("dalibi_slopes", "dsinks"):
                want = x if rank == 0 else torch.zeros_like(x)
            else:
                want = x.index_select(1 if what == "dbias" else 2, mine)
            assert torch.equal(want, got), f"{what} of rank {rank}"


def test_all_processes_raise(results: Any) -> None:
    first, second = (of_rank["faults"] for of_rank in results[2])
    start = "ValueError: ring_attention: "
    for found in (first, second):
        assert found["lengths"] == (
            start + "key_lengths must have the shape [B] = [2] or, for this process's rows, "
            "[B,T] = [2,512], got [2, 1024]"
        )
        assert found["window"] == (
            "TypeError: ring_attention: window must be a pair (left, right), got (1,)"
        )
        assert found["again"] and found["strides"]
    assert first["seed"].startswith(start + "seed is absent but dropout is 0.1; dropout needs")
    assert second["seed"] == "RuntimeError: rank 0 has failed"
    assert first["causal"] == first["dtype"] == "RuntimeError: rank 1 has failed"
    assert second["causal"] == (
        start + "the number of masks must be equal on all ranks, but differs on ranks 0 and 1"
    )
    assert second["dtype"] == (
        start + "the dtype of q must be equal on all ranks, but differs on ranks 0 and 1"
    )
    assert first["one"] == (
        "RuntimeError: ring_attention: another rank of the group has raised an error"
    )
    assert second["one"] == (
        start + 'sharding must be "contiguous", "zigzag" or a number of zigzags, got \'none\''
    )


needs_torchrun = needs(2, 0, "torchrun with Python 3.11")
DOCS = WORKER.parents[2] / "docs"
MARK = "<!-- run: no, torchrun starts it -->\n```python\n"


@needs_torchrun
@pytest.mark.skipif(not DOCS.is_dir(), reason="there are no documents here")
@pytest.mark.parametrize("page, number", [("cluster.md", 0), ("cluster.md", 1), ("pytorch.md", 0)])
def test_blocks_of_documents_run(tmp_path: Path, page: str, number: int) -> None:
    blocks = (DOCS / page).read_text().split(MARK)[1:]
    block = blocks[number].split("```")[0]
    if "transformers" in block:
        pytest.importorskip("transformers")
    file = tmp_path / "block.py"
    file.write_text(block)
    # Without --local_addr, processes look for the machine's name, which may have no address.
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local_addr", "127.0.0.1",
         "--nproc_per_node", "2", str(file)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


HOSTS = WORKER.parents[2] / "scripts" / "measure" / "two_hosts.sh"
NODES = HOSTS.with_name("slurm_nodes.sh")


@needs_torchrun
@pytest.mark.skipif(not DOCS.is_dir() or os.geteuid() != 0, reason="no root or no documents")
def test_two_hosts(tmp_path: Path) -> None:
    # ring.py of docs/cluster.md runs on two network namespaces that stand for hosts.
    (tmp_path / "ring.py").write_text(
        (DOCS / "cluster.md").read_text().split(MARK)[1].split("```")[0]
    )
    torchrun = (
        f"cd {tmp_path} && OMP_NUM_THREADS=1 {sys.executable} -m torch.distributed.run --nnodes 2 "
        "--nproc_per_node 1 --rdzv_backend c10d --rdzv_id 1 --rdzv_endpoint one:29500 ring.py"
    )
    both = f"$ON two '{torchrun}' & {torchrun} && wait $!"
    done = subprocess.run(
        [HOSTS, "1gbit", "bash", "-c", both], capture_output=True, text=True, timeout=300
    )
    if done.returncode == 77:  # the script cannot run on this machine
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(line[0] for line in done.stdout.splitlines()) == ["0", "1"]


@needs_torchrun
@pytest.mark.skipif(not DOCS.is_dir(), reason="there are no documents here")
def test_slurm(tmp_path: Path) -> None:
    """Runs the torchrun commands of docs/cluster.md, on two nodes instead of four."""
    page = (DOCS / "cluster.md").read_text()
    (tmp_path / "ring.py").write_text(page.split(MARK)[1].split("```")[0])
    torchrun = f"{sys.executable} -m torch.distributed.run"
    command = "srun --nodes 4" + page.split("srun --nodes 4")[1].split("```")[0]
    assert command.count("nodes 4") == 2 and " torchrun " in command
    command = command.replace("nodes 4", "nodes 2").replace(" torchrun ", f" {torchrun} ")
    (tmp_path / "job.sh").write_text(command)
    done = subprocess.run(
        [NODES, "bash", "job.sh"], capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode == 77:  # the script cannot run on this machine
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(line[0] for line in done.stdout.splitlines()) == ["0", "1"]


def test_all_blocks_of_documents_run() -> None:
    if not DOCS.is_dir():
        pytest.skip("there are no documents here")
    found = {page.name: page.read_text().count(MARK) for page in DOCS.glob("**/*.md")}
    assert {name: n for name, n in found.items() if n} == {"cluster.md": 2, "pytorch.md": 1}


def test_a_process_alone(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0,
                            world_size=1)  # fmt: skip
    try:
        q = torch.randn(1, 2, 700, 8, requires_grad=True)
        out = qkv.torch.ring_attention(q, q, q, causal=True)
        assert torch.equal(out, qkv.torch.attention(q, q, q, causal=True))
        (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match="there is no second derivative of"):
            gradient.square().sum().backward()
        limit, bias, w = torch.tensor(600), torch.zeros(700, 700), torch.eye(8)
        for changed, options in (
            (limit, {"mask_mod": lambda at: at.j < limit}),
            (bias, {"bias": bias}),
            (w, {"score": "bilinear", "params": {"W": w}}),
        ):
            out = qkv.torch.ring_attention(q, q, q, **options)
            changed.sub_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                out.sum().backward()
        with torch.inference_mode():
            few = torch.tensor(600)  # autograd cannot save an inference tensor
        qkv.torch.ring_attention(q, q, q, mask_mod=lambda at: at.j < few).sum().backward()
        wrong: list[tuple[Any, str]] = [
            (lambda: qkv.torch.ring_attention(q, q, q, sharding="zigzag"),
             "ring_attention: q must have parts that begin at multiples of 512 rows of the "
             "sequence, but rank 0 has rows from 350 on"),
            (lambda: qkv.torch.ring_attention(q, q, q, sharding="striped"),
             'ring_attention: sharding must be "contiguous", "zigzag" or a number of zigzags, got '
             "'striped'"),
            (lambda: qkv.torch.ring_attention(q, q, q, padding_mask=torch.tensor(True)),
             "ring_attention: padding_mask must have all keys of the sequence on the last axis, "
             "which are 700, got []"),
            (lambda: qkv.torch.ring_attention(q[0], q, q),
             "ring_attention: q must be [B,H,T,D] on the CPU, got [2, 700, 8] on cpu"),
            (lambda: qkv.torch.ring_attention(q, q[:, :, :5], q),
             "ring_attention: q, k and v must have the same rows of the sequence, got "
             "[700, 5, 700]"),
            (lambda: qkv.torch.ring_attention(q, q, q, bias=torch.zeros(700, requires_grad=True)),
             "ring_attention: bias must have a row for each of this process's 700 queries to have "
             "a gradient, got [700]"),
            (lambda: qkv.torch.ring_attention(q[:, :, :699], q[:, :, :699], q[:, :, :699],
                                              sharding="zigzag"),
             "ring_attention: q must have the same number of rows on every rank, a multiple of 2, "
             "with zigzags = 1, got [699]"),
        ]  # fmt: skip
        for call, message in wrong:
            with pytest.raises(ValueError) as error:
                call()
            assert str(error.value) == message
        for name, value, message in (
            ("key_lengths", "abc", "key_lengths must be integers, [B] or [B,T], got str"),
            ("key_lengths", object(), "key_lengths must be integers, [B] or [B,T], got object"),
            ("params", {1: q}, "params must have names as keys, got 1"),
            ("group", "abc", "group must be a process group or None, got str"),
            ("group", [], "group must be a process group or None, got list"),
        ):
            with pytest.raises(TypeError) as wrong_type:
                qkv.torch.ring_attention(q, q, q, **{name: value})
            assert str(wrong_type.value) == f"ring_attention: {message}"
        with pytest.raises(TypeError, match="unexpected keyword argument 'block_tables'"):
            qkv.torch.ring_attention(q, q, q, block_tables=q)  # type: ignore[call-arg]
    finally:
        dist.destroy_process_group()
