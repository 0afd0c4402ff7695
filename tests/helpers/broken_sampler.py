"""``python broken_sampler.py HOW DRAW RANK ...``: hpcgnn.train, where one sampling server goes astray at a draw."""

from __future__ import annotations

import os
import signal
import sys

from mpi4py import MPI

from hpcgnn import train
from hpcgnn.loop import launch
from hpcgnn.static.sampler_ranks import SamplerRank

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def arm(how: str, number: int) -> None:
    """Wrap the draw of a step."""
    original, calls = SamplerRank._draw, 0

    def wrapped(*args):
        nonlocal calls
        calls += 1
        if calls == number:
            if how == "raise":
                raise KeyError("a defect")
            os.kill(os.getpid(), SIGNALS[how])
        return original(*args)

    SamplerRank._draw = wrapped


if __name__ == "__main__":
    chosen, draw, rank = sys.argv[1:4]
    if MPI.COMM_WORLD.rank == int(rank):
        arm(chosen, int(draw))
    sys.exit(launch.run(train.main, sys.argv[4:]))
