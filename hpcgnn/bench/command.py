"""Parts of the timing commands: options, a graph, a session with its trainer, the report, memory of the processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import resource
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np
import torch

from hpcgnn import config as configuration
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.kinds import make_built_in
from hpcgnn.loop import launch
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.logs import RunLog
from hpcgnn.loop.profile import peak_mib
from hpcgnn.loop.trainer import Trainer

# The command for each kind of graph, which the refusal of another kind names.
OTHER_COMMANDS = {
    "temporal": "hpcgnn bench epoch", "static": "hpcgnn bench sage",
    "snapshots": "hpcgnn bench snapshots",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """Options of the timing commands, in addition to the configuration. count: number of epochs or steps to report;
    out: file of the report; peer: the system to compare with, or "none"."""

    count: int
    out: str
    peer: str


def parse(
    parser: jsonargparse.ArgumentParser, argv: list[str], world: World, counted: tuple[str, int, str], peer: str,
    peer_on_device: bool = False,
) -> tuple[Any, TimingOptions]:  # fmt: skip
    """Read the configuration and the options. counted: name and default of the option for ``count``, and what it
    counts; peer: the system to compare with, on one rank; peer_on_device: on a device too. Raises ValueError."""
    name, default, what = counted
    parser.add_argument(f"--{name}", type=int, default=default, help=f"number of {what} to report")
    parser.add_argument("--out", type=str, default="", help="JSON file to write the report to; default: none")
    parser.add_argument(
        "--peer", choices=("none", peer), default="none", help=f"other system to time with the same {what}"
    )
    kind = parser.get_default("kind")
    if (given := configuration.kind_of(argv, kind)) != kind:
        raise ValueError(f"{parser.prog} is for graphs of --kind {kind}, not {given}: run {OTHER_COMMANDS[given]}")
    config, namespace = configuration.parse(parser, argv)
    count = getattr(namespace, name)
    if count < 1:
        raise ValueError(f"--{name} must be at least 1")
    if namespace.peer != "none" and world.size > 1:
        raise ValueError(f"--peer {peer} compares on one rank, not on {world.size}")
    if namespace.peer != "none" and config.train.precision != "float32":
        raise ValueError(f"--peer {peer} is timed in float32: --train.precision float32")
    on_cpu = config.comm.device == "cpu" or not torch.cuda.is_available()
    if namespace.peer != "none" and not (on_cpu or peer_on_device):
        raise ValueError(f"--peer {peer} is timed on the CPU: --comm.device cpu")
    return config, TimingOptions(count, namespace.out, namespace.peer)


def check_installed(option: str, *packages: str) -> None:
    """Raise ValueError for an option that needs packages which cannot be imported."""
    missing = [package for package in packages if importlib.util.find_spec(package.replace("-", "_")) is None]
    if missing:
        raise ValueError(f"{option} needs {', '.join(missing)}: pip install {' '.join(missing)}")


def run(
    world: World, argv: list[str], parse_options: Callable[[list[str], World], tuple[Any, TimingOptions]],
    measure: Callable[..., dict], table: Callable[[dict], str],
) -> int:  # fmt: skip
    """Collective. Report what ``measure(config, folder, options, world)`` finds, with a temporary folder; returns the
    exit code."""
    config, options = launch.on_first_rank(world, "configuration", lambda: parse_options(argv, world))
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
        result = measure(config, Path(world.broadcast(folder)), options, World(config.comm))
        world.barrier()
    if world.rank == 0:
        report(result, table, options.out)
    world.barrier()
    return launch.EXIT_DONE


def report(result: dict, table: Callable[[dict], str], out: str) -> None:
    """Print the ``table`` of a result and write it to the JSON file ``out``, if it is named."""
    print(table(result))
    if out:
        Path(out).write_text(json.dumps(result, indent=1) + "\n")


def graph_path(config, folder: Path, world: World) -> str:
    """Collective. Return the partition set to measure with: the configured one, or a built-in one made in
    ``folder``."""
    if config.data.path:
        return config.data.path
    with together(world, "make the synthetic graph"):
        if world.local_size < world.size:
            raise ValueError("the built-in graph is made on one machine only: give --data.path on several")
        if world.rank == 0:
            make_built_in(config, folder / "parts")
    return str(folder / "parts")


@contextlib.contextmanager
def training(open_session: Callable[..., Any], config, path: str, folder: Path, world: World) -> Iterator[tuple]:
    """Collective. Open a session (``open_session(config, path, world, watchdog)``) and its trainer for the block."""
    with (
        Watchdog(world, config.comm.watchdog_seconds) as watchdog,
        tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as logs,  # the folder may be that of another machine
    ):
        session = open_session(config, path, world.split(config.train.parallel_epochs), watchdog)
        trainer = Trainer(session, folder, RunLog(Path(logs), world.rank), StopRequest())
        yield session, trainer
        trainer.close()


def wait_for_all(world: World) -> None:
    """Collective. Wait until this rank's device has done its work, and for all ranks."""
    wait_for(world.device)
    world.job.barrier()


def wait_for(device: torch.device) -> None:
    """Wait until a device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(world: World) -> list[float]:
    """Collective. Return the most memory that each rank's process has held, in MiB."""
    return world.allgather_array(np.array([peak_mib()])).ravel().tolist()


def proportional_memory(world: World) -> float:
    """Collective. Sum the memory of all ranks, in MiB; pages that several of them share count once (Linux)."""
    world.barrier()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    total = world.total(own / 1024)
    world.barrier()
    return total


def page_faults() -> int:
    """Count the pages that the system has given to this process so far: memory that is used again needs none."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
