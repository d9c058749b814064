#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks of examples/notebooks, which are kept with their outputs.

usage: .venv-python/bin/python scripts/notebooks.py --write [NAME...]    store the outputs
       .venv-python/bin/python scripts/notebooks.py --check [NAME...]    compare with those stored
NAME: such as 003; without any: all notebooks.

--check exits with 1 if a cell fails or an output differs. Of a picture, only its texts count,
including those under the pointer. Texts must be equal, but for numbers: because targets of the CPU
round differently, these may differ by 0.015 percent, or by one in the last of two or more decimals.
"""

import argparse
import contextlib
import os
import pathlib
import re
import sys
import tempfile

import nbclient
import nbformat
import traitlets.config

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "examples" / "notebooks"
PATIENCE = 1800  # seconds for a cell: many times what the slowest machine needs
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[-+]?\d+)?(?!\w)")


def notebooks():
    """The files, in order."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path):
    return nbformat.read(path, as_version=4)


@contextlib.contextmanager
def folders_apart_from_the_users():
    """Gives Jupyter temporary folders, so that it neither reads nor changes the user's settings."""
    names = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
        os.environ.update({name: os.path.join(folder, name) for name in names})
        try:
            yield pathlib.Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name)
                else:
                    os.environ[name] = value


def executed(path, where=FOLDER):
    """Runs a notebook in the folder `where`, and returns it with new outputs.

    A cell that fails raises nbclient's CellExecutionError.
    """
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count, cell.metadata = [], None, {}
    with folders_apart_from_the_users() as folder:
        # The kernel's sockets are files, since another process may take a free port first.
        sockets = {"transport": "ipc", "ip": str(folder / "socket")}
        nbclient.NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=PATIENCE,
            record_timing=False,
            coalesce_streams=True,
            config=traitlets.config.Config({"KernelManager": sockets}),
            resources={"metadata": {"path": str(where)}},
        ).execute()
    notebook.metadata = METADATA
    return notebook


# ---- comparison ---------------------------------------------------------------------------------


def texts(output):
    """(kind, text) of each text of an output. Of an SVG, only its texts, such as numbers, count."""
    if output.output_type == "stream":
        return [(output.name, output.text)]
    if output.output_type == "error":
        return [("error", output.evalue)]
    svg = output.data.get("image/svg+xml")
    if svg is not None:
        return [("picture", text) for text in re.findall(r">([^<>]*\S[^<>]*)</", svg)]
    return sorted((kind, str(data)) for kind, data in output.data.items())


def agree(stored, fresh):
    """Whether two texts have the same words, and numbers that count as equal."""
    if NUMBER.sub("#", stored) != NUMBER.sub("#", fresh):
        return False
    for a, b in zip(NUMBER.findall(stored), NUMBER.findall(fresh)):
        mantissa, _, exponent = a.partition("e")
        decimals = len(mantissa.partition(".")[2])
        unit = 1.01 * 10.0 ** (int(exponent or 0) - decimals) if decimals > 1 else 0.0
        if abs(float(a) - float(b)) > max(unit, 1.5e-4 * abs(float(a))):
            return False
    return True


def differences(stored, fresh):
    """A line for each code cell whose outputs differ; empty if none does."""
    found = []
    for before, after in zip(stored.cells, fresh.cells):
        if before.cell_type != "code":
            continue
        want = [text for output in before.outputs for text in texts(output)]
        got = [text for output in after.outputs for text in texts(output)]
        if [kind for kind, _ in want] != [kind for kind, _ in got]:
            found.append(f"cell {before.id}: {len(want)} texts are stored, {len(got)} came")
            continue
        first = next((n for n, (a, b) in enumerate(zip(want, got)) if not agree(a[1], b[1])), None)
        if first is not None:
            found.append(f"cell {before.id}: {want[first][1]!r} is stored, {got[first][1]!r} came")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true")
    what.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    known = {path.stem: path for path in notebooks()}
    for name in options.names:
        if name not in known:
            parser.error(f"NAME must be one of {', '.join(known)}, got {name!r}")
    failed = 0
    for path in [known[name] for name in options.names or known]:
        notebook = executed(path)
        if options.write:
            path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
            print(f"{path.name}: written")
            continue
        found = differences(read(path), notebook)
        failed += bool(found)
        print("\n".join(f"{path.name}: {line}" for line in found or ["as stored"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
