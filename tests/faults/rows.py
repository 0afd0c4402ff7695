"""The rows of the fault table: what happens to a job, by name. Each ends in a run that has gone on to its end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np

from faults import machine
from faults.job import Miss, send
from faults.lab import GRACE_SECONDS, START_SECONDS, Fault, Lab, check_checkpoints, check_end, found_line

Row = Callable[[Lab, Path, list[dict]], str]

KILLED = r"rank 1\b.*signal 9"
NAMED = "rank 1 of 2 on {host}, {stage}"
SILENT = "made no progress for .* no answer from rank 1 on {host}"
LATE = "made no progress for .* late: rank 1 on {host}"
MEMORY, MEMORY_LIMIT = ".*MemoryError", 700  # MiB


def faults(host: str) -> dict[str, Fault]:
    """Rows in which one of two ranks meets its fate at a point of its program."""

    def named(stage: str, rest: str) -> str:
        return NAMED.format(host=host, stage=stage) + rest

    silent, late = SILENT.format(host=host), LATE.format(host=host)
    return {
        "killed in start-up": Fault("open", 1, 1, "SIGKILL", "failure", KILLED),
        "killed in training": Fault("step", 5, 1, "SIGKILL", "failure", KILLED),
        "killed as it writes a checkpoint": Fault("file", 2, 1, "SIGKILL", "failure", KILLED),
        "killed in evaluation": Fault("evaluation", 2, 1, "SIGKILL", "failure", KILLED),
        "hangs as it reads the configuration": Fault(
            "configuration", 1, 0, "hang", "failure", "made no progress.*rank 0: configuration[^\n]* in hang"
        ),
        "hangs in start-up": Fault(
            "open", 1, 1, "hang", "failure", "made no progress.*rank 1: open the partition set[^\n]* in hang"
        ),
        "hangs in training": Fault("step", 5, 1, "hang", "failure", late),
        "stopped in training": Fault("step", 5, 1, "SIGSTOP", "failure", silent),
        "hangs as it writes a checkpoint": Fault("file", 3, 1, "hang", "failure", late),
        "stopped in evaluation": Fault("evaluation", 2, 1, "SIGSTOP", "failure", silent),
        "raises in start-up": Fault("open", 1, 1, "raise", "failure", named("open the partition set", ".*KeyError")),
        "raises in training": Fault("step", 5, 1, "raise", "failure", named("train, step", ".*KeyError")),
        "sys.exit(3) in training": Fault("step", 5, 1, "exit3", "failure", named("train, step", ".*SystemExit")),
        "sys.exit(0) in evaluation": Fault("evaluation", 2, 1, "exit0", "failure", named("val", ".*SystemExit")),
        "out of memory in training": Fault("step", 5, 1, "memory", "failure", named("train, step", MEMORY)),
        "out of memory in evaluation": Fault("evaluation", 2, 1, "memory", "failure", named("val", MEMORY)),
        "asked to leave in start-up": Fault("open", 1, 1, "SIGTERM", (75,), "asked to leave"),
        "asked to leave in training": Fault("step", 5, 0, "SIGUSR1", (75,), "asked to leave"),
        "asked to leave as it writes a checkpoint": Fault("file", 2, 1, "SIGTERM", (75,), "asked to leave"),
        "asked to leave in evaluation": Fault("evaluation", 2, 1, "SIGTERM", (75,), "asked to leave"),
        "asked to leave at the end": Fault("close", 1, 1, "SIGTERM", (0,), "results in"),
    }


def disk_full(lab: Lab, folder: Path, reference: list[dict]) -> str:
    """A checkpoint does not fit; later it does."""
    with machine.small_disk(folder, 4) as disk:
        run = disk / "run"
        with lab.job(run, 2, output=folder.with_name(f"{folder.name}.out")) as job:
            job.wait_until(lambda: has_checkpoint(run), START_SECONDS)
            ballast = machine.fill(disk)
            check_end(job, job.wait(START_SECONDS), (1,), "error: .*No space left")
            job.check_nothing_left()
            line = found_line(job.text(), "error: ")
        ballast.unlink()
        check_checkpoints(run)
        lab.finish(run, 2, reference, output=folder.with_name(f"{folder.name}-again.out"))
    return line


def killed_for_memory(lab: Lab, folder: Path, reference: list[dict]) -> str:
    """The kernel ends a rank that is above its cgroup's limit."""
    fault = Fault("step", 5, 1, "grow", "failure", KILLED)
    with machine.memory_group(MEMORY_LIMIT) as group, lab.job(folder, 2, at=fault.at) as job:
        job.wait_until(lambda: 1 in job.ranks(), START_SECONDS)
        (group / "cgroup.procs").write_text(str(job.ranks()[1]))
        lab.check_ended(job, folder, fault)
        line = found_line(job.text(), KILLED)
    lab.finish(folder, 3, reference)
    return line


def node_vanishes(lab: Lab, folder: Path, reference: list[dict]) -> str:
    """Two nodes, a rank on each; the cable between them is pulled. mpirun notices by its keepalive, and ends with 0
    as if nothing were the matter; but the run is not at its end, and goes on."""
    with machine.two_nodes(folder) as nodes, lab.job(folder, 2, launcher=nodes.launcher(lab.launcher(2))) as job:
        if not job.wait_until(lambda: has_checkpoint(folder), START_SECONDS):
            raise Miss(job.text())
        nodes.cut()
        job.wait(lab.watchdog + GRACE_SECONDS)
        job.check_nothing_left()
        check_end(job, job.process.returncode, (0, 1), "lost communication.*node-b")
        line = found_line(job.text(), "lost communication")
    check_checkpoints(folder)
    lab.finish(folder, 2, reference)
    return line


def signalled(number: int, attempts: int = 6) -> Row:
    """A row: the launcher gets a signal at any moment, again and again."""

    def row(lab: Lab, folder: Path, reference: list[dict]) -> str:
        random, codes = np.random.default_rng(int(number)), []
        for attempt in range(attempts):
            with lab.job(folder, 1 + attempt % 2) as job:
                lab.wait_for_a_moment(job, random)
                send(job.process.pid, number)
                codes.append(job.wait(START_SECONDS))
                job.check_nothing_left()
            check_checkpoints(folder)
        lab.finish(folder, 2, reference)
        return f"exit codes {', '.join(map(str, codes))}"

    return row


def has_checkpoint(folder: Path) -> bool:
    """Whether a run can go on."""
    return any(folder.glob("checkpoints/step-*/manifest.json"))


def met(fault: Fault) -> Row:
    """A row of one fault; the run goes on with another number of ranks."""

    def row(lab: Lab, folder: Path, reference: list[dict]) -> str:
        line = lab.meet(folder, 2, fault)
        lab.finish(folder, 3, reference)
        return line

    return row


def all_rows(host: str) -> dict[str, Row]:
    """Every row of the table, by name."""
    return {name: met(fault) for name, fault in faults(host).items()} | {
        "out of its cgroup's memory": killed_for_memory,
        "a node vanishes": node_vanishes,
        "disk full": disk_full,
        "SIGUSR1 to the launcher at any moment": signalled(signal.SIGUSR1),
        "SIGTERM to the launcher at any moment": signalled(signal.SIGTERM),
    }
