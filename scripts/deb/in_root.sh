#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: in_root.sh PACKAGE.deb
# Runs in a bare root with a network, from scripts/deb/try.sh: installs the package, uses the
# program, builds and runs programs that link the library, and removes the package. The last line
# counts the files that were installed and removed.
set -eu
checkout=$(cd "$(dirname "$0")/../.." && pwd)
apt_get() { apt-get -qq -o Dpkg::Use-Pty=0 --yes --no-install-recommends "$@" >/dev/null; }

apt_get update
apt_get install "$1"
cd /tmp
qkv --version
qkv demo >demo.txt
test -s demo.txt
test "$(qkv translate --dates "the 3rd of May, 1987")" = 1987-05-03

apt_get install g++ cmake make pkg-config libfmt-dev libzip-dev zlib1g-dev libutf8proc-dev \
  libsentencepiece-dev
cmake -S "$checkout/tests/consumers/find_package" -B consumers >/dev/null
cmake --build consumers >/dev/null
consumers/consumer
consumers/consumer_app

dpkg --listfiles qkv | while read -r file; do test -d "$file" || echo "$file"; done >files.txt
apt_get remove qkv
while read -r file; do
  if test -e "$file"; then
    echo "in_root.sh: removing the package left $file" >&2
    exit 1
  fi
done <files.txt
echo "$(wc -l <files.txt) files were installed and removed"
