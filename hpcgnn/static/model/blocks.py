"""Blocks, which models of static graphs compute on, sampled or whole: tensors only.

Positions count per node type. A layer works on *stacked* rows: the rows of all node types, one type after the other. S
source rows, D destination rows, E edges, P pairs (relation, destination) with at least one edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.nn import functional

from hpcgnn.native import EdgeLists, gather_rows, unique_relabel
from hpcgnn.native.dispatch import on_host, upload
from hpcgnn.nn.aggregation import with_loops

EDGE_FEATURE = "feat"  # column of the edges


@dataclass(frozen=True, slots=True)
class Adjacency:
    """One relation of one block.

    indptr [D + 1] int64: over the block's destination nodes of dst_type; source [E] int64: positions among its source
    nodes of src_type. edge [E] int64: row ids of the edges in the graph file; columns [E, ...]: of the edges, by name;
    both are None unless requested. weight [E]: factors of the messages, or None.
    """

    relation: int
    src_type: int
    dst_type: int
    indptr: torch.Tensor
    source: torch.Tensor
    edge: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    columns: dict[str, torch.Tensor] | None = None


@dataclass(frozen=True)
class RelationEdges(Sequence[Adjacency]):
    """The adjacencies of several relations, as their P pairs in order of relation, then destination. So a block costs
    what its edges do; an adjacency, whose indptr has all destinations, is made when the first of them is read.

    kinds: number, source and destination type of each relation; begin: first pair of each, and P; num_dst: destination
    nodes by type. destination [P] int64: among the nodes of the relation's type; indptr [P + 1], source [E], edge [E]
    or None: as in an adjacency.
    """

    kinds: tuple[tuple[int, int, int], ...]
    begin: tuple[int, ...]
    num_dst: tuple[int, ...]
    destination: torch.Tensor
    indptr: torch.Tensor
    source: torch.Tensor
    edge: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: Any) -> Any:
        return self._adjacencies[index]

    def on(self, device: torch.device) -> RelationEdges:
        """Return the edges with their tensors on a device."""
        names = ("destination", "indptr", "source", "edge")
        tensors = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        uploaded: dict[str, Any] = {name: upload(tensor, device) for name, tensor in tensors.items()}
        return replace(self, **uploaded)

    @cached_property
    def bounds(self) -> list[int]:
        """First edge of each relation, and E."""
        return self.indptr[torch.tensor(self.begin, device=self.indptr.device)].tolist()

    @cached_property
    def _adjacencies(self) -> tuple[Adjacency, ...]:
        return tuple(self._adjacency(number) for number in range(len(self)))

    def _adjacency(self, number: int) -> Adjacency:
        pairs, edges = (slice(*of[number : number + 2]) for of in (self.begin, self.bounds))
        kind = self.kinds[number]
        degree = self.indptr.new_zeros(self.num_dst[kind[2]] + 1)
        degree[self.destination[pairs] + 1] = self.indptr[1:][pairs] - self.indptr[:-1][pairs]
        edge = None if self.edge is None else self.edge[edges]
        return Adjacency(*kind, degree.cumsum(0), self.source[edges], edge)

    def offsets(self, counts: Sequence[int], end: int) -> torch.Tensor:
        """Return, for each pair, the first stacked row [P] of the type of its relation's end, 1: the source, 2: the
        destination; counts: nodes by type."""
        first = list(accumulate(counts, initial=0))
        rows = torch.tensor([first[kind[end]] for kind in self.kinds], dtype=torch.int64)
        sizes = torch.tensor(self.begin[1:]) - torch.tensor(self.begin[:-1])
        return torch.repeat_interleave(rows, sizes).to(self.destination.device)


@dataclass(frozen=True)
class Block:
    """One layer. num_src, num_dst by node type: the destination nodes are the first source nodes of their type; device:
    that of the rows, for blocks without any relation."""

    relations: Sequence[Adjacency]
    num_src: tuple[int, ...]
    num_dst: tuple[int, ...]
    device: torch.device | str = "cpu"

    @cached_property
    def lists(self) -> EdgeLists:
        """Edges of a block of one node type and at most one relation."""
        if not self.relations:
            none = torch.zeros(self.num_dst[0] + 1, dtype=torch.int64, device=self.device)
            return EdgeLists(none, none[:0], self.num_src[0])
        (only,) = self.relations
        return EdgeLists(only.indptr, only.source, self.num_src[0])

    @cached_property
    def looped(self) -> EdgeLists:
        """The ``lists``, with a self-loop at every destination."""
        return with_loops(self.lists)

    @property
    def weight(self) -> torch.Tensor | None:
        """Weights [E] of the edges of ``lists``, or None."""
        return self.relations[0].weight if self.relations else None

    @property
    def feature(self) -> torch.Tensor | None:
        """Features [E, F] of the edges of ``lists``, or None."""
        return feature_of(self.relations[0]) if self.relations else None

    @cached_property
    def pairs(self) -> RelationPairs:
        """Edges by relation, then destination."""
        return _make_pairs(self)

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        """Take the destinations' rows [D, ...] out of stacked source rows [S, ...]."""
        if len(self.num_src) == 1:
            return rows[: self.num_dst[0]]
        return torch.cat(
            [of_type[:count] for of_type, count in zip(rows.split(self.num_src), self.num_dst, strict=True)]
        )


@dataclass(frozen=True)
class RelationPairs:
    """The P pairs (relation, destination) that have edges, in order of relation, then destination.

    lists: sources of every pair; destination [P] int64 stacked row; merge: pairs of every destination; relations and
    counts: how many pairs each relation has; weight [E] or None. feature [E, F] or None: with zeros where a relation
    has no features, or narrower ones; num_edges: by relation.
    """

    lists: EdgeLists
    destination: torch.Tensor
    merge: EdgeLists
    relations: tuple[int, ...]
    counts: tuple[int, ...]
    weight: torch.Tensor | None
    feature: torch.Tensor | None
    num_edges: tuple[int, ...]

    def begin(self, num_relations: int) -> torch.Tensor:
        """Return the first pair of each relation and their number [num_relations + 1] int64, on the host."""
        return _begin(self.relations, self.counts, num_relations)

    def begin_edges(self, num_relations: int) -> torch.Tensor:
        """Return the first edge of each relation and their number [num_relations + 1] int64, on the host."""
        return _begin(self.relations, self.num_edges, num_relations)

    def split(self) -> list[RelationPairs]:
        """Split the pairs by relation."""
        pieces, first = [], 0
        for relation, count in zip(self.relations, self.counts, strict=True):
            indptr = self.lists.indptr[first : first + count + 1]
            begin, end = int(indptr[0]), int(indptr[-1])
            lists = EdgeLists(indptr - begin, self.lists.source[begin:end], self.lists.num_sources)
            destination = self.destination[first : first + count]
            weight, feature = (None if of is None else of[begin:end] for of in (self.weight, self.feature))
            merge = _merge(destination, len(self.merge))
            pieces.append(
                RelationPairs(lists, destination, merge, (relation,), (count,), weight, feature, (end - begin,))
            )
            first += count
        return pieces

    @cached_property
    def targets(self) -> EdgeLists:
        """The destination of every pair as a list of one, for a gather that is differentiable."""
        return singles(self.destination, len(self.merge))

    @cached_property
    def sources(self) -> SourcePairs:
        """The different pairs (relation, source)."""
        return _make_source_pairs(self)


@dataclass(frozen=True)
class SourcePairs:
    """Q different pairs (relation, source), in order of relation. rows: lists of one stacked source each; lists: of the
    pairs (relation, destination), over the pairs (relation, source); counts: by relation."""

    rows: EdgeLists
    lists: EdgeLists
    relations: tuple[int, ...]
    counts: tuple[int, ...]

    def begin(self, num_relations: int) -> torch.Tensor:
        """Return the first pair of each relation and their number [num_relations + 1] int64, on the host."""
        return _begin(self.relations, self.counts, num_relations)


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of a model, in addition to the input rows; blocks[0] is the innermost layer, furthest from the seeds.

    identity: by type, flat row ids [num_src of blocks[0]] int64, the keys of dropout; degree: by type, in-degrees in
    the whole graph over all relations, of the same nodes. Empty where the model does not use them.
    """

    blocks: tuple[Block, ...]
    identity: tuple[torch.Tensor, ...]
    degree: tuple[torch.Tensor, ...]
    seed: int = 0
    epoch: int = 0
    step: int = 0
    training: bool = False


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """Input rows that a layer may read where they lie: table [., F] at index [S] int64. They get no gradient."""

    table: torch.Tensor
    index: torch.Tensor

    def gather(self) -> torch.Tensor:
        """Copy the rows [S, F]."""
        return gather_rows(self.table, self.index)


def edge_index(relation: Adjacency) -> torch.Tensor:
    """List the edges [2, E] of an adjacency: source, destination."""
    degree = relation.indptr[1:] - relation.indptr[:-1]
    destination = torch.repeat_interleave(torch.arange(len(degree), device=degree.device), degree)
    return torch.stack([relation.source, destination])


def feature_of(relation: Adjacency) -> torch.Tensor | None:
    """Return the features [E, F] of a relation's edges, or None: their column ``feat``, of any shape [E, ...]."""
    feature = (relation.columns or {}).get(EDGE_FEATURE)
    return None if feature is None else feature.flatten(1) if feature.dim() > 1 else feature.unsqueeze(1)


def rows_of(rows: torch.Tensor | IndexedRows) -> torch.Tensor:
    """Return the rows themselves, gathered where they are indexed."""
    return rows.gather() if isinstance(rows, IndexedRows) else rows


def stack_first(columns: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    """Stack the first counts[t] entries of each type's column."""
    if len(columns) == 1:
        return columns[0][: counts[0]]
    return torch.cat([column[:count] for column, count in zip(columns, counts, strict=True)])


def singles(index: torch.Tensor, num_rows: int) -> EdgeLists:
    """Return lists of one source each, index [n], of ``num_rows`` sources."""
    return EdgeLists(torch.arange(len(index) + 1, device=index.device), index, num_rows)


def each_edge(lists: EdgeLists) -> EdgeLists:
    """Return lists of the edges of every destination, in place of their sources."""
    count = len(lists.source)
    return EdgeLists(lists.indptr, torch.arange(count, device=lists.source.device), count)


def _begin(relations, counts, num_relations: int) -> torch.Tensor:
    sizes = [0] * num_relations
    for relation, count in zip(relations, counts, strict=True):
        sizes[relation] = count
    return torch.tensor(list(accumulate(sizes, initial=0)))


def _make_pairs(block: Block) -> RelationPairs:
    """Sort a block's edges by relation, then destination."""
    if isinstance(block.relations, RelationEdges):
        return _pairs_of(block.relations, block)
    relations = sorted(block.relations, key=lambda relation: relation.relation)
    if not relations:
        none = torch.empty(0, dtype=torch.int64, device=block.device)
        lists = EdgeLists(none.new_zeros(1), none, sum(block.num_src))
        return RelationPairs(lists, none, _merge(none, sum(block.num_dst)), (), (), None, None, ())
    first_source, first_destination = (list(accumulate(counts, initial=0)) for counts in (block.num_src, block.num_dst))
    degrees, destinations, sources, counts = [], [], [], []
    for relation in relations:
        degree = relation.indptr[1:] - relation.indptr[:-1]
        with_edges = torch.nonzero(degree).squeeze(1)
        degrees.append(degree[with_edges])
        destinations.append(with_edges + first_destination[relation.dst_type])
        sources.append(relation.source + first_source[relation.src_type])
        counts.append(len(with_edges))
    degree, destination, source = torch.cat(degrees), torch.cat(destinations), torch.cat(sources)
    indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    return RelationPairs(
        EdgeLists(indptr, source, first_source[-1]), destination, _merge(destination, first_destination[-1]),
        tuple(relation.relation for relation in relations), tuple(counts), _join_weights(relations),
        _join_features(relations), tuple(len(relation.source) for relation in relations),
    )  # fmt: skip


def _pairs_of(edges: RelationEdges, block: Block) -> RelationPairs:
    """Make the pairs of edges that are sorted by relation, then destination."""
    source, destination = edges.source, edges.destination
    if len(block.num_src) > 1:
        source = source + torch.repeat_interleave(
            edges.offsets(block.num_src, 1), edges.indptr[1:] - edges.indptr[:-1], output_size=len(source)
        )
        destination = destination + edges.offsets(block.num_dst, 2)
    numbers = tuple(number for number, _, _ in edges.kinds)
    counts, num_edges = (tuple(last - first for first, last in pairwise(of)) for of in (edges.begin, edges.bounds))
    lists, merge = EdgeLists(edges.indptr, source, sum(block.num_src)), _merge(destination, sum(block.num_dst))
    return RelationPairs(lists, destination, merge, numbers, counts, None, None, num_edges)


def _merge(destination: torch.Tensor, num_destinations: int) -> EdgeLists:
    transposed = singles(destination, num_destinations).transposed
    return EdgeLists(transposed.indptr, transposed.edge, len(destination))


def _join_weights(relations: list[Adjacency]) -> torch.Tensor | None:
    """Join the weights of all edges, 1 where a relation has none; None where no relation has any."""
    weights = [relation.weight for relation in relations if relation.weight is not None]
    if not weights:
        return None
    return torch.cat(
        [
            weights[0].new_ones(len(relation.source)) if relation.weight is None else relation.weight
            for relation in relations
        ]
    )


def _join_features(relations: list[Adjacency]) -> torch.Tensor | None:
    """Join the features of all edges, as wide as the widest; None where no relation has any."""
    features = [feature_of(relation) for relation in relations]
    given = [feature for feature in features if feature is not None]
    if not given:
        return None
    width = max(feature.shape[1] for feature in given)
    return torch.cat(
        [
            given[0].new_zeros(len(relation.source), width)
            if feature is None
            else functional.pad(feature, (0, width - feature.shape[1]))
            for relation, feature in zip(relations, features, strict=True)
        ]
    )


def _make_source_pairs(pairs: RelationPairs) -> SourcePairs:
    """Find the different pairs (relation, source)."""
    lists, device = pairs.lists, pairs.destination.device
    numbers = torch.repeat_interleave(torch.arange(len(pairs.counts)), torch.tensor(pairs.counts, dtype=torch.int64))
    relation = torch.repeat_interleave(numbers.to(device), lists.degree)
    key = relation * lists.num_sources + lists.source
    unique, inverse = unique_relabel(key.numpy() if on_host(key) else key)
    unique, inverse = torch.as_tensor(unique), torch.as_tensor(inverse).long()
    per_relation = torch.bincount(unique // max(1, lists.num_sources), minlength=len(pairs.counts))
    rows = singles(unique % max(1, lists.num_sources), lists.num_sources)
    return SourcePairs(
        rows, EdgeLists(lists.indptr, inverse, len(unique)), pairs.relations, tuple(per_relation.tolist())
    )
