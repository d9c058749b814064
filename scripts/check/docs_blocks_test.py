#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests docs_blocks.py: good documents pass, and each wrong one is found for its own reason.

usage: docs_blocks_test.py BUILD_DIR
"""

import contextlib
import io
import pathlib
import sys
import tempfile

import docs_blocks

PRELUDES = {"numbers": "#include <cstdio>\nstatic const int number = 7;\n"}

GOOD = [
    "```sh\necho a > file\n```\nand later\n```sh\ngrep a file\n```\n<!-- output -->\n```text\na\n```\n",
    "```console\n$ echo a\na\n$ echo b\nb\n```\n",
    '```cpp\n#include <cstdio>\nint main() { std::puts("a"); }\n```\n\n<!-- output -->\n\n'
    "```text\na\n```\n",
    '<!-- prelude: numbers -->\n```cpp\nstd::printf("%d", number);\n```\n'
    "<!-- output -->\n```text\n7\n```\n",
    "```sh\ntest -f README.md\n```\n<!-- run: no, needs the network -->\n```sh\ngit clone x\n```\n",
    '```python\na = 1\nprint(a)\n```\n```python\nprint(a + 1)\n```\n'
    "<!-- output -->\n```text\n2\n```\n",
    "- item\n\n  ```sh\n  true\n  ```\n\n```json\n{}\n```\n",
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
    ("<!-- output -->\n```text\nb\n```\n", "The block above was not run"),
    ("<!-- outptu -->\n```text\nb\n```\n", "unknown mark"),
    ("<!-- output -->\n```sh\ntrue\n```\n", "mark output at a sh block"),
    ("<!-- run: no, lazy -->\n```sh\nqkv demo\n```\n", "is for what installs"),
    ("<!-- run: no, lazy -->\n```cpp\nint main() {}\n```\n", "mark run at a cpp block"),
    ("<!-- prelude: missing -->\n```cpp\nf();\n```\n", "no tests/docs/preludes/missing.h"),
    ("<!-- prelude: numbers -->\n```cpp\nint main() {}\n```\n", "needs no prelude"),
    ("```cpp\nint main() { return undeclared; }\n```\n", "README.md:2:"),
    ("```cpp\nint main() { return 3; }\n```\n", "exit 3"),
    ("```python\na = 1\n```\n\n```python\n\nprint(b)\n```\n", 'README.md", line 7'),
    ("<!-- run: no, lazy -->\n```python\na = 1\n```\n```python\nprint(a)\n```\n", "NameError"),
]


def verdict(build, document):
    """(passed, report) of a checkout with just this README.md."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory).resolve()
        (root / "README.md").write_text(document, encoding="utf-8")
        (root / "tests/docs/preludes").mkdir(parents=True)
        for name, text in PRELUDES.items():
            (root / f"tests/docs/preludes/{name}.h").write_text(text, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as report:
            passed = docs_blocks.check(root, build)
        return passed, report.getvalue()


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    failures = 0
    for document, reason in [*((document, None) for document in GOOD), *WRONG]:
        passed, report = verdict(build, document)
        if passed != (reason is None) or (reason or "") not in report:
            failures += 1
            print(f"--- {document}--- wanted: {reason or 'to pass'}; got:\n{report}")
    print(f"{len(GOOD)} good and {len(WRONG)} wrong documents, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
