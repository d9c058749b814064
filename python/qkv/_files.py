# SPDX-License-Identifier: Apache-2.0
"""Reading a file in the extension module, with the errors that Python's open() raises."""

import os
from typing import Callable, TypeVar, Union

Path = Union[str, bytes, "os.PathLike[str]"]
Value = TypeVar("Value")


def read_file(read: Callable[[bytes], Value], path: Path) -> Value:
    """Returns read(path); raises OSError for a file that is missing or may not be read."""
    try:
        return read(os.fsencode(path))
    except ValueError as error:
        wrong = error
    if not os.path.isfile(path):
        with open(path, "rb"):  # raises the operating system's error
            pass
    elif not os.access(path, os.R_OK):
        raise PermissionError(str(wrong))
    raise wrong
