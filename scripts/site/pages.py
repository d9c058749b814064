# SPDX-License-Identifier: Apache-2.0
"""The pages of the site: where each comes from, and where links lead.

Pages are the repository's own Markdown files, README.md and docs/**/*.md, and what docs/site/ adds:
the reference, and lists. Links in the repository lead to files. On the site, each leads to the page
of the file, if it has one; else, if the repository's address is given, to the file there; else to a
copy of the file. A page's place is its path on the site.
"""

import json
import pathlib
import posixpath
import re
import sys
from xml.etree import ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))
from named_files import text_lines  # noqa: E402

# The places (without an ending) of files outside of docs/, and of docs/README.md, since README.md
# takes the name index. FOLDERS has the places of folders.
NAMES = {"README.md": "index", "docs/README.md": "map", "CHANGELOG.md": "changelog",
         "CONTRIBUTING.md": "contributing/rules"}
FOLDERS = {"docs/decisions": "decisions", "bench/results": "measurements"}
FILES = "files"  # the folder of copies, in the folder of sources
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
COMMENT = re.compile(r"<!--.*?-->")
IMAGE = re.compile(r'(<img src=")([^"]+)(")')
STARTS = "## Python\n"  # the links to introductions stand above this heading of README.md


class Wrong(Exception):
    """Raised for a link that leads nowhere, or for a README.md without the heading STARTS."""


def pages(root):
    """{file relative to the root: its place, without an ending}."""
    found = dict(NAMES)
    for path in sorted((root / "docs").rglob("*.md")):
        name = path.relative_to(root).as_posix()
        found.setdefault(name, name[len("docs/"):-len(".md")])
    return found


def new_target(root, name, target, repository=""):
    """Where a link of the file `name` leads on the site."""
    if re.match(r"[a-z]+:|#", target):
        return target
    path, hash_sign, section = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
    place = pages(root).get(path)
    if place:
        return f"/{place}.md{hash_sign}{section}"
    if path in FOLDERS:
        return f"/{FOLDERS[path]}.rst"
    if path.startswith("docs/images/"):
        return path[len("docs"):]
    if repository and (root / path).exists():
        return f"{repository.rstrip('/')}/{path}"
    if not (root / path).is_file():
        raise Wrong(f"{name}: the site has nothing for a link to {target}")
    return f"/{FILES}/{path}"


def rewritten(root, name, text, repository=""):
    """The text of a file, in which links outside of fenced blocks lead to places on the site."""
    def replace(found):
        return found[1] + new_target(root, name, found[2], repository) + found[3]

    lines = text.split("\n")
    for number, line in text_lines(text):
        if COMMENT.sub("", line).strip():  # a comment within a line marks it for a script
            line = COMMENT.sub("", line)
        for pattern in (LINK, IMAGE):
            line = pattern.sub(replace, line)
        lines[number - 1] = line
    return "\n".join(lines)


def first_page(text, starts, contents):
    """README.md with links to the introductions, and with the site's contents."""
    if text.count(f"\n{STARTS}") != 1:
        raise Wrong(f"README.md must have one heading {STARTS.strip()!r}")
    return text.replace(f"\n{STARTS}", f"\n{starts}\n{STARTS}") + f"\n{contents}"


# ---- pages that are made for the site -----------------------------------------------------------

def title(text, under="="):
    return f"{text}\n{under * len(text)}\n"


def headers(root):
    return sorted(path.relative_to(root / "include").as_posix()
                  for path in (root / "include").rglob("*.h"))


def purpose(header):
    """The comment above the first namespace of a header, as reStructuredText."""
    found = re.search(r"((?:^//.*\n)+)namespace ", header, re.MULTILINE)
    out, was_shown = [], False
    for line in found[1].splitlines() if found else []:
        words = line[2:].removeprefix(" ")
        if words.startswith(("NOLINT", "----")):
            continue
        is_shown = words.startswith("  ")
        if is_shown != was_shown:
            out += ["", "::", ""] if is_shown else [""]
        was_shown = is_shown
        out.append(words if is_shown else re.sub(r"`([^`]*)`", r"``\1``", words).replace("*", "\\*"))
    return "\n".join(out)


def header_page(root, name):
    """The page of a public header: its comment, and all that it declares."""
    text = (root / "include" / name).read_text(encoding="utf-8")
    return "\n".join([title(name), f"``#include <{name}>``\n", purpose(text), "",
                      f".. doxygenfile:: {name.split('/')[-1]}", ""])


def measurements_page(root):
    """A table of the files of bench/results/, each with the command that made it."""
    rows = [title("Measurements"), "The files from which the tables of the benchmarks are made.\n",
            ".. list-table::", "   :header-rows: 1", "   :widths: 34 28 38\n",
            "   * - file", "     - of", "     - command"]
    for path in sorted((root / "bench/results").glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        rows += [f"   * - :download:`{path.stem} </{FILES}/bench/results/{path.name}>`",
                 f"     - {report.get('date', '')[:10]}, {report.get('cpu', '')}",
                 f"     - ``{report.get('command', '')}``"]
    return "\n".join([*rows, ""])


def errors_page(root):
    """The rows of tests/errors.tsv: what wrong calls answer."""
    rows = [title("Error messages"),
            "Wrong calls and what they answer, word for word: the rows of "
            f":download:`tests/errors.tsv </{FILES}/tests/errors.tsv>`, which also explains how calls "
            "are written. Tests make each of these calls. In Python the errors are ``ValueError`` and "
            "``TypeError``, with Python's names.\n"]
    for line in (root / "tests/errors.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("# ---- "):
            rows += ["", title(line.removeprefix("# ---- ").rstrip("- ").capitalize(), "-"),
                     ".. list-table::", "   :header-rows: 1", "   :widths: 50 8 42", "",
                     "   * - message", "     - kind", "     - call"]
        elif line and not line.startswith("#"):
            _, call, kind, message = line.split("\t")
            rows += [f"   * - ``{message}``", f"     - {kind}", f"     - ``{call}``"]
    return "\n".join([*rows, ""])


def sources(root, repository=""):
    """The files for Sphinx: {place with an ending: text, or the path of a file to copy}."""
    site = root / "docs/site"
    found = {"measurements.rst": measurements_page(root),
             "error-messages.rst": errors_page(root)}
    for name in headers(root):
        found[f"api/{name.removesuffix('.h')}.rst"] = header_page(root, name)
    for path in site.rglob("*.rst"):
        found[path.relative_to(site).as_posix()] = path.read_text(encoding="utf-8")
    for name, place in pages(root).items():
        text = rewritten(root, name, (root / name).read_text(encoding="utf-8"), repository)
        if place == "index":
            text = first_page(text, *((site / f"{part}.inc").read_text(encoding="utf-8").split("\n", 1)[1]
                                      for part in ("starts", "contents")))
        found[f"{place}.md"] = text
    for text in [*found.values()]:
        for path in re.findall(rf"[(<]/{FILES}/([^)>\s]+)[)>]", text):
            found[f"{FILES}/{path}"] = root / path
    for path in sorted((root / "docs/images").rglob("*.*")):
        found[f"images/{path.relative_to(root / 'docs/images').as_posix()}"] = path
    return found


def write_sources(root, folder, repository=""):
    """Writes the folder of sources and returns the number of pages. Files that have not changed
    keep their times, so that Sphinx reads only what is new."""
    wanted = sources(root, repository)
    for old in [*folder.rglob("*")] if folder.exists() else []:
        if old.is_file() and old.relative_to(folder).as_posix() not in wanted:
            old.unlink()
    for place, what in wanted.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        data = what.read_bytes() if isinstance(what, pathlib.Path) else what.encode()
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
    return sum(place.endswith((".md", ".rst")) for place in wanted)


def drop_private(xml):
    """Takes private members out of Doxygen's XML, in which breathe would find them."""
    for path in xml.glob("*.xml"):
        tree = ElementTree.parse(path)
        compounds = tree.getroot().findall("compounddef")
        private = [(compound, part) for compound in compounds for part in compound
                   if part.get("kind", "").startswith("private")
                   or (part.tag == "innerclass" and part.get("prot") == "private")]
        for compound, part in private:
            compound.remove(part)
        if private:
            tree.write(path, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    ROOT = pathlib.Path(__file__).resolve().parents[2]
    write_sources(ROOT, ROOT / "build/docs/source", *sys.argv[1:])
    drop_private(ROOT / "build/docs/doxygen/xml")
