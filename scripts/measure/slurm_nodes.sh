#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/measure/slurm_nodes.sh COMMAND...
# Runs COMMAND in a job with two nodes of Slurm, n1 and n2, which are daemons of this machine: srun
# in it starts processes on both. Debian's packages: slurm-wlm, munge. Needs root; ends with code 77
# without it or without Slurm.
set -euo pipefail
PATH+=:/usr/sbin

if [[ ${1:-} != --inside ]]; then
  for program in munged slurmctld slurmd salloc; do
    if ! command -v "$program" > /dev/null || ((EUID != 0)); then
      echo "slurm_nodes.sh: needs root and $program" >&2
      exit 77
    fi
  done
  # Its own /etc/hosts; all daemons end with it.
  exec unshare --mount --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
shift

folder=$(mktemp -d)
readonly folder
trap 'rm -rf "$folder"' EXIT

chmod 755 "$folder"
mkdir "$folder"/{n1,n2,n1-tmp,n2-tmp,state}
host=$(hostname -s)
printf '127.0.0.1 localhost %s n1 n2\n' "$host" > "$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
head -c 1024 /dev/urandom > "$folder/key"
chmod 600 "$folder/key"
readonly port=$((20000 + RANDOM % 3000 * 4))
export SLURM_CONF="$folder/slurm.conf"
cat > "$SLURM_CONF" << END
ClusterName=test
SlurmctldHost=$host
SlurmctldPort=$port
SlurmUser=root
AuthInfo=socket=$folder/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmdSpoolDir=$folder/%n
TmpFS=$folder/%n-tmp
StateSaveLocation=$folder/state
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n[1-2] Default=YES State=UP
END

munged --foreground --force --key-file="$folder/key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" --seed-file="$folder/munge.seed" 2> /dev/null &
for _ in {1..100}; do [ ! -S "$folder/munge.socket" ] || break; sleep 0.1; done
slurmctld -D 2> /dev/null &
for node in n1 n2; do slurmd -D -N "$node" 2> /dev/null & done
for _ in {1..300}; do
  [[ $(sinfo --noheader --format=%T 2> /dev/null) != idle ]] || break
  sleep 0.1
done
salloc --quiet --nodes 2 --ntasks-per-node 1 "$@"
