"""Which part a node belongs to. A method is a function (source, num_parts, balance, seed, objective) -> part [N] int32.

N nodes of all types numbered together, P parts.
"""

from __future__ import annotations

import numpy as np

from data_tools.metis import metis_partition
from data_tools.node_weights import node_weights
from data_tools.pair_graph import PairGraph, build_pair_graph
from data_tools.part_order import order_parts
from data_tools.partition_source import Source
from data_tools.rebalance import rebalance

NODES_PER_PART = 4  # METIS needs some room: with fewer nodes it leaves parts empty


def splitmix64(values: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser (Steele, Lea and Flood, 2014) of uint64 values [n]."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_parts(source: Source, num_parts: int, balance: tuple[str, ...], seed: int, objective: str) -> np.ndarray:
    """Part per node from a keyed hash of (seed, type, row): a node's part depends on nothing else."""
    parts = [np.empty(0, np.int32)]
    for type_id, node_type in enumerate(source.types):
        key = splitmix64(splitmix64(np.array([seed], np.uint64)) + np.uint64(type_id))
        hashed = splitmix64(key ^ splitmix64(np.arange(node_type.num_nodes, dtype=np.uint64)))
        parts.append(((hashed >> np.uint64(32)) * np.uint64(num_parts) >> np.uint64(32)).astype(np.int32))
    return np.concatenate(parts)


def metis_parts(source: Source, num_parts: int, balance: tuple[str, ...], seed: int, objective: str) -> np.ndarray:
    """Part per node by METIS on the pairs of nodes with events between them, then evened out greedily."""
    graph = build_pair_graph(source)
    columns = node_weights(source, balance or ("nodes",), graph)
    weights = np.stack(list(columns.values()), axis=1)
    part = partition_graph(graph, num_parts, weights, seed, objective)
    part = spread_idle(part, (graph.degrees() == 0) & (weights.sum(axis=1) == 0), num_parts)
    part = rebalance(graph, part, weights, num_parts)
    return order_parts(graph, part, num_parts, seed) if objective == "volume" else part


def partition_graph(graph: PairGraph, num_parts: int, weights: np.ndarray, seed: int, objective: str) -> np.ndarray:
    """METIS where there are enough nodes; else nodes in the order of a coarser partition are dealt out evenly."""
    if graph.num_nodes >= NODES_PER_PART * num_parts:
        return metis_partition(graph, num_parts, weights, seed=seed, objective=objective)
    coarse = metis_partition(graph, max(1, graph.num_nodes // NODES_PER_PART), weights, seed=seed)
    part = np.empty(graph.num_nodes, np.int32)
    part[np.argsort(coarse, kind="stable")] = np.arange(graph.num_nodes) * num_parts // max(1, graph.num_nodes)
    return part


def spread_idle(part: np.ndarray, idle: np.ndarray, num_parts: int) -> np.ndarray:
    """Deal nodes that weigh nothing (mask [N]) to the parts with the fewest nodes; METIS may pile them up in one."""
    counts = np.bincount(part[~idle], minlength=num_parts)
    waiting = int(idle.sum())
    low, high = 0, int(counts.max(initial=0)) + waiting
    while low < high:  # the lowest level to which all parts can be filled up
        middle = (low + high) // 2
        low, high = (middle + 1, high) if np.maximum(middle - counts, 0).sum() < waiting else (low, middle)
    room = np.maximum(low - counts, 0)
    part = part.copy()
    part[idle] = np.repeat(np.arange(num_parts), room)[:waiting]
    return part


METHODS = {"metis": metis_parts, "random": random_parts}
