"""What all commands do about launchers."""

import os
import pathlib
import subprocess
import sys

import pytest

import data_tools
from data_tools.cli import run_alone
from data_tools.synthesize import main as synthesize
from hpcgnn.comm.launch import LAUNCHER_SIZES

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    ("variable", "tasks", "code"),
    [
        ("OMPI_COMM_WORLD_SIZE", 3, 2),
        ("SLURM_STEP_NUM_TASKS", 2, 2),
        ("PMI_SIZE", 1, 0),
        ("SLURM_NTASKS", 4, 0),
        ("WORLD_SIZE", 2, 2),
    ],
)
def test_copies_of_a_command_are_refused(monkeypatch, capsys, variable, tasks, code):
    for other in LAUNCHER_SIZES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, str(tasks))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert run_alone(lambda: 0) == code
    message = capsys.readouterr().err
    assert message.count("\n") == (code == 2)
    remedy = f"a launcher started {tasks} of it ({variable}={tasks}): start it without mpirun, srun or torchrun"
    assert (remedy in message) == bool(code)


def test_every_command_that_writes_knows_how_many_it_is():
    """`inspect` only reads."""
    folder = pathlib.Path(data_tools.__file__).parent
    commands = {path: path.read_text() for path in folder.rglob("*.py") if "__main__" in path.read_text()}
    alone = {str(path.relative_to(folder)) for path, text in commands.items() if "sys.exit(run_" not in text}
    assert alone == {"inspect.py"}
    assert len(commands) > 10


def test_a_command_by_a_launcher(tmp_path):
    """Before, the copies truncated each other's file."""
    environment = os.environ | {"OMPI_COMM_WORLD_SIZE": "3"}
    command = [sys.executable, "-m", "data_tools.synthesize", str(tmp_path / "g.h5"), "--events=200"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "mpirun" in result.stderr
    assert not list(tmp_path.iterdir())
    assert synthesize([str(tmp_path / "g.h5"), "--events=200"]) == 0, "in a program of one's own"
