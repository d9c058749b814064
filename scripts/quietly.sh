#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/quietly.sh NAME COMMAND [ARGUMENT...]
# Runs a verbose command and reports its time at the end. On a terminal the command shows its own
# progress; elsewhere its output goes to build/logs/NAME.log, and only the errors of a command that
# fails are shown. VERBOSE=1 in the environment shows every line. The exit status is the command's.
set -euo pipefail
source "$(dirname "$0")/env.sh"

readonly name=${1:?usage: scripts/quietly.sh NAME COMMAND [ARGUMENT...]}
shift
readonly log=build/logs/${name// /-}.log
mkdir -p build/logs

# Prints the last 200 lines of the log that are neither progress nor passed or skipped tests.
show_errors() {
  grep -vE '^(\[[0-9]+/[0-9]+\] |ninja: (Entering|job)| *(Start +)?[0-9]+(/[0-9]+ Test +#[0-9]+)?: .*( Passed |\*\*\*Skipped|[A-Za-z_]$))' \
    "$log" | tail -n 200 || true
  echo "$name: FAILED; all of it: $log"
}

if [ "${VERBOSE:-0}" != 0 ]; then
  "$@" 2>&1 | tee "$log"
  exit
fi
echo "$name ..."
status=0
if [ -t 1 ]; then
  "$@" </dev/null || status=$?
else
  "$@" >"$log" 2>&1 </dev/null || { status=$? && show_errors; }
fi
times >"$log.$$.times"  # the second line has the user and system time of the shell's children
cpu=$(awk -F'[ms ]+' 'NR == 2 { printf "%.0f", $1 * 60 + $2 + $3 * 60 + $4 }' "$log.$$.times")
rm "$log.$$.times"
((status)) || echo "$name: done in $SECONDS s, $cpu CPU seconds"
exit "$status"
