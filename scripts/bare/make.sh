#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/bare/make.sh SUITE
# Makes build/roots/SUITE with debootstrap: the smallest system of that Debian release, with Python
# and without a compiler. A SUITE such as bookworm-arm64 is a system of another architecture, whose
# programs run under qemu. Makes no root if the folder exists. Must be run by the user root. Needs
# Debian's archive, or the mirror that QKV_MIRROR names.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

readonly suite=${1:?usage: scripts/bare/make.sh SUITE}
readonly root=$PWD/build/roots/$suite
readonly binfmt=/proc/sys/fs/binfmt_misc
if [[ $suite == *-arm64 && ! -e $binfmt/qemu-aarch64 && -f /usr/lib/binfmt.d/qemu-aarch64.conf ]]; then
  # No service has told the kernel to run arm64 programs by qemu, for example in a container.
  [ -e $binfmt/register ] || mount -t binfmt_misc binfmt_misc $binfmt || true
  cat /usr/lib/binfmt.d/qemu-aarch64.conf >$binfmt/register || true
fi
[ -d "$root" ] && exit
[ "$(id -u)" = 0 ] || {
  echo "make.sh: build/roots/$suite does not exist, and only the user root can make it" >&2
  exit 1
}
command -v debootstrap >/dev/null || {
  echo "make.sh: build/roots/$suite needs debootstrap; scripts/setup.sh pack installs it" >&2
  exit 1
}
arch=""
if [[ $suite == *-arm64 ]]; then arch=arm64; fi
rm -rf "$root.new"
mkdir -p "$root.new"
# debootstrap has its own mount namespace, so that nothing stays mounted below build/.
scripts/quietly.sh "root $suite" unshare --mount debootstrap --variant=minbase --include=python3,python3-venv \
  ${arch:+"--arch=$arch"} "${suite%-*64}" "$root.new" ${QKV_MIRROR:+"$QKV_MIRROR"} >&2
mv "$root.new" "$root"
