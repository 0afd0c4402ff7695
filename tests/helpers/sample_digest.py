"""One hash of everything random or sampled in a training epoch, on any number of ranks."""

from __future__ import annotations

import hashlib

from training_runs import describe, gather_by_row

from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.session import open_session


def main(world: World, arguments: list[str]) -> int:
    """Collective. The main function of a command, "digest PARTS STRATEGY": prints the hash of every event in order, its
    roots, neighbors, time differences, negatives and dropout masks, nodes as flat row ids."""
    parts, strategy = arguments
    config = TemporalConfig()
    config.sampling.strategy, config.train.precision, config.model.hidden = strategy, "float64", 8
    session = open_session(config, parts, world, Watchdog(world, 0))
    digest = hashlib.sha256()
    with session.plans("train", 0) as plans:
        for plan in plans:
            events = gather_by_row(world, [describe(session, plan)])
            for name in sorted(events or ()):
                digest.update(name.encode() + events[name].tobytes())
    if world.rank == 0:
        print(digest.hexdigest())
    return 0
