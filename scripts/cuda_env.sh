#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/cuda_env.sh
# Makes sure that cmake/cuda.cmake finds an nvcc for the CUDA kernels: by CUDACXX or CUDA_HOME, on
# PATH, or else in .venv-cuda, into which pip installs it (104 MB, from the package index of pip's
# settings). Does nothing if there is an nvcc that is new enough.
set -euo pipefail
source "$(dirname "$0")/env.sh"

readonly nvcc_minimum=12.8
readonly wanted=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)

# Whether a program is an nvcc that is new enough.
is_new_nvcc() {
  local version
  version=$("$1" --version 2>/dev/null | sed -nE 's/.*release [0-9.]+, V([0-9.]+)$/\1/p')
  [ -n "$version" ] && printf '%s\n' "$nvcc_minimum" "$version" | sort -CV
}

for nvcc in ${CUDACXX:+"$CUDACXX"} ${CUDA_HOME:+"$CUDA_HOME/bin/nvcc"} $(type -ap nvcc) \
  .venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
  if is_new_nvcc "$nvcc"; then exit 0; fi
done

echo "setup: making .venv-cuda" >&2
/usr/bin/python3 -m venv --clear .venv-cuda
.venv-cuda/bin/python -m pip --disable-pip-version-check --no-input --retries 2 --timeout 60 \
  --quiet --quiet install --no-deps "${wanted[@]}" >&2 || {
  rm -r .venv-cuda
  echo "setup: no nvcc $nvcc_minimum or newer here, and none to be had from a Python package index" >&2
  exit 1
}
is_new_nvcc .venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc || {
  echo "setup: the nvcc of .venv-cuda does not run" >&2
  exit 1
}
