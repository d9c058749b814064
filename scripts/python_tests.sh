#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/python_tests.sh REPORT.xml [PYTEST-ARGUMENT...]
# Runs the tests of the Python package that scripts/python_package.sh installed. Without
# .venv-python the report has each of them as skipped.
set -euo pipefail
source "$(dirname "$0")/env.sh"

report=${1:?usage: scripts/python_tests.sh REPORT.xml [PYTEST-ARGUMENT...]}
shift
rm -f "$report"
if ! python_env_is_ready; then
  exec .venv/bin/python scripts/skip_tests.py "$report" "no Python package index answered" \
    tests/python
fi
# Many of these processes run at once: PyTorch uses one thread in each.
export OMP_NUM_THREADS=1
exec .venv-python/bin/python -m pytest --quiet --numprocesses "$CTEST_PARALLEL_LEVEL" \
  --dist worksteal --junitxml "$report" "$@"
