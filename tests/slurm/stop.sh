#!/usr/bin/env bash
# Ends the Slurm that setup.sh started. Jobs that still run are cancelled.
set -euo pipefail

# shellcheck source=tests/slurm/nodes.sh
source "$(dirname "${BASH_SOURCE[0]}")/nodes.sh"

readonly STATE=/var/spool/slurm-test

if ! grep -qsF "$SLURM_MARK" /etc/slurm/slurm.conf; then
    echo "the Slurm of this machine is not the one for tests: left alone"
    exit
fi
scancel --user=root 2>/dev/null || true
for file in "$STATE"/slurmd*.pid "$STATE/slurmctld.pid"; do
    if [[ -e $file ]]; then
        pid=$(<"$file")
        kill "$pid" 2>/dev/null || true
        timeout 20 tail --pid="$pid" -f /dev/null
    fi
done
remove_nodes
