# SPDX-License-Identifier: Apache-2.0
"""Imports PyTorch, and marks tests that need a version of it, to be skipped with older ones."""

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")

from qkv.torch import _questions  # noqa: E402

VERSION = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
OPERATOR = "torch.library.custom_op and register_vmap"


def requires(major, minor, what):
    """Skips all tests of a file if PyTorch is older; to be called at its top."""
    if (major, minor) > VERSION:
        pytest.skip(f"needs PyTorch {major}.{minor}: {what}", allow_module_level=True)


def needs(major, minor, what):
    """A mark for tests that are skipped if PyTorch is older than this version."""
    reason = f"needs PyTorch {major}.{minor}: {what}"
    return pytest.mark.skipif((major, minor) > VERSION, reason=reason)


needs_operator = pytest.mark.skipif(
    not _questions.AVAILABLE, reason=f"needs PyTorch 2.5: {OPERATOR}"
)
