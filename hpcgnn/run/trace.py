"""Traces of some training steps by torch's profiler, a file for every rank."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from hpcgnn.run.base import BaseSession
from hpcgnn.run.logs import RunLog


class Tracer:
    """Not collective. Traces the steps that ``train.profile`` names, counted from the start of the run, into
    ``folder``; stages of the training thread are ranges in the trace. The end of an epoch ends it too."""

    def __init__(self, session: BaseSession, folder: Path, log: RunLog):
        self._session, self._log, self._steps = session, log, session.config.train.profiled
        rank = session.world.job.rank
        self._path = folder / f"steps-{self._steps.start}-{self._steps.stop - 1}-rank-{rank}.json.gz"
        self._profiler: torch.profiler.profile | None = None

    def reached(self, done: int) -> None:
        """So many steps of the run are done: begin or end, where it is time."""
        if self._profiler is not None:
            if done not in self._steps:
                self.end()
        elif done in self._steps:
            self._begin()

    def end(self) -> None:
        """End the trace, if there is one, and write it."""
        if self._profiler is None:
            return
        self._profiler.stop()
        self._session.timers.mark = self._mark
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._profiler.export_chrome_trace(str(self._path))
            self._log(f"profile of steps {self._steps.start} to {self._steps.stop - 1} in {self._path.parent}")
        except OSError as error:  # no reason to stop
            self._log(f"{self._path}: cannot write the profile: {error.strerror or error}", everywhere=True)
        self._profiler, self._steps = None, range(0)

    def _begin(self) -> None:
        activities = [ProfilerActivity.CPU]
        if self._session.world.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self._mark, self._session.timers.mark = self._session.timers.mark, torch.profiler.record_function
        self._profiler.start()
