#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheel/try.sh [SUITE...]
# Tries the wheels of dist/ in bare roots of Debian's releases, with NumPy 1 and 2: in bookworm,
# trixie and sid, and if there are wheels for aarch64, in emulated bookworm-arm64 and trixie-arm64.
# In bookworm the interpreters of scripts/wheel/pythons.sh that no release has are also tried. What
# this machine cannot try is counted as skipped. The last line has the counts. Fails if a try fails,
# or if there is a root and nothing was tried in any.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

suites=("$@")
if ((${#suites[@]} == 0)); then
  suites=(bookworm trixie sid)
  if compgen -G "dist/qkv-*_aarch64.whl" >/dev/null; then suites+=(bookworm-arm64 trixie-arm64); fi
fi
tried=0 skipped=0 failed=0

skip() {
  echo "skipped: $1"
  skipped=$((skipped + 1))
}

# Arguments: VERSION MAJOR MACHINE. Puts NumPy MAJOR for Python VERSION into
# build/numpy/MACHINE/VERSION/MAJOR. Fails if there is no such NumPy.
fetch_numpy() {
  local to=build/numpy/$3/$1/$2
  compgen -G "$to/numpy-*.whl" >/dev/null && return
  .venv-python/bin/python -m pip --disable-pip-version-check --quiet --quiet download --no-deps \
    --only-binary :all: --implementation cp --python-version "$1" --abi "cp${1/./}" \
    --platform "manylinux_2_17_$3" --platform "manylinux_2_27_$3" \
    --platform "manylinux_2_28_$3" --dest "$to" "numpy==$2.*" 2>/dev/null
}

# Arguments: SUITE, PYTHON, its VERSION, and options of in.sh, which make a Python from outside of
# the root visible in it. Tries the wheels in the root.
try() {
  local suite=$1 python=$2 version=$3 machine=x86_64 major
  if [[ $suite == *-arm64 ]]; then machine=aarch64; fi
  for major in 1 2; do
    if ! fetch_numpy "$version" "$major" "$machine"; then
      skip "$suite: no NumPy $major for Python $version"
    elif scripts/bare/in.sh "$suite" "${@:4}" sh "$PWD/scripts/wheel/first_picture.sh" \
      "$python" "$PWD/build/numpy/$machine/$version/$major"; then
      tried=$((tried + 1))
    else
      echo "$suite: Python $version with NumPy $major: FAILED"
      failed=$((failed + 1))
    fi
  done
}

# `seen` has the versions of Python in the roots, each between spaces.
readonly version_of='import sys; print("%d.%d" % sys.version_info[:2])'
seen=" "
for suite in "${suites[@]}"; do
  if ! scripts/bare/make.sh "$suite"; then
    skip "$suite: no root"
    continue
  fi
  version=$(scripts/bare/in.sh "$suite" python3 -c "$version_of")
  seen+="$version "
  echo "$suite: Python $version"
  try "$suite" python3 "$version"
done
if [[ " ${suites[*]} " == *" bookworm "* && -d build/roots/bookworm ]]; then
  while read -r version python <&3; do
    [[ $seen == *" $version "* ]] && continue
    echo "bookworm: Python $version of this machine"
    try bookworm "$python" "$version" \
      --bind "$("$python" -c 'import sys; print(sys.base_prefix)')"
  done 3< <(scripts/wheel/pythons.sh)
fi
echo "$tried tried, $skipped skipped, $failed failed"
((failed == 0)) && { ((tried > 0)) || [[ $seen == " " ]]; }
