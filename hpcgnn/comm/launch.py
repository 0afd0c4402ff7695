"""Reads what the launcher and the batch system say in the environment, before MPI starts."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TextIO

# Number of tasks, or of those on this machine: Open MPI, MPICH and Intel MPI, MVAPICH2, IBM's jsrun, PALS (PBS on
# Cray), Flux, Slurm. The first one counts: a launcher of MPI may have been started within a task of Flux or Slurm.
LAUNCHER_SIZES = (
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "PALS_LOCAL_SIZE", "FLUX_JOB_SIZE",
    "SLURM_STEP_NUM_TASKS",
)  # fmt: skip
LAUNCHER_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "PALS_RANKID",
                  "FLUX_TASK_RANK", "SLURM_PROCID")  # fmt: skip
# Number of this process among the tasks on its machine, in the same order.
LAUNCHER_LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
    "JSM_NAMESPACE_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID",
)  # fmt: skip
# With which an MPI library takes the memory of GPUs: Cray MPICH, MVAPICH2.
CUDA_AWARE = {"CRAY": "MPICH_GPU_SUPPORT_ENABLED", "MVAPICH": "MV2_USE_CUDA"}
# Of torchrun and its likes, which start no MPI job. The size alone may be left over in a shell.
TORCH_SIZE, TORCH_TASK = "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "RANK")
# Processes between a rank and the terminal that forward what the rank prints: of Open MPI, MPICH and Intel MPI.
FORWARDERS = re.compile(r"mpirun|mpiexec|prterun|prted|orterun|orted|hydra")
# How variables begin that a launcher sets for a process, and that a program which it starts must not take for its own.
OF_A_TASK = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HYDRA_", "MPI_")
ERASE = "\r\033[K"  # takes the line of a terminal away
BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID", "LSB_JOBID")


def launched_tasks() -> tuple[str, int]:
    """Return the variable that holds the number of tasks, and the number; ("", 1) without a launcher."""
    variable = next((name for name in LAUNCHER_SIZES if _number(name)), "")
    tasks = _number(variable) or 1
    if tasks == 1 and _number(TORCH_SIZE) > 1 and any(name in os.environ for name in TORCH_TASK):
        return TORCH_SIZE, _number(TORCH_SIZE)
    return variable, tasks


def launched_rank() -> int:
    """Return this process's number among the tasks, 0 without a launcher."""
    return _number(next((name for name in LAUNCHER_RANKS if name in os.environ), ""))


def local_rank_for_gpu() -> int | None:
    """Return this process's number on its machine, by which it takes a GPU before MPI starts; None where that is not
    needed, as MPI takes no memory of GPUs, or where the launcher sets no such variable."""
    variable = next((name for name in LAUNCHER_LOCAL_RANKS if name in os.environ), "")
    is_aware = any(os.environ.get(name) == "1" for name in CUDA_AWARE.values())
    return _number(variable) if variable and is_aware else None


def environment_without_launcher() -> dict[str, str]:
    """Return the environment for a program that a rank starts, and that is no rank."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OF_A_TASK)}


def _number(variable: str) -> int:
    """Read a number of the environment, 0 where there is none."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0


def explain_copies(variable: str, tasks: int, library: str) -> str:
    """Explain why each of ``tasks`` processes, as ``variable`` counts them, takes itself for the only rank; name the
    remedy."""
    if variable == TORCH_SIZE:
        return (
            f"WORLD_SIZE={tasks}, but MPI sees a single rank: torchrun starts no MPI job; use mpirun -np {tasks} or "
            "srun in its place, or unset WORLD_SIZE if one process is meant"
        )
    return (
        f"{variable}={tasks}, but MPI sees a single rank: the launcher and the MPI library of mpi4py ({library}) do "
        "not know each other; use the mpirun of that library, or srun with the --mpi plugin it supports (srun "
        "--mpi=list)"
    )


def launched_by_batch_system() -> bool:
    """Say whether this process runs in a job of Slurm, PBS, Flux or LSF."""
    return any(os.environ.get(variable) for variable in BATCH_JOBS)


def is_on_terminal(stream: TextIO) -> bool:
    """Whether people see a stream of this process, stderr or stdout, on a terminal: at once, or through the launcher of
    its rank, which forwards it."""
    if stream.isatty():
        return True
    with contextlib.suppress(OSError, ValueError):
        process = os.getppid()
        while FORWARDERS.match(_read(f"/proc/{process}/comm")):
            if os.readlink(f"/proc/{process}/fd/{stream.fileno()}").startswith(("/dev/pts/", "/dev/tty")):
                return True
            process = int(_read(f"/proc/{process}/stat").rpartition(")")[2].split()[1])
    return False


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
