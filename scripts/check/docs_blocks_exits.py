# SPDX-License-Identifier: Apache-2.0
"""The console blocks of a document that say how commands end:

    $ qkv words
    qkv: TEXT is required; see qkv words --help
    [exit 2]

Each command is run by itself. It must print the lines below it and end with the status of the line
[exit N] that follows; commands in a row share what follows the last of them. A command whose status
is not 0 must print to standard error alone, and leave every file as it was. [...] in a line is any
text.
"""

import os
import re
from dataclasses import dataclass, field

from docs_blocks_common import Wrong, compare, finish

EXIT = re.compile(r"^\[exit (\d+)\]$", re.MULTILINE)
ANY = "[...]"


@dataclass
class Step:
    """Commands by line, what each prints, and the status with which it ends."""

    commands: dict[int, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    status: int = -1


def read_steps(block):
    steps, step = [], Step()
    for number, line in enumerate(block.code.splitlines(), block.line):
        end = EXIT.fullmatch(line)
        if not step.commands and not line.startswith("$ "):
            raise Wrong(f'line {number} follows no command: expected "$ ", got "{line}"')
        if end:
            step.status = int(end[1])
            steps.append(step)
            step = Step()
        elif not line.startswith("$ "):
            step.lines.append(line)
        elif step.lines:
            raise Wrong(f"line {number}: the command above it has no line [exit N]")
        else:
            step.commands[number] = line[2:]
    if step.commands:
        raise Wrong("the last command has no line [exit N]")
    return steps


def files_below(directory):
    """{path: None for a folder, else a state that differs after the file was written to}. Does not
    follow links."""
    found = {}
    for folder, folders, files in os.walk(directory):
        for name in folders + files:
            path = os.path.join(folder, name)
            state = os.lstat(path)
            written = None if name in folders else (state.st_size, state.st_mtime_ns, state.st_ino)
            found[os.path.relpath(path, directory)] = written
    return found


def check_step(step, command, directory, environment):
    before = files_below(directory)
    done = finish(["bash", "-c", command], directory, environment)
    if done.returncode != step.status:
        raise Wrong(f"exit {done.returncode}, expected {step.status}\n{done.stdout}{done.stderr}")
    if not step.status:
        compare_lines(step.lines, done.stdout + done.stderr)
        return
    compare_lines(step.lines, done.stderr)
    if done.stdout:
        raise Wrong(f"fails, and prints to standard output\n{done.stdout}")
    after = files_below(directory)
    changed = sorted(name for name in before.keys() | after.keys()
                     if before.get(name, -1) != after.get(name, -1))
    if changed:
        raise Wrong(f"fails, and writes {' '.join(changed)}")


def compare_lines(wanted, printed):
    lines = printed.splitlines()
    for n, line in enumerate(wanted[: len(lines)]):
        pattern = ".*".join(map(re.escape, line.split(ANY)))
        if ANY in line and re.fullmatch(pattern, lines[n]):
            lines[n] = line
    compare("\n".join(wanted), "\n".join(lines))


def check_exits(document, block, directory, environment):
    """Runs the commands. Raises Wrong with all faults, each with its file and line."""
    faults = []
    for step in read_steps(block):
        for number, command in step.commands.items():
            try:
                check_step(step, command, directory, environment)
            except Wrong as wrong:
                faults.append(f"{document}:{number}: $ {command}\n{wrong}")
    if faults:
        raise Wrong("\n".join([f"{len(faults)} of its commands", *faults]))
    return ""
