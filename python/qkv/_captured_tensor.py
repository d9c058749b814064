# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors that can be read at expressions; imported when the first one is captured."""

from typing import Any

import torch

from ._captured import indexed


class CapturedTensor(torch.Tensor):  # type: ignore[misc]
    """A view of a tensor that can be read at expressions; see `qkv.captured`."""

    _qkv_name = "array"
    _qkv_tensor = None  # the tensor of which this is a view; None for a result of operations

    def __getitem__(self, index: Any) -> Any:
        return indexed(self, index, super().__getitem__)
