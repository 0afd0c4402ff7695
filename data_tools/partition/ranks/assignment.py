"""Which part a node belongs to, found by several ranks together.

A method is a function of a `Job` that returns the part [n] int32 of the nodes of this rank's block.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from data_tools.memory import give_back_freed_memory
from data_tools.partition.assignment import NODES_PER_PART, random_rows, room_for
from data_tools.partition.methods.given_parts import file_parts
from data_tools.partition.methods.parmetis import Library, load_library, parmetis_partition
from data_tools.partition.options import DEFAULT_PASSES, GIVEN, STREAMED, Options
from data_tools.partition.pair_graph import PairGraph
from data_tools.partition.pair_spool import entry_dtype
from data_tools.partition.ranks.graph import block_graph
from data_tools.partition.ranks.rebalance import Ghosts, order_blocks, rebalance_blocks
from data_tools.partition.ranks.spool import RowGraph, build_row_graph
from data_tools.partition.ranks.stream import part_numbers, stream_rows
from data_tools.partition.ranks.weights import block_weights
from data_tools.partition.source import Source
from data_tools.partition.weights import columns_of
from data_tools.team import Ranks, Team
from hpcgnn.graph.book import BlockOwnership


@dataclass(slots=True)
class Job:
    """What the methods work on; the graph and the weights of this rank's block are made when they are asked for."""

    team: Team
    source: Source
    options: Options
    blocks: BlockOwnership
    memory: int
    library: str | None = None
    assignment: str | os.PathLike | None = None
    _graph: PairGraph | None = field(default=None, init=False)
    _row_graph: RowGraph | None = field(default=None, init=False)

    def graph(self) -> PairGraph:
        """Collective. The adjacency of this rank's block."""
        if self._graph is None:
            self._graph = block_graph(self.team, self.source, self.blocks)
        return self._graph

    def row_graph(self) -> RowGraph:
        """Collective. The graph on disk, its rows dealt to the ranks."""
        if self._row_graph is None:
            self._row_graph = build_row_graph(self.team, self.source, self.blocks, self.memory)
        return self._row_graph

    def forget(self) -> None:
        """Give up the graphs, which take memory and disk."""
        self._graph = self._row_graph = None

    def degrees(self) -> np.ndarray:
        """Collective. Distinct neighbours [n] of the nodes of this rank's block."""
        return self.row_graph().degrees() if self.options.method in STREAMED else self.graph().degrees()

    def weights(self) -> dict[str, np.ndarray]:
        """Collective. Weights [n] of this rank's block by column name, of the constraints asked for first; then of
        nodes, and of events or edges."""
        always = ("nodes", "events" if self.source.kind == "temporal" else "edges")
        balance = tuple(dict.fromkeys((*self.options.balance, *always)))
        degrees = self.degrees() if "degree" in columns_of(self.source, balance) else None
        return block_weights(self.team, self.source, balance, self.blocks, degrees)

    def asked_weights(self) -> np.ndarray:
        """Collective. Weights [n, C] of the constraints asked for; of nodes alone where there are none."""
        asked = columns_of(self.source, self.options.balance or ("nodes",))
        weights = self.weights()
        return np.stack([weights[name] for name in asked], axis=1)


def random_blocks(job: Job) -> np.ndarray:
    """As `random_parts`: the same on any number of ranks."""
    first, last = (int(job.blocks.starts[job.team.rank + side]) for side in (0, 1))
    parts = [np.empty(0, np.int32)]
    for type_id, node_type in enumerate(job.source.types):
        start, stop = (min(max(end - node_type.base, 0), node_type.num_nodes) for end in (first, last))
        parts.append(random_rows(type_id, np.arange(start, stop), job.options.parts, job.options.seed))
    return np.concatenate(parts)


def parmetis_blocks(job: Job) -> np.ndarray:
    """ParMETIS by the first constraint (all of them where the library can), then evened out by all of them; consecutive
    parts are near. Depends on the number of ranks."""
    team, options = job.team, job.options
    library = shared_library(job)
    if options.parts == 1:
        return np.zeros(int(np.diff(job.blocks.starts)[team.rank]), np.int32)
    graph = job.graph()
    weights = job.asked_weights()
    part = parmetis_partition(cast(Ranks, team), library, job.blocks, graph, options.parts, weights, options.seed)
    give_back_freed_memory()
    ghosts = Ghosts(team, job.blocks, graph)
    part = order_blocks(ghosts, part, options.parts, options.seed)
    return rebalance_blocks(ghosts, part, weights, options.parts)


def streamed_blocks(job: Job) -> np.ndarray:
    """As `streamed_parts`: the same on any number of ranks."""
    team, options, num_parts = job.team, job.options, job.options.parts
    graph, weights = job.row_graph(), job.asked_weights()
    passes = DEFAULT_PASSES if options.passes is None else options.passes
    by_row = stream_rows(graph, graph.slabs.deal(graph.row, weights), num_parts, options.method, passes)
    part = graph.of_block(by_row)
    idle = (graph.degrees() == 0) & (weights.sum(axis=1) == 0)
    waiting = np.array(team.everyone(int(idle.sum())))
    room = room_for(team.sum(np.bincount(part[~idle], minlength=num_parts)), int(waiting.sum()))
    places = waiting[: team.rank].sum() + np.arange(waiting[team.rank])
    part[idle] = np.searchsorted(np.cumsum(room), places, side="right")
    return part_numbers(graph, by_row, num_parts, options.seed)[part]


def given_blocks(job: Job) -> np.ndarray:
    """The assignment of a file, which every rank reads: 8 bytes a node for a moment."""
    part = None
    with job.team.together("read the assignment"):
        assert job.assignment is not None
        part = file_parts(job.source, job.assignment, job.options.parts)
    first, last = (int(job.blocks.starts[job.team.rank + side]) for side in (0, 1))
    return part[first:last].copy()


def check_method(job: Job) -> None:
    """Collective. Raise, on all ranks alike, what stands against a method before anything is done."""
    num_parts, num_nodes = job.options.parts, job.source.num_nodes
    if job.options.method != "parmetis":
        return
    shared_library(job)
    with job.team.together("check the size of the graph"):
        if num_parts > 1 and num_nodes < NODES_PER_PART * max(num_parts, job.team.size):
            raise ValueError(
                f"method parmetis: {num_nodes} nodes are too few for {num_parts} parts on {job.team.size} ranks; "
                "use --method metis on one rank, or ldg"
            )


def shared_library(job: Job) -> Library:
    """Collective. The library, loaded on all ranks or refused on all; narrow integers take half the memory."""
    library = None
    with job.team.together("load the library of ParMETIS"):
        library = load_library(job.library, 8 * entry_dtype(job.source).itemsize)
    return library


METHODS = {
    "parmetis": parmetis_blocks,
    "random": random_blocks,
    **dict.fromkeys(STREAMED, streamed_blocks),
    GIVEN: given_blocks,
}
