# SPDX-License-Identifier: Apache-2.0
"""Tests that `python -m qkv` and the script `qkv` run the executable."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from patience import PATIENCE

import qkv

SCRIPT = [str(pathlib.Path(sys.executable).with_name("qkv"))]
MODULE = [sys.executable, "-m", "qkv"]
both = pytest.mark.parametrize("command", [MODULE, SCRIPT], ids=["module", "script"])


def run(command, *arguments, **options):
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE,
                          **options)  # fmt: skip


@both
def test_version_is_the_packages(command):
    done = run(command, "--version")
    assert (done.returncode, done.stdout) == (0, f"qkv {qkv.__version__}\n")


@both
def test_attend_agrees_with_attention(command, tmp_path):
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal((2, 4, 3)) for name in "qkv"}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    done = run(command, "attend", "q.npy", "k.npy", "v.npy", "--causal", "-o", "out.npy",
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    wanted = qkv.attention(*arrays.values(), causal=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)


@both
@pytest.mark.parametrize("arguments, status", [
    (["nonsense"], 2),
    (["attend"], 2),
    (["attend", "absent.npy", "absent.npy"], 3),
])  # fmt: skip
def test_exit_status_is_the_programs(command, arguments, status, tmp_path):
    done = run(command, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("qkv: ")


def run_main(program, *arguments):
    """Runs `main` of qkv.__main__ with `program` as the executable."""
    code = (f"import sys, pathlib, qkv.__main__ as m; m.PROGRAM = pathlib.Path({str(program)!r}); "
            f"sys.argv = ['qkv', *{arguments!r}]; sys.exit(m.main())")  # fmt: skip
    return run([sys.executable, "-c", code])


def test_a_missing_executable_is_an_error(tmp_path):
    done = run_main(tmp_path / "absent")
    assert (done.returncode, done.stdout) == (7, "")
    assert "not in this build" in done.stderr


def test_program_inherits_no_ignored_signal():
    # Python ignores SIGPIPE and SIGXFSZ; subprocess.run undoes this for its child, as main must.
    wanted = run(["/bin/grep", "SigIgn", "/proc/self/status"])
    assert run_main("/bin/grep", "SigIgn", "/proc/self/status").stdout == wanted.stdout
