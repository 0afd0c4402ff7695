"""What the launcher and the batch system tell before MPI is there."""

from __future__ import annotations

import os

LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID", "LSB_JOBID")


def launched_tasks() -> tuple[str, int]:
    """The variable that tells the number of tasks, and the number; ("", 1) where none was started by a launcher."""
    for variable in LAUNCHER_SIZES:
        tasks = os.environ.get(variable, "")
        if tasks.isdigit():
            return variable, int(tasks)
    return "", 1


def launched_by_batch_system() -> bool:
    """Whether this process runs in a job of Slurm, PBS, Flux or LSF."""
    return any(os.environ.get(variable) for variable in BATCH_JOBS)
