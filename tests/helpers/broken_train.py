"""``python broken_train.py HOW STEP RANK ...``: hpcgnn.train, where one rank goes astray before a step."""

from __future__ import annotations

import os
import signal
import sys

from mpi4py import MPI

from hpcgnn import train
from hpcgnn.loop import launch
from hpcgnn.loop.trainer import Trainer


def misbehave(how: str) -> None:
    """Raise, leave, or stop."""
    if how == "raise":
        raise KeyError("a defect")
    if how.startswith("exit"):
        sys.exit(int(how[4:]))
    os.kill(os.getpid(), signal.SIGSTOP)


def arm(how: str, number: int) -> None:
    """Wrap the training step."""
    original, calls = Trainer.train_step, 0

    def wrapped(*args):
        nonlocal calls
        calls += 1
        if calls == number:
            misbehave(how)
        return original(*args)

    Trainer.train_step = wrapped


if __name__ == "__main__":
    chosen, step, rank = sys.argv[1:4]
    if MPI.COMM_WORLD.rank == int(rank):
        arm(chosen, int(step))
    sys.exit(launch.run(train.main, sys.argv[4:]))
