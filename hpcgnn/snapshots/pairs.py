"""Plans the pairs that links of snapshots are learned from: the edges of a target, and negatives drawn for them.

s edges of this rank, k negatives each, w different nodes wanted. Pairs depend on the random key, the edges and the
nodes alone: the number of ranks does not change them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.group import DistributedError
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import World
from hpcgnn.graph.book import Book
from hpcgnn.graph.directory import Directory, NodeDirectory, check_drawn
from hpcgnn.native import Random, Stream
from hpcgnn.snapshots.graph import TYPE, SnapshotEdges, SnapshotPartition
from hpcgnn.snapshots.neighborhood import reversed_edges
from hpcgnn.snapshots.recurrency import FactHistory, Recurring, SeenFacts
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.negatives import NEGATIVES, draw_negatives, list_ends


@dataclass(frozen=True, slots=True)
class Reach:
    """Brings rows of wanted nodes to this rank. route: None on a single rank, where positions are rows of the table
    itself."""

    route: Route | None

    def bring(self, table: torch.Tensor, chain: HaloChain, channel: Channel) -> torch.Tensor:
        """Collective. Return rows [w, D] of the owners' tables [n, D], with their gradients."""
        return table if self.route is None else chain.pull(self.route.over(channel), table)


def reach(
    nodes: list[np.ndarray], book: Book, channel: Channel, device: torch.device
) -> tuple[Reach, list[torch.Tensor]]:
    """Collective. Plan one exchange that brings the rows of all nodes in arrays of global ids. Returns it, and for each
    array the positions of its nodes in the rows that it brings."""
    if channel.size == 1:
        return Reach(None), [
            torch.from_numpy(book.locate(ids.ravel())[1].reshape(ids.shape)).to(device) for ids in nodes
        ]
    ids, place = native.unique_sorted(np.concatenate([ids.ravel() for ids in nodes]))
    pieces = np.split(place, np.cumsum([ids.size for ids in nodes])[:-1])
    places = [torch.from_numpy(at.reshape(ids.shape)).to(device) for at, ids in zip(pieces, nodes, strict=True)]
    return Reach(Route.plan(book, ids, channel).to(device)), places


SOURCE, DESTINATION, ORIENTATION = 1, 0, 2  # part of the random key
TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Answers:
    """Edges whose ends are ranked among all nodes. edges [S, 3]: source, destination (global ids) and type of the edges
    of all ranks; own: the slice of this rank. rows and known have two entries, with the source as query and with the
    destination. rows: the reach to the queries' rows and the position [S] of each edge's query in them. known: all
    edges of the snapshot by query, which are left out of the ranking."""

    edges: np.ndarray
    own: slice
    rows: list[tuple[Reach, torch.Tensor]]
    known: tuple[KnownAnswers, KnownAnswers]


@dataclass(frozen=True, slots=True)
class EndQueries:
    """The queries of a target: of each edge, which destinations its source has, and, behind the ones of all edges of a
    rank, which sources its destination has. counts [R]: number of queries of every rank; query, place [x]: queries of
    all ranks whose answer is a node of this rank, in order of query, and its local row; most: number of nodes of the
    rank that has most; identity [2 s]: keys of this rank's queries; epoch. recurring: the answers that queries of all
    ranks had before, None where scores do not depend on them."""

    counts: np.ndarray
    query: torch.Tensor
    place: torch.Tensor
    most: int
    identity: torch.Tensor
    epoch: int
    recurring: Recurring | None = None

    def recurring_in(self, first: int, end: int) -> tuple[slice, torch.Tensor, torch.Tensor]:
        """Find the answers that the queries from ``first`` to ``end`` had before: which entries, the places of the
        queries from ``first`` on, and local rows."""
        assert self.recurring is not None
        chosen = slice(*np.searchsorted(self.recurring.query, (first, end)).tolist())
        query, answer = self.recurring.query[chosen] - first, self.recurring.answer[chosen]
        return chosen, torch.from_numpy(query).to(self.place.device), torch.from_numpy(answer).to(self.place.device)


@dataclass(frozen=True, slots=True)
class TargetPairs:
    """Pairs to score for one target, as positions in the rows that ``reach`` brings. source, destination [s]: of edges;
    negative [k, s]: destinations of negatives; negative_source: their sources, None: the sources of the edges. relation
    [s]: types of the edges, None: they have none. number: the snapshot that predictions are made from.

    Where edges are ranked among all pairs of nodes, reach and negative are None, source [s] holds global ids and
    destination [s] local rows. answers: the edges, where their ends are ranked among all nodes. queries: where training
    scores queries with all nodes; negative is then None. seen: what is known of the edges and their negatives
    [1 + k, s] before, None where scores do not depend on it. source_id [s]: global ids of the edges' sources, where
    negatives are drawn."""

    number: int
    reach: Reach | None
    source: torch.Tensor
    destination: torch.Tensor
    negative: torch.Tensor | None
    negative_source: torch.Tensor | None = None
    relation: torch.Tensor | None = None
    answers: Answers | None = None
    queries: EndQueries | None = None
    seen: SeenFacts | None = None
    source_id: torch.Tensor | None = None


class TargetEdges:
    """Finds the edges that are learned, ``horizon`` snapshots after the input snapshot: every pair of nodes once.
    Collective to create. undirected: one of both directions is drawn for the pair and the snapshot (drawn negatives
    would give away a fixed direction, from the lower row id). new_only: leave out edges that the input snapshot already
    has; types: number of edge types, 0: edges have none."""

    def __init__(
        self, partition: SnapshotPartition, horizon: int, undirected: bool, new_only: bool, types: int, channel: Channel
    ):  # fmt: skip
        self._partition, self._horizon, self._new_only, self._types = partition, horizon, new_only, types
        self._undirected = undirected
        if undirected:  # flat row ids of all sources of edges into this rank's nodes
            self._source_ids = np.unique(partition.all_sources)
            (rows,) = Route.plan(partition.book, self._source_ids, channel).pull(torch.from_numpy(partition.flat_row))
            self._source_rows = rows.numpy()

    def at(self, number: int) -> SnapshotEdges:
        """Return the edges to predict from snapshot ``number``."""
        edges = self.all_at(number)
        place = np.sort(np.unique(self._key(edges), return_index=True)[1])  # the first of each of equal keys
        if self._undirected:
            place = place[self._is_asked(number, edges.src[place], edges.dst[place])]
        if self._new_only:
            old = self._key(self.all_at(number - self._horizon))
            place = place[~np.isin(self._key(edges)[place], old)]
        columns = {name: column[place] for name, column in edges.columns.items()}
        return SnapshotEdges(edges.src[place], edges.dst[place], edges.row[place], columns)

    def _is_asked(self, number: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Return which of the edges [e], given in both directions, are learned, bool [e]."""
        # The owner of each end sees one direction: both draw the same number, keyed by the pair, and need no message.
        source, destination = self._source_rows[np.searchsorted(self._source_ids, src)], self._partition.flat_row[dst]
        lower, higher = np.minimum(source, destination), np.maximum(source, destination)
        key = Random(0, Stream.NEGATIVE, number + self._horizon, relation=ORIENTATION)
        coin = native.random_integers(key, lower * self._partition.book.num_nodes + higher, 1, 2)[:, 0]
        return (source == destination) | ((source < destination) == (coin == 0))

    def all_at(self, number: int) -> SnapshotEdges:
        """Return all edges of the snapshot that is predicted from ``number``."""
        return self._partition.edges_at(number + self._horizon, (TYPE,) if self._types else ())

    def _key(self, edges: SnapshotEdges) -> np.ndarray:
        pair = edges.src * self._partition.num_nodes + edges.dst
        return pair * self._types + edges.columns[TYPE] if self._types else pair


class PairPlanner:
    """Plans the pairs of a target: its edges, and negatives. Collective to create and to call, over ``channel``.

    both_ends: negatives are pairs of two drawn nodes, not of an edge's source and a drawn node. strict: no negative is
    an edge of the same snapshot, or a node with itself; kind: of NEGATIVES, in training. history: queries come with
    the answers that they had before.
    """

    def __init__(
        self, partition: SnapshotPartition, targets: TargetEdges, both_ends: bool, strict: bool, seed: int,
        world: World, channel: Channel, kind: str, history: FactHistory | None = None,
    ):  # fmt: skip
        self._partition, self._targets, self._world, self._kind = partition, targets, world, kind
        self._history = history
        self._ends = (DESTINATION, SOURCE) if both_ends else (DESTINATION,)
        self._strict, self._seed, self._channel, self._device = strict, seed, channel, world.device
        self._ids = partition.global_ids
        self._nodes = NodeDirectory(world, channel, partition.flat_row, self._ids, partition.book.num_nodes)
        check_drawn("nodes that negatives are drawn from", self._nodes.size, "take snapshots of fewer nodes")
        if self._nodes.size < 2:
            message = "no negatives: negatives replace an end of an edge, and the graph has only one node"
            raise DistributedError(message, user_error=True)

    def drawn(self, split: str, epoch: int, number: int, count: int) -> TargetPairs:
        """Collective. Plan a target's edges and ``count`` negatives of each: others in every epoch of training, the
        same whenever a split is evaluated."""
        random, kind = Random(self._seed, Stream.EVAL_NEGATIVE, number), "uniform"
        if split == TRAIN:
            random, kind = Random(self._seed, Stream.NEGATIVE, number, epoch), self._kind
        edges = self._targets.at(number)
        drawn = self._drawn(number, edges, count, random, kind)
        nodes = [edges.src, self._ids[edges.dst], *(ids.T for ids in drawn)]
        to_nodes, places = reach(nodes, self._partition.book, self._channel, self._device)
        source, destination, negative, *others = places
        negative_source = others[0] if others else None
        relation = torch.from_numpy(edges.columns[TYPE].astype(np.int64)).to(self._device) if edges.columns else None
        seen = None if self._history is None else self._seen(number, edges, *(ids.T for ids in drawn))
        ids = torch.from_numpy(edges.src).to(self._device)
        return TargetPairs(
            number, to_nodes, source, destination, negative, negative_source, relation, seen=seen, source_id=ids
        )  # fmt: skip

    def _seen(
        self, number: int, edges: SnapshotEdges, drawn: np.ndarray, sources: np.ndarray | None = None
    ) -> SeenFacts:
        """Collective. Look up edges and their negatives: destinations ``drawn`` [k, s], and their sources, None: the
        edges' own."""
        assert self._history is not None
        destination = np.concatenate([self._ids[edges.dst][None], drawn])
        source = edges.src[None] if sources is None else np.concatenate([edges.src[None], sources])
        return self._history.see(source, _types_of(edges), destination, number, self._channel)

    def all_pairs(self, split: str, epoch: int, number: int, count: int) -> TargetPairs:
        """Plan a target's edges, to rank them among all pairs of nodes."""
        edges = self._targets.at(number)
        source, destination = (torch.from_numpy(ids).to(self._device) for ids in (edges.src, edges.dst))
        return TargetPairs(number, None, source, destination, None)

    def queries(self, split: str, epoch: int, number: int, count: int) -> TargetPairs:
        """Collective. Plan a target's edges, to score each of their ends with all nodes in training."""
        partition, channel, device = self._partition, self._channel, self._device
        edges = self._targets.at(number)
        nodes = [edges.src, self._ids[edges.dst]]
        to_nodes, (source, destination) = reach(nodes, partition.book, channel, device)
        types, asked = _types_of(edges), [np.concatenate(nodes[::-1])]
        if self._history is not None:
            asked += [np.concatenate(nodes), np.concatenate([self._history.kind(types, end) for end in (False, True)])]
        counts = channel.counts(np.full(channel.size, len(asked[0])))
        everyone = channel.everyone(torch.from_numpy(np.column_stack(asked)), counts)
        place, recurring = everyone[:, 0] - partition.first_id, None
        if self._history is not None:
            recurring = self._history.find(everyone[:, 1].numpy(), everyone[:, 2].numpy(), number)
        query = torch.nonzero((place >= 0) & (place < partition.num_nodes)).squeeze(1)
        most = int(np.diff(partition.book.of_type(0).starts).max(initial=1))
        identity = torch.from_numpy(np.concatenate([2 * edges.row, 2 * edges.row + 1])).to(device)
        here = query.to(device), place[query].to(device)
        queries = EndQueries(counts, *here, most, identity, epoch, recurring)
        relation = torch.from_numpy(types).to(device)
        return TargetPairs(number, to_nodes, source, destination, None, relation=relation, queries=queries)

    def ends(self, split: str, epoch: int, number: int, count: int, filtered: bool = True) -> TargetPairs:
        """Collective. Plan a target's edges, to rank each of their ends among all nodes; filtered: without the nodes
        that other edges of the snapshot join to the same end."""
        edges, every, channel = self._targets.at(number), self._targets.all_at(number), self._channel
        own = np.column_stack([edges.src, self._ids[edges.dst], _types_of(edges)])
        counts = channel.counts(np.full(channel.size, len(own)))
        everyone = channel.everyone(torch.from_numpy(own), counts).numpy()
        reached = [reach([ids], self._partition.book, channel, self._device) for ids in everyone.T[:2]]
        first = int(counts[: channel.rank].sum())
        left_out = [every, reversed_edges(every, self._partition, channel)]
        if not filtered:
            none = np.empty(0, np.int64)
            left_out = [SnapshotEdges(none, none, none, {})] * 2
        answers = Answers(
            everyone, slice(first, first + len(own)), [(to_nodes, place) for to_nodes, (place,) in reached],
            (self._answers_of(left_out[0]), self._answers_of(left_out[1])),
        )  # fmt: skip
        return replace(self.all_pairs(split, epoch, number, count), answers=answers)

    def _drawn(self, number: int, edges: SnapshotEdges, count: int, random: Random, kind: str) -> np.ndarray:
        """Collective. Draw the global ids [1 or 2, s, count] of negatives, destinations first, by seed, epoch, snapshot
        and edge alone. No negative is its own edge; strict ones that are another edge are drawn again."""
        draws = [NEGATIVES[kind].make(self._nodes, partial(self._list_ends, edges, end)) for end in self._ends]
        keys = [replace(random, relation=end) for end in self._ends]
        own = np.stack([self._ids[edges.dst], edges.src])[: len(keys)]
        again, is_edge = replace(keys[0], hop=1), None
        if self._strict:
            is_edge = partial(self._is_edge, self._answers_of(self._targets.all_at(number)), edges)
        return draw_negatives(draws, keys, edges.row, count, own, again, is_edge)

    def _list_ends(self, edges: SnapshotEdges, end: int) -> Directory:
        """Collective. List the sources or destinations of a target's edges as places among all nodes."""
        partition, nodes = self._partition, edges.src if end == SOURCE else self._ids[edges.dst]
        here = partition.book, partition.flat_row, self._world, self._channel
        return list_ends(self._nodes, edges.row, nodes, partition.num_edges, *here)

    def _is_edge(
        self, known_edges: KnownAnswers, edges: SnapshotEdges, chosen: np.ndarray, nodes: np.ndarray
    ) -> np.ndarray:  # fmt: skip
        """Collective. Say which pairs [n] that replace the ``chosen`` edges are edges, or a node with itself."""
        destinations, sources = nodes[0], nodes[1] if len(nodes) > 1 else edges.src[chosen]
        held = known_edges.hold(sources, _types_of(edges)[chosen], destinations, self._channel)
        return held | (sources == destinations)

    def _answers_of(self, edges: SnapshotEdges) -> KnownAnswers:
        return answers_of(edges, self._partition)


def answers_of(edges: SnapshotEdges, partition: SnapshotPartition) -> KnownAnswers:
    """Index edges into this rank's nodes: their destinations are the answers to their sources and types."""
    ownership = partition.book.of_type(0)
    return KnownAnswers(ownership, partition.rank, edges.src, _types_of(edges), partition.global_ids[edges.dst])


def _types_of(edges: SnapshotEdges) -> np.ndarray:
    """Return the types of edges [e] int64; 0 where they have none."""
    return edges.columns[TYPE].astype(np.int64) if edges.columns else np.zeros_like(edges.src)
