"""What a run keeps in checkpoints, and how it goes on from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from hpcgnn.comm.together import together
from hpcgnn.run import checkpoint
from hpcgnn.run.base import BaseSession
from hpcgnn.run.checkpoint import Progress, State
from hpcgnn.run.checkpoint_writer import CheckpointWriter
from hpcgnn.run.logs import MetricsFile, RunLog
from hpcgnn.run.optimizer import FlatOptimizer
from hpcgnn.run.restore import initialize, load
from hpcgnn.run.stages import CHECKPOINT
from hpcgnn.run.train_scores import TrainScores
from hpcgnn.store.saved_rows import SavedRows


class Resumable:
    """Collective throughout. A session, its optimizer, the training scores of the epoch so far, and how far it is."""

    def __init__(self, session: BaseSession, folder: Path, log: RunLog):
        self.session, self.world, self.log = session, session.world.job, log
        self._config, num_steps = session.config.train, session.batches["train"].num_steps
        self._run_folder, self._folder, self._watchdog = folder, folder / "checkpoints", session.watchdog
        keep, graph = session.config.output.keep, session.partition.graph
        self._writer = CheckpointWriter(self._folder, graph, keep, self.world, self._watchdog)
        self._metrics: MetricsFile | None = None
        self.optimizer = FlatOptimizer(self._config, session.model, self.world, num_steps)
        self._scores = TrainScores(session.world.job, *session.train_measure())
        self.progress = Progress()
        self._resumed = ""  # the checkpoint that the run went on from

    def _save(self, memory: list[SavedRows], tag: str | None = None, seconds: float = 0.0) -> None:
        """Collective. Begin a checkpoint. ``memory`` empty: the next epoch starts with empty memory. Every group's is
        the same: the first one writes it."""
        if tag is None and not self.session.can_resume(self.progress.epoch, self.progress.step):
            return
        self._watchdog.at("checkpoint", self.progress.global_step)
        with self.session.timers(CHECKPOINT):
            self._begin_checkpoint(memory, tag, seconds)

    def _begin_checkpoint(self, memory: list[SavedRows], tag: str | None, seconds: float) -> None:
        """Collective."""
        with together(self.world, "checkpoint"):
            self.progress.metrics_bytes = self._metrics.position() if self._metrics is not None else 0
        progress = replace(self.progress, train_seconds=seconds)
        is_step, tag = tag is None, tag or checkpoint.step_tag(progress)
        state = State(progress, self._tensors(is_step))
        memory = memory if self.session.world.group == 0 else []
        self._writer.add(tag, state, memory, self.session.partition.flat_row)

    def _settle(self) -> None:
        """Collective. Wait until all checkpoints are whole."""
        self._watchdog.at("checkpoint", self.progress.global_step)
        with self.session.timers(CHECKPOINT):
            self._writer.settle()

    def _tensors(self, resumable: bool) -> dict[str, torch.Tensor]:
        """Collective. Weights and optimizer; in a checkpoint to resume from, the epoch's training scores too."""
        tensors = {f"model.{name}": value.detach() for name, value in self.session.model.named_parameters()}
        tensors |= self.optimizer.tensors(self.progress.step) | self.session.run_state()
        return tensors | (self._scores.gather() if resumable else {})

    def start(self) -> None:
        """Collective. A new run: weights from another one where ``task.init`` names it."""
        source = self.session.initial_run
        if source:
            self.log(initialize(self.session, Path(source)))

    def resume(self) -> None:
        """Collective. Continue from the newest checkpoint; a run without one starts anew."""
        newest = checkpoint.find_sound(self._folder, self.world, self.log)
        if newest is None:
            self.log("no checkpoint to resume from: starting anew")
            self.start()
            return
        self._restore(newest)
        self._resumed = newest.name
        self.log(f"resumed from {newest.name}: epoch {self.progress.epoch}, step {self.progress.step}")

    def _restore(self, path: Path) -> None:
        state = load(self.session, path)
        self.progress = state.progress
        self.optimizer.restore(state.tensors)
        self._scores.restore(state.tensors)

    def close(self) -> None:
        """Collective."""
        self._settle()
        self._writer.close()
        self.optimizer.close()
