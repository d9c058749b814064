# SPDX-License-Identifier: Apache-2.0
"""Which tests need which PyTorch: marks that say so where it is older."""

import pytest

torch = pytest.importorskip("torch", reason="qkv.torch is for PyTorch")

from qkv.torch import _questions  # noqa: E402

VERSION = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
HAS_SDPA = hasattr(torch.nn.functional, "scaled_dot_product_attention")  # 2.0

needs_operator = pytest.mark.skipif(
    not _questions.AVAILABLE,
    reason="needs PyTorch 2.5: torch.library.custom_op and register_vmap",
)
needs_sdpa = pytest.mark.skipif(
    not HAS_SDPA, reason="needs PyTorch 2.0: torch.nn.functional.scaled_dot_product_attention"
)
