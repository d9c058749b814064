#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which folder may include which: compares the #include lines with one table.

usage: include_rules.py [ROOT]       check a checkout (default: this one)
       include_rules.py --self-test  plant violations in a temporary tree and find each
Exit 1 on a violation, or if there was nothing to read.
"""

import pathlib
import re
import sys
import tempfile

# ---- the table ----------------------------------------------------------------------------------

# Each component (folder) of the library qkv and the lower components that it may include; every
# component may include itself. A component within a component is separate.
QKV = {
    "core": "",
    "expressions": "core",
    "reference": "core expressions",
    "kernels": "core",
    "runtime": "core",
    "dense": "core reference kernels runtime",
    "attention/validate": "core expressions",
    "attention/tiles": "core kernels runtime",
    "attention/forward": "core kernels runtime attention/tiles",
    "attention/backward": "core expressions kernels runtime attention/tiles",
    "attention/rowmaps": "core reference kernels runtime attention/tiles attention/forward attention/backward",
    "attention": "core expressions reference kernels runtime dense attention/validate attention/tiles attention/forward "
    "attention/backward attention/rowmaps",
    "layers": "core reference kernels runtime dense attention",
    "cuda/device": "",  # code that runs on a GPU
    "cuda": "core attention/validate cuda/device",
    "ranks": "core",  # attention of several processes, by attention's public interface
    "c": "core",  # the interface for C, over the public one
    "mpi": "ranks",
}
# The components of app/: those of qkv_app, and those of the program. Each folder in commands/ is a
# family of commands, which may include the shared one (shell) but no other; the demos of
# commands/about include the families that they show.
APP = {
    "text": "core",
    "files": "text",
    "picture": "files text",  # files/descriptor.h: PNG is drawn by a child process
    "page": "text picture",  # picture/palettes.h
    "translator/passes": "core layers",
    "translator/search": "core kernels runtime layers translator/passes",
    "translator/model": "files text translator/passes translator/search",
    "translator/data": "core",  # a model must not include the data that it learns
    "translator/optimiser": "core reference kernels",
    "translator/training": "core ranks text files translator/passes translator/model translator/data "
    "translator/optimiser",
    "commands/shell": "text files picture mpi",
    "commands/attend": "text commands/shell",
    "commands/words": "text files picture commands/shell",
    "commands/view": "text files picture page commands/shell",
    "commands/train": "ranks text files picture translator/model translator/data translator/training commands/shell",
    "commands/about": "text files commands/shell commands/words commands/train",
    "commands/main": "translator/training commands/shell commands/attend commands/words commands/view commands/train "
    "commands/about",
}
COMPONENTS = QKV | APP

# Places that may include only the public headers in include/ and their own files.
OUTSIDE = set("python examples bench".split())
# Components that may also include "bench/file.h": `qkv bench` runs the cases of bench/.
SEE_BENCH = {"commands/about"}

# Other headers, and the places that may include them: a third-party library is confined to as few
# components as possible. "*" is everywhere; "app" is every component of app/, "commands" every
# component of the program. The first row that matches counts.
HEADERS = [
    (r"hwy/.*", "kernels"),
    (r"(immintrin|x86intrin|cpuid|arm_neon)\.h", "kernels"),
    (r"nlohmann/.*", "files commands bench"),
    (r"zip\.h", "files"),
    (r"zlib\.h", "page"),
    (r"utf8proc\.h", "text"),
    (r"sentencepiece_(processor|trainer)\.h", "text"),
    (r"CLI/Version\.hpp", "commands/about"),
    (r"CLI/.*", "commands/shell commands/main bench"),
    (r"fmt/.*", "app bench"),
    (r"nanobind/.*", "python"),
    # The peers of the benchmarks, which are in a program of their own.
    (r"dnnl\.hpp|omp\.h|sleef\.h", "bench"),
    # Only runtime starts threads, but for one of python that computes while Python polls for
    # signals. Only programs print (iostream).
    (r"thread", "runtime python"),
    (r"cxxabi\.h", "python"),  # Python ends threads by unwinding them
    (r"mpi\.h", "mpi include/mpi"),
    (r"dlfcn\.h", "python cuda commands/shell"),  # finds OpenMP; the CUDA driver; MPI
    (r"pthread\.h", "python"),  # notices fork(): a child has no OpenMP workers
    (r"future|sched\.h", "runtime"),
    (r"iostream", "commands examples bench"),
    (r"spawn\.h", "picture"),
    (r"std(def|int|io|lib)\.h", "include examples"),  # headers and programs in C
    (r"(unistd|fcntl|poll|signal|termios|malloc)\.h|sys/[a-z]+\.h", "kernels runtime files picture commands bench"),
    (r"[a-z_]+", "*"),  # the standard library
]

# ---- the check ----------------------------------------------------------------------------------

SOURCES = {".h", ".c", ".cc", ".cpp", ".hpp", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)"|(\S.*))')


def top_of(place):
    return place.split("/")[0]


def component_of(path):
    """The folder of a file whose path is relative to src/ or app/; for files of commands/ itself
    "commands/main"."""
    folder = path.rpartition("/")[0]
    return "commands/main" if folder == "commands" else folder


def root_of(component):
    """The top folder of a component: app or src."""
    return "app" if component in APP else "src"


def place_of(path):
    """The component or place of a file: core, commands/shell, include/app, bench. Its path is
    relative to the root."""
    top = path.parts[0]
    if top in ("src", "app"):
        return component_of("/".join(path.parts[1:]))
    if top == "include":
        if path.parts[1:] == ("qkv", "mpi.h"):
            return "include/mpi"
        return "include/app" if path.parts[1:3] == ("qkv", "app") else "include"
    return top


def refuse_public(place, header):
    """Why a header of include/ may not be included here, or None."""
    known = place in APP or place == "include/app" or place in OUTSIDE
    return "qkv must not know qkv_app" if header.startswith("qkv/app/") and not known else None


def refuse_other(place, header):
    """Why a header that is not the project's may not be included here, or None."""
    for pattern, places in HEADERS:
        if re.fullmatch(pattern, header):
            allowed = set(places.split())
            if allowed & {"*", place, top_of(place)} or ("app" in allowed and place in APP):
                return None
            return f"<{header}> may be included only in: {places}"
    return f"<{header}> is in no row of the table"


def refuse_quoted(root, path, place, header):
    """Why a quoted header may not be included here, or None."""
    if place in SEE_BENCH and header.startswith("bench/"):
        return None if (root / header).is_file() else "no such file"
    if place in OUTSIDE:
        return None if (root / path.parent / header).is_file() else "only its own files and include/"
    if place.startswith("include"):
        return "public headers include <qkv/...> and the standard library only"
    other = component_of(header)
    if other not in COMPONENTS:
        return 'write "component/file.h"'
    if other != place and other not in COMPONENTS[place].split():
        return f"{place} must not know {other}"
    return None if (root / root_of(other) / header).is_file() else "no such file"


def refuse(root, path, match):
    """Why this #include is rejected, or None."""
    place = place_of(path)
    angled, quoted, computed = match.groups()
    if computed:
        # Highway includes the file itself again for each CPU target.
        return None if place == "kernels" else "computed #include"
    if quoted:
        return refuse_quoted(root, path, place, quoted)
    if angled.startswith("qkv/"):
        return refuse_public(place, angled)
    return refuse_other(place, angled)


def check(root):
    """(number of files, number of includes, violations as text) below a root."""
    files, includes, violations = 0, 0, []
    for top in ["include", "src", "app", *sorted(OUTSIDE)]:
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            path = file.relative_to(root)
            files += 1
            place = place_of(path)
            if top in ("src", "app") and (place not in COMPONENTS or root_of(place) != top):
                violations.append(f"{path}: {place} is not a component of the table")
                continue
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                includes += 1
                reason = refuse(root, path, match)
                if reason:
                    violations.append(f"{path}:{number}: {line.strip()}: {reason}")
    return files, includes, violations


# ---- the check's own test -----------------------------------------------------------------------

PLANTED = [
    ("src/core/a.cc", '#include "attention/plan.h"'),
    ("src/reference/a.cc", '#include "runtime/pool.h"'),
    ("src/runtime/a.cc", '#include "reference/dot.h"'),
    ("src/attention/a.cc", '#include "layers/linear.h"'),
    ("src/attention/a.cc", '#include "files/file.h"'),
    ("src/attention/a.cc", "#include <hwy/highway.h>"),
    ("src/attention/a.cc", "#include <thread>"),
    ("src/attention/a.cc", "#include <iostream>"),
    ("src/attention/a.cc", "#include <omp.h>"),
    ("src/attention/a.cc", '#include "plan.h"'),
    ("src/attention/a.cc", "#include SOME_HEADER"),
    ("src/attention/validate/a.cc", '#include "attention/tiles/block.h"'),
    ("src/attention/tiles/a.cc", '#include "attention/forward/forward.h"'),
    ("src/attention/forward/a.cc", '#include "attention/backward/backward.h"'),
    ("src/attention/backward/a.cc", '#include "attention/forward/forward.h"'),
    ("src/attention/forward/a.cc", '#include "attention/rowmaps/mapped_rows.h"'),
    ("src/attention/rowmaps/a.cc", '#include "attention/implementations.h"'),
    ("src/layers/a.cc", "#include <qkv/app/npy.h>"),
    ("src/layers/a.cc", "#include <dlfcn.h>"),
    ("src/attention/a.cc", '#include "cuda/driver.h"'),
    ("src/cuda/a.cc", '#include "attention/fused_paths.h"'),
    ("src/cuda/a.cc", '#include "kernels/target.h"'),
    ("src/cuda/a.cc", "#include <cuda.h>"),
    ("src/cuda/device/a.cu", '#include "cuda/driver.h"'),
    ("src/ranks/a.cc", "#include <mpi.h>"),
    ("include/qkv/ring.h", "#include <mpi.h>"),
    ("src/ranks/a.cc", '#include "attention/fused_paths.h"'),
    ("src/c/a.cc", '#include "attention/validate/b.h"'),
    ("src/core/a.cc", '#include "c/b.h"'),
    ("examples/a.c", '#include "c/b.h"'),
    ("app/translator/training/a.cc", '#include "mpi/mpi_ranks.h"'),
    ("app/commands/about/a.cc", '#include "cuda/driver.h"'),
    ("python/a.cc", '#include "cuda/driver.h"'),
    ("src/core/a.cc", "#include <boost/any.hpp>"),
    ("src/cellar/a.cc", "#include <vector>"),
    ("src/text/a.cc", "#include <vector>"),
    ("include/qkv/a.h", '#include "core/problem.h"'),
    ("include/qkv/a.h", "#include <fmt/format.h>"),
    ("include/qkv/a.h", "#include <qkv/app/npy.h>"),
    ("include/qkv/app/a.h", "#  include <zip.h>"),
    ("include/qkv/app/a.h", '#include "text/numbers.h"'),
    ("app/core/a.cc", "#include <vector>"),
    ("app/cellar/a.cc", "#include <vector>"),
    ("app/text/a.cc", '#include "files/file.h"'),
    ("app/text/a.cc", "#include <nlohmann/json.hpp>"),
    ("app/files/a.cc", '#include "translator/model/values.h"'),
    ("app/picture/a.cc", '#include "translator/optimiser/adam.h"'),
    ("app/page/a.cc", '#include "files/npy.h"'),
    ("app/picture/a.cc", '#include "page/map_code.h"'),
    ("app/files/a.cc", "#include <zlib.h>"),
    ("app/translator/passes/a.cc", '#include "translator/search/search.h"'),
    ("app/translator/search/a.cc", '#include "translator/model/model.h"'),
    ("app/translator/model/a.cc", '#include "translator/data/draws.h"'),
    ("app/translator/model/a.cc", '#include "translator/training/run.h"'),
    ("app/translator/data/a.cc", '#include "translator/model/values.h"'),
    ("app/translator/data/a.cc", '#include "layers/linear.h"'),
    ("app/translator/optimiser/a.cc", '#include "files/settings.h"'),
    ("app/commands/a.cc", '#include "core/problem.h"'),
    ("app/commands/a.cc", "#include <CLI/Version.hpp>"),
    ("app/commands/view/a.cc", '#include "core/npy.h"'),
    ("app/commands/shell/a.cc", '#include "commands/words/words.h"'),
    ("app/commands/shell/a.cc", '#include "bench/b.h"'),
    ("app/commands/attend/a.cc", '#include "commands/view/view.h"'),
    ("app/commands/train/a.cc", '#include "commands/about/demo.h"'),
    ("app/commands/words/a.cc", '#include "a.h"'),
    ("app/commands/words/a.cc", "#include <CLI/CLI.hpp>"),
    ("app/commands/cellar/a.cc", '#include "text/numbers.h"'),
    ("python/a.cc", '#include "text/numbers.h"'),
    ("python/a.cc", "#include <CLI/CLI.hpp>"),
    ("bench/a.cc", '#include "core/problem.h"'),
    ("bench/a.cc", "#include <thread>"),
]
INNOCENT = [
    ("src/core/problem.h", "#include <qkv/view.h>\n#include <vector>"),
    ("src/attention/a.cc", '#include "core/problem.h"\n#include <qkv/attention.h>'),
    ("src/attention/forward/a.h", '#include "core/problem.h"'),
    ("src/attention/b.cc", '#include "attention/forward/a.h"'),
    ("src/cuda/a.cc", '#include <dlfcn.h>\n#include "attention/validate/b.h"\n#include "cuda/device/a.h"'),
    ("src/attention/validate/b.h", "#include <qkv/attention.h>"),
    ("src/cuda/device/a.h", "#include <cstdint>"),
    ("src/mpi/a.cc", '#include <mpi.h>\n#include "ranks/b.h"'),
    ("src/ranks/b.h", "#include <qkv/attention.h>"),
    ("src/c/a.cc", '#include <qkv/c.h>\n#include "core/problem.h"'),
    ("examples/a.c", "#include <stdio.h>\n#include <qkv/c.h>"),
    ("src/cuda/device/a.cu", '#include "cuda/device/a.h"'),
    ("src/runtime/a.cc", '#include <thread>\n#include "core/problem.h"'),
    ("app/files/a.cc", "#include <qkv/app/npy.h>\n#include <fmt/format.h>\n#include <zip.h>"),
    ("include/qkv/app/b.h", "#include <qkv/view.h>\n#include <qkv/app/a.h>"),
    ("app/translator/data/a.cc", '#include "translator/data/b.h"\n#include "core/problem.h"'),
    ("app/translator/data/b.h", "#include <qkv/view.h>\n#include <fmt/format.h>"),
    ("app/text/numbers.h", "#include <qkv/view.h>"),
    ("app/files/c.cc", '#include "text/numbers.h"'),
    ("app/commands/a.cc", '#include "commands/shell/b.h"\n#include <CLI/CLI.hpp>\n#include <qkv/app/npy.h>'),
    ("app/commands/shell/b.h", "#include <qkv/qkv.h>\n#include <iostream>"),
    ("app/commands/view/c.cc", '#include "text/numbers.h"\n#include "commands/shell/b.h"'),
    ("app/commands/words/c.h", '#include "commands/shell/b.h"\n#include <nlohmann/json.hpp>'),
    ("bench/b.h", "#include <qkv/qkv.h>"),
    ("app/commands/about/c.cc", '#include "commands/words/c.h"\n#include "bench/b.h"'),
]


def violations_of(files):
    """The violations in a tree of just these (path, text) files."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for path, text in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n", encoding="utf-8")
        return check(root)[2]


def home_of(header):
    """The path, below the root, of a header that a file includes in quotes."""
    return header if top_of(header) == "bench" else f"{root_of(component_of(header))}/{header}"


def is_found(path, text):
    """Whether a planted violation is found, also if the header it names exists."""
    quoted = re.findall(r'"([a-z]+/.*)"', text)
    return len(violations_of([(path, text), *((home_of(header), "") for header in quoted)])) == 1


def self_test():
    missed = [planted for planted in PLANTED if not is_found(*planted)]
    blamed = violations_of(INNOCENT)
    for path, text in missed:
        print(f"self-test: not found: {path}: {text}")
    for violation in blamed:
        print(f"self-test: innocent, yet blamed: {violation}")
    print(f"self-test: {len(PLANTED) - len(missed)} of {len(PLANTED)} planted violations found")
    return 1 if missed or blamed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
    files, includes, violations = check(root)
    for violation in violations:
        print(violation)
    print(f"{files} files, {includes} includes, {len(violations)} violations")
    return 1 if violations or not includes else 0


if __name__ == "__main__":
    sys.exit(main())
