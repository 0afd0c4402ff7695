#!/usr/bin/env bash
# Ends the Slurm that setup.sh started. Jobs that still run are cancelled.
set -euo pipefail

readonly STATE=/var/spool/slurm-test

if ! grep -qsF "# written by tests/slurm/setup.sh" /etc/slurm/slurm.conf; then
    echo "the Slurm of this machine is not the one for tests: left alone"
    exit
fi
scancel --user=root 2>/dev/null || true
for daemon in slurmd slurmctld; do
    if [[ -e $STATE/$daemon.pid ]]; then
        pid=$(<"$STATE/$daemon.pid")
        kill "$pid" 2>/dev/null || true
        timeout 20 tail --pid="$pid" -f /dev/null
    fi
done
