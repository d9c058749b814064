#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/python_env.sh
# Creates .venv-python, where the Python package is built and tested, from a package index (by pip's
# own settings). PyTorch is installed only as its CPU build. Does nothing if everything is there.
# Without an index there is no .venv-python: the Python tests are counted as skipped.
set -euo pipefail
source "$(dirname "$0")/env.sh"

readonly wanted=(python/requirements-{test,torch,transformers,notebooks,browser,mpi}.txt)
readonly pytorch_index=https://download.pytorch.org/whl/cpu
readonly pip=(.venv-python/bin/python -m pip --disable-pip-version-check --no-input --retries 2
  --timeout 60 --quiet --quiet)  # --quiet twice: no warnings of an index's settings

if python_env_is_ready; then exit 0; fi

try_install() { "${pip[@]}" install --no-deps --requirement "$@"; }

# Whether the index answers a request for one small package. If so, later failures are packages that
# it lacks.
index_answers() {
  "${pip[@]}" download --no-deps --dest .venv-python/asked \
    "$(grep "^iniconfig==" "${wanted[0]}")" >/dev/null 2>&1
}

echo "setup: making .venv-python" >&2
/usr/bin/python3 -m venv --clear .venv-python
if ! index_answers; then
  rm -r .venv-python
  echo "setup: no Python package index answers; the Python tests will be skipped" >&2
  exit 0
fi
try_install "${wanted[0]}" >&2 || {
  echo "setup: /usr/bin/python3 ($(/usr/bin/python3 --version)) cannot have all of ${wanted[0]}" >&2
  exit 1
}
try_install "${wanted[1]}" >&2 ||
  try_install "${wanted[1]}" --extra-index-url "$pytorch_index" >&2 ||
  echo "setup: no CPU build of PyTorch to be had; the tests that need it will be skipped" >&2
try_install "${wanted[2]}" >&2 ||
  echo "setup: no Transformers to be had; the tests that need it will be skipped" >&2
try_install "${wanted[3]}" >&2 ||
  echo "setup: nothing to be had that executes notebooks; their tests will be skipped" >&2
try_install "${wanted[4]}" >&2 ||
  echo "setup: no Playwright to be had; the tests in a browser will be skipped" >&2
try_install "${wanted[5]}" >&2 ||
  echo "setup: no mpi4py to be had; the tests that need it will be skipped" >&2
cat "${wanted[@]}" >.venv-python/made-from
