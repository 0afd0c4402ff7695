"""A training job as its user starts it, seen from outside: its ranks, its output, what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")
SWEEP_SECONDS = 75.0  # after the launcher: so long may what it started take to be gone


class Miss(AssertionError):
    """A fault after which something was not as it must be."""


@dataclass
class Job:
    """A launcher in a session of its own. output: the file that has all it prints."""

    process: subprocess.Popen
    output: Path
    began: float

    def text(self) -> str:
        """All that has been printed."""
        return self.output.read_text(errors="replace")

    def wait(self, seconds: float) -> int:
        """The launcher's exit code; Miss where it runs longer."""
        try:
            return self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            raise Miss(f"the job ran past {seconds:g} s\n{self.text()}") from None

    def wait_until(self, done, seconds: float) -> bool:
        """Until ``done()``; False when the launcher ended before. Miss when neither comes in time."""
        deadline = time.monotonic() + seconds
        while not done():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise Miss(f"the job did not come so far within {seconds:g} s\n{self.text()}")
            time.sleep(0.02)
        return True

    def processes(self) -> list[int]:
        """What is alive of the session, zombies left out."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.getsid(int(entry.name)) == self.process.pid:
                    found += [int(entry.name)] * (") Z " not in (entry / "stat").read_text())
            except (ProcessLookupError, FileNotFoundError):
                continue
        return found

    def ranks(self) -> dict[int, int]:
        """Process ids by rank."""
        found = {}
        for process in self.processes():
            try:
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for variable in variables:
                if variable.startswith(RANK_VARIABLES):
                    found[int(variable.partition(b"=")[2])] = process
        return found

    def check_nothing_left(self) -> None:
        """Miss where processes outlive the launcher."""
        deadline = time.monotonic() + SWEEP_SECONDS
        while found := self.processes():
            if time.monotonic() > deadline:
                raise Miss(f"processes {found} are left\n{self.text()}")
            time.sleep(0.05)

    def end(self) -> None:
        """Kill what is left, and take the launcher's exit code."""
        while found := self.processes():
            for process in found:
                send(process, signal.SIGKILL)
            time.sleep(0.05)
        self.process.wait()


def send(process: int, number: int) -> None:
    """A signal, unless the process is gone."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def start(launcher: list[str], environment: dict[str, str], output: Path, *command: object) -> Job:
    """Run ``python command`` under a launcher."""
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [*launcher, sys.executable, *map(str, command)],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
    return Job(process, output, time.monotonic())
