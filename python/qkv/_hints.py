# SPDX-License-Identifier: Apache-2.0
"""Advice in the errors of traced functions, in the words of the library that a function uses."""

from typing import Dict, Tuple

# {about: (advice for a function that uses NumPy, advice for one that uses PyTorch)}.
_HINTS: Dict[str, Tuple[str, str]] = {
    "truth": (
        "Write qkv.where(c, a, b) for if, & | ~ for and, or, not, (a < b) & (b < c), qkv.minimum, "
        "qkv.maximum",
        "Write torch.where(c, a, b) for if, & | ~ for and, or, not, (a < b) & (b < c), x.clamp, "
        "torch.maximum",
    ),
    "index": (
        "To index an attribute, an item of a list or an array of a class derived from NumPy's, "
        "write qkv.captured(array)[...]",
        "To index a list, or an attribute that is an array of NumPy, make it a tensor before",
    ),
    "integer": ("Write x.astype(int)", "Write x.int()"),
    "float": (
        "Write x.astype(float), or np.exp(x) for math.exp(x)",
        "Write x.float(), or torch.exp(x) for math.exp(x)",
    ),
    "key": (
        "Put the values into an array, and read that",
        "Put the values into a tensor, and read that",
    ),
    "value": ("It is one value", "It is one value"),
    "exp": ("np.exp", "torch.exp"),
    "log": ("np.log", "torch.log"),
}


def hint(about: str, is_of_torch: bool = False) -> str:
    """The advice for the function that is being traced; PyTorch's if is_of_torch."""
    if not is_of_torch:
        from ._captured import is_traced_of_torch  # imports _expression, which imports _hints

        is_of_torch = is_traced_of_torch()
    return _HINTS[about][is_of_torch]
