"""Predict how many bytes one rank of many needs, structure by structure.

The command writes two small parts of such a graph, one four times the size of the other, with nodes and edges in the
given proportion. It opens a run on each in a simulated world of all ranks, trains some steps, and measures every array.
Sizes that grow with the share are extrapolated to the real share. Options of `hpcgnn train` (`--kind`,
`--train.batch_size`, ...) choose the training; the batch size counts all ranks.
"""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn import config as configuration
from hpcgnn import kinds
from hpcgnn.bench import command
from hpcgnn.bench.pretended import pretend
from hpcgnn.comm.group import DistributedError
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.loop import launch

LARGEST = 8_000_000  # edges of a part that is written; another one has a quarter of it
DEPTH = 5  # names in the name of a structure
SMALL = 1 << 20  # bytes; smaller structures are summed up
MIB = 1 << 20
OF_CALLABLES = ("__self__", "func", "args", "keywords")
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")  # "5" resets the most that was held


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Options of the command, in addition to the configuration: sizes of the whole graph, width of its features, and
    its number of snapshots. steps: number of steps that are trained before arrays are measured."""

    ranks: int
    num_nodes: int
    num_edges: int
    width: int
    snapshots: int
    steps: int
    out: str

    def __post_init__(self):
        if self.ranks < 2 or self.steps < 1 or self.snapshots < 1 or self.width < 0:
            raise ValueError("--ranks must be at least 2, --steps and --snapshots at least 1, --width at least 0")
        if self.num_nodes < self.ranks or self.num_edges < self.ranks:
            raise ValueError(f"--num_nodes and --num_edges must be at least 1 for each of {self.ranks} ranks")

    def nodes_of(self, num_edges: int) -> int:
        """Return the number of nodes of a part with ``num_edges`` edges, at least 2."""
        return max(2, round(self.num_nodes * num_edges / self.num_edges))


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of a rank whose share has ``edges`` edges. structures: bytes by structure; in MiB, start: of its process
    before it opens the run; opening: the peak while it opens the run; opened: afterwards; steps: what steps add."""

    edges: int
    structures: dict[str, int]
    start: float
    opening: float
    opened: float
    steps: float


def main(world: World, argv: list[str]) -> int:
    """Measure on rank 0, the only one; returns the exit code."""
    if world.size > 1:
        raise DistributedError("bench memory runs as one process: it simulates the other ranks", user_error=True)
    config, options = launch.on_first_rank(world, "configuration", lambda: _parse(argv))
    share = options.num_edges // options.ranks
    sizes = sorted({max(1, min(share, LARGEST) // 4), min(share, LARGEST)})
    held = []
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
        for size in sizes:
            part = (config, options, size, str(Path(folder) / str(size)))
            _alone(write, *part)
            held.append(_alone(hold, *part))
    command.report(predict(options, held), table, options.out)
    return launch.EXIT_DONE


def _parse(argv: list[str]) -> tuple[Any, MemoryOptions]:
    parser = configuration.parser("hpcgnn bench memory", __doc__, configuration.kind_of(argv))
    parser.add_argument("--ranks", type=int, default=1024, help="number of ranks of the job")
    parser.add_argument(
        "--num_nodes", type=int, default=1_000_000_000, help="number of nodes of the graph, on all ranks together"
    )
    parser.add_argument(
        "--num_edges", type=int, default=50_000_000_000, help="number of edges or events, on all ranks together"
    )
    parser.add_argument(
        "--width", type=int, default=0, help="width of the features of an event, or of a node for other kinds"
    )
    parser.add_argument("--snapshots", type=int, default=20, help="number of snapshots of a snapshot graph")
    parser.add_argument("--steps", type=int, default=3, help="number of training steps before arrays are measured")
    parser.add_argument("--out", type=str, default="", help="JSON file to write the report to; default: none")
    config, namespace = configuration.parse(parser, argv)
    options = {field.name: getattr(namespace, field.name) for field in dataclasses.fields(MemoryOptions)}
    if config.KIND == "static" and config.sampling.topology == "replicated":
        raise ValueError("sampling.topology replicated: each machine has all edges, which bench memory does not count")
    if config.data.path:
        options |= _sizes(config.data.path)
    return config, MemoryOptions(**options)


def _sizes(path: str) -> dict[str, int]:
    """Count nodes and edges, and snapshots where there are some, of a partition set."""
    with files.reading(files.book_path(path), files.BOOK, "partition again") as book:
        counted = {"nodes": files.node_types(book), "edges": files.relations(book)}
        sizes = {
            f"num_{what}": sum(int(book[what][name].attrs[f"num_{what}"]) for name in names)
            for what, names in counted.items()
        }
        return sizes | ({"snapshots": int(book.attrs["num_snapshots"])} if "num_snapshots" in book.attrs else {})


def _alone(function: Callable, *arguments: Any) -> Any:
    """Call a function in a process of its own: what others gave back is not there to be used again."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def write(config: Any, options: MemoryOptions, num_edges: int, folder: str) -> None:
    """Write the part of a rank with ``num_edges`` edges."""
    sizes = options.ranks, options.nodes_of(num_edges), num_edges
    further = {"num_snapshots": options.snapshots} if config.KIND == "snapshots" else {}
    kinds.kind_of(config).make_slice(folder, *sizes, options.width, **further)


def hold(config: Any, options: MemoryOptions, num_edges: int, folder: str) -> Held:
    """Open the run of a rank on its part, train, and measure what it holds."""
    config = copy.deepcopy(config)
    config.comm.watchdog_seconds = 0  # no other rank answers
    if config.KIND == "static":
        config.sampling.topology = "sharded"
    with pretend(options.ranks, options.nodes_of(num_edges), config.comm) as world:
        start = _process("VmRSS")
        RESET.write_text("5")
        with command.training(kinds.open_session, config, folder, Path(folder) / "run", world) as (session, trainer):
            trainer.start_epoch(0)
            opening, opened = _process("VmHWM"), _process("VmRSS")
            RESET.write_text("5")
            with session.plans("train", 0) as plans:
                for _, plan in zip(range(options.steps), plans, strict=False):
                    trainer.train_step(plan)
                structures = structures_of({"run": session, "trainer": trainer, "plan": plan})
            return Held(num_edges, structures, start, opening, opened, _process("VmHWM") - opened)


def _process(what: str) -> float:
    """Return MiB of this process: VmRSS, what it holds, or VmHWM, the most since the start or the last reset."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


def structures_of(roots: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of the arrays that named objects lead to, by the first names on the way. Each array counts once,
    by the shortest way from the first object that leads to it."""
    sizes: dict[str, int] = defaultdict(int)
    seen: set[int] = set()
    for root in roots.items():
        waiting: list[tuple[tuple[str, ...], Any]] = [((root[0],), root[1])]
        while waiting:
            following = []
            for names, value in waiting:
                is_array = isinstance(value, np.ndarray | torch.Tensor)
                address, num_bytes = _memory(value) if is_array else (id(value), 0)
                if address in seen:
                    continue
                seen.add(address)
                if is_array:
                    sizes[".".join(names[:DEPTH])] += num_bytes
                else:
                    following += [((*names, name) if name else names, inner) for name, inner in _inside(value)]
            waiting = following
    return dict(sizes)


def _memory(array: np.ndarray | torch.Tensor) -> tuple[int, int]:
    """Return address and bytes of all the memory that an array is a view of."""
    if isinstance(array, torch.Tensor):
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.__array_interface__["data"][0], 0 if isinstance(array, np.memmap) else array.nbytes


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, by name; elements of a container have none of their own."""
    if isinstance(value, dict):
        yield from ((key if isinstance(key, str) else "", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", inner) for inner in value)
    elif isinstance(value, type) or not _is_known(value):
        return
    else:
        yield from (("", cell.cell_contents) for cell in getattr(value, "__closure__", None) or () if _is_full(cell))
        yield from (("", getattr(value, name)) for name in OF_CALLABLES if hasattr(value, name))
        names = [name for kind in type(value).__mro__ for name in kind.__dict__.get("__slots__", ())]
        yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))
        yield from getattr(value, "__dict__", {}).items()


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_known(value: Any) -> bool:
    """Tell what may hold arrays of a run: objects of this package, modules of torch, functions."""
    module = type(value).__module__.partition(".")[0]
    return module == "hpcgnn" or callable(value) or isinstance(value, torch.nn.Module)


def predict(options: MemoryOptions, held: list[Held]) -> dict:
    """Extrapolate the bytes of every structure to a rank's share of the graph. Plans and the memory of steps are taken
    from the larger part: they grow less, as the number of a step's roots is fixed. Opening a run takes the same
    multiple of its arrays as with the larger part: the memory that small arrays leave behind in the process depends on
    the C library."""
    share, last = options.num_edges // options.ranks, held[-1]
    plans = {name: size for name, size in last.structures.items() if name.startswith("plan")}
    sizes = dict(plans)
    for name in last.structures.keys() - plans.keys():
        sizes[name] = round(_at(share, [(one.edges, one.structures.get(name, 0)) for one in held]))
    arrays = [sum(size for name, size in of.items() if name not in plans) for of in (sizes, last.structures)]
    opening, opened = (last.start + (size - last.start) * arrays[0] / max(1, arrays[1])
                       for size in (last.opening, last.opened))  # fmt: skip
    return {
        "options": dataclasses.asdict(options), "edges": share, "nodes": options.num_nodes // options.ranks,
        "structures": dict(sorted(sizes.items(), key=lambda item: -item[1])),
        "start_mib": last.start, "opening_mib": opening, "steps_mib": last.steps,
        "peak_mib": max(opening, opened + last.steps),
        "measured": [dataclasses.asdict(one) for one in held],
    }  # fmt: skip


def _at(share: int, points: list[tuple[int, float]]) -> float:
    """Extrapolate a straight line through the first and the last of the points."""
    (first, low), (last, high) = points[0], points[-1]
    return high if first == last else high + (high - low) * (share - last) / (last - first)


def table(result: dict) -> str:
    """Write the result as text."""
    options, sizes = result["options"], result["structures"]
    large = {name: size for name, size in sizes.items() if size >= SMALL}
    lines = [f"a rank of {options['ranks']:,}: {result['nodes']:,} nodes, {result['edges']:,} edges"]
    lines += [f"{size / MIB:12,.1f} MiB  {name}" for name, size in large.items()]
    lines += [
        f"{(sum(sizes.values()) - sum(large.values())) / MIB:12,.1f} MiB  {len(sizes) - len(large)} smaller ones",
        f"{sum(sizes.values()) / MIB:12,.1f} MiB  all arrays",
        f"{result['start_mib']:12,.1f} MiB  the process before it opens the run: Python and its packages",
        f"{result['opening_mib']:12,.1f} MiB  the process at most while it opens the run",
        f"{result['steps_mib']:12,.1f} MiB  what steps take besides",
        f"{result['peak_mib']:12,.1f} MiB  the process at most, with steps",
    ]
    return "\n".join(lines)
