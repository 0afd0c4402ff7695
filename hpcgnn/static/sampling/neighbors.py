"""Draws the neighbors of a frontier at their owners: one request and one reply a hop for all relations together.

Edges that a step must not see are left out of the lists. If a device holds the edges, frontiers and samples are tensors
on it, else NumPy arrays. N frontier nodes of all types with Q pairs of a relation and a node, D nodes of one type,
E sampled edges, R ranks; x of m edges that steps leave out.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import narrow_rows
from hpcgnn.graph.directory import permute
from hpcgnn.graph.partition import WEIGHT, GraphPartition
from hpcgnn.native import Random, Stream
from hpcgnn.nn.own_class import found_at
from hpcgnn.static.sampling.pairs import InLists, PairLists, Pairs, make_lists


@dataclass(frozen=True, slots=True)
class HiddenEdges:
    """A relation's edges at this rank that steps leave out, in G groups. A step with a seed of a group leaves out all
    edges of the group, such as the copies of the seed. position [x]: of the edges among the in-edges, group by group
    (indptr [G + 1]); place [y]: of the seeds in the pool; group [y]: of the seeds. All int64."""

    position: np.ndarray
    indptr: np.ndarray
    place: np.ndarray
    group: np.ndarray

    @classmethod
    def of(cls, position: np.ndarray, edge_group: np.ndarray, place: np.ndarray, seed_group: np.ndarray) -> HiddenEdges:
        """Group edges [x] and seeds [y] by the numbers of their groups; groups that lack either are dropped."""
        size = 1 + int(max(edge_group.max(initial=-1), seed_group.max(initial=-1)))
        counts, has_seed = np.bincount(edge_group, minlength=size), np.zeros(size, bool)
        has_seed[seed_group] = True
        kept = has_seed & (counts > 0)
        number = np.cumsum(kept) - 1
        is_edge, is_seed = kept[edge_group], kept[seed_group]
        position, edge_group = position[is_edge], number[edge_group[is_edge]]
        indptr = np.concatenate(([0], np.cumsum(counts[kept])))
        order = np.argsort(edge_group, kind="stable")
        return cls(position[order], indptr, place[is_seed], number[seed_group[is_seed]])

    def among(self, stays: np.ndarray) -> HiddenEdges:
        """Return what is left where only the edges of a mask [m] stay, which then count from 0."""
        left = stays[self.position]
        position = (np.cumsum(stays) - 1)[self.position[left]]
        return HiddenEdges.of(position, self.edge_group[left], self.place, self.group)

    @property
    def edge_group(self) -> np.ndarray:
        """The group [x] of each edge."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All arrays, in the order of the fields."""
        return self.position, self.indptr, self.place, self.group

    def with_seeds(self, groups: np.ndarray) -> np.ndarray:
        """List the edges, by their places among the x, that go with seeds of these groups, each once."""
        groups = _unique(groups)
        first = self.indptr[groups]
        count = self.indptr[groups + 1] - first
        return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())


def _unique(places: np.ndarray) -> np.ndarray:
    """Return the different places, of at least 0, increasing: faster than np.unique, which hashes them."""
    places = np.sort(places)
    return places[np.diff(places, prepend=-1) != 0]


ByRelation = dict[int, HiddenEdges]


class Exclusion:
    """The edges that a step of training leaves out: the seeds of all ranks, copies of seeds between the same two nodes,
    and their reverses.

    A rank computes the steps of its own entries from the epoch's permutation, so nothing is sent.
    """

    def __init__(self, edges: ByRelation, total: int, batch_size: int, stream: Stream = Stream.NEIGHBOR):
        """edges: by relation, with the places of the seeds in the pool, of ``total`` seeds; stream: of the draws that
        leave them out."""
        self.relations = sorted(edges)
        self.relation, self.edges = _of_all_relations(edges)
        self.total, self.batch_size, self.stream = total, batch_size, stream
        self.start_epoch(None)

    def start_epoch(self, shuffle: Random | None) -> None:
        """Set the key of the epoch's order of seeds; None: they are not shuffled."""
        self._shuffle = shuffle
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None
        self._last: tuple[int, Any, np.ndarray] = -1, None, np.empty(0, np.int64)  # step, starts, what ``at`` found

    def at(self, starts: np.ndarray, random: Random) -> np.ndarray:
        """Find the edges that a step leaves out: positions, increasing, among the in-edges of all relations, which
        begin at ``starts``. random: key of the step's draws; in streams other than ``stream`` nothing is left out."""
        if random.stream != self.stream:
            return np.empty(0, np.int64)
        step, of, lost = self._last
        if step != random.step or of is not starts:  # once for all hops
            edges = self.edges.with_seeds(self._groups_of(random.step))
            lost = _unique(starts[self.relation[edges]] + self.edges.position[edges])
            self._last = random.step, starts, lost  # at once: threads plan different steps at the same time
        return lost

    def _groups_of(self, step: int) -> np.ndarray:
        """Return the groups of a step's seeds. The first call of an epoch sorts the seeds by step."""
        if self._sorted is None:
            place = self.edges.place if self._shuffle is None else permute(self.edges.place, self.total, self._shuffle)
            order = np.argsort(place)
            self._sorted = place[order] // self.batch_size, self.edges.group[order]
        steps, group = self._sorted
        return group[slice(*np.searchsorted(steps, (step, step + 1)))]


def _of_all_relations(edges: ByRelation) -> tuple[np.ndarray, HiddenEdges]:
    """Join the edges that steps leave out, and their groups, of all relations; also returns the relation of each."""
    numbers = sorted(edges)
    hidden = [edges[number] for number in numbers]
    num_edges, num_groups = ([len(array) for array in arrays] for arrays in
                             zip(*((each.position, each.indptr[1:]) for each in hidden), strict=True))  # fmt: skip
    if len(hidden) == 1:  # as it is: ranks may share it
        return np.broadcast_to(np.int64(numbers[0]), num_edges[0]), hidden[0]
    first_group = np.cumsum(num_groups) - num_groups
    position, place = (np.concatenate([getattr(each, name) for each in hidden]) for name in ("position", "place"))
    degrees = np.concatenate([np.diff(each.indptr) for each in hidden])
    group = np.concatenate([each.group + first for each, first in zip(hidden, first_group, strict=True)])
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    return np.repeat(numbers, num_edges), HiddenEdges(position, indptr, place, group)


def without(lists: InLists, nodes: np.ndarray, lost: np.ndarray) -> tuple[InLists, np.ndarray]:
    """Make lists, those with the numbers ``nodes`` [T], without the edges at positions ``lost``, and for each of their
    edges its position in the lists it comes from."""
    degree = lists.indptr[nodes + 1] - lists.indptr[nodes]
    begin = np.cumsum(degree) - degree
    position = np.repeat(lists.indptr[nodes] - begin, degree) + np.arange(degree.sum())
    remains = ~np.isin(position, lost)
    indptr = np.concatenate(([0], np.cumsum(remains)))[np.append(begin, len(remains))]
    position = position[remains]
    columns = [None if column is None else column[position] for column in (lists.weight, lists.source_identity)]
    return InLists(indptr, lists.identity[nodes], *columns), position


def splice(touched: np.ndarray, others, those) -> tuple[np.ndarray, np.ndarray]:
    """Join two ragged answers, (offsets, values), to one: ``those`` for nodes where touched [N], else ``others``."""
    counts, begin = np.empty((2, len(touched)), np.int64)
    counts[touched], counts[~touched] = np.diff(those[0]), np.diff(others[0])
    begin[touched], begin[~touched] = those[0][:-1] + len(others[1]), others[0][:-1]
    values = native.gather_ranges(np.concatenate([others[1], those[1]]), begin, counts)
    return np.concatenate(([0], np.cumsum(counts))), values


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled edges of a frontier. indptr [Q + 1] int64: over its pairs of a relation and a node, in order of
    relation, then of node; source [E]: global ids. edge [E]: positions among their relation's edges, rank after rank,
    or None where not requested. relation [Q]; place [Q] int64: of the node in the frontier. Both are None in a graph of
    one relation, whose pairs are all D nodes of its destination type."""

    indptr: Any
    source: Any
    edge: Any
    relation: Any = None
    place: Any = None


Contexts = list[np.ndarray]  # by node type [D, W] int64: for which seeds nodes are, see times.py
Draws = Callable[[InLists, Any, Any, list[int], Random], tuple[Any, Any]]


class NeighborSampler:
    """Samples in-neighbors at their owners, with ``threads`` threads. Collective to create and to ask, over
    ``channel``.

    A sampling method of the user's own overrides ``draw``. lists: in-edge lists of this rank's nodes; of all nodes
    where a copy of all edges is on every machine. device: holds the edges; None: the host does.
    """

    device: torch.device | None = None

    def __init__(
        self, partition: GraphPartition, mode: str, channel: Channel, threads: int = 1, with_edges: bool = False,
        excluded: Exclusion | None = None, lists: PairLists | None = None, weight: str = WEIGHT,
    ):  # fmt: skip
        """lists: if they exist already; weight: column that mode "weighted" draws by."""
        self.partition, self.threads, self._excluded = partition, threads, excluded
        self.mode = "uniform" if mode == "weighted" else mode
        self._channel, self._with_edges = channel, with_edges
        self.lists = make_lists(partition, mode, channel, weight) if lists is None else lists
        self._shift: Any = None  # from positions in the lists to positions among a relation's edges of all ranks
        if with_edges:
            starts = self.lists.starts
            self._shift = self.lists.shift or (starts, edges_below(partition, channel)[channel.rank] - starts)

    def over(self, channel: Channel) -> NeighborSampler:
        """Make a twin for another thread, which communicates over ``channel``; the lists are shared."""
        twin = copy.copy(self)
        if self._channel.size > 1:
            twin._channel = channel
        return twin

    def on(self, device: torch.device) -> NeighborSampler:
        """Make a twin that draws on a device, to which it brings the edges; only without ``needs_host``."""
        twin = copy.copy(self)
        twin.device, twin.lists = device, self.lists.on(device)
        return twin

    @property
    def device_bytes(self) -> int:
        """Bytes that the edges take on a device."""
        return sum(column.nbytes for column in self.lists.columns)

    @property
    def _has_kernel(self) -> bool:
        """Whether native kernels draw for this sampler: not for a subclass with another ``draw``."""
        return type(self).draw is NeighborSampler.draw

    @property
    def alone(self) -> bool:
        """Whether this rank has the whole of a graph of one type and one relation, of fewer than 2^31 nodes: a batch is
        then one native call."""
        one = len(self.partition.types) == len(self.partition.relations) == 1 and self.partition.num_nodes < 1 << 31
        plain = self.mode != "labor" and self._excluded is None and self._has_kernel
        return one and plain and self._channel.size == 1 and self.device is None

    @property
    def needs_host(self) -> str:
        """Why only the host can draw; empty where a device could."""
        if self._channel.size > 1:
            return f"{self._channel.size} ranks hold the graph, a device can plan for one"
        if self._excluded is not None:
            return "a batch's own edges are left out"
        if self._with_edges:
            return "blocks tell of their edges"
        return "" if self._has_kernel else "the method of sampling is one of your own"

    def layers(self, seeds: np.ndarray, fanouts: list[int], random: Random, relabel: native.Relabel):
        """Draw all hops of a batch if ``alone``, the same neighbors as hop by hop; returns for each hop offsets, source
        positions, and edges or None."""
        lists = self.lists.of_pairs
        return native.sample_layers(
            lists.indptr, self.lists.source, seeds, lists.identity, fanouts, random, relabel, mode=self.mode,
            weight=lists.weight, with_positions=self._with_edges, threads=self.threads,
        )  # fmt: skip

    def _draw_without(
        self, draw: Draws, lists: InLists, rows: Any, relation: Any, fanouts: list[int], random: Random, lost: Any
    ) -> tuple[Any, Any]:  # fmt: skip
        """Draw by a function like ``_draw_pairs``, which does not see the edges at positions ``lost``, increasing."""
        if len(lost) == 0:
            return draw(lists, rows, relation, fanouts, random)
        first, last = (np.searchsorted(lost, lists.indptr[rows + end]) for end in (0, 1))
        touched = first < last
        rest, position = without(lists, rows[touched], lost)
        of_touched, of_others = (None, None) if relation is None else (relation[touched], relation[~touched])
        offsets, positions = draw(rest, np.arange(len(rest.identity)), of_touched, fanouts, random)
        others = draw(lists, rows[~touched], of_others, fanouts, random)
        return splice(touched, others, (offsets, position[positions]))

    def _draw_pairs(
        self, lists: InLists, rows: Any, relation: Any, fanouts: list[int], random: Random
    ) -> tuple[Any, Any]:  # fmt: skip
        """Draw offsets [Q + 1] and positions [E] for the lists with the numbers ``rows`` [Q]; relation [Q]: of each,
        increasing but for the bounds of requesters, or None in a graph of one relation."""
        if relation is None:
            return self._checked_draw(lists, rows, fanouts[0], random, 0)
        if self._has_kernel:
            return native.sample_neighbors(
                lists.indptr, rows, lists.identity, fanouts, random, mode=self.mode, weight=lists.weight,
                source_identity=lists.source_identity, threads=self.threads, relation=relation,
            )  # fmt: skip
        offsets, positions = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
        bounds = [0, *(1 + np.flatnonzero(np.diff(relation))).tolist(), len(rows)] if len(rows) else [0]
        for first, last in pairwise(bounds):
            number = int(relation[first])
            begin, drawn = self._checked_draw(lists, rows[first:last], fanouts[number], random, number)
            offsets.append(begin[1:] + offsets[-1][-1])
            positions.append(drawn)
        return np.concatenate(offsets), np.concatenate(positions)

    def _checked_draw(
        self, lists: InLists, rows: Any, fanout: int, random: Random, relation: int
    ) -> tuple[Any, Any]:  # fmt: skip
        """Draw for lists of one relation. Raises ValueError for positions of a subclass that are not in the lists."""
        drawn = self.draw(lists, rows, fanout, replace(random, relation=relation))
        return drawn if self._has_kernel else self._checked(lists, rows, drawn, relation)

    def draw(self, lists: InLists, nodes: np.ndarray, fanout: int, random: Random) -> tuple[np.ndarray, np.ndarray]:
        """Draw offsets [D + 1] and positions [E] in the in-edge lists, for the nodes [D] with these numbers. fanout:
        neighbors of a node, -1: all. Edges that the step must not see are not in the lists. The result must depend on
        the random key, ``lists.identity[nodes]`` and the edges of the nodes alone."""
        return native.sample_neighbors(
            lists.indptr, nodes, lists.identity, fanout, random, mode=self.mode, weight=lists.weight,
            source_identity=lists.source_identity, threads=self.threads,
        )  # fmt: skip

    def ask(
        self, frontier: list[np.ndarray], fanouts: list[int], random: Random, contexts: Contexts | None = None
    ) -> Sampled:
        """Collective. Draw a sample of every relation for the frontier's nodes, global ids [D] by type; fanouts by
        relation; contexts: of the nodes, for ``times.TimedNeighbors`` only."""
        nodes: Any = frontier[0] if len(frontier) == 1 else self._join(frontier)
        if self._channel.size == 1:  # local rows are global ids
            context = None if contexts is None else np.concatenate(contexts)
            pairs, offsets, source, edge = self._sample(nodes, context, fanouts, random)
            return Sampled(offsets, source, edge, pairs.relation, None if pairs.relation is None else pairs.place)
        book = self.partition.book
        order, local, want = native.locate_by_owner(nodes, book.blocks, book.size)
        serve = self._channel.counts(want)
        # Two exchanges a hop on every rank, also with nothing to ask: relations and types travel together.
        sent = None if contexts is None else np.concatenate(contexts)[order]
        request, context = self._exchange(local, sent, want, serve)
        reply, sizes = self._serve(request, context, serve, fanouts, random)
        receive = self._channel.counts(sizes)
        received = self._channel.array(reply, sizes, receive)
        if self.lists.relation is None:
            return self._unpack_nodes(received, receive, order, want, [len(ids) for ids in frontier])
        return self._unpack_pairs(received, receive, order, want, len(fanouts))

    def _join(self, frontier: list[Any]) -> Any:
        return np.concatenate(frontier) if self.device is None else torch.cat(frontier)

    def _exchange(self, local: np.ndarray, context: np.ndarray | None, want: np.ndarray, serve: np.ndarray):
        """Collective. Send requests, local rows [N] of their owners and contexts [N, W], in the order of the owners;
        returns the rows and contexts of the requests [M] to this rank."""
        if context is None:
            return self._channel.array(narrow_rows(local), want, serve).astype(np.int64), None
        received = self._channel.array(np.column_stack([local, context]), want, serve)
        return received[:, 0].copy(), received[:, 1:]

    def _edges_at(self, positions: Any) -> tuple[Any, Any]:
        """Return the sources of edges at positions in the lists, and the edges' positions among those of their relation
        of all ranks, or None without ``with_edges``."""
        source = self.lists.source.take(positions)  # in NumPy faster than by index
        return source, self._edge(positions) if self._with_edges else None

    def _edge(self, positions: np.ndarray) -> np.ndarray:
        """Return the positions of edges among the edges of their relation of all ranks."""
        starts, shift = self._shift
        return positions + shift[np.searchsorted(starts, positions, side="right") - 1]

    def _sample(
        self, rows: Any, context: np.ndarray | None, fanouts: list[int], random: Random,
        bounds: np.ndarray | None = None,
    ) -> tuple[Pairs, Any, Any, Any]:  # fmt: skip
        """Draw for local nodes [N], which come in groups with ``bounds``: pairs as ``PairLists.find`` orders them, and
        offsets [Q + 1], sources [E], edges [E] or None as a `Sampled` has them. context [N, W]: of the nodes, if they
        have any."""
        lists, lost = self.lists, self._lost(random)
        if self.device is not None or not self._has_kernel:
            pairs = lists.find(rows, fanouts, bounds)
            offsets, positions = self._draw_without(
                self._draw_pairs, lists.of_pairs, pairs.pair, pairs.relation, fanouts, random, lost
            )
            return pairs, offsets, *self._edges_at(positions)
        drawn_from, keys = self._drawn_from(lists.of_pairs, lost, lists.source), self._keys(self._with_edges)
        if lists.relation is None:
            pairs = lists.find(rows, fanouts)
            offsets, positions, source = native.sample_lists(drawn_from, pairs.pair, fanouts, random, **keys)
        else:
            (place, relation), (offsets, positions, source) = native.sample_pairs(
                drawn_from, (lists.first, lists.pair, lists.relation), rows, fanouts, random, bounds=bounds, **keys
            )
            pairs = Pairs(None, place, relation)
        return pairs, offsets, source, self._edge(positions) if self._with_edges else None

    def _drawn_from(self, lists: InLists, lost: np.ndarray, source: np.ndarray | None = None) -> native.DrawnFrom:
        """Describe to the kernels on the host what they draw from."""
        return native.DrawnFrom(lists.indptr, lists.identity, lists.weight, lists.source_identity, source, lost)

    def _keys(self, with_positions: bool) -> dict[str, Any]:
        return {"mode": self.mode, "threads": self.threads, "with_positions": with_positions}

    def _lost(self, random: Random) -> np.ndarray:
        """Find the positions in the lists, increasing, of the edges that a step leaves out."""
        return np.empty(0, np.int64) if self._excluded is None else self._excluded.at(self.lists.starts, random)

    def _checked(self, lists: InLists, rows: np.ndarray, drawn: Any, relation: int) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets and positions that a subclass drew. Raises ValueError unless the positions are edges of their
        nodes."""
        offsets, positions = (np.asarray(column).astype(np.int64) for column in drawn)
        fits, counts = len(offsets) == len(rows) + 1, np.diff(offsets)
        if fits and offsets[0] == 0 and offsets[-1] == len(positions) and (counts >= 0).all():
            first, last = (np.repeat(lists.indptr[bound], counts) for bound in (rows, rows + 1))
            if ((positions >= first) & (positions < last)).all():
                return offsets, positions
        raise ValueError(
            f"{type(self).__name__} drew neighbors of {len(rows)} nodes of relation "
            f"{self.partition.relations[relation].name} that are not theirs: offsets [D + 1] begin with 0, positions "
            "are those of the nodes' in-edges"
        )

    def _serve(self, request: np.ndarray, context, serve: np.ndarray, fanouts: list[int], random: Random):
        """Sample for local rows [M] that ranks requested, requester by requester; context [M, W] or None. Returns
        one int64 array, which has for each requester what ``_unpack_pairs`` or ``_unpack_nodes`` reads, and its length
        for each [R]."""
        group, bounds = np.repeat(np.arange(len(serve)), serve), np.concatenate(([0], np.cumsum(serve)))
        pairs, offsets, *columns = self._sample(request, context, fanouts, random, bounds)
        place = np.arange(len(offsets) - 1) if pairs.place is None else pairs.place
        cut = np.searchsorted(group[place], np.arange(len(serve) + 1))
        arrays = [(np.diff(offsets), cut)]
        if pairs.relation is not None:
            asks = serve > 0
            number = (place - bounds[group[place]]) * len(fanouts) + pairs.relation
            arrays = [(np.diff(cut)[asks], np.concatenate(([0], np.cumsum(asks)))), (number, cut), *arrays]
        return _by_requester([*arrays, *((column, offsets[cut]) for column in columns if column is not None)])

    def _unpack_nodes(self, received, receive, order, want, sizes: list[int]) -> Sampled:
        """Unpack the replies of ``_serve`` in a graph of one relation: from each owner the counts of the requested
        nodes of the destination type, then sources, then positions. order [N]: places in the frontier of the requested
        nodes, in the order sent; sizes: of the frontier by type."""
        kind = self.partition.relations[0].dst_type
        place = order - sum(sizes[:kind])
        is_drawn = (place >= 0) & (place < sizes[kind])
        counts = np.add.reduceat(np.append(is_drawn, 0), np.cumsum(want) - want) * (want > 0)
        degrees, columns = self._columns(received, np.cumsum(receive) - receive, receive, counts, 1)
        moved = np.empty(sizes[kind], np.int64)
        moved[place[is_drawn]] = np.arange(len(moved))
        return _in_order(degrees[0], columns, moved)

    def _unpack_pairs(self, received, receive, order, want, num_relations: int) -> Sampled:
        """Unpack the replies of ``_serve``: from each owner that was asked the number of pairs, for each pair the place
        of the node in the request times the number of relations, plus the relation; then counts, sources and positions.
        order [N]: as in ``_unpack_nodes``."""
        begin, asked = np.cumsum(receive) - receive, want > 0
        counts = np.zeros(len(want), np.int64)
        counts[asked] = received[begin[asked]]
        (number, degrees), columns = self._columns(received, begin + asked, receive - asked, counts, 2)
        place, relation = np.divmod(number, num_relations)
        place = order[place + np.repeat(np.cumsum(want) - want, counts)]
        moved = np.argsort(relation * len(order) + place, kind="stable")  # of few increasing pieces
        sampled = _in_order(degrees, columns, moved)
        return replace(sampled, relation=relation[moved].astype(np.int32), place=place[moved])

    def _columns(self, received, begin, length, counts, heads: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Join what owners sent, ``length`` [R] values each from ``begin`` [R] on: ``heads`` columns of ``counts`` [R]
        values, then sources, and positions ``with_edges``."""
        width = 1 + self._with_edges
        sizes = [counts] * heads + [(length - heads * counts) // width] * width
        columns = _of_columns(received, begin[:, None], np.column_stack(sizes))
        return columns[:heads], columns[heads:]


def check_sampler(sampler: Any, key: str) -> type[NeighborSampler]:
    """Return a class that draws neighbors. Raises ValueError, which begins with the ``key``, for another one, for a
    method ``sample``, and for a ``draw`` that takes other arguments."""
    if not (isinstance(sampler, type) and issubclass(sampler, NeighborSampler)):
        raise ValueError(f"{key} is no subclass of hpcgnn.NeighborSampler")
    arguments = [*inspect.signature(NeighborSampler.draw).parameters]
    called = f"draw is called with ({', '.join(arguments[1:])})"
    if hasattr(sampler, "sample"):
        raise ValueError(f"{key}: its method sample would never be called: {called} and draws from these lists")
    try:
        inspect.signature(sampler.draw).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{key}: {called}: {error}") from error
    return sampler


def sampler_of(class_path: str) -> type[NeighborSampler]:
    """Return the class that ``sampling.class_path`` names; empty: the one that draws by ``sampling.strategy``. Raises
    ValueError."""
    if not class_path:
        return NeighborSampler
    key = "sampling.class_path"
    return check_sampler(found_at(class_path, key, "Class"), f"{key} {class_path!r}")


def _by_requester(arrays: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Reorder arrays, each cut at [R + 1] places into pieces of the requesters: all pieces of the first requester, then
    of the next. Also returns the number of values of each requester [R]."""
    sizes = np.column_stack([np.diff(cut) for _, cut in arrays])
    shift = np.cumsum([0, *(len(array) for array, _ in arrays[:-1])])
    begin = np.column_stack([cut[:-1] for _, cut in arrays]) + shift
    joined = np.concatenate([array for array, _ in arrays], dtype=np.int64)
    return native.gather_ranges(joined, begin.ravel(), sizes.ravel()), sizes.sum(axis=1)


def _of_columns(message: np.ndarray, begin: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Join the pieces that owners sent, for each of C columns; owner r's pieces have ``sizes[r]`` values each and lie
    one behind the other in the message from ``begin[r]`` on."""
    starts = begin + np.cumsum(sizes, axis=1) - sizes
    joined = native.gather_ranges(message, starts.T.ravel(), sizes.T.ravel())
    return np.split(joined, np.cumsum(sizes.sum(axis=0))[:-1])


def edges_below(partition: GraphPartition, channel: Channel) -> np.ndarray:
    """Collective. Count the edges of all lower ranks, for each rank, [R + 1, relations]; the last row counts all
    edges."""
    counts = torch.tensor([[len(edges.src) for edges in partition.edges]], dtype=torch.int64)
    return np.cumsum(np.vstack([np.zeros_like(counts), channel.everyone(counts).numpy()]), axis=0)


def check_drawn_by(partition: GraphPartition, column: str) -> None:
    """Raise ValueError where a relation has no such column by which neighbors can be drawn."""
    for relation, edges in zip(partition.relations, partition.edges, strict=True):
        if column not in edges.columns:
            raise ValueError(f"sampling.strategy weighted: relation {relation.name} has no column {column}")
    check_weights(partition, "sampling.strategy weighted", "choose another strategy", column)


def check_weights(partition: GraphPartition, key: str, remedy: str, column: str = WEIGHT) -> None:
    """Raise ValueError, which names the ``key`` that reads it, for a column of weights with a number that is negative
    or not finite."""
    for relation, edges in zip(partition.relations, partition.edges, strict=True):
        weight = edges.columns.get(column, np.empty(0))
        if weight.ndim != 1 or weight.dtype.kind not in "iufb":
            raise ValueError(f"{key}: column {column} of {relation.name} must hold one number an edge; {remedy}")
        strange = np.flatnonzero(~((weight >= 0) & np.isfinite(weight)))
        if len(strange):
            row = f", row {edges.row[strange[0]]}," if len(edges.row) else ""
            raise ValueError(
                f"{key}: relation {relation.name}{row} has {column} {weight[strange[0]]}, which must be finite and at "
                f"least 0: mend the source, or {remedy}"
            )


def _in_order(counts: np.ndarray, columns: list[np.ndarray], moved: np.ndarray) -> Sampled:
    """Bring ragged rows with ``counts`` [Q] from the order of the reply to another one; moved [Q]: their places in the
    reply."""
    start = np.cumsum(counts) - counts
    indptr = np.concatenate(([0], np.cumsum(counts[moved])))
    columns = [native.gather_ranges(column, start[moved], counts[moved]) for column in columns]
    return Sampled(indptr.astype(np.int64), columns[0], columns[1] if len(columns) > 1 else None)
