#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests docs_blocks.py: good documents pass, and each wrong one fails for its own reason.

usage: docs_blocks_test.py BUILD_DIR
"""

import contextlib
import io
import pathlib
import sys
import tempfile

import docs_blocks

GOOD = [
    "```sh\necho a > file\n```\nand later\n```sh\ngrep a file\n```\n<!-- output -->\n```text\na\n```\n",
    "```console\n$ echo a\na\n$ echo b\nb\n```\n",
    '```cpp\n#include <cstdio>\nint main() { std::puts("a"); }\n```\n\n<!-- output -->\n\n'
    "```text\na\n```\n",
    '```c\n#include <stdio.h>\nint main(void) { puts("a"); }\n```\n<!-- output -->\n```text\na\n```\n',
    "```sh\ntest -f README.md\n```\n<!-- run: no, needs the network -->\n```sh\ngit clone x\n```\n",
    '```python\na = 1\nprint(a)\n```\n```python\nprint(a + 1)\n```\n'
    "<!-- output -->\n```text\n2\n```\n",
    # Each block is run once, and has its own output.
    '```python\nopen("runs", "a").write("1")\n```\n```sh\necho 2 >> runs\n```\n'
    '```python\nimport os\nos.system("cat runs")\n```\n<!-- output -->\n```text\n12\n```\n',
    "```python\nimport sys\nsys.exit()\n```\n```python\nsys.exit(0)\n```\n",
    "- item\n\n  ```sh\n  true\n  ```\n\n```json\n{}\n```\n",
    "```console\n$ echo no >&2; exit 2\n$ echo no >&2; exit 2\nno\n[exit 2]\n$ false\n[exit 1]\n"
    "$ echo at 1, 2; echo b >&2; echo >file\nat [...], 2\nb\n[exit 0]\n```\n",
]

# A document, and what its failure must say.
WRONG = [
    ("", "0 blocks run"),
    ("```text\nonly shown\n```\n", "0 blocks run"),
    ("```sh\nfalse\n```\n", "exit 1"),
    ("```sh\nfalse | true\n```\n", "exit 1"),
    ("```\nno language\n```\n", "language '' is none of"),
    ("```rust\nfn main() {}\n```\n", "language 'rust' is none of"),
    ("```sh\ntrue\n", "has no end"),
    ("```sh\necho a\n```\n<!-- output -->\n```text\nb\n```\n", "+a"),
    ("```console\n$ echo a\nb\n```\n", "+a"),
    # How commands end: each fault is reported with its line.
    ("```console\n$ true\n$ exit 3\n[exit 2]\n```\n", "README.md:2: $ true\nexit 0, expected 2"),
    ("```console\n$ true\n$ exit 3\n[exit 2]\n```\n", "README.md:3: $ exit 3\nexit 3, expected 2"),
    ("```console\n$ echo a >&2; exit 2\nb\n[exit 2]\n```\n", "+a"),
    ("```console\n$ echo a >&2; echo b >&2; exit 2\na\n[exit 2]\n```\n", "+b"),
    ("```console\n$ echo 1, 3 >&2; exit 2\n[...], 2\n[exit 2]\n```\n", "+1, 3"),
    ("```console\n$ echo a; exit 2\n[exit 2]\n```\n", "prints to standard output"),
    ("```console\n$ echo a; exit 2\na\n[exit 2]\n```\n", "-a"),
    ("```console\n$ mkdir b; exit 2\n[exit 2]\n```\n", "fails, and writes b"),
    ("```sh\nmkdir b; echo 1 >b/c\n```\n```console\n$ echo 2 >b/c; exit 2\n[exit 2]\n```\n",
     "fails, and writes b/c"),
    ("```sh\nmkdir b; echo 1 >b/c\n```\n```console\n$ rm b/c; exit 2\n[exit 2]\n```\n",
     "fails, and writes b/c"),
    ("```console\n[exit 2]\n$ true\n```\n", "line 2 follows no command"),
    ("```console\n$ echo a\na\n$ true\n[exit 0]\n```\n", "line 4: the command above it has no"),
    ("```console\n$ true\n[exit 0]\n$ true\n```\n", "the last command has no line [exit N]"),
    ("<!-- output -->\n```text\nb\n```\n", "The block above was not run"),
    ("<!-- outptu -->\n```text\nb\n```\n", "unknown mark"),
    ("<!-- output -->\n```sh\ntrue\n```\n", "mark output at a sh block"),
    ("<!-- run: no, lazy -->\n```sh\nqkv demo\n```\n", "is for what installs"),
    ("<!-- run: no, lazy -->\n```cpp\nint main() {}\n```\n", "mark run at a cpp block"),
    ("```cpp\nf();\n```\n", "README.md:2: cpp: a cpp block must be a whole program"),
    ("```cpp\nint main() { return undeclared; }\n```\n", "README.md:2:"),
    ("```cpp\nint main() { return 3; }\n```\n", "exit 3"),
    ("```c\nint main(void) { return 3; }\n```\n", "README.md:2: c: exit 3"),
    ("```c\nint main() { int class = undeclared; }\n```\n", "(first use in this function)"),
    ("```python\na = 1\n```\n\n```python\n\nprint(b)\n```\n", 'README.md", line 7'),
    ("<!-- run: no, lazy -->\n```python\na = 1\n```\n```python\nprint(a)\n```\n", "NameError"),
    ("```python\nimport sys\nsys.exit(4)\n```\n", "exit 4"),
    ("```python\nsys.exit(\n```\n", 'README.md", line 2'),
    ("```python\nprint(1)\n```\n```python\nprint(2)\n```\n"
     "<!-- output -->\n```text\n1\n2\n```\n", "-1"),
    # Blocks below one that raised are run: they pass or fail on their own.
    ("```python\na = 1\n1 / 0\n```\n```python\nprint(a)\n```\n```sh\nfalse\n```\n",
     "2 failures"),
    ("```python\nimport os\nos._exit(5)\n```\n", "exit 5, and the process with it"),
    ("```python\nimport os\nos.abort()\n```\n", "exit -6"),
    ("```python\nimport os\nos._exit(0)\n```\n```python\n1\n```\n",
     "README.md:6: python: not run: the block of line 2 ended the process"),
    ("```python\nimport atexit, os\natexit.register(os._exit, 6)\n```\n", "exit 6 after the last"),
]

PUTS_A = '```cpp\n#include <cstdio>\nint main() { std::puts("a"); }\n```\n'
SAME_NAMES = (
    "```cpp\n#include <cstdio>\nstruct Pair { int a; };\nint twice(int x) { return 2 * x; }\n"
    'int main() { std::printf("%d", twice(Pair{1}.a)); }\n```\n'
    "<!-- output -->\n```text\n2\n```\n"
    "```cpp\n#include <cstdio>\nstruct Pair { int a, b; };\n"
    "static int twice(Pair x) { return x.b; }\n"
    'int main() {\n  std::printf("%d", twice({3, 4}));\n  return 0;\n}\n```\n'
    "<!-- output -->\n```text\n4\n```\n")

# Documents of several programs, and what is reported when they are compiled together.
TOGETHER = [
    (SAME_NAMES, ["cpp: 2 compiled together, 0 alone", " 0 failures"]),
    # No block sees another's macros. A main with a return on one path must not fall off its end on
    # another, unless the block is a program of its own.
    ("```cpp\n#define puts no\nint main() {}\n```\n"
     "```cpp\nint main(int count, char**) { return count - 1; }\n```\n"
     "```cpp\nint main() { if (false) return 1; }\n```\n" + PUTS_A * 2,
     ["cpp: 2 compiled together, 3 alone", "alone: README.md:2: it has directives",
      "alone: README.md:6: its main has arg", "alone: README.md:9: it does not compile tog",
      " 0 failures"]),
    # Only the blocks that do not compile or link are named, and the others run.
    ("```cpp\n#include <cstdio>\nint main() {\n  return undeclared;\n}\n```\n" + PUTS_A * 2,
     ["cpp: 2 compiled together, 1 alone", "FAILED README.md:2: cpp:", "README.md:4:",
      " 1 failures"]),
    (PUTS_A * 2 + "```cpp\n#include <cstdio>\n#include <no>\nint main() {}\n```\n",
     ["cpp: 2 compiled together, 1 alone", "FAILED README.md:10: cpp:", "README.md:11:",
      " 1 failures"]),
    (PUTS_A * 2 + "```cpp\nvoid nowhere();\nint main() { nowhere(); }\n```\n",
     ["cpp: 2 compiled together, 1 alone", "FAILED README.md:10: cpp:", "undefined ref",
      " 1 failures"]),
    ("```cpp\nint main() {\n```\n" + PUTS_A * 3,
     ["cpp: 2 compiled together, 2 alone", "FAILED README.md:2: cpp:", " 1 failures"]),
    (PUTS_A + "```cpp\nint main() { return 3; }\n```\n"
     "```cpp\n#include <cstdlib>\nint main() { std::abort(); }\n```\n",
     ["cpp: 3 compiled together, 0 alone", "FAILED README.md:6: cpp: exit 3",
      "FAILED README.md:9: cpp: exit -6", " 2 failures"]),
]
SEPARATELY = [
    (SAME_NAMES, [" 0 failures"]),
    (PUTS_A + '```cpp\nint main() { std::puts("b"); }\n```\n',
     ["FAILED README.md:6: cpp: ", "puts", " 1 failures"]),
]


# Documents that are checked as if no package were installed: a block that imports one and python
# blocks below it are counted as not run, and so is a command that reads a file of these blocks.
WITHOUT_PACKAGES = [
    ("```sh\ntrue\n```\n```python\nimport qkv\n```\n"
     '```python\nopen("made.txt", "w").write("1")\n```\n```console\n$ cat made.txt\n1\n```\n',
     ["README.md:5: python: there is no qkv in", "README.md:11: console: nobody has written made.txt",
      " 0 failures"]),
    ('```python\nimport qkv\nopen("made.txt", "w")\n```\n```sh\necho 1 > other.txt\n```\n'
     "```sh\ncat absent.txt\n```\n", ["FAILED README.md:9: sh: exit 1", " 1 failures"]),
]


def verdict(build, document, separately=False):
    """(passed, report) of a checkout with just this README.md."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory).resolve()
        (root / "README.md").write_text(document, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as report:
            passed = docs_blocks.check(root, build, separately)
        return passed, report.getvalue()


def cases():
    """(document, whether it is compiled separately, whether it passes, texts of the report)."""
    for document in GOOD:
        yield document, False, True, []
    for document, reason in WRONG:
        yield document, False, False, [reason]
    for documents in TOGETHER, SEPARATELY, WITHOUT_PACKAGES:
        if documents is WITHOUT_PACKAGES:
            docs_blocks.is_installed = lambda name: False  # no other cases follow
        for document, texts in documents:
            yield document, documents is SEPARATELY, " 0 failures" in texts, texts


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    count = failures = 0
    for document, separately, passes, texts in cases():
        passed, report = verdict(build, document, separately)
        count += 1
        if passed != passes or any(text not in report for text in texts):
            failures += 1
            way = "separately" if separately else "together"
            print(f"--- {way}\n{document}--- wanted: {texts or 'to pass'}; got:\n{report}")
    print(f"{count} documents, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
