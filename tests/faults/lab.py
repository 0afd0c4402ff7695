"""A small graph, the run that nothing disturbs, and runs that something does: how they end and go on."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from conftest import Mpirun, clean_environment
from interrupted_train import MEETS
from places import HELPERS
from test_resume import ARGUMENTS, assert_same, read
from training_runs import bipartite

from data_tools.partition.command import partition
from faults.job import Job, Miss, start
from hpcgnn.loop.checkpoint import MANIFEST, check_files, read_manifest

CHILD = HELPERS / "interrupted_train.py"
HANGS = ("hang", "SIGSTOP")
NEVER = ("step", 0, 0, "SIGKILL")
GRACE_SECONDS = 30.0
START_SECONDS = 240.0  # on a machine that does much else


@dataclass(frozen=True)
class Fault:
    """What one rank meets at the ``number``-th call of a point, and how the job must end.

    words: a pattern in what the job prints; codes: exit codes, "failure" for any but 0 and 75.
    """

    point: str
    number: int
    rank: int
    fate: str
    codes: tuple[int, ...] | str
    words: str = ""

    @property
    def at(self) -> tuple:
        """As the child takes it."""
        return self.point, self.number, self.rank, self.fate


class Lab:
    """Runs below ``root`` on a graph there. watchdog: seconds for ``comm.watchdog_seconds``."""

    def __init__(self, root: Path, epochs: int, watchdog: float):
        self.root, self.watchdog, self._epochs, self.seconds = root, watchdog, epochs, 0.0
        self.turns = threading.Lock()  # of rows that make what others use as well
        mpirun = Mpirun()
        self.environment = clean_environment() | mpirun.environment | {"OMPI_MCA_mpi_yield_when_idle": "1"}
        self._launcher = [*mpirun.command, *mpirun.flags]
        self.parts = root / "parts"
        partition(bipartite(root / "graph.h5", edge_width=2), self.parts, 16)

    def launcher(self, ranks: int) -> list[str]:
        """The command that starts so many ranks."""
        return [*self._launcher, "-np", str(ranks)]

    @contextlib.contextmanager
    def job(
        self, folder: Path, ranks: int, *more: str, at=NEVER, launcher: list[str] | None = None,
        output: Path | None = None, epochs: int = 0, first: tuple[str, ...] = (),
    ) -> Iterator[Job]:  # fmt: skip
        """A job that begins a run, or goes on with it; nothing of it is left behind.

        output: where its words go; first: the arguments of a new run.
        """
        if (folder / "config.yaml").exists():
            arguments = [f"--resume={folder}"]
        else:
            epochs = epochs or self._epochs
            arguments = list(first) or [*ARGUMENTS, f"--data.path={self.parts}", f"--train.epochs={epochs}"]
            arguments += [f"--output.dir={folder}", "--train.early_stopping_patience=0"]
        output = output or folder.with_name(f"{folder.name}-{time.monotonic_ns()}.out")
        job = start(launcher or self.launcher(ranks), self.environment, output, CHILD, *at, *arguments, *more)
        try:
            yield job
        finally:
            job.end()

    def watched(self, closely: bool) -> tuple[str, ...]:
        """The option for the watchdog: a machine that does much else may take long to start a job."""
        return (f"--comm.watchdog_seconds={self.watchdog if closely else START_SECONDS:g}",)

    def meet(self, folder: Path, ranks: int, fault: Fault, first: tuple[str, ...] = ()) -> str:
        """Run into a fault; the line that tells of it. Miss where the job ends in another way than it must."""
        with self.job(folder, ranks, *self.watched(fault.fate in HANGS), at=fault.at, first=first) as job:
            self.check_ended(job, folder, fault)
            return found_line(job.text(), fault.words)

    def check_ended(self, job: Job, folder: Path, fault: Fault) -> None:
        """From the fault on, the watchdog's time and what its answers and the launcher take are all that a job has."""
        job.wait_until(lambda: MEETS in job.text(), START_SECONDS)
        code = job.wait(self.watchdog + GRACE_SECONDS)
        job.check_nothing_left()
        check_end(job, code, fault.codes, fault.words)
        check_checkpoints(folder)

    def wait_for_a_moment(self, job: Job, random: np.random.Generator) -> None:
        """Until any moment of the time that the undisturbed run took, or the job's end."""
        moment = random.uniform(0, self.seconds)
        job.wait_until(lambda: time.monotonic() - job.began > moment, START_SECONDS)

    def finish(self, folder: Path, ranks: int, reference: list[dict], output: Path | None = None) -> None:
        """Go on, to the answer of the run that nothing disturbed."""
        with self.job(folder, ranks, *self.watched(False), output=output) as job:
            code = job.wait(START_SECONDS)
            check_end(job, code, (0,))
        check_same(folder, reference)

    def reference(self, name: str = "reference", epochs: int = 0) -> list[dict]:
        """The lines of a run on two ranks that nothing disturbs."""
        folder = self.root / name
        with self.job(folder, 2, *self.watched(False), epochs=epochs) as job:
            check_end(job, job.wait(START_SECONDS + 2 * epochs), (0,))
            self.seconds = time.monotonic() - job.began
        return read(folder)


def check_end(job: Job, code: int, codes: tuple[int, ...] | str, words: str = "") -> None:
    """Miss for another exit code, or where the words are missing."""
    right = code not in (0, 75) if codes == "failure" else code in codes
    if not right:
        raise Miss(f"exit code {code}, expected {codes}\n{job.text()}")
    if words and not re.search(words, job.text(), re.DOTALL):
        raise Miss(f"no {words!r} in\n{job.text()}")


def check_checkpoints(folder: Path) -> None:
    """Miss where a folder has a manifest, but not the files it names."""
    for manifest in folder.glob(f"checkpoints/*/{MANIFEST}"):
        try:
            check_files(manifest.parent, read_manifest(manifest.parent)["files"])
        except ValueError as error:
            raise Miss(str(error)) from error


def check_same(folder: Path, reference: list[dict]) -> None:
    """Miss where a run ended with other numbers."""
    try:
        assert_same(folder, reference)
    except AssertionError as error:
        raise Miss(f"{folder}: another answer than that of a run that nothing disturbed: {error}") from error


def found_line(text: str, words: str) -> str:
    """The line in which a pattern begins; empty for an empty one."""
    found = re.search(words, text, re.DOTALL) if words else None
    if not found:
        return ""
    begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.start())
    return text[begin : end if end >= 0 else len(text)].strip()
