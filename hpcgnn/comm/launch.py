"""How many tasks the launcher started, as it tells before MPI is there."""

from __future__ import annotations

import os

LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def launched_tasks() -> tuple[str, int]:
    """The variable that tells the number of tasks, and the number; ("", 1) where none was started by a launcher."""
    for variable in LAUNCHER_SIZES:
        tasks = os.environ.get(variable, "")
        if tasks.isdigit():
            return variable, int(tasks)
    return "", 1
