"""Which part a node belongs to. A method is a function (source, options, workplace) -> part [N] int32.

N nodes of all types numbered together, P parts.
"""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass, field

import numpy as np

from data_tools.partition.layout import order_parts
from data_tools.partition.methods.given_parts import file_parts, kaminpar_parts, user_parts
from data_tools.partition.methods.metis import metis_partition
from data_tools.partition.methods.rebalance import rebalance
from data_tools.partition.methods.streaming import order_streamed, stream
from data_tools.partition.options import DEFAULT_PASSES, GIVEN, STREAMED, Options
from data_tools.partition.pair_graph import PairGraph, build_pair_graph
from data_tools.partition.pair_spool import SpooledGraph, build_spooled_graph
from data_tools.partition.source import Source
from data_tools.partition.weights import node_weights

NODES_PER_PART = 4  # METIS needs some room: with fewer nodes it leaves parts empty


@dataclass(slots=True)
class Workplace:
    """What a method may use besides a few numbers a node: a folder for scratch files and bytes of memory; the file with
    the assignment, if one is given."""

    folder: pathlib.Path
    memory: int
    assignment: str | os.PathLike | None = None
    _degrees: np.ndarray | None = field(default=None, init=False)

    def weights(
        self, source: Source, balance: tuple[str, ...], graph: PairGraph | SpooledGraph | None = None
    ) -> dict[str, np.ndarray]:
        """`node_weights`; neighbours are counted once, by ``graph`` where a method has one, else on disk."""
        if "degree" in balance and self._degrees is None:
            self._degrees = (graph or build_spooled_graph(source, self.folder, self.memory)).degrees()
        return node_weights(source, balance, self._degrees)


def splitmix64(values: np.ndarray) -> np.ndarray:
    """The splitmix64 finaliser (Steele, Lea and Flood, 2014) of uint64 values [n]."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def random_parts(source: Source, options: Options, place: Workplace) -> np.ndarray:
    """Part per node from a keyed hash of (seed, type, row): a node's part depends on nothing else."""
    parts = [np.empty(0, np.int32)]
    for type_id, node_type in enumerate(source.types):
        parts.append(random_rows(type_id, np.arange(node_type.num_nodes), options.parts, options.seed))
    return np.concatenate(parts)


def random_rows(type_id: int, rows: np.ndarray, num_parts: int, seed: int) -> np.ndarray:
    """Part [n] int32 of some rows of a node type, by `random_parts`."""
    key = splitmix64(splitmix64(np.array([seed], np.uint64)) + np.uint64(type_id))
    hashed = splitmix64(key ^ splitmix64(rows.astype(np.uint64)))
    return ((hashed >> np.uint64(32)) * np.uint64(num_parts) >> np.uint64(32)).astype(np.int32)


def metis_parts(source: Source, options: Options, place: Workplace) -> np.ndarray:
    """Part per node by METIS on the pairs of nodes with events between them, then evened out."""
    graph = build_pair_graph(source)
    weights = weight_table(source, options, place, graph)
    part = partition_graph(graph, options.parts, weights, options.seed, options.objective)
    part = spread_idle(part, idle_nodes(graph, weights), options.parts)
    part = rebalance(graph, part, weights, options.parts, near=options.objective == "cut")
    return order_parts(graph, part, options.parts, options.seed) if options.objective == "volume" else part


def streamed_parts(source: Source, options: Options, place: Workplace) -> np.ndarray:
    """Part per node by a streaming rule, with the pairs of nodes on disk."""
    graph = build_spooled_graph(source, place.folder, place.memory)
    weights = weight_table(source, options, place, graph)
    passes = DEFAULT_PASSES if options.passes is None else options.passes
    part = stream(graph, weights, options.parts, options.method, passes, place.memory)
    part = spread_idle(part, idle_nodes(graph, weights), options.parts)
    return order_streamed(graph, part, options.parts, options.seed, place.memory)


def weight_table(
    source: Source, options: Options, place: Workplace, graph: PairGraph | SpooledGraph | None = None
) -> np.ndarray:
    """Weights [N, C] int64 of the constraints asked for; of nodes alone where there are none."""
    columns = place.weights(source, options.balance or ("nodes",), graph)
    return np.stack(list(columns.values()), axis=1)


def idle_nodes(graph: PairGraph | SpooledGraph, weights: np.ndarray) -> np.ndarray:
    """Nodes [N] bool without a neighbour that weigh nothing [N, C]."""
    return (graph.degrees() == 0) & (weights.sum(axis=1) == 0)


def kaminpar(source: Source, options: Options, place: Workplace) -> np.ndarray:
    """Part per node by KaMinPar, which knows one constraint, then evened out greedily."""
    graph = build_pair_graph(source)
    weights = weight_table(source, options, place, graph)
    part = kaminpar_parts(graph, weights[:, 0], options.parts, options.seed, place.folder)
    part = spread_idle(part, idle_nodes(graph, weights), options.parts)
    part = rebalance(graph, part, weights, options.parts)
    return order_parts(graph, part, options.parts, options.seed)


def given(source: Source, options: Options, place: Workplace) -> np.ndarray:
    """Part per node as a file says."""
    assert place.assignment is not None
    return file_parts(source, place.assignment, options.parts)


def users_own(source: Source, options: Options, place: Workplace) -> np.ndarray:
    """Part per node by a class or function of the user's, as it is."""
    graph = build_pair_graph(source)
    weights = place.weights(source, options.balance or ("nodes",), graph)
    return user_parts(options.method, graph, weights, options.parts, options.seed)


def assign(source: Source, options: Options, place: Workplace) -> np.ndarray:
    """Part per node by the method of the options."""
    return METHODS.get(options.method, users_own)(source, options, place)


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
    waiting = int(idle.sum())
    room = room_for(np.bincount(part[~idle], minlength=num_parts), waiting)
    part = part.copy()
    part[idle] = np.repeat(np.arange(num_parts), room)[:waiting]
    return part


def room_for(counts: np.ndarray, waiting: int) -> np.ndarray:
    """How many of so many waiting nodes parts [P] take that have ``counts`` [P] nodes; at least as many in all."""
    low, high = 0, int(counts.max(initial=0)) + waiting
    while low < high:  # the lowest level to which all parts can be filled up
        middle = (low + high) // 2
        low, high = (middle + 1, high) if np.maximum(middle - counts, 0).sum() < waiting else (low, middle)
    return np.maximum(low - counts, 0)


METHODS = {
    "metis": metis_parts,
    "random": random_parts,
    **dict.fromkeys(STREAMED, streamed_parts),
    "kaminpar": kaminpar,
    GIVEN: given,
}
