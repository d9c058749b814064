#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: first_picture.sh PYTHON NUMPY_DIRECTORY
# Called by scripts/wheel/try.sh in a bare root: installs the wheel of dist/ that fits and the NumPy
# in NUMPY_DIRECTORY, without a package index or a compiler. Follows README.md to the first picture.
set -eu
checkout=$(cd "$(dirname "$0")/../.." && pwd)
for compiler in cc c++ gcc g++ clang; do
  if command -v "$compiler"; then
    echo "first_picture.sh: this root has a compiler" >&2
    exit 1
  fi
done
cd /tmp
"$1" -m venv v
started=$(date +%s.%N)
v/bin/python -m pip --disable-pip-version-check --quiet install --no-index \
  --find-links "$checkout/dist" --find-links "$2" qkv
v/bin/python "$checkout/scripts/wheel/first_picture.py" "$checkout/README.md" "$started"
