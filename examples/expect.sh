#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: expect.sh PROGRAM FILE    fails if the program fails, or its output is not that of FILE
set -euo pipefail
# The licence line of the file is not part of the output.
"$1" | diff <(tail -n +2 "$2") -
