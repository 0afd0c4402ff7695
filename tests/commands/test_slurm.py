"""The job scripts under a real Slurm: interrupted, requeued, resumed, finished."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from places import REPOSITORY

pytestmark = [pytest.mark.slurm, pytest.mark.launcher]
NIGHTLY = pytest.mark.nightly  # the job scripts get the same signals without Slurm, too (test_jobs.py)


class Job:
    """A batch job, cancelled when the test ends."""

    def __init__(self, output: Path, *arguments, site: str = "generic"):
        """Submit `sbatch arguments...` from the repository's root."""
        self.output = output
        command = ["sbatch", "--parsable", f"--output={output}", f"--chdir={REPOSITORY}", *map(str, arguments)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_"))}
        environment["HPCGNN_SITE"] = site
        run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        self.id = run.stdout.strip().split(";")[0]

    def show(self) -> dict[str, str]:
        text = subprocess.run(["scontrol", "show", "job", self.id], capture_output=True, text=True, timeout=60).stdout
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def wait_for(self, condition, what: str, timeout: float = 180):
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"no {what} in {timeout} s: {self.show()}\n{self.text()}")
            time.sleep(0.2)

    def wait_for_state(self, *states: str):
        self.wait_for(lambda: self.show().get("JobState") in states, " or ".join(states))

    def signal(self, *flags: str):
        subprocess.run(["scancel", *flags, self.id], check=True, timeout=60)

    def start_requeued(self):
        """Wait until the job is queued again, and do not wait for the two minutes it would have to rest.

        The rest has its reason: a new start takes the late word of the old one's end for its own, and is refused in the
        second in which the old credential was revoked.
        """
        self.wait_for(lambda: self.show().get("Restarts") == "1", "requeue")
        self.wait_for_state("PENDING")
        self.wait_for(lambda: not self.step_daemons(), "end of the first start")
        time.sleep(5)
        subprocess.run(["scontrol", "update", f"JobId={self.id}", "StartTime=now"], capture_output=True, timeout=60)

    def step_daemons(self) -> list[str]:
        """Slurm's processes that still watch over a step of this job."""
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, timeout=60).stdout
        return [line for line in listed.splitlines() if line.startswith(f"slurmstepd: [{self.id}.")]

    def cancel(self):
        subprocess.run(["scancel", "--signal=KILL", "--full", self.id], capture_output=True, timeout=60)
        subprocess.run(["scancel", self.id], capture_output=True, timeout=60)


@pytest.fixture
def submit(tmp_path):
    jobs = []

    def submit(*arguments, **options) -> Job:
        jobs.append(Job(tmp_path / f"job-{len(jobs)}.out", *arguments, **options))
        return jobs[-1]

    yield submit
    for job in jobs:
        job.cancel()


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps_of(run: Path) -> list[tuple[int, int]]:
    lines = lines_of(run / "metrics.jsonl")
    return [(line["epoch"], line["step"]) for line in lines if "step" in line]


def outcome_of(run: Path) -> dict:
    """The one line of the test."""
    (found,) = [line for line in lines_of(run / "metrics.jsonl") if line.get("kind") == "test"]
    return found


def known(line: dict) -> dict[str, float]:
    return {name: value for name, value in line.items() if isinstance(value, int | float)}


def needs(site: str, nodes: int = 1):
    """Skip a test that this Slurm has no plugin or not enough nodes for."""
    if site == "srun-pmix" and not srun_speaks_pmix():
        pytest.skip("srun --mpi=list names no pmix")
    listed = subprocess.run(["sinfo", "-h", "-N", "-o", "%n"], capture_output=True, text=True, timeout=60).stdout
    if len(set(listed.split())) < nodes:
        pytest.skip(f"needs a Slurm of {nodes} nodes (tests/slurm/setup.sh makes one where it may)")


def srun_speaks_pmix() -> bool:
    run = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=60)
    return "pmix" in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("site", "flags"),
    [
        pytest.param("generic", ["--batch", "--signal=USR1"], id="time limit, mpirun", marks=NIGHTLY),
        pytest.param("generic", ["--batch", "--signal=TERM"], id="TERM to the script, mpirun"),
        pytest.param("generic", ["--full", "--signal=TERM"], id="TERM to all processes, mpirun", marks=NIGHTLY),
        pytest.param("srun-pmix", ["--batch", "--signal=USR1"], id="time limit, srun"),
        pytest.param("srun-pmix", ["--signal=TERM"], id="TERM to the ranks, srun", marks=NIGHTLY),
    ],
)
def test_interrupted_job_is_requeued_and_goes_on_without_gap(submit, tmp_path, site, flags):
    needs(site)
    run = tmp_path / "run"
    job = submit("tests/slurm/stub.slurm", run, "--steps", 40, site=site)
    job.wait_for(lambda: len(steps_of(run)) > 3, "steps")
    job.signal(*flags)
    job.start_requeued()
    job.wait_for_state("COMPLETED", "FAILED")
    text = job.text()
    assert job.show()["ExitCode"] == "0:0", text
    assert steps_of(run) == [(0, step) for step in range(40)]
    resumed = re.findall(r"rank (\d) of 2 starts at step (\d+)", text)
    assert sorted(resumed)[0] == ("0", "0"), text
    assert len(resumed) == 4, text
    assert "--resume" in text


def test_cancelled_job_is_not_requeued(submit, tmp_path):
    run = tmp_path / "run"
    job = submit("tests/slurm/stub.slurm", run, "--steps", 600)
    job.wait_for(lambda: len(steps_of(run)) > 3, "steps")
    job.signal()
    job.wait_for_state("CANCELLED")
    time.sleep(3)
    assert job.show()["JobState"] == "CANCELLED"
    assert job.show()["Restarts"] == "0"


def test_failure_is_passed_on_and_not_requeued(submit, tmp_path):
    job = submit("tests/slurm/stub.slurm", tmp_path / "run", "--unknown")
    job.wait_for_state("FAILED", "COMPLETED")
    assert job.show()["ExitCode"] == "2:0", job.text()
    assert job.show()["Restarts"] == "0"


def test_unknown_site_names_those_there_are(submit, tmp_path):
    job = submit("tests/slurm/stub.slurm", tmp_path / "run", site="nowhere")
    job.wait_for_state("FAILED", "COMPLETED")
    assert job.show()["ExitCode"] == "2:0"
    assert "generic.sh" in job.text()


@pytest.mark.parametrize(
    "flags",
    [["--batch", "--signal=USR1"], pytest.param(["--full", "--signal=TERM"], marks=NIGHTLY)],
    ids=["USR1", "TERM"],
)
def test_train_tgn_job_is_interrupted_requeued_and_finishes(submit, flags):
    """The recipe as it is, with a line in metrics.jsonl for every step."""
    epochs = 4
    job = submit(
        "jobs/train_tgn.slurm",
        "--train.epochs",
        epochs,
        "--train.early_stopping_patience",
        epochs,
        "--train.log_every",
        1,
    )
    run = REPOSITORY / "runs" / f"tgn-{job.id}"
    job.wait_for(lambda: len(steps_of(run)) > 3, "steps")
    job.signal(*flags)
    job.start_requeued()
    job.wait_for_state("COMPLETED", "FAILED")
    assert job.show()["ExitCode"] == "0:0", job.text()
    assert f"--resume runs/{run.name}" in job.text()
    steps = steps_of(run)
    assert steps == [(epoch, step) for epoch in range(epochs) for step in range(len(steps) // epochs)]
    assert outcome_of(run)["test_ap"] > 0.65  # a random order has 0.5
    shutil.rmtree(run)


SMALL = ["--data.synthetic_events", 2000, "--train.batch_size", 100, "--train.log_every", 1]


@pytest.mark.parametrize("site", [pytest.param("generic", marks=NIGHTLY), "srun-pmix"])
def test_job_on_two_nodes_is_requeued_and_answers_as_one_rank(submit, mpirun, tmp_path, site):
    """Ranks that reach each other by TCP; the signal reaches those of both nodes."""
    needs(site, nodes=2)
    keys = [*SMALL, "--train.epochs", 2, "--train.precision", "float64"]
    job = submit("--nodes=2", "--ntasks-per-node=1", "jobs/train_tgn.slurm", *keys, site=site)
    run = REPOSITORY / "runs" / f"tgn-{job.id}"
    job.wait_for(lambda: len(steps_of(run)) > 3, "steps")
    job.signal("--batch", "--signal=USR1")
    job.start_requeued()
    job.wait_for_state("COMPLETED", "FAILED")
    assert job.show()["ExitCode"] == "0:0", job.text()
    assert re.search(r"hosts: (node1 node2|node2 node1)$", (run / "config.yaml").read_text(), re.MULTILINE)
    mpirun(1, "-m", "hpcgnn.train", "--config", "jobs/train_tgn.yaml", *keys, "--output.dir", tmp_path, cwd=REPOSITORY)
    alone = outcome_of(tmp_path)
    assert known(outcome_of(run)) == pytest.approx(known(alone), rel=1e-9, abs=1e-9)
    assert steps_of(run) == steps_of(tmp_path)
    shutil.rmtree(run)


def test_job_array_trains_seeds_into_folders_of_their_own(submit):
    """Each is queued again for itself."""
    job = submit("--array=0-1", "jobs/train_tgn.slurm", *SMALL, "--train.epochs", 3)
    runs = [REPOSITORY / "runs" / f"tgn-{job.id}-seed-{seed}" for seed in range(2)]
    job.wait_for(lambda: all(len(steps_of(run)) > 3 for run in runs), "steps")
    job.signal("--batch", "--signal=USR1")
    job.wait_for(lambda: job.text().count("requeueing job") == 2, "requeue of both")
    time.sleep(10)  # as in start_requeued
    for element in range(2):
        name = f"JobId={job.id}_{element}"
        subprocess.run(["scontrol", "update", name, "StartTime=now"], capture_output=True, timeout=60)
    job.wait_for(lambda: not queued(job), "end of the array")
    assert job.text().count(", restart 1,") == 2
    assert [steps_of(run) for run in runs] == 2 * [[(e, s) for e in range(3) for s in range(14)]]
    seeds = [re.search(r"^  seed: (\d+)$", (run / "config.yaml").read_text(), re.MULTILINE).group(1) for run in runs]
    assert seeds == ["0", "1"]
    assert outcome_of(runs[0])["test_ap"] != outcome_of(runs[1])["test_ap"]
    for run in runs:
        shutil.rmtree(run)


def queued(job: Job) -> str:
    """Its elements that are not done."""
    command = ["squeue", "--noheader", f"--jobs={job.id}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
