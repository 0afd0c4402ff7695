"""Rows of commands that write graphs and parts: a disk that fills under them, and kills of a partition job."""

from __future__ import annotations

import hashlib
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from faults import machine
from faults.job import Job, Miss, send, start
from faults.lab import START_SECONDS, Lab, check_end
from faults.rows import Row

RANKS, KILLS = 3, 8
EVENTS, NODES, EDGES = 60_000, 3_000, 90_000

# What makes the input, and the command, where {0} is the input and {1} what is written.
TOOLS = {
    "synthesize": ("", "data_tools.synthesize --events 120000 {1}/graph.h5"),
    "convert": ("csv", "data_tools.convert --preset csv-temporal --set events={0} {1}/graph.h5"),
    "split": ("static", "data_tools.split {0} {1}/split.h5 --nodes node --replace"),
    "snapshots": ("events", "data_tools.snapshots windows {0} {1}/snapshots.h5 --windows 20"),
    "partition": ("static", "data_tools.partition {0} {1}/parts --parts 4 --method random"),
    "partition of events": ("events", "data_tools.partition {0} {1}/parts --parts 4 --method random"),
    "stage": ("parts", "data_tools.stage {0} {1}/staged"),
    "export": ("static", "data_tools.export --format parquet {0} {1}/tables"),
}


def run(lab: Lab, output: Path, words: str, ranks: int = 0) -> Job:
    """Start a command, under the launcher if ranks are given."""
    launcher = lab.launcher(ranks) if ranks else []
    return start(launcher, lab.environment, output, "-m", *words.split())


def done(lab: Lab, output: Path, words: str) -> None:
    """Run a command to its end. Miss where it fails."""
    job = run(lab, output, words)
    check_end(job, job.wait(START_SECONDS), (0,))


def inputs(lab: Lab) -> dict[str, Path]:
    """Graphs, a table and a partition set that commands read, made when they are first asked for."""
    folder = lab.root / "inputs"
    paths = {name: folder / file for name, file in
             (("events", "events.h5"), ("static", "static.h5"), ("parts", "parts"), ("csv", "events.csv"))}  # fmt: skip
    with lab.turns:
        if not folder.exists():
            folder.mkdir()
            output = folder / "out"
            done(lab, output, f"data_tools.synthesize --events {EVENTS} {paths['events']}")
            done(
                lab, output, f"data_tools.synthesize --static --num_nodes {NODES} --num_edges {EDGES} {paths['static']}"
            )
            done(lab, output, f"data_tools.partition {paths['static']} {paths['parts']} --parts 4 --method random")
            rng = np.random.default_rng(0)
            lines = zip(rng.integers(0, 900, EVENTS), rng.integers(900, 1000, EVENTS), range(EVENTS), strict=True)
            text = "".join(f"{src},{dst},{when}\n" for src, dst, when in lines)
            paths["csv"].write_text("src,dst,time\n" + text)
    return paths


def disk_full_under(tool: str) -> Row:
    """A row: the disk fills under a command, which says so and leaves nothing that looks whole; with room it
    succeeds."""
    source, words = TOOLS[tool]

    def row(lab: Lab, folder: Path, _: list[dict]) -> str:
        given, said = inputs(lab).get(source), ""
        output = folder.with_name(f"{folder.name}.out")
        with machine.small_disk(folder, 64) as disk:
            whole = disk / "whole"
            whole.mkdir()
            done(lab, output, words.format(given, whole))
            needed = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
            reference = digests(whole)
            shutil.rmtree(whole)
            for share in (0.1, 0.5, 0.95):
                ballast = machine.fill(disk, leave=int(share * needed))
                target = disk / f"target-{share}"
                target.mkdir()
                job = run(lab, output, words.format(given, target))
                check_end(job, job.wait(START_SECONDS), (1, 2), "error: .*(No space left|are free)")
                said = next(line for line in job.text().splitlines() if line.startswith("error: "))
                if seeming := [path for path in target.rglob("*") if is_finished(path)]:
                    raise Miss(f"{seeming} look whole after:\n{job.text()}")
                ballast.unlink()
                shutil.rmtree(target)
            whole.mkdir()
            done(lab, output, words.format(given, whole))
            if digests(whole) != reference:
                raise Miss(f"{tool}: another result with room than before")
        return said

    return row


def is_finished(path: Path) -> bool:
    """Whether a file is one that later commands would take for whole."""
    return path.is_file() and (path.name in ("graph.h5", "split.h5", "snapshots.h5", "book.h5", "spec.yaml"))


def digests(folder: Path) -> dict[str, str]:
    """Hashes of files by their place in a folder, journals left out."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def partition_killed(kind: str) -> Row:
    """A row: ranks of a partition job are killed at any moment, and the job is started again, until it is done."""

    def row(lab: Lab, folder: Path, _: list[dict]) -> str:
        graph, random = inputs(lab)[kind], np.random.default_rng(len(kind))
        whole = folder.with_name(f"{folder.name}-whole")
        words: Callable[[Path], str] = lambda parts: (  # noqa: E731
            f"data_tools.partition {graph} {parts} --parts 8 --method ldg"
        )
        began = time.monotonic()
        job = run(lab, folder.with_name(f"{folder.name}-whole.out"), words(whole), RANKS)
        check_end(job, job.wait(START_SECONDS), (0,))
        seconds, killed, starts = time.monotonic() - began, 0, 0
        while killed < KILLS:
            starts += 1
            job = run(lab, folder.with_name(f"{folder.name}-{starts}.out"), words(folder), RANKS)
            moment = time.monotonic() + random.uniform(0.3, 1.0) * seconds
            if job.wait_until(lambda end=moment: time.monotonic() > end, START_SECONDS) and job.ranks():
                send(random.choice(list(job.ranks().values())), signal.SIGKILL)
            code = job.wait(START_SECONDS)
            job.check_nothing_left()
            if code == 0:
                same(whole, folder)
                shutil.rmtree(folder)
            elif (folder / "book.h5").exists():  # killed behind its end
                same(whole, folder)
                shutil.rmtree(folder)
                killed += 1
            else:
                killed += 1
        job = run(lab, folder.with_name(f"{folder.name}-last.out"), words(folder), RANKS)
        check_end(job, job.wait(START_SECONDS), (0,))
        same(whole, folder)
        return f"{killed} kills, {starts + 1} starts, the same parts each time"

    return row


def same(whole: Path, parts: Path) -> None:
    """Miss where two partition sets differ."""
    if digests(whole) != digests(parts):
        raise Miss(f"{parts} differs from {whole}")


def tool_rows() -> dict[str, Row]:
    """The rows of all commands, by name."""
    rows = {f"disk full under {tool}": disk_full_under(tool) for tool in TOOLS}
    return rows | {
        f"{KILLS} kills of a partition job of {kind}": partition_killed(kind) for kind in ("static", "events")
    }
