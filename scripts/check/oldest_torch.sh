#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/check/oldest_torch.sh
# Runs the tests of qkv.torch with the PyTorch in python/requirements-torch-oldest.txt, in an
# environment of its own. Prints why tests are skipped there; the last line counts the tests. If no
# package index has this PyTorch, no test runs, and the last line says so.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

readonly here=$PWD/build/oldest_torch
readonly wanted=python/requirements-torch-oldest.txt
readonly pytorch_index=https://download.pytorch.org/whl/cpu
readonly pip=("$here/bin/python" -m pip --disable-pip-version-check --no-input --retries 2
  --timeout 60 --quiet --quiet)
readonly tests=(tests/python/test_torch_*.py tests/python/test_pages_torch.py
  tests/python/test_load_torch.py tests/python/test_foreign_arrays.py)

# Installs the requirements except those of CUDA, with PyTorch's CPU build.
install_cpu_build() {
  grep -v '^nvidia-' "$wanted" | sed 's/^torch==.*/&+cpu/' >"$here/cpu.txt"
  "${pip[@]}" install --no-deps --requirement "$here/cpu.txt" --extra-index-url "$pytorch_index"
}

skip() {
  rm -rf "$here"
  echo "0 tests run, ${#tests[@]} files of tests skipped: $1"
  exit 0
}

python_env_is_ready || scripts/python_env.sh
python_env_is_ready || skip "no Python package index answers"
if ! cmp -s "$wanted" "$here/made-from"; then
  rm -rf "$here"
  /usr/bin/python3 -m venv "$here"
  install_cpu_build 2>/dev/null ||
    "${pip[@]}" install --no-deps --requirement "$wanted" ||
    skip "no package index has $(grep '^torch==' "$wanted") for $(/usr/bin/python3 --version)"
  cp "$wanted" "$here/made-from"
fi

scripts/python_package.sh
"${pip[@]}" install --no-index --no-deps --force-reinstall build/wheel/qkv-*.whl
export OMP_NUM_THREADS=2
readonly report=build/check/oldest_torch.xml
rm -f "$report"
"$here/bin/python" -m pytest --quiet --junitxml "$report" "${tests[@]}" 2>/dev/null |
  grep -E '^(FAILED|ERROR|E  )' || true
.venv/bin/python scripts/count_tests.py "$report"
