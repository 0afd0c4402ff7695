"""The memory that a rank takes to partition: predicted from counts, stage by stage, before anything is written.

N nodes, E edges, D pairs of nodes with edges between them, C columns of weights, P parts, R ranks; sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from data_tools.graph import source as graph_source
from data_tools.graph.source import Source, window_bytes
from data_tools.memory import mebibytes, status_bytes
from data_tools.partition.access import TABLE_BYTES
from data_tools.partition.assignment import method_of
from data_tools.partition.blocks import distinct
from data_tools.partition.options import Options
from data_tools.partition.quality import HALO_BYTES, HALO_KEY_BYTES, most_halo_keys
from data_tools.partition.spool import entry_dtype, spool_bytes
from data_tools.partition.temporal import HISTORY_BYTES
from data_tools.partition.weights import columns_of
from data_tools.team import Ranks, Team
from hpcgnn.comm.memory import free_bytes
from hpcgnn.graph import files

FREE_SHARE = 0.8  # of the memory that is free: the limit unless one is given
WORK_SHARE = 0.5  # of what is left of the limit: for tables whose size can be chosen
LEAST_WORK, MOST_WORK = 8 << 20, 512 << 20
FILE_BYTES = 3 << 20  # a part file that is open
SAMPLED = 16  # every so many pairs are counted, at least
SAMPLE_KEYS = 1 << 24  # pairs that the sample of a graph has at most, repeated ones too
MOVED_EDGE_BYTES = 240  # of memory for an edge of a slab that is read, and sent to other ranks
WINDOW_SLABS = 4  # a window of rows that go to other ranks has so many slabs of bytes, over all ranks together
PARTS_AT_ONCE = 64  # part files that a rank has open together, and notes when they are finished


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a graph that decide about memory. pairs: 0 where no stage has them all in memory; column: bytes of the
    largest column of the file; integer: bytes of a number of a node or a tie."""

    nodes: int
    edges: int
    pairs: int
    weights: int
    kind: str
    ranks: int = 1
    column: int = 0
    integer: int = 8

    @property
    def rank_nodes(self) -> int:
        """Nodes of a rank's block."""
        return -(-self.nodes // self.ranks)


def count(team: Team, source: Source, options: Options) -> Counts:
    """Collective. Make the counts of a graph; pairs are estimated from a sample."""
    pairs = estimate_pairs(team, source) if method_of(options.method).holds_pairs else 0
    weights = len(columns_of(source, options.balance or ("nodes",)))
    tables = [source.nodes(node_type) for node_type in source.types]
    tables += [source.edges(relation) for relation in source.relations]
    column = max((files.row_bytes(values) * len(values) for table in tables for values in table.values()), default=0)
    integer = entry_dtype(source).itemsize
    return Counts(source.num_nodes, source.num_edges, pairs, weights, source.kind, team.size, column, integer)


def estimate_pairs(team: Team, source: Source) -> int:
    """Collective. Estimate how many unordered pairs of different nodes have edges between them."""
    rate = max(SAMPLED, -(-source.num_edges // SAMPLE_KEYS))
    sampled = [np.empty(0, np.uint64)]
    for relation in source.relations:
        for _, src, dst in source.ends(relation, team):
            keys = (np.minimum(src, dst) * source.num_nodes + np.maximum(src, dst))[src != dst].astype(np.uint64)
            hashed = keys * np.uint64(0x9E3779B97F4A7C15)
            sampled.append(distinct(keys[hashed >> np.uint64(32) < np.uint64((1 << 32) // rate)]))
    keys = distinct(np.concatenate(sampled))
    (received,) = team.send((keys % np.uint64(team.size)).astype(np.int64), keys)
    return rate * int(team.sum(np.array([len(distinct(received))]))[0])


def shuffle_window(num_ranks: int, work: int) -> int:
    """Choose the bytes of a window of rows over all ranks."""
    return min(WINDOW_SLABS * graph_source.SLAB_BYTES, max(1, num_ranks * work // 4))


def predict(counts: Counts, options: Options, work: int) -> dict[str, int]:
    """Predict the largest bytes of every stage on a rank, in addition to the program itself; ``work``: for tables whose
    size can be chosen. A method that needs the whole graph in one place takes them on rank 0, which has it."""
    ranks = counts.ranks
    nodes, parts = counts.rank_nodes, -(-options.parts // ranks)
    weights = 8 * nodes * counts.weights
    slab, moved = graph_source.SLAB_BYTES, 0
    read = 4 * slab
    if ranks > 1:
        slab = min(slab, counts.column // ranks)
        moved = MOVED_EDGE_BYTES * min(counts.edges, graph_source.SLAB_BYTES // 16) // ranks
        read = MOVED_EDGE_BYTES * min(-(-counts.edges // ranks), window_bytes(ranks) // ranks // 16)
    neighbors = spool_bytes(counts, work) if "degree" in options.balance else 0
    halo = min(HALO_KEY_BYTES * most_halo_keys(counts.nodes, 2 * counts.edges, options.parts) // ranks, HALO_BYTES)
    stamps = 120 * counts.edges // ranks if counts.kind == "snapshots" else 0
    window = 4 * shuffle_window(ranks, work) // ranks if ranks > 1 else 0
    history = min(work, 4 * HISTORY_BYTES * counts.edges // options.parts) if counts.kind == "temporal" else 0
    access = 0
    if getattr(options, "cache_ranking", 0):
        access = TABLE_BYTES + (32 if ranks == 1 else 44) * counts.nodes
    return {
        "checks": 4 * slab,
        "assignment": method_of(options.method).memory(counts, options, work, read),
        "measures": 32 * nodes + 3 * weights + max(neighbors, window, moved + 6 * slab + halo + stamps),
        "part files": 44 * nodes + moved + 8 * slab + min(parts, PARTS_AT_ONCE) * FILE_BYTES + max(history, access),
    }


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The bytes that a rank is expected to take: of the program, of every stage, and of tables whose size can be
    chosen."""

    limit: int
    program: int  # what the program takes itself
    stages: dict[str, int]
    work: int

    @property
    def peak(self) -> int:
        """The largest expected size."""
        return self.program + max(self.stages.values())

    def lines(self, each: str = "") -> list[str]:
        """Render the plan as a small table; each: whose it is, where several ranks have one."""
        rows = [f"  {name:<12}{mebibytes(self.program + size):>12}" for name, size in self.stages.items()]
        return [f"memory: at most {mebibytes(self.limit)} allowed{each}; expected", *rows]


def make_plan(team: Team, counts: Counts, options: Options, limit: int | None) -> MemoryPlan:
    """Collective. Make the plan of a rank for a limit in bytes (None: its share of its machine's free memory), the same
    on all ranks. Raises ValueError, with the remedy, where the work does not fit."""
    program = status_bytes("VmRSS")
    allowed = int(program + FREE_SHARE * free_bytes() / team.ranks_on_machine()) if limit is None else limit
    program = int(team.largest(np.array([program]))[0])
    allowed = -int(team.largest(np.array([-allowed]))[0])
    left = WORK_SHARE * (allowed - program - max(predict(counts, options, 0).values()))
    work = int(min(max(left, LEAST_WORK), max(MOST_WORK // team.size, 4 * LEAST_WORK)))
    plan = MemoryPlan(allowed, program, predict(counts, options, work), work)
    with team.together("plan the memory"):
        if plan.peak > allowed:
            stage, shared = max(plan.stages, key=plan.stages.__getitem__), isinstance(team, Ranks)
            each = " a rank" if shared else ""
            raise ValueError(
                f"memory: the stage {stage} of method {options.method} takes about {mebibytes(plan.peak)}{each}, and "
                f"{mebibytes(allowed)} are allowed; {remedy(counts, options, allowed - program, shared)}"
            )
    return plan


def remedy(counts: Counts, options: Options, left: int, shared: bool) -> str:
    """Name the methods and settings that would fit into ``left`` bytes; shared: by the ranks of MPI, of which there may
    be more."""
    advice = []
    if method_of(options.method).holds_pairs:
        streamed = predict(counts, replace(options, method="ldg", objective="cut"), LEAST_WORK)
        if max(streamed.values()) <= left:
            where = "reads the edges from disk" if not shared else "keeps the edges on disk"
            advice.append(f"choose --method ldg, which {where}")
    if shared:
        advice.append("start more ranks, on more machines")
    return ", ".join([*advice, "or raise --memory"]) if advice else "raise --memory"
