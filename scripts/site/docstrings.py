# SPDX-License-Identifier: Apache-2.0
"""Turns docstrings of the Python package, text with Google's sections, into reStructuredText."""

import re

CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
SPECIAL = re.compile(r"[|*\\]|(?<=\w)_(?=\W|$)")


def escaped(line):
    """A line with reStructuredText's special characters escaped, and code in backticks as code."""
    parts = CODE.split(line)
    return "".join(f"``{part}``" if at % 2 else SPECIAL.sub(r"\\\g<0>", part)
                   for at, part in enumerate(parts))


def joined(lines):
    """The lines, in which a list of arguments, `a, b,` above `c: text`, is joined into one line."""
    out, in_arguments = [], False
    for line in lines:
        in_arguments = line == "Args:" or (in_arguments and (line == "" or line[0] == " "))
        if in_arguments and out and re.fullmatch(r"    \w[\w, ]*,", out[-1]):
            out[-1] += " " + line.lstrip()
        else:
            out.append(line)
    return out


def as_rst(lines):
    """The lines of a docstring as reStructuredText. Text before a colon of a result is no type."""
    out, in_example, in_returns = [], False, False
    for line in joined(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and line.strip() != "")
        if line == "Returns:":
            in_returns = True
            out.append(":returns:")
            continue
        if in_returns and line and not line.startswith(" "):
            in_returns = False
        out.append(line if in_example else escaped(line))
    return out


def process(_app, what, _name, _thing, _options, lines):
    """For Sphinx's event autodoc-process-docstring: changes the lines in place."""
    if any(line.startswith(":") for line in lines):
        return  # already reStructuredText
    lines[:] = as_rst(lines)
    if what in ("attribute", "data", "property"):
        lines[0] = lines[0].replace(": ", " – ")  # Sphinx takes what is before a colon for a type
