# shellcheck shell=bash disable=SC2034
# No Slurm: `bash jobs/train_tgn.slurm` runs two ranks on this machine. Ctrl-C or `kill -USR1` writes a checkpoint and
# ends the job; with HPCGNN_REQUEUE=repeat it is started again from there.
activate_venv

REQUEUE=${HPCGNN_REQUEUE:-none}
read -ra LAUNCH <<<"$(shield)"
LAUNCH+=(mpirun -np 2)
if [[ $(mpirun --version 2>/dev/null) == *"Open MPI"* ]]; then
    LAUNCH+=(--oversubscribe --bind-to none)
    [[ $(id -u) != 0 ]] || LAUNCH+=(--allow-run-as-root)
fi
