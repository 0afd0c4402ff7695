"""What hypothesis finds out about an example is the same on all ranks, so that all of them draw the same next one."""

from __future__ import annotations

import traceback
from contextlib import contextmanager

import pytest


@contextmanager
def same_verdict(comm):
    """Collective. Fail on all ranks, with one error, where the block finds a fault on any of them. A block looks at
    results after its last collective call, or ranks that fail would leave the others in it; an error that is no
    finding may have left them there, and ends the job."""
    failure = None
    try:
        yield
    except (AssertionError, pytest.fail.Exception) as error:
        if comm.size == 1:
            raise
        failure = f"rank {comm.rank}: {error!r}"
    except Exception:
        if comm.size == 1:
            raise
        raise KeyboardInterrupt(traceback.format_exc()) from None  # which hypothesis passes on
    failures = [text for text in comm.allgather(failure) if text]
    try:
        assert not failures, "\n".join(failures)
    except AssertionError as error:
        error.__context__ = None  # the failure of this rank, by which hypothesis tells kinds of failures apart
        raise
