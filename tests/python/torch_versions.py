# SPDX-License-Identifier: Apache-2.0
"""Imports PyTorch, and skips files and tests that need a newer version of it."""

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")

from qkv.torch import _questions  # noqa: E402

VERSION = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
OPERATOR = "torch.library.custom_op and register_vmap"


def requires(major, minor, what):
    """Skips the file that calls this at its top if PyTorch is older than this version."""
    if (major, minor) > VERSION:
        pytest.skip(f"needs PyTorch {major}.{minor}: {what}", allow_module_level=True)


def needs(major, minor, what):
    """A mark for tests that are skipped if PyTorch is older than this version."""
    reason = f"needs PyTorch {major}.{minor}: {what}"
    return pytest.mark.skipif((major, minor) > VERSION, reason=reason)


needs_operator = pytest.mark.skipif(
    not _questions.AVAILABLE, reason=f"needs PyTorch 2.5: {OPERATOR}"
)
