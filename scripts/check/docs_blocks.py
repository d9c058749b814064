#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the code blocks of the documents and compares their output with the documents.

usage: docs_blocks.py [--separately] BUILD_DIR [ROOT [DOCUMENT...]]
DOCUMENT: a pattern below ROOT, a checkout; without any: README.md and docs/**/*.md.

What is done with a fenced block depends on its language:
  cpp, c   a whole program, compiled against the library and run
  sh       run by bash, the built qkv first on PATH
  console  lines that begin with "$ " are run; the other lines, if any, are what the commands must
           print; blocks with lines such as [exit 2]: see docs_blocks_exits.py
  python   run by the checkout's .venv-python (or else .venv), all blocks of a document in one
           process. If qkv, torch or transformers is missing, three kinds of blocks are not run, but
           counted and listed: a block that imports it, python blocks below that one, and commands
           that name a file which only such blocks write
  text, json, cmake   shown only
<!-- output --> before a text block: exactly what the block above prints on stdout.
<!-- run: no, REASON --> before a sh, console or python block: not run, but counted and listed; sh
and console only for commands that install, fetch or build.
All blocks of a document run in order in one temporary directory, which has links to the files and
directories at the top of the checkout, so that commands are written as for the checkout.
The cpp blocks are compiled together as one program, which is much cheaper; each block is run in a
process of its own. A block then also passes if only another block has an #include that it needs.
--separately, for the long check, compiles each block alone, which finds such blocks.
Exit 1 on a failure, or when no block was run.
"""

import collections
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from docs_blocks_common import Block, Wrong, call, compare
from docs_blocks_cpp import Compiler, Program
from docs_blocks_exits import EXIT, check_exits
from docs_blocks_python import CHECKOUT, Session, is_installed

RUN = {"cpp", "c", "sh", "console", "python"}
SHOWN = {"text", "json", "cmake"}
INSTALLS = re.compile(r"\b(apt|apt-get|pip|git clone|sudo|cmake|make|install)\b")
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(\S*).*$")
COMMENT = re.compile(r"^\s*<!--\s*(.*?)\s*-->\s*$")
MARK = re.compile(r"(output)|(run): no, (.+)")


def read_marks(lines, fence):
    """The marks in the comments directly above the line `fence`, allowing blank lines between."""
    marks = {}
    for line in reversed(lines[:fence]):
        comment = COMMENT.match(line)
        if not comment and line.strip():
            break
        if comment:
            mark = MARK.fullmatch(comment[1])
            if not mark:
                raise Wrong(f"unknown mark <!-- {comment[1]} -->")
            marks[mark[1] or mark[2]] = mark[3] or ""
    return marks


def read_blocks(text):
    """The fenced blocks of a document, in order."""
    lines = text.splitlines()
    blocks, at = [], 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        at += 1
        if not fence:
            continue
        begin = at
        while at < len(lines) and not re.fullmatch(rf"\s*{re.escape(fence[2])}\s*", lines[at]):
            at += 1
        if at == len(lines):
            raise Wrong(f"line {begin}: the block has no end")
        indent = len(fence[1])
        code = "".join(line[min(indent, len(line) - len(line.lstrip())):] + "\n"
                       for line in lines[begin:at])
        blocks.append(Block(begin + 1, fence[3], code, read_marks(lines, begin - 1)))
        at += 1
    return blocks


@functools.cache
def entries_of(root):
    """The names of files and folders at the top of a checkout: those that git tracks, and "build";
    without git, all. Hidden ones are left out."""
    if not (root / ".git").exists():
        return [entry.name for entry in root.iterdir() if not entry.name.startswith(".")]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, check=True)
    names = {name.split("/")[0] for name in listed.stdout.decode().split("\0") if name}
    return [name for name in sorted(names | {"build"})
            if not name.startswith(".") and (root / name).exists()]


class Runner:
    """Runs the blocks of one document in its temporary directory."""

    def __init__(self, root, compiler, document, directory):
        self.root, self.compiler, self.document = root, compiler, document
        self.directory = pathlib.Path(directory)
        self.session = None  # the process that runs the python blocks
        self.imports = set()  # the packages of IMPORT that python blocks import
        self.unwritten = set()  # files that are named by python blocks that were not run
        for name in entries_of(root):  # no untracked files, which blocks could overwrite
            (self.directory / name).symlink_to(root / name)
        self.environment = dict(os.environ, LC_ALL="C.UTF-8",
                                PATH=f"{compiler.build / 'bin'}:{os.environ['PATH']}")

    def call(self, command):
        return call(command, self.directory, self.environment)

    def cpp(self, block):
        program = Program(self.document, block)
        return self.compiler.run(program, self.directory, self.environment)

    def c(self, block):
        return self.compiler.run_c(block.code, self.directory, self.environment)

    def sh(self, block):
        return self.call(["bash", "-euo", "pipefail", "-c", block.code])

    def console(self, block):
        if EXIT.search(block.code):
            return check_exits(self.document, block, self.directory, self.environment)
        lines = block.code.splitlines(keepends=True)
        commands = "".join(line[2:] for line in lines if line.startswith("$ "))
        wanted = "".join(line for line in lines if not line.startswith("$ "))
        if not commands:
            raise Wrong('no line begins with "$ "')
        printed = self.call(["bash", "-euo", "pipefail", "-c", commands])
        if wanted:
            compare(wanted, printed)
        return printed

    def python(self, block):
        self.session = self.session or Session(self.directory, self.environment)
        return self.session.run(self.document, block)

    def obstacle(self, block):
        """Why a block cannot be run here, or None."""
        if "run" in block.marks:
            return block.marks["run"]
        if block.language != "python":
            absent = [name for name in sorted(self.unwritten)
                      if name in block.code and not (self.directory / name).exists()]
            return f"nobody has written {' '.join(absent)}" if absent else None
        self.imports.update(IMPORT.findall(block.code))
        absent = [name for name in sorted(self.imports) if not is_installed(name)]
        if not absent:
            return None
        self.unwritten.update(FILE.findall(block.code))
        return f"there is no {' '.join(absent)} in .venv-python"


FILE = re.compile(r"""["']([\w./-]+\.\w+)["']""")
IMPORT = re.compile(r"^ *(?:import|from) (qkv|torch|transformers)\b", re.MULTILINE)
NOT_RUN = object()  # output of a block that could not be run here


def check_marks(block):
    """Checks that every mark is at a block it applies to."""
    if block.language not in RUN | SHOWN:
        raise Wrong(f"language '{block.language}' is none of {' '.join(sorted(RUN | SHOWN))}")
    homes = {"output": {"text"}, "run": {"sh", "console", "python"}}
    for mark in block.marks:
        if block.language not in homes[mark]:
            raise Wrong(f"mark {mark} at a {block.language} block")
    if "run" in block.marks and block.language != "python" and not INSTALLS.search(block.code):
        raise Wrong("run: no is for what installs, fetches or builds")


def check_document(root, compiler, name, blocks):
    """(number of blocks by kind, texts of blocks not run, texts of failures) of one document."""
    counts, unrun, failures = collections.Counter(), [], []
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(root, compiler, name, directory)
        printed = None  # by the previous block
        for block in blocks:
            try:
                check_marks(block)
                before, printed = printed, None
                obstacle = runner.obstacle(block)
                if obstacle is not None:
                    printed = None if "run" in block.marks else NOT_RUN
                    counts["not run"] += 1
                    unrun.append(f"{name}:{block.line}: {block.language}: {obstacle}")
                elif block.language in RUN:
                    counts[block.language] += 1
                    printed = getattr(runner, block.language)(block)
                elif "output" in block.marks:
                    counts["output"] += 1
                    if before is NOT_RUN:
                        continue
                    if before is None:
                        raise Wrong("the output of what? The block above was not run")
                    compare(block.code, before)
                else:
                    counts["shown"] += 1
            except Wrong as wrong:
                failures.append(f"{name}:{block.line}: {block.language}: {wrong}")
        try:
            if runner.session:
                runner.session.end()
        except Wrong as wrong:
            failures.append(f"{name}: python: {wrong}")
    return counts, unrun, failures


def read_documents(root, patterns):
    """{name: blocks} of the documents of a checkout, and failures."""
    documents, failures = {}, []
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        name = path.relative_to(root)
        try:
            documents[name] = read_blocks(path.read_text(encoding="utf-8"))
        except Wrong as wrong:
            documents[name] = []
            failures.append(f"{name}: {wrong}")
    return documents, failures


def has_cpp(blocks):
    return any(block.language == "cpp" for block in blocks)


def programs_of(root, documents):
    """The valid cpp blocks; faults of the others are reported when they are run."""
    for name, blocks in documents.items():
        for block in blocks:
            with contextlib.suppress(Wrong):
                check_marks(block)
                if block.language == "cpp":
                    yield Program(name, block)


def check(root, build, separately=False, patterns=("README.md", "docs/**/*.md")):
    """Checks documents of a checkout and reports. True if there is no failure."""
    documents, failures = read_documents(root, patterns)
    with tempfile.TemporaryDirectory() as directory, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        compiler = Compiler(root, build, directory)
        if not separately:
            programs = list(programs_of(root, documents))
            compiler.together = pool.submit(compiler.compile_together, programs)
        # Documents that wait for the compiler come last.
        order = sorted(documents, key=lambda name: has_cpp(documents[name]))
        done = dict(zip(order, pool.map(
            lambda name: check_document(root, compiler, name, documents[name]), order)))
    results = [done[name] for name in documents]
    counts = sum((result[0] for result in results), collections.Counter())
    for line in [line for result in results for line in result[1]]:
        print(f"not run: {line}")
    alone = {name: reason for name, reason in compiler.reasons.items() if reason}
    if compiler.commands or alone:
        print(f"cpp: {len(compiler.commands)} compiled together, {len(alone)} alone")
    for name, reason in alone.items():
        print(f"compiled alone: {name}: {reason}")
    failures += [line for result in results for line in result[2]]
    for line in failures:
        print(f"FAILED {line}")
    run = sum(counts[language] for language in RUN)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{len(documents)} documents, {run} blocks run ({kinds}), {len(failures)} failures")
    return run > 0 and not failures


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--separately"]
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    build = pathlib.Path(arguments[0]).resolve()
    root = pathlib.Path(arguments[1] if len(arguments) > 1 else CHECKOUT).resolve()
    given = {"patterns": arguments[2:]} if len(arguments) > 2 else {}
    return 0 if check(root, build, "--separately" in sys.argv[1:], **given) else 1


if __name__ == "__main__":
    sys.exit(main())
