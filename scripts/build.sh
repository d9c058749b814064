#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/build.sh PRESET [TARGET...]
# Configures and builds a preset: everything with its tests, or only the named targets. The
# compiler's output is written to build/logs (scripts/quietly.sh).
# The environment variable QKV_CUDA, ON or OFF, sets the option of that name in preset "release".
set -euo pipefail
source "$(dirname "$0")/env.sh"

preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift
options=()
[[ $preset != release || -z ${QKV_CUDA:-} ]] || options+=("-DQKV_CUDA=$QKV_CUDA")
configure() {
  scripts/quietly.sh "configure $preset" cmake --preset "$preset" "${options[@]}" "$@"
}

if (($# == 0)); then
  configure -DQKV_TESTS=ON
  scripts/quietly.sh "build $preset" cmake --build --preset "$preset"
else
  # Named targets other than tests do not need GoogleTest; a build directory that has tests keeps
  # them.
  if [[ " $*" == *" test_"* ]]; then
    configure -DQKV_TESTS=ON
  elif [ ! -f "build/$preset/build.ninja" ]; then
    configure -DQKV_TESTS=OFF
  fi
  scripts/quietly.sh "build $preset" cmake --build --preset "$preset" --target "$@"
fi
