# shellcheck shell=bash disable=SC2034
# Slurm, with Intel MPI's mpiexec.hydra, which takes machines and tasks from the allocation. Intel MPI is loaded first,
# in a copy of this file or before `sbatch`: `module load intel-mpi`.
activate_venv

# mpi4py's wheel holds a module for either kind of library; Intel MPI's is MPICH's.
export MPI4PY_MPIABI=${MPI4PY_MPIABI:-mpich}
export I_MPI_HYDRA_BOOTSTRAP=${I_MPI_HYDRA_BOOTSTRAP:-slurm}

read -ra LAUNCH <<<"$(shield)"
LAUNCH+=(mpiexec.hydra)
