"""Prints one hash of everything random or sampled in a training epoch, on any number of ranks.

`mpirun -np 3 python tests/sample_digest.py parts/`: for every event in order, its roots, neighbours, time differences,
negatives and dropout masks, nodes as flat row ids.
"""

import hashlib
import sys

from training_runs import describe, gather_by_row

from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.config import RunConfig
from hpcgnn.run.session import Session


def main(parts: str, strategy: str) -> None:
    config = RunConfig()
    config.sampling.strategy, config.train.precision, config.model.embed_dim = strategy, "float64", 8
    world = World(CommConfig(device="cpu", threads=1))
    session = Session(config, parts, world, Watchdog(world, 0))
    digest = hashlib.sha256()
    with session.plans("train", 0) as plans:
        for plan in plans:
            events = gather_by_row(world, [describe(session, plan)])
            for name in sorted(events or ()):
                digest.update(name.encode() + events[name].tobytes())
    if world.rank == 0:
        print(digest.hexdigest())


main(*sys.argv[1:])
