# shellcheck shell=bash disable=SC2034
# Slurm whose srun speaks PMI2 (`srun --mpi=list` names pmi2), with Intel MPI or MPICH, loaded before: Slurm sees every
# rank, so preemption reaches the ranks themselves.
activate_venv

# mpi4py's wheel holds a module for either kind of library; these are of MPICH's.
export MPI4PY_MPIABI=${MPI4PY_MPIABI:-mpich}
# Intel MPI asks Slurm's library only where it is told to; MPICH knows without.
export I_MPI_PMI=${I_MPI_PMI:-pmi2}

LAUNCH=(srun --mpi=pmi2 --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
