#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/deb.sh
# Makes dist/qkv_VERSION-1_ARCHITECTURE.deb from the release build, for the release of Debian that
# runs here. DEBFULLNAME and DEBEMAIL name the package's maintainer. If lintian is installed, it
# must find no error. Without DEBEMAIL the maintainer is root@localhost, which lintian would refuse,
# so that its checks of the address are left out.
set -euo pipefail
source "$(dirname "$0")/env.sh"

scripts/build.sh release qkv_tool
# build.sh may not configure again, but only that reads DEBEMAIL.
scripts/quietly.sh "configure release" cmake --preset release
rm -rf dist/qkv_*.deb build/deb
mkdir -p dist
scripts/quietly.sh "Debian package" cpack --config build/release/CPackConfig.cmake -G DEB -B build/deb
cp build/deb/*.deb dist/
if command -v lintian >/dev/null; then
  asked=()
  [ -n "${DEBEMAIL:-}" ] ||
    asked=(--suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact)
  lintian --fail-on error "${asked[@]}" dist/qkv_*.deb
else
  echo "deb: no lintian, so the package was not checked by it"
fi
dpkg-deb --info dist/qkv_*.deb
ls -l dist/qkv_*.deb
