#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tests/consumers/run.sh BUILD_DIR KIND
# Builds and runs programs of other projects. KIND is one of
#   find_package, pkg_config  with qkv installed from BUILD_DIR and then moved
#   add_subdirectory          with the source of qkv, which is compiled
#   add_subdirectory_object   with the source: the program's object file is compiled and not linked,
#                             and the commands that would compile the library are checked
set -euo pipefail

usage="usage: tests/consumers/run.sh BUILD_DIR find_package|add_subdirectory|add_subdirectory_object|pkg_config"
build=$(realpath "${1:?$usage}")
kind=${2:?$usage}
here=$(realpath "$(dirname "$0")")
programs=(consumer consumer_app)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cxx=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")

# An installed tree must work wherever it is moved to.
install_and_move() {
  cmake --install "$build" --prefix "$work/first" >/dev/null
  mv "$work/first" "$work/moved"
  if grep -rIlF -e "$work/first" -e "$build" "$work/moved"; then
    echo "the files above name the place they were made or installed in" >&2
    return 1
  fi
  "$work/moved/bin/qkv" --version
  (cd / && [[ $("$work/moved/bin/qkv" translate --dates "the 3rd of May, 1987") == 1987-05-03 ]])
}

# Runs `programs`, which are in the directory $1, with $work as the current directory.
run_programs() {
  local program
  for program in "${programs[@]}"; do (cd "$work" && "$1/$program"); done
}

# Usage: with_cmake PROJECT CMAKE-ARGUMENT...
with_cmake() {
  local build="$work/build_$1"
  cmake -S "$here/$1" -B "$build" -G Ninja "${@:2}"
  cmake --build "$build" --target "${programs[@]}"
  run_programs "$build"
}

case $kind in
  find_package)
    install_and_move
    with_cmake find_package -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$work/moved"
    programs=(consumer_c)  # in a project without C++
    with_cmake find_package_c -DCMAKE_PREFIX_PATH="$work/moved"
    ;;
  add_subdirectory)
    programs=(consumer)  # this project does not use qkv_app
    # -O0 is fast to compile, and the program may be slow.
    with_cmake add_subdirectory -DCMAKE_CXX_COMPILER="$cxx" \
      -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DQKV_CUDA=OFF
    ;;
  add_subdirectory_object)
    cmake -S "$here/add_subdirectory" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" \
      -DQKV_CUDA=OFF  # CUDA kernels would be compiled, too
    ninja -C "$work/build" -t commands qkv/libqkv.a >"$work/commands"
    if grep -e ' -c ' "$work/commands" | grep -v -e ' -O2 '; then
      echo "the files above are compiled without -O2: the project has no build type" >&2
      exit 1
    fi
    grep -q -e ' -O2 ' "$work/commands"
    ninja -C "$work/build" "$(ninja -C "$work/build" -t targets all | sed -n 's/^\(.*main\.cc\.o\): .*/\1/p')"
    ;;
  pkg_config)
    install_and_move
    mkdir "$work/build"
    PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name qkv.pc)")
    export PKG_CONFIG_PATH
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir qkv)
    export LD_LIBRARY_PATH
    make -C "$work/build" -f "$here/$kind/Makefile" CXX="$cxx" HERE="$here"
    programs+=(consumer_c)
    run_programs "$work/build"
    ;;
  *)
    echo "$usage" >&2
    exit 2
    ;;
esac
