"""Which part a node belongs to: the table of all methods, METHODS.

N nodes of all types numbered together, n of them in a rank's block, C constraints, P parts.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_tools.graph.source import Source
from data_tools.memory import give_back_freed_memory
from data_tools.partition.access import TABLE_BYTES
from data_tools.partition.blocks import NodeBlocks, splitmix64
from data_tools.partition.layout import new_numbers, order_parts
from data_tools.partition.methods.given_parts import code_hash, file_parts, kaminpar_parts, user_parts
from data_tools.partition.methods.hotness import hotness_parts
from data_tools.partition.methods.metis import OBJECTIVES, metis_partition
from data_tools.partition.methods.parmetis import Library, load_library, parmetis_partition
from data_tools.partition.methods.rebalance import rebalance
from data_tools.partition.methods.rebalance_blocks import CELLS, RemoteNodes, order_blocks, rebalance_blocks
from data_tools.partition.methods.streaming import stream, ties_of_parts
from data_tools.partition.pair_graph import PairGraph, build_pair_graph
from data_tools.partition.spool import build_row_graph, entry_dtype, spool_bytes
from data_tools.partition.weights import columns_of, node_weights
from data_tools.team import Team
from hpcgnn.choices import Part
from hpcgnn.graph import files

METIS = "metis"  # the method unless another is chosen
GIVEN = "given"  # the method of an assignment from a file
DEFAULT_PASSES = 10  # over the nodes, of a streamed method; more gain little
HOTNESS_CACHE = 0.2  # share of the nodes in the cache ranking that comes with the method hotness
NODES_PER_PART = 4  # METIS needs some room: with fewer nodes it leaves parts empty
PAIR_BYTES = 300  # METIS, and the pair graph that it is given
SHARED_PAIR_BYTES = {4: 64, 8: 120}  # of an adjacency entry, by the bytes of its integers: the graph, and ParMETIS
UNEVEN = 1.25  # blocks have equally many nodes, but not pairs


@dataclass(slots=True)
class Job:
    """The input of a method. options: `options.Options`; blocks: which rank has which nodes; memory: bytes for tables
    whose size can be chosen. assignment: the file with the part of every node, if named; parmetis: the path of the
    library, if named. degrees: distinct neighbors [n], once they are counted."""

    source: Source
    options: Any
    blocks: NodeBlocks
    folder: pathlib.Path
    memory: int
    assignment: str | os.PathLike | None = None
    parmetis: str | None = None
    degrees: np.ndarray | None = None

    @property
    def team(self) -> Team:
        """The ranks that work together."""
        return self.blocks.team

    @property
    def scratch(self) -> pathlib.Path | None:
        """The folder of scratch files: that of the set, which may be slow for several ranks; these use the system's."""
        return self.folder if self.team.size == 1 else None

    def weights(self, balance: tuple[str, ...], blocks: NodeBlocks) -> dict[str, np.ndarray]:
        """Collective. Compute the `node_weights` of this rank's nodes in the given blocks. Neighbors are counted on
        disk, unless a method has counted them."""
        degrees = None
        if "degree" in columns_of(self.source, balance):
            if self.degrees is None:
                self.degrees = build_row_graph(self.source, self.blocks, self.scratch, self.memory).degrees()
            degrees = self.blocks.deal(self.degrees, blocks)
        return node_weights(self.source, balance, degrees, blocks)

    def weight_table(self, blocks: NodeBlocks) -> np.ndarray:
        """Collective. Compute the weights [n, C] int64 of the constraints asked for (of nodes alone where there are
        none), of this rank's nodes in the given blocks."""
        return np.stack(list(self.weights(self.options.balance or ("nodes",), blocks).values()), axis=1)


def random_parts(job: Job) -> np.ndarray:
    """Draw parts from a keyed hash of (seed, type, row): a node's part depends on nothing else."""
    part = np.empty(len(job.blocks.own), np.int32)
    for node_type, rows, place in job.source.types_in(job.blocks.own):
        key = splitmix64(splitmix64(np.array([job.options.seed], np.uint64)) + np.uint64(node_type.index))
        hashed = splitmix64(key ^ splitmix64(np.arange(rows.start, rows.stop, dtype=np.uint64)))
        part[place] = (hashed >> np.uint64(32)) * np.uint64(job.options.parts) >> np.uint64(32)
    return part


def gathered(method: Callable[[Job, PairGraph, np.ndarray], np.ndarray]) -> Callable[[Job], np.ndarray]:
    """Make a method from a function that needs the whole graph in one place. Rank 0 calls it with the job, the graph
    and the weights [N, C] of all nodes, and deals the parts [N] that it returns to the ranks."""

    def assign(job: Job) -> np.ndarray:
        whole = NodeBlocks.on_rank_0(job.team, job.source.num_nodes)
        graph = build_pair_graph(job.source, whole)
        if "degree" in job.options.balance:
            job.degrees = whole.deal(graph.degrees(), job.blocks)
        weights, part = job.weight_table(whole), np.empty(0, np.int32)
        with job.team.together("assign the nodes"):
            if job.team.rank == 0:
                part = method(job, graph, weights)
        return whole.deal(part, job.blocks)

    return assign


def metis_parts(job: Job, graph: PairGraph, weights: np.ndarray) -> np.ndarray:
    """Cut by METIS on the pairs of nodes with events between them, then even out; returns the part [N]."""
    options = job.options
    part = partition_graph(graph, options.parts, weights, options.seed, options.objective)
    part = spread_idle(part, idle_nodes(graph.degrees(), weights), options.parts)
    near = OBJECTIVES[options.objective].are_near
    part = rebalance(graph, part, weights, options.parts, near)
    return part if near else order_parts(graph, part, options.parts, options.seed)


def kaminpar(job: Job, graph: PairGraph, weights: np.ndarray) -> np.ndarray:
    """Cut by KaMinPar, which balances one constraint, then even out greedily; returns the part [N]."""
    options = job.options
    part = kaminpar_parts(graph, weights[:, 0], options.parts, options.seed, job.folder)
    part = spread_idle(part, idle_nodes(graph.degrees(), weights), options.parts)
    part = rebalance(graph, part, weights, options.parts)
    return order_parts(graph, part, options.parts, options.seed)


def users_own(job: Job, graph: PairGraph, weights: np.ndarray) -> np.ndarray:
    """Return the part [N] that a custom class or function gives, unchanged."""
    names = columns_of(job.source, job.options.balance or ("nodes",))
    columns = {name: np.ascontiguousarray(weight) for name, weight in zip(names, weights.T, strict=True)}
    return user_parts(job.options.method, graph, columns, job.options.parts, job.options.seed)


def hotness(job: Job) -> np.ndarray:
    """Cut by METIS; then rank 0 moves nodes to the parts whose training seeds, which stay where they are, reach them
    most likely."""
    part = METHODS[METIS].make(job)
    whole = NodeBlocks.on_rank_0(job.team, job.source.num_nodes)
    part, weights = job.blocks.deal(part, whole), job.weight_table(whole)
    with job.team.together("move the nodes"):
        if job.team.rank == 0:
            part = hotness_parts(job.source, part, weights, job.options)
    return whole.deal(part, job.blocks)


def streamed_parts(job: Job) -> np.ndarray:
    """Assign nodes by a streaming rule, with the pairs of nodes on disk; the parts are the same on any number of
    ranks."""
    team, options, num_parts = job.team, job.options, job.options.parts
    graph = build_row_graph(job.source, job.blocks, job.scratch, job.memory)
    degrees = graph.degrees()
    if "degree" in options.balance:
        job.degrees = degrees
    weights = job.weight_table(job.blocks)
    passes = DEFAULT_PASSES if options.passes is None else options.passes
    by_row = stream(graph, graph.slabs.deal(graph.row, weights), num_parts, options.method, passes)
    part, idle = graph.of_block(by_row), idle_nodes(degrees, weights)
    waiting = np.array(team.everyone(int(idle.sum())))
    room = room_for(team.sum(np.bincount(part[~idle], minlength=num_parts)), int(waiting.sum()))
    places = waiting[: team.rank].sum() + np.arange(waiting[team.rank])
    part[idle] = np.searchsorted(np.cumsum(room), places, side="right")
    return new_numbers(ties_of_parts(graph, by_row, num_parts), options.seed)[part]


def parmetis_parts(job: Job) -> np.ndarray:
    """Cut by ParMETIS with the first constraint (all of them where the library can), then even out by all of them;
    consecutive parts are near. The parts depend on the number of ranks."""
    options = job.options
    library = shared_library(job)
    if options.parts == 1:
        return np.zeros(len(job.blocks.own), np.int32)
    graph = build_pair_graph(job.source, job.blocks, entry_dtype(job.source))
    if "degree" in options.balance:
        job.degrees = graph.degrees()
    weights = job.weight_table(job.blocks)
    part = parmetis_partition(library, job.blocks, graph, options.parts, weights, options.seed)
    give_back_freed_memory()
    remote_nodes = RemoteNodes(job.blocks, graph)
    part = order_blocks(remote_nodes, part, options.parts, options.seed)
    return rebalance_blocks(remote_nodes, part, weights, options.parts)


def parts_of_file(job: Job) -> np.ndarray:
    """Read the parts from a file, on every rank: 8 bytes a node for a moment."""
    part = np.empty(0, np.int32)
    with job.team.together("read the assignment"):
        assert job.assignment is not None
        part = file_parts(job.source, job.assignment, job.options.parts)
    return part[job.blocks.own.start : job.blocks.own.stop].copy()


def check_parmetis(job: Job) -> None:
    """Collective. Raise ValueError where the library is missing, or nodes are too few for it."""
    num_parts, num_nodes = job.options.parts, job.source.num_nodes
    shared_library(job)
    with job.team.together("check the size of the graph"):
        if num_parts > 1 and num_nodes < NODES_PER_PART * max(num_parts, job.team.size):
            raise ValueError(
                f"method parmetis: {num_nodes} nodes are too few for {num_parts} parts on {job.team.size} ranks; "
                "use --method metis or ldg"
            )


def shared_library(job: Job) -> Library:
    """Collective. Load the library on all ranks, or refuse it on all; narrow integers take half the memory."""
    library = None
    with job.team.together("load the library of ParMETIS"):
        library = load_library(job.parmetis, 8 * entry_dtype(job.source).itemsize)
    return library


def partition_graph(graph: PairGraph, num_parts: int, weights: np.ndarray, seed: int, objective: str) -> np.ndarray:
    """Cut by METIS where there are enough nodes; else deal out evenly the nodes in the order of a coarser partition."""
    if graph.num_nodes >= NODES_PER_PART * num_parts:
        return metis_partition(graph, num_parts, weights, seed=seed, objective=objective)
    coarse = metis_partition(graph, max(1, graph.num_nodes // NODES_PER_PART), weights, seed=seed)
    part = np.empty(graph.num_nodes, np.int32)
    part[np.argsort(coarse, kind="stable")] = np.arange(graph.num_nodes) * num_parts // max(1, graph.num_nodes)
    return part


def idle_nodes(degrees: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Find the nodes [n] bool without a neighbor, of degrees [n], that weigh nothing [n, C]."""
    return (degrees == 0) & (weights.sum(axis=1) == 0)


def spread_idle(part: np.ndarray, idle: np.ndarray, num_parts: int) -> np.ndarray:
    """Deal nodes that weigh nothing (mask [N]) to the parts with the fewest nodes; METIS may pile them up in one."""
    waiting = int(idle.sum())
    room = room_for(np.bincount(part[~idle], minlength=num_parts), waiting)
    part = part.copy()
    part[idle] = np.repeat(np.arange(num_parts), room)[:waiting]
    return part


def room_for(counts: np.ndarray, waiting: int) -> np.ndarray:
    """Compute how many of ``waiting`` nodes each part [P] takes that has ``counts`` [P] nodes; at least as many in
    all."""
    low, high = 0, int(counts.max(initial=0)) + waiting
    while low < high:  # the lowest level to which all parts can be filled up
        middle = (low + high) // 2
        low, high = (middle + 1, high) if np.maximum(middle - counts, 0).sum() < waiting else (low, middle)
    return np.maximum(low - counts, 0)


def gathered_bytes(counts: Any, options: Any, work: int, window: int) -> int:
    """Predict the memory of a method that has the whole graph in one place."""
    return PAIR_BYTES * counts.pairs + (32 + 16 * counts.weights) * counts.nodes + window


def hotness_bytes(counts: Any, options: Any, work: int, window: int) -> int:
    """Predict the memory of METIS, or of the tables by which nodes move then."""
    tables = (4 * options.parts + 64 + 24 * counts.weights) * counts.nodes + TABLE_BYTES
    return max(gathered_bytes(counts, options, work, 0), tables) + window


def streamed_bytes(counts: Any, options: Any, work: int, window: int) -> int:
    """Predict the memory of a streamed method."""
    nodes = 24 * counts.weights + (0 if counts.ranks == 1 else 108)
    return nodes * counts.rank_nodes + spool_bytes(counts, work) + window


def parmetis_bytes(counts: Any, options: Any, work: int, window: int) -> int:
    """Predict the memory of ParMETIS and of the moves after it, on each rank."""
    pairs = int(2 * UNEVEN * counts.pairs * SHARED_PAIR_BYTES[counts.integer]) // counts.ranks
    moves = max(window, 64 * min(counts.rank_nodes * options.parts, CELLS))
    return (96 + 24 * counts.weights) * counts.rank_nodes + pairs + moves


def dealt_bytes(counts: Any, options: Any, work: int, window: int) -> int:
    """Predict the memory of a method that looks at nodes alone."""
    return 24 * counts.rank_nodes + window


def given_bytes(counts: Any, options: Any, work: int, window: int) -> int:
    """Predict the memory of reading a file, which every rank does as a whole."""
    return dealt_bytes(counts, options, work, window) + (16 * counts.nodes if counts.ranks > 1 else 0)


def threads(options: Any, team: Team) -> dict[str, Any]:
    """Return the number of threads."""
    return {"threads": len(os.sched_getaffinity(0))}


def ranks(options: Any, team: Team) -> dict[str, Any]:
    """Return the number of ranks."""
    return {"ranks": team.size}


def user_code(options: Any, team: Team) -> dict[str, Any]:
    """Return the hash of the code of the user's own partitioner."""
    return {"code": code_hash(options.method)}


@dataclass(frozen=True)
class Method(Part):
    """A row of METHODS. make: a function of a `Job` that returns the part [n] int32 of this rank's block.

    memory: predicts its bytes on a rank from `memory.Counts`, the options, the bytes of tables whose size can be
    chosen, and the bytes of a window of rows. holds_pairs: all pairs of nodes with edges are in memory; objectives: the
    objectives that it can lower; kinds: of graphs that it takes; balances: parts are to be even. has_passes: it takes
    --passes; needs_file: it takes --assignment; needs_mpi: it works on the ranks of MPI, even if there is one. further:
    options of static graphs that come with it; check: collective, raises an error about a job before anything is done.
    depends: lists, from options and team, all other inputs that the parts depend on, such as the number of ranks.
    """

    make: Callable[[Job], np.ndarray]
    memory: Callable[[Any, Any, int, int], int] = gathered_bytes
    holds_pairs: bool = True
    objectives: tuple[str, ...] = tuple(OBJECTIVES)
    kinds: tuple[str, ...] = files.KINDS
    balances: bool = True
    has_passes: bool = False
    needs_file: bool = False
    needs_mpi: bool = False
    further: dict[str, Any] = field(default_factory=dict)
    check: Callable[[Job], None] = lambda job: None
    depends: Callable[[Any, Team], dict[str, Any]] = lambda options, team: {}


CUT_ONLY: dict[str, Any] = {"objectives": ("cut",)}
STREAMED = {"memory": streamed_bytes, "holds_pairs": False, "has_passes": True, **CUT_ONLY}
ON_RANKS = {"memory": parmetis_bytes, "needs_mpi": True, "check": check_parmetis, **CUT_ONLY}
METHODS: dict[str, Method] = {
    METIS: Method(gathered(metis_parts), "METIS, with several balance constraints"),
    "random": Method(random_parts, "random, by a hash of the node", dealt_bytes, holds_pairs=False, balances=False),
    "ldg": Method(streamed_parts, "linear deterministic greedy, edges on disk (Stanton and Kliot 2012)", **STREAMED),
    "fennel": Method(streamed_parts, "ldg with the cost function of Fennel (Tsourakakis et al. 2014)", **STREAMED),
    "kaminpar": Method(gathered(kaminpar), "KaMinPar on all cores (Gottesbüren 2021)", depends=threads, **CUT_ONLY),
    "parmetis": Method(parmetis_parts, "ParMETIS or PT-Scotch, on all ranks", depends=ranks, **ON_RANKS),
    "hotness": Method(
        hotness, "METIS, then nodes move to the parts whose training seeds reach them most likely", hotness_bytes,
        kinds=files.BY_DESTINATION, further={"cache_ranking": HOTNESS_CACHE},
    ),
    GIVEN: Method(parts_of_file, "read from the file of --assignment", given_bytes, holds_pairs=False, needs_file=True),
}  # fmt: skip
OWN = Method(gathered(users_own), "custom class or function", depends=user_code)


def method_of(name: str) -> Method:
    """Return the row of a method, which may be the path of a class or function of the user's."""
    return METHODS.get(name, OWN)
