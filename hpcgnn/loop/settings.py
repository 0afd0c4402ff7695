"""The sections ``train`` and ``output`` of run files, and what the configurations of all kinds of graphs share."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from hpcgnn.choices import ON, check_choice, check_choices
from hpcgnn.comm.world import CommConfig
from hpcgnn.loop.loggers import LOGGERS
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
        epochs: Number of passes through the training events.
        batch_size: Number of events in a global batch, over all ranks together; the most with sampling.batch_by span.
        drop_last: Leave out the last training batch of an epoch when it is shorter than batch_size. On temporal graphs
            its events stay in the history.
        lr: Learning rate; with a schedule, the highest one.
        optimizer: Optimizer of the model's weights: "adam", "adamw", or "sgd" with momentum 0.9.
        weight_decay: Weight decay of all weights of the model: decoupled with "adamw", added to the gradient with
            "adam" and "sgd".
        part_weight_decay: Weight decay of single parts of the model by name, in place of weight_decay, such as layers:
            0.01. A part has all weights whose names are its name or begin with it and a dot; where several do, the
            longest name counts.
        schedule: Learning rate over optimizer steps: "constant", "cosine", "linear", or "step" (times step_decay every
            step_every epochs). "cosine" and "linear" fall to min_lr at the end of the last epoch, so a resumed run
            cannot change its epochs.
        warmup_steps: Number of optimizer steps in which the learning rate first rises linearly; 0: no warm-up.
        min_lr: Lowest learning rate of a schedule, at most lr.
        step_every: Number of epochs between two reductions of the "step" schedule.
        step_decay: Factor of each reduction of the "step" schedule, above 0 and at most 1.
        clip_grad_norm: Maximum norm of the gradient, with all weights taken as one vector; 0: no clipping.
        accumulate_steps: Number of consecutive steps whose gradients are averaged for one optimizer step. The last
            group of an epoch may be shorter.
        parallel_epochs: Number of epochs trained at once, step by step, with gradients averaged for one optimizer step;
            must divide epochs. Ranks form as many groups as divide both this and their number. Temporal graphs only.
        init: Folder of a finished run whose best weights training starts with; learnable node embeddings follow the
            original ids of nodes. The head is new where the task is another one. Empty: random weights.
        seed: Seed of all random numbers, below 2^56.
        precision: Data type of weights and node memory: "float32" or "float64".
        matmul: Precision of products of rows with weights: "float32", "tf32" (inputs rounded to 10 bits of mantissa) or
            "bf16" (inputs rounded to bfloat16). Sums stay in float32. "tf32" is fast on CUDA devices alone, "bf16"
            also on processors with units for it (AVX-512 BF16, AMX).
        cuda_graphs: Launch training steps as CUDA graphs, one for each shape; lengths are padded so that many steps
            share a shape. "on", "off", or "auto": on if the only rank makes its plans on a GPU (``sampling.plan_on``),
            and nothing else hinders. Not for snapshot graphs.
        debug: Check the indices that kernels get, to find the cause of a wrong answer or of an illegal memory access on
            a GPU. A wrong index ends the run with the name of the kernel. Slow, as each check waits for the GPU.
        eval_every: Number of epochs between two validations; the last epoch is always validated.
        monitor: Validation metric that decides which epoch is best, such as ap, mrr, auc or mse; the lowest value of an
            error is best. Empty: the first metric of the task.
        metrics: Custom functions that compute further metrics of validation and test, such as
            package.module.function. The last word names the metric; a larger value is better.
        callbacks: Custom classes, such as package.module.Class, whose methods are called during training (see
            hpcgnn.Callback).
        early_stopping_patience: Early stopping: number of validations without improvement after which training ends; 0:
            no early stopping.
        train_metrics: Also report metrics of training, from the scores that the loss was computed from.
        log_every: Number of steps between two step lines in metrics.jsonl; 0: no step lines.
        log_seconds: Seconds between two log lines about the progress of an epoch; 0: none.
        progress: Progress bar on stderr: "on", "off", or "auto": on if stderr, or the stderr of mpirun, is a terminal.
        loggers: Programs for which the numbers of metrics.jsonl are also written to the run folder: tensorboard, wandb
            (Weights & Biases) or mlflow. Each needs its package (`pip install tensorboard`).
        profile: Steps that torch's profiler traces on every rank, such as 10-19, counted from 0 at the start of the
            run; empty: none. The traces are written to profile/ in the run folder. The end of an epoch ends a trace.
        checkpoint_minutes: Minutes of training between two checkpoints within an epoch, and so the most work that a
            failure loses; 0: none by time.
        checkpoint_every: Number of steps between two checkpoints within an epoch; 0: none by steps. A checkpoint starts
            when this or checkpoint_minutes is reached.
        leave_seconds: Seconds before the end of the job's time limit at which the run writes a checkpoint and stops, to
            resume in the next job; 0: never. The limit is read from HPCGNN_JOB_END, else from SLURM_JOB_END_TIME.
    """

    epochs: int = 10
    batch_size: int = 600
    drop_last: bool = False
    lr: float = 1e-3
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = 0.0
    part_weight_decay: dict[str, float] = field(default_factory=dict)
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    warmup_steps: int = 0
    min_lr: float = 0.0
    step_every: int = 1
    step_decay: float = 0.5
    clip_grad_norm: float = 0.0
    accumulate_steps: int = 1
    parallel_epochs: int = 1
    init: str = ""
    seed: int = 0
    precision: Literal["float32", "float64"] = "float32"
    matmul: Literal["float32", "tf32", "bf16"] = "float32"
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    debug: bool = False
    eval_every: int = 1
    monitor: str = ""
    metrics: list[str] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)
    early_stopping_patience: int = 5
    train_metrics: bool = False
    log_every: int = 50
    log_seconds: float = 60.0
    progress: Literal["auto", "on", "off"] = "auto"
    loggers: list[str] = field(default_factory=list)
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
        for name in self.loggers:
            check_choice("train.loggers", name, LOGGERS)
        for name, least in LEAST.items():
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"train.{name} must be at least {least}, got {getattr(self, name)}")
        for name, decay in self.part_weight_decay.items():
            if not 0 <= decay < math.inf:
                raise ValueError(f"train.part_weight_decay.{name} must be at least 0, got {decay}")
        if self.epochs > MOST_EPOCHS:
            raise ValueError(
                f"train.epochs must be at most {MOST_EPOCHS}, the limit of the random numbers, got {self.epochs}"
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
    def needs_graphs(self) -> bool:
        """Whether training steps must be CUDA graphs, so that what hinders them is refused."""
        return self.cuda_graphs == ON

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
        dir: Run folder; empty: runs/NAME-<date>-<time>, where NAME is model.kind, or tgn on temporal graphs.
        keep: Number of newest checkpoints to keep for resuming; the checkpoint of the best epoch is always kept.
    """

    dir: str = ""
    keep: int = 2

    def __post_init__(self):
        if self.keep < 1:
            raise ValueError(f"output.keep must be at least 1, got {self.keep}")


# Keys of the sections ``eval`` that hpcgnn.evaluate can change, with their types and help.
EVAL_OPTIONS: dict[str, tuple[Any, str]] = {
    "exact": (bool | None, "whether to score with all neighbors; static graphs"),
    "ranking": (str | None, "ranking of links, or drawn: against drawn negatives; static and snapshot graphs"),
    "message_edges": (str | None, "edges that carry messages in the test: train or train_val; static graphs"),
    "negatives": (int | None, "number of negatives drawn for each link; static and snapshot graphs"),
    "train_split": (bool | None, "whether to score the training split, too"),
    "batch_means": (bool | None, "whether to report means over batches, too; links of temporal graphs"),
    "correct_and_smooth": (bool | None, "whether to correct outputs by the labels of training nodes; static graphs"),
    "batch_size": (int | None, "number of seeds or events in a batch; static and temporal graphs"),
}


class Sections:
    """A run's configuration: nested dataclasses, one a section, for the kind of graph that ``KIND`` names."""

    KIND = ""
    data: Any
    task: Any
    sampling: Any
    model: Any
    eval: Any
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
        """Name of the trained model: the class path of a custom model, or a kind of network."""
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
        """Make the paths of inputs absolute, as a run may be resumed from another folder. Reads a fingerprint of the
        content of each input that is part of the run's identity. Raises ValueError for a missing input."""
        self.data.path = self.data.path and os.path.abspath(self.data.path)
        self.train.init = self.train.init and os.path.abspath(self.train.init)

    def evaluated_by(
        self, protocol: Any, negatives_file: str, baseline: Any, changes: dict[str, Any] | None = None
    ) -> Sections:  # fmt: skip
        """Return the configuration with another protocol of evaluation; changes: other values of keys of ``eval``.
        Raises ValueError where the kind has no such key, or the key has no effect."""
        options = {"--eval": protocol, "--eval.negatives_file": negatives_file, "--baseline.kind": baseline}
        given = " and ".join(name for name, value in options.items() if value)
        if given:
            raise ValueError(f"{given}: not for runs on {self.KIND} graphs: leave out")
        if not changes:
            return self
        names = [field.name for field in dataclasses.fields(self.eval)]
        for name in changes:
            if name not in names:
                listed = ", ".join(f"--eval.{name}" for name in names if name in EVAL_OPTIONS)
                raise ValueError(f"--eval.{name} is not for runs on {self.KIND} graphs, which have {listed}")
        # There are no sampling servers here, so nothing that they hold is missing for exact scores.
        comm = dataclasses.replace(self.comm, sampling_servers=0, server_features=False)
        train = dataclasses.replace(self.train, train_metrics=False)  # nothing is trained
        changed = dataclasses.replace(self, eval=dataclasses.replace(self.eval, **changes), comm=comm, train=train)
        changed.check_evaluation(changes)
        return changed

    def sampled_by(self, fanouts: list[int]) -> Sections:
        """Return the configuration with other fanouts of validation and test. Raises ValueError where none are
        sampled."""
        raise ValueError(f"--sampling.eval_fanouts is not for runs on {self.KIND} graphs: leave it out")

    @property
    def learns_links(self) -> bool:
        """Whether the task is link prediction."""
        return self.task.kind == "link"

    def check_evaluation(self, changes: dict[str, Any]) -> None:
        """Raise ValueError for changed keys of ``eval`` that have no effect on this run."""
        if "negatives" not in changes:
            return
        if not self.learns_links:
            raise ValueError(f"--eval.negatives is for task.kind link, this run has {self.task.kind}: leave it out")
        if self.eval.ranking:
            raise ValueError(
                f"--eval.negatives: eval.ranking {self.eval.ranking} ranks among all nodes: leave it out, or add "
                "--eval.ranking drawn"
            )

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
        raise ValueError("comm.time_groups is for snapshot graphs: leave it 1")


def check_graphs(train: TrainConfig, loss_path: str) -> None:
    """Raise ValueError for CUDA graphs of steps with a loss of the user's own, which may do anything."""
    if train.needs_graphs and loss_path:
        raise ValueError("train.cuda_graphs on: CUDA graphs do not work with task.loss_path; leave it auto")


def check_train_split(train_split: bool, train: TrainConfig) -> None:
    """Raise ValueError for two kinds of metrics of training under one name."""
    if train_split and train.train_metrics:
        raise ValueError(
            "eval.train_split and train.train_metrics both report metrics such as train_accuracy: use one. The first "
            "scores the training split as validation is scored, the second takes the scores of the training steps"
        )


def check_parallel_epochs(train: TrainConfig) -> None:
    """Raise ValueError for epochs trained at once, where that is not possible."""
    if train.parallel_epochs > 1:
        raise ValueError("train.parallel_epochs is for temporal graphs: leave it 1")
