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

# Each component (folder) of src/ and the lower components that it may include; every component may include itself.
# A component within a component is separate.
COMPONENTS = {
    # qkv
    "core": "",
    "reference": "core",
    "kernels": "core",
    "runtime": "core",
    "dense": "core reference kernels runtime",
    "attention/validate": "core",
    "attention/fused": "core kernels runtime",
    "attention/rowmaps": "core reference kernels runtime attention/fused",
    "backend/cpu": "core reference kernels runtime dense attention/fused attention/rowmaps",
    "attention": "core reference kernels runtime dense attention/validate attention/fused "
    "attention/rowmaps backend/cpu",
    "layers": "core reference kernels runtime dense attention",
    # qkv_app
    "text": "core",
    "io": "core text",
    "picture": "core io text",  # io/descriptor.h: PNG is drawn by a child process
    "page": "core",
    "train": "core reference kernels runtime dense attention layers text",
    "models": "core reference kernels runtime dense attention layers text io train",
    "models/tasks": "core",  # training tasks; a model must not include them
}
APP_COMPONENTS = set("text io picture page train models models/tasks".split())

# The same for the program, tools/qkv/: a family of commands may include the shared component, but no
# other family, except where demos show one.
PROGRAM_COMPONENTS = {
    "shell": "",
    "attend": "shell",
    "words": "shell",
    "view": "shell",
    "train": "shell",
    "about": "shell words train",
    "main": "shell attend words view train about",  # the files in tools/qkv/ itself
}

# Headers of src/ that the program includes beside those of include/: nobody else outside src/ needs
# what is in them. Functions and classes in them are exported, as those in include/ are.
PROGRAM_SEES = set(
    "text/choice.h text/corpus_score.h text/hold_out.h text/near_words.h text/numbers.h "
    "text/sentences.h text/special_tokens.h text/spelling.h text/text.h io/file_kind.h "
    "io/parallel_text.h io/text_file.h models/model_average.h "
    "models/model_names.h models/training_curve.h models/translation_run.h models/tasks/tasks.h "
    "picture/chart.h picture/columns.h".split()
)

# Places that see the promise in include/ and, but for those, nothing of src/.
OUTSIDE = set("tools python examples bench".split())
# The program `qkv` runs the cases of bench/, as "bench/file.h".
SEE_BENCH = {"tools/about"}

# What else may be included, and where: each third-party library is confined to one component.
# "*" is everywhere; "app" is every component of qkv_app, "tools" every component of the program.
HEADERS = [
    (r"hwy/.*", "kernels"),
    (r"(immintrin|x86intrin|cpuid|arm_neon)\.h", "kernels"),
    (r"nlohmann/.*", "io tools bench"),
    (r"zip\.h", "io"),
    (r"utf8proc\.h", "text"),
    (r"sentencepiece_(processor|trainer)\.h", "text"),
    (r"zlib\.h", "page"),
    (r"CLI/Version\.hpp", "tools/about"),
    (r"CLI/.*", "tools/shell tools/main bench"),
    (r"fmt/.*", "app tools bench"),
    (r"nanobind/.*", "python"),
    # Peers in the benchmarks, in a program of their own.
    (r"dnnl\.hpp|omp\.h|sleef\.h", "bench"),
    # Only one component starts threads, except the one where Python waits for signals; only
    # programs print.
    (r"thread", "runtime python"),
    (r"cxxabi\.h", "python"),  # Python ends threads by unwinding them
    (r"dlfcn\.h|pthread\.h", "python"),  # workers of a library that is there; they end by fork()
    (r"future|sched\.h", "runtime"),
    (r"iostream", "tools examples bench"),
    (r"spawn\.h", "picture"),
    (r"(unistd|fcntl|poll|signal|termios)\.h|sys/[a-z]+\.h", "runtime io picture tools bench"),
    (r"[a-z_]+", "*"),  # the standard library
]

# ---- the check ----------------------------------------------------------------------------------

SOURCES = {".h", ".cc", ".cpp", ".hpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)"|(\S.*))')


def top_of(place):
    return place.split("/")[0]


def component_of(header, components):
    """The component of "component/file.h" or "component/component/file.h"."""
    inner = "/".join(header.split("/")[:2])
    return inner if inner in components else top_of(header)


def place_of(path):
    """The component or place of a file, relative to the root: core, models/tasks, tools/shell, include."""
    top = path.parts[0]
    if top == "src":
        return component_of("/".join(path.parts[1:]), COMPONENTS)
    if top == "tools":
        return f"tools/{path.parts[2] if len(path.parts) > 3 else 'main'}"
    if top == "include":
        return "include/app" if path.parts[1:3] == ("qkv", "app") else "include"
    return top


def table_of(place):
    """The table in which a component is looked up, its name there, and the folder of those components."""
    if top_of(place) == "tools":
        return PROGRAM_COMPONENTS, place.removeprefix("tools/"), "tools/qkv"
    return COMPONENTS, place, "src"


def refuse_public(place, header):
    """Why a header of include/ may not be included here, or None."""
    if header.startswith("qkv/app/"):
        if place not in APP_COMPONENTS | {"include/app"} and top_of(place) not in OUTSIDE:
            return "qkv must not know qkv_app"
    return None


def refuse_other(place, header):
    """Why a header that is not the project's may not be included here, or None."""
    for pattern, places in HEADERS:
        if re.fullmatch(pattern, header):
            allowed = set(places.split())
            if allowed & {"*", place, top_of(place)} or ("app" in allowed and place in APP_COMPONENTS):
                return None
            return f"<{header}> belongs to: {places}"
    return f"<{header}> is in no row of the table"


def refuse_quoted(root, path, place, header):
    """Why a quoted header may not be included here, or None."""
    if place in SEE_BENCH and header.startswith("bench/"):
        return None if (root / header).is_file() else "no such file"
    if place in OUTSIDE:
        return None if (root / path.parent / header).is_file() else "only its own files and include/"
    if place.startswith("include"):
        return "public headers include <qkv/...> and the standard library only"
    if top_of(place) == "tools" and header in PROGRAM_SEES:
        return None if (root / "src" / header).is_file() else "no such file"
    components, component, folder = table_of(place)
    other = component_of(header, components)
    if other not in components:
        return 'write "component/file.h"'
    if other != component and other not in components[component].split():
        return f"{component} must not know {other}"
    return None if (root / folder / header).is_file() else "no such file"


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
    """All files, includes and violations (as text) below a root."""
    files, includes, violations = 0, 0, []
    for top in ["include", "src", *sorted(OUTSIDE)]:
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SOURCES:
                continue
            path = file.relative_to(root)
            files += 1
            components, component, _ = table_of(place_of(path))
            if top in ("src", "tools") and component not in components:
                violations.append(f"{path}: {component} is not a component of the table")
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
    ("src/attention/a.cc", "#include <hwy/highway.h>"),
    ("src/attention/a.cc", "#include <thread>"),
    ("src/attention/a.cc", "#include <iostream>"),
    ("src/attention/a.cc", '#include "plan.h"'),
    ("src/attention/a.cc", "#include SOME_HEADER"),
    ("src/layers/a.cc", "#include <qkv/app/npy.h>"),
    ("src/text/a.cc", '#include "io/file.h"'),
    ("src/io/a.cc", '#include "models/values.h"'),
    ("src/train/a.cc", '#include "io/settings.h"'),
    ("src/picture/a.cc", '#include "train/adam.h"'),
    ("src/text/a.cc", "#include <nlohmann/json.hpp>"),
    ("src/core/a.cc", "#include <boost/any.hpp>"),
    ("src/cellar/a.cc", "#include <vector>"),
    ("include/qkv/a.h", '#include "core/problem.h"'),
    ("include/qkv/a.h", "#include <fmt/format.h>"),
    ("include/qkv/a.h", "#include <qkv/app/npy.h>"),
    ("include/qkv/app/a.h", "#  include <zip.h>"),
    ("src/models/a.cc", '#include "models/tasks/draws.h"'),
    ("src/models/tasks/a.cc", '#include "models/values.h"'),
    ("src/models/tasks/a.cc", '#include "layers/linear.h"'),
    ("tools/qkv/a.cc", '#include "core/problem.h"'),
    ("tools/qkv/view/a.cc", '#include "io/npy.h"'),
    ("python/a.cc", '#include "text/numbers.h"'),
    ("include/qkv/app/a.h", '#include "text/numbers.h"'),
    ("tools/qkv/a.cc", "#include <CLI/Version.hpp>"),
    ("tools/qkv/shell/a.cc", '#include "words/words.h"'),
    ("tools/qkv/shell/a.cc", '#include "bench/b.h"'),
    ("tools/qkv/attend/a.cc", '#include "view/view.h"'),
    ("tools/qkv/train/a.cc", '#include "about/demo.h"'),
    ("tools/qkv/words/a.cc", '#include "a.h"'),
    ("tools/qkv/words/a.cc", "#include <CLI/CLI.hpp>"),
    ("tools/qkv/cellar/a.cc", "#include <vector>"),
    ("python/a.cc", "#include <CLI/CLI.hpp>"),
    ("bench/a.cc", '#include "core/problem.h"'),
    ("bench/a.cc", "#include <thread>"),
    ("src/attention/a.cc", "#include <omp.h>"),
    ("src/attention/validate/a.cc", '#include "attention/fused/block.h"'),
    ("src/attention/fused/a.cc", '#include "attention/rowmaps/mapped_rows.h"'),
    ("src/attention/rowmaps/a.cc", '#include "backend/cpu/implementations.h"'),
    ("src/backend/cpu/a.cc", '#include "attention/validate/bind.h"'),
    ("src/backend/gpu/a.cc", "#include <vector>"),
]
INNOCENT = [
    ("src/core/problem.h", "#include <qkv/view.h>\n#include <vector>"),
    ("src/attention/a.cc", '#include "core/problem.h"\n#include <qkv/attention.h>'),
    ("src/runtime/a.cc", '#include <thread>\n#include "core/problem.h"'),
    ("src/io/a.cc", "#include <qkv/app/npy.h>\n#include <fmt/format.h>\n#include <zip.h>"),
    ("include/qkv/app/b.h", "#include <qkv/view.h>\n#include <qkv/app/a.h>"),
    ("src/models/tasks/a.cc", '#include "models/tasks/b.h"\n#include "core/problem.h"'),
    ("src/models/tasks/b.h", "#include <qkv/view.h>\n#include <fmt/format.h>"),
    ("tools/qkv/a.cc", '#include "shell/b.h"\n#include <CLI/CLI.hpp>\n#include <qkv/app/npy.h>'),
    ("tools/qkv/shell/b.h", "#include <qkv/qkv.h>\n#include <iostream>"),
    ("src/text/numbers.h", "#include <qkv/view.h>"),
    ("src/io/c.cc", '#include "text/numbers.h"'),
    ("tools/qkv/view/c.cc", '#include "text/numbers.h"\n#include "shell/b.h"'),
    ("tools/qkv/words/c.h", '#include "shell/b.h"\n#include <nlohmann/json.hpp>'),
    ("bench/b.h", "#include <qkv/qkv.h>"),
    ("tools/qkv/about/c.cc", '#include "words/c.h"\n#include "bench/b.h"'),
]


def violations_of(files):
    """The violations in a tree of just these (path, text) files."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for path, text in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n", encoding="utf-8")
        return check(root)[2]


def home_of(header, path):
    """The path of the header that a file at this path names."""
    if top_of(header) == "bench":
        return header
    in_program = path.startswith("tools/") and top_of(header) in PROGRAM_COMPONENTS
    return f"{'tools/qkv' if in_program else 'src'}/{header}"


def is_found(path, text):
    """Whether a planted violation is found, also if the header it names exists."""
    quoted = re.findall(r'"([a-z]+/.*)"', text)
    return len(violations_of([(path, text), *((home_of(header, path), "") for header in quoted)])) == 1


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
