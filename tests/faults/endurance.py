"""A long run holds no more memory and no more open files at its end than near its beginning."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from faults.job import Job, Miss
from faults.lab import Lab, check_end
from faults.rows import Row

RANKS, LOOK_SECONDS = 4, 1.0
SETTLED = 0.25  # share of the run after which nothing may grow
GROWTH = 1.02  # of memory, the last tenth against that after SETTLED
PASSING_FILES = 2 * RANKS  # that checkpoints have open for a moment, when a look may find them or not


@dataclass
class Usage:
    """Of all ranks together, look by look: epochs done, KiB of resident memory, open files."""

    epoch: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def look(self, job: Job, epoch: int) -> None:
        """Add a line, unless a rank is about to leave."""
        try:
            ranks = [Path(f"/proc/{process}") for process in job.ranks().values()]
            memory = sum(resident(rank) for rank in ranks)
            files = sum(len(list((rank / "fd").iterdir())) for rank in ranks)
        except (OSError, StopIteration):
            return
        if len(ranks) == RANKS:
            self.epoch.append(epoch)
            self.memory.append(memory)
            self.files.append(files)

    def told(self) -> str:
        """Every tenth of the looks, in words."""
        looks = range(0, len(self.epoch), max(1, len(self.epoch) // 10))
        return "; ".join(f"epoch {self.epoch[i]}: {self.memory[i] >> 10} MiB, {self.files[i]} files" for i in looks)


def resident(process: Path) -> int:
    """KiB of resident memory."""
    lines = (process / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


def endures(epochs: int, deadline: float, first: tuple[str, ...] = ()) -> Row:
    """A row of one run of so many epochs; first: its arguments, else those of the lab's graph."""

    def row(lab: Lab, folder: Path, reference: list[dict]) -> str:
        usage = Usage()
        options = ("--train.log_every=0", "--comm.watchdog_seconds=300")
        options += (f"--train.epochs={epochs}",) if first else ("--train.batch_size=400",)
        with lab.job(folder, RANKS, *options, epochs=epochs, first=first) as job:
            while job.process.poll() is None:
                if time.monotonic() > deadline:
                    raise Miss(f"no time left after {epochs_done(folder)} of {epochs} epochs; {usage.told()}")
                time.sleep(LOOK_SECONDS)
                usage.look(job, epochs_done(folder))
            check_end(job, job.wait(1), (0,))
            job.check_nothing_left()
        return judge(usage, epochs)

    return row


def epochs_done(folder: Path) -> int:
    """As the newest line of stages.jsonl tells it."""
    try:
        with open(folder / "stages.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = [json.loads(line) for line in file.read().split(b"\n")[1:-1]]
    except (OSError, ValueError):
        return 0
    return max((line.get("epoch", -1) + 1 for line in lines), default=0)


def judge(usage: Usage, epochs: int) -> str:
    """What was found; Miss for growth."""
    epoch, memory, files = (np.array(values) for values in (usage.epoch, usage.memory, usage.files))
    early = (epoch >= SETTLED * epochs) & (epoch < (SETTLED + 0.1) * epochs)
    late = epoch >= 0.9 * epochs
    if not early.any() or not late.any():
        raise Miss(f"looked {len(epoch)} times at {epochs} epochs: too few")
    before, after = np.median(memory[early]) / 1024, np.median(memory[late]) / 1024
    most = files[early].max(), files[late].max()
    told = f"{before:.0f} MiB after a quarter, {after:.0f} MiB at the end; at most {most[0]} and {most[1]} open files"
    if after > GROWTH * before or most[1] > most[0] + PASSING_FILES:
        raise Miss(f"grows: {told}")
    return told
