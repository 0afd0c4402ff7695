"""How far an epoch's training is: a bar on a terminal, a line in the log every so often."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from hpcgnn.run.logs import RunLog
from hpcgnn.run.settings import TrainConfig

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
