"""Compares runs: the keys in which they differ, and the mean and deviation of metrics over the seeds of one setting."""

from __future__ import annotations

import csv
import io
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.graph.decode import decode_yaml
from hpcgnn.report.records import RunRecords

SEED = "train.seed"
SPLITS = ("val_", "test_")
SPREAD = "mean ± standard deviation over the seeds of a row"
SHOWN = 2  # metrics of a split in a table of text


@dataclass(frozen=True, slots=True)
class Setting:
    """Runs that differ by their seeds only. values: of the keys in which the settings of a comparison differ; runs: the
    runs that are counted, one for each seed; left_out: texts about the others, and why."""

    values: dict[str, Any]
    runs: list[RunRecords]
    left_out: list[str]

    def numbers(self, metric: str) -> list[float]:
        """Return a metric of every run that has it."""
        return [run.results()[metric] for run in self.runs if metric in run.results()]

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over runs, NaN where none has it."""
        numbers = self.numbers(metric)
        return statistics.fmean(numbers) if numbers else math.nan

    def deviation(self, metric: str) -> float:
        """Return the standard deviation of a metric over runs, of a sample (n - 1), NaN for fewer than two."""
        numbers = self.numbers(metric)
        return statistics.stdev(numbers) if len(numbers) > 1 else math.nan


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs by setting. keys: names of all keys in which the runs differ; metrics: names of the metrics of validation
    and test that any of them has, the monitored one of each split first; monitored: name of the metric that decides,
    and whether its lowest value is the best; empty where the runs do not agree on one."""

    keys: list[str]
    settings: list[Setting]
    metrics: list[str]
    monitored: tuple[str, bool] | tuple[()]

    def best(self) -> Setting | None:
        """Return the setting with the best mean of the monitored metric on validation data; None where it is not
        known."""
        if not self.monitored:
            return None
        name, is_lower = self.monitored
        known = [setting for setting in self.settings if not math.isnan(setting.mean(f"val_{name}"))]
        order = min if is_lower else max
        return order(known, key=lambda setting: setting.mean(f"val_{name}"), default=None)


def keys_of(run: RunRecords) -> dict[str, Any]:
    """Read the keys of a run's configuration by name, such as ``train.lr``. Raises ValueError for a file of another
    program."""
    values = decode_yaml(run.config or "{}")
    if not isinstance(values, dict):
        raise ValueError(f"{run.folder / 'config.yaml'}: expected sections of keys; not written by hpcgnn")
    flat = {name: value for name, value in values.items() if not isinstance(value, dict)}
    for section, keys in values.items():
        flat |= {f"{section}.{key}": value for key, value in keys.items()} if isinstance(keys, dict) else {}
    flat.pop("output.dir", None)  # of every run another
    return flat


def compare(runs: list[RunRecords]) -> Comparison:
    """Group runs that differ by ``train.seed`` only, in their order. A run without a test, and a second run of a seed,
    are left out of means. Raises ValueError for a configuration that cannot be read."""
    keys_by_run = [keys_of(run) for run in runs]
    names = dict.fromkeys(name for keys in keys_by_run for name in keys)
    differing = [name for name in names if any(keys.get(name) != keys_by_run[0].get(name) for keys in keys_by_run)]
    shown = [name for name in differing if name != SEED]
    settings: list[Setting] = []
    seeds: list[list[Any]] = []  # by setting
    for run, keys in zip(runs, keys_by_run, strict=True):
        values = {name: keys.get(name) for name in shown}
        place = next((place for place, setting in enumerate(settings) if setting.values == values), len(settings))
        if place == len(settings):
            settings.append(Setting(values, [], []))
            seeds.append([])
        if not run.tests:
            settings[place].left_out.append(f"{run.name}: not at its end")
        elif keys.get(SEED) in seeds[place]:
            settings[place].left_out.append(f"{run.name}: another run has seed {keys.get(SEED)}, too")
        else:
            settings[place].runs.append(run)
            seeds[place].append(keys.get(SEED))
    monitored = _monitored(runs)
    found = dict.fromkeys(name for run in runs for name in run.results() if name.startswith(SPLITS))
    first = monitored[0] if monitored else ""
    order = lambda name: (not name.startswith(SPLITS[0]), name.partition("_")[2] != first)  # noqa: E731
    return Comparison(differing, settings, sorted(found, key=order), monitored)


def _monitored(runs: list[RunRecords]) -> tuple[str, bool] | tuple[()]:
    """Find the metric that all runs with a test monitor, and whether its lowest value is the best."""
    named = {(run.tests[-1].get("monitor", ""), run.tests[-1].get("best", "")) for run in runs if run.tests}
    if len(named) != 1 or "" in next(iter(named)):
        return ()
    ((name, best),) = named
    return name, best == "lowest"


def rows(comparison: Comparison, metrics: list[str]) -> list[list[str]]:
    """Write the cells of a table: a head, and a row for each setting: values of the differing keys, number of runs,
    mean and deviation of metrics."""
    shown = [name for name in comparison.keys if name != SEED]
    table = [[*shown, "runs", *(name.replace("_", " ", 1) for name in metrics)]]
    for setting in comparison.settings:
        values = [_value(setting.values[name]) for name in shown]
        table.append([*values, str(len(setting.runs)), *(_with_deviation(setting, name) for name in metrics)])
    return table


def _with_deviation(setting: Setting, metric: str) -> str:
    mean, deviation = setting.mean(metric), setting.deviation(metric)
    text = "" if math.isnan(mean) else f"{mean:.4f}"
    return text if math.isnan(deviation) else f"{text} ± {deviation:.4f}"


def _value(value: Any) -> str:
    """Write a value of a key as in a run file."""
    words = {True: "true", False: "false", None: "null", "": '""'}
    return words[value] if isinstance(value, bool) or value in (None, "") else str(value)


def notes(comparison: Comparison) -> list[str]:
    """Write lines about a comparison: the keys in which runs differ, the best setting, and the runs that are left
    out."""
    lines = [f"runs differ in {', '.join(comparison.keys)}" if comparison.keys else "runs differ in no key"]
    best = comparison.best()
    if best and len(comparison.settings) > 1:
        name, is_lower = comparison.monitored or ("", False)
        setting = ", ".join(f"{key} {_value(value)}" for key, value in best.values.items())
        lines.append(f"best by validation, {'lowest' if is_lower else 'highest'} {name}: {setting}")
    return lines + [f"left out of means: {text}" for setting in comparison.settings for text in setting.left_out]


def text_table(comparison: Comparison) -> str:
    """Write a comparison for a terminal: a table with up to SHOWN metrics of each split, and notes."""
    shown = [name for split in SPLITS for name in [n for n in comparison.metrics if n.startswith(split)][:SHOWN]]
    cells = rows(comparison, shown)
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    first, *further = notes(comparison)
    hidden = [name for name in comparison.metrics if name not in shown]
    if hidden:
        further.append(f"further metrics, by hpcgnn report --format csv: {', '.join(hidden)}")
    return "\n".join([f"{first}; {SPREAD}", *lines, *further])


def csv_table(comparison: Comparison) -> str:
    """Write a comparison as CSV, with a row for each setting and for every metric its mean, standard deviation (of a
    sample, empty for fewer than two runs) and number of runs."""
    shown, text = [name for name in comparison.keys if name != SEED], io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measures = [f"{name}_{what}" for name in comparison.metrics for what in ("mean", "std", "runs")]
    writer.writerow([*shown, "runs", *measures])
    for setting in comparison.settings:
        numbers: list[Any] = []
        for name in comparison.metrics:
            measured = setting.mean(name), setting.deviation(name)
            numbers += ["" if math.isnan(number) else repr(number) for number in measured]
            numbers.append(len(setting.numbers(name)))
        folders = " ".join(run.name for run in setting.runs)
        writer.writerow([*(_value(setting.values[name]) for name in shown), folders, *numbers])
    return text.getvalue()


def default_page(folders: list[Path]) -> Path:
    """Choose the page of a report: within the only folder, which may be one of a sweep; of several, in the current
    one."""
    return (folders[0] if len(folders) == 1 else Path()) / "report.html"
