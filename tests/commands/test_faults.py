"""Rows of the fault table that take seconds; `bash tests/soak.sh` has them all."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest
from faults.lab import Lab
from faults.machine import Missing
from faults.rows import all_rows

pytestmark = pytest.mark.launcher

WATCHDOG = 30.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("faults"), epochs=2, watchdog=WATCHDOG)


@pytest.fixture(scope="module")
def reference(lab):
    """The lines of a run that nothing disturbs."""
    return lab.reference()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["out of memory in training", "asked to leave in start-up", "the launcher killed", "a machine vanishes"]
)
def test_row(lab, reference, tmp_path, name):
    """The job ends in time, says what happened where, leaves nothing behind, and goes on to the same answer."""
    try:
        assert all_rows(socket.gethostname())[name](lab, tmp_path / "run", reference)
    except Missing as missing:
        pytest.skip(f"needs what this machine does not lend: {missing}")


def test_the_end_does_not_wait_for_ever():
    """What is left to do once a command has ended, such as MPI's end, is bounded."""
    program = (
        "import atexit, time; from hpcgnn.loop import launch; launch.LEAVE_SECONDS = 1; "
        "atexit.register(time.sleep, 600); launch.leave(0)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == -signal.SIGALRM
