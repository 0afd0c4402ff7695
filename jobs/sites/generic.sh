# shellcheck shell=bash disable=SC2034
# Slurm, with Open MPI's mpirun from the repository's virtual environment or from PATH. mpirun takes nodes and tasks
# from the allocation.
activate_venv

read -ra LAUNCH <<<"$(shield)"
LAUNCH+=(mpirun)
if ((${SLURM_CPUS_PER_TASK:-1} > 1)); then
    LAUNCH+=(--map-by "slot:PE=$SLURM_CPUS_PER_TASK")
fi
if [[ $(id -u) == 0 ]]; then
    LAUNCH+=(--allow-run-as-root)
fi
