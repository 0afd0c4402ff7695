"""Commands that users are promised, with nothing added: no argument, the default run folder, any number of ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import clean_environment
from selection import long_but

from hpcgnn import train

# As README.md names them.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MORE_RANKS_THAN_CORES = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def bare(command: list[str], folder: Path, **variables: str) -> list[str]:
    """The lines that a command prints in an empty folder."""
    environment = clean_environment() | AS_ROOT | MORE_RANKS_THAN_CORES | variables
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in ended.stdout.splitlines()]


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [0, 2, pytest.param(8, marks=pytest.mark.nightly)])
def test_train_without_arguments(mpirun, tmp_path, ranks):
    """Alone (0) and under mpirun; the last lines are a result better than chance, in the default run folder."""
    launcher = [mpirun.path, "-np", str(ranks)] if ranks else []
    lines = bare([*launcher, sys.executable, "-m", "hpcgnn.train"], tmp_path)
    assert lines[0] == "data: built-in synthetic events: no data.path was given"
    assert re.fullmatch(r"model: attention embedding, gru memory, [\d,]{7,} parameters", lines[1])
    (ap,) = re.findall(r"best epoch \d+: test ap ([\d.]+)", "\n".join(lines))
    assert float(ap) > 0.7
    (folder,) = re.fullmatch(r"results in (runs/tgn-\d{8}-\d{6})", lines[-1]).groups()
    assert (tmp_path / folder / "finished").exists()


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["temporal", "static", "snapshots"])
def test_runs_that_start_in_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: train._parse(["--kind", kind])[1], range(16)))
    assert len(set(folders)) == 16
    assert {path.parent for path in folders} == {Path("runs")}


@pytest.mark.serial
def test_results_go_home_where_the_current_folder_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "runs").write_text("a file in the place of the folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert train._parse([])[1].parent == tmp_path / "home" / "runs"


@pytest.mark.serial
@pytest.mark.parametrize("variable", long_but(["SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID"], "SLURM_JOB_ID".__eq__))
def test_a_batch_job_without_data_is_warned(tmp_path, variable):
    """The built-in graph gives a convincing score to a user who forgot the key."""
    small = ["--data.synthetic_events=600", "--train.epochs=1"]
    lines = bare([sys.executable, "-m", "hpcgnn.train", *small], tmp_path, **{variable: "17"})
    assert lines[0] == "warning: data: built-in synthetic events: no data.path was given"


@pytest.mark.serial
def test_the_data_in_use_is_named(tmp_path):
    small = [sys.executable, "-m", "hpcgnn.train", "--kind=static", "--train.epochs=1"]
    bare([*small, "--data.synthetic_nodes=200", "--output.dir=first"], tmp_path)
    lines = bare([*small, "--data.path=first/data/parts"], tmp_path)
    assert lines[0] == f"data: {os.path.realpath(tmp_path)}/first/data/parts"
    assert re.fullmatch(r"model: sage, [\d,]+ parameters", lines[1])
