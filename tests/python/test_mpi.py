# SPDX-License-Identifier: Apache-2.0
"""Tests qkv.mpi with ranks of this machine, started by mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MPIRUN = shutil.which("mpirun")
if MPIRUN is None:
    pytest.skip("there is no mpirun", allow_module_level=True)
pytest.importorskip("mpi4py")

WORKER = Path(__file__).with_name("mpi_worker.py")
# Open MPI starts ranks as root, and more of them than processors, only if it is told.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_have_the_bits_of_one_process(ranks: int) -> None:
    done = subprocess.run(
        [str(MPIRUN), "-n", str(ranks), sys.executable, str(WORKER)],
        capture_output=True, text=True, timeout=300, env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ranks} ranks agree\n"
