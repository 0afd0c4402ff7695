"""The negatives of a split's evaluation, drawn or read from a file, and the table of their kinds: the same in every
epoch and on any number of ranks.

n events of this rank, k negatives an event, S steps. Rank 0 reads the m listed events of a file in slabs. Lines travel
by way of homes, even blocks of the split's event rows, so that rank 0 needs no list of the ranks that handle events.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.choices import Part
from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.graph import directory, files
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.directory import Directory, check_drawn
from hpcgnn.graph.negative_file import NegativeFile, Wanted, file_of, is_none, open_negatives
from hpcgnn.graph.splits import SPLITS
from hpcgnn.native import Random, Stream
from hpcgnn.temporal.batches import Batches, Splits
from hpcgnn.temporal.graph import TemporalPartition
from hpcgnn.temporal.negatives import (
    AllOthers,
    AnyNegatives,
    NegativePool,
    Negatives,
    PairHistory,
    RandomNegatives,
    edge_types_of,
    random_negatives,
    uniform_draw,
)

REMEDY = "set eval.negative_kind random, or file"

STAGE = "read the negatives"


@dataclass(frozen=True, slots=True)
class NegativeSource:
    """The source of the negatives of all splits. pool: the nodes that random negatives are drawn from; per_event:
    number of draws for an event; path: of a file that lists negatives."""

    partition: TemporalPartition
    splits: Splits
    pool: NegativePool
    world: World
    channel: Channel
    seed: int
    per_event: int = 1
    path: str = ""

    def rows_of(self, split: str) -> tuple[int, int]:
        """Return the event rows where a split begins and ends."""
        begin, end = self.splits.bounds[SPLITS.index(split) :][:2].tolist()
        return begin, end


def draw_random(batches: Batches, source: NegativeSource) -> RandomNegatives | Negatives:
    """Draw nodes of the pool, with the event's own source."""
    return random_negatives(batches, uniform_draw(source.pool), source.per_event, source.seed)


def _only_types(partition: TemporalPartition, key: str) -> tuple[str, str]:
    """Return the node types of sources and of destinations. Raises DistributedError, on all ranks alike, where edge
    types have several: negatives of ``key`` do not keep to them."""
    names = [{partition.book.node_types[t] for t in partition.type_of_ends(end)} for end in ("src", "dst")]
    if any(len(types) > 1 for types in names):
        listed = ", ".join(relation.name for relation in partition.relations)
        message = f"{key} takes relations between the same two node types, not {listed}: use eval.negative_kind random"
        raise DistributedError(f"{message} or all", user_error=True)
    (source,), (destination,) = names
    return source, destination


def fixed_negatives(batches: Batches, source: NegativeSource) -> Negatives:
    """Collective. Read the negatives [n, k] that the source's file lists for this rank's events of a split;
    ``negative_file`` describes the formats. Events with fewer than k have them first, then their first one again. The
    file may list events of other splits too; ``{split}`` in its path stands for the name of the split.

    Raises DistributedError on all ranks for a file that cannot be read, an unknown id, or an event of the split that is
    not listed. The error names file, row and remedy.
    """
    partition, world, channel = source.partition, source.world, source.channel
    _only_types(partition, "eval.negatives_file")
    path, (begin, end) = file_of(source.path, batches.name), source.rows_of(batches.name)
    file: NegativeFile | None = None
    with together(world, STAGE):
        wanted = Wanted(partition.relation, batches.name, _sizes_of(partition))
        file = open_negatives(path, wanted) if world.rank == 0 else None
    if world.broadcast(file is not None and file.row is None):
        file = _listed_by_row(file, begin, end, partition, world, channel)
    homes = BlockOwnership.even(end - begin, world.size)
    table = _collect(file, homes, begin, end, partition, world, channel)
    _check_complete(path, table, begin + int(homes.starts[world.rank]), batches.name, world)
    (lines,) = Route.plan(homes, batches.events.row - begin, channel).pull(torch.from_numpy(table))
    dst = lines.numpy()
    count = (dst >= 0).sum(axis=1)
    return Negatives(np.where(dst < 0, dst[:, :1], dst), count=None if (count == dst.shape[1]).all() else count)


def _sizes_of(partition: TemporalPartition) -> tuple[int, int, int]:
    """Count the source nodes, destination nodes and events of the graph."""
    source, destination = _only_types(partition, STAGE)
    book = partition.book
    count = dict(zip(book.node_types, np.diff(book.type_base()).tolist(), strict=True))
    return count[source], count[destination], partition.num_events


def _collect(file: NegativeFile | None, homes, begin: int, end: int, partition, world, channel) -> np.ndarray:
    """Collective. Collect this rank's home rows, [rows, k] global ids, -1 where the file lists nothing, and behind an
    event's last one."""
    listed, per_event = world.broadcast(file and (file.num_listed, file.per_event))
    table = np.full((int(homes.starts[world.rank + 1] - homes.starts[world.rank]), per_event), -1, np.int64)
    ids = partition.original_ids(_only_types(partition, STAGE)[1], world)
    with together(world, STAGE):
        if file and listed and not 0 <= file.row.min() <= file.row.max() < partition.num_events:
            wrong = file.row[(file.row < 0) | (file.row >= partition.num_events)][0]
            raise ValueError(f"{file.path}: event row {wrong} is outside 0..{partition.num_events - 1} of this graph")
    # Rank 0 alone reads. Its errors are found between the exchanges of a slab, so that all ranks leave together.
    for start, stop in files.slabs(listed, 8 * per_event):
        rows, lines = np.empty(0, np.int64), np.empty((0, per_event), np.int64)
        with together(world, STAGE):
            if file:
                lines = file.read(start, stop)
        global_ids = ids.find_for_first(lines.ravel() if file else None)
        with together(world, STAGE):
            if file:
                rows, lines = _of_split(file, start, lines, global_ids.reshape(lines.shape), begin, end)
        owner, local = homes.locate(rows - begin)
        (received,) = exchange_columns([np.column_stack([local, lines])], owner, channel)
        table[received[:, 0]] = received[:, 1:]
    return table


def _of_split(file: NegativeFile, start: int, lines: np.ndarray, ids: np.ndarray, begin: int, end: int):
    """Return rows and global ids of the listed events of the split. Raises ValueError for an unknown id."""
    rows = file.row[start : start + len(lines)].astype(np.int64)
    keep = (rows >= begin) & (rows < end)
    unknown = np.argwhere((ids < 0) & keep[:, None] & ~is_none(lines))
    if len(unknown):
        line, column = unknown[0]
        raise ValueError(
            f"{file.path}: event row {rows[line]}: negative {lines[line, column].item()!r} is no destination "
            f"of this graph ({len(unknown)} such entries); write the ids of the source data"
        )
    return rows[keep], ids[keep]


def _check_complete(path: str, table: np.ndarray, first_row: int, split: str, world: World) -> None:
    """Collective. Raises DistributedError when an event has no line."""
    missing = np.flatnonzero(table[:, 0] < 0)
    none = np.iinfo(np.int64).max
    first = int(world.reduce_array(np.array([first_row + missing[0] if len(missing) else none]), "min")[0])
    total = int(world.total(len(missing)))
    with together(world, STAGE):
        if total:
            raise ValueError(
                f"{path}: no negatives for event row {first} of {split} ({total} such events); list every event of the "
                "split, with ids and times as in the source data"
            )


def _listed_by_row(file: NegativeFile | None, begin: int, end: int, partition, world, channel) -> NegativeFile | None:
    """Collective. List a file's negatives by event row, for a file that lists events by (source, destination, time);
    equal events share a line."""
    source, destination = _only_types(partition, STAGE)
    columns: Any = file.keys if file else (None, None, None)
    src = partition.original_ids(source, world).find_for_first(columns[0])
    dst = partition.original_ids(destination, world).find_for_first(columns[1])
    keys = np.empty((0, 4), np.int64)
    if file:
        keys = np.column_stack([src, dst, columns[2], np.arange(file.num_listed)])
        keys = keys[(src >= 0) & (dst >= 0)]
    matches = _match(keys, begin, end, partition, channel)
    if file is None:
        return None
    listed = file

    def read(start: int, stop: int) -> np.ndarray:
        return listed.read(0, listed.num_listed)[matches[start:stop, 1]]

    return replace(file, num_listed=len(matches), row=matches[:, 0], read=read, keys=None)


def _match(keys: np.ndarray, begin: int, end: int, partition: TemporalPartition, channel: Channel) -> np.ndarray:
    """Collective. Find the rows of the split's events with the keys [m, 4] (global src and dst, time, line) that rank 0
    brings, and their lines: [events, 2] on rank 0, nothing elsewhere. The owners of the sources look."""
    (keys,) = exchange_columns([keys], partition.book.locate(keys[:, 0])[0], channel)
    events = partition.events
    events = events.take(np.flatnonzero((events.row >= begin) & (events.row < end)))
    triples = np.concatenate([keys[:, :3], np.column_stack([events.src, events.dst, events.time])])
    unique, inverse = np.unique(triples, axis=0, return_inverse=True)
    line_of = np.full(len(unique), -1, np.int64)
    line_of[inverse[: len(keys)]] = keys[:, 3]
    line = line_of[inverse[len(keys) :]]
    matches = np.column_stack([events.row, line])[line >= 0]
    (collected,) = exchange_columns([matches], np.zeros(len(matches), np.int64), channel)
    return collected


ROUNDS = 8  # how often a pair of the batch is drawn again


def check_files(path: str, world: World) -> None:
    """Collective. Raise DistributedError where a file of fixed negatives, of validation or of the test, is missing."""
    with together(world, "find the negatives"):
        for split in SPLITS[1:] if world.rank == 0 else ():
            if not os.path.isfile(file_of(path, split)):
                raise ValueError(f"eval.negatives_file: {file_of(path, split)}: no such file")


def check_historical(source: NegativeSource) -> None:
    """Collective. Raise DistributedError where more pairs have met than can be drawn from; with fewer events than that
    nothing is counted."""
    if source.partition.num_events > directory.MOST_CHOICES:
        pairs = PairHistory(source.partition, source.channel).first_events()
        check_drawn("pairs of historical negatives", int(source.world.total(len(pairs))), REMEDY)


def all_others(batches: Batches, source: NegativeSource) -> AllOthers:
    """Collective. Take as negatives of an event all nodes of the pool (where that is typed, of the destination's type),
    except the nodes that its source meets at the same time, in events of the same split. The pool must have these
    nodes. This is one-vs-many of TGB (Huang et al., Temporal graph benchmark, NeurIPS 2023), with the filter of its
    ``NegativeEdgeGenerator``.

    Raises DistributedError where no event has a negative.
    """
    world, pool, events = source.world, source.pool, batches.events
    first, size = pool.ranges(edge_types_of(events))
    meetings, one, true_of = np.unique(
        np.column_stack([events.src, events.time, first]), axis=0, return_index=True, return_inverse=True
    )
    number, place = _true_places(meetings, batches.name, source).T
    sizes = np.bincount(number, minlength=len(meetings)).astype(np.int64)
    first, size = meetings[:, 2], size[one]
    most = int(world.reduce_array(np.array([(size - sizes).max(initial=0)]), "max")[0])
    if most == 0 and world.total(len(meetings)):
        message = (
            f"eval.negative_kind all: no event of {batches.name} has a negative, as its source has events with all "
            f"{pool.nodes.size} nodes of the pool at the same time: set task.negative_pool all, or eval.negative_kind "
            "random"
        )
        raise DistributedError(message, user_error=True)
    return AllOthers.but(pool.nodes, true_of.ravel(), sizes, place, max(most, min(1, pool.nodes.size)), first, size)


def _true_places(meetings: np.ndarray, split: str, source: NegativeSource) -> np.ndarray:
    """Collective. Find whom sources (global ids) meet at times, among the nodes of a type, which begin at a place of
    the pool, [l, 3] of this rank, each once: number of the meeting and place in the pool, [p, 2] in that order. The
    owner of a source has all of its events."""
    partition, channel = source.partition, source.channel
    begin, end = source.rows_of(split)
    events = partition.events
    events = events.take(np.flatnonzero((events.row >= begin) & (events.row < end)))
    nodes, number = np.unique(events.dst, return_inverse=True)
    (flat_row,) = Route.plan(partition.book, nodes, channel).pull(torch.from_numpy(partition.flat_row))
    place = source.pool.nodes.find(flat_row.numpy())[number]
    wanted = np.column_stack([meetings, np.arange(len(meetings)), np.full(len(meetings), channel.rank)])
    (asked,) = exchange_columns([wanted], partition.book.locate(meetings[:, 0])[0], channel)
    own = np.column_stack([events.src, events.time, source.pool.ranges(edge_types_of(events))[0]])
    _, of = np.unique(np.concatenate([own, asked[:, :3]]), axis=0, return_inverse=True)
    own_of, asked_of = np.split(of.ravel(), [len(own)])
    met = np.unique(np.column_stack([own_of, place]), axis=0)
    first, last = (np.searchsorted(met[:, 0], asked_of, side=side) for side in ("left", "right"))
    answered = np.repeat(np.arange(len(asked)), last - first)
    at = np.arange(len(answered)) - np.repeat(np.cumsum(last - first) - last, last - first)
    answers = np.column_stack([asked[answered, 3], met[at, 1]])
    (found,) = exchange_columns([answers], asked[answered, 4], channel)
    return found[np.lexsort((found[:, 1], found[:, 0]))]


@dataclass(frozen=True, slots=True)
class MetKind:
    """A kind of pairs that met before. new_only: only pairs that met for the first time after the split began;
    relation: keeps the random numbers of the kinds apart. It must never change, or other negatives are drawn."""

    name: str
    new_only: bool
    relation: int


def pairs_that_met(batches: Batches, source: NegativeSource, kind: MetKind) -> Negatives:
    """Collective. Draw historical or inductive negatives (Poursafaei et al., Toward better evaluation for dynamic link
    prediction, NeurIPS 2022).

    Each is a pair (both endpoints), uniform over the distinct pairs that met before the event's batch began and do not
    meet in the batch, and their ends have the node types of the event. Inductive pairs met for the first time after
    the split began. So inductive pairs of validation
    never met in training, and inductive pairs of the test met neither in training nor in validation, as in the authors'
    code (DGB) and in DyGLib.

    There are differences from that code. "Before" and "in the batch" go by event row, not by time. Negatives are drawn
    independently, with replacement, not without replacement within a batch. A draw that meets in the batch is drawn
    again, up to 8 times. After that, and where there is no such pair, the negative is random: the event's own source
    and a node of the pool other than its destination, not compared with the batch. ``met_share`` is the share of the
    negatives that are pairs that met before.

    Raises DistributedError where that share is 0, which is the evaluation of another kind of negatives.
    """
    drawing = _Drawing.plan(kind, batches, source)
    dst = draw_random(batches, source).whole().dst
    src, met = np.repeat(batches.events.src[:, None], dst.shape[1], axis=1), 0
    event, slot = np.nonzero(np.broadcast_to((drawing.counts() > 0)[:, None], dst.shape))
    for number in range(ROUNDS):
        if not source.world.any(len(event) > 0):  # all ranks stop after the same round: drawing is collective
            break
        pairs = drawing.draw(source.per_event, source.seed, number, event, slot)
        good = ~drawing.in_batch(pairs, event)
        src[event[good], slot[good]], dst[event[good], slot[good]] = pairs[good].T
        met += int(good.sum())
        event, slot = event[~good], slot[~good]
    total, met = int(source.world.total(dst.size)), int(source.world.total(met))
    if total and not met:
        message = (
            f"eval.negative_kind {kind.name}: none of the {total} negatives of {batches.name} can be a pair with "
            "earlier events and none in its batch, so all would be random: use eval.negative_kind random, or a smaller "
            "eval.batch_size"
        )
        raise DistributedError(message, user_error=True)
    return Negatives(dst, src, met_share=met / total if total else math.nan)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Distinct pairs of each of G groups, which are pairs of node types, in order of their first event. The batch of
    step s may draw pairs of group g at places ``first[g]`` .. ``first[g]`` + count[g, s] - 1.

    step, group [n] of every event; begin, end [S] event rows of the batches.
    """

    kind: MetKind
    pairs: list[Directory]
    history: PairHistory
    rows: np.ndarray
    step: np.ndarray
    group: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    first: np.ndarray
    count: np.ndarray

    @classmethod
    def plan(cls, kind: MetKind, batches: Batches, source: NegativeSource) -> _Drawing:
        """Collective. Find the pairs that the batches of a split may draw."""
        partition, world = source.partition, source.world
        ends = np.column_stack([partition.type_of_ends("src"), partition.type_of_ends("dst")])
        groups, group_of = np.unique(ends, axis=0, return_inverse=True)  # of edge types
        group_of, history = group_of.ravel(), PairHistory(partition, source.channel)
        met = history.first_events()
        group = group_of[edge_types_of(partition.events)][np.searchsorted(partition.events.row, met[:, 0])]
        split_begin, split_end = source.rows_of(batches.name)
        begin, end = batches.first_row, np.append(batches.first_row[1:], split_end)[: batches.num_steps]
        limits, directories, before = np.append(begin, split_begin if kind.new_only else 0), [], []
        for number in range(len(groups)):
            rows, pairs = np.split(met[group == number], [1], axis=1)
            directories.append(Directory(world, source.channel, rows[:, 0], pairs, partition.num_events))
            before.append(np.searchsorted(np.sort(rows[:, 0]), limits))
        counts = world.reduce_array(np.array(before, np.int64))
        first, count = counts[:, -1], counts[:, :-1] - counts[:, -1:]
        check_drawn(f"pairs of {kind.name} negatives", int(count.max(initial=0)), REMEDY)
        step = np.repeat(np.arange(batches.num_steps), np.diff(batches.indptr))
        return cls(
            kind, directories, history, batches.events.row, step, group_of[edge_types_of(batches.events)], begin, end,
            first, count,
        )  # fmt: skip

    def counts(self) -> np.ndarray:
        """Count the pairs that every event may draw, int64 [n]."""
        return self.count[self.group, self.step]

    def draw(self, per_event: int, seed: int, number: int, event: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Collective. Return the pairs [m, 2] (global ids) that draw ``number`` gives for some events and slots [m]."""
        random = Random(seed, Stream.EVAL_NEGATIVE, hop=number, relation=self.kind.relation)
        place = np.zeros((len(self.rows), per_event), np.int64)
        for step, group in np.unique(np.column_stack([self.step, self.group])[event], axis=0).tolist():
            first, last = np.searchsorted(self.step, (step, step + 1))
            chosen = first + np.flatnonzero(self.group[first:last] == group)
            place[chosen] = native.random_integers(random, self.rows[chosen], per_event, int(self.count[group, step]))
        place, group, pairs = place[event, slot], self.group[event], np.empty((len(event), 2), np.int64)
        for number, pairs_of in enumerate(self.pairs):
            of_group = group == number
            pairs[of_group] = pairs_of.rows(self.first[number] + place[of_group])
        return pairs

    def in_batch(self, pairs: np.ndarray, event: np.ndarray) -> np.ndarray:
        """Collective. Return, bool [m], whether pairs [m, 2] meet in the batches of their events."""
        step = self.step[event]
        last, _ = self.history.last_before(pairs[:, 0], pairs[:, 1], self.end[step])
        return last >= self.begin[step]


@dataclass(frozen=True)
class EvalNegativesPart(Part):
    """A kind of negatives in evaluation. make: collective, makes them from the batches of a split and their
    NegativeSource, in the order of ``batches.events``. ranks: events are ranked among many negatives, which decides on
    the metrics. met: negatives are pairs that met before, as far as there are any, and ``met_share`` is reported.
    reads_file: reads eval.negatives_file; check: collective, raises DistributedError for graphs with too many of
    them."""

    make: Callable[[Batches, NegativeSource], AnyNegatives]
    ranks: bool = False
    met: bool = False
    reads_file: bool = False
    check: Callable[[NegativeSource], None] | None = None


EVAL_NEGATIVES = {
    "random": EvalNegativesPart(draw_random, "task.negatives random nodes of task.negative_pool"),
    "historical": EvalNegativesPart(
        partial(pairs_that_met, kind=MetKind("historical", new_only=False, relation=2)),
        "task.negatives pairs with earlier events and none in the batch (Poursafaei et al., 2022)", met=True,
        check=check_historical,
    ),
    "inductive": EvalNegativesPart(
        partial(pairs_that_met, kind=MetKind("inductive", new_only=True, relation=3)),
        "historical pairs whose first event is after the start of the split", met=True,
    ),
    "all": EvalNegativesPart(
        all_others, "all nodes of task.negative_pool without an event of the source at the same time (TGB)", ranks=True
    ),
    "file": EvalNegativesPart(fixed_negatives, "negatives listed in eval.negatives_file", ranks=True, reads_file=True),
}  # fmt: skip
