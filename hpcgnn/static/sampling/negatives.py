"""Draws the negatives of edges: nodes that take the place of one of their ends.

s seeds of this rank, k negatives a seed; c candidates of this rank, m of all ranks. x pairs of a seed and a candidate
that is not its negative. Negatives are a function of random key, edges and nodes, the same on any number of ranks.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.group import DistributedError
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.directory import check_drawn, permute
from hpcgnn.graph.splits import SPLITS
from hpcgnn.native import Random, Stream
from hpcgnn.static.config import BATCH, EDGE
from hpcgnn.static.sampling.seeds import SeedBatches
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.negatives import NegativeDraw, draw_negatives

COUNTS, HIDDEN = ".counts", ".hidden"  # of candidates: what follows the negatives' name in the names of further columns

Columns = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class End:
    """An end of edges that negatives replace. query, answer, column: names of the columns with the end that stays, the
    end that is replaced, and the negatives; number: of this end, part of the random key. training, evaluation: draw
    nodes of its type; ownership: of this type; known: the training edges, for strict negatives, or None."""

    query: str
    answer: str
    column: str
    number: int
    training: NegativeDraw
    evaluation: NegativeDraw
    ownership: BlockOwnership
    known: KnownAnswers | Any


class LinkNegatives:
    """Adds negatives to the columns of a step's seeds. Collective to call, over ``channel``. Raises DistributedError
    for more nodes of a type than can be drawn from, and for a single one.

    source: origin of the negatives of training. "edge": ``count`` draws for every seed, a column [s, k]. "batch": the
    answers of the step's own seeds, or of ``count`` of them. "shared": ``count`` draws for the whole step. The latter
    two are candidates of all seeds: a column [c] of the candidates that this rank owns, and the number that each rank
    owns [R] (COUNTS). HIDDEN has the pairs [x, 2] of a seed and a candidate to mask, in order of seeds. Masked are the
    seed's own answer and, if strict, other answers that make a training edge. Evaluation always uses "edge", with
    ``eval_count``.
    """

    def __init__(
        self, ends: tuple[End, ...], source: str, count: int, eval_count: int, batch_size: int, seed: int,
        channel: Channel,
    ):  # fmt: skip
        for end in ends:
            size = end.training.pool.size
            check_drawn("nodes that negatives are drawn from", size, "learn a relation to fewer nodes")
            if size < 2:
                raise DistributedError(
                    f"no negatives: negatives replace the {end.answer} of an edge, and there is {size} node of its "
                    "type: learn another relation",
                    user_error=True,
                )
        self._ends, self._source, self._count, self._eval_count = ends, source, count, eval_count
        self._batch_size, self._seed, self._channel = batch_size, seed, channel

    def over(self, channel: Channel) -> LinkNegatives:
        """Return a twin for another thread, which communicates over ``channel``: its requests must not meet another
        thread's."""
        twin = copy.copy(self)
        twin._ends = tuple(
            replace(end, training=end.training.over(channel), evaluation=end.evaluation.over(channel))
            for end in self._ends
        )
        twin._channel = channel
        return twin

    def __call__(self, batches: SeedBatches, epoch: int, step: int) -> Columns:
        """Collective. Make all columns of this rank's seeds of a step."""
        seeds = batches.at(step)
        columns = {name: column[seeds] for name, column in batches.columns.items()}
        training = batches.name == SPLITS[0]
        if not training or self._source == EDGE:
            count = (self._count or 1) if training else self._eval_count
            random = Random(self._seed, Stream.NEGATIVE, epoch=epoch) if training else None
            return columns | {end.column: self._draw(end, columns, count, random) for end in self._ends}
        for end in self._ends:
            random = Random(self._seed, Stream.NEGATIVE, step, epoch, relation=end.number)
            if self._source == BATCH:
                candidates = self._answers(columns[end.answer], batches, step, random)
            else:
                places = end.training.draw(random, np.arange(self._count or self._batch_size), 1)
                candidates = np.sort(end.training.pool.lookup(np.unique(places)))
            columns |= self._candidate_columns(end, columns, candidates)
        return columns

    def _draw(self, end: End, columns: Columns, count: int, random: Random | None) -> np.ndarray:
        """Collective. Draw nodes [s, count] for every seed: a function of seed, epoch and edge alone, and outside
        training (random None) the same in all epochs. None is the seed's own answer, or, if strict, makes an edge."""
        key = replace(random or Random(self._seed, Stream.EVAL_NEGATIVE), relation=end.number)
        draw, query, types = (end.training if random else end.evaluation), columns[end.query], edge_types(columns)

        def is_known(seeds: np.ndarray, nodes: np.ndarray) -> np.ndarray:
            return end.known.hold(query[seeds], types[seeds], nodes[0], self._channel)

        own, again = columns[end.answer][None], replace(key, step=1)  # step 0 has the first draws
        is_edge = None if end.known is None else is_known
        return draw_negatives([draw], [key], columns["row"], count, own, again, is_edge)[0]

    def _answers(self, answers: np.ndarray, batches: SeedBatches, step: int, random: Random) -> np.ndarray:
        """Collective. List the different answers, increasing, of the step's seeds, or of ``count`` of them; answers
        [s]: of this rank's seeds."""
        size = int(batches.sizes[step])
        if 0 < self._count < size:
            place = batches.position[batches.at(step)] - step * self._batch_size
            answers = answers[permute(place, size, random) < self._count]
        return np.unique(self._everyone(answers))

    def _candidate_columns(self, end: End, columns: Columns, candidates: np.ndarray) -> Columns:
        """Collective. Make the columns of candidates [m], increasing, the same on all ranks; a candidate is embedded by
        its owner."""
        bounds = np.searchsorted(candidates, end.ownership.starts)
        own = candidates[bounds[self._channel.rank] : bounds[self._channel.rank + 1]]
        if end.known is None:
            place = np.minimum(np.searchsorted(candidates, columns[end.answer]), len(candidates) - 1)
            seed = np.flatnonzero(candidates[place] == columns[end.answer])
            hidden = np.column_stack([seed, place[seed]])
        else:
            hidden = self._find_hidden(end, columns, own, int(bounds[self._channel.rank]))
        return {end.column: own, end.column + COUNTS: np.diff(bounds), end.column + HIDDEN: hidden}

    def _find_hidden(self, end: End, columns: Columns, own: np.ndarray, first: int) -> np.ndarray:
        """Collective. Find the pairs [x, 2] of this rank's seeds and all ranks' candidates that are known edges. The
        owners of candidates look them up for the seeds of all ranks. own [c]: this rank's candidates, numbered from
        ``first`` on."""
        counts = self._channel.counts(np.full(self._channel.size, len(columns[end.query])))
        query, types = self._everyone(np.column_stack([columns[end.query], edge_types(columns)]), counts).T
        seed, node = end.known.of(query, types)
        node += end.known.first
        place = np.minimum(np.searchsorted(own, node), max(0, len(own) - 1))
        is_candidate = own[place] == node if len(own) else np.zeros(len(node), bool)
        pairs = np.column_stack([seed, first + place])[is_candidate]
        begin = np.cumsum(counts) - counts
        rank = np.searchsorted(begin + counts, pairs[:, 0], side="right")
        pairs[:, 0] -= begin[rank]
        send = np.bincount(rank, minlength=self._channel.size).astype(np.int64)
        received = self._channel.array(pairs, send, self._channel.counts(send))
        return received[np.argsort(received[:, 0], kind="stable")]

    def _everyone(self, values: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
        """Collective. Gather the rows [n, ...] of all ranks, in rank order."""
        return self._channel.everyone(torch.from_numpy(np.ascontiguousarray(values)), counts).numpy()


def edge_types(columns: Columns) -> np.ndarray:
    """Return the edge types of the seeds; 0 where edges have no types."""
    return columns["rel"] if "rel" in columns else np.zeros_like(columns["src"])
