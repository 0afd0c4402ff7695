# shellcheck shell=bash disable=SC2034
# Slurm, with the mpirun of the repository's virtual environment or of PATH: Open MPI's or MPICH's. It takes
# machines and tasks from the allocation.
activate_venv

read -ra LAUNCH <<<"$(shield)"
LAUNCH+=(mpirun)
if ((${SLURM_CPUS_PER_TASK:-1} > 1)); then
    open_mpi_options --map-by "slot:PE=$SLURM_CPUS_PER_TASK"
else
    open_mpi_options
fi
