# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: goes to the root of the checkout, puts a new enough CMake first on
# PATH, and lets builds and tests use all cores.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

readonly cmake_minimum=3.25

# If the first cmake on PATH is too old or broken, puts the folder of a later one first on PATH.
put_cmake_first() {
  local candidate version
  for candidate in $(type -ap cmake); do
    version=$("$candidate" --version 2>/dev/null | awk 'NR == 1 { print $3 }')
    if [ -n "$version" ] && printf '%s\n' "$cmake_minimum" "$version" | sort -CV; then
      [ "$candidate" = "$(type -P cmake)" ] || PATH="$(dirname "$candidate"):$PATH"
      return 0
    fi
  done
  return 1
}
put_cmake_first || true  # setup.sh reports what is missing

export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
export CTEST_PARALLEL_LEVEL="${CTEST_PARALLEL_LEVEL:-$(nproc)}"

# Whether .venv-python exists and matches the current requirements.
python_env_is_ready() {
  cat python/requirements-{test,torch,transformers,notebooks,browser,mpi}.txt | cmp -s - .venv-python/made-from
}
