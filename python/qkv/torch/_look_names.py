# SPDX-License-Identifier: Apache-2.0
"""Names of modules, and parts of them."""

from typing import Iterable

_MOST = 12  # names in a message


def has_name(name: str, part: str) -> bool:
    """Whether a module's name is this, or has it between dots: "a.layers.3.b" has "layers.3"."""
    return name == part or (part != "" and f".{part}." in f".{name}.")


def listed(names: Iterable[str]) -> str:
    """The names, or the first of them, for a message."""
    every = list(names)
    shown = ", ".join(repr(name) for name in every[:_MOST])
    return shown if len(every) <= _MOST else f"{shown} and {len(every) - _MOST} more"
