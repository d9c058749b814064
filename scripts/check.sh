#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/check.sh [--quick | STEP...]
# With one STEP: runs it. The last line that it prints has a count; a count of 0 is a failure,
# unless the step says that it skipped what it counts.
# With several: runs them one after the other and prints a table at the end.
# Without a STEP: runs those of all_steps and writes their table to docs/last-check.txt. A step that
# has passed there on the same files is not run again, so that another machine can continue a check.
# --quick: runs the steps that a change must pass besides `make test`, as .ci/ does. The lint is not
# among them, since it takes as long as they do; `make check` has it as `analyze`.
set -euo pipefail
source "$(dirname "$0")/env.sh"

readonly quick_steps="format rules spdx rooms python headers sanitize"
# The steps of a whole check, the short ones first.
readonly all_steps="format rules spdx rooms figures python headers docs site wheel recipes shared oldest_torch cuda fuzz apart analyze tsan clang asan"
readonly last_check=docs/last-check.txt
resume="" # "yes": steps that have passed on the same files are not run again
readonly jobs=$CMAKE_BUILD_PARALLEL_LEVEL

# ---- what the steps share -----------------------------------------------------------------------

# Prints "N things". Fails if N is 0.
counted() {
  echo "$1 ${*:2}"
  (($1 > 0))
}

# Prints the names of the project's text files that must have a licence line. A new file is among
# them from `git add` on.
project_files() {
  git ls-files | grep -vE '(^|/)(LICENSE|NOTICE)$|\.(npy|npz|safetensors|png|svg|html|tsv|vec)$|^bench/results/' |
    sort
}

cpp_files() { project_files | grep -E '\.(h|c|cc|cu)$'; }

# Prints the names of the files that a preset compiles, relative to the root.
compiled_files() {
  awk -F'"' -v root="$PWD/" '$2 == "file" && index($4, root) == 1 { print substr($4, length(root) + 1) }' \
    "build/$1/compile_commands.json" | sort -u
}

# ---- the text of the files ----------------------------------------------------------------------

step_format() {
  cpp_files | xargs -d '\n' -P "$jobs" -n 40 clang-format-16 --dry-run -Werror
  counted "$(cpp_files | wc -l)" files of C++
}

# Checks the includes, the port for vcpkg, and that the patches of tests/recipes apply.
step_rules() {
  local patch
  cmake -P scripts/check/vcpkg_port.cmake
  for patch in tests/recipes/*.patch; do git apply --check "$patch"; done
  .venv/bin/python scripts/check/include_rules.py --self-test
  .venv/bin/python scripts/check/include_rules.py
}

# Checks that each file has the licence in its first line; with #! in the second; in JSON, which has
# no comments, in the third; in notebooks in the first line of the first cell.
step_spdx() {
  local file line count=0 failed=0
  while read -r file; do
    line=1
    if [[ $file == *.json ]]; then line=3; elif [[ $file == *.ipynb ]]; then line=8; elif [[ $(head -c 2 "$file") == '#!' ]]; then line=2; fi
    if ! sed -n "${line}p" "$file" | grep -q 'SPDX-License-Identifier: Apache-2\.0'; then
      echo "$file:$line: no SPDX-License-Identifier: Apache-2.0"
      failed=$((failed + 1))
    fi
    count=$((count + 1))
  done < <(project_files)
  counted "$count" "files, $failed without"
  ((failed == 0))
}

# Compares the table of docs/contributing/building.md with the numbers of lines in the sources.
step_rooms() { .venv/bin/python scripts/rooms.py --check; }

# Compares the figures in the documents with bench/results/; the last line counts them.
step_figures() {
  .venv/bin/python scripts/check/figures.py --self-test
  .venv/bin/python scripts/check/figures.py
}

# Checks format and lint of the Python package, its tests, its examples and bench/.
step_python() {
  scripts/python_env.sh
  .venv-python/bin/ruff format --quiet --diff
  .venv-python/bin/ruff check --quiet
  counted "$(.venv-python/bin/ruff check --show-files | wc -l)" files of Python
}

# ---- compilers ----------------------------------------------------------------------------------

# Compiles each public header alone, included twice to test its guard, with only include/ on the
# path; qkv/c.h also as C11 and as C++11.
step_headers() {
  local headers mpi="" without=""
  if pkg-config --exists mpi; then
    mpi="-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(pkg-config --cflags mpi | sed 's/-I/-isystem/g')"
  else
    without=qkv/mpi.h
    echo "there is no MPI to compile $without with"
  fi
  headers=$(cd include && find . -name '*.h' -printf '%P\n' | sort | grep -vx "$without")
  xargs -P "$jobs" -I{} bash -c "
      printf '#include <%s>\n#include <%s>\n' {} {} |
      g++ -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -Iinclude $mpi -fsyntax-only -xc++ -" <<<"$headers"
  local compiler
  for compiler in "gcc -std=c11 -xc" "g++ -std=c++11 -xc++"; do
    # shellcheck disable=SC2086  # a command
    printf '#include <qkv/c.h>\n#include <qkv/c.h>\n' |
      ${compiler% *} -pedantic -Wall -Wextra -Wshadow -Wundef -Werror -Iinclude -fsyntax-only ${compiler##* } -
  done
  counted "$(wc -l <<<"$headers")" headers
}

# Compiles each file alone, without the precompiled header, since a unity build does not notice a
# missing #include. Finds sources that no CMakeLists.txt names. Runs all tests with all of their
# repetitions.
step_apart() {
  local forgotten
  scripts/build.sh apart
  forgotten=$(comm -23 \
    <(find src app tests bench -name '*.cc' ! -path 'tests/consumers/*' ! -path 'tests/recipes/*' \
      ! -path 'tests/wrong_programs/*' ! -path 'bench/peers/*' |
      sort) \
    <(compiled_files apart))
  if [ -n "$forgotten" ]; then
    echo "in no CMakeLists.txt: $forgotten"
    return 1
  fi
  echo "$(compiled_files apart | wc -l) files compiled without a warning"
  QKV_TEST_SCALE=100 scripts/test.sh apart
}

# Makes the additions that docs/contributing/recipes.md describes in a copy; the last line counts
# them.
step_recipes() { scripts/check/recipes.sh; }

# Runs every block of the documents, with C++ blocks compiled separately; the last line counts them.
step_docs() {
  scripts/build.sh release qkv_tool
  scripts/python_package.sh
  .venv/bin/python scripts/check/docs_blocks.py --separately build/release
}

# Builds the site of the documents, with warnings as errors; the last line counts its pages, or says
# that they are skipped, because Doxygen, PyTorch or a package index is missing (status 77).
step_site() {
  local status=0
  scripts/python_package.sh
  scripts/site.sh || status=$?
  ((status != 77)) || { echo "0 pages, all skipped: see above" && return 0; }
  return "$status"
}

# Makes the wheel of the Python package and tests it outside of its build environment; the last line
# counts the wheel's objects: its program and its shared libraries.
step_wheel() {
  scripts/wheel.sh
  scripts/check/wheel.sh
}

# Tries the wheels and the Debian package in bare roots of Debian's releases; the last line counts
# what was tried. Machines that cannot make roots skip it. It is not among all_steps.
step_roots() {
  scripts/deb.sh
  scripts/deb/try.sh
  scripts/wheel.sh
  scripts/wheel/try.sh
}

# Builds the package of packaging/conan and a user of it; the last line counts the packages. It is
# not among all_steps.
step_conan() { scripts/check/conan.sh; }

# Runs the tests of qkv.torch with the oldest PyTorch; the last line counts them.
step_oldest_torch() { scripts/check/oldest_torch.sh; }

# Compiles the CUDA kernels, runs their tests (those that need a GPU only where there is one), and
# checks the kernels' registers; the last line counts the kernels.
step_cuda() {
  scripts/cuda_env.sh
  .venv/bin/python scripts/check/ptxas_logs.py --self-test
  scripts/build.sh cuda test_cuda
  QKV_TEST_SCALE=100 scripts/test.sh cuda
  .venv/bin/python scripts/check/ptxas_logs.py build/cuda/src/cuda
}

# Builds with clang and runs the tests, with fewer repetitions than step apart.
step_clang() {
  scripts/build.sh clang
  QKV_TEST_SCALE=10 scripts/test.sh clang
}

# Runs clang-tidy on all sources; the last line counts the files. Builds the Python package first if
# it never was built, since its files are linted with the options of its build.
step_lint() {
  [ -f build/python/compile_commands.json ] || scripts/python_package.sh
  .venv/bin/python scripts/check/lint.py --self-test
  .venv/bin/python scripts/check/lint.py "$@"
}

# Runs the lint with clang's analyzer, which doubles the time.
step_analyze() { step_lint --analyze; }

# ---- other builds -------------------------------------------------------------------------------

# Builds the shared libraries, and programs that use them; compares the C functions that libqkv.so
# exports with tests/c/symbols.txt. The last line counts the users: these programs, and Python with
# the package, which loads the library by ctypes.
step_shared() {
  local count=0
  scripts/build.sh shared all
  .venv/bin/python tests/c/symbols_test.py build/shared/libqkv.so --soname
  if .venv-python/bin/python -c 'import qkv' 2>/dev/null; then
    QKV_C_LIBRARY=$PWD/build/shared/libqkv.so .venv-python/bin/python -m pytest --quiet tests/python/test_c.py
    count=1
  else
    echo "ctypes: no Python package in .venv-python, so it is not tried"
  fi
  for kind in find_package pkg_config add_subdirectory; do
    scripts/quietly.sh "$kind" tests/consumers/run.sh build/shared "$kind"
    count=$((count + 1))
  done
  counted "$count" users of the library
}

# Runs the tests of what reads files and checks arguments with two sanitizers: of addresses and, in
# the libraries, of undefined behaviour. The kernels have neither. Step asan has nearly all tests.
step_sanitize() {
  scripts/build.sh sanitize qkv_tool hostile_reader test_{app,c,core,errors,runtime}
  QKV_TEST_SCALE=2 scripts/test.sh sanitize
}

# Runs tests of a gcc build with the sanitizers of addresses and undefined behaviour in all code.
step_asan() {
  scripts/build.sh asan
  QKV_TEST_SCALE=8 scripts/test.sh asan
}

# Runs the tests of the library alone (QKV_APP=OFF) with the thread sanitizer: only the library
# starts threads, and it has to build without the rest. gcc 12's thread sanitizer cannot handle the
# address space randomisation of newer Linux kernels; gcc 14 may not need setarch.
step_tsan() {
  local fixed_addresses=()
  ! setarch -R true 2>/dev/null || fixed_addresses=(setarch -R)
  scripts/build.sh tsan
  QKV_TEST_SCALE=8 "${fixed_addresses[@]}" scripts/test.sh tsan
}

# Runs the fuzzers on their seeds and on the corpus of earlier runs, without new inputs.
step_fuzz() {
  scripts/fuzz.sh 0
}

# Compiles the library for AArch64 and runs its tests under an emulator; the last line counts them.
# It takes an hour, and is not among all_steps.
step_aarch64() {
  scripts/setup.sh aarch64
  scripts/build.sh aarch64 test_{attention,core,dense,errors,expressions,kernels,layers,order,ranks,runtime,support}
  QKV_TEST_SCALE=1 scripts/test.sh aarch64
}

# ---- one step, or the table ---------------------------------------------------------------------

# Prints a hash of the files that are checked, which is equal on every machine and at every commit
# with the same files; "-dirty" is added if one differs from the commit. The hash leaves out
# docs/last-check.txt.
files_id() {
  local changed
  changed=$(git status --porcelain --untracked-files=normal -- . ":!$last_check" 2>/dev/null) || changed=unknown
  echo "$(git ls-tree -r HEAD | grep -vF "$last_check" | git hash-object --stdin | head -c 12)${changed:+-dirty}"
}

# Prints the CPU and the number of parallel jobs in one line.
machine() {
  local names='vendor_id|cpu family|model'
  echo "$(awk -F'\t*: ' -v names="^($names)\$" '$1 ~ names { printf "%s%s", space, $2; space = " " }
    /^$/ { exit }' /proc/cpuinfo), $jobs at a time"
}

# Runs a step and sets its row: "ok" or "FAILED", its CPU seconds, the day, and its last line, which
# has the count. Fails if the step does, or if files have changed since the first step.
run_step() {
  local step=$1 log=build/check/$1.log cpu verdict=ok outcome
  local TIMEFORMAT='%U %S'
  printf '\n== %s\n' "$step"
  { time scripts/check.sh "$step" 2>&1 | tee "$log" >&3; } 3>&1 2>"$log.cpu" || verdict=FAILED
  cpu=$(awk 'END { printf "%.0f", $1 + $2 }' "$log.cpu")
  outcome=$(tail -n 1 "$log")
  if [ "$(files_id)" != "$files" ]; then
    verdict=FAILED
    outcome="files changed meanwhile"
  elif [ "$verdict" != ok ]; then
    outcome="see $log"
  fi
  row_of[$step]=$(printf '%-13s %-6s %6d  %s  %s' "$step" "$verdict" "$cpu" "$(date --utc +%F)" "$outcome")
  [ "$verdict" = ok ]
}

# Prints the rows of the named steps that have one, and a summary.
print_table() {
  local step
  printf '%-13s %-6s %6s  %-10s\n' step "" "CPU s" day
  for step in "$@"; do
    [ -z "${row_of[$step]:-}" ] || echo "${row_of[$step]}"
  done | awk -v steps=$# '{ print; total += $3; failed += $2 == "FAILED" }
    END { printf "%d of %d steps, %d failed, %d CPU seconds\n", NR, steps, failed, total }'
}

# Runs steps and prints their table. With `resume`, takes over from docs/last-check.txt the rows of
# steps that have passed on the same files and whose count is not 0, and writes the table there
# after each step that it runs, so that a later run, on this machine or another, continues.
run_all() {
  local step row failed=0 files machines=""
  local -A row_of=()
  mkdir -p build/check
  files=$(files_id)
  if [[ -n $resume && $files != *-dirty ]] && grep -qx "files  $files" "$last_check"; then
    machines=$(grep '^CPU ' "$last_check")
    for step in "$@"; do
      ! row=$(grep -E "^$step +ok +[0-9]+  [0-9-]+  [^0]" "$last_check") || row_of[$step]=$row
    done
  fi
  for step in "$@"; do
    if [ -n "${row_of[$step]:-}" ]; then
      printf '\n== %s: passed earlier\n' "$step"
      continue
    fi
    run_step "$step" || failed=$((failed + 1))
    grep -qxF "CPU    $(machine)" <<<"$machines" || machines+=${machines:+$'\n'}"CPU    $(machine)"
    [ -z "$resume" ] || write_last_check "$@"
    [ "$(files_id)" = "$files" ] || break
  done
  echo
  print_table "$@"
  ((failed == 0))
}

write_last_check() {
  {
    echo "# SPDX-License-Identifier: Apache-2.0"
    echo "# Written by \`make check\`, which goes on from it where the files are the same."
    echo "files  $files"
    echo "commit $(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)"
    echo "$machines"
    echo
    print_table "$@"
  } >build/check/last
  mv build/check/last "$last_check"
}

if [[ $* == --quick ]]; then
  # shellcheck disable=SC2086  # a list of words
  set -- $quick_steps
fi
for step in "$@"; do
  declare -F "step_$step" >/dev/null || {
    echo "check.sh: no step '$step'; there are: $(compgen -A function step_ | sed s/step_// | xargs)" >&2
    exit 2
  }
done
case $# in
  0)
    status=0
    resume=yes
    # Steps use the package in .venv-python; one of an older build would make them fail.
    scripts/build.sh release
    scripts/python_package.sh
    # shellcheck disable=SC2086
    run_all $all_steps || status=$?
    echo "written: $last_check"
    exit "$status"
    ;;
  1) "step_$1" ;;
  *) run_all "$@" ;;
esac
