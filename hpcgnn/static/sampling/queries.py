"""Makes the queries of training that are scored with all nodes, and finds their known answers.

A query is a node, an edge type and the end of an edge that is asked for; answers are the nodes at that end of training
edges. s queries of this rank in a step, B of all ranks; m training edges, or their copies, at this rank.
"""

from __future__ import annotations

import copy

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.static.sampling.negatives import Columns, edge_types
from hpcgnn.static.sampling.seeds import (
    TRAIN,
    SeedBatches,
    SeedPool,
    known_answers,
    make_pool,
    seed_columns,
    to_owners,
)
from hpcgnn.task.known_edges import KnownAnswers

QUERY, END, NUMBER, SIZE = "query", "end", "number", "size"  # columns of queries
ALL_NODES, ALL_TYPES, ALL_ENDS, ALL_SIZES = "nodes", "types", "ends", "sizes"
ANSWERS, USED, SHARES = "answers", "used", "shares"
SOURCE, DESTINATION = 0, 1


def query_pool(
    partition: GraphPartition, relation: int, ends: tuple[int, ...], several: bool, world: World, channel: Channel
) -> SeedPool:  # fmt: skip
    """Collective. Make the pool of the queries of a relation's training edges, at the owners of their nodes. ends: that
    are asked for. Every edge makes a query for each of them or, if ``several``, edges with the same query make one.

    Columns are int64: query (global id), rel, end, answer (global id, of one of its edges), size (number of different
    answers), and number, which tells queries apart on any number of ranks: 2 * row of its first edge + end.
    """
    columns, kind = seed_columns(partition, relation), partition.relations[relation]
    is_training = partition.edges[relation].columns["split"] == TRAIN
    edges = [columns["src"], columns["dst"], columns["row"], edge_types(columns)]
    edges = [column[is_training] for column in edges]
    pieces = []
    for end in ends:
        src, dst, row, rel = edges
        query, answer = (src, dst) if end == DESTINATION else (dst, src)
        if (end == DESTINATION) != partition.turned:  # the other end is this rank's node
            query, answer, row, rel = to_owners(partition, [query, answer, row, rel], channel)
        size = np.ones_like(query)
        if several:
            chosen, size = _groups(query, rel, answer, row)
            query, rel, answer, row = (column[chosen] for column in (query, rel, answer, row))
        pieces.append([query, rel, np.full_like(query, end), answer, size, 2 * row + end])
    names = (QUERY, "rel", END, "answer", SIZE, NUMBER)
    found = dict(zip(names, map(np.concatenate, zip(*pieces, strict=True)), strict=True))
    return make_pool("train", found[NUMBER], 2 * kind.num_edges, found, world, channel)


def _groups(query: np.ndarray, rel: np.ndarray, answer: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose of the edges [m] with the same query the one that is first in the graph file; also returns the number of
    different answers of each."""
    order = np.lexsort((answer, rel, query))
    keys = np.column_stack([query, rel, answer])[order]
    is_first = np.ones((len(order), 2), bool)  # of a query, of an answer of it
    is_first[1:, 0] = np.any(keys[1:, :2] != keys[:-1, :2], axis=1)
    is_first[1:, 1] = np.any(keys[1:] != keys[:-1], axis=1)
    number, begin = np.cumsum(is_first[:, 0]) - 1, np.flatnonzero(is_first[:, 0])
    size = np.bincount(number, weights=is_first[:, 1]).astype(np.int64)
    by_row = np.lexsort((row[order], number))
    return order[by_row[begin]], size


class QueryAnswers:
    """Adds to the columns of a step's queries what ranks need to score all of them. Collective to call, over
    ``channel``.

    Added are, of the queries of all ranks, in rank order: nodes, types, ends and sizes [B], columns of the pool; and
    shares [R], how many queries each rank has. answers [x, 2]: pairs of a query and of a known answer, counted among
    this rank's nodes, in order of queries. used [y, 2]: float64, nodes of this rank that are a query's node or answer,
    and how often; a query counts as often as its weight in the loss says.
    """

    def __init__(
        self, known: dict[int, KnownAnswers | None], ownership: BlockOwnership, channel: Channel, power: float
    ):  # fmt: skip
        """known: by end that is asked for, the answers of queries at this rank where a query has several; None: the one
        in its column. ownership: of the nodes that may be answers; power: task.answer_power."""
        self._known, self._channel, self._power = known, channel, power
        self._first, last = ownership.starts[channel.rank : channel.rank + 2].tolist()
        self._count = last - self._first

    def over(self, channel: Channel) -> QueryAnswers:
        """Return a twin for another thread, which communicates over ``channel``."""
        twin = copy.copy(self)
        twin._channel = channel
        return twin

    def __call__(self, batches: SeedBatches, epoch: int, step: int) -> Columns:
        """Collective. Make all columns of a step."""
        columns = {name: column[batches.at(step)] for name, column in batches.columns.items()}
        shares = self._channel.counts(np.full(self._channel.size, len(columns[QUERY])))
        sent = np.column_stack([columns[name] for name in (QUERY, "rel", END, "answer", SIZE)])
        received = self._channel.everyone(torch.from_numpy(np.ascontiguousarray(sent)), shares).numpy()
        query, types, ends, answer, sizes = np.ascontiguousarray(received.T)
        pairs = []
        for end, known in self._known.items():
            chosen = np.flatnonzero(ends == end)
            if known is None:
                place = self._own(answer[chosen])
                number = np.flatnonzero(place >= 0)
                place = place[number]
            else:
                number, place = known.of(query[chosen], types[chosen])
            pairs.append(chosen[number] * self._count + place)
        keys = np.unique(np.concatenate(pairs))  # parallel edges make one answer
        answers = np.column_stack(np.divmod(keys, max(1, self._count)))
        place = self._own(query)
        nodes, number = np.unique(np.concatenate([place[place >= 0], answers[:, 1]]), return_inverse=True)
        counts = np.concatenate([sizes[place >= 0] ** self._power, np.ones(len(answers))])
        used = nodes, np.bincount(number, weights=counts, minlength=len(nodes))
        return columns | {
            ALL_NODES: query, ALL_TYPES: types, ALL_ENDS: ends, ALL_SIZES: sizes, SHARES: shares, ANSWERS: answers,
            USED: np.column_stack(used),
        }  # fmt: skip

    def _own(self, nodes: np.ndarray) -> np.ndarray:
        """Count nodes [n], global ids, among this rank's possible answers; -1 for other nodes."""
        place = nodes - self._first
        return np.where((place >= 0) & (place < self._count), place, -1)


def make_queries(
    partition: GraphPartition, relation: int, ends: tuple[int, ...], several: bool, power: float, world: World,
    channel: Channel,
) -> tuple[SeedPool, QueryAnswers]:  # fmt: skip
    """Collective. Make the training queries of a relation, as ``query_pool`` does, and the lookup of their answers.
    All ``ends`` have nodes of one type. power: task.answer_power."""
    kind = partition.relation_in_graph(relation)
    training = partition.edges[relation].columns["split"] == TRAIN
    known = {
        end: known_answers(partition, relation, end == SOURCE, training, channel) if several else None for end in ends
    }
    ownership = partition.book.of_type((kind.src_type, kind.dst_type)[ends[0]])
    answers = QueryAnswers(known, ownership, channel, power)
    return query_pool(partition, relation, ends, several, world, channel), answers
