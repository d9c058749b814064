#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/check/recipes.sh
# Follows docs/contributing/recipes.md: applies each tests/recipes/NAME.patch to a copy of the tree.
# The patch's line "List:" is a pattern of the files with the list that gets an entry. With the
# changes of these files alone the copy must not compile: the compiler reports the other places.
# With the whole patch, tests/recipes/NAME.cc is compiled against the library, and run. The section
# of the recipe in docs/contributing/recipes.md must name each file that the patch changes.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

readonly root=$PWD
tree=$(mktemp -d)
readonly tree
trap 'rm -rf "$tree"' EXIT
tar -cf - CMakeLists.txt CMakePresets.json CHANGELOG.md LICENSE NOTICE cmake include src app bench packaging \
  tests/seed_numbers.tsv |
  tar -xf - -C "$tree"
cp CMakeLists.txt "$tree/CMakeLists.plain"

# Usage: build NAME
# Builds tests/recipes/NAME.cc with the library that its line "// links:" names, or else with qkv.
build() {
  local program=$root/tests/recipes/$1.cc library
  library=$(sed -n 's|^// links: ||p' "$program")
  cp "$tree/CMakeLists.plain" "$tree/CMakeLists.txt"
  cat >>"$tree/CMakeLists.txt" <<EOF
add_executable(recipe "$program")
target_compile_features(recipe PRIVATE cxx_std_20)
target_link_libraries(recipe PRIVATE ${library:-qkv})
EOF
  cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 \
    -DQKV_CUDA=OFF -DQKV_TESTS=OFF >"$tree/log" 2>&1 || {
    cat "$tree/log"
    exit 1
  }
  cmake --build "$tree/build" --target recipe >>"$tree/log" 2>&1
}

# Usage: check_section NAME PATCH
# Fails if the section of the recipe does not name each file of the patch.
check_section() {
  local section file
  case $1 in
    score) section='## A score' ;;
    mask) section='## A mask' ;;
    result) section='## A result' ;;
    target) section='## A CPU target' ;;
    format) section='## A file format' ;;
    *) echo "$1: no section of docs/contributing/recipes.md is known for it" && return 1 ;;
  esac
  while read -r file; do
    sed -n "/^$section\$/,/^## /p" docs/contributing/recipes.md | grep -qF "$(basename "$file")" || {
      echo "$1: docs/contributing/recipes.md does not name $file"
      return 1
    }
  done < <(sed -n 's|^+++ b/||p' "$2")
}

count=0
for patch in "$root"/tests/recipes/*.patch; do
  name=$(basename "$patch" .patch)
  check_section "$name" "$patch"
  list=$(sed -n 's/^List: //p' "$patch")
  (cd "$tree" && git apply --include="${list:?$patch names no list}" "$patch")
  if build "$name"; then
    echo "$name: compiles with nothing but its place in the list"
    exit 1
  fi
  grep -m 1 -oE 'error: .{0,120}' "$tree/log"  # fails if the compiler reports none
  (cd "$tree" && git apply --exclude="$list" "$patch")
  build "$name" || {
    grep -m 5 -E 'error:' "$tree/log" || tail -5 "$tree/log"
    exit 1
  }
  echo "$name:"
  "$(find "$tree/build" -name recipe -type f)"
  (cd "$tree" && git apply --reverse "$patch")
  count=$((count + 1))
done
echo "$count recipes followed"
((count > 0))
