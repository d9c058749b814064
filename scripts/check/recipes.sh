#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/check/recipes.sh
# Follows docs/recipes.md: each tests/recipes/NAME.patch is applied to a copy of the tree. With only
# the files that its line "List:" names, which have the list, the library must not compile; with all of
# it tests/recipes/NAME.cc is compiled against it, and run.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

readonly root=$PWD
tree=$(mktemp -d)
readonly tree
trap 'rm -rf "$tree"' EXIT
tar -cf - CMakeLists.txt CMakePresets.json cmake include src tools bench | tar -xf - -C "$tree"
cp CMakeLists.txt "$tree/CMakeLists.plain"

# Usage: build NAME: tests/recipes/NAME.cc, and the library that its line "// links:" names.
build() {
  local program=$root/tests/recipes/$1.cc library
  library=$(sed -n 's|^// links: ||p' "$program")
  cp "$tree/CMakeLists.plain" "$tree/CMakeLists.txt"
  cat >>"$tree/CMakeLists.txt" <<EOF
add_executable(recipe $program)
target_compile_features(recipe PRIVATE cxx_std_20)
target_link_libraries(recipe PRIVATE ${library:-qkv})
EOF
  cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DQKV_TESTS=OFF \
    >"$tree/log" 2>&1 && cmake --build "$tree/build" --target recipe >>"$tree/log" 2>&1
}

count=0
for patch in "$root"/tests/recipes/*.patch; do
  name=$(basename "$patch" .patch)
  list=$(sed -n 's/^List: //p' "$patch")
  (cd "$tree" && git apply --include="${list:?$patch names no list}" "$patch")
  if build "$name"; then
    echo "$name: compiles with nothing but its place in the list"
    exit 1
  fi
  grep -m 1 -oE 'error: .{0,120}' "$tree/log" || true
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
