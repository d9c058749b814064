#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheel/pack.sh PYTHON BUILD_DIRECTORY WHEEL_DIRECTORY
# Builds the Python package for an interpreter that has the build tools, from the release build's
# libraries and program in build/installed, as a wheel that needs the libraries of this machine.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

# Warnings are errors, as in the presets, with the presets' compiler.
"$1" -m pip --disable-pip-version-check --quiet --quiet wheel . --wheel-dir "$3" \
  --no-index --no-deps --no-build-isolation \
  --config-settings=build-dir="$2" \
  --config-settings=cmake.define.QKV_INSTALLED="$PWD/build/installed" \
  --config-settings=cmake.define.CMAKE_CXX_COMPILER=g++ \
  --config-settings=cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON
