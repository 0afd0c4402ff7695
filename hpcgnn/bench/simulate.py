"""Predicts steps from simulated jobs. All ranks of a partition set run as threads; of a graph that is made up, one rank
runs, in a world that pretends the other ranks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.bench.emulated import emulate_steps
from hpcgnn.bench.pretended import pretend_steps
from hpcgnn.bench.price import Links, make_report
from hpcgnn.bench.steps import SimulatedSteps
from hpcgnn.comm.world import PLANS_AHEAD
from hpcgnn.graph import files
from hpcgnn.temporal.config import TemporalConfig

LARGEST = 6 << 30  # bytes of a part that is made up
EDGE_BYTES, EVENT_BYTES, FEATURE_BYTES = 24, 200, 4  # of an edge, an event and a number, while it is read
SKIPPED = 1  # steps that warm up


@dataclass(frozen=True, slots=True)
class GivenGraph:
    """Sizes of a graph that is made up; width: features of a node, or of an event of a temporal graph."""

    nodes: int = 0
    edges: int = 0
    width: int = 0

    def share(self, ranks: int) -> tuple[int, int, int, int]:
        """Return ranks, nodes and edges of a rank, and width, as a slice takes them."""
        return ranks, max(2, self.nodes // ranks), self.edges // ranks, self.width

    def share_bytes(self, ranks: int, is_temporal: bool) -> int:
        """Return about how much memory the part of a rank takes."""
        _, nodes, edges, width = self.share(ranks)
        if is_temporal:  # an event lies at both of its ends
            return (EVENT_BYTES + 2 * FEATURE_BYTES * width) * edges
        return EDGE_BYTES * edges + FEATURE_BYTES * width * nodes


def check_simulated(config: Any, graph: GivenGraph) -> None:
    """Raise ValueError for a job that cannot be simulated."""
    if config.comm.sampling_servers or config.comm.time_groups > 1 or config.train.parallel_epochs > 1:
        raise ValueError(
            "the cost model is for jobs whose ranks all do the same: leave comm.sampling_servers 0, comm.time_groups "
            "and train.parallel_epochs 1"
        )
    if min(graph.nodes, graph.edges, graph.width) < 0 or (graph.nodes > 0) != (graph.edges > 0):
        raise ValueError("--num_nodes and --num_edges are the sizes of a graph: give both, or data.path")
    if graph.nodes and config.data.path:
        raise ValueError("--num_nodes and --num_edges are of a graph that is made up: leave data.path out")


def simulate(
    config: Any, sizes: list[int], steps: int, graph: GivenGraph, links: Links, speed: float, per_rank: bool,
    folder: Path,
) -> dict:  # fmt: skip
    """Simulate ``steps`` steps on each number of ranks that can be, and predict all of ``sizes``. per_rank: the batch
    is that of a rank."""
    parts, is_temporal = 0, config.KIND == TemporalConfig.KIND
    if graph.nodes:
        simulated = [size for size in sizes if size > 1 and graph.share_bytes(size, is_temporal) <= LARGEST]
    else:
        with files.reading(files.book_path(config.data.path), files.BOOK, "partition again") as book:
            parts = int(book.attrs["num_parts"])
        simulated = [size for size in sizes if size <= parts]
    if not simulated:
        raise ValueError(f"a part of {max(sizes)} takes more than {LARGEST >> 30} GiB: give a larger --max_ranks")
    jobs: list[SimulatedSteps] = []
    for size in simulated:
        job, place = copy.deepcopy(config), folder / f"run-{size}"
        job.train.batch_size *= size if per_rank else 1
        job.sampling.prefetch = PLANS_AHEAD if config.sampling.prefetch < 0 else config.sampling.prefetch
        if graph.nodes:
            jobs.append(pretend_steps(job, graph.share(size), steps, SKIPPED, place))
        else:
            jobs.append(emulate_steps(job, config.data.path, size, steps, SKIPPED, place))
    return make_report(config, jobs, sizes, links, speed) | {"parts": parts}
