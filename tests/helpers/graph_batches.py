"""Small random typed graphs and batches sampled from them, in NumPy, to test models of sampled neighbors with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.static.model.blocks import Adjacency, Batch, Block


@dataclass
class TypedGraph:
    """In-edges of every relation: counts of nodes by type, relations as (src_type, dst_type), neighbors[r][d]."""

    counts: tuple[int, ...]
    relations: tuple[tuple[int, int], ...]
    neighbors: list[list[np.ndarray]]

    def first_ids(self) -> np.ndarray:
        """First flat row id of every type."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def degree(self, node_type: int) -> np.ndarray:
        """In-degrees over all relations."""
        total = np.zeros(self.counts[node_type], np.int64)
        for (_, dst), lists in zip(self.relations, self.neighbors, strict=True):
            total += np.array([len(sources) for sources in lists], np.int64) if dst == node_type else 0
        return total


def random_graph(rng, counts, relations, mean_degree: float) -> TypedGraph:
    """Some nodes have no neighbors, some relations (those from or to an empty type) no edges."""
    neighbors = []
    for src, dst in relations:
        degree = (
            rng.poisson(mean_degree, counts[dst]) * (rng.random(counts[dst]) < 0.8)
            if counts[src]
            else [0] * counts[dst]
        )
        neighbors.append([rng.integers(0, counts[src], k) if k else np.zeros(0, np.int64) for k in degree])
    return TypedGraph(tuple(counts), tuple(relations), neighbors)


def sample_batch(graph: TypedGraph, seeds, fanouts, step: int = 0, training: bool = False, shuffle=None) -> Batch:
    """Blocks of so many first neighbors a node and relation (-1: all), the same for a node in any batch.

    seeds: ids by type; shuffle: a generator that permutes nodes that a hop adds.
    """
    frontier, blocks = [np.asarray(ids, np.int64) for ids in seeds], []
    for fanout in fanouts:
        taken = [
            [lists[d][: len(lists[d]) if fanout < 0 else fanout] for d in frontier[dst]]
            for (_, dst), lists in zip(graph.relations, graph.neighbors, strict=True)
        ]
        wider = [_extend(frontier[t], _seen(graph, taken, t), shuffle) for t in range(len(graph.counts))]
        relations = [
            _adjacency(number, src, dst, lists, wider[src], graph.counts[src])
            for number, ((src, dst), lists) in enumerate(zip(graph.relations, taken, strict=True))
        ]
        blocks.insert(0, Block(tuple(relations), tuple(map(len, wider)), tuple(map(len, frontier))))
        frontier = wider
    first = graph.first_ids()
    identity = tuple(torch.from_numpy(ids + first[t]) for t, ids in enumerate(frontier))
    degree = tuple(torch.from_numpy(graph.degree(t)[ids]) for t, ids in enumerate(frontier))
    return Batch(tuple(blocks), identity, degree, seed=5, step=step, training=training)


def _seen(graph, taken, node_type):
    lists = [list_ for (src, _), of in zip(graph.relations, taken, strict=True) if src == node_type for list_ in of]
    return np.concatenate([np.zeros(0, np.int64), *lists])


def _extend(known, seen, shuffle):
    new = np.setdiff1d(seen, known)
    return np.concatenate([known, new if shuffle is None else shuffle.permutation(new)])


def _adjacency(number, src, dst, lists, nodes, num_nodes):
    place = np.full(num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    indptr = np.concatenate([[0], np.cumsum([len(sources) for sources in lists])]).astype(np.int64)
    source = place[np.concatenate([np.zeros(0, np.int64), *lists])]
    return Adjacency(number, src, dst, torch.from_numpy(indptr), torch.from_numpy(source))


def input_rows(graph: TypedGraph, batch: Batch, tables) -> list[torch.Tensor]:
    """Rows of the batch's innermost nodes from tables by type."""
    first = graph.first_ids()
    return [table[ids - int(first[t])] for t, (table, ids) in enumerate(zip(tables, batch.identity, strict=True))]
