"""Node weights: the constraints that a partition can be balanced by.

N nodes of all types numbered together, C columns of weights.
"""

from __future__ import annotations

import itertools

import numpy as np

from data_tools.partition.pair_graph import build_pair_graph
from data_tools.partition.source import NodeType, Relation, Source, endpoint_slabs
from hpcgnn.graph.files import BY_DESTINATION, FileFormatError

CONSTRAINTS = ("nodes", "events", "degree", "train", "val", "time")
STATIC_CONSTRAINTS = ("nodes", "edges", "degree", "train", "val")
ALL_TYPES = "types"
SPLITS = {"train": 0, "val": 1}  # values of the column split
STRETCHES = {"train": (0.0, 0.7), "val": (0.7, 0.85)}  # of the event stream, as training splits it
QUARTERS = 4


def constraints(source: Source) -> tuple[str, ...]:
    """Names of the constraints that a graph allows; ``types`` stands for type:<name> of every node type."""
    names = CONSTRAINTS if source.kind == "temporal" else STATIC_CONSTRAINTS
    timed = ("time",) if source.kind == "snapshots" else ()
    return (*names, *timed, *type_names(source), ALL_TYPES)


def type_names(source: Source) -> list[str]:
    """The constraint of every node type."""
    return [f"type:{node_type.name}" for node_type in source.types]


def columns_of(source: Source, balance: tuple[str, ...]) -> list[str]:
    """Names of the weight columns: ``time`` is one for every quarter of the events or snapshots, ``types`` one for
    every node type."""
    several = {"time": [f"time{quarter}" for quarter in range(QUARTERS)], ALL_TYPES: type_names(source)}
    return list(dict.fromkeys(column for name in balance for column in several.get(name, [name])))


def node_weights(source: Source, balance: tuple[str, ...], degrees: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Weights [N] int64 by column name.

    nodes: 1; degree: distinct neighbours (``degrees`` [N], else counted in memory); type:<name>: 1 for its nodes. Of
    a temporal graph: events: history entries; train, val: those in the first 70 % of the event stream and in the next
    15 %; time0 .. time3: those in each quarter; a self-loop is one entry. Of the others: edges: in-edges of all
    relations; train, val: 1 for nodes of that split; time0 .. time3: in-edges in all snapshots of each quarter of them.
    """
    columns = columns_of(source, balance)
    weights = {name: plain_weight(source, name) for name in columns if name == "nodes" or name.startswith("type:")}
    if "degree" in columns:
        weights["degree"] = build_pair_graph(source).degrees() if degrees is None else degrees
    remaining = [name for name in columns if name not in weights]
    if source.kind in BY_DESTINATION:
        weights |= {name: static_weight(source, name) for name in remaining}
    else:
        weights |= temporal_weights(source, remaining)
    return {name: weights[name] for name in columns}


def plain_weight(source: Source, name: str) -> np.ndarray:
    """1 for every node [N] int64, or for those of the type that is named."""
    weight = np.full(source.num_nodes, name == "nodes", np.int64)
    for node_type in source.types:
        if name == f"type:{node_type.name}":
            weight[node_type.base : node_type.base + node_type.num_nodes] = 1
    return weight


def temporal_weights(source: Source, names: list[str]) -> dict[str, np.ndarray]:
    """Events, train, val and quarters of time: columns [N] int64, at least those named."""
    weights = {name: entries(source, STRETCHES[name])[0] for name in names if name in STRETCHES}
    if len(weights) < len(names):
        quarters = entries(source, tuple(quarter / QUARTERS for quarter in range(QUARTERS + 1)))
        weights |= {f"time{index}": column for index, column in enumerate(quarters)}
        weights["events"] = quarters.sum(axis=0)
    return weights


def entries(source: Source, fractions: tuple[float, ...]) -> np.ndarray:
    """History entries per node [B, N] in each of the B stretches of the event stream between B + 1 fractions."""
    cuts = np.array([stream_cuts(source, fraction) for fraction in fractions])
    counts = np.zeros((len(fractions) - 1, source.num_nodes), np.int64)
    for index, relation in enumerate(source.relations):
        for start, src, dst in endpoint_slabs(source, relation):
            edges = np.clip(cuts[:, index] - start, 0, len(src))
            for stretch, (begin, end) in enumerate(itertools.pairwise(edges)):
                add_entries(counts[stretch], src[begin:end], dst[begin:end])
    return counts


def add_entries(counts: np.ndarray, src: np.ndarray, dst: np.ndarray) -> None:
    """Count both endpoints of events, a self-loop once; counts [N] is changed in place."""
    np.add.at(counts, src, 1)
    np.add.at(counts, dst[src != dst], 1)


def stream_cuts(source: Source, fraction: float) -> list[int]:
    """Rows of every relation that lie in the first ``fraction`` of all events by time.

    With one relation this is a row count; with several, the smallest time is sought up to which enough events happen.
    """
    wanted = round(fraction * source.num_edges)
    if len(source.relations) == 1 or wanted in (0, source.num_edges):
        return [relation.num_edges * wanted // max(1, source.num_edges) for relation in source.relations]
    filled = [relation for relation in source.relations if relation.num_edges]
    low = min(int(source.edges(relation)["time"][0]) for relation in filled)
    high = max(int(source.edges(relation)["time"][-1]) for relation in filled)
    while low < high:
        middle = (low + high) // 2
        if sum(rows_until(source, relation, middle) for relation in source.relations) >= wanted:
            high = middle
        else:
            low = middle + 1
    return [rows_until(source, relation, low) for relation in source.relations]


def rows_until(source: Source, relation: Relation, time: int) -> int:
    """Number of events of a relation at or before ``time``."""
    times, low, high = source.edges(relation)["time"], 0, relation.num_edges
    while low < high:
        middle = (low + high) // 2
        if int(times[middle]) <= time:
            low = middle + 1
        else:
            high = middle
    return low


def has_split(source: Source) -> bool:
    """Whether a node type has a column split."""
    return any("split" in node_type.columns for node_type in source.types)


def default_balance(source: Source) -> tuple[str, ...]:
    """What a static graph, or one of snapshots, is balanced by unless told otherwise."""
    if source.kind == "snapshots":
        return ("nodes", "time")
    return ("nodes", "edges", "train") if has_split(source) else ("nodes", "edges")


def static_weight(source: Source, name: str) -> np.ndarray:
    """Edges, train, val or a quarter of the snapshots: one column [N] int64."""
    if name == "edges":
        return in_degrees(source)
    if name in SPLITS:
        return in_split(source, name).astype(np.int64)
    return snapshot_degrees(source, int(name.removeprefix("time")))


def in_degrees(source: Source) -> np.ndarray:
    """In-edges of every node over all relations [N] int64."""
    degrees = np.zeros(source.num_nodes, np.int64)
    for relation in source.relations:
        for _, _, dst in endpoint_slabs(source, relation):
            np.add.at(degrees, dst, 1)
    return degrees


def snapshot_degrees(source: Source, quarter: int) -> np.ndarray:
    """In-edges of every node [N] int64 in the snapshots of one quarter, added up."""
    degrees, count = np.zeros(source.num_nodes, np.int64), source.snapshots["num_snapshots"]
    begin, end = (count * place // QUARTERS for place in (quarter, quarter + 1))
    for relation in source.relations:
        columns = source.edges(relation)
        for start, _, dst in endpoint_slabs(source, relation):
            first = columns["first"][start : start + len(dst)]
            last = columns["last"][start : start + len(dst)] if "last" in columns else first
            np.add.at(degrees, dst, np.clip(np.minimum(last + 1, end) - np.maximum(first, begin), 0, None))
    return degrees


def in_split(source: Source, name: str) -> np.ndarray:
    """Which nodes [N] bool are of a split, train or val; types without a column split have none."""
    if not has_split(source):
        raise ValueError(
            f"{source.file.filename}: no node type has a column split, so no node is known to be of {name}; "
            "name its source to data_tools.convert, or balance by nodes and edges"
        )
    chosen = np.zeros(source.num_nodes, bool)
    for node_type in source.types:
        if "split" in node_type.columns:
            chosen[node_type.base : node_type.base + node_type.num_nodes] = split_of(source, node_type) == SPLITS[name]
    return chosen


def split_of(source: Source, node_type: NodeType) -> np.ndarray:
    """The column split of a type [N_type]."""
    split = source.nodes(node_type)["split"]
    if split.ndim != 1 or split.dtype.kind not in "iu":
        raise FileFormatError(
            f"{source.file.filename}: {split.name} is {split.dtype} of shape {split.shape}, expected one integer a "
            "node: 0 train, 1 validation, 2 test; convert one split only"
        )
    return split[()]
