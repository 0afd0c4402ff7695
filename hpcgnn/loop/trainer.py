"""The run loop: epochs of training, validation, early stopping, the final test, and checkpoints to resume from."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.memory import give_back
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError
from hpcgnn.graph.saved_rows import SavedRows
from hpcgnn.graph.splits import TRAIN_SPLIT
from hpcgnn.loop import checkpoint
from hpcgnn.loop.callbacks import Callbacks, TrainingRun
from hpcgnn.loop.checkpoint import Progress, State
from hpcgnn.loop.checkpoint_writer import CheckpointWriter, initialize, load
from hpcgnn.loop.launch import EXIT_DONE, EXIT_REQUEUE, StopRequest
from hpcgnn.loop.logs import MetricsFile, RunLog
from hpcgnn.loop.optimizer import FlatOptimizer
from hpcgnn.loop.own_metrics import own_functions
from hpcgnn.loop.profile import CHECKPOINT, WAIT, StageLog
from hpcgnn.loop.records import Seen
from hpcgnn.loop.same_model import check_model, check_source, generator_states, refuse_draws
from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.loop.settings import TrainConfig
from hpcgnn.nn.own_class import with_remedy
from hpcgnn.task.goal import TrainScores
from hpcgnn.task.own_loss import KEY, OwnLoss

WORST = -1e308  # of a metric that is not known; JSON has no infinity


ASKED = "stop requested: writing a checkpoint"  # said at once, as launchers may not wait for its end


class Stopped(Exception):
    """Raised on every rank, after a checkpoint, where a signal asked the run to leave; ends the run."""


class Trainer:
    """Collective throughout. Trains a session's model, and writes down how far it is; ``run`` returns the exit code.

    optimizer, flat: the model's, and its parameters as one buffer; progress: how far the run is.
    """

    def __init__(self, session: Session, folder: Path, log: RunLog, stop: StopRequest):
        self._config, num_steps = session.config.train, session.batches["train"].num_steps
        metric_names = session.goal.metric_names()
        with together(session.world.job, "find the metrics"):
            metric_names += tuple(own_functions(self._config.metrics, metric_names))
        _check(self._config, session, metric_names)
        self._callbacks = Callbacks(self._config.callbacks, session.world)
        own_code = [*_find_loss(session), *(f"train.callbacks {path}" for path in self._config.callbacks)]
        self._code = " or ".join([session.model_key, *own_code])  # what may draw random numbers in training
        session.check_training()
        self._monitored = self._config.monitor or session.goal.monitored()
        self.session, self.world, self.log, self._stop = session, session.world.job, log, stop
        self._run_folder, self._folder, self._watchdog = folder, folder / "checkpoints", session.watchdog
        keep, graph = session.config.output.keep, session.partition.graph_hash
        config = session.config.to_dict()
        self._writer = CheckpointWriter(self._folder, graph, keep, self.world, self._watchdog, config, session.schema)
        self.optimizer = FlatOptimizer(self._config, session.model, self.world, num_steps)
        self.flat, self.progress = self.optimizer.flat, Progress()
        self._scores = TrainScores(self.world, *session.goal.train_measure())  # of the epoch so far
        self._losses: list[torch.Tensor | float] = []  # of the plans so far of a step with several epochs
        self._saved_at = time.monotonic()  # when the newest checkpoint to resume from was begun
        self._is_checked = False  # whether a training step has been looked at
        self._resumed = ""  # the checkpoint that the run went on from
        self._metrics: MetricsFile | None = None
        self._stages: StageLog
        self._seen: Seen
        give_back()  # what opening the graph has left

    # -------------------------------------------------------------------------------------------------------------
    # beginning and end

    def start(self) -> None:
        """Start a new run, with the weights of another run where ``train.init`` names one."""
        if self._config.init:
            self.log(initialize(self.session, Path(self._config.init)))

    def resume(self) -> None:
        """Continue from the newest checkpoint; a run without one starts anew."""
        newest, has_best = checkpoint.find_sound(self._folder, self.world, self.log)
        if newest is None:
            self.log("no checkpoint to resume from: starting from the beginning")
            self.start()
            return
        state = load(self.session, newest)
        self.progress, self._resumed = state.progress, newest.name
        if not has_best:
            self._forget_best()
        self.optimizer.restore(state.tensors)
        self._scores.restore(state.scores)
        self._callbacks.restore(state.callbacks, checkpoint.named(state.tensors, checkpoint.CALLBACK))
        self.log(f"resumed from {newest.name}: epoch {self.progress.epoch}, step {self.progress.step}")

    def _forget_best(self) -> None:
        """Go on without the best epoch's checkpoint, which is damaged. Raises DistributedError where no epoch is left
        to take its place."""
        tag = checkpoint.best_tag(self.progress.best_epoch)
        if self.progress.epoch >= self._config.epochs:
            message = (
                f"{self._folder / tag}: damaged, and there is no checkpoint from before it: resume with a "
                "larger --train.epochs, to choose the best of the new epochs, or start a new run in another folder"
            )
            raise DistributedError(message, user_error=True)
        self.log(f"{tag} is damaged: the best epoch is chosen among the later ones")
        start = Progress()
        self.progress = replace(
            self.progress, best_metric=start.best_metric, best_epoch=start.best_epoch, bad_epochs=start.bad_epochs
        )

    def close(self) -> None:
        """Finish the checkpoints, and free what the ranks have together; the session stays open."""
        self._settle()
        self._writer.close()
        self.optimizer.close()

    # -------------------------------------------------------------------------------------------------------------
    # running

    def run(self) -> int:
        """Train to the end, test with the best epoch; 75 when a signal asked to stop (a checkpoint is written)."""
        self._seen = Seen(self.session, self._run_folder, self.log, self.progress)
        self._metrics = self._seen.metrics
        self._stages = StageLog(self.session, self._run_folder, self._resumed)
        try:
            self._callbacks.begin(TrainingRun(self.session.config, self.session.model, self._run_folder, self.world))
            while self.progress.epoch < self._config.epochs and not self._is_stopped:
                self._epoch()
            self._callbacks.call("on_train_end", self.world.broadcast(self._test()))
            with together(self.world, "write metrics.jsonl"):
                if self._metrics is not None:
                    self._metrics.position()
            for line in self._stages.table():
                self.log(line)
        except Stopped:
            self._settle()
            at = f"epoch {self.progress.epoch}, step {self.progress.step}"
            self.log(f"stopped at {at} with a checkpoint; continue with --resume")
            return EXIT_REQUEUE
        except DistributedError:
            self.session.memory.settle()  # all ranks leave, and leave no exchange under way
            with contextlib.suppress(DistributedError):
                self._writer.settle()  # what was true before is not lost
            self._writer.close()
            raise
        finally:
            self._seen.close()
            self._stages.close()
        return EXIT_DONE

    @property
    def _is_stopped(self) -> bool:
        """Whether early stopping, or a callback, ends training; a callback does so after a validation."""
        progress, config = self.progress, self._config
        is_ended = self._callbacks.stopped and config.validates(progress.epoch - config.parallel_epochs)
        return is_ended or 0 < config.early_stopping_patience <= progress.bad_epochs

    def _epoch(self) -> None:
        progress, memory = self.progress, self.session.memory
        self.start_epoch(progress.epoch)
        if progress.step == 0:
            memory.reset()
            self._scores.clear()
        before, begin = generator_states(), time.perf_counter()
        if progress.step < self.session.batches["train"].num_steps:
            self._train_steps(begin)
        memory.settle()
        progress.train_seconds += time.perf_counter() - begin
        refuse_draws(before, self.world, self._code, f"training, epoch {progress.epoch}")
        self._check_model()
        trained: list[SavedRows] | None = None
        metrics: dict[str, float] = {}
        of_training: dict[str, float] = {}
        if self._config.validates(progress.epoch):
            with self.session.timers("validation"):
                of_training = self._score_training(saves=True)  # before ``_renew``: it begins with new memory
                self._renew()
                trained = memory.saved()  # scoring moves memory on
                metrics = self._score("val", trained)
        reported = self._report_epoch(metrics, of_training)
        epoch = progress.epoch
        self._finish_epoch(metrics, trained, reported)
        self._stages.epoch(epoch)

    def _score_training(self, saves: bool) -> dict[str, float]:
        """Compute the metrics of the training split by name, with ``eval.train_split``. saves: a signal that stops it
        also saves a checkpoint."""
        if TRAIN_SPLIT not in self.session.loaders:
            return {}
        session = self.session
        trained = session.memory.saved() if saves else None
        metrics = self._score(TRAIN_SPLIT, trained)
        if trained is not None and session.keeps_memory:
            session.put_back(trained)
        return {f"train_{name}": value for name, value in metrics.items()}

    def _renew(self) -> None:
        """Rebuild memory before validation, where the session does so. A signal stops it, and the resumed run rebuilds
        memory from the beginning."""
        session = self.session
        if session.renew is None or session.renew(session, lambda: self.world.any(self._stop.requested)):
            return
        self.log(ASKED)
        self._save(session.memory.saved(), seconds=self.progress.train_seconds)
        raise Stopped

    def start_epoch(self, epoch: int) -> None:
        """Collective. Make the batches of an epoch; epochs may have different ones."""
        self.session.start_epoch(epoch)
        self.optimizer.start_epoch(self.session.batches["train"].num_steps)

    def _train_steps(self, begin: float) -> None:
        config, progress, already = self._config, self.progress, self.progress.train_seconds
        num_steps, stop = self.session.batches["train"].num_steps, False
        with self.session.plans("train", progress.epoch, progress.step) as plans, self._seen.steps(progress, num_steps):
            for plan in self.session.timers.waiting(WAIT, plans):
                summed = self.train_step(plan)
                if summed is None:
                    continue
                loss, stop, late = summed
                progress.loss_sum += loss * plan.batch_size
                progress.step, progress.global_step = plan.step + 1, progress.global_step + 1
                self._seen.step(progress, loss, self.optimizer.lr)
                self._callbacks.call("on_step_end", progress.global_step - 1, loss)
                if stop:
                    self.log(ASKED)
                due = late or (config.checkpoint_every and progress.step % config.checkpoint_every == 0)
                can_resume = self.session.task.can_resume(progress.epoch, progress.step)
                if can_resume and (stop or (due and progress.step < num_steps)):
                    self._save(self.session.memory.saved(), seconds=already + time.perf_counter() - begin)
                if stop:
                    break
        if stop:  # not within the block: left by this exception, it would not end the planning threads
            raise Stopped

    @property
    def _is_late(self) -> bool:
        """Whether the newest checkpoint is as old as ``train.checkpoint_minutes``, by this rank's clock. One that is
        under way comes first: a slow disk makes checkpoints rare, and not the training wait."""
        seconds = 60 * self._config.checkpoint_minutes
        return 0 < seconds <= time.monotonic() - self._saved_at and not self._writer.has_waiting

    def train_step(self, plan) -> tuple[float, bool, bool] | None:
        """Collective. Work one plan. The step's last plan also all-reduces gradients; the last step of an accumulation
        group also updates the weights. Returns the step's global loss, whether any rank was asked to stop and whether
        by any rank's clock a checkpoint is due; None before the step's last plan."""
        session, timers = self.session, self.session.timers
        self._watchdog.at("train", plan.step)
        if not self._losses:
            self.optimizer.begin(plan.step)
        before = None if self._is_checked else generator_states()
        session.memory.set_rate(self.optimizer.rate(plan.epoch, plan.step))
        with with_remedy(session.config.model.class_path):
            self._losses.append(session.task.train(plan))
        if before is not None:
            self._check_first_step(before)
        if self._config.train_metrics:
            self._scores.add(session.task.last_scores)
        if not plan.final:
            return None
        loss: Any = sum(self._losses)
        self._losses.clear()
        with timers("gradient sum"):  # the flags travel along, so that all ranks decide alike in the same step
            flags = self._stop.requested, self._writer.is_busy, self._is_late
            total, stop, busy, late = self.optimizer.sum(plan.step, loss, *flags)
        if self._writer.has_waiting and not busy:
            self._settle()
            self._watchdog.at("train", plan.step)
        if not np.isfinite(total):
            if isinstance(session.goal.sum, OwnLoss):
                with together(self.world, "training step"):
                    session.goal.sum.refuse()
            message = f"the loss is {total} in epoch {plan.epoch}, step {plan.step}; lower train.lr"
            raise DistributedError(message, user_error=False)  # the sum is the same on all ranks: they leave together
        with timers("optimizer"):
            self.optimizer.step(plan.epoch, plan.step)
        return total, stop, late

    def _check_first_step(self, before: dict[str, Any]) -> None:
        """Collective. Refuse a model whose first step drew from a generator of its own, or left ranks with different
        weights or buffers."""
        self._is_checked = True
        refuse_draws(before, self.world, self._code, "first training step")
        self._check_model()

    def _check_model(self) -> None:
        """Collective. Refuse weights or buffers that differ between ranks."""
        session = self.session
        check_model(session.model, self.world, session.config.model.class_path, self._config.callbacks)

    def _score(self, split: str, trained: list[SavedRows] | None = None) -> dict[str, float]:
        """Compute the metrics of a split; memory moves on through it. A signal stops it. trained: memory before the
        split, maybe without rows, to be saved in a checkpoint then; None: there is one of this state already."""
        with self._seen.scoring(split, lambda: self.world.any(self._stop.requested)) as stop:
            collected = self.session.scores(split, stop)
        if collected is None:
            self.log(ASKED)
            if trained is not None:
                self._save(trained, seconds=self.progress.train_seconds)
            raise Stopped
        self._watchdog.at(f"metrics of {split}")
        metrics = split_metrics(self.session, split, collected)
        return self.world.broadcast(metrics)  # every group has its own, equal to rounding: what follows must be equal

    def _report_epoch(self, metrics: dict[str, float], of_training: dict[str, float]) -> dict[str, float]:
        """Collective. Write the epoch's line into metrics.jsonl and into the log; returns its loss and metrics.
        metrics: of validation; of_training: of the training split, by full name."""
        progress, events = self.progress, int(self.session.batches["train"].sizes.sum())
        loss = progress.loss_sum / max(1, events)
        rate = events * self._config.parallel_epochs / max(progress.train_seconds, 1e-9)
        values = self._scores.metrics() if self._config.train_metrics else of_training
        values = values | {f"val_{name}": value for name, value in metrics.items()}
        self._write(
            "epoch",
            epoch=progress.epoch,
            train_seconds=progress.train_seconds,
            samples_per_second=rate,
            samples=self.session.roots,
            loss=loss,
            **values,
        )
        shown = [text for split in ("train", "val") if (text := headline(split, values, self._monitored))]
        parts = [f"loss {loss:.4f}", *shown, f"{progress.train_seconds:.1f} s", f"{rate:.0f} {self.session.roots}/s"]
        self.log(f"epoch {progress.epoch}: {', '.join(parts)}")
        return {"loss": loss, **values}

    def _finish_epoch(
        self, metrics: dict[str, float], trained: list[SavedRows] | None, reported: dict[str, float]
    ) -> None:  # fmt: skip
        """Collective. Save the best epoch and a checkpoint to resume from, and move on to the next epoch. metrics: of
        validation; trained: memory before it; empty and None for an epoch without validation. reported: loss and
        metrics for callbacks, which may change weights after the best epoch is saved, and before the next one."""
        progress = self.progress
        next_epoch = progress.epoch + self._config.parallel_epochs
        done = replace(progress, epoch=next_epoch, step=0, loss_sum=0.0, train_seconds=0.0)
        if trained is not None:
            name = self._monitored
            value = metrics.get(name, np.nan)  # some metrics are left out where a split has none of their events
            value = -value if self.session.goal.wants_lowest(name) else value
            if progress.best_epoch < 0 and np.isnan(value):
                self.log(f"validation has no {name}: the newest epoch is kept as the best")
            value = float(np.nan_to_num(value, nan=WORST))
            is_unknown = value == progress.best_metric == WORST  # of all epochs so far, as without validation roots
            if progress.best_epoch < 0 or value > progress.best_metric or is_unknown:
                done = replace(done, best_metric=value, best_epoch=progress.epoch, bad_epochs=0)
                # Before the step checkpoint below, which names it.
                self._save(trained, tag=checkpoint.best_tag(progress.epoch), seconds=progress.train_seconds)
            else:
                done = replace(done, bad_epochs=progress.bad_epochs + 1)
        if ending := self._callbacks.end_epoch(progress.epoch, reported):
            self.log(f"training ends with epoch {progress.epoch}: train.callbacks {ending}")
        if self._callbacks.has_epoch_ends:
            self._check_model()
        self.progress = done
        self._scores.clear()
        self._save(self.session.memory.between_epochs())

    def _test(self) -> dict[str, float]:
        """Validation, then test, from the best epoch's weights and memory; returns the metrics, none without a best
        epoch."""
        self._settle()  # that checkpoint may be under way
        epoch = self.progress.best_epoch
        if epoch < 0:
            return {}
        load(self.session, self._folder / checkpoint.best_tag(epoch))
        val = self._score("val")
        test = self._score("test")
        values = {
            f"{split}_{name}": value
            for split, scores in (("val", val), ("test", test))
            for name, value in scores.items()
        }
        values |= self._score_training(saves=False)  # last: it begins with new memory
        best = "lowest" if self.session.goal.wants_lowest(self._monitored) else "highest"
        self._write("test", epoch=self.progress.best_epoch, monitor=self._monitored, best=best, **values)
        self.log(f"best epoch {self.progress.best_epoch}: {outcome(values, self._monitored)}")
        return values

    # -------------------------------------------------------------------------------------------------------------
    # checkpoints

    def _save(self, memory: list[SavedRows], tag: str | None = None, seconds: float = 0.0) -> None:
        """Begin a checkpoint: weights and optimizer, in one to resume from (without a ``tag``) the epoch's training
        scores too. ``memory`` empty: the next epoch starts with empty memory. All groups of ranks have the same memory,
        which the first one writes."""
        session, is_step = self.session, tag is None
        if is_step and not session.task.can_resume(self.progress.epoch, self.progress.step):
            return
        self._watchdog.at("checkpoint", self.progress.global_step)
        with session.timers(CHECKPOINT):
            with together(self.world, "checkpoint"):  # on disk first: a resumed run cuts the file off at this byte
                self.progress.metrics_bytes = self._metrics.position() if self._metrics is not None else 0
            progress = replace(self.progress, train_seconds=seconds)
            tensors = checkpoint.model_tensors(session.model) | session.task.run_state()
            tensors |= self.optimizer.tensors(self.progress.step)
            columns = self._scores.columns() if is_step else {}
            scores = {name: torch.from_numpy(values) for name, values in columns.items()}
            callbacks, kept = self._callbacks.state() if is_step else ("", {})
            tensors |= {f"{checkpoint.CALLBACK}{name}": value for name, value in kept.items()}
            memory = memory if session.world.group == 0 else []
            tag = tag or checkpoint.step_tag(progress)
            self._writer.add(tag, State(progress, tensors, scores, callbacks), memory, session.partition.flat_row)
            if is_step:
                self._saved_at = time.monotonic()

    def _settle(self) -> None:
        """Wait until all checkpoints are whole."""
        self._watchdog.at("checkpoint", self.progress.global_step)
        with self.session.timers(CHECKPOINT):
            self._writer.settle()

    def _write(self, kind: str, **values) -> None:
        self._seen.write(kind, self.progress.global_step, **values)


def headline(split: str, values: dict[str, float], monitored: str = "") -> str:
    """Write up to two of a split's metrics as text, such as "test ap 0.9123, auc 0.9200": the monitored one, then the
    first others; NaN is left out."""
    names = [name for name in values if name.startswith(f"{split}_") and values[name] == values[name]]
    names.sort(key=lambda name: name != f"{split}_{monitored}")
    shown = [f"{name.removeprefix(f'{split}_')} {values[name]:.4f}" for name in names[:2]]
    return f"{split} {', '.join(shown)}" if shown else ""


def outcome(values: dict[str, float], monitored: str = "") -> str:
    """Write up to two metrics of the test as text, or, without a test, of validation."""
    return headline("test", values, monitored) or headline("val", values, monitored)


def _find_loss(session: Session) -> list[str]:
    """Collective. Load a loss of the user's own, and return its key and path; nothing for a built-in one. Raises
    DistributedError."""
    loss = session.goal.sum
    if not isinstance(loss, OwnLoss):
        return []
    with together(session.world.job, "find the loss"):
        loss.find()
    check_source(loss.path, KEY, session.world)
    return [f"{KEY} {loss.path}"]


def _check(config: TrainConfig, session: Session, known: tuple[str, ...]) -> None:
    """Refuse settings that do not fit this run's batches, such as an unknown train.monitor. Raises DistributedError,
    the same on all ranks."""
    batches = session.batches["train"]
    if config.monitor and config.monitor not in known:
        message = f"train.monitor must be one of {', '.join(known)} here, got {config.monitor!r}"
        raise DistributedError(message, user_error=True)
    if config.drop_last and batches.num_steps == 0:
        message = (
            f"train.drop_last leaves no batch of {config.batch_size} training {session.roots}; lower train.batch_size"
        )
        raise DistributedError(message, user_error=True)
    if config.epochs and not batches.sizes.sum():
        message = f"there are no {session.roots} to train on: see what the graph and its splits hold, or train.epochs 0"
        raise DistributedError(message, user_error=True)
