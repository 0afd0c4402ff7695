"""How much memory partitioning takes: predicted from counts, stage by stage, before anything is written.

N nodes, E edges, D pairs of nodes with edges between them, C columns of weights, P parts; sizes in bytes.
"""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

import numpy as np

from data_tools import partition_source
from data_tools.node_weights import columns_of
from data_tools.pair_spool import ENTRY_BYTES
from data_tools.part_access import TABLE_BYTES
from data_tools.part_writer import HISTORY_BYTES, PARTS_AT_ONCE
from data_tools.partition_options import STREAMED, Options
from data_tools.partition_source import Source, endpoint_slabs
from data_tools.quality import HALO_BYTES

FREE_SHARE = 0.8  # of the memory that is free: the limit unless one is given
WORK_SHARE = 0.5  # of what is left of the limit: for tables whose size can be chosen
LEAST_WORK, MOST_WORK = 8 << 20, 512 << 20
PAIR_BYTES = 260  # METIS, and the pair graph that it is given
FILE_BYTES = 3 << 20  # a part file that is open
SAMPLED = 16  # every so many pairs are counted
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


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
    in_memory = options.method not in (*STREAMED, "random")
    pairs = estimate_pairs(source) if in_memory else 0
    weights = len(columns_of(source, options.balance or ("nodes",)))
    return Counts(source.num_nodes, source.num_edges, pairs, weights, source.kind)


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
    history = min(work, 4 * HISTORY_BYTES * counts.edges // options.parts) if counts.kind == "temporal" else 0
    return {
        "checks": 4 * slab,
        "assignment": assignment_bytes(counts, options, weights, work) + 4 * slab,
        "measures": 32 * counts.nodes + 3 * weights + min(HALO_BYTES, counts.nodes * options.parts) + 6 * slab,
        "part files": 44 * counts.nodes + 8 * slab + parts * FILE_BYTES + max(history, access),
    }


def assignment_bytes(counts: Counts, options: Options, weights: int, work: int) -> int:
    """Bytes of the stage that assigns nodes to parts, slabs aside."""
    if options.method == "random":
        return 24 * counts.nodes
    if options.method in STREAMED:
        return 60 * counts.nodes + 3 * weights + min(work, 2 * ENTRY_BYTES * counts.edges)
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

    def lines(self) -> list[str]:
        """The plan as a small table."""
        rows = [f"  {name:<12}{mebibytes(self.program + size):>12}" for name, size in self.stages.items()]
        return [f"memory: at most {mebibytes(self.limit)} allowed; expected", *rows]


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
    if options.method not in (*STREAMED, "random"):
        needed = 60 * counts.nodes + 24 * counts.nodes * counts.weights + 4 * partition_source.SLAB_BYTES + LEAST_WORK
        if needed <= left:
            return "choose --method ldg, which reads the edges from disk, or raise --memory"
    return "raise --memory"


def mebibytes(size: int) -> str:
    """A size for people."""
    return f"{size / (1 << 20):,.0f} MiB"


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 8GiB, 500M or 1.5g; ValueError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?\s*", text.lower())
    if not found:
        raise ValueError(f"{text!r} is not a size; expected for example 8GiB or 500M")
    return int(float(found[1]) * UNITS[found[2]])


def status_bytes(name: str) -> int:
    """A size of this process from /proc/self/status."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, name
    return int(found[1]) << 10


def free_memory() -> int:
    """Bytes that are free on the machine and in the control group of this process."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found
    return min([int(found[1]) << 10, *group_limits()])


def group_limits() -> list[int]:
    """Bytes left in the control groups of this process that have a limit (version 1 or 2)."""
    left = []
    for line in read_text(pathlib.Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        old = "memory" in controllers.split(",")
        if controllers and not old:
            continue
        root = pathlib.Path("/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            limit, used = (read_text(place / name).strip() for name in names)
            if limit.isdigit() and used.isdigit():
                left.append(max(0, int(limit) - int(used)))
            if place == root:
                break
    return left


def read_text(path: pathlib.Path) -> str:
    """A file's text, empty where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
