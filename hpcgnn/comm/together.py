"""Makes all ranks leave together with an error of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcgnn.comm.group import Group


@contextmanager
def together(world: Group, stage: str) -> Iterator[None]:
    """Collective. Run the local code of the block; a ValueError or OSError on any rank, or one that the world explains,
    such as of a GPU whose memory is full, becomes a DistributedError on all ranks."""
    error: Exception | None = None
    try:
        yield
    except (ValueError, OSError) as caught:
        error = caught
    except Exception as caught:
        explained = world.explain(caught)
        if not explained:
            raise
        error = ValueError(explained).with_traceback(caught.__traceback__)
    world.agree(error, stage)
