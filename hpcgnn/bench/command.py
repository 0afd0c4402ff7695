"""What the timing commands share: a folder and a graph of their own, the report, what a process took of the system."""

from __future__ import annotations

import json
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.run import launch


def run(world: World, config, options, measure: Callable[..., dict], table: Callable[[dict], str]) -> int:
    """Collective. Rank 0 prints the ``table`` of what ``measure(config, folder, options, world)`` reports, and writes
    it to ``options.out``."""
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as own:
        result = measure(config, Path(world.broadcast(own)), options, World(config.comm))
        world.barrier()
    if world.rank == 0:
        print(table(result))
        if options.out:
            Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    world.barrier()
    return launch.EXIT_DONE


def graph_path(config, folder: Path, world: World, make: Callable[[Path], object]) -> str:
    """Collective. The partition set to measure with: the one given, else one that ``make`` writes into ``folder``."""
    if config.data.path:
        return config.data.path
    with together(world, "make the synthetic graph"):
        if world.local_size < world.size:
            raise ValueError("the built-in graph is made on one node only: give --data.path on several")
        if world.rank == 0:
            make(folder / "parts")
    return str(folder / "parts")


def peak_memory(world: World) -> list[float]:
    """Collective. MiB that each rank's process has held at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return world.allgather_array(np.array([peak])).ravel().tolist()


def page_faults() -> int:
    """Pages that the system has given to this process so far: memory that is used again needs none."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
