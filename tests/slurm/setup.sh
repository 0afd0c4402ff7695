#!/usr/bin/env bash
# Installs and starts a Slurm on this machine, for tests: `bash tests/slurm/setup.sh`, as root on Debian or Ubuntu. Does
# nothing when a Slurm answers already. stop.sh ends it.
#
# It has two nodes, each in a network namespace and with a host name of its own, so that ranks on different nodes reach
# each other by TCP only; where the system allows no namespaces, one node.
set -euo pipefail

# shellcheck source=tests/slurm/nodes.sh
source "$(dirname "${BASH_SOURCE[0]}")/nodes.sh"

readonly CONF=/etc/slurm/slurm.conf
readonly STATE=/var/spool/slurm-test

slurm_answers() {
    command -v sinfo >/dev/null && timeout 20 sinfo >/dev/null 2>&1
}

# libpmix-dev for `srun --mpi=pmix`: Slurm looks for the library by its name without a version.
install_packages() {
    if command -v slurmctld slurmd munged ip >/dev/null && ls /usr/lib/*/libpmix.so >/dev/null 2>&1; then
        return
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        slurm-wlm munge libpmix-dev iproute2 >/dev/null
}

# Nodes of at least two CPUs: the smallest parallel job has two ranks. config_overrides lets Slurm believe it. Arguments:
# the controller's address, then NAME=ADDRESS of every node.
write_conf() {
    local host cpus memory controller=$1 node
    shift
    host=$(hostname -s)
    cpus=$(getconf _NPROCESSORS_ONLN)
    memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
    ((cpus >= 2)) || cpus=2
    cat >"$CONF" <<END
$SLURM_MARK
ClusterName=test
SlurmctldHost=$host($controller)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
StateSaveLocation=$STATE/ctld
SlurmdSpoolDir=$STATE/d-%n
TmpFS=$STATE/tmp-%n
SlurmctldPidFile=$STATE/slurmctld.pid
SlurmdPidFile=$STATE/slurmd-%n.pid
SlurmctldLogFile=$STATE/slurmctld.log
SlurmdLogFile=$STATE/slurmd-%n.log
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=5
KillWait=10
ReturnToService=2
END
    for node in "$@"; do
        echo "NodeName=${node%=*} NodeAddr=${node#*=} CPUs=$cpus RealMemory=$memory State=UNKNOWN"
    done >>"$CONF"
    echo "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$CONF"
}

start_controller() {
    mkdir -p "$STATE/ctld"
    if ! munge -n >/dev/null 2>&1; then
        install -d -o munge -g munge /run/munge
        runuser -u munge -- munged --force
    fi
    pidof -q slurmctld || slurmctld
}

start_nodes() {
    local name
    if make_nodes; then
        write_conf "$CONTROLLER_ADDRESS" "${NODES[@]}"
        start_controller
        for name in "${NODES[@]%=*}"; do
            mkdir -p "$STATE/d-$name" "$STATE/tmp-$name"
            on_node "$name" slurmd
        done
    else
        echo "no network namespaces here: a Slurm of one node"
        write_conf 127.0.0.1 "$(hostname -s)=127.0.0.1"
        start_controller
        mkdir -p "$STATE/d-$(hostname -s)" "$STATE/tmp-$(hostname -s)"
        slurmd
    fi
}

wait_until_idle() {
    for _ in {1..60}; do
        if ! timeout 10 sinfo -h -N -o %t 2>&1 | grep -vqE '^(idle|mix|alloc)$'; then
            echo "Slurm $(sinfo --version | cut -d' ' -f2) is up on $(sinfo -h -N -o %n | xargs)"
            return
        fi
        # A node that once went down, for example by a reboot, has to be told that it is well again.
        scontrol update NodeName=ALL State=RESUME >/dev/null 2>&1 || true
        sleep 0.5
    done
    echo "Slurm did not start; the end of its logs:" >&2
    tail -n 20 "$STATE"/*.log >&2
    return 1
}

main() {
    if slurm_answers; then
        echo "a Slurm is running already: $(sinfo -h -N -o '%n %t %c CPUs' | xargs)"
        return
    fi
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "cannot start Slurm: needs root and apt-get" >&2
        return 1
    fi
    if [[ -e $CONF ]] && ! grep -qF "$SLURM_MARK" "$CONF"; then
        echo "cannot start Slurm: $CONF is not ours and its Slurm does not answer" >&2
        return 1
    fi
    install_packages
    start_nodes
    wait_until_idle
}

main "$@"
