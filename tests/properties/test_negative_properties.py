"""Negatives of generated edges on any ranks: those that a plain loop draws, on one rank as on several."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from same_verdict import same_verdict

from hpcgnn import native
from hpcgnn.comm.world import World
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.directory import NodeDirectory
from hpcgnn.native import Random, Stream
from hpcgnn.static.sampling.negatives import COUNTS, HIDDEN, End, LinkNegatives
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.task.negatives import TRIES, UniformDraw
from hpcgnn.temporal.graph import Events
from hpcgnn.temporal.negatives import random_negatives

NODES, TYPES, MOST = 6, 2, 12
SEED, EPOCH = st.integers(0, 99) | st.just((1 << 56) - 1), st.integers(0, 3) | st.just((1 << 16) - 1)
SPLIT = st.sampled_from(["train", "val"])
RANKS = st.lists(st.integers(0, 11), min_size=MOST, max_size=MOST)
ENDS = st.lists(st.integers(0, NODES), min_size=11, max_size=11)
EDGE = st.tuples(st.integers(0, NODES - 1), st.integers(0, TYPES - 1), st.integers(0, NODES - 1))


def own_of(world: World, ranks: list[int], count: int) -> np.ndarray:
    """Choose this rank's of ``count`` rows that are numbered for some ranks."""
    return np.flatnonzero(np.array(ranks)[:count] % world.size == world.rank)


@given(
    pool=st.lists(st.integers(0, NODES - 1), unique=True), ranks=RANKS, homes=RANKS, per_event=st.integers(0, 3),
    rows=st.lists(st.integers(0, 50), unique=True, max_size=MOST), seed=SEED, epoch=EPOCH, split=SPLIT,
)  # fmt: skip
def test_random_negatives_of_events(comm, world, channel, pool, rows, ranks, homes, per_event, seed, epoch, split):
    """A function of seed, event and, in training, epoch: wherever events and nodes lie. The first draw that is not the
    event's own destination, of one among all nodes and one among the others."""
    if len(pool) == 1:
        return  # refused when it is made
    pool = np.array(sorted(pool), np.int64)
    own, here = own_of(world, ranks, len(rows)), own_of(world, homes, len(pool))
    row = np.array(rows, np.int64)
    with same_verdict(comm):
        directory = NodeDirectory(world, channel, pool[here], 1000 + pool[here], NODES)
        true = row % max(1, len(pool))
        dst = 1000 + pool[true] if len(pool) else row
        events, sizes = Events(row[own], own, dst[own], own, {}), np.array([len(rows)])
        batches = SimpleNamespace(name=split, events=events, sizes=sizes)
        drawn = random_negatives(batches, UniformDraw(directory), per_event, seed, epoch).whole().dst
        if not per_event or not len(pool):
            assert drawn.shape == (len(own), 0)
            return
        stream, epoch = (Stream.NEGATIVE, epoch) if split == "train" else (Stream.EVAL_NEGATIVE, 0)
        places = native.random_integers(Random(seed, stream, epoch=epoch), row, per_event, len(pool))
        again = native.random_integers(Random(seed, stream, epoch=epoch, hop=1), row, per_event, len(pool) - 1)
        for line, other, place in zip(places, again, true, strict=True):
            others = [node for node in range(len(pool)) if node != place]
            line[:] = [others[second] if first == place else first for first, second in zip(line, other, strict=True)]
        assert np.array_equal(drawn, 1000 + pool[places][own])


class Setup:
    """Edges to learn of one relation among NODES nodes, at their ranks, and both ends that negatives take."""

    def __init__(self, world, channel, seeds, known, ranks, ends, strict):
        self.starts = np.array([0, *sorted(ends[: world.size - 1]), NODES])
        first, stop = self.starts[world.rank : world.rank + 2]
        ownership, own_nodes = BlockOwnership(self.starts), np.arange(first, stop)
        draw = UniformDraw(NodeDirectory(world, channel, own_nodes, own_nodes, NODES))
        edges = np.array(known, np.int64).reshape(-1, 3)
        heads, tails = (edges[(edges[:, at] >= first) & (edges[:, at] < stop)] for at in (0, 2))
        answers = [
            KnownAnswers(ownership, world.rank, tails[:, 0], tails[:, 1], tails[:, 2]),
            KnownAnswers(ownership, world.rank, heads[:, 2], heads[:, 1], heads[:, 0]),
        ]
        if not strict:
            answers = [None, None]
        self.ends = (
            End("src", "dst", "negative", 0, draw, draw, ownership, answers[0]),
            End("dst", "src", "negative_source", 1, draw, draw, ownership, answers[1]),
        )
        seeds = np.array(seeds, np.int64).reshape(-1, 3)
        self.whole = {"src": seeds[:, 0], "rel": seeds[:, 1], "dst": seeds[:, 2], "row": 10 + np.arange(len(seeds))}
        self.own = own_of(world, ranks, len(seeds))
        self.columns = {name: column[self.own] for name, column in self.whole.items()}

    def batches(self, split: str, size: int):
        """All seeds in one step."""
        everything = slice(0, len(self.own))
        return SimpleNamespace(
            name=split, columns=self.columns, at=lambda step: everything, sizes=[size], position=self.own
        )


def is_known(end: End, seed: dict, node: int, known: list, strict: bool) -> bool:
    """Whether a node makes an edge that no negative may be."""
    pair = (seed["src"], seed["rel"], node) if end.answer == "dst" else (node, seed["rel"], seed["dst"])
    return node == seed[end.answer] or (strict and pair in known)


@given(
    seeds=st.lists(EDGE, max_size=MOST), known=st.lists(EDGE, max_size=20, unique=True), ranks=RANKS, ends=ENDS,
    strict=st.booleans(), count=st.integers(1, 3), seed=SEED, epoch=EPOCH, split=SPLIT,
)  # fmt: skip
def test_negatives_drawn_for_every_edge(
    comm, world, channel, seeds, known, ranks, ends, strict, count, seed, epoch, split
):  # fmt: skip
    """A negative is the first draw, or, if strict, the first one that makes no edge; there may be none for a node with
    edges to all: then it is the last draw. Where that is the edge's own end, it is drawn once more among all others."""
    with same_verdict(comm):
        setup = Setup(world, channel, seeds, known, ranks, ends, strict)
        negatives = LinkNegatives(setup.ends, "edge", count, count, 99, seed, channel)
        columns = negatives(setup.batches(split, len(seeds)), epoch, 0)
        stream, epoch = (Stream.NEGATIVE, epoch) if split == "train" else (Stream.EVAL_NEGATIVE, 0)
        for end in setup.ends:
            draws = [
                native.random_integers(
                    Random(seed, stream, 0, epoch, attempt, end.number), setup.whole["row"], count, NODES
                )
                for attempt in range(TRIES)
            ]
            others = native.random_integers(
                Random(seed, stream, 1, epoch, 0, end.number), setup.whole["row"], count, NODES - 1
            )
            for at, number in enumerate(setup.own):
                edge = {name: int(column[number]) for name, column in setup.whole.items()}
                for slot, node in enumerate(columns[end.column][at].tolist()):
                    line = [int(draw[number, slot]) for draw in draws]
                    good = [other for other in line if not is_known(end, edge, other, known, strict)]
                    expected = (good[0] if good else line[-1]) if strict else line[0]
                    if expected == edge[end.answer]:
                        others_of = [other for other in range(NODES) if other != edge[end.answer]]
                        expected = others_of[others[number, slot]]
                    assert node == expected


@given(
    seeds=st.lists(EDGE, max_size=MOST), known=st.lists(EDGE, max_size=20, unique=True), ranks=RANKS, ends=ENDS,
    strict=st.booleans(), count=st.integers(0, 4), source=st.sampled_from(["batch", "shared"]), seed=SEED,
)  # fmt: skip
def test_candidates_of_a_step(comm, world, channel, seeds, known, ranks, ends, strict, count, source, seed):
    """All ranks see the same ones, each at its owner; hidden are the pairs that make an edge, and no others."""
    known = [*known, *[edge for edge in seeds if edge not in known]]
    with same_verdict(comm):
        setup = Setup(world, channel, seeds, known, ranks, ends, strict)
        negatives = LinkNegatives(setup.ends, source, count, 1, 7, seed, channel)
        columns = negatives(setup.batches("train", len(seeds)), 1, 0)
        everyone = comm.allgather([columns[end.column] for end in setup.ends])
        for end in setup.ends:
            pieces = [of_rank[end.number] for of_rank in everyone]
            candidates = np.concatenate(pieces)
            assert np.array_equal(columns[end.column + COUNTS], [len(piece) for piece in pieces])
            assert (np.diff(candidates) > 0).all()
            assert (np.searchsorted(setup.starts, pieces[world.rank], side="right") - 1 == world.rank).all()
            random = Random(seed, Stream.NEGATIVE, 0, 1, relation=end.number)
            if source == "shared":
                expected = native.random_integers(random, np.arange(count or 7), 1, NODES).ravel()
            else:
                expected = setup.whole[end.answer]
            if source == "shared" or not 0 < count < len(seeds):
                assert np.array_equal(candidates, np.unique(expected))
            else:
                assert set(candidates.tolist()) <= set(expected.tolist())
                assert 0 < len(candidates) <= count
            hidden = {(int(at), int(candidates[place])) for at, place in columns[end.column + HIDDEN]}
            for at, number in enumerate(setup.own):
                edge = {name: int(column[number]) for name, column in setup.whole.items()}
                for node in candidates.tolist():
                    assert ((at, node) in hidden) == is_known(end, edge, node, known, strict)
