# SPDX-License-Identifier: Apache-2.0
"""Reading a file in the extension module, with open()'s errors, and replacing a file atomically."""

import os
import pathlib
import tempfile
from contextlib import contextmanager
from typing import IO, Callable, Iterator, TypeVar, Union

Path = Union[str, bytes, "os.PathLike[str]"]
Value = TypeVar("Value")


def read_file(read: Callable[[bytes], Value], path: Path, *, folder: bool = False) -> Value:
    """Returns read(path); raises OSError for a file that is missing or may not be read.

    With `folder`, the path may also be a folder.
    """
    try:
        return read(os.fsencode(path))
    except ValueError as error:
        wrong = error
    if not os.path.exists(path) or (os.path.isdir(path) and not folder):
        with open(path, "rb"):  # raises the operating system's error
            pass
    elif not os.access(path, os.R_OK):
        raise PermissionError(str(wrong))
    raise wrong


@contextmanager
def replaced(target: pathlib.Path) -> Iterator[IO[bytes]]:
    """A context with a file to write, which replaces `target` when the context ends.

    After an error, an existing target is unchanged. A link is followed.
    """
    name, target = target, pathlib.Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise OSError(f"{name}: cannot be written: it is not a regular file")
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent or ".", suffix=target.suffix)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(name)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, _permissions(target))
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _permissions(target: pathlib.Path) -> int:
    """The permissions of an existing target, or those that a new file gets."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
