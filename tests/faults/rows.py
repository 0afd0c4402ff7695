"""The rows of the fault table: what happens to a job, by name. Each ends in a run that has gone on to its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from interrupted_train import MEETS
from test_resume import read

from faults import machine
from faults.job import Miss, send
from faults.lab import GRACE_SECONDS, START_SECONDS, Fault, Lab, check_checkpoints, check_end, check_same, found_line

Row = Callable[[Lab, Path, list[dict]], str]

KILLED = r"rank 1\b.*signal 9"
NAMED = "rank 1 of 2 on {host}, {stage}"
SILENT = "made no progress for .* no answer from rank 1 on {host}"
LATE = "made no progress for .* late: rank 1 on {host}"
CUT = r"FileFormatError: [^\n]*ends at byte \d"
STATIC = (
    "--kind=static", "--data.synthetic_nodes=400", "--features.storage=file", "--sampling.fanouts=[4,3]",
    "--model.layers=2", "--model.hidden=8", "--train.batch_size=16", "--train.epochs=12", "--train.precision=float64",
    "--train.checkpoint_every=3", "--train.log_every=1", "--comm.threads=1", "--comm.device=cpu",
)  # fmt: skip
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
        "asked to leave in start-up": Fault("open", 1, 1, "SIGTERM", (75,), "stop requested"),
        "asked to leave in training": Fault("step", 5, 0, "SIGUSR1", (75,), "stop requested"),
        "asked to leave as it writes a checkpoint": Fault("file", 2, 1, "SIGTERM", (75,), "stop requested"),
        "asked to leave in evaluation": Fault("evaluation", 2, 1, "SIGTERM", (75,), "stop requested"),
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


def launcher_killed(lab: Lab, folder: Path, reference: list[dict]) -> str:
    """With kill -9, while one rank does not call MPI: all end themselves, at once."""
    with lab.job(folder, 2, *lab.watched(False), at=("step", 5, 1, "hang")) as job:
        job.wait_until(lambda: MEETS in job.text(), START_SECONDS)
        send(job.process.pid, signal.SIGKILL)
        began = time.monotonic()
        job.wait(GRACE_SECONDS)
        job.check_nothing_left()
        seconds = time.monotonic() - began
    check_checkpoints(folder)
    lab.finish(folder, 2, reference)
    return f"all ranks are gone {seconds:.0f} s later"


def machine_vanishes(lab: Lab, folder: Path, reference: list[dict]) -> str:
    """Two machines, a rank on each; the cable between them is pulled. mpirun notices by its keepalive, and ends with 0
    as if nothing were the matter; but the run is not at its end, and goes on."""
    with machine.two_machines(folder) as both, lab.job(folder, 2, launcher=both.launcher(lab.launcher(2))) as job:
        if not job.wait_until(lambda: has_checkpoint(folder), START_SECONDS):
            raise Miss(job.text())
        both.cut()
        job.wait(lab.watchdog + GRACE_SECONDS)
        job.check_nothing_left()
        check_end(job, job.process.returncode, (0, 1), "lost communication.*machine-b")
        line = found_line(job.text(), "lost communication")
    check_checkpoints(folder)
    lab.finish(folder, 2, reference)
    return line


def part_is_cut(lab: Lab, folder: Path, _: list[dict]) -> str:
    """A part file ends early, under ranks that read rows where they lie; when it is whole again, the run goes on."""
    other = folder.with_name(f"{folder.name}-undisturbed")
    with lab.job(other, 2, first=STATIC) as job:
        check_end(job, job.wait(START_SECONDS), (0,))
    with lab.job(folder, 2, first=STATIC) as job:
        if not job.wait_until(lambda: has_checkpoint(folder), START_SECONDS):
            raise Miss(job.text())
        parts = {path: path.read_bytes() for path in folder.glob("**/part-*.h5")}
        for path in parts:
            os.truncate(path, 1000)
        check_end(job, job.wait(GRACE_SECONDS), "failure", CUT)
        job.check_nothing_left()
        line = found_line(job.text(), CUT)
    for path, content in parts.items():
        path.write_bytes(content)
    check_checkpoints(folder)
    lab.finish(folder, 2, read(other))
    return line


def part_is_replaced(lab: Lab, folder: Path, _: list[dict]) -> str:
    """Part files are replaced by others, as when a set is made anew, under ranks that read from them: these go on with
    what they opened."""
    other = folder.with_name(f"{folder.name}-undisturbed")
    with lab.job(other, 2, first=STATIC) as job:
        check_end(job, job.wait(START_SECONDS), (0,))
    with lab.job(folder, 2, first=STATIC) as job:
        if not job.wait_until(lambda: has_checkpoint(folder), START_SECONDS):
            raise Miss(job.text())
        for path in folder.glob("**/part-*.h5"):
            path.with_suffix(".new").write_bytes(b"of another set")
            path.with_suffix(".new").replace(path)
        check_end(job, job.wait(START_SECONDS), (0,))
    check_same(folder, read(other))
    return "goes on"


def two_jobs(lab: Lab, folder: Path, reference: list[dict]) -> str:
    """A second job is refused, new or as a resume, and the first goes on as if it had not been there."""
    with lab.job(folder, 2) as job:
        if not job.wait_until(lambda: has_checkpoint(folder), START_SECONDS):
            raise Miss(job.text())
        ranks = job.ranks().values()
        for rank in ranks:  # so that the first job does not end before the second looks
            send(rank, signal.SIGSTOP)
        with lab.job(folder, 1) as other:  # the folder has a configuration by now: a resume
            check_end(other, other.wait(START_SECONDS), (2,), f"error: .*{folder} is in use by process")
            line = found_line(other.text(), "error: ")
        for rank in ranks:
            send(rank, signal.SIGCONT)
        check_end(job, job.wait(START_SECONDS), (0,))
    check_same(folder, reference)
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
        "the launcher killed": launcher_killed,
        "a machine vanishes": machine_vanishes,
        "disk full": disk_full,
        "two jobs in one folder": two_jobs,
        "a part file cut short under its readers": part_is_cut,
        "a part file replaced under its readers": part_is_replaced,
        "SIGUSR1 to the launcher at any moment": signalled(signal.SIGUSR1),
        "SIGTERM to the launcher at any moment": signalled(signal.SIGTERM),
        "SIGINT to the launcher at any moment": signalled(signal.SIGINT),
    }
