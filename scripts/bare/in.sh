#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/bare/in.sh SUITE [--network] [--bind DIRECTORY]... COMMAND [ARGUMENT...]
# Runs a command with build/roots/SUITE (scripts/bare/make.sh) as its root directory, without a
# network unless --network. The checkout and each DIRECTORY are there, read-only, at their own
# paths. All that the command writes is thrown away. Must be run by the user root.
set -euo pipefail
source "$(dirname "$0")/../env.sh"

usage() {
  echo "usage: scripts/bare/in.sh SUITE [--network] [--bind DIRECTORY]... COMMAND [ARGUMENT...]" >&2
  exit 2
}

(($# > 0)) || usage
readonly root=$PWD/build/roots/$1
shift
apart=(unshare --mount --pid --fork --kill-child)
network=--net
binds=("$PWD")
while [[ ${1:-} == --* ]]; do
  case $1 in
    --network) network="" ;;
    --bind)
      (($# > 1)) || usage
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
(($# > 0)) || usage

# Only these processes see the mounts, which end with them.
# shellcheck disable=SC2016
readonly inside='
  set -eu
  root=$1 count=$2 network=$3
  shift 3
  at=$root/../mounted
  mkdir -p "$at"
  mount -t tmpfs tmpfs "$at"
  mkdir "$at/written" "$at/work" "$at/system"
  mount -t overlay overlay -o "lowerdir=$root,upperdir=$at/written,workdir=$at/work" "$at/system"
  mount -t proc proc "$at/system/proc"
  mount --rbind /dev "$at/system/dev"
  while [ "$count" -gt 0 ]; do
    mkdir -p "$at/system$1"
    mount --bind "$1" "$at/system$1"
    mount -o remount,bind,ro "$at/system$1"
    shift
    count=$((count - 1))
  done
  [ -n "$network" ] || cp /etc/resolv.conf /etc/hosts "$at/system/etc"
  exec chroot "$at/system" /usr/bin/env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
'
exec "${apart[@]}" $network bash -c "$inside" in.sh "$root" "${#binds[@]}" "$network" "${binds[@]}" "$@"
