"""Reads the records in a run folder: metrics.jsonl, stages.jsonl and config.yaml.

R ranks, E epochs.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.loop.logs import read_lines

LOSS = "loss"
KINDS = ("epoch", "test")
NO_METRICS = ("kind", "epoch", "step", "lr", "train_seconds")


@dataclass(slots=True)
class RunRecords:
    """The records of a run. epochs, tests: lines of metrics.jsonl by kind; starts, times: lines of stages.jsonl;
    damaged: the lines of both that were left out."""

    name: str
    folder: Path
    config: str
    epochs: list[dict]
    tests: list[dict]
    starts: list[dict]
    times: list[dict]
    damaged: list[str]

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
        return {name: value for name, value in newest.items() if value is not None and not isinstance(value, str)}

    def stage_seconds(self) -> dict[str, np.ndarray]:
        """Sum the seconds [R] by stage, over the epochs with as many ranks as the newest."""
        lines = self._newest_times()
        names = sorted({name for line in lines for name in line["seconds"]})
        seconds: dict[str, Any] = {}
        for name in names:
            seconds[name] = sum(np.array(line["seconds"].get(name, 0.0)) for line in lines)
        return seconds

    def sent_bytes(self) -> np.ndarray | Any:
        """Sum the bytes from rank to rank [R, R], for many ranks the bytes that each sent [R], over the same epochs;
        None without records."""
        sent = [np.array(line["sent_bytes"]) for line in self._newest_times()]
        if any(bytes_sent.ndim == 1 for bytes_sent in sent):
            sent = [bytes_sent if bytes_sent.ndim == 1 else bytes_sent.sum(axis=1) for bytes_sent in sent]
        return np.sum(sent, axis=0) if sent else None

    def peak_mib(self) -> np.ndarray | Any:
        """Return the most memory of every rank [R] over the same epochs; None without records."""
        lines = self._newest_times()
        return np.max([line["peak_mib"] for line in lines], axis=0) if lines else None

    def joules(self) -> float | None:
        """Sum the energy of all epochs over machines and their parts; None where one has no figure."""
        energy = [line.get("joules") or {} for line in self.times]
        if not energy or not all(energy):
            return None
        return math.fsum(joules for of_hosts in energy for parts in of_hosts.values() for joules in parts.values())

    def _newest_times(self) -> list[dict]:
        return [line for line in self.times if len(line["peak_mib"]) == len(self.times[-1]["peak_mib"])]


def read_run(folder: Path) -> RunRecords:
    """Read a run folder. Raises ValueError for a folder without a run, OSError for a file that cannot be read."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise ValueError(f"{folder}: no metrics.jsonl there: name the folder of a run (its output.dir)")
    damaged: list[str] = []
    lines = _usable(metrics, read_lines(metrics, damaged), _check_metrics, damaged)
    stages, config = _read_stages(folder / "stages.jsonl", damaged), folder / "config.yaml"
    kinds = {kind: [line for line in lines if line["kind"] == kind] for kind in KINDS}
    return RunRecords(
        folder.resolve().name, folder, config.read_text() if config.is_file() else "", kinds["epoch"], kinds["test"],
        [line for line in stages if line["kind"] == "start"], [line for line in stages if line["kind"] == "epoch"],
        damaged,
    )  # fmt: skip


def _read_stages(path: Path, damaged: list[str]) -> list[dict]:
    """Read stages.jsonl, which the rest of a page does not need: where no line is left, it is empty."""
    try:
        return _usable(path, read_lines(path, damaged), _check_stages, damaged)
    except ValueError as error:
        damaged.append(str(error))
        return []


def _usable(path: Path, lines: list[dict], check: Callable[[dict], Any], damaged: list[str]) -> list[dict]:
    """Leave out the lines that do not have what a page takes from them, and name them in ``damaged``."""
    usable = []
    for line in lines:
        try:
            check(line)
            usable.append(line)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            damaged.append(f"{path}, a line of kind {line['kind']}: {error}; damaged, or not written by hpcgnn")
    return usable


def _check_metrics(line: dict) -> None:
    if line["kind"] == "epoch":
        float(line["epoch"])
        float(line.get("train_seconds") or 0)


def _check_stages(line: dict) -> None:
    when(line)
    if line["kind"] == "start":
        float(line["ranks"])
        float(line["threads"])
        ", ".join([*line["hosts"], line["resumed"]])
    elif line["kind"] == "epoch":
        ranks = len(line["peak_mib"])
        shapes = {np.array(values, float).shape for values in (*line["seconds"].values(), line["peak_mib"])}
        sent = np.array(line["sent_bytes"], float).shape
        if shapes != {(ranks,)} or sent not in ((ranks,), (ranks, ranks)) or "epoch" not in line["seconds"]:
            raise ValueError("not as many numbers as ranks")
        for parts in (line.get("joules") or {}).values():
            float(sum(parts.values()))


def when(line: dict) -> float:
    """Return when a line was written, in seconds since 1970."""
    return datetime.datetime.fromisoformat(line["time"]).timestamp()
