#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/fuzz.sh SECONDS [TARGET...]
# Feeds malformed input to each reader (or to each TARGET) for SECONDS; with 0, feeds only the seeds
# and the corpus of earlier runs. The corpus is in build/fuzz/corpus. An input that breaks a reader
# is written to build/fuzz/found and makes the exit status 1: make a test of it.
set -euo pipefail
source "$(dirname "$0")/env.sh"

seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET...]}
shift
readonly largest_input=8192
readonly seeds=build/fuzz/seeds corpus=build/fuzz/corpus found=build/fuzz/found logs=build/fuzz/logs

scripts/build.sh fuzz fuzz
.venv/bin/python tests/fuzz/seeds.py "$seeds"
targets=("$@")
((${#targets[@]})) || mapfile -t targets < <(ls "$seeds")

# Fuzzes a target and writes a log; prints how many inputs ran and whether one broke the reader.
fuzz() {
  local target=$1 verdict=ok runs end=-max_total_time=$seconds
  if ((seconds == 0)); then end=-runs=0; fi  # to libFuzzer, 0 seconds means no limit
  mkdir -p "$corpus/$target" "$found" "$logs"
  "build/fuzz/tests/fuzz/fuzz_$target" "$corpus/$target" "$seeds/$target" \
    "$end" -max_len=$largest_input -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$found/$target-" >"$logs/$target" 2>&1 || verdict="BROKEN, see $logs/$target"
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$target")
  printf '%-16s %10s inputs  %s\n' "$target" "${runs:-?}" "$verdict"
  [ "$verdict" = ok ]
}
export -f fuzz
export seeds corpus found logs seconds largest_input

if ((${#targets[@]} == 0)); then
  echo "there are no targets to fuzz: $seeds is empty"
  exit 1
fi
printf '%s\n' "${targets[@]}" |
  xargs -P "$CMAKE_BUILD_PARALLEL_LEVEL" -I{} bash -c 'fuzz {}' || exit 1
echo "${#targets[@]} targets, ${seconds} s each, none broken"
