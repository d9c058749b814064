#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/check/conan.sh
# Builds the package of packaging/conan with this machine's Highway, and a program that uses the
# package, by a Conan that is installed in build/conan. Skips this if no Python package index has
# Conan. The last line counts the packages.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

readonly version=2.34.0
readonly here=$PWD/build/conan
export CONAN_HOME=$here/home

if [ "$("$here/venv/bin/conan" --version 2>/dev/null)" != "Conan version $version" ]; then
  /usr/bin/python3 -m venv --clear "$here/venv"
  if ! "$here/venv/bin/python" -m pip --disable-pip-version-check --quiet --quiet install \
    "conan==$version"; then
    echo "skipped: no Python package index has Conan"
    exit
  fi
fi
rm -rf "$CONAN_HOME"
"$here/venv/bin/conan" profile detect --force >/dev/null 2>&1
scripts/quietly.sh "Conan package" "$here/venv/bin/conan" create packaging/conan --no-remote \
  --settings compiler.cppstd=20 --options "&:system_highway=True" \
  --conf "tools.cmake.cmake_layout:test_folder=$here/test"
"$here/venv/bin/conan" list "qkv/*:*" --format=json 2>/dev/null |
  /usr/bin/python3 -c '
import json, sys
recipes = json.load(sys.stdin)["Local Cache"]
packages = [id for recipe in recipes.values() for revision in recipe["revisions"].values()
            for id in revision["packages"]]
print(len(packages), "Conan packages of", *recipes)
sys.exit(not packages)'
