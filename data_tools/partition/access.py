"""How likely sampling reaches a node: the recursion of SALIENT++ (Kaler et al., 2023, "vertex-wise inclusion
probability"), for seeds of some of the parts.

N nodes of all types numbered together, K sets of seeds, B parts at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from data_tools.graph.source import EdgeType, Outline
from data_tools.partition.weights import has_split, in_split
from hpcgnn.graph.splits import SPLITS

TABLE_BYTES = 256 << 20  # of probabilities in memory together; more parts take more passes over the edges


def learned_relation(source: Outline) -> EdgeType | None:
    """Find the relation whose edges are seeds: where no node has a split, the first relation that has one."""
    with_split = [relation for relation in source.relations if "split" in relation.columns]
    return with_split[0] if with_split and not has_split(source) else None


def training_slabs(source: Outline, relation: EdgeType) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the edges of a relation (nodes of src, of dst) in slabs; where edges are learned, without the held-out
    edges."""
    held_out = "split" in relation.columns and learned_relation(source) is not None
    for _, src, dst, *split in source.ends(relation, names=("split",) if held_out else ()):
        trains = split[0] == SPLITS.index("train") if held_out else slice(None)
        yield src[trains], dst[trains]


def seed_nodes(source: Outline) -> np.ndarray:
    """Find the nodes [N] bool whose parts handle seeds: training nodes; where edges are learned, destinations of
    training edges; all nodes where there is no split."""
    relation = learned_relation(source)
    if relation is None:
        return in_split(source, "train") if has_split(source) else np.ones(source.num_nodes, bool)
    seeds = np.zeros(source.num_nodes, bool)
    for _, dst in training_slabs(source, relation):
        seeds[dst] = True
    return seeds


def seed_probability(source: Outline, part: np.ndarray, parts: range, batch_size: int) -> np.ndarray:
    """Compute the probability [K, N] float64 that a node is, or is an end of, a seed of a global batch in each of some
    parts. A seed node is in its part [N], a seed edge in the part of its destination."""
    relation = learned_relation(source)
    if relation is None:
        seeds = seed_nodes(source)
        chosen = min(1.0, batch_size / max(1, int(seeds.sum())))
        return np.stack([np.where((part == index) & seeds, chosen, 0.0) for index in parts])
    counts, total = np.zeros((len(parts), source.num_nodes)), 0
    for src, dst in training_slabs(source, relation):
        total += len(src)
        for index, row in zip(parts, counts, strict=True):
            here = part[dst] == index
            np.add.at(row, src[here], 1)
            np.add.at(row, dst[here], 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # that a batch misses all of so many edges
        missed = counts * np.log1p(-min(1.0, batch_size / max(1, total)))
    return np.where(counts > 0, -np.expm1(missed), 0.0)


def access_probability(source: Outline, start: np.ndarray, fanouts: tuple[int, ...]) -> np.ndarray:
    """Compute the probability [K, N] float64 that sampling reaches a node, from probabilities [K, N] of being a seed.

    A hop takes min(fanout, degree) in-edges of every node reached so far, in every relation. A node stays reached:
    p'(u) = 1 - (1 - p(u)) prod over out-neighbors v (1 - p(v) min(1, fanout / degree(v))).
    """
    reached = start
    for fanout in fanouts:
        with np.errstate(divide="ignore"):  # a node that is reached for sure has log 0
            log_missed = np.log1p(-reached)
            for relation in source.relations:
                add_relation(source, relation, reached, fanout, log_missed)
        reached = -np.expm1(log_missed)
    return reached


def add_relation(source: Outline, relation: EdgeType, reached: np.ndarray, fanout: int, log_missed: np.ndarray) -> None:
    """Add the contribution of the in-edges of one relation to log_missed [K, N], in place."""
    base = relation.dst_type.base
    degree = np.zeros(relation.dst_type.num_nodes, np.int64)
    for _, dst in training_slabs(source, relation):
        np.add.at(degree, dst - base, 1)
    for src, dst in training_slabs(source, relation):
        taken = np.ones(len(dst)) if fanout < 0 else np.minimum(1.0, fanout / degree[dst - base])
        for probability, missed in zip(reached, log_missed, strict=True):
            chosen = probability[dst]
            active = np.flatnonzero(chosen)
            np.add.at(missed, src[active], np.log1p(-chosen[active] * taken[active]))


def access_by_part(
    source: Outline, part: np.ndarray, parts: range, fanouts: tuple[int, ...], batch_size: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (part, probability [N] float32 that a global batch reaches a node from that part's seeds) for each of the
    parts."""
    at_once = max(1, TABLE_BYTES // max(1, 16 * source.num_nodes))
    for first in range(parts.start, parts.stop, at_once):
        block = range(first, min(first + at_once, parts.stop))
        start = seed_probability(source, part, block, batch_size)
        yield from zip(block, access_probability(source, start, fanouts).astype(np.float32), strict=True)
