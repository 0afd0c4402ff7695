"""How much memory partitioning takes: predicted from counts, stage by stage, before anything is written.

N nodes, E edges, D pairs of nodes with edges between them, C columns of weights, P parts; sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.memory import free_memory, mebibytes, status_bytes
from data_tools.partition import source as partition_source
from data_tools.partition.access import TABLE_BYTES
from data_tools.partition.options import OUT_OF_CORE, STREAMED, Options
from data_tools.partition.pair_spool import ENTRY_BYTES
from data_tools.partition.quality import HALO_BYTES
from data_tools.partition.source import Source, endpoint_slabs
from data_tools.partition.temporal import HISTORY_BYTES, PARTS_AT_ONCE
from data_tools.partition.weights import columns_of

FREE_SHARE = 0.8  # of the memory that is free: the limit unless one is given
WORK_SHARE = 0.5  # of what is left of the limit: for tables whose size can be chosen
LEAST_WORK, MOST_WORK = 8 << 20, 512 << 20
PAIR_BYTES = 300  # METIS, and the pair graph that it is given
FILE_BYTES = 3 << 20  # a part file that is open
SAMPLED = 16  # every so many pairs are counted


@dataclass(frozen=True, slots=True)
class Counts:
    """What memory depends on. pairs: 0 where no stage holds them all."""

    nodes: int
    edges: int
    pairs: int
    weights: int
    kind: str


def count(source: Source, options: Options) -> Counts:
    """The counts of a graph; pairs are estimated from a sample."""
    in_memory = options.method not in OUT_OF_CORE
    pairs = estimate_pairs(source) if in_memory else 0
    return Counts(
        source.num_nodes, source.num_edges, pairs, len(columns_of(source, options.balance or ("nodes",))), source.kind
    )


def estimate_pairs(source: Source) -> int:
    """About how many unordered pairs of different nodes have edges between them."""
    sampled = [np.empty(0, np.uint64)]
    for relation in source.relations:
        for _, src, dst in endpoint_slabs(source, relation):
            keys = (np.minimum(src, dst) * source.num_nodes + np.maximum(src, dst))[src != dst].astype(np.uint64)
            hashed = keys * np.uint64(0x9E3779B97F4A7C15)
            sampled.append(keys[hashed >> np.uint64(32) < np.uint64((1 << 32) // SAMPLED)])
    return SAMPLED * len(np.unique(np.concatenate(sampled)))


def predict(counts: Counts, options: Options, work: int) -> dict[str, int]:
    """Bytes that every stage takes at most, besides what the program takes itself; ``work``: for tables whose size can
    be chosen."""
    slab, parts = partition_source.SLAB_BYTES, min(options.parts, PARTS_AT_ONCE)
    weights = 8 * counts.nodes * counts.weights
    access = TABLE_BYTES + 32 * counts.nodes if getattr(options, "cache_ranking", 0) else 0
    spool = 60 * counts.nodes + min(work, 2 * ENTRY_BYTES * counts.edges)  # neighbours are counted on disk
    neighbours = spool if "degree" in options.balance else 0
    history = min(work, 4 * HISTORY_BYTES * counts.edges // options.parts) if counts.kind == "temporal" else 0
    return {
        "checks": 4 * slab,
        "assignment": assignment_bytes(counts, options, weights, work) + 4 * slab,
        "measures": 32 * counts.nodes
        + 3 * weights
        + max(neighbours, min(HALO_BYTES, counts.nodes * options.parts))
        + 6 * slab,
        "part files": 44 * counts.nodes + 8 * slab + parts * FILE_BYTES + max(history, access),
    }


def assignment_bytes(counts: Counts, options: Options, weights: int, work: int) -> int:
    """Bytes of the stage that assigns nodes to parts, slabs aside."""
    if options.method in STREAMED:
        return 60 * counts.nodes + 3 * weights + min(work, 2 * ENTRY_BYTES * counts.edges)
    if options.method in OUT_OF_CORE:
        return 24 * counts.nodes
    taken = PAIR_BYTES * counts.pairs + 32 * counts.nodes + 2 * weights
    if options.method == "hotness":
        taken = max(taken, (4 * options.parts + 64) * counts.nodes + 3 * weights + TABLE_BYTES)
    return taken


@dataclass(frozen=True, slots=True)
class Plan:
    """What is expected, and what tables whose size can be chosen may take."""

    limit: int
    program: int  # what the program takes itself
    stages: dict[str, int]
    work: int

    @property
    def peak(self) -> int:
        """The largest expected size."""
        return self.program + max(self.stages.values())

    def lines(self, each: str = "") -> list[str]:
        """The plan as a small table; each: of whom there are several."""
        rows = [f"  {name:<12}{mebibytes(self.program + size):>12}" for name, size in self.stages.items()]
        return [f"memory: at most {mebibytes(self.limit)} allowed{each}; expected", *rows]


def make_plan(counts: Counts, options: Options, limit: int | None) -> Plan:
    """The plan for a limit in bytes (None: a share of the memory that is free); ValueError, with the remedy, where it
    does not fit."""
    program = status_bytes("VmRSS")
    limit = int(program + FREE_SHARE * free_memory()) if limit is None else limit
    left = limit - program - max(predict(counts, options, 0).values())
    work = int(min(max(WORK_SHARE * left, LEAST_WORK), MOST_WORK))
    plan = Plan(limit, program, predict(counts, options, work), work)
    if plan.peak > limit:
        stage = max(plan.stages, key=plan.stages.__getitem__)
        raise ValueError(
            f"memory: the stage {stage} of method {options.method} takes about {mebibytes(plan.peak)}, and "
            f"{mebibytes(limit)} are allowed; {remedy(counts, options, limit - program)}"
        )
    return plan


def remedy(counts: Counts, options: Options, left: int) -> str:
    """What would fit into ``left`` bytes."""
    if options.method not in OUT_OF_CORE:
        needed = 60 * counts.nodes + 24 * counts.nodes * counts.weights + 4 * partition_source.SLAB_BYTES + LEAST_WORK
        if needed <= left:
            return "choose --method ldg, which reads the edges from disk, or raise --memory"
    return "raise --memory"
