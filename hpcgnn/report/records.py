"""What a run folder tells: metrics.jsonl, stages.jsonl and config.yaml.

R ranks, E epochs.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.loop.logs import read_lines

LOSS = "loss"
NO_METRICS = ("kind", "epoch", "step", "lr", "train_seconds")


@dataclass(slots=True)
class RunRecords:
    """epochs, steps and tests: lines of metrics.jsonl by kind; starts and times: those of stages.jsonl."""

    name: str
    folder: Path
    config: str
    epochs: list[dict]
    steps: list[dict]
    tests: list[dict]
    starts: list[dict]
    times: list[dict]

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """(epoch, value) of everything that every epoch tells, losses and metrics, by name; gaps are left out."""
        found: dict[str, list[tuple[float, float]]] = {}
        for line in self.epochs:
            for name, value in line.items():
                if name not in NO_METRICS and not name.endswith("_per_second") and isinstance(value, int | float):
                    found.setdefault(name, []).append((line["epoch"], value))
        return found

    def results(self) -> dict[str, float]:
        """The numbers of the final test, the newest where there are several."""
        newest = self.tests[-1] if self.tests else {}
        return {name: value for name, value in newest.items() if name not in ("kind",) and value is not None}

    def stage_seconds(self) -> dict[str, np.ndarray]:
        """Seconds [R] by stage, over the epochs with as many ranks as the newest."""
        lines = self._newest_times()
        names = sorted({name for line in lines for name in line["seconds"]})
        found: dict[str, Any] = {
            name: sum(np.array(line["seconds"].get(name, 0.0)) for line in lines) for name in names
        }
        return found

    def sent_bytes(self) -> np.ndarray | Any:
        """Bytes from rank to rank [R, R] over the same epochs; None where nothing is known."""
        lines = self._newest_times()
        found: Any = sum(np.array(line["sent_bytes"]) for line in lines) if lines else None
        return found

    def peak_mib(self) -> np.ndarray | Any:
        """The most memory of every rank [R]."""
        lines = self._newest_times()
        return np.max([line["peak_mib"] for line in lines], axis=0) if lines else None

    def _newest_times(self) -> list[dict]:
        return [line for line in self.times if len(line["peak_mib"]) == len(self.times[-1]["peak_mib"])]


def read_run(folder: Path) -> RunRecords:
    """Read a run folder. Raises ValueError for a folder that holds no run, OSError for one that cannot be read."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise ValueError(f"{folder}: no metrics.jsonl there: name the folder of a run (its output.dir)")
    lines, stages, config = read_lines(metrics), read_lines(folder / "stages.jsonl"), folder / "config.yaml"
    kinds = {kind: [line for line in lines if line.get("kind") == kind] for kind in ("epoch", "step", "test")}
    return RunRecords(
        folder.resolve().name, folder, config.read_text() if config.is_file() else "", kinds["epoch"], kinds["step"],
        kinds["test"], [line for line in stages if line.get("kind") == "start"],
        [line for line in stages if line.get("kind") == "epoch"],
    )  # fmt: skip


def when(line: dict) -> float:
    """Seconds since 1970 at which a line was written."""
    return datetime.datetime.fromisoformat(line["time"]).timestamp()
