"""Training steps of R ranks that are threads of this process (hpcgnn/comm/emulated.py): exactly what a job of so many
ranks does, as a record of seconds and messages.

Plans that a job makes ahead are made here when their turn comes, so that their seconds can be told from those of the
steps that they hide behind. With one thread a rank, seconds are those of the processor: other work does not count.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hpcgnn import kinds
from hpcgnn.bench import command
from hpcgnn.comm import shared
from hpcgnn.comm.emulated import EmulatedComm, Trace, emulate
from hpcgnn.comm.world import World
from hpcgnn.loop.prefetch import Prefetcher

PLAN, STEP = "plan", "step"
WHOLE_MESSAGES = 1 << 62  # bytes of one round


@dataclass(frozen=True, slots=True)
class Emulated:
    """What ``steps`` training steps of some ranks were. batch_size: of a step on all ranks; losses [steps]; ahead:
    whether the job makes plans ahead."""

    trace: Trace
    steps: int
    batch_size: int
    losses: list[float]
    ahead: bool


class _ThreadMemory:
    """Takes the place of ``shared.NodeMemory`` among ranks that are threads."""

    def __init__(self, world: World, node: Any, num_bytes: int):
        self.node = node
        self.bytes = node.share(np.empty(num_bytes, np.uint8) if node.rank == 0 else None)[0][:]

    def meet(self) -> None:
        """Collective. Wait for the other ranks of the node."""
        self.node.Barrier()

    def close(self) -> None:
        """Collective. Forget the memory."""
        self.bytes = np.empty(0, np.uint8)


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """In the block, plans are made when their turn comes, however many a run makes ahead."""
    begin = Prefetcher.__init__

    def change(self: Prefetcher, make: Any, start: int, stop: int, depth: int, in_a_row: int = 1) -> None:
        begin(self, make if callable(make) else make[:1], start, stop, 0)

    with mock.patch.object(Prefetcher, "__init__", change):
        yield


def clock_of(config: Any) -> Callable[[], float]:
    """Choose what the seconds of a rank are read from: with one thread the processor's, as other work does not count in
    them."""
    return time.thread_time if config.comm.threads == 1 else time.perf_counter


def emulate_steps(config: Any, path: str, num_ranks: int, steps: int, skipped: int, folder: Path) -> Emulated:
    """Train ``skipped`` steps and then ``steps`` more on so many ranks, at least one a part; ``comm.node_ranks`` of
    them are those of a node, 0: one. folder: for what the run writes."""
    config, hook = copy.deepcopy(config), sys.excepthook
    config.comm.device, config.comm.gradients, config.comm.watchdog_seconds = "cpu", "mpi", 0
    config.comm.max_message_bytes, config.comm.node_ranks = WHOLE_MESSAGES, max(1, config.comm.node_ranks)
    config.comm.threads = max(1, config.comm.threads)

    def train(comm: EmulatedComm) -> tuple[list[float], bool, Trace]:
        world = World(config.comm, comm)  # type: ignore[arg-type]
        return *train_steps(config, path, folder, world, comm.at, steps, skipped), comm.trace

    try:
        with in_place(), mock.patch.object(shared, "NodeMemory", _ThreadMemory):
            (losses, ahead, trace), *_ = emulate(num_ranks, train, clock_of(config))
    finally:
        sys.excepthook = hook
    return Emulated(trace, steps, config.train.batch_size, losses, ahead)


def train_steps(
    config: Any, path: str, folder: Path, world: World, at: Callable[[str], None], steps: int, skipped: int
) -> tuple[list[float], bool]:
    """Collective. Train ``skipped`` steps and then ``steps`` more, of which ``at`` is told what they are at. Returns
    their losses, and whether the run makes plans ahead."""
    losses = []
    with command.training(kinds.open_session, config, path, folder, world) as (session, trainer):
        for number, plan in enumerate(itertools.islice(_plans(session, trainer, at, skipped), skipped + steps)):
            at(STEP if number >= skipped else "")
            result = trainer.train_step(plan)
            losses.append(float("nan") if result is None else result[0])
        at("")
        return losses[skipped:], getattr(session.loaders["train"], "prefetch", 0) > 0


def _plans(session: Any, trainer: Any, at: Callable[[str], None], skipped: int) -> Iterator[Any]:
    """Collective. Make the plans of step after step, epoch after epoch; from number ``skipped`` on that is noted."""
    made = 0
    for epoch in itertools.count():
        at("")
        trainer.start_epoch(epoch)
        with session.plans("train", epoch) as plans:
            waiting = iter(plans)
            while True:
                at(PLAN if made >= skipped else "")
                plan = next(waiting, None)
                if plan is None:
                    break
                made += 1
                yield plan
