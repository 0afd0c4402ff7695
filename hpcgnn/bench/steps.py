"""Trains some steps of a run and records their computing and their exchanges.

Plans that a job makes ahead are made here when their turn comes, so that their seconds are measured apart from the
steps that would hide them. With one thread per rank, seconds are processor time: other work does not count.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from hpcgnn import kinds
from hpcgnn.bench import command
from hpcgnn.bench.trace import PLAN, STEP, Recorder, Trace
from hpcgnn.comm.world import World
from hpcgnn.graph.saved_rows import SavedRows
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.config import TemporalConfig

WHOLE_MESSAGES = 1 << 62  # bytes of one round


@dataclass(frozen=True, slots=True)
class SimulatedSteps:
    """Training steps that were recorded. steps: their number; batch_size: of a step on all ranks; losses [steps];
    epoch_steps: of an epoch; ahead: whether the job makes plans ahead."""

    trace: Trace
    steps: int
    batch_size: int
    losses: list[float]
    epoch_steps: int
    ahead: bool


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """In the block, plans are made when their turn comes, however many a run makes ahead."""
    begin = Prefetcher.__init__

    def change(self: Prefetcher, make: Any, start: int, stop: int, depth: int, in_a_row: int = 1) -> None:
        begin(self, make if callable(make) else make[:1], start, stop, 0)

    with mock.patch.object(Prefetcher, "__init__", change):
        yield


def clock_of(config: Any) -> Callable[[], float]:
    """Choose the clock that a rank's seconds are measured by: with one thread the processor's, as other work does not
    count in it."""
    return time.thread_time if config.comm.threads == 1 else time.perf_counter


def train_steps(
    config: Any, path: str, folder: Path, world: World, recorder: Recorder, steps: int, skipped: int
) -> SimulatedSteps:
    """Collective. Train ``skipped`` steps and then ``steps`` more, which are recorded. folder: for what the run
    writes."""
    losses: list[float] = []
    with command.training(kinds.open_session, config, path, folder, world) as (session, trainer):
        session.timers.mark = session.plan_timers.mark = recorder.within
        first, steps = choose_steps(session, steps, skipped)
        plans = _plans(session, trainer, recorder, first, skipped)
        for number, plan in enumerate(itertools.islice(plans, skipped + steps)):
            recorder.enter(STEP if number >= skipped else "")
            result = trainer.train_step(plan)
            losses.append(float("nan") if result is None else result[0])
        recorder.enter("")
        ahead = getattr(session.loaders["train"], "prefetch", 0) > 0
        epoch_steps = session.batches["train"].num_steps
    return SimulatedSteps(recorder.trace, steps, config.train.batch_size, losses[skipped:], epoch_steps, ahead)


def _plans(session: Session, trainer: Trainer, recorder: Recorder, first: int, skipped: int) -> Iterator[Any]:
    """Collective. Make the plans of step after step, epoch after epoch, from step ``first`` of epoch 0 on; from number
    ``skipped`` on that is recorded."""
    made = 0
    for epoch in itertools.count():
        recorder.enter("")
        begin_epoch(session, trainer, epoch, first if epoch == 0 else 0)
        with session.plans("train", epoch, first if epoch == 0 else 0) as plans:
            waiting = iter(plans)
            while True:
                recorder.enter(PLAN if made >= skipped else "")
                plan = next(waiting, None)
                if plan is None:
                    break
                made += 1
                yield plan


def choose_steps(session: Session, steps: int, skipped: int) -> tuple[int, int]:
    """Return the step of epoch 0 with which training begins, and the number of recorded steps. History grows from step
    to step of a temporal graph, so the recorded steps are in the middle of the epoch, at most a whole epoch. A whole
    one is epoch 1, behind steps that warm up."""
    epoch_steps = session.batches["train"].num_steps
    if session.config.KIND != TemporalConfig.KIND or epoch_steps == 0:
        return 0, steps
    first = epoch_steps if steps >= epoch_steps else (epoch_steps - steps) // 2
    return max(0, first - skipped) % epoch_steps, min(steps, epoch_steps)


def begin_epoch(session: Session, trainer: Trainer, epoch: int, step: int) -> None:
    """Collective. Begin an epoch with one of its steps. On temporal graphs the nodes that earlier steps would have sent
    a mail have an empty one, so that as many states are updated."""
    trainer.start_epoch(epoch)
    session.memory.reset()
    if step == 0:
        return
    history, memory = session.graph.splits.history, session.memory
    nodes = np.flatnonzero(np.diff(history.indptr))
    oldest = history.event[history.indptr[nodes]]
    has_mail = oldest < session.batches["train"].first_row[step]
    rows = torch.from_numpy(nodes[has_mail]).to(session.world.device)
    columns = {name: rows_of.new_zeros((len(rows), *rows_of.shape[1:])) for name, rows_of in memory.prototype().items()}
    memory.put(SavedRows(rows, columns | {"delivered": torch.ones_like(rows)}))
    memory.share(session.graph.channel)
