# SPDX-License-Identifier: Apache-2.0
"""Names of modules: matching parts of them, and listing them in messages."""

from typing import Iterable

_MOST = 12  # the largest number of names in a message


def has_name(name: str, part: str) -> bool:
    """Whether `name` is `part` or contains it between dots, as "a.layers.3.b" has "layers.3"."""
    return name == part or (part != "" and f".{part}." in f".{name}.")


def listed(names: Iterable[str]) -> str:
    """The first names, and the number of further ones, for a message."""
    every = list(names)
    shown = ", ".join(repr(name) for name in every[:_MOST])
    return shown if len(every) <= _MOST else f"{shown} and {len(every) - _MOST} more"
