"""The sections ``train`` and ``output`` of run files, and what the configurations of all kinds of graphs share."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from hpcgnn.choices import check_choices
from hpcgnn.comm.world import CommConfig
from hpcgnn.native.random import MOST_EPOCHS

Planner = Literal["auto", "host", "device"]  # where plans are made
LEAST = {
    "epochs": 0, "batch_size": 1, "seed": 0, "weight_decay": 0, "warmup_steps": 0, "min_lr": 0, "step_every": 1,
    "clip_grad_norm": 0, "accumulate_steps": 1, "parallel_epochs": 1, "eval_every": 1, "early_stopping_patience": 0,
    "log_every": 0, "checkpoint_every": 0, "checkpoint_minutes": 0, "leave_seconds": 0, "log_seconds": 0,
}  # fmt: skip


@dataclass
class TrainConfig:
    """The training loop.

    Attributes:
        epochs: passes over the training events.
        batch_size: events of a global batch, over all ranks.
        drop_last: leave out the last batch of training when it is short; its events stay in the history.
        lr: learning rate, the highest one of a schedule.
        optimizer: "adam", "adamw", or "sgd" with momentum 0.9.
        weight_decay: of all weights; decoupled with "adamw", added to the gradient with "adam" and "sgd".
        schedule: learning rate over optimizer steps: "constant", "cosine" or "linear" (down to min_lr at the end of
            the last epoch, which binds the run to its epochs), or "step" (times step_decay every step_every epochs).
        warmup_steps: optimizer steps over which the learning rate first rises linearly; 0: none.
        min_lr: the lowest learning rate of a schedule.
        step_every: epochs between two reductions of the "step" schedule.
        step_decay: factor of such a reduction.
        clip_grad_norm: longest gradient, all weights taken as one vector; longer ones are shortened to it; 0: no limit.
        accumulate_steps: consecutive steps whose gradients are averaged for one optimizer step; an epoch's last group
            may be shorter.
        parallel_epochs: epochs trained at once, step by step: their gradients are averaged for one optimizer step. Must
            divide epochs. Ranks form as many groups as divide both their number and this.
        seed: of everything random, below 2^56.
        precision: float32 or float64, of weights and node memory.
        matmul: how rows are multiplied with weights: float32, tf32 (rounded to 10 bits of mantissa) or bf16 (rounded to
            bfloat16), both added up in float32; fast on CUDA devices, slow on others.
        cuda_graphs: launch training steps as CUDA graphs, one a shape; lengths are padded so that many steps have the
            same. For one rank whose device makes the plans (``sampling.plan_on``).
        eval_every: epochs between two validations; the last epoch is always validated.
        monitor: the validation metric that decides which epoch is best; empty: the first one, such as ap, mrr, auc or
            mse; of errors the lowest is best.
        early_stopping_patience: validations without a better one before the run stops; 0: never.
        train_metrics: also report metrics of the training scores, those that the loss was computed from.
        log_every: steps between two step lines in metrics.jsonl; 0: none.
        log_seconds: seconds between two lines in the log that tell how far an epoch is; 0: none.
        progress: a bar on stderr: "auto" (where rank 0's is a terminal), "on" or "off".
        tensorboard: also write the numbers of metrics.jsonl for TensorBoard, into tensorboard/ of the run folder; needs
            the package (`pip install tensorboard`).
        profile: steps such as 10-19, counted from 0 at the start of the run, that torch's profiler traces on every
            rank, into profile/ of the run folder; the end of an epoch ends the trace; empty: none.
        checkpoint_minutes: minutes of training after which another checkpoint is due within an epoch: as much is lost
            at most, however long a step takes; 0: none by the clock.
        checkpoint_every: steps between two checkpoints within an epoch; 0: none by their number. Of both, what is due
            first begins one.
        leave_seconds: how long before the end of the job's time (as SLURM_JOB_END_TIME or HPCGNN_JOB_END tell it) the
            run leaves with a checkpoint, to go on in the next job; 0: it does not look at the clock.
    """

    epochs: int = 10
    batch_size: int = 600
    drop_last: bool = False
    lr: float = 1e-3
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    warmup_steps: int = 0
    min_lr: float = 0.0
    step_every: int = 1
    step_decay: float = 0.5
    clip_grad_norm: float = 0.0
    accumulate_steps: int = 1
    parallel_epochs: int = 1
    seed: int = 0
    precision: Literal["float32", "float64"] = "float32"
    matmul: Literal["float32", "tf32", "bf16"] = "float32"
    cuda_graphs: bool = False
    eval_every: int = 1
    monitor: str = ""
    early_stopping_patience: int = 5
    train_metrics: bool = False
    log_every: int = 50
    log_seconds: float = 60.0
    progress: Literal["auto", "on", "off"] = "auto"
    tensorboard: bool = False
    profile: str = ""
    checkpoint_minutes: float = 5.0
    checkpoint_every: int = 0
    leave_seconds: float = 60.0

    @property
    def dtype(self) -> torch.dtype:
        """The type of the run's numbers."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def __post_init__(self):
        check_choices("train", self)
        for name, least in LEAST.items():
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"train.{name} must be at least {least}, got {getattr(self, name)}")
        if self.epochs > MOST_EPOCHS:
            raise ValueError(
                f"train.epochs must be at most {MOST_EPOCHS}, as many as random numbers tell apart, got {self.epochs}"
            )
        if self.epochs % self.parallel_epochs:
            raise ValueError(
                f"train.epochs must be a multiple of train.parallel_epochs = {self.parallel_epochs}, got {self.epochs}"
            )
        if self.seed >= 1 << 56:
            raise ValueError(f"train.seed must be below 2^56, got {self.seed}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"train.lr must be above 0, got {self.lr}")
        if self.min_lr > self.lr:
            raise ValueError(f"train.min_lr must be at most train.lr = {self.lr}, got {self.min_lr}")
        if not 0 < self.step_decay <= 1:
            raise ValueError(f"train.step_decay must be above 0 and at most 1, got {self.step_decay}")
        if self.profile and not self.profiled:
            raise ValueError(f"train.profile must be steps such as 10-19, got {self.profile!r}")

    @property
    def profiled(self) -> range:
        """The steps that ``profile`` names; empty also for a text that names none."""
        match = re.fullmatch(r"(\d+)-(\d+)", self.profile)
        return range(int(match[1]), int(match[2]) + 1) if match else range(0)

    @property
    def bound_to_epochs(self) -> bool:
        """Whether another value of ``epochs`` would change results before the run's end: the learning rates of the
        schedule, or a validation that a longer run would not make."""
        return self.schedule in ("cosine", "linear") or not self._is_due(self.epochs)

    def validates(self, epoch: int) -> bool:
        """Whether validation follows an epoch, or the round of epochs that begins with it."""
        done = epoch + self.parallel_epochs
        return self._is_due(done) or done == self.epochs

    def _is_due(self, done: int) -> bool:
        """Whether the last round up to ``done`` epochs reached a multiple of ``eval_every``."""
        return done // self.eval_every > (done - self.parallel_epochs) // self.eval_every


@dataclass
class OutputConfig:
    """Where results go.

    Attributes:
        dir: the run folder; empty: runs/tgn-<date>-<time>.
        keep: how many checkpoints to resume from stay, the newest ones; the best epoch's stays in any case.
    """

    dir: str = ""
    keep: int = 2

    def __post_init__(self):
        if self.keep < 1:
            raise ValueError(f"output.keep must be at least 1, got {self.keep}")


class Sections:
    """A run's configuration: nested dataclasses, one a section, for the kind of graph that ``KIND`` names."""

    KIND = ""
    data: Any
    task: Any
    sampling: Any
    model: Any
    train: TrainConfig
    comm: CommConfig
    output: OutputConfig
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def baseline_name(self) -> str:
        """The heuristic that stands in place of a model; empty: there is a model."""
        return ""

    @property
    def model_name(self) -> str:
        """What is trained, in a few words: a class of the user's own, or a kind of network."""
        return self.model.class_path or self.model.kind

    @property
    def run_name(self) -> str:
        """How the names of run folders begin, where ``output.dir`` gives none."""
        return self.model.kind

    @property
    def num_groups(self) -> int:
        """The most groups of ranks that train epochs or parts of time side by side."""
        return self.train.parallel_epochs

    def resolve_inputs(self) -> None:
        """Make the paths of inputs absolute, as a run may be resumed from another folder, and read what stands for the
        content of those that are part of the run's identity. Raises ValueError for one that is missing."""
        self.data.path = self.data.path and os.path.abspath(self.data.path)

    def evaluated_by(self, protocol: Any, negatives_file: str, baseline: Any) -> Sections:
        """Return the configuration with another protocol of evaluation. Raises ValueError where the kind has no
        other."""
        if protocol or negatives_file or baseline:
            raise ValueError("--eval, --eval.negatives_file and --baseline.kind are for runs on temporal graphs")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain dictionaries, with the kind of graph."""
        return {"kind": self.KIND, **dataclasses.asdict(self)}

    @classmethod
    def sections(cls) -> dict[str, Any]:
        """Return the classes of the sections by name."""
        return {field.name: field.default_factory for field in dataclasses.fields(cls)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Sections:
        """Make a configuration of nested dictionaries. Raises ValueError for an unknown section or key."""
        sections, values = cls.sections(), {name: value for name, value in values.items() if name != "kind"}
        unknown = set(values) - set(sections)
        if unknown:
            raise ValueError(
                f"unknown section {', '.join(sorted(map(str, unknown)))}; sections are {', '.join(sections)}"
            )
        try:
            return cls(**{name: sections[name](**(section or {})) for name, section in values.items()})
        except TypeError as error:
            raise ValueError(str(error)) from error


def check_time_groups(comm: CommConfig) -> None:
    """Raise ValueError for groups of ranks by time, where nothing is divided so."""
    if comm.time_groups > 1:
        raise ValueError("comm.time_groups is for graphs of snapshots: leave it 1")


def check_parallel_epochs(train: TrainConfig) -> None:
    """Raise ValueError for epochs trained at once, where that is not possible."""
    if train.parallel_epochs > 1:
        raise ValueError("train.parallel_epochs is for temporal graphs: leave it 1")
