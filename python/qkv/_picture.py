# SPDX-License-Identifier: Apache-2.0
"""Pictures of attention maps: drawn by the program in the package, shown, printed and saved."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from typing import IO, Any, Dict, List, Optional, Sequence

import numpy as np

from ._files import Path, replaced
from ._program import PROGRAM

# The extensions that Picture.save() takes.
FORMATS = (".svg", ".png", ".pdf", ".html", ".txt", ".json", ".npz", ".safetensors", ".npy")

# The name of the file with the maps, by quantity; pictures, pages and messages show the name.
_NAMES = {"weight": "weights", "score": "scores"}
_NUMBERS = "numbers"  # the name for other quantities

# If a picture's arrays have this key, `attn` holds bfloat16 numbers, stored as float32.
BFLOAT16 = "bfloat16"

# Larger pictures are not shown: lines when printed, bytes of SVG in a notebook.
_MOST_LINES = 300
_MOST_BYTES = 10_000_000

_FAILED = 1  # exit code of the program for an internal failure
_NOT_AVAILABLE = 7  # exit code of the program if this machine or build lacks something
_OUTPUT = 4  # exit code of the program for an output that cannot be written

# The default of Picture's argument `renamed`: {option of the program: argument of `show`}.
_RENAMED = {"queries": "rows", "keys": "columns"}

# The longest side of a PNG that rsvg-convert can write, and the most pixels, for little memory.
_MOST_PIXELS_IN_LINE = 32767
_MOST_PIXELS = 1e8

# Matches a hint of an option of the program in a note, such as "; --layers LIST or all shows
# others".
_HINTS = re.compile(r"(;\s+)--(example|layers|heads|queries|keys)\s+(?=(N|LIST|all)\s)")


class Picture:
    """Attention maps as a picture: an SVG in a notebook, a map of characters when printed.

    `qkv.show` makes pictures. The program `qkv`, which is part of the package, draws them as
    `qkv view` does.
    """

    def __init__(
        self,
        arrays: Dict[str, Any],
        options: Sequence[str],
        minus: Optional[Dict[str, Any]] = None,
        renamed: Optional[Dict[str, str]] = None,
    ) -> None:
        self._arrays = arrays  # the arrays of an attention file, by name
        self._options = tuple(options)  # options of `qkv view`, as typed
        self._renamed = _RENAMED if renamed is None else renamed
        quantity = arrays["quantity"][0] if "quantity" in arrays else "weight"
        self._name = _NAMES.get(quantity, _NUMBERS)
        self._minus = minus  # arrays whose maps are subtracted
        self._svg: Optional[str] = None

    @property
    def svg(self) -> str:
        """The picture as the text of one SVG document."""
        if self._svg is None:
            self._svg = self._run("-o", "-", "--format", "svg").decode()
        return self._svg

    def text(self, columns: Optional[int] = None) -> str:
        """The picture as lines of characters.

        Args:
            columns: the width of the terminal, 20 or more; by default that of this terminal, and 80
                where there is none.

        Returns:
            The lines; maps that are wider are split into bands of keys.

        Raises:
            ValueError: the maps cannot be drawn as requested; the message says why.
        """
        width = shutil.get_terminal_size().columns if columns is None else columns
        drawn = self._run("--color", "never", width=max(20, width)).decode()
        return _HINTS.sub(lambda hint: f"{hint[1]}{self._name_of(hint[2])}=", drawn)

    def save(self, path: Path) -> None:
        """Writes the picture.

        Args:
            path: the file, whose extension selects the format: `.svg`, `.png` and `.pdf` are
                drawings, `.html` is a page to explore the maps in a browser, `.txt` and `.json`
                hold the numbers, and `.npz`, `.safetensors` and `.npy` the arrays of the selected
                part. An existing file is replaced, and unchanged if there is an error.

        Raises:
            ValueError: the extension is unknown, or the maps are too large for the format.
            OSError: the file cannot be written.
            RuntimeError: a program that the format needs is not installed or fails.
        """
        target = os.path.abspath(os.fsdecode(path))
        extension = pathlib.Path(target).suffix
        if extension not in FORMATS:
            raise ValueError(
                f"save: path must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got "
                f"{os.fsdecode(path)!r}"
            )
        self._run("-o", target)

    def __repr__(self) -> str:
        try:
            text = self.text().rstrip("\n")
        except (ValueError, RuntimeError, OSError) as error:
            return f"<qkv.Picture: {error}>"
        if text.count("\n") < _MOST_LINES:
            return text
        lines = text.count("\n") + 1
        return f"<qkv.Picture of {lines} lines: text() has them, save() writes files>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        """The forms that a notebook may show; the text says why if the picture is too large."""
        forms = {"text/plain": repr(self)}
        try:
            if len(self.svg) <= _MOST_BYTES:
                forms["image/svg+xml"] = self.svg
            else:
                megabytes = len(self.svg) / 1e6
                forms["text/plain"] = (
                    f"<qkv.Picture: too large to show here, {megabytes:.0f} MB as SVG: select with "
                    "heads, rows or columns, or save it>"
                )
        except (ValueError, RuntimeError, OSError) as error:
            forms["text/plain"] = f"<qkv.Picture: {error}>"
        return forms

    def _run(self, *arguments: str, width: int = 80) -> bytes:
        """Returns what `qkv view` prints with these arguments."""
        if not PROGRAM.is_file():
            raise RuntimeError(
                "show: the program qkv, which draws pictures, is not in this build of the Python "
                "package (docs/contributing/building.md)"
            )
        with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
            command = [str(PROGRAM), "view", self._name, *self._options, *arguments]
            _write(os.path.join(folder, self._name), self._arrays)
            if self._minus is not None:
                other = f"other {self._name}"
                _write(os.path.join(folder, other), self._minus)
                command += ["--minus", other]
            done = subprocess.run(
                command, cwd=folder, env=_environment(width), stdin=subprocess.DEVNULL,
                capture_output=True, check=False,
            )  # fmt: skip
        if done.returncode != 0:
            raise self._error(done.returncode, done.stderr.decode(errors="replace"))
        return done.stdout

    def _error(self, code: int, messages: str) -> Exception:
        """The exception for the program's last message, in the words of the Python functions."""
        last = messages.strip().splitlines()[-1:] or [f"the program ended with code {code}"]
        message = re.sub(r"^qkv: (view: )?", "", last[0])
        message = message.replace(f"other {self._name}: ", "minus: ")
        message = message.replace(f"{self._name}: ", "")
        message = re.sub(r"--([a-z][a-z-]*)", lambda match: self._name_of(match[1]), message)
        if code == _OUTPUT:
            return OSError(f"save: {message}")
        if code == _NOT_AVAILABLE:
            return RuntimeError(f"save: {message}")
        if code == _FAILED:
            return RuntimeError(f"show: {message}")
        return ValueError(f"show: {message}")

    def _name_of(self, option: str) -> str:
        """The argument of `show` for an option of the program, without its dashes."""
        return self._renamed.get(option, option.replace("-", "_"))


def _write(path: str, arrays: Dict[str, Any]) -> None:
    """Writes an attention file: safetensors if the maps are bfloat16, which .npz lacks."""
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    is_bfloat16 = arrays.pop(BFLOAT16, None) is not None
    with open(path, "wb") as file:
        if is_bfloat16:
            _write_safetensors(file, arrays)
        else:
            np.savez(file, **arrays)


# The names of NumPy's types in safetensors.
_TYPES = {"bool": "BOOL", "int32": "I32", "int64": "I64", "float32": "F32", "float64": "F64"}


def _write_safetensors(file: IO[bytes], arrays: Dict[str, Any]) -> None:
    """Writes the arrays: `attn`, float32, as bfloat16, and text arrays into the metadata."""
    texts = {name: array for name, array in arrays.items() if array.dtype.kind == "U"}
    header: Dict[str, Any] = {"__metadata__": {n: json.dumps(x.tolist()) for n, x in texts.items()}}
    parts, begin = [], 0
    for name in arrays.keys() - texts.keys():
        array = np.ascontiguousarray(arrays[name])
        kind = _TYPES.get(array.dtype.name, "")
        if name == "attn":
            kind, array = "BF16", (array.view(np.uint32) >> 16).astype(np.uint16)
        elif not kind:
            kind, array = "I64", array.astype(np.int64)
        end = begin + array.nbytes
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, end]}
        parts.append(array.tobytes())
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))


def _environment(width: int) -> Dict[str, str]:
    """The environment with this width of terminal, and UTF-8 if standard output can encode it."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    locale = "C.UTF-8" if encoding.startswith("utf") else "C"
    return {**os.environ, "COLUMNS": str(width), "LC_ALL": locale}


# ---- several pictures side by side --------------------------------------------------------------

_GAP = 24.0  # between pictures, in SVG units


class Row:
    """Pictures from left to right: one SVG in a notebook, maps of characters when printed.

    `qkv.show.row` makes it.

    Attributes:
        pictures: the `Picture` objects, from left to right.
    """

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.pictures = tuple(pictures)

    @property
    def svg(self) -> str:
        """The pictures as one SVG document."""
        return _side_by_side([one.svg for one in self.pictures])

    def save(self, path: Path) -> None:
        """Writes the pictures as one.

        Args:
            path: the file; it ends in `.svg`, `.png` or `.pdf`, and replaces an existing one.

        Raises:
            ValueError: the extension is not one of these; a `Picture` can be saved in more formats.
            OSError: the file cannot be written.
            RuntimeError: rsvg-convert (Debian: librsvg2-bin), which `.png` and `.pdf` need, is not
                installed or fails.
        """
        target = pathlib.Path(os.fsdecode(path))
        kind = target.suffix
        if kind not in (".svg", ".png", ".pdf"):
            raise ValueError(f"save: path must end in .svg, .png or .pdf, got {str(target)!r}")
        data = self.svg.encode()
        if kind != ".svg":
            data = _rendered(data, kind[1:])
        with replaced(target) as file:
            file.write(data)

    def __repr__(self) -> str:
        return "\n\n".join(repr(one) for one in self.pictures)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        """The forms that a notebook may show: those that all its pictures have."""
        every = [one._repr_mimebundle_() for one in self.pictures]
        forms = {"text/plain": "\n\n".join(one["text/plain"] for one in every)}
        if all("image/svg+xml" in one for one in every) and len(self.svg) <= _MOST_BYTES:
            forms["image/svg+xml"] = self.svg
        return forms


class Steps(Row):
    """The steps of one attention call as pictures side by side; `qkv.show.steps` makes them.

    Attributes:
        energies, weights, output: one `Picture` for each step.
    """

    def __init__(self, energies: Picture, weights: Picture, output: Picture) -> None:
        super().__init__((energies, weights, output))
        self.energies = energies
        self.weights = weights
        self.output = output


def _side_by_side(documents: List[str]) -> str:
    """One SVG document that places the documents from left to right, their tops aligned."""
    parts, x, height = [], 0.0, 0.0
    for n, document in enumerate(documents):
        document = re.sub(r"<[^>]+>", partial(_with_own_names, n), document)
        start = document.index("<svg ")
        head = document[start : document.index(">", start)]
        width, own_height = (_length(head, side) for side in ("width", "height"))
        parts.append(f'<svg x="{x:g}"{document[start + len("<svg") :].rstrip()}')
        x += width + _GAP
        height = max(height, own_height)
    size = f'width="{x - _GAP:g}" height="{height:g}"'
    inner = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" version="1.1" {size}>\n{inner}\n</svg>\n'


def _with_own_names(n: int, tag: "re.Match[str]") -> str:
    """The tag with a prefix for picture n before its id and the ids that it refers to."""
    return re.sub(r'( id="|url\(#)', rf"\g<1>step{n}-", tag[0])


def _length(head: str, side: str) -> float:
    found = re.search(rf' {side}="([0-9.]+)', head)
    assert found is not None, head
    return float(found[1])


def _rendered(svg: bytes, kind: str) -> bytes:
    """The SVG as a PDF, or as a PNG with two pixels for each unit, fewer if it is very large."""
    command = ["rsvg-convert", f"--format={kind}", "--unlimited"]
    if kind == "png":
        command.append(f"--zoom={_zoom_of(svg.decode())}")
    try:
        done = subprocess.run(command, input=svg, capture_output=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(
            f"save: {kind.upper()} needs rsvg-convert: install the package librsvg2-bin"
        ) from None
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise RuntimeError(f"save: rsvg-convert failed: {message}")
    return done.stdout


def _zoom_of(svg: str) -> float:
    """The pixels of a PNG for each unit of the SVG."""
    head = svg[: svg.index(">")]
    width, height = (_length(head, side) for side in ("width", "height"))
    most = min(
        _MOST_PIXELS_IN_LINE / max(width, height), math.sqrt(_MOST_PIXELS / (width * height))
    )
    return min(2.0, math.floor(most * 1000) / 1000)
