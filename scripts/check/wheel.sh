#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/check/wheel.sh
# Installs only NumPy and the wheel of dist/ for Debian's Python into an empty environment, without
# an index, and uses the wheel there without a compiler on PATH. The last line counts the objects
# (program, shared libraries) whose dependencies were checked.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

readonly here=$PWD/build/wheel_check
readonly pip=(-m pip --disable-pip-version-check --quiet)
numpy=$(grep '^numpy==' python/requirements-test.txt)

if ! compgen -G "$here/numpy/numpy-${numpy#numpy==}-*.whl" >/dev/null; then
  .venv-python/bin/python "${pip[@]}" download --no-deps --dest "$here/numpy" "$numpy"
fi
rm -rf "$here/venv" "$here/empty"
mkdir -p "$here/empty"
/usr/bin/python3 -m venv "$here/venv"
alone() { (cd "$here/empty" && env -i PATH="$here/empty" HOME="$here/empty" "$@"); }
alone "$here/venv/bin/python" "${pip[@]}" install --no-index --find-links "$here/numpy" \
  --find-links "$PWD/dist" qkv

# The code of a notebook, which asserts the numbers that its document prints.
readonly code='
import json, sys
cells = json.load(open(sys.argv[1]))["cells"]
exec("\n".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code"))
'
checked=$(alone "$here/venv/bin/python" -c "$code" "$PWD/examples/notebooks/002.ipynb")
[[ $checked == *"10.0000 11.0000 12.0000 13.0000"* ]]
version=$(alone "$here/venv/bin/python" -m qkv --version)
[[ $version == "qkv "* ]]
day=$(alone "$here/venv/bin/python" -m qkv translate --dates "the 3rd of May, 1987")
[[ $day == 1987-05-03 ]]

# An object's dependencies must be in the wheel, or on every machine of the wheel's platform.
readonly platform='linux-vdso|ld-linux-x86-64|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z)'
objects=0
for object in "$here"/venv/lib/python3*/site-packages/qkv/{_core.*.so,bin/qkv} \
  "$here"/venv/lib/python3*/site-packages/qkv.libs/*; do
  if [ ! -e "$object" ]; then
    echo "the wheel has no $object"
    exit 1
  fi
  needs=$(ldd "$object")
  if outside=$(grep -vE "^\s*(/lib64/)?($platform)\.so|=> $here/" <<<"$needs"); then
    printf '%s needs what is not in the wheel:\n%s\n' "$object" "$outside"
    exit 1
  fi
  objects=$((objects + 1))
done
echo "$objects objects need nothing from outside the wheel"
