#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/setup.sh run|test|bench|fuzz|docs|pack|aarch64|check
# Makes sure that the dependencies of `make run`, `make test` and so on are installed. Checks first;
# installs (Debian, as root or with sudo) only what is missing; with nothing to do it takes a
# fraction of a second and changes nothing. QKV_CUDA=ON in the environment: also nvcc.
set -euo pipefail
source "$(dirname "$0")/env.sh"

level=${1:-}
case $level in
  run | test | bench | fuzz | docs | pack | aarch64 | check) ;;
  *)
    echo "usage: scripts/setup.sh run|test|bench|fuzz|docs|pack|aarch64|check" >&2
    exit 2
    ;;
esac

# For each package: the level that needs it, what shows that it is installed, its name in Debian.
# fuzz, docs and aarch64 include run and test; bench and pack include run; check includes all but
# bench, pack and aarch64.
readonly needs='
run   command:g++               g++
run   command:cmake             cmake
run   command:ninja             ninja-build
run   command:make              make
run   command:pkg-config        pkg-config
run   library:libhwy            libhwy-dev
run   library:CLI11             libcli11-dev
run   library:fmt               libfmt-dev
run   library:libzip            libzip-dev
run   library:nlohmann_json     nlohmann-json3-dev
run   library:libutf8proc       libutf8proc-dev
run   library:sentencepiece     libsentencepiece-dev
run   library:zlib              zlib1g-dev
test  library:gtest             libgtest-dev
test  system_python:sys         python3
test  system_python:ensurepip   python3-venv
test  system_python:numpy       python3-numpy
test  python_header:Python.h    python3-dev
test  command:rsvg-convert      librsvg2-bin
test  font:DejaVuSansMono       fonts-dejavu-core
test  font:wqy-microhei         fonts-wqy-microhei
test  font:NotoColorEmoji       fonts-noto-color-emoji
bench header:dnnl.hpp           libdnnl-dev
bench library:sleef             libsleef-dev
fuzz  command:clang++-16        clang-16
fuzz  clang_runtime:fuzzer      libclang-rt-16-dev
pack  command:debootstrap       debootstrap
pack  command:dpkg-shlibdeps    dpkg-dev
pack  command:qemu-aarch64-static qemu-user-static
pack  command:aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
docs  command:doxygen           doxygen
check command:clang-format-16   clang-format-16
check command:clang-tidy-16     clang-tidy-16
check command:llvm-symbolizer-16 llvm-16
aarch64 command:aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
aarch64 command:qemu-aarch64    qemu-user
aarch64 sources:googletest      googletest
'

is_there() {
  local kind=${1%%:*} name=${1#*:}
  case $kind in
    command) if [ "$name" = cmake ]; then put_cmake_first; else "$name" --version; fi ;;
    header) [ -f "/usr/include/$name" ] ;;
    sources) [ -d "/usr/src/$name" ] ;;
    library) pkg-config --exists "$name" ;;
    font) compgen -G "/usr/share/fonts/truetype/*/$name.tt[cf]" ;;
    clang_runtime) compgen -G "$(clang++-16 -print-resource-dir)/lib/linux/libclang_rt.$name-*.a" ;;
    system_python) /usr/bin/python3 -c "import $name" ;;
    python_header) /usr/bin/python3 -c "import os, sysconfig as c
os.stat(os.path.join(c.get_path('include'), '$name'))" ;;
  esac >/dev/null 2>&1
}

# The packages of this level that are missing, one a line.
missing_packages() {
  local needed_at proof package
  while read -r needed_at proof package; do
    case $level:$needed_at in
      run:run | test:run | test:test | bench:run | bench:bench | fuzz:run | fuzz:test | fuzz:fuzz | \
        docs:run | docs:test | docs:docs | pack:run | pack:pack | \
        aarch64:run | aarch64:test | aarch64:aarch64 | \
        check:run | check:test | check:fuzz | check:docs | check:check) is_there "$proof" || echo "$package" ;;
    esac
  done <<<"$needs"
}

root=(env)
[ "$(id -u)" = 0 ] || root=(sudo env)

# Runs apt-get as root. apt_install adds packages, and never removes one.
apt_get() {
  scripts/quietly.sh "apt-get $1" "${root[@]}" DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 "$@" >&2
}
apt_install() { apt_get install --yes --quiet --no-install-recommends --no-remove "$@"; }

install_packages() {
  # The package lists are updated only if they lack a package, or if installing from them fails.
  if apt-cache show "$@" >/dev/null 2>&1 && apt_install "$@"; then return 0; fi
  apt_get update --quiet
  apt_install "$@"
}

give_up() {
  echo "setup: $1" >&2
  echo "setup: needed are g++ 12 or newer, cmake $cmake_minimum or newer, and these Debian" \
    "packages or their like:" "${@:2}" >&2
  exit 1
}

mapfile -t missing < <(missing_packages)
if ((${#missing[@]})); then
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    give_up "this is not a Debian system" "${missing[@]}"
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    give_up "neither root nor sudo" "${missing[@]}"
  echo "setup: installing ${missing[*]}" >&2
  install_packages "${missing[@]}" || give_up "apt-get failed" "${missing[@]}"
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) || give_up "installed, yet not working" "${missing[@]}"
fi

# optional COMMAND TESTS PACKAGE... installs the packages unless COMMAND is there. If they cannot be
# installed, a message says which tests will be skipped.
optional() {
  local command=$1 what=$2
  shift 2
  if command -v "$command" >/dev/null; then return; fi
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; } &&
    install_packages "$@"; then
    echo "setup: installed $*" >&2
  else
    echo "setup: no $command to be had; the tests $what will be skipped" >&2
  fi
}
if [[ $level == test || $level == check ]]; then
  optional chromium "in a browser" chromium
  optional mpicxx "of several processes" libopenmpi-dev openmpi-bin
fi

if [[ $level == pack ]]; then optional lintian "of the Debian package by lintian" lintian; fi

# Makes a virtual environment that sees Debian's NumPy, without a package index.
if [[ $level =~ ^(test|fuzz|docs|aarch64|check)$ ]] && ! .venv/bin/python -c 'import numpy' 2>/dev/null; then
  echo "setup: making .venv" >&2
  /usr/bin/python3 -m venv --clear --system-site-packages .venv
  .venv/bin/python -c 'import numpy'
fi

# Makes the environment of the Python package, from a package index.
if [[ $level == test || $level == docs || $level == check ]]; then scripts/python_env.sh; fi

# Makes sure that nvcc, the compiler of the CUDA kernels, is there.
if [[ ${QKV_CUDA:-} == ON ]]; then scripts/cuda_env.sh; fi
