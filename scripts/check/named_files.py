# SPDX-License-Identifier: Apache-2.0
"""Files and sections that documents and source files name: they must exist.

In Markdown: the target of every relative link, with its section, and every path that begins with
one of FOLDERS, outside fenced blocks. In sources: every path below docs/. A path with * must match
a file; one with a word in capitals (bench/results/CPU.json) or in <> is a placeholder.
"""

import re

FOLDERS = ("docs", "src", "app", "include", "python", "bench", "tests", "scripts", "examples",
           "cmake", "packaging")
SOURCES = ("*.h", "*.c", "*.cc", "*.py", "*.sh", "CMakeLists.txt", "Makefile", "*.cmake", "*.tsv")
PATH = re.compile(rf"(?<![\w/.<-])((?:{'|'.join(FOLDERS)})/[\w.*/<>{{}},-]*[\w*}}/])(#[\w-]+)?")
IN_SOURCE = re.compile(r"(?<![\w/.<-])(docs/[\w./-]*\w)(#[\w-]+)?")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PLACEHOLDER = re.compile(r"[<>{}]|(?<![A-Za-z])[A-Z]{3,}(?![a-z])")
WRITTEN = ("docs/last-check.txt",)  # need not exist: a whole run of scripts/check.sh writes it
REAL_CAPITALS = ("README", "CHANGELOG", "CONTRIBUTING", "SOURCES", "LICENSE", "NOTICE")


def text_lines(text):
    """(number, line) outside fenced blocks."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            inside = not inside
        elif not inside:
            yield number, line


def slug(heading):
    text = re.sub(r"[^\w\- ]", "", re.sub(r"`|\[|\]\([^)]*\)", "", heading).strip().lower())
    return text.replace(" ", "-")


def sections(path):
    lines = text_lines(path.read_text(encoding="utf-8"))
    return {slug(line.lstrip("#")) for _, line in lines if re.match(r"#{1,6} ", line)}


def fault_of(root, base, target, section):
    """The fault of a name, or ""."""
    if target in WRITTEN:
        return ""
    words = PLACEHOLDER.search(target)
    if words and not any(name in target for name in REAL_CAPITALS):
        return ""
    path = base / target.rstrip("/")
    if "*" in target:
        return "" if any(root.glob(target)) else f"no file is {target}"
    # A comment may leave out the ending: docs/decisions/0032.
    found = path if path.exists() else next(iter(path.parent.glob(f"{path.name}[-.]*")), None)
    if found is None:
        return f"there is no {target}"
    if section and found.suffix == ".md" and section not in sections(found):
        return f"{target} has no section #{section}"
    return ""


def names_in_page(root, page):
    """(line, base, target, section) of each name in a Markdown file."""
    for number, line in text_lines(page.read_text(encoding="utf-8")):
        for link in LINK.findall(line):
            if not re.match(r"[a-z]+:", link):
                target, _, section = link.partition("#")
                yield number, page.parent, target or page.name, section
        for target, section in PATH.findall(LINK.sub("]", line)):
            yield number, root, target, section.lstrip("#")


def names_in_source(root, path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for target, section in IN_SOURCE.findall(line):
            yield number, root, target, section.lstrip("#")


def faults(root):
    """(names seen, faults as text) of a checkout."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    sources = [path for folder in FOLDERS if folder != "docs" for kind in SOURCES
               for path in (root / folder).rglob(kind) if path.name not in EXAMPLES]
    names, found = 0, []
    for path in sorted([*pages, *sources]):
        read = names_in_page if path.suffix == ".md" else names_in_source
        for number, base, target, section in read(root, path):
            names += 1
            fault = fault_of(root, base, target, section)
            if fault:
                found.append(f"{path.relative_to(root)}:{number}: {fault}")
    return names, found


# Files whose text has invented names: the checks' own tests.
EXAMPLES = ("figures.py", "docs_blocks_test.py", "named_files.py")
