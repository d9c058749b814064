#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/bench.sh [ARGUMENT-OF-qkv_bench...]
# Builds the benchmarks with their peers, and writes the results to bench/results/CPU.json.
set -euo pipefail
source "$(dirname "$0")/env.sh"

# Prints the CPU's name for a file name: "intel-r-xeon-r-processor-6-167", or "unknown".
cpu_slug() {
  awk -F': ' '
    /^model name/ && !name { name = $2 }
    /^cpu family/ && !family { family = $2 }
    /^model[ \t]*:/ && !model { model = $2 }
    END { print name, family, model }' /proc/cpuinfo 2>/dev/null |
    tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9\n' '-' | sed 's/^-*//; s/-*$//; s/^$/unknown/'
}

# Prints the commit, followed by "-dirty" if files differ from it.
commit() {
  git describe --always --dirty --abbrev=12 --match='' 2>/dev/null || echo unknown
}

# Adds the peers to the release build. An existing build keeps its tests, a new one has none.
cmake --preset release -DQKV_BENCH_PEERS=ON \
  $([ -f build/release/build.ninja ] || echo -DQKV_TESTS=OFF) >/dev/null
cmake --build --preset release --target qkv_bench
mkdir -p bench/results
result=bench/results/$(cpu_slug).json
build/release/bin/qkv_bench --commit "$(commit)" -o "$result" "$@"
echo "written: $result"
