"""Time sampling and relabeling of in-edges on a static graph.

The graph has power-law in-degrees and sources drawn uniformly, and lies in memory as a rank holds it. Batches of
different seeds are sampled hop by hop as training does: first each batch by all threads, then a batch per thread.
"""

from __future__ import annotations

import argparse
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

import numpy as np

from hpcgnn.bench import command
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.loop import launch
from hpcgnn.native import Random, Relabel, Stream, sample_layers

MODES = ("uniform", "replace", "full", "labor")


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Options of the command."""

    num_nodes: int = 1_000_000
    num_edges: int = 20_000_000
    exponent: float = 0.5
    batch_size: int = 1024
    fanouts: list[int] = field(default_factory=lambda: [15, 10, 5])
    batches: int = 100
    repeat: int = 5
    threads: int = 2
    mode: str = "uniform"
    weighted: bool = False
    hashed: bool = False
    seed: int = 0
    out: str = ""

    def __post_init__(self):
        for name in ("num_nodes", "batch_size", "batches", "repeat", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if self.num_edges < 0 or self.batch_size > self.num_nodes:
            raise ValueError("--num_edges must not be negative, --batch_size not above --num_nodes")


def power_law_graph(nodes: int, edges: int, exponent: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw in-edges as CSC: (indptr [nodes + 1], src [edges]) int64.

    The share of the r-th most popular destination is proportional to r ** -exponent (Zipf), in a random order of the
    nodes; sources are uniform. Exponent a gives in-degrees with the density of a power law of 1 + 1 / a.
    """
    rng = np.random.default_rng(seed)
    share = np.arange(1, nodes + 1, dtype=np.float64) ** -exponent
    degree = rng.permutation(rng.multinomial(edges, share / share.sum()))
    indptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(degree, out=indptr[1:])
    return indptr, rng.integers(0, nodes, edges)


class SampledBatches:
    """A random graph and the seeds of its batches, which any thread can sample."""

    def __init__(self, options: SampleOptions):
        self.options = options
        self.indptr, self.src = power_law_graph(options.num_nodes, options.num_edges, options.exponent, options.seed)
        rng = np.random.default_rng(options.seed + 1)
        self.weight = rng.integers(1, 1 << 16, options.num_edges).astype(np.uint32) if options.weighted else None
        self.identity = np.arange(options.num_nodes)
        self.seeds = [rng.choice(options.num_nodes, options.batch_size, replace=False) for _ in range(options.batches)]

    def relabel(self) -> Relabel:
        """Make a table for one thread."""
        return Relabel(self.options.num_nodes, dense=False if self.options.hashed else None)

    def sample(self, number: int, relabel: Relabel, threads: int) -> tuple[int, int]:
        """Sample a batch; returns its numbers of edges and of unique nodes."""
        layers = sample_layers(
            self.indptr, self.src, self.seeds[number], self.identity, self.options.fanouts,
            Random(self.options.seed, Stream.NEIGHBOR, step=number), relabel,
            mode=self.options.mode, weight=self.weight, threads=threads,
        )  # fmt: skip
        return sum(len(source) for _, source, _ in layers), len(relabel.unique)


def main(world: World, argv: list[str]) -> int:
    """Collective. Sample on rank 0 with all its threads; returns the exit code."""
    options = launch.on_first_rank(world, "arguments", lambda: _parse(argv))
    with together(world, "sample"):
        if world.rank == 0:
            command.report(measure(options), table, options.out)
    world.barrier()
    return launch.EXIT_DONE


def _parse(argv: list[str]) -> SampleOptions:
    parser = argparse.ArgumentParser("hpcgnn bench sample", description=__doc__)
    default = SampleOptions()
    number = {
        "num_nodes": "number of nodes of the graph", "num_edges": "number of edges of the graph",
        "batch_size": "number of seeds of a batch", "batches": "number of batches in one timing",
        "repeat": "number of timings", "threads": "number of threads of the sampler", "seed": "seed of all draws",
    }  # fmt: skip
    for name, text in number.items():
        parser.add_argument(
            f"--{name}", type=int, default=getattr(default, name), help=f"{text} (default: %(default)s)"
        )
    parser.add_argument(
        "--exponent", type=float, default=default.exponent,
        help="exponent of the Zipf law of in-degrees (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--fanouts", type=int, nargs="+", default=default.fanouts,
        help="number of neighbors for each hop from the seeds; -1: all (default: 15 10 5)",
    )  # fmt: skip
    parser.add_argument(
        "--mode", choices=MODES, default=default.mode, help="sampling of neighbors (default: %(default)s)"
    )
    parser.add_argument("--weighted", action="store_true", help="sample by random edge weights")
    parser.add_argument("--hashed", action="store_true", help="relabel nodes by a hash table (default: by stamps)")
    parser.add_argument("--out", default="", help="JSON file to write the report to (default: none)")
    return SampleOptions(**vars(parser.parse_args(argv)))


def measure(options: SampleOptions) -> dict:
    """Measure edges per second, the best and the median of the timings, batch by batch and with a batch per thread."""
    batches = SampledBatches(options)
    tables = [batches.relabel() for _ in range(options.threads)]
    rates: dict[str, list[float]] = {"batch by batch": [], "a batch per thread": []}
    with ThreadPoolExecutor(options.threads) as pool:
        ways = (lambda: _one_by_one(batches, tables[0])), (lambda: _side_by_side(batches, tables, pool))
        for number, (name, way) in itertools.product(range(options.repeat + 1), zip(rates, ways, strict=True)):
            start = time.perf_counter()
            edges, nodes = way()
            if number > 0:  # the first warms up
                rates[name].append(edges / (time.perf_counter() - start))
    summary = {name: {"best": max(timed), "median": float(np.median(timed))} for name, timed in rates.items()}
    return {
        "options": asdict(options), "max_degree": int(np.diff(batches.indptr).max()),
        "edges_per_batch": edges / options.batches, "nodes_per_batch": nodes / options.batches,
        "edges_per_second": summary,
    }  # fmt: skip


def _one_by_one(batches: SampledBatches, relabel: Relabel) -> tuple[int, int]:
    sizes = [batches.sample(i, relabel, batches.options.threads) for i in range(batches.options.batches)]
    edges, nodes = map(sum, zip(*sizes, strict=True))
    return edges, nodes


def _side_by_side(batches: SampledBatches, tables: list[Relabel], pool: ThreadPoolExecutor) -> tuple[int, int]:
    def share(first: int) -> list[tuple[int, int]]:
        numbers = range(first, batches.options.batches, len(tables))
        return [batches.sample(i, tables[first], 1) for i in numbers]

    sizes = [size for part in pool.map(share, range(len(tables))) for size in part]
    edges, nodes = map(sum, zip(*sizes, strict=True))
    return edges, nodes


def table(result: dict) -> str:
    """Write the result as text."""
    options = result["options"]
    lines = [
        f"{options['num_nodes']:,} nodes, {options['num_edges']:,} edges, largest in-degree {result['max_degree']:,}",
        f"a batch of {options['batch_size']:,} seeds, fanouts {options['fanouts']}: "
        f"{result['edges_per_batch']:,.0f} edges, {result['nodes_per_batch']:,.0f} different nodes",
        f"{'million edges/s':<20} {'median':>8} {'best':>8}   ({options['threads']} threads)",
    ]
    for name, rate in result["edges_per_second"].items():
        lines.append(f"{name:<20} {rate['median'] / 1e6:8.1f} {rate['best'] / 1e6:8.1f}")
    return "\n".join(lines)
