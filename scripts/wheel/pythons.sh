#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheel/pythons.sh
# Prints the versions of Python, 3.9 or newer, for which extension modules can be built here, and an
# interpreter of each: one a line, such as "3.11 /usr/bin/python3.11". Looks for Debian's, then on
# PATH, then for those of pyenv.
set -euo pipefail

# Whether an interpreter is Python 3.MINOR, outside of a virtual environment, with headers and venv.
# Arguments: INTERPRETER MINOR.
is_complete() {
  "$1" -c "import ensurepip, os, sys, sysconfig, venv
assert sys.version_info[:2] == (3, $2) and sys.prefix == sys.base_prefix
os.stat(os.path.join(sysconfig.get_path('include'), 'Python.h'))" 2>/dev/null
}

for minor in {9..20}; do
  for python in "/usr/bin/python3.$minor" $(type -ap "python3.$minor") \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor."*"/bin/python3.$minor"; do
    if [ -x "$python" ] && is_complete "$python" "$minor"; then
      echo "3.$minor $python"
      break
    fi
  done
done
