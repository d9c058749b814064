#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/test.sh PRESET [CTEST-ARGUMENT...]
# Runs the tests of a built preset and counts them; for release also the Python package's, unless
# there are ctest arguments. The last line: N passed, M failed, K skipped. QKV_TEST_SCALE in the
# environment is the percentage of repetitions to run (tests/support/scale.h), by default 10.
set -euo pipefail
source "$(dirname "$0")/env.sh"

preset=${1:?usage: scripts/test.sh PRESET [CTEST-ARGUMENT...]}
shift
export QKV_TEST_SCALE=${QKV_TEST_SCALE:-10}
reports=("build/$preset/tests.xml")
rm -f "${reports[0]}"
status=0
scripts/quietly.sh "tests $preset" \
  ctest --progress --preset "$preset" --output-junit "$PWD/${reports[0]}" "$@" || status=$?
if [[ $preset == release && $# == 0 ]]; then
  if python_env_is_ready; then
    reports+=("build/$preset/python_tests.xml")
    scripts/quietly.sh "tests of the Python package" scripts/python_tests.sh "${reports[1]}" || status=$?
  else
    reports+=(--not-run tests/python "no Python package index answered")
  fi
fi
.venv/bin/python scripts/count_tests.py "${reports[@]}" || status=1
exit "$status"
