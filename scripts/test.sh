#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/test.sh PRESET [CTEST-ARGUMENT...]
# Runs the tests of a built preset and counts them. The last line: N passed, M failed, K skipped.
set -euo pipefail
source "$(dirname "$0")/env.sh"

preset=${1:?usage: scripts/test.sh PRESET [CTEST-ARGUMENT...]}
shift
report=build/$preset/tests.xml
rm -f "$report"
status=0
ctest --preset "$preset" --output-junit "$PWD/$report" "$@" || status=$?
.venv/bin/python scripts/count_tests.py "$report" || status=1
exit "$status"
