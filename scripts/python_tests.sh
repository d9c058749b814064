#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/python_tests.sh REPORT.xml [PYTEST-ARGUMENT...]
# Runs the tests of the Python package that scripts/python_package.sh installed.
set -euo pipefail
source "$(dirname "$0")/env.sh"

report=${1:?usage: scripts/python_tests.sh REPORT.xml [PYTEST-ARGUMENT...]}
shift
rm -f "$report"
# pytest starts a process for each processor; PyTorch uses one thread in each.
export OMP_NUM_THREADS=1
exec .venv-python/bin/python -m pytest --quiet --numprocesses "$CTEST_PARALLEL_LEVEL" \
  --dist worksteal --junitxml "$report" "$@"
