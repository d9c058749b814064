#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheel/sysroot.sh
# Makes build/sysroot/arm64: Debian 12's libraries for arm64 that the program and the Python package
# link, and their headers. Nothing in it is run. Does nothing if it is there. Needs to be root, and
# Debian's archive, or the mirror that QKV_MIRROR names.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

readonly sysroot=$PWD/build/sysroot/arm64
readonly packages=libc6-dev,libstdc++-12-dev,libcli11-dev,libfmt-dev,libhwy-dev,libpython3-dev,libsentencepiece-dev,libutf8proc-dev,libzip-dev,nlohmann-json3-dev,zlib1g-dev
[ -d "$sysroot" ] && exit
command -v debootstrap >/dev/null || {
  echo "sysroot: no debootstrap; scripts/setup.sh pack installs it" >&2
  exit 1
}
rm -rf "$sysroot.new"
mkdir -p "$sysroot.new"
# The first stage fetches packages and unpacks the base; it runs nothing of arm64.
scripts/quietly.sh "sysroot arm64" debootstrap --foreign --arch=arm64 --variant=minbase \
  --include="$packages" bookworm "$sysroot.new" ${QKV_MIRROR:+"$QKV_MIRROR"} >&2
for package in "$sysroot.new"/var/cache/apt/archives/*.deb; do
  dpkg-deb --extract "$package" "$sysroot.new"
done
# Absolute links would lead out of the sysroot.
find "$sysroot.new" -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln --symbolic --relative --force --no-dereference "$sysroot.new$(readlink "$link")" "$link"
done
mv "$sysroot.new" "$sysroot"
