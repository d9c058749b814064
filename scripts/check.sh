#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/check.sh [STEP...]
# One step: runs it; its last line says what was counted, and a count of zero is a failure.
# Several, or none for all: runs each, and ends with one table.
set -euo pipefail
source "$(dirname "$0")/env.sh"

readonly all_steps="format rules spdx length figures python headers gcc docs wheel clang lint shared asan tsan"
readonly jobs=$CMAKE_BUILD_PARALLEL_LEVEL

# ---- what the steps share -----------------------------------------------------------------------

# "N things", and failure for none.
counted() {
  echo "$1 ${*:2}"
  (($1 > 0))
}

# The project's files, one a line: everything but what was built, fetched or given.
project_files() {
  find . \( -path ./.git -o -path ./build -o -path "./.venv*" -o -path ./dist -o -name __pycache__ \) -prune \
    -o -type f ! -name LICENSE -print |
    grep -vE '\.(npy|npz|safetensors|png|svg|html|tsv|vec|pyc)$|/data/|/bench/results/' | sort
}

cpp_files() { project_files | grep -E '\.(h|cc)$'; }

# What a preset compiles, one a line, relative to the root.
compiled_files() {
  sed -nE "s|^ *\"file\": \"$PWD/(.*)\",?\$|\1|p" "build/$1/compile_commands.json" | sort -u
}

# ---- the text of the files ----------------------------------------------------------------------

step_format() {
  local file count=0 failed=0
  while read -r file; do
    clang-format-16 --dry-run -Werror "$file" || failed=$((failed + 1))
    count=$((count + 1))
  done < <(cpp_files)
  counted "$count" "files, $failed that clang-format would change"
  ((failed == 0))
}

step_rules() {
  .venv/bin/python scripts/check/include_rules.py --self-test
  .venv/bin/python scripts/check/include_rules.py
}

# The first line, the second after #!, the third in JSON, which has no comments.
step_spdx() {
  local file line count=0 failed=0
  while read -r file; do
    line=1
    if [[ $file == *.json ]]; then line=3; elif [[ $(head -c 2 "$file") == '#!' ]]; then line=2; fi
    if ! sed -n "${line}p" "$file" | grep -q 'SPDX-License-Identifier: Apache-2\.0'; then
      echo "$file:$line: no SPDX-License-Identifier: Apache-2.0"
      failed=$((failed + 1))
    fi
    count=$((count + 1))
  done < <(project_files)
  counted "$count" "files, $failed without"
  ((failed == 0))
}

step_length() {
  local file lines limit count=0 failed=0
  while read -r file; do
    limit=500
    [[ $file != ./include/* ]] || limit=199
    lines=$(wc -l <"$file")
    if ((lines > limit)); then
      echo "$file: $lines lines, at most $limit"
      failed=$((failed + 1))
    fi
    count=$((count + 1))
  done < <(project_files)
  counted "$count" "files, $failed too long"
  ((failed == 0))
}

# The documents against bench/results/; the last line counts what was compared.
step_figures() {
  .venv/bin/python scripts/check/figures.py --self-test
  .venv/bin/python scripts/check/figures.py
}

# Format and lint of the package, its tests, its examples.
step_python() {
  scripts/python_env.sh
  .venv-python/bin/ruff format --quiet --diff
  .venv-python/bin/ruff check --quiet
  counted "$(.venv-python/bin/ruff check --show-files | wc -l)" files of Python
}

# ---- compilers ----------------------------------------------------------------------------------

# Each public header alone, twice (its guard), with nothing but include/.
step_headers() {
  local count
  count=$(find include -name '*.h' | wc -l)
  for compiler in g++ clang++-16; do
    (cd include && find . -name '*.h' -printf '%P\n') | sort |
      xargs -P "$jobs" -I{} bash -c "
        printf '#include <%s>\n#include <%s>\n' {} {} |
        $compiler -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -Iinclude -fsyntax-only -xc++ -"
  done
  counted "$count" "headers, with g++ and clang++-16"
}

# The presets make every warning an error. A source that no list names would be no source.
step_gcc() {
  local forgotten
  scripts/build.sh release
  forgotten=$(comm -23 \
    <(find src tools tests bench -name '*.cc' ! -path 'tests/consumers/*' ! -path 'bench/peers/*' |
      sort) \
    <(compiled_files release))
  if [ -n "$forgotten" ]; then
    echo "in no CMakeLists.txt: $forgotten"
    return 1
  fi
  counted "$(compiled_files release | wc -l)" files compiled without a warning
}

# Every block of the documents; the last line counts them.
step_docs() {
  [ -x build/release/bin/qkv ] || scripts/build.sh release
  scripts/python_package.sh
  .venv/bin/python scripts/check/docs_blocks.py build/release
}

# The Python package alone on a machine; the last line counts its objects.
step_wheel() {
  scripts/wheel.sh
  scripts/check/wheel.sh
}

step_clang() {
  scripts/build.sh clang
  scripts/test.sh clang
}

# Paths through calls and templates to their ends would be half of what linting takes.
readonly analyzer=(--extra-arg=-Xclang --extra-arg=-analyzer-config
  --extra-arg=-Xclang --extra-arg=mode=shallow)

# What a build compiles of some folders, by its flags; gcc's own are no mistake. Adds to `linted`.
lint_build() {
  local folders=$2 files
  mapfile -t files < <(compiled_files "$1" | grep -E "^($folders)/")
  ((linted += ${#files[@]}))
  printf '%s\n' "${files[@]}" |
    xargs -P "$jobs" -n 1 clang-tidy-16 -p "build/$1" --quiet \
      --extra-arg=-Wno-unknown-warning-option "${analyzer[@]}" 2>&1 |
    sed -E '/^[0-9]+ warnings?( and [0-9]+ errors?)? generated\.$/d'
}

# The Python package's files as scripts/python_package.sh compiled them, where it could.
step_lint() {
  local linted=0
  cmake --preset clang -DQKV_TESTS=ON
  lint_build clang 'src|tools|bench'
  if python_env_is_ready; then
    [ -f build/python/compile_commands.json ] || scripts/python_package.sh
    lint_build python python
  fi
  counted "$linted" files
}

# ---- other builds -------------------------------------------------------------------------------

step_shared() {
  local count=0
  scripts/build.sh shared all
  for kind in find_package pkg_config; do
    tests/consumers/run.sh build/shared "$kind"
    count=$((count + 1))
  done
  counted "$count" users of the shared library
}

step_asan() {
  scripts/build.sh asan
  scripts/test.sh asan
}

# The library alone (QKV_APP=OFF): only it starts threads, and it has to build without the rest.
# gcc 12's thread sanitizer knows no address space as random as newer kernels make it; may go with
# gcc 14.
step_tsan() {
  local fixed_addresses=()
  ! setarch -R true 2>/dev/null || fixed_addresses=(setarch -R)
  scripts/build.sh tsan
  "${fixed_addresses[@]}" scripts/test.sh tsan
}

# ---- one step, or the table ---------------------------------------------------------------------

run_all() {
  local step log started verdict outcome failed=0 table=""
  mkdir -p build/check
  for step in "$@"; do
    printf '\n== %s\n' "$step"
    log=build/check/$step.log
    started=$SECONDS
    if scripts/check.sh "$step" 2>&1 | tee "$log"; then
      verdict=ok outcome=$(tail -n 1 "$log")
    else
      verdict=FAILED outcome="see $log"
      failed=$((failed + 1))
    fi
    table+=$(printf '%-8s %-6s %5d s  %s' "$step" "$verdict" $((SECONDS - started)) "$outcome")$'\n'
  done
  printf '\n%s%d steps, %d failed\n' "$table" $# "$failed"
  ((failed == 0))
}

for step in "$@"; do
  [[ " $all_steps " == *" $step "* ]] || {
    echo "check.sh: no step '$step'; there are: $all_steps" >&2
    exit 2
  }
done
case $# in
  0) run_all $all_steps ;;
  1) "step_$1" ;;
  *) run_all "$@" ;;
esac
