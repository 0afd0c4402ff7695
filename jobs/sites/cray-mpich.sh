# shellcheck shell=bash disable=SC2034
# HPE Cray EX with Cray MPICH and one GPU for each rank. mpi4py has to be built against Cray MPICH
# (`MPICC=cc pip install --no-binary=mpi4py mpi4py`).
set +u # module systems read variables that nobody has set
module load cray-mpich cray-python
set -u
activate_venv

# CUDA-aware messages: hpcgnn asks the library by this variable, and sends device tensors without copying them.
export MPICH_GPU_SUPPORT_ENABLED=1
# Each rank's messages leave by the network card next to its GPU.
export MPICH_OFI_NIC_POLICY=GPU
# Without it, libfabric may stall when GPU memory that it has registered is freed.
export FI_MR_CACHE_MONITOR=userfaultfd

# Every rank sees all GPUs of its machine (`sbatch --gpus-per-node=4 --ntasks-per-node=4`), and takes the one with its
# local rank before MPI starts. A rank that is shown only its own GPU (--gpus-per-task=1) could not open the others'
# memory: cuIpcOpenMemHandle fails.
LAUNCH=(srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --cpu-bind=cores --gpu-bind=none)
