#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheel.sh
# Makes dist/qkv-VERSION-*-manylinux_*.whl: the package with the libraries it links and their
# licences, for machines that have neither. One wheel serves Python 3.12 and newer, by the stable
# ABI; each older Python has its own. Those of which scripts/wheel/pythons.sh finds no interpreter
# are left out, with a message.
set -euo pipefail
source "$(dirname "$0")/env.sh"

python_env_is_ready || {
  echo "wheel: no Python package index answered, so there is no .venv-python to pack with" >&2
  exit 1
}
readonly here=build/wheels
readonly requirements=python/requirements-wheel.txt

# Makes the environment that builds the wheel of a Python: VERSION, INTERPRETER.
make_environment() {
  local env=$here/$1/venv
  cmp -s "$requirements" "$env/made-from" && return
  "$2" -m venv --clear "$env"
  "$env/bin/python" -m pip --disable-pip-version-check --quiet --quiet install --no-deps \
    --requirement "$requirements" && cp "$requirements" "$env/made-from"
}

scripts/python_package.sh
rm -rf dist/qkv-*.whl build/repaired $here/packed
mkdir -p $here
cp -r build/wheel $here/packed
own=$(.venv-python/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# The Python of .venv-python comes first: it is the one for 3.12 and newer if it is as new.
mapfile -t pythons < <(scripts/wheel/pythons.sh | awk -v own="$own" '$1 != own')
pythons=("$own own" "${pythons[@]}")
declare -A made=()
for entry in "${pythons[@]}"; do
  read -r version python <<<"$entry"
  kind=$version
  if ((${version#3.} >= 12)); then kind="3.12 or newer"; fi
  if [ -n "${made[$kind]:-}" ]; then continue; fi
  if [ "$python" != own ]; then
    make_environment "$version" "$python"
    scripts/quietly.sh "wheel for Python $kind" \
      scripts/wheel/pack.sh "$PWD/$here/$version/venv/bin/python" "$here/$version/build" $here/packed
  fi
  made[$kind]=yes
done
for kind in 3.9 3.10 3.11 "3.12 or newer"; do
  [ -n "${made[$kind]:-}" ] || echo "wheel: none for Python $kind, which is not here"
done
for wheel in $here/packed/qkv-*.whl; do
  PATH=$PWD/.venv-python/bin:$PATH auditwheel repair --wheel-dir build/repaired "$wheel"
done
for wheel in build/repaired/qkv-*.whl; do
  .venv-python/bin/python scripts/wheel/licences.py "$wheel" dist
done
ls -l dist/*.whl
