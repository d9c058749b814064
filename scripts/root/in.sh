#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/root/in.sh SUITE [--network] [--bind DIRECTORY]... COMMAND [ARGUMENT...]
# Runs a command in build/roots/SUITE, without a network unless --network. The checkout and each
# DIRECTORY are there, read-only, at their own paths. All that the command writes is thrown away.
# Needs to be root.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

readonly root=$PWD/build/roots/${1:?usage: scripts/root/in.sh SUITE [--network] [--bind DIRECTORY]... COMMAND}
shift
apart=(unshare --mount --pid --fork --kill-child)
network=--net
binds=("$PWD")
while [[ $1 == --* ]]; do
  case $1 in
    --network) network="" ;;
    --bind)
      binds+=("$2")
      shift
      ;;
    *)
      echo "in.sh: no option '$1'" >&2
      exit 2
      ;;
  esac
  shift
done

# The mounts are seen by these processes alone, and end with them.
# shellcheck disable=SC2016
readonly inside='
  set -eu
  root=$1 count=$2 network=$3
  shift 3
  at=$root/../mounted
  mkdir -p "$at"
  mount -t tmpfs tmpfs "$at"
  mkdir "$at/written" "$at/work" "$at/root"
  mount -t overlay overlay -o "lowerdir=$root,upperdir=$at/written,workdir=$at/work" "$at/root"
  mount -t proc proc "$at/root/proc"
  mount --rbind /dev "$at/root/dev"
  while [ "$count" -gt 0 ]; do
    mkdir -p "$at/root$1"
    mount --bind "$1" "$at/root$1"
    mount -o remount,bind,ro "$at/root$1"
    shift
    count=$((count - 1))
  done
  [ -n "$network" ] || cp /etc/resolv.conf /etc/hosts "$at/root/etc"
  exec chroot "$at/root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
'
exec "${apart[@]}" $network bash -c "$inside" in.sh "$root" "${#binds[@]}" "$network" "${binds[@]}" "$@"
