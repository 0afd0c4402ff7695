"""Kill -9 of any rank, or of the launcher, at any moment, again and again: nothing is lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np

from faults.job import Miss, send
from faults.lab import START_SECONDS, Lab, check_checkpoints, check_same
from faults.rows import Row, has_checkpoint

RANKS = (1, 2, 1, 2, 3)
OF_LAUNCHER = 0.2  # share of the kills


def kills(count: int, seed: int, deadline: float) -> Row:
    """A row of so many kills. Runs that reach their end are compared, and followed by new ones."""

    def row(lab: Lab, folder: Path, reference: list[dict]) -> str:
        random, killed, runs, attempt = np.random.default_rng(seed), 0, 0, 0
        run = folder
        while killed < count:
            if time.monotonic() > deadline:
                raise Miss(f"no time left after {killed} of {count} kills")
            attempt += 1
            if kill(lab, run, RANKS[attempt % len(RANKS)], random):
                killed += 1
            else:
                check_same(run, reference)
                runs, run = runs + 1, folder.with_name(f"{folder.name}-{attempt}")
            check_checkpoints(run)
        lab.finish(run, 2, reference)
        return f"{killed} kills, {attempt} starts, {runs + 1} runs, the same answer each time"

    return row


def kill(lab: Lab, folder: Path, ranks: int, random: np.random.Generator) -> bool:
    """Start or go on, and kill at any moment, three of four times after start-up; False when the run came to its end
    before."""
    before = has_checkpoint(folder)
    with lab.job(folder, ranks) as job:
        if random.random() < 0.75:
            log = folder / "stages.jsonl"
            size = log.stat().st_size if log.exists() else 0
            job.wait_until(lambda: log.exists() and log.stat().st_size > size, START_SECONDS)
            moment = time.monotonic() + random.uniform(0, 0.3 * lab.seconds)
            job.wait_until(lambda: time.monotonic() > moment, START_SECONDS)
        else:
            lab.wait_for_a_moment(job, random)
        found = job.ranks()
        launcher = not found or random.random() < OF_LAUNCHER
        victim = job.process.pid if launcher else found[int(random.choice(sorted(found)))]
        if job.process.poll() is None:
            send(victim, signal.SIGKILL)
        code = job.wait(lab.watchdog + START_SECONDS)
        job.check_nothing_left()
    if code == 0:
        return False
    if before and not has_checkpoint(folder):
        raise Miss(f"{folder}: its checkpoints are gone")
    return True
