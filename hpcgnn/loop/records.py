"""Shows a run while it trains: metrics.jsonl, TensorBoard, a progress bar, lines in the log, traces of torch's
profiler.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from hpcgnn.comm.together import together
from hpcgnn.loop.checkpoint import Progress
from hpcgnn.loop.logs import MetricsFile, RunLog, without_nan
from hpcgnn.loop.profile import Tracer
from hpcgnn.loop.session import BaseSession
from hpcgnn.loop.settings import TrainConfig

REDRAW_SECONDS = 0.1
BAR_WIDTH = 16
ERASE = "\r\033[K"


class StepProgress:
    """For rank 0. ``train.progress`` decides on the bar, ``train.log_seconds`` on the lines; ``stream`` is where the
    bar is drawn."""

    def __init__(self, config: TrainConfig, log: RunLog, stream: TextIO | None = None):
        self._stream, self._log, self._log_seconds = stream or sys.stderr, log, config.log_seconds
        self._has_bar = config.progress == "on" or (config.progress == "auto" and self._stream.isatty())
        self.begin(0, 0, 0)

    def begin(self, epoch: int, done: int, num_steps: int) -> None:
        """An epoch, or what is left of it after ``done`` steps, begins."""
        self._epoch, self._first, self._num_steps = epoch, done, num_steps
        self._began = self._logged = time.monotonic()
        self._drawn = 0.0

    def step(self, done: int, loss: float) -> None:
        """So many steps of the epoch are done; the loss of the newest."""
        now = time.monotonic()
        if self._has_bar and now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._show(f"epoch {self._epoch} {self._bar(done)} {self._text(done, loss, now)}")
        if self._log_seconds and now - self._logged >= self._log_seconds:
            self._logged = now
            self.end()
            self._log(f"epoch {self._epoch}: step {self._text(done, loss, now)}")

    def scored(self, split: str, plans: int) -> None:
        """So many plans of a split have been scored; in the log only."""
        now = time.monotonic()
        if self._log_seconds and now - self._logged >= self._log_seconds:
            self._logged = now
            self._log(f"{split}: {plans} batches scored, {plans / (now - self._began):.1f} a second")

    def end(self) -> None:
        """Take the bar away, for other lines."""
        if self._has_bar:
            self._stream.write(ERASE)
            self._stream.flush()

    def _bar(self, done: int) -> str:
        filled = BAR_WIDTH * done // max(1, self._num_steps)
        return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]"

    def _text(self, done: int, loss: float, now: float) -> str:
        rate = (done - self._first) / max(now - self._began, 1e-9)
        minutes, seconds = divmod(round((self._num_steps - done) / max(rate, 1e-9)), 60)
        return f"{done} of {self._num_steps}, loss {loss:.4f}, {rate:.1f} steps/s, {minutes}:{seconds:02d} to go"

    def _show(self, text: str) -> None:
        self._stream.write(ERASE + text[: shutil.get_terminal_size().columns - 1])
        self._stream.flush()


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
