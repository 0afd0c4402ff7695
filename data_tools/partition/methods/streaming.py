"""Parts for nodes that come one after the other: linear deterministic greedy (Stanton and Kliot, "Streaming graph
partitioning for large distributed graphs", 2012) and Fennel (Tsourakakis et al., "FENNEL: streaming graph partitioning
for massive scale graphs", 2014), streamed several times (Nishimura and Ugander, "Restreaming graph partitioning",
2013), the nodes with most edges first.

N nodes of all types numbered together, C constraints, P parts.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from data_tools.partition.layout import bisect
from data_tools.partition.pair_spool import SpooledGraph
from hpcgnn.native import parts as native_parts

CAPACITY = 1.03  # a part takes so much of the mean of every constraint while nodes are assigned
LIMIT = 1.04  # and may have so much at the end
EVENING_PASSES = 30  # at most, after those that assign
GAMMA = 1.5  # Fennel's: its price grows with the square root of the load
SLAB_ENTRY_BYTES = 32  # of memory for an entry of a slab: as stored, and as int64


def stream(graph: SpooledGraph, weights: np.ndarray, num_parts: int, rule: str, passes: int, memory: int) -> np.ndarray:
    """Part per node [N] int32; rule: ldg or fennel; weights [N, C] int64; ``memory``: about the bytes of a slab.

    Every pass but the first knows where the one before put the nodes that are still to come. At last, nodes leave the
    parts that are over LIMIT.
    """
    total = weights.sum(axis=0)
    if not total.any():
        return np.zeros(graph.num_nodes, np.int32)
    weights, capacity = weights[:, total > 0], CAPACITY * total[total > 0] / num_parts
    loads = native_parts.PartLoads(
        np.zeros((num_parts, len(capacity))), capacity, rule, fennel_price(graph.total_ties, graph.num_nodes)
    )
    part, limit = np.full(graph.num_nodes, -1, np.int32), max(1, memory // SLAB_ENTRY_BYTES)
    for _ in range(passes):
        loads.loads[:] = 0
        for nodes in node_slabs(graph, weights, limit):
            native_parts.stream_parts(nodes, loads, part)
    loads = dataclasses.replace(loads, capacity=LIMIT / CAPACITY * capacity)
    for _ in range(EVENING_PASSES):
        if sum(native_parts.even_parts(nodes, loads, part) for nodes in node_slabs(graph, weights, limit, -1)) == 0:
            break
    return part


def fennel_price(total_ties: int, num_nodes: int) -> float:
    """What a part that is filled to its capacity costs a node, in ties: gamma m / n (load / mean) ** (gamma - 1)."""
    return GAMMA * total_ties / max(1, num_nodes) * math.sqrt(CAPACITY)


def node_slabs(graph: SpooledGraph, weights: np.ndarray, limit: int, step: int = 1):
    """The nodes with their weights [N, C] in slabs of about ``limit`` entries; step -1: the last slab first."""
    for nodes, adjacency in graph.slabs(limit, step):
        yield native_parts.StreamNodes(nodes, weights[nodes], adjacency)


def order_streamed(graph: SpooledGraph, part: np.ndarray, num_parts: int, seed: int, memory: int) -> np.ndarray:
    """Renumber the parts of an assignment [N] so that consecutive ones are neighbours."""
    ties = np.zeros(num_parts * num_parts, np.int64)
    for nodes, (indptr, neighbor, tie) in graph.slabs(max(1, memory // SLAB_ENTRY_BYTES)):
        own = np.repeat(part[nodes].astype(np.int64), np.diff(indptr))
        ties += np.bincount(own * num_parts + part[neighbor], weights=tie, minlength=len(ties)).astype(np.int64)
    return new_numbers(ties.reshape(num_parts, num_parts), seed)[part]


def new_numbers(ties: np.ndarray, seed: int) -> np.ndarray:
    """Numbers [P] int32 of parts with ties [P, P] between them, so that consecutive ones are neighbours."""
    ties = ties.copy()
    np.fill_diagonal(ties, 0)
    numbers = np.empty(len(ties), np.int32)
    numbers[bisect(ties, np.arange(len(ties)), seed)] = np.arange(len(ties))
    return numbers
