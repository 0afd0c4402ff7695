"""How much memory a rank of a distributed partition takes: predicted, as `partition_memory` does for one process.

N nodes, E edges, D pairs of nodes with edges between them, C columns of weights, P parts, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from data_tools.memory import free_memory, mebibytes, status_bytes
from data_tools.partition import source as partition_source
from data_tools.partition.memory import FILE_BYTES, FREE_SHARE, LEAST_WORK, MOST_WORK, SAMPLED, WORK_SHARE, Counts, Plan
from data_tools.partition.options import GIVEN, STREAMED, Options
from data_tools.partition.pair_spool import entry_dtype
from data_tools.partition.ranks.graph import shared_slabs, window_bytes
from data_tools.partition.ranks.quality import HALO_BYTES, most_halo_keys
from data_tools.partition.ranks.rebalance import CELLS
from data_tools.partition.ranks.shuffle import WINDOW_SLABS
from data_tools.partition.ranks.spool import ENTRY_BYTES
from data_tools.partition.source import Source
from data_tools.partition.temporal import HISTORY_BYTES
from data_tools.partition.weights import columns_of
from data_tools.team import Team
from hpcgnn.graph import files

PARTS_AT_ONCE = 16  # part files of a rank that are open together, and noted when they are finished
PAIR_BYTES = {4: 64, 8: 120}  # of an adjacency entry, by the bytes of its integers: the graph, and what ParMETIS makes
UNEVEN = 1.25  # blocks have equally many nodes, but not pairs


@dataclass(frozen=True, slots=True)
class SharedCounts:
    """What memory depends on. whole: as one process counts; column: bytes of the largest column of the file; integer:
    bytes of a number of a node or a tie."""

    whole: Counts
    ranks: int
    column: int
    integer: int


def count_shared(team: Team, source: Source, options: Options) -> SharedCounts:
    """Collective. The counts of a graph."""
    pairs = estimate_pairs(team, source) if options.method == "parmetis" else 0
    weights = len(columns_of(source, options.balance or ("nodes",)))
    whole = Counts(source.num_nodes, source.num_edges, pairs, weights, source.kind)
    tables = [source.nodes(found) for found in source.types] + [source.edges(found) for found in source.relations]
    column = max((files.row_bytes(values) * len(values) for table in tables for values in table.values()), default=0)
    return SharedCounts(whole, team.size, column, entry_dtype(source).itemsize)


def estimate_pairs(team: Team, source: Source) -> int:
    """Collective. About how many unordered pairs of different nodes have edges between them."""
    sampled = [np.empty(0, np.uint64)]
    for relation in source.relations:
        for _, src, dst in shared_slabs(team, source, relation):
            keys = (np.minimum(src, dst) * source.num_nodes + np.maximum(src, dst))[src != dst].astype(np.uint64)
            hashed = keys * np.uint64(0x9E3779B97F4A7C15)
            sampled.append(np.unique(keys[hashed >> np.uint64(32) < np.uint64((1 << 32) // SAMPLED)]))
    keys = np.unique(np.concatenate(sampled))
    rank = (keys % np.uint64(team.size)).astype(np.int64)
    here = team.exchange(keys[np.argsort(rank, kind="stable")], np.bincount(rank, minlength=team.size))[0]
    return SAMPLED * int(team.sum(np.array([len(np.unique(here))]))[0])


def shuffle_window(num_ranks: int, work: int) -> int:
    """Bytes of a window of rows over all ranks."""
    return min(WINDOW_SLABS * partition_source.SLAB_BYTES, max(1, num_ranks * work // 4))


def predict_shared(counts: SharedCounts, options: Options, work: int) -> dict[str, int]:
    """Bytes that every stage takes at most on a rank, besides what the program takes itself; ``work``: for tables whose
    size can be chosen."""
    whole, ranks = counts.whole, counts.ranks
    nodes, parts = -(-whole.nodes // ranks), -(-options.parts // ranks)
    slab = min(partition_source.SLAB_BYTES, counts.column // ranks)
    edges = min(whole.edges, partition_source.SLAB_BYTES // 16) // ranks  # of a slab of the file, on a rank
    halo = min(24 * most_halo_keys(whole.nodes, whole.edges, options.parts) // ranks, HALO_BYTES)
    stamps = 120 * whole.edges // ranks if whole.kind == "snapshots" else 0
    history = min(work, 4 * HISTORY_BYTES * whole.edges // options.parts) if whole.kind == "temporal" else 0
    return {
        "checks": 4 * slab,
        "assignment": assignment_bytes(counts, options, work),
        "measures": 16 * nodes + max(4 * shuffle_window(ranks, work) // ranks, 240 * edges + halo + stamps),
        "part files": 40 * nodes + 240 * edges + 6 * slab + min(parts, PARTS_AT_ONCE) * FILE_BYTES + history,
    }


def assignment_bytes(counts: SharedCounts, options: Options, work: int) -> int:
    """Bytes of the stage that assigns nodes to parts, on a rank."""
    whole, ranks = counts.whole, counts.ranks
    nodes = -(-whole.nodes // ranks)
    weights = 24 * nodes * (whole.weights + 2)
    window = 240 * min(-(-whole.edges // ranks), window_bytes(ranks) // ranks // 16)
    if options.method in STREAMED:
        return 120 * nodes + weights + window + min(work, 2 * ENTRY_BYTES * whole.edges // ranks)
    if options.method == "parmetis":
        pairs = int(2 * UNEVEN * whole.pairs * PAIR_BYTES[counts.integer]) // ranks
        return 48 * nodes + weights + pairs + max(window, 64 * min(nodes * options.parts, CELLS))
    return 24 * nodes + weights + window + (16 * whole.nodes if options.method == GIVEN else 0)


def make_shared_plan(team: Team, source: Source, options: Options, limit: int | None) -> Plan:
    """Collective. The plan of a rank for a limit in bytes (None: its share of the memory of its machine that is free),
    the same on all ranks; ValueError, with the remedy, where it does not fit."""
    counts, program = count_shared(team, source, options), status_bytes("VmRSS")
    allowed = int(program + FREE_SHARE * free_memory() / team.ranks_on_node()) if limit is None else limit
    program = int(team.largest(np.array([program]))[0])
    allowed = -int(team.largest(np.array([-allowed]))[0])
    least = predict_shared(counts, options, 0)
    left = WORK_SHARE * (allowed - program - max(least.values()))
    work = int(min(max(left, LEAST_WORK), max(MOST_WORK // team.size, 4 * LEAST_WORK)))
    plan = Plan(allowed, program, predict_shared(counts, options, work), work)
    with team.together("plan the memory"):
        check_plan(plan, counts, options)
    return plan


def check_plan(plan: Plan, counts: SharedCounts, options: Options) -> None:
    """ValueError, with the remedy, for a plan that needs more than is allowed."""
    if plan.peak <= plan.limit:
        return
    stage, advice = max(plan.stages, key=plan.stages.__getitem__), ""
    if options.method == "parmetis":
        streamed = predict_shared(counts, replace(options, method="ldg"), LEAST_WORK)
        if plan.program + max(streamed.values()) <= plan.limit:
            advice = "choose --method ldg, which keeps the edges on disk, "
    raise ValueError(
        f"memory: the stage {stage} of method {options.method} takes about {mebibytes(plan.peak)} a rank, and "
        f"{mebibytes(plan.limit)} are allowed; {advice}start more ranks, on more machines, or raise --memory"
    )
