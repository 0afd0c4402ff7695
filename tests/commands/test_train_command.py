"""What ``hpcgnn.train`` refuses before it makes anything, and what a run's first lines tell."""

from types import SimpleNamespace

import pytest
import torch
from run_commands import run

from hpcgnn import train
from hpcgnn.comm.launch import BATCH_JOBS
from hpcgnn.loop import launch
from hpcgnn.native import products
from hpcgnn.temporal.config import TemporalConfig

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("leftover", ["metrics.jsonl", "checkpoints"])
def test_folders_of_other_runs_are_kept(tmp_path, capsys, leftover):
    (tmp_path / leftover).mkdir()
    assert run([["train", f"--output.dir={tmp_path}"]]) == launch.EXIT_USER
    message = f"{tmp_path} holds a run already: continue it with --resume {tmp_path}, or choose another output.dir"
    assert message in capsys.readouterr().err


def test_resume_names_a_run(capsys):
    assert run([["train", "--resume="]]) == launch.EXIT_USER
    assert "--resume needs the run folder to continue" in capsys.readouterr().err


def test_the_built_in_graph_is_a_warning_in_a_job(monkeypatch):
    """There it is more likely a forgotten key than a wish."""
    for name in BATCH_JOBS:
        monkeypatch.delenv(name, raising=False)
    world = SimpleNamespace(describe_sharing=list, device=torch.device("cpu"))
    session = SimpleNamespace(config=TemporalConfig(), model=torch.nn.Linear(2, 3), world=world)
    lines = train._describe_start(session)
    assert lines[0] == "data: built-in synthetic events: no data.path was given"
    assert lines[1].endswith(", 9 parameters")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert train._describe_start(session) == [f"warning: {lines[0]}", lines[1]]
    warning = "warning: 3 GPUs of a machine are not used: start a rank for each GPU"
    world.describe_sharing = lambda: [warning]
    assert train._describe_start(session) == [f"warning: {lines[0]}", warning, lines[1]]


def test_the_first_lines_of_a_baseline_name_no_model():
    config = TemporalConfig.from_dict({"baseline": {"kind": "time_window"}})
    lines = train._describe_start(SimpleNamespace(config=config, model=torch.nn.Linear(2, 3)))
    assert lines[1] == "baseline: time_window; no model is trained"


def test_a_source_without_git_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert train._git_revision() == "unknown"


@pytest.mark.parametrize(
    ("matmul", "device", "has_units", "words"),
    [
        ("float32", "cpu", True, None), ("bf16", "cuda", False, None), ("bf16", "cpu", True, "operation by operation"),
        ("bf16", "cpu", False, "no units for it"), ("tf32", "cpu", True, "no units for it"),
        ("tf32", "cuda", True, None),
    ],
)  # fmt: skip
def test_slow_products_are_said(monkeypatch, matmul, device, has_units, words):
    monkeypatch.setattr(products, "_has_bfloat16_units", lambda: has_units)
    config, world = TemporalConfig(), SimpleNamespace(describe_sharing=list, device=torch.device(device))
    config.train.matmul = matmul
    lines = train._describe_start(SimpleNamespace(config=config, model=torch.nn.Linear(2, 3), world=world))
    assert [words in line for line in lines if "train.matmul" in line] == [True] * (words is not None)
