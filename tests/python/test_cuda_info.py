# SPDX-License-Identifier: Apache-2.0
"""Tests what qkv.info() says about CUDA devices, with drivers of tests/cuda in place of CUDA's."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from patience import PATIENCE

import qkv

DRIVERS = pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "tests" / "cuda"
NO_KERNELS = "this build has no CUDA kernels (QKV_CUDA)"


def info_with(driver):
    """qkv.info() of a new process, whose libcuda.so.1 is that of the folder `driver`."""
    if not (DRIVERS / driver / "libcuda.so.1").is_file():
        pytest.skip("the drivers are part of the release build")
    done = subprocess.run(
        [sys.executable, "-c", "import json, qkv; print(json.dumps(qkv.info()))"],
        capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "LD_LIBRARY_PATH": str(DRIVERS / driver)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_info_of_this_machine():
    info = qkv.info()
    assert bool(info["cuda_devices"]) == (info["why_no_cuda_device"] == "")
    assert "\n" not in info["why_no_cuda_device"]


def test_devices_are_listed():
    info = info_with("devices")
    if info["why_no_cuda_device"] == NO_KERNELS:
        assert info["cuda_devices"] == []
        return
    assert info["why_no_cuda_device"] == ""
    assert [device["number"] for device in info["cuda_devices"]] == [0, 1, 2]
    assert info["cuda_devices"][0] == {
        "number": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 81559 << 20,
        "compute_capability": [9, 0],
        "multiprocessors": 132,
    }


def test_no_device_has_a_reason():
    info = info_with("no_device")
    assert info["cuda_devices"] == []
    assert info["why_no_cuda_device"] in (NO_KERNELS, "the CUDA driver finds no device")
