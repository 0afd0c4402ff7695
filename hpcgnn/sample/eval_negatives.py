"""The negatives of a split's evaluation, the same in every epoch, on any number of ranks and any partition set.

n events of this rank, k negatives an event, S steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcgnn import native
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.splits import SPLITS
from hpcgnn.native import Random, Stream
from hpcgnn.sample.batches import Batches
from hpcgnn.sample.directory import Directory, NodeDirectory
from hpcgnn.sample.fixed_negatives import fixed_negatives
from hpcgnn.sample.negatives import AllOthers, Negatives, random_negatives
from hpcgnn.sample.pair_history import PairHistory
from hpcgnn.sample.splits import Splits
from hpcgnn.store.partition import TemporalPartition

NEGATIVE_KINDS = ("random", "historical", "inductive", "all", "file")
ROUNDS = 8  # how often a pair of the batch is drawn again


@dataclass(frozen=True, slots=True)
class NegativeSource:
    """What the negatives of all splits are made from. pool: the nodes that random negatives are drawn from."""

    partition: TemporalPartition
    splits: Splits
    pool: NodeDirectory
    world: World
    channel: Channel
    seed: int


def eval_negatives(
    kind: str, batches: Batches, per_event: int, source: NegativeSource, path: str = ""
) -> Negatives | AllOthers:
    """Collective. Negatives of this rank's events of a split, in the order of ``batches.events``.

    kind:
        random: ``per_event`` nodes of the pool, with the event's own source.
        historical, inductive: ``per_event`` pairs that met before; see ``pairs_that_met``.
        all: every node of the pool but the true destination, which the pool must hold (one-vs-many of TGB, Huang et
            al., Temporal graph benchmark, NeurIPS 2023); ``per_event`` is not used.
        file: what the file ``path`` says, see ``fixed_negatives``; ``per_event`` is not used.

    Raises ValueError for an unknown kind, DistributedError for a file that cannot be used.
    """
    if kind == "random":
        return random_negatives(batches, source.pool, per_event, source.seed)
    if kind in ("historical", "inductive"):
        return pairs_that_met(kind, batches, per_event, source)
    if kind == "all":
        return all_others(batches, source.pool)
    if kind == "file":
        return fixed_negatives(path, batches, source.splits, source.partition, source.world, source.channel)
    raise ValueError(f"the kind of negatives must be one of {', '.join(NEGATIVE_KINDS)}, got {kind!r}")


def all_others(batches: Batches, pool: NodeDirectory) -> AllOthers:
    """Collective. All nodes of the pool but each event's destination, in order of flat row id."""
    members = pool.lookup(np.arange(pool.size))
    order = np.argsort(members)
    return AllOthers(members, order[np.searchsorted(members, batches.events.dst, sorter=order)])


def pairs_that_met(kind: str, batches: Batches, per_event: int, source: NegativeSource) -> Negatives:
    """Collective. "historical" or "inductive" negatives (Poursafaei et al., Towards better evaluation for dynamic link
    prediction, NeurIPS 2022).

    Each is a pair (both endpoints), uniform over the distinct pairs that met before the event's batch began and do not
    meet in the batch; inductive ones met for the first time after the split began. So the inductive pairs of validation
    never met in training, those of the test neither in training nor in validation, as in the authors' code (DGB) and in
    DyGLib.

    What differs from that code: "before" and "in the batch" go by event row, not by time; negatives are drawn with
    replacement, each for itself, not without within a batch; a draw that meets in the batch is drawn again, up to 8
    times; after that, and where there is no such pair, the negative is the random one: the event's own source and a
    node of the pool, not compared with the batch.
    """
    drawing = _Drawing.plan(kind, batches, source)
    dst = random_negatives(batches, source.pool, per_event, source.seed).dst
    src = np.repeat(batches.events.src[:, None], dst.shape[1], axis=1)
    event, slot = np.nonzero(np.broadcast_to(drawing.possible()[:, None], dst.shape))
    for number in range(ROUNDS):
        if not source.world.any(len(event) > 0):
            break
        pairs = drawing.draw(per_event, source.seed, number, event, slot)
        good = ~drawing.in_batch(pairs, event)
        src[event[good], slot[good]], dst[event[good], slot[good]] = pairs[good].T
        event, slot = event[~good], slot[~good]
    return Negatives(dst, src)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Distinct pairs in order of their first event; the batch of step s may draw those at places ``first`` .. ``first``
    + count[s] - 1.

    step [n] of every event; begin, end [S] event rows of the batches.
    """

    kind: str
    pairs: Directory
    history: PairHistory
    rows: np.ndarray
    step: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    first: int
    count: np.ndarray

    @classmethod
    def plan(cls, kind: str, batches: Batches, source: NegativeSource) -> _Drawing:
        """Collective."""
        partition, world = source.partition, source.world
        history = PairHistory(partition, source.channel)
        pairs = history.first_events()
        directory = Directory(world, source.channel, pairs[:, 0], pairs[:, 1:], partition.num_events)
        split_begin, split_end = source.splits.bounds[SPLITS.index(batches.name) :][:2]
        begin, end = batches.first_row, np.append(batches.first_row[1:], split_end)[: batches.num_steps]
        limits = np.append(begin, 0 if kind == "historical" else split_begin)
        *known, first = world.reduce_array(np.searchsorted(np.sort(pairs[:, 0]), limits)).tolist()
        step = np.repeat(np.arange(batches.num_steps), np.diff(batches.indptr))
        count = np.array(known, np.int64) - first
        return cls(kind, directory, history, batches.events.row, step, begin, end, first, count)

    def possible(self) -> np.ndarray:
        """Boolean [n]: whether an event's batch has pairs to draw from."""
        return self.count[self.step] > 0

    def draw(self, per_event: int, seed: int, number: int, event: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Collective. The pairs [m, 2] (global ids) that draw ``number`` gives for some events and slots [m]."""
        random = Random(seed, Stream.EVAL_NEGATIVE, hop=number, relation=1 + NEGATIVE_KINDS.index(self.kind))
        place = np.zeros((len(self.rows), per_event), np.int64)
        for step in np.unique(self.step[event]).tolist():
            at = slice(*np.searchsorted(self.step, (step, step + 1)))
            place[at] = native.random_integers(random, self.rows[at], per_event, int(self.count[step]))
        return self.pairs.rows(self.first + place[event, slot])

    def in_batch(self, pairs: np.ndarray, event: np.ndarray) -> np.ndarray:
        """Collective. Boolean [m]: whether pairs [m, 2] meet in the batches of their events."""
        step = self.step[event]
        last, _ = self.history.last_before(pairs[:, 0], pairs[:, 1], self.end[step])
        return last >= self.begin[step]
