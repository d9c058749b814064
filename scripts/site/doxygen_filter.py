#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Doxygen's INPUT_FILTER: prints a public header with its comments in Doxygen's form.

usage: doxygen_filter.py HEADER

Headers have plain comments. One directly above a declaration describes it and becomes `///`, one
behind a member `///<`. Some stay as they are: lines of dashes, NOLINT, comments above a blank line,
`}`, return, if or for, and the comment above a namespace, which pages.py shows. Comments are text:
what Doxygen would take for a command or HTML is escaped, `code` becomes code, and lines that are
indented, except in lists, are shown as they are. A function without a comment, directly below one
of the same name, is marked as its overload. The number of lines does not change.
"""

import pathlib
import re
import sys

WHOLE_LINE = re.compile(r"^(\s*)// ?(.*)$")
BEHIND = re.compile(r"^(?!\s*\})(.*[;,{})])(\s+)// (.*)$")
IGNORED = re.compile(r"^(NOLINT|clang-format|----|SPDX)")
SPECIAL = re.compile(r"[\\@<>&#%\"]|::")
FUNCTION = re.compile(r"^(\s*)((?:QKV_API )?[\w:<>,&* ]*?\b(\w+)\(.*)$")
CODE = re.compile(r"`([^`]*)`")
NOT_DESCRIBED = re.compile(r"^\s*(#|\}|(inline )?namespace |public:|private:|protected:|return\b|if\b|for\b)")


def escaped(text):
    """Text that Doxygen shows as it is; `code` is shown as code."""
    def plain(part):
        return SPECIAL.sub(lambda found: "\\" + found.group(), part)

    parts = CODE.split(text)
    return "".join(f"<tt>{plain(part)}</tt>" if at % 2 else plain(part)
                   for at, part in enumerate(parts))


def escaped_block(lines):
    """The lines of a comment, escaped. Code in backticks may go on in the next line."""
    words = escaped("\n".join(lines)).split("\n")
    in_list, inside = False, False
    for at, line in enumerate(lines):
        in_list = line.startswith("- ") or (in_list and line.startswith("  "))
        shown = line.startswith("  ") and not in_list
        if shown and not inside:
            words[at] = f"<pre>{words[at]}"
        if inside and not shown:
            words[at - 1] += "</pre>"
        inside = shown
    if inside:
        words[-1] += "</pre>"
    return words


def is_described(lines, at):
    """Whether line `at` is a declaration, which a comment above it describes."""
    return at < len(lines) and lines[at].strip() != "" and not NOT_DESCRIBED.match(lines[at])


def with_overloads(lines):
    """The lines, in which an overload directly below a function is marked as one."""
    name = None  # of the function whose declaration ends in the line before
    is_inside = False
    for line in lines:
        found = None if is_inside else FUNCTION.match(line)
        if found and found[3] == name and name not in ("if", "for"):
            line = f"{found[1]}/** \\overload */ {found[2]}"
        if found:
            name, is_inside = found[3], True
        elif not is_inside:
            name = None
        is_inside = is_inside and not line.endswith(";")
        yield line


def filtered(text):
    """The header's text with comments in Doxygen's form."""
    lines, out, at = list(with_overloads(text.split("\n"))), [], 0
    while at < len(lines):
        comment = WHOLE_LINE.match(lines[at])
        if not comment:
            behind = BEHIND.match(lines[at])
            if behind and not IGNORED.match(behind[3]):
                out.append(f"{behind[1]}{behind[2]}///< {escaped(behind[3])}")
            else:
                out.append(lines[at])
            at += 1
            continue
        first = at
        while at < len(lines) and WHOLE_LINE.match(lines[at]) and not IGNORED.match(
                WHOLE_LINE.match(lines[at])[2]):
            at += 1
        if at == first:  # a line that is ignored
            out.append(lines[at])
            at += 1
            continue
        if not is_described(lines, at):
            out += lines[first:at]
            continue
        words = escaped_block([WHOLE_LINE.match(line)[2] for line in lines[first:at]])
        out += [f"{comment[1]}///{' ' if word else ''}{word}" for word in words]
    return "\n".join(out)


if __name__ == "__main__":
    sys.stdout.write(filtered(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
