"""Loggers: where the numbers of metrics.jsonl are also written, for TensorBoard, Weights & Biases or MLflow.

``LOGGERS`` has all of them. None needs a network: files lie in the run folder, for a server to read later. Rank 0 alone
has loggers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hpcgnn.choices import Part


class Logger(Protocol):
    """Takes numbers by name."""

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers, such as ``epoch/val_ap``, after ``step`` steps of the run."""

    def close(self) -> None:
        """Write what is not on the disk yet."""


class TensorBoard:
    """Event files in tensorboard/ of the run folder; TensorBoard ignores what an earlier start wrote of later steps."""

    def __init__(self, folder: Path, config: dict[str, Any], done: int):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / "tensorboard", purge_step=done + 1 if done else None)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases in wandb/ of the run folder: offline (`wandb sync` uploads it), or in the mode
    WANDB_MODE. A resumed run keeps its id."""

    def __init__(self, folder: Path, config: dict[str, Any], done: int):
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        project, name = os.environ.get("WANDB_PROJECT", "hpcgnn"), folder.resolve().name
        self._run = wandb.init(
            project=project, name=name, id=name, dir=str(folder), config=config, mode=mode, resume="allow"
        )  # fmt: skip

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MLflow:
    """A run of MLflow in mlflow.db of the run folder, or at MLFLOW_TRACKING_URI. A resumed run continues the run of the
    same name."""

    def __init__(self, folder: Path, config: dict[str, Any], done: int):
        from mlflow import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve()}/mlflow.db")
        self._client, name = MlflowClient(place), folder.resolve().name
        experiment = self._client.get_experiment_by_name("hpcgnn")
        number = experiment.experiment_id if experiment else self._client.create_experiment("hpcgnn")
        found = self._client.search_runs([number], f"attributes.run_name = '{name}'", max_results=1)
        if done and found:
            self._run = found[0].info.run_id
            return
        self._run = self._client.create_run(number, run_name=name).info.run_id
        for section, values in config.items():
            for key, value in (values if isinstance(values, dict) else {"": values}).items():
                self._client.log_param(self._run, f"{section}.{key}".rstrip("."), str(value)[:500])

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers. MLflow allows letters, digits, _, -, ., space and / in names."""
        for name, value in values.items():
            self._client.log_metric(self._run, name.replace("@", "_at_"), value, step=step)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


@dataclass(frozen=True)
class LoggerPart(Part):
    """A row of ``LOGGERS``; package: what pip installs."""

    package: str = ""


LOGGERS = {
    "tensorboard": LoggerPart(TensorBoard, "event files for TensorBoard, in tensorboard/", "tensorboard"),
    "wandb": LoggerPart(WeightsAndBiases, "Weights & Biases, offline unless WANDB_MODE is set, in wandb/", "wandb"),
    "mlflow": LoggerPart(MLflow, "MLflow, in mlflow.db or at MLFLOW_TRACKING_URI", "mlflow"),
}


def open_loggers(names: list[str], folder: Path, config: dict[str, Any], done: int) -> list[Logger]:
    """Make loggers by name, of a run that has done ``done`` steps. Raises ValueError where a package is missing."""
    found: list[Logger] = []
    for name in names:
        row = LOGGERS[name]
        assert row.make is not None
        try:
            found.append(row.make(folder, config, done))
        except ImportError as error:
            raise ValueError(
                f"train.loggers: {name} needs the package {row.package}: pip install {row.package}, or leave it out"
            ) from error
    return found
