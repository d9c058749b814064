#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that runs of the program on malformed files fail as they must.

A run must exit with 3, print one line that says where the fault is, and use little memory.

usage: run.py PROGRAM READER GROUP|all|count [FILE]
PROGRAM is qkv, READER the test program hostile_reader; FILE is the name of one malformed file.
The last line counts files and runs; the exit code is 1 if a run did not end as it must. `count`
runs nothing: the exit code is 1 if there are too few files.
"""

import os
import pathlib
import re
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "commands"))

import measured
from array_files import npy_files, safetensors_files
from npz_files import npz_files
from text_files import RUBBISH, plain_text_files, tsv_files, vector_binary_files, vector_text_files

PEAK = 50e6  # the most bytes of memory that a run may use
LEAST = 250  # the least number of files in all groups

PROGRAM, READER = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])

# The commands that read each format. {} stands for the file.
WORDS = [PROGRAM, "words", "cat dog", "--progress", "never"]
ARRAYS = [[READER, "arrays", "{}"], [PROGRAM, "attend", "{}", "{}"], [PROGRAM, "view", "{}"]]
READ = {
    "arrays": ARRAYS,
    "npz": [*ARRAYS, [*WORDS, "--score", "bilinear", "--params", "{}"]],
    "vectors": [[READER, "vectors", "{}"], [*WORDS, "--vectors", "{}"]],
    "rows": [[READER, "rows", "{}"]],
    "stdin": [[PROGRAM, "words", "-"]],
}

# How a message about each format must name the place of the fault: a line, a byte, a member, ...
PLACE = {
    "arrays": r": byte \d+: ",
    "npz": r"(: byte \d+: |\(.*\.npy\): |: (the file is truncated: )?expected an \.npz archive)",
    "vectors": r"(:\d+: |: byte \d+: )",
    "rows": r":\d+: ",
    "stdin": r"<stdin>: (byte \d+: expected |expected words, got none)",
    "places": r": ",
}


def missing_word(command, line):
    """Whether the command `words` says that a file of vectors lacks a word.

    It parses only the numbers of requested words, and so may not notice the file's fault.
    """
    return "--vectors" in command and ': no vector for "' in line


def make_fifo(path, content):
    """Creates a named pipe; a thread writes `content` once a reader has opened the pipe."""
    os.mkfifo(path)

    def write():
        try:
            with open(path, "wb") as file:
                file.write(content)
        except BrokenPipeError:  # the reader had seen enough
            pass

    threading.Thread(target=write, daemon=True).start()


def feed(content):
    """Returns a pipe's reading end; a thread writes `content`: bytes, or (block, times)."""
    block, times = content if isinstance(content, tuple) else (content, 1)
    reading, writing = os.pipe()

    def write():
        try:
            with open(writing, "wb", buffering=0) as file:
                for _ in range(times):
                    file.write(block)
        except BrokenPipeError:  # the reader had seen enough
            pass

    threading.Thread(target=write, daemon=True).start()
    return reading


def check_stdin(command, content):
    """Runs a command with `content` on standard input; returns the faults and the run."""
    with tempfile.TemporaryDirectory() as directory:
        with open(feed(content), "rb") as stdin:
            run = measured.run(command, directory, stdin)
        after = set(os.listdir(directory))
        return list(faults(run, command, "stdin", "<stdin>", set(), after)), run


def place_files():
    """Paths without a valid file: {name: function that creates `path`, or returns another path}."""
    return {
        "absent": lambda path: None,
        "a_directory": os.mkdir,
        "a_dangling_link": lambda path: os.symlink("nowhere", path),
        "a_link_to_itself": lambda path: os.symlink(path.name, path),
        "below_a_file": lambda path: (path.write_bytes(b"1"), path / "x")[1],
        "a_name_of_300_letters": lambda path: path.with_name("x" * 300),
        "a_name_of_two_lines": lambda path: path.with_name("absent\nqkv: done"),
        "null": lambda path: pathlib.Path("/dev/null"),
        "endless_zeros": lambda path: pathlib.Path("/dev/zero"),
        "an_empty_pipe": lambda path: make_fifo(path, b""),
        "a_pipe_of_rubbish": lambda path: make_fifo(path, RUBBISH),
        "a_pipe_that_ends_early": lambda path: make_fifo(path, b"PK\3\4" + RUBBISH),
        "a_pipe_of_a_huge_header": lambda path: make_fifo(path, b"\xff" * 7 + b"\x7f{}"),
    }


GROUPS = {
    "npy": ("arrays", npy_files),
    "npz": ("npz", npz_files),
    "safetensors": ("arrays", safetensors_files),
    "vector_text": ("vectors", vector_text_files),
    "vector_binary": ("vectors", vector_binary_files),
    "tsv": ("rows", tsv_files),
    "plain_text": ("stdin", plain_text_files),
    "places": ("places", place_files),
}


def faults(run, command, format_, path, before, after):
    """Yields what was wrong with a run of a command on the file `path`."""
    if run.status != 3:
        yield f"status {run.status}"
    if run.out:
        yield f"standard output {run.out[:200]!r}"
    if run.err.count("\n") != 1 or not run.err.endswith("\n"):
        yield "not one line on standard error"
    name = "".join(c if c >= " " else f"\\x{ord(c):02x}" for c in path)
    has_place = re.search(PLACE[format_], run.err) or missing_word(command, run.err)
    if name not in run.err or not has_place:
        yield "no place"
    if len(run.err) > 500 + len(name):
        yield "a long line"
    if run.peak > PEAK and not any(map(measured.is_sanitized, (PROGRAM, READER))):
        yield f"{run.peak / 1e6:.0f} MB"
    if after - before:
        yield f"left behind: {after - before}"
    if before - after:
        yield f"removed: {before - after}"


def check(format_, command, make):
    """Runs a command on the file that `make` holds or creates; returns the faults and the run."""
    with tempfile.TemporaryDirectory() as root:
        directory = pathlib.Path(root) / "here"
        directory.mkdir()
        path = directory / "file"
        if isinstance(make, bytes):
            path.write_bytes(make)
        else:
            path = make(path) or path
        name = str(path.relative_to(directory)) if path.is_relative_to(directory) else str(path)
        before = set(directory.rglob("*"))
        run = measured.run([part.format(name) for part in command], directory)
        after = set(directory.rglob("*"))
        return list(faults(run, command, format_, name, before, after)), run


def check_group(group, only):
    """Checks a group; returns the numbers of files, runs and failures."""
    format_, files = GROUPS[group]
    commands = READ.get(format_) or [
        command for each in READ.values() for command in each if "{}" in command
    ]
    runs = failures = 0
    chosen = {name: make for name, make in files().items() if only in (None, name)}
    for name, make in chosen.items():
        for command in commands:
            found, run = (
                check_stdin(command, make) if format_ == "stdin" else check(format_, command, make)
            )
            runs += 1
            if found or only:
                print(
                    f"{group} {name}: {' '.join(command[:3])}: {'; '.join(found) or 'ok'}\n"
                    f"  {run.err.rstrip()[:700]}"
                )
            failures += bool(found)
    print(f"{group}: {len(chosen)} files, {runs} runs, {failures} failed")
    return len(chosen), runs, failures


def main():
    chosen, only = sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None
    groups = list(GROUPS) if chosen == "all" else [chosen]
    if chosen == "count":
        files = sum(len(make()) for _, make in GROUPS.values())
        print(f"{files} malformed files, at least {LEAST} wanted")
        return files < LEAST
    files, runs, failures = map(sum, zip(*(check_group(group, only) for group in groups)))
    print(f"{files} malformed files, {runs} runs, {failures} failed")
    return failures > 0 or runs == 0


if __name__ == "__main__":
    sys.exit(main())
