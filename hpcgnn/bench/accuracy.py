"""Repeat rows of the accuracy table: make the graph of public data, train the runs, and compare with recorded results.

The rows are in ``accuracy.yaml``; the run file of each is ``jobs/accuracy/ROW.yaml``.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcgnn import train
from hpcgnn.bench import command
from hpcgnn.comm.launch import environment_without_launcher
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.loop import launch
from hpcgnn.loop.sweep_file import SWEEP, run_folders
from hpcgnn.recipes import job_files
from hpcgnn.report.records import read_run
from hpcgnn.sweep import EACH

TABLE = Path(__file__).with_name("accuracy.yaml")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    model: its name. data: the data set and its protocol. source: name of its folder among the downloads. make: commands
    of bash that write the partition set ``parts``, run in the row's folder, where ``$source`` is the folder of the
    data. each: options ``--each`` of the runs, which differ by seed or by split; ``$folder`` is the row's folder.
    metrics: names of the metrics, as in the last line of metrics.jsonl. ours: their recorded mean and standard
    deviation over the runs. seconds: of a run, in the mean, on one rank. published: values of other programs, by name
    with the source. rules: values of rules without training on the same data.
    """

    model: str
    data: str
    source: str
    make: str
    each: list[str]
    metrics: list[str]
    ours: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = math.nan
    published: dict[str, str] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccuracyOptions:
    """Options of the command."""

    rows: list[str]
    downloads: Path
    output: Path
    out: str


def main(world: World, argv: list[str]) -> int:
    """Collective. Repeat the rows that are named, or list all; returns the exit code."""
    options, table = launch.on_first_rank(world, "arguments", lambda: _parse(argv))
    if not options.rows:
        launch.on_first_rank(world, "table", lambda: print(listing(table)))
        return launch.EXIT_DONE
    results = {name: repeat(name, table[name], options, world) for name in options.rows}
    with together(world, "compare"):
        if world.rank == 0:
            command.report(results, lambda found: text(found, table), options.out)
    world.barrier()
    return launch.EXIT_DONE


def read_table(path: Path) -> dict[str, Row]:
    """Read the rows by name. Raises ValueError for a key that no row has."""
    try:
        return {name: Row(**row) for name, row in yaml.safe_load(path.read_text()).items()}
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error


def _parse(argv: list[str]) -> tuple[AccuracyOptions, dict[str, Row]]:
    parser = argparse.ArgumentParser("hpcgnn bench accuracy", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to repeat; none: list all rows")
    parser.add_argument(
        "--downloads", type=Path, default=Path("downloads"),
        help="folder that holds the files of each data set, in a folder of its name (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--output.dir", dest="output", type=Path, default=Path("accuracy"),
        help="folder of the graphs and runs, which go into a folder for each row (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", default="", help="JSON file to write the report to (default: none)")
    options = AccuracyOptions(**vars(parser.parse_args(argv)))
    table = read_table(TABLE)
    for name in options.rows:
        if name not in table:
            raise ValueError(f"no row {name!r}; rows are {', '.join(table)}")
        if not (options.downloads / table[name].source).is_dir():
            raise ValueError(
                f"{options.downloads / table[name].source} does not exist: download {table[name].data} into it, or "
                "name the folder of all data sets with --downloads"
            )
    return options, table


def repeat(name: str, row: Row, options: AccuracyOptions, world: World) -> dict[str, Any]:
    """Collective. Make the graph of a row, where its folder has none, and train its runs, where they are not at their
    end. Returns, on rank 0, the values of each metric by run, and the seconds of a run. Raises DistributedError."""
    folder = options.output / name
    with together(world, f"make the graph of {name}"):
        world.working(f"make the graph of {name}")
        if world.rank == 0:
            make(row, (options.downloads / row.source).resolve(), folder)
    runs, start = folder / "runs", time.perf_counter()
    is_new = not (runs / SWEEP).exists()
    world.barrier()
    code, _ = train.train(world, _new_runs(name, row, folder) if is_new else ["--resume", str(runs)])
    if code != launch.EXIT_DONE:
        message = f"{runs}: not all runs are at their end; call the command again to continue"
        raise DistributedError(message, user_error=code == launch.EXIT_USER)
    seconds, found = time.perf_counter() - start, []
    with together(world, "read the results"):
        if world.rank == 0:
            found = [read_run(run).results() for run in run_folders([runs])]
    metrics = {metric: [result[metric] for result in found] for metric in row.metrics}
    return {"metrics": metrics, "seconds": seconds / max(1, len(found)) if is_new else math.nan}


def make(row: Row, source: Path, folder: Path) -> None:
    """Run the commands that make the partition set of a row in its folder, once. source: folder of the downloads.
    Raises ValueError where one fails."""
    done = folder / "made"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = environment_without_launcher() | {"source": str(source), "PATH": path}
    script = f"set -euo pipefail\n{row.make}"
    result = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise ValueError(f"{folder}: the graph could not be made by\n{row.make}{result.stderr.strip()}")
    done.touch()


def _new_runs(name: str, row: Row, folder: Path) -> list[str]:
    """Return the command line of the runs of a row."""
    each = [word for option in row.each for word in (EACH, option.replace("$folder", str(folder)))]
    path = [] if any(option.startswith("data.path=") for option in row.each) else ["--data.path", str(folder / "parts")]
    return ["--config", str(run_files() / f"{name}.yaml"), *path, *each, "--output.dir", str(folder / "runs")]


def run_files() -> Path:
    """Return the folder of the run files of the rows."""
    return job_files() / "accuracy"


def listing(table: dict[str, Row]) -> str:
    """Write the names of all rows, with their data."""
    return "\n".join(f"{name:24}{row.model}: {row.data}" for name, row in table.items())


def text(results: dict[str, Any], table: dict[str, Row]) -> str:
    """Write the results beside the recorded and the published values."""
    lines = []
    for name, found in results.items():
        row = table[name]
        lines += [
            f"{name}: {row.model} on {row.data}",
            f"  {found['seconds']:.0f} s for each run (recorded: {row.seconds:.0f} s)",
        ]
        for metric, values in found["metrics"].items():
            recorded = f"; recorded {spread(*row.ours[metric])}" if metric in row.ours else ""
            mean, deviation = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan
            lines.append(f"  {metric}: {spread(mean, deviation)} over {len(values)} runs{recorded}")
        lines += [f"  {source}: {value}" for source, value in (row.rules | row.published).items()]
    return "\n".join(lines)


def spread(mean: float, deviation: float = math.nan) -> str:
    """Write a mean and its standard deviation."""
    return f"{mean:.4f}" if math.isnan(deviation) else f"{mean:.4f} ± {deviation:.4f}"
