#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/measure/cuda_check.sh [TEST_CUDA [LIBRARY [OUT]]]
# Checks and times the CUDA kernels on a machine with a GPU and PyTorch, from what was built
# elsewhere: the program test_cuda, the library libqkv_cuda_calls.so and this checkout's scripts.
# Without arguments, program and library are where scripts/build.sh release test_cuda qkv_cuda_calls
# puts them, and results go to the folder $OUT, or without this variable to bench/results. Logs go
# to $OUT/logs, or to a temporary folder. Results are written while the script runs, so that they
# are there if it is cut off. The variable COMMIT says what was built. Every step has a limit;
# together they take at most 4 minutes. A short summary comes last. Exits 1 if something is wrong or
# a step that measures or compares has not ended.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
test_cuda=${1:-build/release/tests/cuda/test_cuda}
library=${2:-build/release/bench/libqkv_cuda_calls.so}
out=${3:-${OUT:-bench/results}}
logs=${OUT:-$(mktemp -d)}/logs
mkdir -p "$logs" || exit
summary=()
failed=0

tell() {
  echo "$1"
  summary+=("$1")
}

# step NAME SECONDS COMMAND...: runs a command, which has that time limit if it calls limited(). Its
# output goes to a log, whose end is shown if the command fails.
step() {
  local name=$1 limit=$2 began=$SECONDS status=0
  shift 2
  LIMIT=$limit "$@" >"$logs/$name" 2>&1 || status=$?
  local took=$((SECONDS - began))
  if [ $status -eq 0 ]; then
    tell "$name: passed, $took s"
    return
  fi
  # A tool of compute-sanitizer that ran out of time (124) has printed what it found until then, in
  # lines that begin with =========.
  if [ $status -eq 124 ] && [[ $name == *check* ]] &&
    ! awk '/^=========/ && !/COMPUTE-SANITIZER/ { found = 1 } END { exit !found }' "$logs/$name"; then
    tell "$name: stopped after $took s, nothing found until then"
    return
  fi
  tell "$name: FAILED with $status, $took s"
  failed=1
  grep -vE '^\[ +(RUN|OK) +\]' "$logs/$name" | tail -40
}

limited() { timeout "$LIMIT" "$@"; }

# tests_in_parts FILTER: runs the tests, divided among parallel processes.
tests_in_parts() {
  local parts=8 status=0 workers=()
  for ((part = 0; part < parts; part++)); do
    GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part limited "$test_cuda" --gtest_filter="$1" &
    workers+=($!)
  done
  for worker in "${workers[@]}"; do wait "$worker" || status=$?; done
  return $status
}

# sanitized TOOL FILTER: runs the tests under a tool of compute-sanitizer.
sanitized() {
  limited "$sanitizer" --tool "$1" --error-exitcode 9 "$test_cuda" --gtest_filter="$2"
}

nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader
# The filters leave out the tests of fake drivers and of the emulator, which need no GPU.
export QKV_TEST_SCALE=40
step device-tests 40 tests_in_parts '*DeviceForward*:*/Device*:Devices.*'
step peers 45 limited python3 scripts/measure/cuda_peers.py --library "$library" --out "$out" \
  --commit "${COMMIT:-unknown}"
grep -v seconds= "$logs/peers"
step gradients 45 limited python3 scripts/measure/cuda_gradients.py --library "$library" \
  --out "$out" --commit "${COMMIT:-unknown}"
grep -v seconds= "$logs/gradients"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null)
sanitizer=${sanitizer%%$'\n'*}
if [ -n "$sanitizer" ]; then
  export QKV_TEST_SCALE=1
  orders='Of/*Order.*/Device*:Devices.RunKernels'
  step memcheck 30 sanitized memcheck "$orders"
  step racecheck 45 sanitized racecheck "$orders"
  step memcheck-of-calls 25 sanitized memcheck '*DeviceForward*/0'
else
  tell "no compute-sanitizer on this machine: memcheck and racecheck not run"
fi

printf '%s\n' "${summary[@]}"
exit $failed
