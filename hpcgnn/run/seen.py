"""What is seen of a run while it goes on: metrics.jsonl, TensorBoard, progress, profiles."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcgnn.comm.together import together
from hpcgnn.run.base import BaseSession
from hpcgnn.run.checkpoint import Progress
from hpcgnn.run.logs import MetricsFile, RunLog, without_nan
from hpcgnn.run.step_progress import StepProgress
from hpcgnn.run.trace import Tracer


class Seen:
    """Collective to create. Rank 0 tells; with ``train.profile`` every rank writes a profile.

    ``metrics`` is None elsewhere than on rank 0.
    """

    def __init__(self, session: BaseSession, folder: Path, log: RunLog, progress: Progress):
        self._config, world = session.config.train, session.world.job
        self.metrics: MetricsFile | None = None
        self._board = self._progress = None
        with together(world, "open metrics.jsonl"):
            if world.rank == 0:
                self._board = open_board(folder, progress.global_step) if self._config.tensorboard else None
                self.metrics = MetricsFile(folder / "metrics.jsonl", progress.metrics_bytes)
                self._progress = StepProgress(self._config, log)
        self._tracer = Tracer(session, folder / "profile", log)

    @contextlib.contextmanager
    def steps(self, progress: Progress, num_steps: int) -> Iterator[None]:
        """Around the training steps of an epoch."""
        if self._progress:
            self._progress.begin(progress.epoch, progress.step, num_steps)
        self._tracer.reached(progress.global_step)
        try:
            yield
        finally:
            self._tracer.end()
            if self._progress:
                self._progress.end()

    def step(self, progress: Progress, loss: float, lr: float) -> None:
        """A step is done."""
        every = self._config.log_every
        if every and progress.global_step % every == 0:
            self.write("step", progress.global_step, epoch=progress.epoch, step=progress.step - 1, loss=loss, lr=lr)
        if self._progress:
            self._progress.step(progress.step, loss)
        self._tracer.reached(progress.global_step)

    def scoring(self, split: str, stop: Callable[[], bool]) -> Callable[[], bool]:
        """``stop``, which is asked after every plan of a split that is scored; each time it is, progress is told."""
        if self._progress is None:
            return stop
        count, progress = itertools.count(1), self._progress
        progress.begin(0, 0, 0)

        def told() -> bool:
            progress.scored(split, next(count))
            return stop()

        return told

    def write(self, kind: str, global_step: int, **values) -> None:
        """A line in metrics.jsonl, its numbers also in TensorBoard's file, after so many steps of the run."""
        if self.metrics is not None:
            self.metrics.write(kind, **values)
        if self._board is not None:
            for name, value in without_nan(values).items():
                if name not in ("epoch", "step") and value is not None:
                    self._board.add_scalar(f"{kind}/{name}", value, global_step)

    def close(self) -> None:
        """The run is over, or left."""
        if self._board is not None:
            self._board.close()


def open_board(folder: Path, done: int):
    """A writer of TensorBoard's event files below the run folder; what an earlier start wrote of steps after ``done``
    does not count. Raises ValueError where its package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            "train.tensorboard needs the package tensorboard: pip install tensorboard, or leave it false"
        ) from error
    return SummaryWriter(folder / "tensorboard", purge_step=done + 1 if done else None)
