"""What the timing commands share: a folder and a graph of their own, the report, what a process took of the system."""

from __future__ import annotations

import json
import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np

from hpcgnn import config as configuration
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.loop import launch


@dataclass(frozen=True, slots=True)
class Options:
    """What the commands take beside the configuration. count: how often to measure; out: the report's file; peer: the
    other system, or none."""

    count: int
    out: str
    peer: str


def parse(
    parser: jsonargparse.ArgumentParser, argv: list[str], world: World, counted: tuple[str, int, str], peer: str
) -> tuple[Any, Options]:
    """Configuration and options. counted: name and default of the option for ``count``, and what it counts; peer: the
    system to compare with, on one rank. Raises ValueError."""
    name, default, what = counted
    parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} to report")
    parser.add_argument("--out", type=str, default="", help="JSON file to write")
    parser.add_argument("--peer", choices=("none", peer), default="none", help=f"another system to time at such {what}")
    config, namespace = configuration.parse(parser, argv)
    count = getattr(namespace, name)
    if count < 1:
        raise ValueError(f"--{name} must be at least 1")
    if namespace.peer != "none" and world.size > 1:
        raise ValueError(f"--peer {peer} compares on one rank, not on {world.size}")
    return config, Options(count, namespace.out, namespace.peer)


def run(world: World, config, options, measure: Callable[..., dict], table: Callable[[dict], str]) -> int:
    """Collective. Rank 0 prints the ``table`` of what ``measure(config, folder, options, world)`` reports, and writes
    it to ``options.out``."""
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as own:
        result = measure(config, Path(world.broadcast(own)), options, World(config.comm))
        world.barrier()
    return tell(world, result, table, options.out)


def tell(world: World, result: dict, table: Callable[[dict], str], out: str) -> int:
    """Collective. Rank 0 prints the ``table`` of a result and writes it to the JSON file ``out``, if it is named; the
    exit code."""
    if world.rank == 0:
        print(table(result))
        if out:
            Path(out).write_text(json.dumps(result, indent=1) + "\n")
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
