#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/quietly.sh NAME COMMAND [ARGUMENT...]
# Runs a verbose command: shows its progress and roughly how long is left, keeps every line in
# build/logs/NAME.log, and reports the time at the end. If the command fails, its error messages
# are shown. VERBOSE=1 in the environment shows every line. The exit status is the command's.
#
# On a terminal one line is redrawn; elsewhere there is a line when the first fifth, second fifth ...
# is done. Progress is read from what the tools print: ninja's [3/20], ctest's 3/20 and pytest's [15%].
set -euo pipefail
source "$(dirname "$0")/env.sh"

readonly name=${1:?usage: scripts/quietly.sh NAME COMMAND [ARGUMENT...]}
shift
readonly log=build/logs/${name// /-}.log
mkdir -p build/logs

# User and system seconds of the children so far. Not in a subshell, which has none.
cpu=0
count_cpu() {
  times >"$log.times"
  cpu=$(awk -F'[ms ]+' 'NR == 2 { printf "%.0f", $1 * 60 + $2 + $3 * 60 + $4 }' "$log.times")
  rm "$log.times"
}

# "3 min", "40 s".
lasting() { if (($1 < 100)); then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi; }

# Progress in percent: lines of the tools above set `percent`, others leave it unchanged.
percent=0
read_progress() {
  if [[ $1 =~ ^\[([0-9]+)/([0-9]+)\] || $1 =~ ^\ *([0-9]+)/([0-9]+)\ Test\  ]]; then
    percent=$((100 * BASH_REMATCH[1] / BASH_REMATCH[2]))
  elif [[ $1 =~ \[\ *([0-9]+)%\]$ ]]; then
    percent=${BASH_REMATCH[1]}
  fi
}

# The first few percent say little about the rest.
show_progress() {
  local left="" begin=$1 on_terminal=$2
  local passed=$((SECONDS - begin))
  if ((percent >= 10 && passed >= 5 && percent < 100)); then
    left=", about $(lasting $((passed * (100 - percent) / percent))) left"
  fi
  if ((on_terminal)); then
    printf '\r\e[K%s: %d %%%s' "$name" "$percent" "$left"
  elif ((percent / 20 > shown / 20 && percent < 100)); then
    printf '%s: %d %%%s\n' "$name" "$percent" "$left"
  fi
  shown=$percent
}

# Reads the command's lines, writes the log.
watch_lines() {
  local line shown=0 begin=$SECONDS on_terminal=0
  if [ -t 1 ]; then on_terminal=1; fi
  while IFS= read -r line || [ -n "$line" ]; do
    printf '%s\n' "$line" >&3
    read_progress "$line"
    if ((percent != shown)); then show_progress "$begin" "$on_terminal"; fi
  done 3>"$log"
  if ((on_terminal)); then printf '\r\e[K'; fi
}

# A failed command's errors: ctest and pytest list failures at the end, compilers where they occur.
show_failure() {
  grep -vE '^(\[[0-9]+/[0-9]+\] (Building|Linking|Generating|Re-)|ninja: (Entering|job)| *(Start +)?[0-9]+(/[0-9]+ Test +#[0-9]+)?: .*( Passed |\*\*\*Skipped|[A-Za-z_]$))' \
    "$log" | tail -n 200 || true
  echo "$name: FAILED; all of it: $log"
}

if [ "${VERBOSE:-0}" != 0 ]; then
  "$@" 2>&1 | tee "$log"
  exit
fi
echo "$name ..."
status=0
"$@" 2>&1 </dev/null | watch_lines || status=$?
if ((status)); then
  show_failure
else
  count_cpu
  echo "$name: done in $(lasting "$SECONDS"), $cpu CPU seconds"
fi
exit "$status"
