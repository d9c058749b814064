#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over all sources, and finds names that a file defines but never uses.

usage: lint.py              check the sources of this checkout
       lint.py --analyze    also run clang's analyzer, which follows paths and doubles the time
       lint.py --self-test  test the search for unused names

clang-tidy spends most of its time on headers, so it reads the files of a component at once, as
QKV_UNITY joins them. Files of python/ are linted if scripts/python_package.sh has configured them.
The last line counts the files.
Exit 1 on a finding, and for a file that no build lists.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# clang 16's analyzer follows paths through included files only where the path of the file that
# includes them has the word "UnifiedSource" (AnalysisManager::isInCodeFile).
BUILD = ROOT / "build" / "UnifiedSource"
PYTHON_BUILD = ROOT / "build" / "python"

# Files that need other compilers or libraries than those of the linted builds.
NOT_LINTED = re.compile(r"bench/peers/.*|python/src/files_absent\.cc")

CLANG_TIDY = [
    "clang-tidy-16",
    "--quiet",
    "--extra-arg=-Wno-unknown-warning-option",  # the Python package's build is gcc's
]
# mode=shallow: following paths through calls and templates to their ends would double the time.
ANALYZE = ["--extra-arg=-Xclang", "--extra-arg=-analyzer-config",
           "--extra-arg=-Xclang", "--extra-arg=mode=shallow"]
DO_NOT_ANALYZE = ["--checks=-clang-analyzer-*"]

# ---- what is linted -----------------------------------------------------------------------------


def configure():
    command = ["cmake", "--preset", "clang", "-B", BUILD, "-DQKV_TESTS=OFF", "-DQKV_UNITY=ON"]
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if result.returncode != 0:
        sys.exit(result.stdout + result.stderr)


def commands_of(build):
    """The entries of a build's compile_commands.json; none if it is not configured."""
    file = build / "compile_commands.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def sources_of(file):
    """The project's sources that a compiled file consists of, relative to the root."""
    files = [file]
    if file.suffix == ".cxx":  # made by CMake
        files = re.findall(r'^#include "(.*)"$', file.read_text(encoding="utf-8"), re.MULTILINE)
    inside = [pathlib.Path(name).relative_to(ROOT) for name in files if ROOT in pathlib.Path(name).parents]
    return [path for path in inside if path.parts[0] in ("src", "app", "bench", "python")]


def python_room():
    """Makes a folder for the files of python/, and returns it. It is in BUILD, so that the analyzer
    looks into joined files, and has copies of these and a compile_commands.json."""
    folder = BUILD / "python"
    folder.mkdir(exist_ok=True)
    entries = []
    for entry in commands_of(PYTHON_BUILD):
        file = pathlib.Path(entry["file"])
        if not any(path.parts[0] == "python" for path in sources_of(file)):
            continue
        if file.suffix == ".cxx":
            joined = folder / file.name
            joined.write_bytes(file.read_bytes())
            entry = {key: value.replace(str(file), str(joined)) for key, value in entry.items()}
        entries.append(entry)
    (folder / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
    return folder


def units():
    """(build, compiled file, its sources) of everything linted, largest first."""
    found = []
    for build in (BUILD, python_room()):
        for entry in commands_of(build):
            file = pathlib.Path(entry["file"])
            found.append((build, file, sources_of(file)))
    return sorted(found, key=lambda unit: -sum((ROOT / path).stat().st_size for path in unit[2]))


def missing(linted):
    """Sources that no build lists."""
    python = any(path.parts[0] == "python" for path in linted)
    folders = ["src", "app", "bench"] + (["python/src"] if python else [])
    files = (file.relative_to(ROOT) for folder in folders for file in (ROOT / folder).rglob("*.cc"))
    return sorted(file for file in set(files) - linted if not NOT_LINTED.fullmatch(str(file)))


# ---- clang-tidy ---------------------------------------------------------------------------------

FINDING = re.compile(r"^(?=/.*:\d+:\d+: (?:warning|error): )", re.MULTILINE)


def tidy(unit, analyze):
    """clang-tidy's findings in one compiled file, a text for each."""
    build, file, _ = unit
    more = ANALYZE if analyze else DO_NOT_ANALYZE
    result = subprocess.run([*CLANG_TIDY, *more, "-p", build, file], cwd=ROOT, text=True, capture_output=True)
    findings = [text for text in FINDING.split(result.stdout) if text.strip()]
    if result.returncode != 0 and not findings:
        findings = [f"{file}: clang-tidy failed\n{result.stderr}"]
    return [text.replace(f"{ROOT}/", "") for text in findings]


# ---- unused names -------------------------------------------------------------------------------

# Compilers and clang-tidy report unused names only in the compiled file, not in files it includes.
NAMES = re.compile(
    r"^ *using +(?:typename +)?(?:\w*::)*(?:\w+::)+(\w+);"
    r"|^using +(\w+) *="
    r"|^ *namespace +(\w+) *="
    r"|^(?:static +|inline +)?(?:const|constexpr) [^=({;]*\b(\w+)(?:\[\w*\])* *[={]",
    re.MULTILINE)
NO_CODE = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def unused_names(text):
    """(line, name) of each name that a source defines for itself and never uses."""
    code = NO_CODE.sub(lambda match: "\n" * match.group().count("\n"), text)
    for match in NAMES.finditer(code):
        name = next(group for group in match.groups() if group)
        rest = code[:match.start()] + code[match.end():]
        if not re.search(rf"\b{name}\b", rest):
            yield code.count("\n", 0, match.start()) + 1, name


def unused_in(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    return [f"{path}:{line}: error: {name} is not used in this file" for line, name in unused_names(text)]


UNUSED = """\
namespace qkv {
using core::text;
  using std::swap;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr Index kMost = 3;  // kMost, and no other
constexpr std::string_view kNames[] = {"kMost", "text"};
const Index largest = 1'000;
}
"""
USED = """\
using core::text;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr Index kMost = 3;
constexpr const char* kUrl = R"(http://a)";
Json f(const fs::path& p) { return text(p, kMost, kUrl); }
struct Hash {
  using is_transparent = void;
};
"""


def self_test():
    found = [line for line, _ in unused_names(UNUSED)]
    wanted = [2, 3, 4, 5, 6, 7, 8]
    blamed = list(unused_names(USED))
    print(f"self-test: {len(set(found) & set(wanted))} of {len(wanted)} unused names found")
    for line, name in blamed:
        print(f"self-test: used, yet blamed: {name} in line {line}")
    return 0 if found == wanted and not blamed else 1


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:] not in ([], ["--analyze"]):
        print(__doc__, file=sys.stderr)
        return 2
    analyze = bool(sys.argv[1:])
    configure()
    all_units = units()
    linted = {path for unit in all_units for path in unit[2]}
    if not any(path.parts[0] == "python" for path in linted):
        print("python: not built, so not linted")
    findings = [f"{path}: error: in no CMakeLists.txt" for path in missing(linted)]
    for path in sorted(linted):
        findings += unused_in(path)
    jobs = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", 2))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(lambda unit: tidy(unit, analyze), all_units):
            findings += found
    for text in dict.fromkeys(findings):  # a header's findings are repeated for each component
        print(text.rstrip())
    print(f"{len(linted)} files")
    return 1 if findings or not linted else 0


if __name__ == "__main__":
    sys.exit(main())
