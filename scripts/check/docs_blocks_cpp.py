# SPDX-License-Identifier: Apache-2.0
"""The cpp blocks of all documents as one program, or each as a program of its own.

Most of the time to compile a small program goes into its headers, so the blocks share one
translation unit: includes first, each of them once, then every block in a namespace of its own.
`program N` runs block N, from 0. `int main()` becomes `auto main()`: in a namespace, main is a
function like any other, which must return a value if it is declared int, and need not if auto.

If a block lacks an include that another block has, only compiling the block alone finds this. Every
run of the joint program constructs the global objects of all blocks. Each block in C is compiled
alone.
"""

import itertools
import os
import pathlib
import re
from dataclasses import dataclass

from docs_blocks_common import Wrong, call

MAIN = re.compile(r"\bint main\(\)")
INCLUDE = re.compile(r"^#include.*$", re.MULTILINE)
DIRECTIVE = re.compile(r"^\s*#", re.MULTILINE)
DISPATCH = """#line 1 "dispatch"
#include <cstdlib>
#include <type_traits>
template <class Main>
int run_block(Main main) {
  if constexpr (std::is_void_v<decltype(main())>) return main(), 0;
  else return main();
}
int main(int, char** arguments) {
  switch (std::atoi(arguments[1])) {
"""


@dataclass
class Program:
    """A cpp block to be compiled. Raises Wrong if it is not a whole program."""
    document: pathlib.Path
    block: object

    def __post_init__(self):
        if not re.search(r"\bint main\(", self.block.code):
            raise Wrong("a cpp block must be a whole program: it has no `int main(`")

    @property
    def name(self):
        return f"{self.document}:{self.block.line}"

    def here(self, offset=0):
        return f'#line {self.block.line + offset} "{self.document}"\n'

    def includes(self):
        """{text of an include directive: it, below a #line with its place in the document}."""
        found = {}
        for number, line in enumerate(self.block.code.splitlines()):
            if INCLUDE.fullmatch(line):
                found.setdefault(line, f"{self.here(number)}{line}\n")
        return found

    def body(self):
        return self.here() + INCLUDE.sub("", self.block.code)

    def alone(self):
        """The text of a program with just this block."""
        return self.here() + self.block.code

    def obstacle(self):
        """Why the block cannot be compiled together with others, or None."""
        if DIRECTIVE.search(INCLUDE.sub("", self.block.code)):
            return "it has directives for the preprocessor"
        if not MAIN.search(self.block.code):
            return "its main has arguments"
        return None

    def is_named_in(self, report, number):
        """Whether a compiler or linker message points at the block, in the namespace `number`."""
        end = self.block.line + len(self.block.code.splitlines())
        return f"block_{number}::" in report or any(
            document == str(self.document) and self.block.line <= int(line) < end
            for document, line in re.findall(r"([^\s:]+):(\d+)", report))


def joint_text(programs):
    """The text of a program that runs the block whose number is its argument."""
    includes, blocks, cases = {}, [], []
    for number, program in enumerate(programs):
        for key, text in program.includes().items():
            includes.setdefault(key, text)
        body, here = MAIN.sub("auto main()", program.body()), program.here()
        blocks.append(f"{here}namespace block_{number} {{\n{body}{here}}}\n")
        cases.append(f"    case {number}: return run_block(block_{number}::main);\n")
    return "".join([*includes.values(), *blocks, DISPATCH, *cases, "  }\n  return 2;\n}\n"])


class Compiler:
    """Compiles programs against the library, into a given directory."""

    def __init__(self, root, build, directory):
        self.root, self.build, self.directory = root, build, pathlib.Path(directory)
        self.binaries = itertools.count()
        self.commands = {}  # by name: the command that runs a program compiled together with others
        self.reasons = {}  # by name: why a program is compiled alone, or None if it is not
        self.together = None  # the future of compile_together, if requested

    def compile(self, text):
        """Compiles the text of a program and returns the path of the binary."""
        cache = (self.build / "CMakeCache.txt").read_text(encoding="utf-8")
        compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)[1]
        libraries = [self.build / "libqkv.a", "-pthread"]
        if "<qkv/app/" in text:
            libraries = [self.build / "libqkv_app.a", *libraries, "-lfmt", "-lzip",
                         "-lutf8proc", "-lsentencepiece", "-lsentencepiece_train"]
        binary = self.directory / f"block{next(self.binaries)}"
        source = binary.with_suffix(".cc")
        source.write_text(text, encoding="utf-8")
        call([compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror",
              "-Wno-unused-variable", "-Wno-unused-but-set-variable",
              f"-I{self.root / 'include'}", source, "-o", binary, *libraries],
             self.directory, dict(os.environ, LC_ALL="C.UTF-8"))
        return binary

    def compile_together(self, programs):
        """Joins as many blocks as possible into one program. Blocks that a compiler's message names
        are left out: compiling them alone shows their faults, if any."""
        joined = []
        for program in programs:
            self.reasons[program.name] = program.obstacle()
            if self.reasons[program.name] is None:
                joined.append(program)
        while len(joined) > 1:
            try:
                binary = self.compile(joint_text(joined))
            except Wrong as wrong:
                named = [program for number, program in enumerate(joined)
                         if program.is_named_in(str(wrong), number)]
                for program in named or joined:
                    self.reasons[program.name] = "it does not compile together with others"
                joined = [program for program in joined if program not in named] if named else []
            else:
                self.commands.update((program.name, [binary, str(number)])
                                     for number, program in enumerate(joined))
                return

    def run_c(self, text, directory, environment):
        """The output of a program in C, run in a directory."""
        binary = self.directory / f"block{next(self.binaries)}"
        source = binary.with_suffix(".c")
        source.write_text(text, encoding="utf-8")
        call(["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror",
              f"-I{self.root / 'include'}", source, "-o", binary, self.build / "libqkv.a",
              "-pthread", "-ldl", "-lstdc++", "-lm"], self.directory, dict(os.environ, LC_ALL="C.UTF-8"))
        return call([binary], directory, environment)

    def run(self, program, directory, environment):
        """The output of a program in C++, run in a directory; compiled now unless it already is."""
        if self.together:
            self.together.result()
        together = self.commands.get(program.name)
        if together:
            return call(together, directory, environment)
        binary = self.compile(program.alone())
        try:
            return call([binary], directory, environment)
        finally:
            binary.unlink()
