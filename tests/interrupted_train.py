"""``python tests/interrupted_train.py POINT NUMBER RANK SIGNAL ...``: hpcgnn.train whose rank signals itself.

The signal comes at the NUMBER-th call (from 1) of what POINT names, before it runs. NUMBER 0: never.
"""

from __future__ import annotations

import os
import signal
import sys
from unittest import mock

from hpcgnn import train
from hpcgnn.comm.world import World
from hpcgnn.run import checkpoint_writer, launch
from hpcgnn.run.logs import MetricsFile
from hpcgnn.run.trainer import Trainer
from hpcgnn.store import files
from hpcgnn.tasks.temporal_link import TemporalLinkTask

POINTS = {
    "step": (Trainer, "train_step"),
    "evaluation": (TemporalLinkTask, "evaluate"),
    "checkpoint": (checkpoint_writer.CheckpointWriter, "add"),
    "file": (checkpoint_writer, "_write_file"),
    "manifest": (checkpoint_writer, "_write_manifest"),
    "rename": (files, "commit"),
    "prune": (checkpoint_writer, "prune"),
    "folder removal": (checkpoint_writer.shutil, "rmtree"),
    "metrics": (MetricsFile, "write"),
}


def armed(point: str, number: int, number_of_signal: int):
    """A context in which the function of a point is wrapped."""
    owner, name = POINTS[point]
    original, calls = getattr(owner, name), 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), number_of_signal)
        return original(*args, **kwargs)

    return mock.patch.object(owner, name, wrapped)


def main(world: World, arguments: list[str]) -> int:
    """Collective. The main function of the command."""
    point, number, rank, name, *rest = arguments
    if world.rank != int(rank):
        return train.main(world, rest)
    with armed(point, int(number), getattr(signal, name)):
        return train.main(world, rest)


if __name__ == "__main__":
    sys.exit(launch.run(main))
