"""Errors that one rank meets and all ranks must leave with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcgnn.comm.group import Group


@contextmanager
def together(world: Group, stage: str) -> Iterator[None]:
    """Collective. Run local code; when it raises a ValueError or OSError on any rank, all ranks leave with that one
    error."""
    error: Exception | None = None
    try:
        yield
    except (ValueError, OSError) as caught:
        error = caught
    world.agree(error, stage)
