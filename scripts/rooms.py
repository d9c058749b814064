#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the lines of each room (a folder of the source): its code, comments and tests. The table
is in docs/contributing/building.md, "the page".

usage: rooms.py            print the table
       rooms.py --write    write it into the page
       rooms.py --check    exit 1 if a number in the page is off by more than a tenth and 50 lines

Blank lines do not count. A docstring counts as a comment. All lines of tests count as tests.
"""

import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "contributing" / "building.md"
BEGIN, END = "<!-- scripts/rooms.py --write -->\n", "<!-- end of scripts/rooms.py -->\n"

# Each room's code and tests, relative to the root: folders, files, or beginnings of file names (as
# tests/oracle of tests/oracle_call.py). A file belongs to the room with the longest match.
ROOMS = {
    "include/qkv": ("include/qkv", ""),
    "src/core": ("src/core", "tests/core"),
    "src/expressions": ("src/expressions", "tests/expressions"),
    "src/reference": ("src/reference", "tests/oracle"),
    "src/kernels": ("src/kernels", "tests/kernels"),
    "src/runtime": ("src/runtime", "tests/runtime"),
    "src/dense": ("src/dense", "tests/dense"),
    "src/attention": ("src/attention", "tests/attention"),
    "src/layers": ("src/layers", "tests/layers"),
    "src/cuda": ("src/cuda", "tests/cuda"),
    "src/ranks": ("src/ranks", "tests/ranks"),
    "src/mpi": ("src/mpi", "tests/mpi"),
    "src/c": ("src/c", "tests/c"),
    "app/files": ("app/files", "tests/app/files tests/app/hostile tests/fuzz"),
    "app/text": ("app/text", "tests/app/text"),
    "app/picture": ("app/picture", "tests/app/picture"),
    "app/page": ("app/page", "tests/app/page"),
    "app/translator": ("app/translator", "tests/app/translator"),
    "app/commands": ("app/commands", "tests/app/commands"),
    "python": ("python", "tests/python"),
    "bench": ("bench", "tests/bench"),
    "scripts": (
        "scripts",
        "scripts/check/docs_blocks_test.py scripts/check/quietly_test.py scripts/check/site_test.py",
    ),
    "shared by the tests": ("", "tests"),
}


def count_cpp(text):
    """(code, comments) of C++: a line that only has a comment is a comment."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    comments = sum(line.startswith("//") for line in lines)
    return len(lines) - comments, comments


def count_shell(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    comments = sum(line.startswith("#") for line in lines)
    return len(lines) - comments, comments


def count_python(text):
    """(code, comments) of Python: lines of comments and of docstrings are comments."""
    comments, code, previous = set(), set(), None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        lines = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT:
            comments.update(lines)
        elif token.type == tokenize.STRING and previous in (None, tokenize.INDENT, tokenize.NEWLINE):
            comments.update(number for number in lines if text.splitlines()[number - 1].strip())
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
                                tokenize.ENDMARKER):
            code.update(lines)
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.type
    return len(code), len(comments - code)


COUNTS = {".h": count_cpp, ".c": count_cpp, ".cc": count_cpp, ".cu": count_cpp, ".js": count_cpp, ".py": count_python, ".pyi": count_python, ".sh": count_shell}


def room_of(path):
    """(the room of a file, whether the file is one of its tests), or None."""
    best, found = -1, None
    for room, (code, tests) in ROOMS.items():
        for folders, is_test in ((code, False), (tests, True)):
            for folder in folders.split():
                if (path == folder or path.startswith((folder + "/", folder + "_", folder + ".py"))) and len(folder) > best:
                    best, found = len(folder), (room, is_test)
    return found


def count_all():
    """{room: [code, comments, tests]} of the files that git knows."""
    rooms = {room: [0, 0, 0] for room in ROOMS}
    files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    for name in files.splitlines():
        count, room = COUNTS.get(pathlib.Path(name).suffix), room_of(name)
        if count is None or room is None or not (ROOT / name).is_file():
            continue
        code, comments = count((ROOT / name).read_text(encoding="utf-8"))
        if room[1]:
            rooms[room[0]][2] += code + comments
        else:
            rooms[room[0]][0] += code
            rooms[room[0]][1] += comments
    return rooms


def table(rooms):
    rows = ["room | code | comments | tests", "--- | ---: | ---: | ---:"]
    total = [sum(column) for column in zip(*rooms.values())]
    for room, counts in [*rooms.items(), ("all", total)]:
        rows.append("|".join([room, *(f"{count:,}" if count else "" for count in counts)]))
    return "\n".join(rows) + "\n"


def written():
    """The table's numbers as they stand in the page, row by row."""
    text = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    return {
        cells[0]: [int(cell.replace(",", "") or 0) for cell in cells[1:]]
        for cells in (row.split("|") for row in text.splitlines()[2:])
    }


def main():
    rooms = count_all()
    if sys.argv[1:] == ["--write"]:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + table(rooms) + END + rest.split(END)[1], encoding="utf-8")
    elif sys.argv[1:] == ["--check"]:
        stale = [
            f"docs/contributing/building.md: {room}: {old}, now {new}"
            for room, counts in rooms.items()
            for old, new in zip(written().get(room, [0, 0, 0]), counts)
            if abs(old - new) > max(50, new // 10)
        ]
        print("\n".join([*stale, f"{len(rooms)} rooms, {len(stale)} stale numbers; scripts/rooms.py --write renews them"]))
        return 1 if stale else 0
    else:
        print(table(rooms), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
