"""Jobs that wait for commands: one start for many commands, and a new one after a command that took its job along."""

from __future__ import annotations

import pytest
from waiting_jobs import Jobs

pytestmark = pytest.mark.launcher


@pytest.fixture
def jobs(mpirun):
    """None of the session's, which run already."""
    jobs = Jobs(mpirun)
    yield jobs
    jobs.close()


def test_commands_share_a_job(mpirun, jobs):
    started = len(mpirun._started)
    assert "self-check: kernels and exchange agree" in jobs(2, "info").stdout
    refused = jobs(2, "train", "--train.lr=-1", check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: train.lr")
    with pytest.raises(AssertionError, match=r"train\.lr"):
        jobs(2, "train", "--train.lr=-1")
    assert "batch_size" in jobs(2, "train", "--help").stdout
    assert len(mpirun._started) == started + 1


def test_a_job_that_is_lost_is_replaced(jobs):
    """By an error of its own, or as it does not answer in time."""
    with pytest.raises(pytest.fail.Exception, match="KeyError: 'unknown'"):
        jobs(1, "unknown")
    assert jobs(1, "info").returncode == 0
    with pytest.raises(pytest.fail.Exception, match=r"ran past 0\.001 s"):
        jobs(1, "info", timeout=0.001)
    assert jobs(1, "info").returncode == 0


def test_no_process_is_left(mpirun, jobs):
    jobs(2, "info")
    process = mpirun._started[-1]
    jobs.close()
    assert process.poll() == 0
