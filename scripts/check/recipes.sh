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
tar -cf - CMakeLists.txt CMakePresets.json cmake include src | tar -xf - -C "$tree"

build() {
  cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DQKV_APP=OFF \
    -DQKV_TESTS=OFF >"$tree/log" && cmake --build "$tree/build" --target qkv >>"$tree/log" 2>&1
}

count=0
for patch in "$root"/tests/recipes/*.patch; do
  name=$(basename "$patch" .patch)
  list=$(sed -n 's/^List: //p' "$patch")
  (cd "$tree" && git apply --include="${list:?$patch names no list}" "$patch")
  if build; then
    echo "$name: compiles with nothing but its place in the list"
    exit 1
  fi
  grep -m 1 -oE 'error: .{0,120}' "$tree/log" || true
  (cd "$tree" && git apply --exclude="$list" "$patch")
  build || { grep -m 5 -E 'error:' "$tree/log"; exit 1; }
  g++ -std=c++20 -O1 -I"$tree/include" "$root/tests/recipes/$name.cc" "$tree/build/libqkv.a" \
    -lhwy -pthread -o "$tree/$name"
  echo "$name:"
  "$tree/$name"
  (cd "$tree" && git apply --reverse "$patch")
  count=$((count + 1))
done
echo "$count recipes followed"
((count > 0))
