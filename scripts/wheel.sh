#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheel.sh [x86_64|aarch64]
# Makes dist/qkv-VERSION-*-manylinux_*.whl: the package with the libraries that it links, and their
# licences. One wheel serves Python 3.12 and newer, by the stable ABI; each older Python has its
# own. A Python of which scripts/wheel/pythons.sh finds no interpreter is left out, with a message.
# For aarch64 everything is cross-compiled, with Debian 12's libraries.
set -euo pipefail
source "$(dirname "$0")/env.sh"

readonly machine=${1:-x86_64}
[[ $machine == x86_64 || $machine == aarch64 ]] || {
  echo "usage: scripts/wheel.sh [x86_64|aarch64]" >&2
  exit 2
}
python_env_is_ready || {
  echo "wheel: no Python package index answered, so there is no .venv-python to pack with" >&2
  exit 1
}
readonly here=build/wheels
readonly packed=$here/packed-$machine
readonly requirements=python/requirements-wheel.txt
readonly sysroot=$PWD/build/sysroot/arm64

# Makes the environment that builds the wheel of a Python. Arguments: VERSION INTERPRETER.
make_environment() {
  local env=$here/$1/venv
  cmp -s "$requirements" "$env/made-from" && return
  "$2" -m venv --clear "$env"
  "$env/bin/python" -m pip --disable-pip-version-check --quiet --quiet install --no-deps \
    --requirement "$requirements" && cp "$requirements" "$env/made-from"
}

# Packs the wheel of a Python. Arguments: VERSION, INTERPRETER with the build tools. For AArch64,
# Python's headers are Debian's for arm64, or if Debian 12 lacks the version, this machine's: types
# have the same sizes on both machines.
pack() {
  local command=(scripts/wheel/pack.sh "$2" "$here/$1/build-$machine" "$packed")
  local headers=$sysroot/usr/include/python$1
  if [ "$machine" = aarch64 ]; then
    [ -d "$headers" ] || headers=$("$2" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    command=(env _PYTHON_HOST_PLATFORM=linux-aarch64
      SETUPTOOLS_EXT_SUFFIX=".cpython-${1/./}-aarch64-linux-gnu.so"
      "${command[@]}" "$PWD/build/aarch64-package/installed"
      CMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ CMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake"
      QKV_SYSROOT="$sysroot" Python_INCLUDE_DIR="$headers")
  fi
  scripts/quietly.sh "wheel for Python $1" "${command[@]}"
}

rm -rf dist/qkv-*"$machine".whl build/repaired "$packed"
mkdir -p "$packed"
if [ "$machine" = x86_64 ]; then
  scripts/python_package.sh
  cp build/wheel/qkv-*.whl "$packed"
else
  scripts/wheel/sysroot.sh
  scripts/quietly.sh "configure aarch64-package" cmake --preset aarch64 -B build/aarch64-package \
    -DQKV_APP=ON -DQKV_TESTS=OFF -DQKV_SYSROOT="$sysroot"
  scripts/quietly.sh "build aarch64-package" cmake --build build/aarch64-package --target qkv_tool
  cmake --install build/aarch64-package --prefix build/aarch64-package/installed >/dev/null
fi

own=$(.venv-python/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# The Python of .venv-python comes first: if it is 3.12 or newer, it packs the wheel for all these.
mapfile -t pythons < <(scripts/wheel/pythons.sh | awk -v own="$own" '$1 != own')
pythons=("$own own" "${pythons[@]}")
declare -A made=()
for entry in "${pythons[@]}"; do
  read -r version python <<<"$entry"
  kind=$version
  if ((${version#3.} >= 12)); then kind="3.12 or newer"; fi
  if [ -n "${made[$kind]:-}" ]; then continue; fi
  if [ "$python" = own ]; then
    python=$PWD/.venv-python/bin/python
  else
    make_environment "$version" "$python"
    python=$PWD/$here/$version/venv/bin/python
  fi
  # For this machine and the Python of .venv-python, python_package.sh has already packed the wheel.
  if [[ $machine == aarch64 || $python != "$PWD"/.venv-python/* ]]; then pack "$version" "$python"; fi
  made[$kind]=yes
done
for kind in 3.9 3.10 3.11 "3.12 or newer"; do
  [ -n "${made[$kind]:-}" ] || echo "wheel: none for Python $kind, which is not here"
done
libraries=""
if [ "$machine" = aarch64 ]; then
  libraries=$sysroot/usr/lib/aarch64-linux-gnu:$sysroot/lib/aarch64-linux-gnu
fi
for wheel in "$packed"/qkv-*.whl; do
  LD_LIBRARY_PATH=$libraries PATH=$PWD/.venv-python/bin:$PATH \
    auditwheel repair --wheel-dir build/repaired "$wheel"
done
for wheel in build/repaired/qkv-*.whl; do
  .venv-python/bin/python scripts/wheel/licences.py "$wheel" dist
done
ls -l dist/*"$machine".whl
