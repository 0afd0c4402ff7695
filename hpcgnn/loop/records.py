"""Shows a run while it trains: metrics.jsonl, loggers, progress as a bar and as lines in the log, traces.

The bar is by hand: tqdm would replace twelve lines and bring a dependency, and the lines in the log still need the same
rate and time to go.
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

from hpcgnn.comm.launch import ERASE, is_on_terminal
from hpcgnn.comm.together import together
from hpcgnn.loop.checkpoint import Progress
from hpcgnn.loop.loggers import Logger, open_loggers
from hpcgnn.loop.logs import MetricsFile, RunLog, without_nan
from hpcgnn.loop.profile import Tracer
from hpcgnn.loop.session import Session
from hpcgnn.loop.settings import TrainConfig

REDRAW_SECONDS = 0.1
BAR_WIDTH = 16


class StepProgress:
    """Shows the progress of an epoch, on rank 0: as a bar on ``stream`` depending on ``train.progress``, and as lines
    in the log every ``train.log_seconds``."""

    def __init__(self, config: TrainConfig, log: RunLog, stream: TextIO | None = None):
        self._stream, self._log, self._log_seconds = stream or sys.stderr, log, config.log_seconds
        self._has_bar = config.progress == "on" or (config.progress == "auto" and is_on_terminal(self._stream))
        self.begin(0, 0, 0)

    def begin(self, epoch: int, done: int, num_steps: int) -> None:
        """Begin an epoch, or what is left of it after ``done`` steps."""
        self._epoch, self._first, self._num_steps = epoch, done, num_steps
        self._began = self._logged = time.monotonic()
        self._drawn = 0.0

    def step(self, done: int, loss: float) -> None:
        """Show that ``done`` steps of the epoch are done; loss: of the newest one."""
        now = time.monotonic()
        if self._is_due(now):
            filled = BAR_WIDTH * done // max(1, self._num_steps)
            bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]"
            self._draw(f"epoch {self._epoch} {bar} {self._text(done, loss, now)}", now)
        if self._log_seconds and now - self._logged >= self._log_seconds:
            self._logged = now
            self.end()
            self._log(f"epoch {self._epoch}: step {self._text(done, loss, now)}")

    def scored(self, split: str, steps: int) -> None:
        """Show that ``steps`` steps of scoring a split are done."""
        now = time.monotonic()
        text = f"{split}: {steps} steps of scoring, {steps / max(now - self._began, 1e-9):.1f} steps/s"
        if self._is_due(now):
            self._draw(text, now)
        if self._log_seconds and now - self._logged >= self._log_seconds:
            self._logged = now
            self.end()
            self._log(text)

    def _is_due(self, now: float) -> bool:
        """Whether a line is to be drawn: at most ten times a second."""
        return self._has_bar and now - self._drawn >= REDRAW_SECONDS

    def _draw(self, line: str, now: float) -> None:
        """Draw a line over the one before."""
        self._drawn = now
        self._stream.write(ERASE + line[: shutil.get_terminal_size().columns - 1])
        self._stream.flush()

    def end(self) -> None:
        """Erase the bar, to make room for other lines."""
        if self._has_bar:
            self._stream.write(ERASE)
            self._stream.flush()

    def _text(self, done: int, loss: float, now: float) -> str:
        rate = (done - self._first) / max(now - self._began, 1e-9)
        minutes, seconds = divmod(round((self._num_steps - done) / max(rate, 1e-9)), 60)
        return f"{done} of {self._num_steps}, loss {loss:.4f}, {rate:.1f} steps/s, {minutes}:{seconds:02d} to go"


class Seen:
    """Records and shows a run: rank 0 alone, but with ``train.profile`` every rank writes a trace. Collective to
    create.

    metrics: the open metrics.jsonl, None on other ranks than 0.
    """

    def __init__(self, session: Session, folder: Path, log: RunLog, progress: Progress):
        self._config, world = session.config.train, session.world.job
        self.metrics: MetricsFile | None = None
        self._loggers: list[Logger] = []
        self._progress = None
        with together(world, "open metrics.jsonl"):
            if world.rank == 0:
                values, done = session.config.to_dict(), progress.global_step
                self._loggers = open_loggers(self._config.loggers, folder, values, done)
                self.metrics = MetricsFile(folder / "metrics.jsonl", progress.metrics_bytes)
                self._progress = StepProgress(self._config, log)
        self._tracer = Tracer(session, folder / "profile", log)

    @contextlib.contextmanager
    def steps(self, progress: Progress, num_steps: int) -> Iterator[None]:
        """Show the training steps of an epoch, which are in the block."""
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
        """Record and show that a step is done."""
        every = self._config.log_every
        if every and progress.global_step % every == 0:
            self.write("step", progress.global_step, epoch=progress.epoch, step=progress.step - 1, loss=loss, lr=lr)
        if self._progress:
            self._progress.step(progress.step, loss)
        self._tracer.reached(progress.global_step)

    @contextlib.contextmanager
    def scoring(self, split: str, stop: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
        """Wrap ``stop``, which is called after every step of scoring a split, so that each call shows progress."""
        if self._progress is None:
            yield stop
            return
        count, progress = itertools.count(1), self._progress
        progress.begin(0, 0, 0)

        def show_and_ask() -> bool:
            progress.scored(split, next(count))
            return stop()

        try:
            yield show_and_ask
        finally:
            progress.end()

    def write(self, kind: str, global_step: int, **values) -> None:
        """Write a line to metrics.jsonl, and its numbers to the loggers, after ``global_step`` steps."""
        if self.metrics is not None:
            self.metrics.write(kind, **values)
        numbers = {
            f"{kind}/{name}": value for name, value in without_nan(values).items()
            if name not in ("epoch", "step") and isinstance(value, int | float)
        }  # fmt: skip
        for logger in self._loggers:
            logger.write(numbers, global_step)

    def close(self) -> None:
        """Close the loggers."""
        for logger in self._loggers:
            logger.close()
