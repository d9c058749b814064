#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheel.sh
# Makes dist/qkv-VERSION-PYTHON-manylinux_*.whl: the package with the libraries it links and their
# licences, for machines that have neither.
set -euo pipefail
source "$(dirname "$0")/env.sh"

python_env_is_ready || {
  echo "wheel: no Python package index answered, so there is no .venv-python to pack with" >&2
  exit 1
}
scripts/python_package.sh
rm -rf dist/qkv-*.whl build/repaired
PATH=$PWD/.venv-python/bin:$PATH auditwheel repair --wheel-dir build/repaired build/wheel/qkv-*.whl
.venv-python/bin/python scripts/wheel/licences.py build/repaired/qkv-*.whl dist
ls -l dist/*.whl
