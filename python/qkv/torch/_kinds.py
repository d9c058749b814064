# SPDX-License-Identifier: Apache-2.0
"""Type checks whose errors name the argument."""

from typing import Any

import numpy as np
import torch

FLAG = (bool, np.bool_)
SIZE = (int, np.integer)
_KINDS = {
    torch.Tensor: "a torch.Tensor",
    FLAG: "True or False",
    SIZE: "an integer",
    (int, float): "a number",
}


def check_kinds(function: str, kind: Any, **values: Any) -> None:
    """Raises TypeError, naming the argument, for each value that is not of this kind."""
    for name, value in values.items():
        if not isinstance(value, kind):
            wanted = _KINDS[kind]
            raise TypeError(f"{function}: {name} must be {wanted}, got {type(value).__name__}")
