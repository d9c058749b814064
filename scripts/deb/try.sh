#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/deb/try.sh
# Installs, uses and removes dist/qkv_*.deb in a bare root of this machine's Debian release. The
# last line counts the package's files.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
if ! scripts/bare/make.sh "$suite"; then
  echo "skipped: $suite: no root"
  exit
fi
scripts/bare/in.sh "$suite" --network sh "$PWD/scripts/deb/in_root.sh" "$PWD"/dist/qkv_*.deb
