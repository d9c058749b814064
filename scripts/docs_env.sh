#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/docs_env.sh
# Creates .venv-docs, in which the site of the documents is built, from the package index of pip's
# settings. Does nothing if .venv-docs was made from the present python/requirements-docs.txt.
# Fails without an index.
set -euo pipefail
source "$(dirname "$0")/env.sh"

readonly wanted=python/requirements-docs.txt

if cmp -s "$wanted" .venv-docs/made-from; then exit 0; fi
echo "setup: making .venv-docs" >&2
/usr/bin/python3 -m venv --clear .venv-docs
.venv-docs/bin/python -m pip --disable-pip-version-check --no-input --retries 2 --timeout 60 \
  --quiet --quiet install --no-deps --requirement "$wanted" >&2 || {
  rm -r .venv-docs
  echo "setup: no Python package index has all of $wanted" >&2
  exit 1
}
cp "$wanted" .venv-docs/made-from
