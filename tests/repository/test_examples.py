"""The tutorials of examples/ end in the result that their pages promise, on one rank and on two."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY, clean_environment

EXAMPLES = REPOSITORY / "examples"
# One rank only every night: other scripts run on one in test_stories.py.
RANKS = pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
pytestmark = pytest.mark.launcher


def environment_of(ranks: int) -> dict[str, str]:
    """What an activated environment sets; on as many ranks, also where there are fewer cores."""
    return clean_environment() | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RANKS": str(ranks),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl": "^ofi",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }


def run_script(name: str, folder: Path, ranks: int) -> str:
    """What a script of a tutorial prints when it runs as its page says."""
    command = ["bash", str(EXAMPLES / name), str(folder)]
    ended = subprocess.run(command, env=environment_of(ranks), capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


@RANKS
def test_classify_papers(tmp_path, mpirun, ranks):
    """Most papers without a topic get the right one. A loop trains on the same parts, as the tutorial of PyG says."""
    printed = run_script("classify_papers.sh", tmp_path, ranks)
    right, total = map(int, re.search(r"correct: (\d+) of (\d+) papers", printed).groups())
    assert total == 195
    assert right > 0.85 * total
    with open(tmp_path / "topics.csv") as file:
        assert {row["class"] for row in csv.DictReader(file)} == {"biology", "chemistry", "physics", "statistics"}
    if ranks == 2:
        pytest.importorskip("torch_geometric", reason="needs torch-geometric")
        printed = mpirun(ranks, EXAMPLES / "pyg_sage.py", "parts/", 4, cwd=tmp_path).stdout
        assert re.findall(r"^epoch (\d+): loss [\d.]+, test accuracy [\d.]+$", printed, re.MULTILINE) == [*"01234"]


@RANKS
def test_forecast_sensors(tmp_path, ranks):
    """The forecast is better than the readings of now."""
    printed = run_script("forecast_sensors.sh", tmp_path, ranks)
    error, same = map(float, re.search(r"test: ([\d.]+) cm \(the same as now: ([\d.]+) cm\)", printed).groups())
    assert error < 0.4 * same
    with open(tmp_path / "forecast.csv") as file:
        assert [row["node"] for row in csv.DictReader(file)] == [f"gauge{number}" for number in range(20)]


@RANKS
def test_tgn_on_events(tmp_path, ranks):
    """Test events stand before drawn ones, and a user's best items are the ones of the last purchases."""
    printed = run_script("tgn_on_events.sh", tmp_path, ranks)
    assert float(re.search(r"best epoch \d+: test ap ([\d.]+)", printed, re.IGNORECASE)[1]) > 0.9
    last = set(re.search(r"last items of user 7: (.*)", printed)[1].split())
    best = re.findall(r"^item (\d+): score", printed, re.MULTILINE)
    assert len(best) == 5
    assert last <= set(best)


@RANKS
def test_pyg_sage(tmp_path, mpirun, ranks):
    """A module of PyTorch Geometric learns, nearly the same on one rank and on two."""
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    printed = mpirun(ranks, EXAMPLES / "pyg_sage.py", cwd=tmp_path).stdout
    lines = re.findall(r"^epoch (\d+): loss ([\d.]+), test accuracy ([\d.]+)$", printed, re.MULTILINE)
    assert [int(epoch) for epoch, _, _ in lines] == list(range(10))  # one line an epoch: rank 0 prints alone
    assert float(lines[0][1]) == pytest.approx(1.575, abs=0.005)
    assert float(lines[-1][2]) > 0.42


def test_a_missing_library_is_named(tmp_path):
    """One line, without a traceback."""
    (tmp_path / "torch_geometric.py").write_text("raise ImportError('not here')\n")
    environment = clean_environment() | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / "pyg_sage.py")]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    lines = [line for line in ended.stderr.splitlines() if "UCX" not in line and line.strip()]
    assert lines == ["this example needs PyTorch Geometric: pip install torch-geometric"]


def test_a_custom_loss_and_callback_train_by_the_command(tmp_path, mpirun):
    """As the first lines of their file say; the averages are of the model."""
    command = ["-m", "hpcgnn", "train", "--kind=static", "--task.loss_path=own_loss_and_callback.focal_loss"]
    options = ["--train.callbacks=[own_loss_and_callback.Averages]", "--train.epochs=1", "--data.synthetic_nodes=300"]
    mpirun(2, *command, *options, "--output.dir=run", cwd=tmp_path, env={"PYTHONPATH": str(EXAMPLES)})
    averages = torch.load(tmp_path / "run" / "averages.pt", weights_only=True)
    assert all(value.isfinite().all() for value in averages.values())
    assert len(averages) > 3
