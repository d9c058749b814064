#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/measure/cuda_check.sh [TEST_CUDA [LIBRARY [OUT]]]
# Checks and times the CUDA kernels on a machine with a GPU and PyTorch, from what was built
# elsewhere: the program test_cuda, the library libqkv_cuda_calls.so and this checkout's scripts.
# Without arguments these are where scripts/build.sh release test_cuda qkv_cuda_calls puts them, and
# results go to bench/results. COMMIT in the environment says what was built. Takes less than 4
# minutes; a short summary comes last. Exits 1 if something is wrong.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
test_cuda=${1:-build/release/tests/cuda/test_cuda}
library=${2:-build/release/bench/libqkv_cuda_calls.so}
out=${3:-bench/results}
logs=$(mktemp -d)
summary=()
failed=0

tell() {
  echo "$1"
  summary+=("$1")
}

# Runs a step. Its output goes to a log, of which the end is shown if it fails.
step() {
  local name=$1 began=$SECONDS
  shift
  if "$@" >"$logs/$name" 2>&1; then
    tell "$name: passed, $((SECONDS - began)) s"
  else
    tell "$name: FAILED with $?, $((SECONDS - began)) s"
    failed=1
    grep -vE '^\[ +(RUN|OK) +\]' "$logs/$name" | tail -40
  fi
}

# Tests in parallel parts: each worker of gtest takes its share of the tests.
tests_in_parts() {
  local parts=8 status=0 workers=()
  for ((part = 0; part < parts; part++)); do
    GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part "$test_cuda" --gtest_filter="$1" &
    workers+=($!)
  done
  for worker in "${workers[@]}"; do wait "$worker" || status=1; done
  return $status
}

nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader
# The tests of fake drivers need the build folder and no GPU.
export QKV_TEST_SCALE=100
step device-tests tests_in_parts '*DeviceForward*:*/Device:Devices.*'
step peers python3 scripts/measure/cuda_peers.py --library "$library" --out "$out" \
  --commit "${COMMIT:-unknown}"
grep -v seconds= "$logs/peers"
export QKV_TEST_SCALE=20
step emulator-tests tests_in_parts '*Emulat*:Images.*'

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null)
sanitizer=${sanitizer%%$'\n'*}
if [ -n "$sanitizer" ]; then
  export QKV_TEST_SCALE=1
  for tool in memcheck racecheck; do
    step "$tool" timeout 45 "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$test_cuda" --gtest_filter='Of/ForwardOrder.*/Device:Devices.RunKernels'
  done
  step memcheck-of-calls timeout 60 "$sanitizer" --tool memcheck --error-exitcode 9 \
    "$test_cuda" --gtest_filter='*DeviceForward*/0'
else
  tell "no compute-sanitizer on this machine: memcheck and racecheck not run"
fi

printf '%s\n' "${summary[@]}"
exit $failed
