# shellcheck shell=bash disable=SC2034
# Slurm whose srun speaks PMIx (`srun --mpi=list` names pmix), with Open MPI. Preferable to mpirun where it works: Slurm
# sees every rank, so preemption reaches the ranks themselves.
activate_venv

# Open MPI from a wheel looks for its files below OPAL_PREFIX when no mpirun tells it where it is.
if [[ -n ${VIRTUAL_ENV:-} && -x $VIRTUAL_ENV/bin/mpirun ]]; then
    export OPAL_PREFIX=$VIRTUAL_ENV
fi
# Slurm's and Open MPI's PMIx may be built with different security plugins; this one both have.
export PMIX_MCA_psec=native

# srun does not take --cpus-per-task from the job. A rank that dies ends the step at once.
LAUNCH=(srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
