#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/build.sh PRESET [TARGET...]
# Configures and builds a preset: everything with its tests, or only the targets named.
set -euo pipefail
source "$(dirname "$0")/env.sh"

preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift
if (($# == 0)); then
  cmake --preset "$preset" -DQKV_TESTS=ON
  cmake --build --preset "$preset"
else
  # Targets by name need no GoogleTest; a directory that has the tests keeps them.
  [ -f "build/$preset/build.ninja" ] || cmake --preset "$preset" -DQKV_TESTS=OFF
  cmake --build --preset "$preset" --target "$@"
fi
