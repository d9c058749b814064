#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheel/pack.sh PYTHON BUILD_DIRECTORY WHEEL_DIRECTORY \
#   [INSTALLED [CMAKE-VARIABLE=VALUE...]]
# Builds the Python package for an interpreter that has the build tools, as a wheel that needs this
# machine's shared libraries. qkv's own libraries and program come from INSTALLED, by default those
# of the release build in build/installed.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

# Warnings are errors, as in the presets, with the presets' compiler.
settings=()
for variable in QKV_INSTALLED="${4:-$PWD/build/installed}" CMAKE_CXX_COMPILER=g++ \
  CMAKE_COMPILE_WARNING_AS_ERROR=ON "${@:5}"; do
  settings+=(--config-settings=cmake.define."$variable")
done
"$1" -m pip --disable-pip-version-check --quiet --quiet wheel . --wheel-dir "$3" \
  --no-index --no-deps --no-build-isolation --config-settings=build-dir="$2" "${settings[@]}"
