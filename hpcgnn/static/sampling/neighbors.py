"""Draws the neighbors of a frontier at their owners: one request and one reply a hop for all relations together.

Edges that a step must not see are left out of the lists. If a device holds the edges, frontiers and samples are tensors
on it, else NumPy arrays. N frontier nodes of all types, D of one type, E sampled edges, R ranks; T nodes with
lists that leave out x of m edges of a relation.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route, narrow_rows
from hpcgnn.graph.directory import permute
from hpcgnn.graph.partition import WEIGHT, GraphPartition
from hpcgnn.native import Random, Stream
from hpcgnn.native.dispatch import Uploads
from hpcgnn.nn.own_class import found_at


@dataclass(frozen=True, slots=True)
class InLists:
    """In-edge lists of T nodes, from which neighbors are drawn. indptr [T + 1], identity [T] flat row ids of the nodes;
    for every edge weight [m] uint32 and source_identity [m], or None."""

    indptr: np.ndarray
    identity: np.ndarray
    weight: np.ndarray | None
    source_identity: np.ndarray | None


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
        """List the positions of the edges that go with seeds of these groups, each once."""
        groups = np.unique(groups)
        first = self.indptr[groups]
        count = self.indptr[groups + 1] - first
        return self.position[np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())]


ByRelation = dict[int, HiddenEdges]


class Exclusion:
    """The edges that a step of training leaves out: the seeds of all ranks, copies of seeds between the same two nodes,
    and their reverses.

    A rank computes the steps of its own entries from the epoch's permutation, so nothing is sent.
    """

    def __init__(self, edges: ByRelation, total: int, batch_size: int, stream: Stream = Stream.NEIGHBOR):
        """edges: by relation, with the places of the seeds in the pool, of ``total`` seeds; stream: of the draws that
        leave them out."""
        self.edges, self.total, self.batch_size, self.stream = edges, total, batch_size, stream
        self.start_epoch(None)

    def start_epoch(self, shuffle: Random | None) -> None:
        """Set the key of the epoch's order of seeds; None: they are not shuffled."""
        self._shuffle = shuffle
        self._sorted: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def at(self, relation: int, random: Random) -> np.ndarray:
        """Find the edges that a step leaves out: positions, increasing, among the relation's in-edges at this rank.
        random: key of the step's draws; in streams other than ``stream`` nothing is left out."""
        if random.stream != self.stream or relation not in self.edges:
            return np.empty(0, np.int64)
        return np.unique(self.edges[relation].with_seeds(self._groups_of(relation, random.step)))

    def _groups_of(self, relation: int, step: int) -> np.ndarray:
        """Return the groups of a step's seeds. The first call of an epoch sorts the seeds by step."""
        if relation not in self._sorted:
            place, group = self.edges[relation].place, self.edges[relation].group
            place = place if self._shuffle is None else permute(place, self.total, self._shuffle)
            order = np.argsort(place)
            self._sorted[relation] = place[order] // self.batch_size, group[order]
        steps, group = self._sorted[relation]
        return group[slice(*np.searchsorted(steps, (step, step + 1)))]


def without(lists: InLists, nodes: np.ndarray, lost: np.ndarray) -> tuple[InLists, np.ndarray]:
    """Make the lists of nodes [T] without the edges at positions ``lost``, and for each of their edges its position in
    the lists it comes from."""
    degree = np.diff(lists.indptr)[nodes]
    begin = np.cumsum(degree) - degree
    position = np.repeat(lists.indptr[nodes] - begin, degree) + np.arange(degree.sum())
    remains = ~np.isin(position, lost)
    indptr = np.concatenate(([0], np.cumsum(remains)))[np.append(begin, len(remains))]
    position = position[remains]
    columns = [None if column is None else column[position] for column in (lists.weight, lists.source_identity)]
    return InLists(indptr, lists.identity[nodes], *columns), position


def splice(touched: np.ndarray, others, those) -> tuple[np.ndarray, np.ndarray]:
    """Join two ragged answers, (offsets, values), to one: ``those`` for nodes where touched [N], else ``others``."""
    counts = np.empty(len(touched), np.int64)
    counts[touched], counts[~touched] = np.diff(those[0]), np.diff(others[0])
    values, from_those = np.empty(counts.sum(), np.int64), np.repeat(touched, counts)
    values[from_those], values[~from_those] = those[1], others[1]
    return np.concatenate(([0], np.cumsum(counts))), values


@dataclass(frozen=True, slots=True)
class Sampled:
    """A relation's sampled edges. indptr [D + 1] int64: over the frontier's nodes of the destination type; source [E]:
    global ids. edge [E]: positions among the relation's edges, rank after rank, or None where not requested."""

    indptr: np.ndarray
    source: np.ndarray
    edge: np.ndarray | None


Contexts = list[np.ndarray]  # by node type [D, W] int64: for which seeds nodes are, see times.py
Draws = Callable[[InLists, Any, int, Random], tuple[Any, Any]]


class NeighborSampler:
    """Samples in-neighbors at their owners, with ``threads`` threads. Collective to create and to ask, over
    ``channel``.

    A sampling method of the user's own overrides ``draw``. lists: in-edge lists of this rank's nodes, by relation; of
    all nodes where a copy of all edges is on every machine. device: holds the edges; None: the host does.
    """

    device: torch.device | None = None

    def __init__(
        self, partition: GraphPartition, mode: str, channel: Channel, threads: int = 1, with_edges: bool = False,
        excluded: Exclusion | None = None, lists: list[InLists] | None = None, weight: str = WEIGHT,
    ):  # fmt: skip
        """lists: of each relation, if they exist already; weight: column that mode "weighted" draws by."""
        self.partition, self.threads, self._excluded = partition, threads, excluded
        self.mode = "uniform" if mode == "weighted" else mode
        self._channel, self._with_edges = channel, with_edges
        self._first: Any = edges_below(partition, channel)[channel.rank] if with_edges else None
        self.lists: Any = make_lists(partition, mode, channel, weight) if lists is None else lists
        self._sources: Any = [edges.src for edges in partition.edges]

    def over(self, channel: Channel) -> NeighborSampler:
        """Make a twin for another thread, which communicates over ``channel``; the lists are shared."""
        twin = copy.copy(self)
        if self._channel.size > 1:
            twin._channel = channel
        return twin

    def on(self, device: torch.device) -> NeighborSampler:
        """Make a twin that draws on a device, to which it brings the edges; only without ``needs_host``."""
        twin, upload = copy.copy(self), Uploads(device)
        twin.device, twin._sources = device, [upload(source, torch.int64) for source in self._sources]
        twin.lists = []
        for lists in self.lists:
            columns: list[Any] = [None if column is None else upload(column) for column in _columns(lists)]
            twin.lists.append(InLists(*columns))
        return twin

    @property
    def device_bytes(self) -> int:
        """Bytes that the edges take on a device."""
        columns = [column for lists in self.lists for column in _columns(lists) if column is not None]
        return sum(column.nbytes for column in columns) + sum(8 * len(source) for source in self._sources)

    @property
    def _has_kernel(self) -> bool:
        """Whether native kernels may draw for this sampler: never for a subclass, whose ``draw`` may be another."""
        return type(self) is NeighborSampler

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
        lists = self.lists[0]
        return native.sample_layers(
            lists.indptr, self.partition.edges[0].src, seeds, lists.identity, fanouts, random, relabel, mode=self.mode,
            weight=lists.weight, with_positions=self._with_edges, threads=self.threads,
        )  # fmt: skip

    def _lost(self, relation: int, random: Random) -> np.ndarray:
        """Find the positions, increasing, of the edges that a step leaves out."""
        return np.empty(0, np.int64) if self._excluded is None else self._excluded.at(relation, random)

    def _draw_without(
        self, lost: np.ndarray, draw: Draws, lists: InLists, nodes: np.ndarray, fanout: int, random: Random
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw by a function like ``draw``, which does not see the edges at positions ``lost``."""
        if len(lost) == 0:
            return draw(lists, nodes, fanout, random)
        first, last = (np.searchsorted(lost, lists.indptr[nodes + end]) for end in (0, 1))
        touched = first < last
        rest, position = without(lists, nodes[touched], lost)
        offsets, positions = draw(rest, np.arange(len(rest.identity)), fanout, random)
        return splice(touched, draw(lists, nodes[~touched], fanout, random), (offsets, position[positions]))

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
    ) -> list[Sampled]:
        """Collective. Draw of every relation a sample for the frontier's nodes, global ids [D] by type; fanouts by
        relation; contexts: of the nodes, for ``times.TimedNeighbors`` only."""
        if self._channel.size == 1:  # local rows are global ids
            samples = []
            for relation, fanout in enumerate(fanouts):
                kind = self.partition.relations[relation].dst_type
                nodes = frontier[kind] - int(self.partition.type_start[kind])
                context = None if contexts is None else contexts[kind]
                offsets, positions = self._sample(relation, nodes, context, fanout, random)
                samples.append(Sampled(offsets, *self._edges_at(relation, positions)))
            return samples
        book, types = self.partition.book, np.repeat(np.arange(len(frontier)), [len(ids) for ids in frontier])
        order, local, want = native.locate_by_owner(np.concatenate(frontier), book.blocks, book.size)
        serve = self._channel.counts(want)
        # Two exchanges a hop on every rank, also with nothing to ask: relations and types travel together.
        sent = None if contexts is None else np.concatenate(contexts)[order]
        request, context = self._exchange(local, sent, want, serve)
        reply, sizes = self._serve(request, context, serve, fanouts, random)
        receive = self._channel.counts(sizes)
        received = self._channel.array(reply, sizes, receive)
        return self._unpack(received, receive, types[order], order, frontier, want)

    def _exchange(self, local: np.ndarray, context: np.ndarray | None, want: np.ndarray, serve: np.ndarray):
        """Collective. Send requests, local rows [N] of their owners and contexts [N, W], in the order of the owners;
        returns the rows and contexts of the requests [M] to this rank."""
        if context is None:
            return self._channel.array(narrow_rows(local), want, serve).astype(np.int64), None
        received = self._channel.array(np.column_stack([local, context]), want, serve)
        return received[:, 0].copy(), received[:, 1:]

    def _edges_at(self, relation: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the sources of edges at positions in this rank's lists, and the edges' positions among those of all
        ranks, or None without ``with_edges``."""
        place = positions + self._first[relation] if self._with_edges else None
        return self._sources[relation].take(positions), place  # in NumPy faster than by index

    def _sample(
        self, relation: int, nodes: np.ndarray, context: np.ndarray | None, fanout: int, random: Random
    ) -> tuple[np.ndarray, np.ndarray]:
        if fanout == 0:
            return np.zeros(len(nodes) + 1, np.int64), nodes[:0]
        key = Random(random.seed, random.stream, random.step, random.epoch, random.hop, relation)
        return self._sample_in(relation, nodes, context, fanout, key)

    def _checked(self, relation: int, nodes: np.ndarray, drawn: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets and positions that a subclass drew. Raises ValueError unless the positions are edges of their
        nodes."""
        offsets, positions = (np.asarray(column).astype(np.int64) for column in drawn)
        indptr, fits = self.partition.edges[relation].indptr, len(offsets) == len(nodes) + 1
        counts = np.diff(offsets)
        if fits and offsets[0] == 0 and offsets[-1] == len(positions) and (counts >= 0).all():
            first, last = (np.repeat(indptr[bound], counts) for bound in (nodes, nodes + 1))
            if ((positions >= first) & (positions < last)).all():
                return offsets, positions
        raise ValueError(
            f"{type(self).__name__} drew neighbors of {len(nodes)} nodes of relation "
            f"{self.partition.relations[relation].name} that are not theirs: offsets [D + 1] begin with 0, positions "
            "are those of the nodes' in-edges"
        )

    def _sample_in(
        self, relation: int, nodes: np.ndarray, context: Any, fanout: int, random: Random
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw offsets [D + 1] and positions [E] among the relation's edges at this rank, for local ``nodes`` [D] of
        its destination type, each in its context [D, W], if there are any."""
        lost, lists = self._lost(relation, random), self.lists[relation]
        drawn = self._draw_without(lost, self.draw, lists, nodes, fanout, random)
        return drawn if self._has_kernel else self._checked(relation, nodes, drawn)

    def _serve(self, request: np.ndarray, context, serve: np.ndarray, fanouts: list[int], random: Random):
        """Sample for local rows [M] that ranks requested, requester by requester; context [M, W] or None. Returns
        one int64 array, which has for each requester, relation by relation, the counts, then sources and positions,
        and its length for each [R]."""
        start, bounds = self.partition.type_start, np.concatenate(([0], np.cumsum(serve)))
        types = np.searchsorted(start, request, side="right") - 1
        chosen = [np.flatnonzero(types == t) for t in range(len(start) - 1)]
        counts: list[tuple[np.ndarray, np.ndarray]] = []  # arrays, and where the pieces of requesters begin [R + 1]
        values: list[tuple[np.ndarray, np.ndarray]] = []
        for relation, fanout in enumerate(fanouts):
            target = self.partition.relations[relation].dst_type
            nodes, of_nodes = request[chosen[target]] - start[target], context
            if context is not None:
                of_nodes = context[chosen[target]]
            offsets, positions = self._sample(relation, nodes, of_nodes, fanout, random)
            cut = np.searchsorted(chosen[target], bounds)
            counts.append((np.diff(offsets), cut))
            columns = self._edges_at(relation, positions)
            values += [(column, offsets[cut]) for column in columns if column is not None]
        return _by_requester([*counts, *values])

    def _unpack(self, received: np.ndarray, receive, types: np.ndarray, order: np.ndarray, frontier, want):
        """Unpack the replies of ``_serve`` at the requester; types [N] of the requested nodes, in the order sent; order
        [N]: their places in the frontier."""
        kinds = np.array([relation.dst_type for relation in self.partition.relations])
        first = np.concatenate(([0], np.cumsum([len(ids) for ids in frontier])))
        owner = np.repeat(np.arange(len(want)), want)
        requests = np.bincount(types + owner * len(frontier), minlength=len(want) * len(frontier))
        numbers = requests.reshape(len(want), -1)[:, kinds]  # [R, relations]
        begin = (np.cumsum(receive) - receive)[:, None]
        counts = _of_relations(received, begin, numbers)
        bounds = [np.concatenate(([0], np.cumsum(column))) for column in numbers.T]
        totals = np.column_stack([
            np.diff(np.concatenate(([0], np.cumsum(degrees)))[bound])
            for degrees, bound in zip(counts, bounds, strict=True)
        ])  # fmt: skip
        width = 1 + self._with_edges
        columns = _of_relations(received, begin + numbers.sum(axis=1, keepdims=True), np.repeat(totals, width, axis=1))
        place = [order[types == t] - first[t] for t in range(len(frontier))]
        return [
            _in_order(degrees, columns[width * number : width * (number + 1)], place[kind])
            for number, (degrees, kind) in enumerate(zip(counts, kinds, strict=True))
        ]


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


def _of_relations(message: np.ndarray, begin: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
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


def _columns(lists: InLists) -> tuple:
    return lists.indptr, lists.identity, lists.weight, lists.source_identity


def make_lists(partition: GraphPartition, mode: str, channel: Channel, column: str = WEIGHT) -> list[InLists]:
    """Collective. Make the lists that a mode of sampling draws from, by relation. "weighted" draws by a column, which
    needs ``check_drawn_by`` first."""
    weights = integer_weights(partition, channel, column) if mode == "weighted" else [None] * len(partition.edges)
    return [
        InLists(
            edges.indptr, partition.flat_row[partition.of_type(relation.dst_type)], weight,
            _source_identity(partition, edges.src, channel) if mode == "labor" else None,
        )
        for relation, edges, weight in zip(partition.relations, partition.edges, weights, strict=True)
    ]  # fmt: skip


def _source_identity(partition: GraphPartition, src: np.ndarray, channel: Channel) -> np.ndarray:
    """Collective. Pull the flat row id of every edge's source."""
    unique, inverse = np.unique(src, return_inverse=True)
    route = Route.plan(partition.book, unique, channel)
    return route.pull(torch.tensor(partition.flat_row))[0].numpy()[inverse]


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


def integer_weights(partition: GraphPartition, channel: Channel, column: str) -> list[np.ndarray]:
    """Collective. Convert each relation's column of weights, which ``check_weights`` passed, to uint32 [m]. Integers
    stay unchanged; others become multiples of 1 / 2^31 of the largest one of all ranks, at least 1 if above 0."""
    weights = []
    for edges in partition.edges:
        weight = edges.columns[column].astype(np.float64)
        whole = np.array([[float(np.all(weight == np.floor(weight))), weight.max(initial=0.0)]])
        everyone = channel.everyone(torch.from_numpy(whole)).numpy()
        largest = everyone[:, 1].max()
        if everyone[:, 0].all() and largest < 1 << 32:
            weights.append(weight.astype(np.uint32))
        else:
            weights.append(np.ceil(weight / largest * (1 << 31)).astype(np.uint32))
    return weights


def _in_order(counts: np.ndarray, columns: list[np.ndarray], place: np.ndarray) -> Sampled:
    """Move ragged rows with ``counts`` [D] from the order of the reply to their places [D] in the frontier."""
    start, moved = np.cumsum(counts) - counts, np.empty(len(counts), np.int64)
    moved[place] = np.arange(len(counts))
    indptr = np.concatenate(([0], np.cumsum(counts[moved])))
    columns = [native.gather_ranges(column, start[moved], counts[moved]) for column in columns]
    return Sampled(indptr.astype(np.int64), columns[0], columns[1] if len(columns) > 1 else None)
