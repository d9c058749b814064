#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: scripts/measure/two_hosts.sh RATE COMMAND...
# Runs COMMAND on host "one" of two hosts, "one" and "two". They are network namespaces of this
# machine, each with one processor, joined by a link of the rate RATE, as tc writes it (1gbit). Open
# MPI in COMMAND starts processes on both: mpirun --host one:1,two:1. In COMMAND, $ON two 'WORDS'
# runs WORDS on host "two", as ssh does.
# Needs root; ends with code 77 if namespaces cannot be made.
set -euo pipefail

readonly rate=$1
shift
readonly tag=qkv$$
folder=$(mktemp -d)
readonly folder

clean() {
  local host
  for host in one two; do
    ip netns del "$tag$host" 2> /dev/null || true
    rm -rf "/etc/netns/$tag$host"
  done
  rm -rf "$folder"
}
trap clean EXIT

make_hosts() {
  local host number
  ip netns add "${tag}one" && ip netns add "${tag}two" || return
  ip link add name wire netns "${tag}one" type veth peer name wire netns "${tag}two" || return
  for host in one two; do
    number=$([[ $host == one ]] && echo 1 || echo 2)
    ip -n "$tag$host" addr add "10.77.0.$number/24" dev wire &&
      ip -n "$tag$host" link set wire up && ip -n "$tag$host" link set lo up || return
    ip netns exec "$tag$host" tc qdisc add dev wire root tbf rate "$rate" burst 256k latency 50ms || return
    mkdir -p "/etc/netns/$tag$host" &&
      printf '127.0.0.1 localhost\n10.77.0.1 one\n10.77.0.2 two\n' > "/etc/netns/$tag$host/hosts" || return
  done
}
if ! make_hosts 2> "$folder/error"; then
  echo "two_hosts.sh: $(tail -1 "$folder/error")" >&2
  exit 77
fi

cat > "$folder/on" << END
#!/usr/bin/env bash
host=\$1
shift
processor=\$(( \$(nproc --all) > 1 && \$([[ \$host == two ]] && echo 1 || echo 0) ))
exec ip netns exec "$tag\$host" unshare --uts taskset -c "\$processor" bash -c "hostname \$host; \$*"
END
chmod +x "$folder/on"

export ON="$folder/on"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent="$ON"
export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
export OMPI_MCA_hwloc_base_binding_policy=none GLOO_SOCKET_IFNAME=wire
"$ON" one "$(printf '%q ' "$@")"
