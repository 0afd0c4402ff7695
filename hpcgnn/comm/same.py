"""Checks that all ranks of a job have the same values: a rank that differs would change the answer without a sign.

One broadcast of rank 0's values and one reduction of who differs, whatever the number of ranks.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hpcgnn.comm.group import DistributedError, Group
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.together import together

TOKEN = ".shared-"  # how the name of the file begins that rank 0 shows the others
LOOK_SECONDS = 0.1
PATIENCE = 10.0  # seconds until a network file system shows what another machine wrote
NOTHING = "nothing"


def same_everywhere(world: Group, what: dict[str, Any], remedy: str, user_error: bool = True) -> None:
    """Collective over the job. Raise DistributedError on all its ranks unless each has the values ``what`` (picklable,
    by name) of rank 0. A rank with a missing or an additional name differs, too. The message names the first rank that
    differs, its machine, the first name, both values, and the remedy."""
    job = world.job
    first = job.broadcast((world.host, what) if job.rank == 0 else None)
    names = [name for name in (first[1] | what) if first[1].get(name, NOTHING) != what.get(name, NOTHING)]
    rank = job.mpi.allreduce(job.rank if names else job.size, MPI.MIN)
    if rank == job.size:
        return
    name, value, host = job.broadcast((names[0], what.get(names[0], NOTHING), world.host) if names else None, rank)
    raise DistributedError(
        f"all ranks must have the same {name}: rank {rank} of {job.size} on {host} has {value}, rank 0 on {first[0]} "
        f"has {first[1].get(name, NOTHING)}; {remedy}", user_error,
    )  # fmt: skip


def check_shared(folder: Path, world: Group) -> None:
    """Collective. Raise DistributedError unless all ranks see in ``folder`` the file that rank 0 writes there, and
    removes again. A rank waits PATIENCE seconds for it."""
    job = world.job
    name = job.broadcast(f"{TOKEN}{secrets.token_hex(8)}" if job.rank == 0 else None)
    with together(world, "look at the run folder"):
        if job.rank == 0:
            for left in folder.glob(f"{TOKEN}*"):  # of a start that was killed
                left.unlink(missing_ok=True)
            (folder / name).touch()
    is_seen = await_files([folder / name]) is None
    rank = job.mpi.allreduce(job.size if is_seen else job.rank, MPI.MIN)
    if job.rank == 0:
        (folder / name).unlink(missing_ok=True)
    if rank == job.size:
        return
    place, own_folder = job.broadcast((f"rank {rank} of {job.size} on {world.host}", folder.absolute()), rank)
    raise DistributedError(
        f"{place} does not see what rank 0 wrote into the run folder {own_folder}: name a folder that all machines "
        "share, such as by an absolute output.dir on a shared file system", user_error=True,
    )  # fmt: skip


def await_files(
    paths: Iterable[Path], is_whole: Callable[[Path], bool] = os.path.exists, seconds: float | None = None,
    waiting: Callable[[], object] = lambda: None,
) -> Path | None:  # fmt: skip
    """Wait until all files are whole, ``seconds`` (PATIENCE) at most for all of them together; returns the first one
    that is not. waiting: called before every look after the first one."""
    deadline = time.monotonic() + (PATIENCE if seconds is None else seconds)
    for path in paths:
        while not is_whole(path):
            if time.monotonic() > deadline:
                return path
            time.sleep(LOOK_SECONDS)
            waiting()
    return None
