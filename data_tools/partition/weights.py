"""Node weights: the constraints that a partition can be balanced by.

N nodes of all types numbered together, n of them in a rank's block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.graph.source import EdgeType, Outline, Source, stamps
from data_tools.partition.blocks import NodeBlocks
from data_tools.partition.pair_graph import build_pair_graph
from data_tools.team import Team
from hpcgnn.choices import Part
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.splits import SPLITS

STRETCHES = {"train": (0.0, 0.7), "val": (0.7, 0.85)}  # of the event stream, as training splits it
QUARTERS = 4
QUARTER_NAMES = [f"time{quarter}" for quarter in range(QUARTERS)]


@dataclass(frozen=True)
class Constraint(Part):
    """A row of CONSTRAINTS. make: lists its weight columns of a source, None: one of its own name; kinds: of graphs
    that have it."""

    kinds: tuple[str, ...] = files.KINDS


def type_names(source: Source) -> list[str]:
    """Name the constraint of every node type."""
    return [f"type:{node_type.name}" for node_type in source.types]


CONSTRAINTS = {
    "nodes": Constraint(None, "number of nodes"),
    "events": Constraint(None, "entries of the nodes' histories (temporal graphs only)", ("temporal",)),
    "edges": Constraint(None, "in-edges of all relations (static and snapshot graphs only)", files.BY_DESTINATION),
    "degree": Constraint(None, "number of distinct neighbors"),
    "train": Constraint(None, "nodes in the training split, or entries of the first 70 percent of the events"),
    "val": Constraint(None, "nodes in the validation split, or entries of the next 15 percent of the events"),
    "time": Constraint(
        lambda source: QUARTER_NAMES, "edges in each quarter of the events or snapshots", ("temporal", "snapshots")
    ),
    "types": Constraint(type_names, "number of nodes of each type"),
}
DEFAULT_BALANCE = {"temporal": ("events", "time"), "static": ("nodes", "edges"), "snapshots": ("nodes", "time")}


def constraints(source: Source) -> list[str]:
    """List the constraints that a graph allows, with type:<name> of every node type."""
    return [*(name for name, row in CONSTRAINTS.items() if source.kind in row.kinds), *type_names(source)]


def default_balance(source: Source) -> tuple[str, ...]:
    """Name the constraints that balance a graph where none are chosen."""
    chosen = DEFAULT_BALANCE[source.kind]
    return (*chosen, "train") if source.kind == "static" and has_split(source) else chosen


def columns_of(source: Source, balance: tuple[str, ...]) -> list[str]:
    """Name the weight columns of constraints: ``time`` has one for every quarter, ``types`` one for every node type."""
    several = {name: row.make(source) for name, row in CONSTRAINTS.items() if row.make}
    return list(dict.fromkeys(column for name in balance for column in several.get(name, [name])))


def node_weights(
    source: Source, balance: tuple[str, ...], degrees: np.ndarray | None = None, blocks: NodeBlocks | None = None
) -> dict[str, np.ndarray]:
    """Collective. Compute the weights [n] int64 of this rank's block of the nodes (default: all nodes, in one process)
    by column name.

    nodes: 1; degree: distinct neighbors (``degrees`` [n], else counted in memory); type:<name>: 1 for its nodes.
    Temporal graphs have events: history entries; train, val: entries in the first 70 % of the event stream and in the
    next 15 %; time0 .. time3: entries in each quarter. A self-loop is one entry. Other graphs have edges: in-edges of
    all relations; train, val: 1 for nodes of that split; time0 .. time3: in-edges in all snapshots of each quarter of
    the snapshots.
    """
    blocks = blocks or NodeBlocks.even(Team(), source.num_nodes)
    names = columns_of(source, balance)
    counted = [name for name in names if name in ("events", "edges", *QUARTER_NAMES)]
    if source.kind == "temporal":
        counted += [name for name in names if name in STRETCHES]
    weights = count_edges(source, blocks, counted)
    for name in names:
        if name == "nodes":
            weights[name] = np.ones(len(blocks.own), np.int64)
        elif name == "degree":
            weights[name] = build_pair_graph(source, blocks).degrees() if degrees is None else degrees
        elif name not in weights and name in STRETCHES:
            weights[name] = in_split(source, name, blocks.own).astype(np.int64)
        elif name not in weights:
            weights[name] = np.zeros(len(blocks.own), np.int64)
            for node_type, _, place in source.types_in(blocks.own):
                weights[name][place] = name == f"type:{node_type.name}"
    return {name: weights[name] for name in names}


def count_edges(source: Source, blocks: NodeBlocks, names: list[str]) -> dict[str, np.ndarray]:
    """Collective. Count a node's edges, as weights [n] int64 by name: in-edges of a static graph, history entries of a
    temporal one, where a self-loop is one entry."""
    totals = {name: np.zeros(len(blocks.own), np.int64) for name in names}
    stretches = {name: stretches_of(source, name) for name in names}
    for index, relation in enumerate(source.relations if names else ()):
        for start, src, dst in source.ends(relation, blocks.team):
            for name in names:
                begin, end = stretches[name][index]
                if source.kind == "snapshots" and name in QUARTER_NAMES:
                    blocks.add_up(dst, snapshots_within(source, relation, start, len(dst), (begin, end)), totals[name])
                    continue
                rows = slice(max(begin - start, 0), max(end - start, 0))
                blocks.add_up(dst[rows], 1, totals[name])
                if source.kind == "temporal":
                    blocks.add_up(src[rows][src[rows] != dst[rows]], 1, totals[name])
    return totals


def stretches_of(source: Source, name: str) -> list[tuple[int, int]]:
    """Find the stretch (begin, end) of every relation that a name counts: rows of a temporal graph, snapshots of a
    snapshot graph. Names of no stretch of time count all rows."""
    quarter = QUARTER_NAMES.index(name) if name in QUARTER_NAMES else None
    if source.kind == "snapshots" and quarter is not None:
        begin, end = (source.facts["num_snapshots"] * place // QUARTERS for place in (quarter, quarter + 1))
        return [(begin, end)]
    if source.kind != "temporal" or name == "events":
        return [(0, relation.num_edges) for relation in source.relations]
    fractions = STRETCHES[name] if quarter is None else (quarter / QUARTERS, (quarter + 1) / QUARTERS)
    begins, ends = (stream_cuts(source, fraction) for fraction in fractions)
    return list(zip(begins, ends, strict=True))


def snapshots_within(source: Source, relation: EdgeType, start: int, count: int, bounds: tuple[int, int]) -> np.ndarray:
    """Count the snapshots from bounds[0] to bounds[1] - 1 [count] int64 that each of some rows of a relation is in."""
    (begin, end), (first, last) = bounds, stamps(source.edges(relation), start, start + count)
    return np.clip(np.minimum(last + 1, end) - np.maximum(first, begin), 0, None)


def stream_cuts(source: Source, fraction: float) -> list[int]:
    """Count the rows of every relation that lie in the first ``fraction`` of all events by time.

    With one relation this is a row count; with several, the smallest time is sought up to which enough events happen.
    """
    num_events = round(fraction * source.num_edges)
    if len(source.relations) == 1 or num_events in (0, source.num_edges):
        return [relation.num_edges * num_events // max(1, source.num_edges) for relation in source.relations]
    filled = [relation for relation in source.relations if relation.num_edges]
    low = min(int(source.edges(relation)["time"][0]) for relation in filled)
    high = max(int(source.edges(relation)["time"][-1]) for relation in filled)
    while low < high:
        middle = (low + high) // 2
        if sum(rows_until(source, relation, middle) for relation in source.relations) >= num_events:
            high = middle
        else:
            low = middle + 1
    return [rows_until(source, relation, low) for relation in source.relations]


def rows_until(source: Source, relation: EdgeType, time: int) -> int:
    """Count the events of a relation at or before ``time``."""
    times, low, high = source.edges(relation)["time"], 0, relation.num_edges
    while low < high:
        middle = (low + high) // 2
        if int(times[middle]) <= time:
            low = middle + 1
        else:
            high = middle
    return low


def has_split(source: Outline) -> bool:
    """Say whether a node type has a column split."""
    return any("split" in node_type.columns for node_type in source.types)


def in_split(source: Outline, name: str, nodes: range | None = None) -> np.ndarray:
    """Find which of the nodes [n] bool (default: of all) are of a split, train or val; types without a column split
    have none. Raises ValueError and FileFormatError as `check_split` does."""
    check_split(source, name)
    nodes = range(source.num_nodes) if nodes is None else nodes
    chosen = np.zeros(len(nodes), bool)
    for node_type, rows, place in source.types_in(nodes):
        if "split" in node_type.columns:
            chosen[place] = source.node_column(node_type, "split")[rows.start : rows.stop] == SPLITS.index(name)
    return chosen


def check_split(source: Outline, name: str) -> None:
    """Raise ValueError where no node type has a column split, FileFormatError where one has it in an unknown form."""
    if not has_split(source):
        raise ValueError(
            f"{source.path}: no node type has a column split, which constraint {name} needs; "
            "convert the graph with one, or balance by nodes and edges"
        )
    for node_type in source.types:
        split = source.node_column(node_type, "split") if "split" in node_type.columns else None
        if split is not None and (split.ndim != 1 or split.dtype.kind not in "iu"):
            raise FileFormatError(
                f"{source.path}: /nodes/{node_type.name}/split is {split.dtype} of shape {split.shape}, expected one "
                "integer a node: 0 train, 1 validation, 2 test; convert one split only"
            )
