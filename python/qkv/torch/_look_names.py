# SPDX-License-Identifier: Apache-2.0
"""Names of modules: matching parts of them, and listing them in messages."""

from typing import Iterable

from .._words import MOST_TEXT

_MOST = 12  # the largest number of names in a message


def has_name(name: str, part: str) -> bool:
    """Whether `name` is `part` or contains it between dots, as "a.layers.3.b" has "layers.3"."""
    return name == part or (part != "" and f".{part}." in f".{name}.")


def listed(names: Iterable[str]) -> str:
    """The first names, and the number of further ones, for a message."""
    every = list(names)
    shown = ", ".join(repr(name) for name in every[:_MOST])
    return shown if len(every) <= _MOST else f"{shown} and {len(every) - _MOST} more"


def with_names_of(text: str, names: Iterable[str]) -> str:
    """`text` and the first names, as many as a message has room for, and the number of others."""
    every = list(names)
    for shown in range(len(every), 0, -1):
        rest = f" and {len(every) - shown} more" if shown < len(every) else ""
        line = text + ", ".join(map(repr, every[:shown])) + rest
        if len(line) <= MOST_TEXT:
            break
    return line if every else text
