"""Draws the neighbours of a frontier at their owners: one request and one reply a hop for all relations together.

Edges that a step must not see are left out of the lists. N frontier nodes of all types, D of one type, E sampled edges,
R ranks; T nodes with lists of in-edges, m edges of a relation, x of them seeds or reverses of seeds.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.graph.directory import permute_back
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.native import Random, Stream


@dataclass(frozen=True, slots=True)
class InLists:
    """The lists of in-edges that a relation's neighbours are drawn from: indptr [T + 1] int64, identity [T] flat row
    ids of the nodes; weight [m] uint32 of each edge and source_identity [m], flat row ids of the sources, or None."""

    indptr: np.ndarray
    identity: np.ndarray
    weight: np.ndarray | None
    source_identity: np.ndarray | None


class Exclusion:
    """The edges that a step of training leaves out: its seeds, those of all ranks, and their reverses.

    The epoch's permutation, run backwards, gives the places in the pool of a step's seeds; every rank looks for these
    among its own in-edges, so nothing is sent.
    """

    def __init__(
        self, edges: dict[int, tuple[np.ndarray, np.ndarray]], total: int, batch_size: int,
        stream: Stream = Stream.NEIGHBOR,
    ):  # fmt: skip
        """edges: by relation, positions [x] among this rank's in-edges and the place [x] in the pool, of ``total``
        seeds, of the seed they go with; stream: of the draws that leave them out."""
        self.edges: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for relation, (position, place) in edges.items():
            order = np.lexsort((position, place))
            self.edges[relation] = position[order], place[order]
        self.total, self._batch_size, self._stream = total, batch_size, stream
        self._shuffle: Random | None = None
        self._seeds: tuple[int, np.ndarray] | None = None

    def among(self, edges: dict[int, tuple[np.ndarray, np.ndarray]]) -> Exclusion:
        """Return the exclusion of the same seeds from other lists; edges: as in ``__init__``, sorted by place, then
        position."""
        other = copy.copy(self)
        other.edges = edges
        return other

    def start_epoch(self, shuffle: Random | None) -> None:
        """Set the key of the epoch's order of seeds; None: they are not shuffled."""
        self._shuffle, self._seeds = shuffle, None

    def at(self, relation: int, random: Random) -> np.ndarray:
        """Find the positions, increasing, that a step leaves out of the relation's in-edges at this rank. random: the
        key of the step's draws; other streams than this exclusion's leave nothing out."""
        if random.stream != self._stream or relation not in self.edges:
            return np.empty(0, np.int64)
        step, seeds = random.step, self._seeds  # read once: other threads, which plan other steps, replace it
        if seeds is None or seeds[0] != step:
            start = step * self._batch_size
            places = np.arange(start, min(start + self._batch_size, self.total))
            if self._shuffle is not None:
                places = np.sort(permute_back(places, self.total, self._shuffle))
            self._seeds = seeds = step, places
        position, place = self.edges[relation]
        first, last = (np.searchsorted(place, seeds[1], side=side) for side in ("left", "right"))
        count = last - first
        index = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())
        return np.unique(position[index])


def without(lists: InLists, nodes: np.ndarray, lost: np.ndarray) -> tuple[InLists, np.ndarray]:
    """Make the lists of nodes [T] without the edges at positions ``lost``; returns them, and the position of each of
    their edges in the lists they are made from."""
    degree = np.diff(lists.indptr)[nodes]
    begin = np.cumsum(degree) - degree
    position = np.repeat(lists.indptr[nodes] - begin, degree) + np.arange(degree.sum())
    stays = ~np.isin(position, lost)
    indptr = np.concatenate(([0], np.cumsum(stays)))[np.append(begin, len(stays))]
    position = position[stays]
    columns = [None if column is None else column[position] for column in (lists.weight, lists.source_identity)]
    return InLists(indptr, lists.identity[nodes], *columns), position


def splice(touched: np.ndarray, untouched_sample, touched_sample) -> tuple[np.ndarray, np.ndarray]:
    """Join two samples, (offsets, values) of the nodes where touched [D] bool is set and of the others, into one."""
    counts = np.empty(len(touched), np.int64)
    counts[touched], counts[~touched] = np.diff(touched_sample[0]), np.diff(untouched_sample[0])
    values, is_touched = np.empty(counts.sum(), np.int64), np.repeat(touched, counts)
    values[is_touched], values[~is_touched] = touched_sample[1], untouched_sample[1]
    return np.concatenate(([0], np.cumsum(counts))), values


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled edges of a relation: indptr [D + 1] int64 over the frontier's nodes of the destination type, source
    [E] global ids, edge [E] positions among the relation's edges of all ranks, rank after rank, or None where they were
    not asked for."""

    indptr: np.ndarray
    source: np.ndarray
    edge: np.ndarray | None


class NeighborSampler:
    """Samples in-neighbours at the owners of their destinations. Collective to create and to ask, over ``channel``.

    ``sample`` may be overridden: it is the whole of a sampling method. alone: this rank has the whole of a graph of one
    type and one relation, so that a batch is one native call, ``layers``.
    """

    def __init__(
        self, partition: GraphPartition, mode: str, channel: Channel, threads: int = 1, with_edges: bool = False,
        excluded: Exclusion | None = None, lists: list[InLists] | None = None,
    ):  # fmt: skip
        """threads: of a draw; with_edges: positions of edges are asked for; lists: by relation, where they are made
        already."""
        self.partition, self.threads, self._excluded = partition, threads, excluded
        self.mode = "uniform" if mode == "weighted" else mode
        self._channel, self._with_edges = channel, with_edges
        self._first: Any = edges_below(partition, channel)[channel.rank] if with_edges else None
        self.lists = make_lists(partition, mode, channel) if lists is None else lists
        plain = mode != "labor" and excluded is None and type(self) is NeighborSampler
        self.alone = plain and channel.size == len(partition.types) == len(partition.relations) == 1

    def over(self, channel: Channel) -> NeighborSampler:
        """Return a twin that asks over another channel, where there are other ranks to ask; the lists are shared."""
        twin = copy.copy(self)
        if self._channel.size > 1:
            twin._channel = channel
        return twin

    @property
    def needs_host(self) -> str:
        """Reason why only the host can draw; empty where a device can, too."""
        if self._channel.size > 1:
            return f"{self._channel.size} ranks hold the graph, a device can plan for one"
        if self._excluded is not None:
            return "a batch's own edges are left out"
        if self._with_edges:
            return "blocks tell of their edges"
        return "" if type(self) is NeighborSampler else "the method of sampling is one of your own"

    def layers(self, seeds: np.ndarray, fanouts: list[int], random: Random, relabel: native.Relabel):
        """Sample all hops of a batch where ``alone``: (offsets, source positions, edges or None) a hop, the same as
        ``ask`` samples hop by hop."""
        lists = self.lists[0]
        return native.sample_layers(
            lists.indptr, self.partition.edges[0].src, seeds, lists.identity, fanouts, random, relabel, mode=self.mode,
            weight=lists.weight, with_positions=self._with_edges, threads=self.threads,
        )  # fmt: skip

    def sample(self, relation: int, nodes: np.ndarray, fanout: int, random: Random) -> tuple[np.ndarray, np.ndarray]:
        """Sample for local ``nodes`` [D] of the relation's destination type: offsets [D + 1], and positions [E] among
        the relation's edges at this rank. What is drawn must depend on the random key and the nodes' flat row ids
        alone."""
        lists = self.lists[relation]
        lost = None if self._excluded is None else self._excluded.at(relation, random)
        if lost is None or len(lost) == 0:
            return self._draw(lists, nodes, fanout, random)
        touched = np.isin(nodes, np.searchsorted(lists.indptr, lost, side="right") - 1)
        shorter, position = without(lists, nodes[touched], lost)
        offsets, positions = self._draw(shorter, np.arange(len(shorter.identity)), fanout, random)
        return splice(touched, self._draw(lists, nodes[~touched], fanout, random), (offsets, position[positions]))

    def _draw(self, lists: InLists, nodes: np.ndarray, fanout: int, random: Random) -> tuple[np.ndarray, np.ndarray]:
        return native.sample_neighbors(
            lists.indptr, nodes, lists.identity, fanout, random, mode=self.mode, weight=lists.weight,
            source_identity=lists.source_identity, threads=self.threads,
        )  # fmt: skip

    def ask(self, frontier: list[np.ndarray], fanouts: list[int], random: Random) -> list[Sampled]:
        """Collective. Sample every relation for the frontier's nodes, global ids [D] by type; fanouts: by relation."""
        if self._channel.size == 1:
            samples = []
            for relation, fanout in enumerate(fanouts):
                target = self.partition.relations[relation].dst_type
                nodes = frontier[target] - self.partition.type_start[target]  # on one rank local rows are global ids
                offsets, positions = self._sample(relation, nodes, fanout, random)
                edge = positions + self._first[relation] if self._with_edges else None
                samples.append(Sampled(offsets, self.partition.edges[relation].src[positions], edge))
            return samples
        book, types = self.partition.book, np.repeat(np.arange(len(frontier)), [len(ids) for ids in frontier])
        order, local, want = native.locate_by_owner(np.concatenate(frontier), book.blocks, book.size)
        serve = self._channel.counts(want)
        request = self._channel.array(local.astype(np.int32), want, serve).astype(np.int64)
        reply, sizes = self._serve(request, serve, fanouts, random)
        receive = self._channel.counts(sizes)
        received = self._channel.array(reply, sizes, receive)
        return self._unpack(received, receive, types[order], order, frontier, want)

    def _sample(self, relation: int, nodes: np.ndarray, fanout: int, random: Random) -> tuple[np.ndarray, np.ndarray]:
        if fanout == 0:
            return np.zeros(len(nodes) + 1, np.int64), np.empty(0, np.int64)
        key = Random(random.seed, random.stream, random.step, random.epoch, random.hop, relation)
        return self.sample(relation, nodes, fanout, key)

    def _serve(self, request: np.ndarray, serve: np.ndarray, fanouts: list[int], random: Random):
        """Sample for local rows [M], grouped by requester. Returns one int64 array, requester by requester, with the
        counts of all relations, then relation by relation the global ids of the sources and, where asked for, the
        positions of the edges; and the lengths [R] of the requesters' pieces."""
        start, bounds = self.partition.type_start, np.concatenate(([0], np.cumsum(serve)))
        types = np.searchsorted(start, request, side="right") - 1
        of_type = [np.flatnonzero(types == t) for t in range(len(start) - 1)]
        counts: list[list[np.ndarray]] = [[] for _ in serve]
        values: list[list[np.ndarray]] = [[] for _ in serve]
        for relation, fanout in enumerate(fanouts):
            target = self.partition.relations[relation].dst_type
            offsets, positions = self._sample(relation, request[of_type[target]] - start[target], fanout, random)
            degree = np.diff(offsets)
            columns = [self.partition.edges[relation].src[positions]]
            if self._with_edges:
                columns.append(positions + self._first[relation])
            cut = np.searchsorted(of_type[target], bounds)
            for rank in range(len(serve)):
                counts[rank].append(degree[cut[rank] : cut[rank + 1]])
                values[rank] += [column[offsets[cut[rank]] : offsets[cut[rank + 1]]] for column in columns]
        pieces = [np.concatenate([*c, *v]) if c else np.empty(0, np.int64) for c, v in zip(counts, values, strict=True)]
        return np.concatenate(pieces), np.array([len(piece) for piece in pieces], np.int64)

    def _unpack(self, received: np.ndarray, receive, types: np.ndarray, order: np.ndarray, frontier, want):
        """Read at the requester what ``_serve`` made, for all owners; types, order [N]: of its requests as they were
        sent."""
        relations = self.partition.relations
        first = np.concatenate(([0], np.cumsum([len(ids) for ids in frontier])))
        counts: list[list[np.ndarray]] = [[] for _ in relations]
        columns: list[list[list[np.ndarray]]] = [[[] for _ in range(1 + self._with_edges)] for _ in relations]
        by_owner = np.split(types, np.cumsum(want)[:-1])
        for message, requested in zip(np.split(received, np.cumsum(receive)[:-1]), by_owner, strict=True):
            numbers, at = np.bincount(requested, minlength=len(frontier)), 0
            for kind, degrees in zip(relations, counts, strict=True):
                degrees.append(message[at : at + numbers[kind.dst_type]])
                at += numbers[kind.dst_type]
            for degrees, pieces in zip(counts, columns, strict=True):
                total = int(degrees[-1].sum())
                for piece in pieces:
                    piece.append(message[at : at + total])
                    at += total
        place = [order[types == t] - first[t] for t in range(len(frontier))]
        return [
            _in_order(np.concatenate(c), [np.concatenate(p) for p in pieces], place[kind.dst_type])
            for kind, c, pieces in zip(relations, counts, columns, strict=True)
        ]


def edges_below(partition: GraphPartition, channel: Channel) -> np.ndarray:
    """Collective. Count the edges of the ranks before each rank, [R + 1, relations]; the last row counts all."""
    counts = torch.tensor([[len(edges.src) for edges in partition.edges]], dtype=torch.int64)
    return np.cumsum(np.vstack([np.zeros_like(counts), channel.everyone(counts).numpy()]), axis=0)


def make_lists(partition: GraphPartition, mode: str, channel: Channel) -> list[InLists]:
    """Collective. Make the lists that a mode of sampling draws from, by relation; for "weighted" after
    ``check_weights``."""
    weights = integer_weights(partition, channel) if mode == "weighted" else [None] * len(partition.edges)
    lists = []
    for relation, edges, weight in zip(partition.relations, partition.edges, weights, strict=True):
        source_identity = None
        if mode == "labor":
            unique, inverse = np.unique(edges.src, return_inverse=True)
            route = Route.plan(partition.book, unique, channel)
            source_identity = route.pull(torch.from_numpy(partition.flat_row))[0].numpy()[inverse]
        identity = partition.flat_row[partition.of_type(relation.dst_type)]
        lists.append(InLists(edges.indptr, identity, weight, source_identity))
    return lists


def check_weights(partition: GraphPartition) -> None:
    """Check that every relation has a column ``weight``. Raises ValueError where one is missing, negative or not
    finite."""
    for relation, edges in zip(partition.relations, partition.edges, strict=True):
        if "weight" not in edges.columns:
            raise ValueError(f"sampling.mode weighted: relation {relation.name} has no column weight")
        weight = edges.columns["weight"]
        if not np.all((weight >= 0) & np.isfinite(weight)):
            raise ValueError(f"sampling.mode weighted: a weight of {relation.name} is negative or not finite")


def integer_weights(partition: GraphPartition, channel: Channel) -> list[np.ndarray]:
    """Collective. Convert each relation's column ``weight``, which ``check_weights`` passed, to uint32 [m]: integers
    stay as they are, others become 2^31-ths of the largest one of all ranks; what is above 0 becomes at least 1."""
    integers = []
    for edges in partition.edges:
        weight = edges.columns["weight"].astype(np.float64)
        whole = np.array([[float(np.all(weight == np.floor(weight))), weight.max(initial=0.0)]])
        everyone = channel.everyone(torch.from_numpy(whole)).numpy()
        largest = everyone[:, 1].max()
        if everyone[:, 0].all() and largest < 1 << 32:
            integers.append(weight.astype(np.uint32))
        else:
            integers.append(np.ceil(weight / largest * (1 << 31)).astype(np.uint32))
    return integers


def _in_order(counts: np.ndarray, columns: list[np.ndarray], place: np.ndarray) -> Sampled:
    """Move ragged rows with ``counts`` [D] to their places [D] in the frontier."""
    start, moved = np.cumsum(counts) - counts, np.empty(len(counts), np.int64)
    moved[place] = np.arange(len(counts))
    indptr = np.concatenate(([0], np.cumsum(counts[moved])))
    index = np.repeat(start[moved] - indptr[:-1], np.diff(indptr)) + np.arange(indptr[-1])
    columns = [column[index] for column in columns]
    return Sampled(indptr.astype(np.int64), columns[0], columns[1] if len(columns) > 1 else None)
