#!/usr/bin/env bash
# Installs and starts a single-node Slurm on this machine, for tests: `bash tests/slurm/setup.sh`, as root on Debian or
# Ubuntu. Does nothing when a Slurm answers already. stop.sh ends it.
set -euo pipefail

readonly CONF=/etc/slurm/slurm.conf
readonly MARK="# written by tests/slurm/setup.sh"
readonly STATE=/var/spool/slurm-test

slurm_answers() {
    command -v sinfo >/dev/null && timeout 20 sinfo >/dev/null 2>&1
}

# libpmix-dev for `srun --mpi=pmix`: Slurm looks for the library by its name without a version.
install_packages() {
    if command -v slurmctld slurmd munged >/dev/null && ls /usr/lib/*/libpmix.so >/dev/null 2>&1; then
        return
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge libpmix-dev >/dev/null
}

# One node with at least two CPUs: the smallest parallel job has two ranks. config_overrides lets Slurm believe it.
write_conf() {
    local host cpus memory
    host=$(hostname -s)
    cpus=$(getconf _NPROCESSORS_ONLN)
    memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
    ((cpus >= 2)) || cpus=2
    cat >"$CONF" <<END
$MARK
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
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
SlurmdSpoolDir=$STATE/d
SlurmctldPidFile=$STATE/slurmctld.pid
SlurmdPidFile=$STATE/slurmd.pid
SlurmctldLogFile=$STATE/slurmctld.log
SlurmdLogFile=$STATE/slurmd.log
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=5
KillWait=10
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=INFINITE State=UP
END
}

start_daemons() {
    mkdir -p "$STATE/ctld" "$STATE/d"
    if ! munge -n >/dev/null 2>&1; then
        install -d -o munge -g munge /run/munge
        runuser -u munge -- munged --force
    fi
    pidof -q slurmctld || slurmctld
    pidof -q slurmd || slurmd
}

wait_until_idle() {
    local host
    host=$(hostname -s)
    for _ in {1..60}; do
        if [[ $(timeout 10 sinfo -h -o %t 2>/dev/null) =~ ^(idle|mix|alloc)$ ]]; then
            echo "Slurm $(sinfo --version | cut -d' ' -f2) is up on $host"
            return
        fi
        # A node that once went down, for example by a reboot, has to be told that it is well again.
        scontrol update NodeName="$host" State=RESUME >/dev/null 2>&1 || true
        sleep 0.5
    done
    echo "Slurm did not start; the end of its logs:" >&2
    tail -n 20 "$STATE"/*.log >&2
    return 1
}

main() {
    if slurm_answers; then
        echo "a Slurm is running already: $(sinfo -h -o '%n %t %c CPUs' | head -n 1)"
        return
    fi
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "cannot start Slurm: needs root and apt-get" >&2
        return 1
    fi
    if [[ -e $CONF ]] && ! grep -qF "$MARK" "$CONF"; then
        echo "cannot start Slurm: $CONF is not ours and its Slurm does not answer" >&2
        return 1
    fi
    install_packages
    write_conf
    start_daemons
    wait_until_idle
}

main "$@"
