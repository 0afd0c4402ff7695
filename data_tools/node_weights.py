"""Node weights: the constraints that a partition can be balanced by.

N nodes of all types numbered together, C columns of weights.
"""

from __future__ import annotations

import itertools

import numpy as np

from data_tools.pair_graph import PairGraph, build_pair_graph
from data_tools.partition_source import Relation, Source, endpoint_slabs

CONSTRAINTS = ("nodes", "events", "degree", "train", "time")
TRAIN_FRACTION = 0.7
QUARTERS = 4


def columns_of(balance: tuple[str, ...]) -> list[str]:
    """Names of the weight columns: ``time`` stands for one per quarter of the event stream."""
    names = []
    for name in balance:
        names += [f"time{quarter}" for quarter in range(QUARTERS)] if name == "time" else [name]
    return names


def node_weights(source: Source, balance: tuple[str, ...], graph: PairGraph | None = None) -> dict[str, np.ndarray]:
    """Weights [N] int64 by column name.

    nodes: 1; events: history entries; degree: distinct neighbours (from ``graph``, else counted); train: history
    entries in the first 70 % of the event stream; time0 .. time3: those in each quarter. A self-loop is one entry.
    """
    weights = {"nodes": np.ones(source.num_nodes, np.int64)}
    if "degree" in balance:
        weights["degree"] = (graph or build_pair_graph(source)).degrees()
    fractions = (0.0, *(quarter / QUARTERS for quarter in range(1, QUARTERS)), 1.0)
    if "train" in balance:
        weights["train"] = entries(source, (0.0, TRAIN_FRACTION))[0]
    if "time" in balance or "events" in balance:
        quarters = entries(source, fractions)
        weights.update({f"time{index}": column for index, column in enumerate(quarters)})
        weights["events"] = quarters.sum(axis=0)
    return {name: weights[name] for name in columns_of(balance)}


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
