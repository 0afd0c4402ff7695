"""Reads the records in a run folder: metrics.jsonl, stages.jsonl and config.yaml.

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
    """The records of a run. epochs, tests: lines of metrics.jsonl by kind; starts, times: lines of stages.jsonl."""

    name: str
    folder: Path
    config: str
    epochs: list[dict]
    tests: list[dict]
    starts: list[dict]
    times: list[dict]

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Collect the points (epoch, value) of losses and metrics by name, without epochs that lack them."""
        points: dict[str, list[tuple[float, float]]] = {}
        for line in self.epochs:
            for name, value in line.items():
                if name not in NO_METRICS and not name.endswith("_per_second") and isinstance(value, int | float):
                    points.setdefault(name, []).append((line["epoch"], value))
        return points

    def results(self) -> dict[str, float]:
        """Return the numbers of the test, of the newest one where there are several."""
        newest = self.tests[-1] if self.tests else {}
        return {name: value for name, value in newest.items() if name != "kind" and value is not None}

    def stage_seconds(self) -> dict[str, np.ndarray]:
        """Sum the seconds [R] by stage, over the epochs with as many ranks as the newest."""
        lines = self._newest_times()
        names = sorted({name for line in lines for name in line["seconds"]})
        seconds: dict[str, Any] = {}
        for name in names:
            seconds[name] = sum(np.array(line["seconds"].get(name, 0.0)) for line in lines)
        return seconds

    def sent_bytes(self) -> np.ndarray | Any:
        """Sum the bytes from rank to rank [R, R] over the same epochs; None without records."""
        lines = self._newest_times()
        return np.sum([line["sent_bytes"] for line in lines], axis=0) if lines else None

    def peak_mib(self) -> np.ndarray | Any:
        """Return the most memory of every rank [R] over the same epochs; None without records."""
        lines = self._newest_times()
        return np.max([line["peak_mib"] for line in lines], axis=0) if lines else None

    def _newest_times(self) -> list[dict]:
        return [line for line in self.times if len(line["peak_mib"]) == len(self.times[-1]["peak_mib"])]


def read_run(folder: Path) -> RunRecords:
    """Read a run folder. Raises ValueError for a folder without a run, OSError for a file that cannot be read."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise ValueError(f"{folder}: no metrics.jsonl there: name the folder of a run (its output.dir)")
    lines, stages, config = read_lines(metrics), read_lines(folder / "stages.jsonl"), folder / "config.yaml"
    kinds = {kind: [line for line in lines if line.get("kind") == kind] for kind in ("epoch", "test")}
    return RunRecords(
        folder.resolve().name, folder, config.read_text() if config.is_file() else "", kinds["epoch"], kinds["test"],
        [line for line in stages if line.get("kind") == "start"],
        [line for line in stages if line.get("kind") == "epoch"],
    )  # fmt: skip


def when(line: dict) -> float:
    """Return when a line was written, in seconds since 1970."""
    return datetime.datetime.fromisoformat(line["time"]).timestamp()
