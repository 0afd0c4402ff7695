"""What tests/run.sh makes of stages that fail, hang or cannot run: a copy of it, where all else is a stand-in."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from places import TESTS

pytestmark = pytest.mark.serial
# What run.sh finds: scripts by their paths; all programs but those of TOOLS.
STAND_INS = {
    "tests/setup.sh": "true", ".venv/bin/activate": "true", "tests/slurm/setup.sh": "true", "bin/id": "echo 0",
    "bin/git": "true", "bin/ruff": "true", "bin/mypy": "true", "bin/shellcheck": "true", "bin/apt-get": "true",
    "bin/sbatch": "true",
    "bin/python": f'[[ $1 != *idle_timeout.py ]] || exec {sys.executable} "$@"',
}  # fmt: skip
TOOLS = ("bash", "dirname", "sleep", "mktemp", "mkdir", "rm", "df", "tail", "cat")
USER = {"bin/id": "echo 1000"}
BROKEN_SLURM = {"tests/slurm/setup.sh": "exit 1"}


@pytest.fixture
def run(tmp_path):
    """A callable `run(stage, changes, suite)`: exit code and line of the summary. None: no such stand-in."""
    (tmp_path / "tests").mkdir()
    for name in ("run.sh", "idle_timeout.py"):
        shutil.copy(TESTS / name, tmp_path / "tests")

    def start(stage: str, changes: dict[str, str | None], suite: str = "") -> tuple[int, str]:
        for name, script in (STAND_INS | changes).items():
            if script is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
                (tmp_path / name).chmod(0o755)
        for name in TOOLS:
            if not (tmp_path / "bin" / name).exists():
                (tmp_path / "bin" / name).symlink_to(shutil.which(name))
        environment = {"PATH": str(tmp_path / "bin"), "IDLE_MINUTES": "0.05", "HPCGNN_SUITE": suite}
        command = [tmp_path / "bin/bash", tmp_path / "tests/run.sh", stage]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert "=== summary ===" in ended.stdout, ended.stdout + ended.stderr
        return ended.returncode, ended.stdout.splitlines()[-1]

    return start


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({}, 0, "passed"),
        (BROKEN_SLURM, 1, "FAILED (exit code 1)"),
        (BROKEN_SLURM | {"bin/sbatch": None}, 1, "FAILED (exit code 1)"),
        (BROKEN_SLURM | USER, 1, "FAILED (exit code 1)"),
        (
            BROKEN_SLURM | USER | {"bin/sbatch": None},
            0,
            "skipped (no sbatch, and only root can install Slurm, by apt-get)",
        ),
        (BROKEN_SLURM | {"bin/sbatch": None, "bin/apt-get": None}, 0, "skipped (no sbatch"),
    ],
    ids=["starts", "root", "root without Slurm", "user with Slurm", "user without", "other system"],
)
def test_slurm_that_does_not_start_is_a_failure_where_it_could(run, changes, code, said):
    found = run("slurm", changes)
    assert (found[0], said in found[1]) == (code, True), found


def test_a_stage_that_says_nothing_has_failed(run):
    python = STAND_INS["bin/python"]
    code, said = run("slurm", {"bin/python": f"{python}\nsleep 1000"})
    assert (code, "FAILED (a command was ended: it said nothing for 0.05 minutes)" in said) == (1, True), said


def test_a_failing_pytest_fails_its_stage(run):
    python = STAND_INS["bin/python"]
    assert run("slurm", {"bin/python": f"{python}\nexit 3"})[0] == 1
    assert run("unit", {"bin/python": f'{python}\n[[ "$*" != *-n*auto* ]]'})[0] == 1
    assert run("launch", {"bin/python": f'{python}\n[[ "$*" != *launcher* ]]'})[0] == 1


@pytest.mark.parametrize("suite", ["all", ""])
def test_tests_that_need_their_moment_have_the_cores_alone(run, suite):
    python, file = STAND_INS["bin/python"], "tests/static/test_sampler_failures.py"
    for failing, code in ((f"*-n?2*--ignore={file}*", 1), (f"*\\ {file}*", 1), (f"*-n?2*\\ {file}*", 0)):
        assert run("launch", {"bin/python": f'{python}\n[[ "$*" != {failing} ]]'}, suite)[0] == code


@pytest.mark.parametrize(("changes", "code"), [({}, 1), (USER, 0)], ids=["root", "user"])
def test_lint_without_shellcheck_says_so(run, changes, code):
    found = run("lint", changes | {"bin/shellcheck": None})
    assert found[0] == code
    assert "(no shellcheck: shell scripts are not checked)" in found[1]
    assert run("lint", changes)[1].endswith("passed")
