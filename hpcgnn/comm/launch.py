"""Reads what the launcher and the batch system say in the environment, before MPI starts."""

from __future__ import annotations

import os

LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID", "LSB_JOBID")


def launched_tasks() -> tuple[str, int]:
    """Return the variable that holds the number of tasks, and the number; ("", 1) without a launcher."""
    for variable in LAUNCHER_SIZES:
        tasks = os.environ.get(variable, "")
        if tasks.isdigit():
            return variable, int(tasks)
    return "", 1


def launched_by_batch_system() -> bool:
    """Say whether this process runs in a job of Slurm, PBS, Flux or LSF."""
    return any(os.environ.get(variable) for variable in BATCH_JOBS)
