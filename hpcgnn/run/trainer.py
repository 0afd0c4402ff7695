"""The run loop: epochs of training, validation, checkpoints, early stopping, the final test."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hpcgnn.comm.gradients import FlatParameters, GradientSum
from hpcgnn.comm.world import DistributedError
from hpcgnn.run import checkpoint
from hpcgnn.run.checkpoint import Progress, State
from hpcgnn.run.launch import EXIT_DONE, EXIT_REQUEUE, together
from hpcgnn.run.logs import MetricsFile, RunLog
from hpcgnn.run.session import Session, split_scores
from hpcgnn.run.signals import StopRequest
from hpcgnn.store.memory import MemoryRows
from hpcgnn.tasks.metrics import NAMES, link_metrics

LOSS, STOP = 0, 1  # extras that travel with the gradients


class Stopped(Exception):
    """All ranks agreed to checkpoint and leave."""


class Trainer:
    """Collective throughout. ``run`` returns the exit code."""

    def __init__(self, session: Session, folder: Path, log: RunLog, stop: StopRequest):
        self.session, self.world, self.log = session, session.world, log
        self._folder, self._stop, self._watchdog = folder / "checkpoints", stop, session.watchdog
        self._metrics_path = folder / "metrics.jsonl"
        self._metrics: MetricsFile | None = None
        self.flat = FlatParameters(session.model, num_extras=2)
        self.optimizer = torch.optim.Adam([self.flat.parameter], lr=session.config.train.lr, fused=True)
        self._sum = GradientSum(session.world)
        self.progress = Progress()

    # -------------------------------------------------------------------------------------------------------------
    # running

    def run(self) -> int:
        """Train to the end, test with the best epoch; 75 when a signal asked to stop (a checkpoint is written)."""
        with together(self.world, "open metrics.jsonl"):
            if self.world.rank == 0:
                self._metrics = MetricsFile(self._metrics_path, self.progress.metrics_bytes)
        try:
            while self.progress.epoch < self.session.config.train.epochs and not self._out_of_patience():
                self._epoch()
            self._test()
            self._close_metrics()
        except Stopped:
            self.log(f"stopped by a signal at epoch {self.progress.epoch}, step {self.progress.step}; --resume goes on")
            return EXIT_REQUEUE
        return EXIT_DONE

    def _epoch(self) -> None:
        progress, batches = self.progress, self.session.batches["train"]
        if progress.step == 0:
            self.session.memory.reset()
        begin = time.perf_counter()
        if progress.step < batches.num_steps:
            self._train_steps(begin)
        progress.train_seconds += time.perf_counter() - begin
        trained = self.session.memory.snapshot()
        self._check_parameters()
        metrics = self._score("val", trained)
        self._finish_epoch(metrics, trained)

    def _train_steps(self, begin: float) -> None:
        config, progress, already = self.session.config.train, self.progress, self.progress.train_seconds
        stop = False
        with self.session.plans("train", progress.epoch, progress.step) as plans:
            for plan in plans:
                loss, stop = self.train_step(plan)
                progress.loss_sum += loss * plan.batch_size
                progress.step, progress.global_step = plan.step + 1, progress.global_step + 1
                if config.log_every and progress.global_step % config.log_every == 0:
                    self._write("step", epoch=plan.epoch, step=plan.step, loss=loss)
                due = config.checkpoint_every and progress.step % config.checkpoint_every == 0
                if stop or (due and progress.step < self.session.batches["train"].num_steps):
                    self._save(self.session.memory.table, seconds=already + time.perf_counter() - begin)
                if stop:
                    break
        if stop:
            raise Stopped

    def train_step(self, plan) -> tuple[float, bool]:
        """Collective. One optimizer step; returns the global loss and whether any rank was asked to stop."""
        session, timers = self.session, self.session.timers
        self._watchdog.at("train", plan.step)
        self.flat.zero()
        loss = session.task.train(plan)
        self.flat.extras[LOSS] = loss
        self.flat.extras[STOP] = float(self._stop.requested)
        with timers("gradient sum"):
            self.flat.sum(self._sum)
        total, stop = self.flat.extras.tolist()
        if not np.isfinite(total):
            message = f"the loss is {total} in epoch {plan.epoch}, step {plan.step}; lower train.lr"
            raise DistributedError(message, user_error=False)  # the sum is the same on all ranks: they leave together
        with timers("optimizer"):
            self.optimizer.step()
        return total, stop > 0

    def _score(self, split: str, trained: MemoryRows | None) -> dict[str, float]:
        """Metrics of a split; memory moves on. A signal stops it: ``trained`` (memory before it) goes into the
        checkpoint."""
        scores, stop = [], False
        with self.session.plans(split, 0) as plans:
            for plan in plans:
                self._watchdog.at(split, plan.step)
                scores.append(self.session.task.evaluate(plan))
                stop = self.world.any(self._stop.requested)
                if stop:
                    break
        if stop:
            if trained is not None:
                self._save(trained, seconds=self.progress.train_seconds)
            raise Stopped
        if not scores:
            return dict.fromkeys(NAMES, float("nan"))
        positive, negative = split_scores(scores)
        return link_metrics(positive, negative, self.session.batches[split].inductive, self.world)

    def _finish_epoch(self, metrics: dict[str, float], trained: MemoryRows) -> None:
        progress, sizes = self.progress, self.session.batches["train"].sizes
        loss, events = progress.loss_sum / max(1, sizes.sum()), int(sizes.sum())
        rate = events / max(progress.train_seconds, 1e-9)
        values = {f"val_{name}": value for name, value in metrics.items()}
        self._write(
            "epoch",
            epoch=progress.epoch,
            train_seconds=progress.train_seconds,
            events_per_second=rate,
            loss=loss,
            **values,
        )
        self.log(
            f"epoch {progress.epoch}: loss {loss:.4f}, val AP {metrics['ap']:.4f}, AUC {metrics['auc']:.4f}, "
            f"{progress.train_seconds:.1f} s, {rate:.0f} events/s"
        )
        better = not metrics["ap"] <= progress.best_ap  # NaN (no validation events): the newest epoch is the best
        done = replace(progress, epoch=progress.epoch + 1, step=0, loss_sum=0.0, train_seconds=0.0)
        if better:
            done = replace(
                done, best_ap=float(np.nan_to_num(metrics["ap"], nan=-1.0)), best_epoch=progress.epoch, bad_epochs=0
            )
            self._save(trained, tag=checkpoint.best_tag(progress.epoch), seconds=progress.train_seconds)
        else:
            done = replace(done, bad_epochs=progress.bad_epochs + 1)
        self.progress = done
        self._save(None)

    def _out_of_patience(self) -> bool:
        patience = self.session.config.train.patience
        return patience > 0 and self.progress.bad_epochs >= patience

    def _test(self) -> None:
        """Validation, then test, from the best epoch's weights and memory."""
        epoch = self.progress.best_epoch
        if epoch < 0:
            return
        load(self.session, self._folder / checkpoint.best_tag(epoch))
        val = self._score("val", None)
        test = self._score("test", None)
        values = {
            f"{split}_{name}": value
            for split, scores in (("val", val), ("test", test))
            for name, value in scores.items()
        }
        self._write("test", epoch=self.progress.best_epoch, **values)
        self.log(f"best epoch {self.progress.best_epoch}: test AP {test['ap']:.4f}, AUC {test['auc']:.4f}")

    def _check_parameters(self) -> None:
        """Parameters must be the same on all ranks."""
        sums = self.world.allgather(self.flat.checksum())
        if len(set(sums)) > 1:
            raise RuntimeError(f"parameters differ between ranks after epoch {self.progress.epoch}: {sums}")

    def _close_metrics(self) -> None:
        with together(self.world, "write metrics.jsonl"):
            if self._metrics is not None:
                self._metrics.position()

    def _write(self, kind: str, **values) -> None:
        if self._metrics is not None:
            self._metrics.write(kind, **values)

    # ---------------------------------------------------------------------------------------------------------
    # checkpoints

    def _save(self, memory: MemoryRows | None, tag: str | None = None, seconds: float = 0.0) -> None:
        """Collective. ``memory`` None: the next epoch starts with empty memory."""
        self._watchdog.at("checkpoint", self.progress.global_step)
        with together(self.world, "checkpoint"):
            self.progress.metrics_bytes = self._metrics.position() if self._metrics is not None else 0
        progress = replace(self.progress, train_seconds=seconds)
        state = State(progress, self._tensors())
        is_step, tag = tag is None, tag or checkpoint.step_tag(progress)
        partition = self.session.partition
        checkpoint.save(self._folder, tag, state, memory, partition.flat_row, partition.graph, self.world)
        if is_step and self.world.rank == 0:
            checkpoint.prune(self._folder, progress.best_epoch)

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {f"model.{name}": value.detach() for name, value in self.session.model.named_parameters()}
        moments = self.optimizer.state.get(self.flat.parameter, {})
        return tensors | {f"adam.{name}": value for name, value in moments.items()}

    def resume(self) -> None:
        """Collective. Continue from the newest checkpoint; a run without one starts anew."""
        latest = self.world.broadcast(checkpoint.find_latest(self._folder))
        if latest is None:
            self.log("no checkpoint to resume from: starting anew")
            return
        self._restore(latest)
        self.log(f"resumed from {latest.name}: epoch {self.progress.epoch}, step {self.progress.step}")

    def _restore(self, path: Path) -> None:
        state = load(self.session, path)
        self.progress = state.progress
        moments = {name[5:]: value for name, value in state.tensors.items() if name.startswith("adam.")}
        if moments:
            device = self.flat.parameter.device
            moved = {name: value if name == "step" else value.to(device) for name, value in moments.items()}
            self.optimizer.state[self.flat.parameter] = moved

    def close(self) -> None:
        """Collective."""
        self._sum.close()


def load(session: Session, path: Path) -> State:
    """Collective. Weights and node memory of a checkpoint into a session; returns the whole state."""
    with together(session.world, "read checkpoint"):
        state, names = checkpoint.load_state(path, session.partition.graph)
        weights = {name[6:]: value for name, value in state.tensors.items() if name.startswith("model.")}
        _set_weights(session.model, weights, path)
    checkpoint.load_memory(path, names, session.memory, session.partition, session.world, session.plan_channel)
    return state


def _set_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Copy in place: parameters are views into the flat buffer."""
    parameters = dict(model.named_parameters())
    if {n: p.shape for n, p in parameters.items()} != {n: w.shape for n, w in weights.items()}:
        raise ValueError(f"{path}: the weights do not fit the configured model")
    for name, parameter in parameters.items():
        parameter.data.copy_(weights[name])
