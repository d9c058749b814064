#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/python_package.sh
# Builds the Python package as a wheel, in build/python, from the release build's libraries and
# program, and installs it into .venv-python.
set -euo pipefail
source "$(dirname "$0")/env.sh"

python_env_is_ready || {
  echo "python: no .venv-python, so no Python package is built"
  exit 0
}
readonly pip=(.venv-python/bin/python -m pip --disable-pip-version-check --quiet --quiet)
readonly installed=$PWD/build/installed
rm -rf build/wheel
scripts/build.sh release qkv_tool
cmake --install build/release --prefix "$installed" >/dev/null
scripts/quietly.sh "Python package" \
  scripts/wheel/pack.sh "$PWD/.venv-python/bin/python" build/python build/wheel
"${pip[@]}" install --no-index --no-deps \
  --force-reinstall build/wheel/qkv-*.whl
