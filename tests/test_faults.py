"""Rows of the fault table that take seconds; `bash tests/soak.sh` has them all."""

from __future__ import annotations

import socket

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


@pytest.mark.parametrize("name", ["out of memory in training", "asked to leave in start-up", "a node vanishes"])
def test_row(lab, reference, tmp_path, name):
    """The job ends in time, says what happened where, leaves nothing behind, and goes on to the same answer."""
    try:
        assert all_rows(socket.gethostname())[name](lab, tmp_path / "run", reference)
    except Missing as missing:
        pytest.skip(f"needs what this machine does not lend: {missing}")
