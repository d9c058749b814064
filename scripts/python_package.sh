#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/python_package.sh
# Builds the Python package as a wheel, in build/python, and installs it into .venv-python.
set -euo pipefail
source "$(dirname "$0")/env.sh"

python_env_is_ready || {
  echo "python: no .venv-python, so no Python package is built"
  exit 0
}
echo "python: building the package (minutes at first)"
rm -rf build/wheel
# Warnings are errors, as in the presets, with the presets' compiler.
.venv-python/bin/python -m pip --disable-pip-version-check wheel --quiet . --wheel-dir build/wheel \
  --no-index --no-deps --no-build-isolation \
  --config-settings=build-dir=build/python \
  --config-settings=cmake.define.CMAKE_CXX_COMPILER=g++ \
  --config-settings=cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON
.venv-python/bin/python -m pip --disable-pip-version-check install --quiet --no-index --no-deps \
  --force-reinstall build/wheel/qkv-*.whl
