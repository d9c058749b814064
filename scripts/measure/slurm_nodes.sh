#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/measure/slurm_nodes.sh COMMAND...
# Runs COMMAND in a Slurm job with two nodes, n1 and n2, which are daemons on this machine. srun in
# COMMAND starts processes on n1 and n2. Must be run by the user root, with Debian's packages
# slurm-wlm and munge; exits with 77 otherwise.
set -euo pipefail
PATH+=:/usr/sbin

if [[ ${1:-} != --inside ]]; then
  for program in munged slurmctld slurmd salloc; do
    if ! command -v "$program" > /dev/null || ((EUID != 0)); then
      echo "slurm_nodes.sh: needs the user root and the program $program" >&2
      exit 77
    fi
  done
  # The namespaces have an /etc/hosts of their own, and all daemons end with them.
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

# await TENTHS WHAT COMMAND...: waits until COMMAND succeeds. After TENTHS tenths of a second,
# prints WHAT and the ends of the daemons' logs, and ends the script.
await() {
  local tenths=$1 what=$2
  while ! "${@:3}"; do
    if ((tenths-- == 0)); then
      echo "slurm_nodes.sh: $what" >&2
      tail -n 5 "$folder"/*.log >&2 || true
      exit 1
    fi
    sleep 0.1
  done
}
are_idle() { [[ $(sinfo --noheader --format=%T 2> /dev/null) == idle ]]; }

munged --foreground --force --key-file="$folder/key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" --seed-file="$folder/munge.seed" 2> /dev/null &
await 300 "munged has made no socket in 30 s" test -S "$folder/munge.socket"
slurmctld -D 2> /dev/null &
for node in n1 n2; do slurmd -D -N "$node" 2> /dev/null & done
await 600 "the nodes are not idle after 60 s" are_idle
salloc --quiet --nodes 2 --ntasks-per-node 1 "$@"
