"""Sampling servers as a user starts them, and what becomes of the job when one of them, or a trainer, is lost."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from pathlib import Path

import pytest
from places import HELPERS

pytestmark = pytest.mark.launcher

LIMIT = 240
SMALL = [
    "--kind=static", "--data.synthetic_nodes=400", "--sampling.fanouts=[4,3]", "--model.layers=2", "--model.hidden=8",
    "--train.batch_size=16", "--train.epochs=2", "--train.precision=float64", "--comm.threads=1", "--comm.device=cpu",
    "--comm.sampling_servers=1",
]  # fmt: skip


def left_over(session: int) -> list[int]:
    """Processes of a session that are not zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                found += [int(entry.name)] * (") Z " not in (entry / "stat").read_text())
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


def lost(mpirun, tmp_path, script: str, how: str, rank: int, *more) -> tuple[str, str]:
    """What a job of three ranks prints that one of them ends at its fifth step; no process is left of it."""
    arguments = [*SMALL, f"--output.dir={tmp_path / 'run'}", *more]
    process = mpirun.popen(3, HELPERS / script, how, 5, rank, *arguments)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode not in (0, 75)
    deadline = time.monotonic() + LIMIT
    while left_over(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_over(process.pid) == []
    return out, err


def test_a_sampler_that_raises_ends_the_job(mpirun, tmp_path):
    out, err = lost(mpirun, tmp_path, "broken_sampler.py", "raise", 2)
    assert "2 ranks train, sampling servers: rank 2" in out
    assert f"rank 2 of 3 on {socket.gethostname()}" in err
    assert re.search(r"sampling server 0 of 1 failed at epoch \d, step \d", err)
    assert "KeyError: 'a defect'" in err


def test_a_sampler_that_is_killed_ends_the_job(mpirun, tmp_path):
    """Open MPI's launcher says so."""
    _, err = lost(mpirun, tmp_path, "broken_sampler.py", "kill", 2)
    assert not mpirun.is_open_mpi or re.search(r"rank 2\b.*signal 9", err, re.DOTALL), err


@pytest.mark.nightly
def test_a_sampler_that_hangs_is_named(mpirun, tmp_path):
    """Stopped by a signal: the watchdog of a trainer names it."""
    _, err = lost(mpirun, tmp_path, "broken_sampler.py", "stop", 2, "--comm.watchdog_seconds=10")
    assert "no answer from rank 2 (sampler)" in err


@pytest.mark.nightly
def test_samplers_notice_that_their_only_trainer_hangs(mpirun, tmp_path):
    more = ("--comm.watchdog_seconds=10", "--comm.sampling_servers=2")
    _, err = lost(mpirun, tmp_path, "broken_train.py", "stop", 0, *more)
    assert "no answer from rank 0" in err


def test_train_resume_and_evaluate(jobs, tmp_path):
    """The same metrics with and without samplers, from the command line."""
    runs = {}
    for samplers, ranks in ((1, 2), (0, 1)):
        folder = tmp_path / str(samplers)
        jobs(ranks, "train", *SMALL, f"--comm.sampling_servers={samplers}", f"--output.dir={folder}")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        runs[samplers] = next(line for line in lines if line["kind"] == "test")
    for name, value in runs[0].items():
        assert runs[1][name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)
    result = jobs(2, "evaluate", tmp_path / "1")
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert found["test_accuracy"] == pytest.approx(runs[0]["test_accuracy"], rel=1e-9)
    jobs(1, "train", f"--resume={tmp_path / '1'}", "--comm.sampling_servers=0", "--train.epochs=3")
