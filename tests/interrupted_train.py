"""``python tests/interrupted_train.py POINT NUMBER RANK SIGNAL ...``: hpcgnn.train whose rank signals itself.

The signal comes at the NUMBER-th call (from 1) of what POINT names, before it runs. NUMBER 0: never.
"""

from __future__ import annotations

import os
import signal
import sys

from mpi4py import MPI

from hpcgnn import train
from hpcgnn.run import checkpoint, launch
from hpcgnn.run.logs import MetricsFile
from hpcgnn.run.trainer import Trainer
from hpcgnn.store import files
from hpcgnn.tasks.temporal_link import TemporalLinkTask

POINTS = {
    "step": (Trainer, "train_step"),
    "evaluation": (TemporalLinkTask, "evaluate"),
    "checkpoint": (checkpoint, "save"),
    "file": (checkpoint, "_write_file"),
    "manifest": (checkpoint, "_write_manifest"),
    "rename": (files, "commit"),
    "prune": (checkpoint, "prune"),
    "folder removal": (checkpoint.shutil, "rmtree"),
    "metrics": (MetricsFile, "write"),
}


def arm(point: str, number: int, number_of_signal: int) -> None:
    """Wrap the function of a point."""
    owner, name = POINTS[point]
    original, calls = getattr(owner, name), 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), number_of_signal)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    chosen, at, rank, name = sys.argv[1:5]
    if MPI.COMM_WORLD.rank == int(rank):
        arm(chosen, int(at), getattr(signal, name))
    sys.exit(launch.run(train.main, sys.argv[5:]))
