"""``python interrupted_train.py POINT NUMBER RANK FATE ...``: hpcgnn.train, where one rank meets its fate.

FATE is a signal that it sends itself, or a name of ``FATES``. It comes at the NUMBER-th call (from 1) of what POINT
names, before it runs. NUMBER 0: never.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from unittest import mock

from hpcgnn import train
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph import durable
from hpcgnn.loop import checkpoint_writer, launch
from hpcgnn.loop.logs import MetricsFile
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.static import inference
from hpcgnn.temporal.step import TemporalLinkTask

MEETS = "this rank meets"
BLOCK = 8 << 20  # bytes
START_SECONDS = 15.0  # for the watchdog until the configuration is known

POINTS = {
    "configuration": (train, "_parse"),
    "open": (train, "open_session"),
    "resume": (Trainer, "resume"),
    "step": (Trainer, "train_step"),
    "evaluation": (TemporalLinkTask, "evaluate"),
    "scores": (Session, "scores"),  # of a split, of any kind
    "chunk": (inference, "full_block"),  # of exact inference
    "checkpoint": (checkpoint_writer.CheckpointWriter, "add"),
    "file": (checkpoint_writer, "_write_file"),
    "manifest": (checkpoint_writer, "_write_manifest"),
    "rename": (durable, "commit"),
    "prune": (checkpoint_writer, "prune"),
    "folder removal": (checkpoint_writer.shutil, "rmtree"),
    "metrics": (MetricsFile, "write"),
    "close": (Trainer, "close"),
}


def fail() -> None:
    """An error that nobody expects."""
    raise KeyError("a defect")


def hang() -> None:
    """The main thread stays where it is; others go on."""
    time.sleep(1e6)


def use_up_memory() -> None:
    """Hold all that this process may have: 64 MiB more than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 8 * BLOCK
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    grow()


def grow() -> None:
    """Hold ever more memory, up to 2 GiB."""
    held = []
    while len(held) * BLOCK < 2 << 30:
        held.append(bytearray(BLOCK))


FATES = {
    "raise": fail, "hang": hang, "memory": use_up_memory, "grow": grow, "exit0": sys.exit, "exit3": lambda: sys.exit(3),
}  # fmt: skip


def meet(fate: str) -> None:
    """A signal, or what FATES names; said before."""
    print(MEETS, fate, file=sys.stderr, flush=True)
    if fate in FATES:
        FATES[fate]()
    else:
        os.kill(os.getpid(), getattr(signal, fate))


def armed(point: str, number: int, fate: str):
    """A context in which the function of a point is wrapped."""
    owner, name = POINTS[point]
    original, calls = getattr(owner, name), 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            meet(fate)
        return original(*args, **kwargs)

    return mock.patch.object(owner, name, wrapped)


def main(world: World, arguments: list[str]) -> int:
    """Collective. The main function of the command."""
    point, number, rank, fate, *rest = arguments
    with mock.patch.object(CommConfig, "watchdog_seconds", START_SECONDS):
        if world.rank != int(rank):
            return train.main(world, rest)
        with armed(point, int(number), fate):
            return train.main(world, rest)


if __name__ == "__main__":
    launch.leave(launch.run(main))
