#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: expect.sh PROGRAM FILE    fails when the program does, or prints something else than FILE
set -euo pipefail
# The licence line of the file is no output.
diff <(tail -n +2 "$2") <("$1")
