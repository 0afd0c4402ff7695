"""tests/gpu/check.sh on a machine without a GPU: its stages leave records, and go on where they ended."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys

import pytest
from places import REPOSITORY

pytestmark = pytest.mark.launcher
SCRIPT = REPOSITORY / "tests/gpu/check.sh"
FACTS = {"stage", "exit_code", "seconds", "dry", "gpu", "driver", "torch", "mpi", "ucx", "commit", "figures"}


@pytest.fixture
def check(tmp_path):
    """A callable `check(*stages)`: exit code, and the records of all stages so far by name. Its Python exits with the
    number in the file ``plant``, if that is there, when it is to run hpcgnn.info."""
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    python = tmp_path / "python"
    plant = f'[[ "$*" != *hpcgnn.info* || ! -e {tmp_path}/plant ]] || exit "$(cat {tmp_path}/plant)"'
    python.write_text(f'#!/bin/bash\n{plant}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    mpirun = os.path.join(os.path.dirname(sys.executable), "mpirun")
    (tmp_path / "mpirun").symlink_to(mpirun)

    def run(*stages: str):
        command = ["bash", SCRIPT, "--dry", "--out", tmp_path / "out", *stages]
        environment = os.environ | {"PYTHON": str(python)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1000)
        records = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
        return ended.returncode, records, ended.stderr + ended.stdout

    return run


def test_a_failed_stage_is_recorded_and_the_next_call_goes_on(check, tmp_path):
    plant = tmp_path / "plant"
    plant.write_text("7")
    code, records, output = check("info", "kernels")
    assert (code, records["info"]["exit_code"], records["kernels"]["exit_code"]) == (1, 7, 0), output
    for record in records.values():
        assert record.keys() >= FACTS
        assert (record["dry"], record["torch"] != "", record["commit"] != "") == (True, True, True)
    assert records["kernels"]["figures"]["kernels"]["kernels"]["gather_rows"]["seconds"] > 0
    assert "log" in records["info"]

    plant.unlink()
    code, again, output = check("info")  # a stage that is named runs again
    assert (code, again["info"]["exit_code"]) == (0, 0), output
    assert again["kernels"] == records["kernels"]


def test_a_stage_out_of_time_goes_on_and_others_are_left(check, tmp_path):
    (tmp_path / "plant").write_text("124")
    assert check("info")[1]["info"]["exit_code"] == 124
    (tmp_path / "plant").unlink()
    out = tmp_path / "out"
    done = {"exit_code": 0, "figures": {}}
    for stage in ("build", "kernels", "tests", "tgn", "exchanges"):
        (out / f"{stage}.json").write_text(json.dumps(done, indent=1))
    (out / "sage.json").write_text(json.dumps(done | {"exit_code": 3}, indent=1))
    code, records, output = check()
    assert records["info"]["exit_code"] == 0, output
    assert {name: record for name, record in records.items() if name not in ("info", "sage")} == dict.fromkeys(
        ("build", "kernels", "tests", "tgn", "exchanges"), done
    )
    assert (code, "sage       exit code   3  before; name it" in output) == (1, True), output


def test_unknown_stages_are_refused(check):
    code, records, output = check("kernel")
    assert (code, records) == (2, {})
    assert "unknown stage kernel" in output


@pytest.mark.nightly
def test_all_stages_without_a_gpu(check):
    """Their figures are those of small problems; rows between ranks go by UCX where its wheel is installed."""
    code, records, output = check("tests", "tgn", "sage", "exchanges")
    assert code == 0, output + json.dumps(records, indent=1)
    tgn, sage, exchanges = (records[name]["figures"] for name in ("tgn", "sage", "exchanges"))
    assert min(tgn["default"]["epoch_seconds"], tgn["default"]["pyg_epoch_seconds"]) > 0
    assert sage["default"]["step_seconds"] > 0
    assert exchanges["rows"]["exchanges"]["host"] > 0
    assert all(math.isfinite(exchanges[f"direct_{way}"]["epoch_seconds"]) for way in ("on", "off"))
    assert (records["exchanges"]["ucx"] != "") == (importlib.util.find_spec("libucx") is not None)


@pytest.mark.parametrize(("other", "code"), [(0.5 + 1e-12, 0), (0.5 + 1e-6, 1)])
def test_runs_are_compared_to_rounding(tmp_path, other, code):
    """Of seconds nothing is asked; two runs without results are not equal."""
    for name, value in (("one", 0.5), ("other", other)):
        line = {"kind": "epoch", "loss": value, "val_ap": None, "train_seconds": value * 100}
        (tmp_path / name).write_text(json.dumps(line) + "\n")
    (tmp_path / "empty").write_text("")
    compare = [sys.executable, REPOSITORY / "tests/gpu/record.py", "compare"]
    assert subprocess.run([*compare, tmp_path / "one", tmp_path / "other"], capture_output=True).returncode == code
    assert subprocess.run([*compare, tmp_path / "empty", tmp_path / "empty"], capture_output=True).returncode == 1
