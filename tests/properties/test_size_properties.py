"""Ids, rows, offsets and counts around 2^31, 2^32 and 2^53, of graphs whose sizes are pretended: exact, as plain Python
has them, or refused."""

from __future__ import annotations

import tracemalloc
from bisect import bisect_right
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from same_verdict import same_verdict

from hpcgnn import native
from hpcgnn.comm import exchange
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import MOST_ROWS, Route, narrow_rows
from hpcgnn.graph import directory
from hpcgnn.graph.book import BlockOwnership, Book, find_remote_nodes, is_remote
from hpcgnn.graph.directory import bounds_of_least, spill, surplus_moves
from hpcgnn.native import Random, Relabel, Stream
from hpcgnn.native.random import MOST_CHOICES
from hpcgnn.task.known_edges import KnownAnswers
from hpcgnn.temporal.neighbors import NeighborSource, Queries

LARGE = [1 << 31, 1 << 32, 1 << 53]
AROUND = st.sampled_from(LARGE).flatmap(lambda size: st.integers(size - 3, size + 3))
COUNT = st.integers(0, 3) | AROUND
KEY = Random(5, Stream.SHUFFLE)


@st.composite
def books(draw):
    """A book of 1 to 3 types and 1 to 5 parts, for some ranks, and ids near the ends of its blocks."""
    types, parts = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    counts = draw(st.lists(COUNT, min_size=types * parts, max_size=types * parts))
    ends = np.cumsum(np.array(counts, np.int64))
    offsets = np.concatenate([[0], ends])[np.arange(types)[:, None] * parts + np.arange(parts + 1)]
    book = Book(offsets, draw(st.integers(1, parts)), ("a", "b", "c")[:types])
    around = sorted({at for end in (0, *ends.tolist()) for at in range(end - 2, end + 2) if 0 <= at < ends[-1]})
    ids = draw(st.lists(st.sampled_from(around), max_size=9)) if around else []
    return book, np.array(ids, np.int64)


def place_of(book: Book, node: int) -> tuple[int, int, int]:
    """Part, rank and local row of a node, by going through all blocks."""
    parts = book.offsets.shape[1] - 1
    ranks = [bisect_right([size * parts // book.size for size in range(1, book.size)], part) for part in range(parts)]
    rows = [0] * book.size
    for ends in book.offsets.tolist():
        for part in range(parts):
            if ends[part] <= node < ends[part + 1]:
                return part, ranks[part], rows[ranks[part]] + node - ends[part]
            rows[ranks[part]] += ends[part + 1] - ends[part]
    raise AssertionError(node)


@pytest.mark.serial
@given(drawn=books())
def test_owners_and_rows_of_nodes(drawn):
    book, ids = drawn
    expected = np.array([place_of(book, node) for node in ids.tolist()], np.int64).reshape(-1, 3)
    part, owner, local = expected.T
    assert np.array_equal(book.part_of(ids), part)
    for found in (book.locate(ids), native.locate(ids, book.blocks)):
        assert np.array_equal(np.column_stack(found), expected[:, 1:])
    order, in_order, counts = native.locate_by_owner(ids, book.blocks, book.size)
    assert np.array_equal(order, np.argsort(owner, kind="stable"))
    assert np.array_equal(in_order, local[order])
    unique, inverse, own_rows, counts = native.unique_by_owner(ids, book.blocks, book.size)
    assert np.array_equal(unique[inverse], ids)
    assert len(set(unique.tolist())) == len(unique) == counts.sum()
    assert np.array_equal(np.column_stack([np.repeat(np.arange(book.size), counts), own_rows]), [
        place_of(book, node)[1:] for node in unique.tolist()
    ] or np.empty((0, 2)))  # fmt: skip
    for kind in range(len(book.node_types)):
        inside = ids[(ids >= book.offsets[kind, 0]) & (ids < book.offsets[kind, -1])]
        owners, rows = book.of_type(kind).locate(inside)
        assert owners.tolist() == [place_of(book, node)[1] for node in inside.tolist()]
        for rank in range(book.size):
            starts = book.of_type(kind).starts
            assert np.array_equal(is_remote(book, rank, kind, inside), owners != rank)
            assert np.array_equal(rows[owners == rank], inside[owners == rank] - starts[rank])
            remote_nodes, (numbers,) = find_remote_nodes(book, rank, [(kind, inside, owners != rank)])
            own = int(starts[rank + 1] - starts[rank])
            assert [
                remote_nodes[kind][at - own] if at >= own else at + starts[rank] for at in numbers
            ] == inside.tolist()


@pytest.mark.serial
@given(total=COUNT, size=st.sampled_from([1, 2, 3, 7, 1024, 1 << 17]))
@example(total=1 << 53, size=1024)
def test_even_blocks(total, size):
    starts = BlockOwnership.even(total, size).starts
    assert (starts[0], starts[-1], len(starts)) == (0, total, size + 1)
    lengths = np.diff(starts)
    assert lengths.min() >= total // size
    assert lengths.max() <= -(-total // size)


@given(keys=st.lists(COUNT, unique=True, max_size=12), ranks=st.lists(st.integers(0, 11), min_size=12, max_size=12))
def test_places_of_keys(comm, world, channel, keys, ranks):
    """In sorted lists at the ranks; looked up, they are what was put in."""
    order = {key: place for place, key in enumerate(sorted(keys))}
    own = [key for key, rank in zip(keys, ranks, strict=False) if rank % world.size == world.rank]
    keys, num_keys = np.array(own, np.int64), (1 << 53) + 4
    with same_verdict(comm):
        place, total = directory.places_of(keys, num_keys, world, channel)
        nodes = directory.NodeDirectory(world, channel, keys, 3 * keys, num_keys).lookup(np.arange(len(order)))
        assert total == len(order)
        assert place.tolist() == [order[key] for key in own]
        assert nodes.tolist() == [3 * key for key in order]


@pytest.mark.serial
@given(
    num_keys=AROUND, ranks=st.sampled_from([1, 4, 1024]), keys=st.lists(COUNT, max_size=12), even=st.integers(1, 300)
)
@example(num_keys=1 << 53, ranks=1024, keys=[], even=300)
def test_shares_of_keys_among_pretended_ranks(num_keys, ranks, keys, even):
    """Cover all keys, in order; a rank has as many as the others, and those of one bin more."""
    keys = [*keys, *range(0, num_keys, -(-num_keys // even))]
    keys = np.array([key for key in keys if key < num_keys], np.int64)
    group = SimpleNamespace(size=ranks, reduce_array=lambda values: values)
    shares = directory._even_shares(keys, num_keys, group)
    assert (shares.starts[0], shares.starts[-1], len(shares.starts)) == (0, num_keys, ranks + 1)
    assert (np.diff(shares.starts) >= 0).all()
    bins = [key * directory.BINS_PER_RANK * ranks // num_keys for key in keys.tolist()]
    most = -(-len(keys) // ranks) + max(map(bins.count, bins), default=0)
    assert np.bincount(shares.locate(keys)[0], minlength=ranks).max() <= most


def spilled(counts: np.ndarray, sizes: np.ndarray) -> list[list[list[int]]]:
    """The rule by plain loops: handlers of every root, by owner and step, from counts [R, S]."""
    size = len(counts)
    handlers = [[[owner] * int(count) for count in row] for owner, row in enumerate(counts)]
    for step, total in enumerate(sizes):
        capacity = -(-int(total) // size)
        room = [rank for rank in range(size) for _ in range(capacity - int(counts[rank, step]))]
        for owner in range(size):
            for place in range(capacity, int(counts[owner, step])):
                handlers[owner][step][place] = room.pop(0)
    return handlers


@given(data=st.data(), steps=st.integers(0, 7), most=st.sampled_from([1, 3, 40]))
def test_roots_that_exceed_a_share(comm, channel, data, steps, most):
    """Every surplus root finds the rank that the rule names, and no rank is filled over its capacity."""
    row = st.lists(st.just(0) | st.integers(0, most), min_size=steps, max_size=steps)
    counts = np.array([data.draw(row) for _ in range(12)], np.int64).reshape(12, steps)[: comm.size]
    sizes = counts.sum(axis=0)
    step = np.repeat(np.arange(steps), counts[comm.rank])
    with same_verdict(comm):
        target = spill(step, sizes, channel)
        expected = spilled(counts, sizes)
        assert target.tolist() == [rank for handlers in expected[comm.rank] for rank in handlers]
        for of_step in zip(*expected, strict=True):
            handled = np.bincount(np.concatenate([np.array(handlers, np.int64) for handlers in of_step]))
            assert handled.max(initial=0) <= -(-sum(map(len, of_step)) // comm.size)


@pytest.mark.serial
@given(size=st.integers(1, 9), data=st.data(), steps=st.integers(0, 4))
def test_moves_of_pretended_ranks(size, data, steps):
    row = st.lists(st.just(0) | st.integers(0, 30), min_size=steps, max_size=steps)
    counts = np.array([data.draw(row) for _ in range(size)], np.int64).reshape(size, steps)
    capacity, handlers = -(-counts.sum(axis=0) // size), spilled(counts, counts.sum(axis=0))
    moves = surplus_moves(counts.T, counts.sum(axis=0))
    for owner, step in np.ndindex(*counts.shape):
        mine = moves[(moves[:, 0] == step) & (moves[:, 1] == owner)]
        assert np.repeat(*mine[:, 2:].T).tolist() == handlers[owner][step][capacity[step] :]
        assert (mine[:, 3] > 0).all()


@pytest.mark.serial
def test_moves_take_no_memory_for_each_rank():
    """What they need is some times the counts of the steps that a rank has, not a row of ranks for every root."""
    counts = np.random.default_rng(0).poisson(0.6, (150, 1024)) * 1000
    tracemalloc.start()
    moves = surplus_moves(counts, counts.sum(axis=1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert moves[:, 3].sum() == np.maximum(counts - -(-counts.sum(axis=1) // 1024)[:, None], 0).sum()
    assert peak < 16 * counts.nbytes


@given(values=st.lists(COUNT, max_size=12), most=st.integers(0, 13), ranks=st.lists(st.integers(0, 11), min_size=12))
def test_bounds_of_the_least(comm, world, values, most, ranks):
    values, ranks = np.array(values, np.int64), np.array(ranks[: len(values)]) % comm.size
    with same_verdict(comm):
        (bound,) = bounds_of_least(np.sort(values[ranks == comm.rank]), np.array([most]), world)
        assert not len(values) or (values < bound).sum() <= most
        assert not len(values) or bound > values.max() or (values <= bound).sum() > most


@pytest.mark.serial
@given(size=AROUND, places=st.lists(st.integers(0, 3) | AROUND, unique=True, max_size=12), back=st.booleans())
def test_permutations(size, places, back):
    places = np.array([place for place in places if place < size], np.int64)
    one, other = (directory.permute, directory.permute_back)[:: -1 if back else 1]
    moved = one(places, size, KEY)
    assert ((moved >= 0) & (moved < size)).all()
    assert len(set(moved.tolist())) == len(places)
    assert np.array_equal(other(moved, size, KEY), places)


@pytest.mark.serial
def test_permutations_stay_what_they_are():
    """A run that goes on with a later version has the order of seeds that it began with."""
    key = Random(5, Stream.SHUFFLE, epoch=3)
    assert directory.permute(np.arange(12), 12, key).tolist() == [11, 1, 4, 3, 8, 5, 6, 10, 2, 9, 7, 0]
    places, size = np.array([0, 1, 1 << 40]), (1 << 40) + 1
    assert directory.permute(places, size, KEY).tolist() == [420279335546, 937755283471, 917147042112]


@pytest.mark.serial
@given(bound=st.integers(1, 3) | AROUND, identity=st.lists(COUNT, max_size=6))
def test_random_integers(bound, identity):
    identity = np.array(identity, np.int64)
    if bound > MOST_CHOICES:
        with pytest.raises(ValueError, match="bound must be in"):
            native.random_integers(KEY, identity, 3, bound)
        return
    values = native.random_integers(KEY, identity, 3, bound)
    assert ((values >= 0) & (values < bound)).all()


@pytest.mark.serial
@given(ids=st.lists(st.just(-1) | COUNT, max_size=12), dense=st.booleans())
def test_unique_ids(ids, dense):
    array = np.array(ids, np.int64)
    expected = list(dict.fromkeys(node for node in ids if node >= 0))
    unique, inverse = native.unique_relabel(array)
    assert unique.tolist() == expected
    assert inverse.tolist() == [-1 if node < 0 else expected.index(node) for node in ids]
    relabel = Relabel((1 << 53) + 4)
    assert relabel.add(array).tolist() == inverse.tolist()
    assert relabel.unique.tolist() == expected
    events = array[::-1].copy()
    winner = native.last_event(array, events)
    best = {node: max(events[array == node]) for node in expected}
    firsts = [node >= 0 and (array == node).tolist().index(True) for node in ids]
    assert all(events[at] == best[ids[at]] for at in np.flatnonzero(winner) if ids[at] >= 0)
    assert sorted(array[winner & (array >= 0)].tolist()) == sorted(expected), firsts


class Shifted:
    """Every rank owns every R-th id, in a row that many others come before."""

    def __init__(self, size: int, first: int):
        self.size, self.first = size, first

    def locate(self, ids):
        return ids % self.size, ids // self.size + self.first


@given(first=COUNT, wanted=st.lists(st.integers(0, 30), unique=True, max_size=9), empty=st.integers(0, 3))
@example(first=MOST_ROWS, wanted=[0], empty=3)
def test_rows_that_routes_name(comm, world, channel, first, wanted, empty):
    """Up to 2^32 of a rank, beyond that none."""
    everyone = [[] if rank == empty else [node + rank for node in wanted] for rank in range(world.size)]
    ids = np.array(everyone[world.rank], np.int64)
    requests = [node // world.size + first for ids_ in everyone for node in ids_ if node % world.size == world.rank]
    largest = max([node // world.size + first for ids_ in everyone for node in ids_], default=0)
    if largest >= MOST_ROWS:
        with same_verdict(comm), pytest.raises(ValueError, match=f"at most {MOST_ROWS} rows"):
            narrow_rows(np.array([0, largest]))
        return
    with same_verdict(comm):
        route = Route.plan(Shifted(world.size, first), ids, channel)
        in_order = [sorted(ids_, key=lambda node: node % world.size) for ids_ in everyone]
        requests = [node // world.size + first for ids_ in in_order for node in ids_ if node % world.size == world.rank]
        assert route.requests.tolist() == requests
        assert route.served.tolist() == list(dict.fromkeys(requests))
        assert route.served[route.position].tolist() == requests
        members = np.split(route.members.numpy(), route.indptr[1:-1].numpy())
        assert all((route.requests[each] == row).all() for each, row in zip(members, route.served, strict=False))


class Drawn:
    """Histories that keep what they are asked for."""

    def draw(self, local, times, identity, since, fanouts, limit, random):
        self.local, none = local, np.zeros((len(local), sum(fanouts)), np.int64)
        return np.zeros(len(local), np.int32), none - 1, none, None


@given(first=COUNT, nodes=st.lists(st.integers(0, 30), max_size=9))
@example(first=(1 << 31) - 3, nodes=[0, 30])
def test_rows_that_temporal_requests_name(comm, world, channel, first, nodes):
    """As those of routes. Every rank owns nodes behind many others that nobody asks for."""
    starts = (first + 40) * np.arange(world.size + 1)
    book = Book(starts[None], world.size, ("node",))
    ids = np.concatenate([start + first + np.array(nodes, np.int64) for start in starts[:-1]])
    source = NeighborSource.__new__(NeighborSource)
    source._partition = SimpleNamespace(book=book, edge_width=0, features=None, num_events=0)
    source._channel, source._histories = channel, Drawn()
    queries = Queries(ids, np.zeros(len(ids), np.int64), np.arange(len(ids)))
    if nodes and first + max(nodes) >= MOST_ROWS:
        with same_verdict(comm), pytest.raises(ValueError, match=f"at most {MOST_ROWS} rows"):
            source.ask(queries, native.NO_LIMIT, KEY, [2])
        return
    with same_verdict(comm):
        source.ask(queries, native.NO_LIMIT, KEY, [2])
        assert source._histories.local.tolist() == world.size * [first + node for node in nodes]


EDGES = st.lists(st.tuples(COUNT, st.sampled_from([0, 1, 900]), COUNT), max_size=9)


@pytest.mark.serial
@given(edges=EDGES, asked=EDGES)
def test_known_edges(edges, asked):
    num_nodes = (1 << 53) + 4
    known = KnownAnswers(BlockOwnership(np.array([0, num_nodes])), 0, *np.array(edges, np.int64).reshape(-1, 3).T)
    asked = [*asked, *edges, *[(query, kind, (node + 1) % num_nodes) for query, kind, node in edges]]
    query, kind, node = np.array(asked, np.int64).reshape(-1, 3).T
    assert known._hold_here(query, kind, node).tolist() == [edge in edges for edge in asked]
    number, answers = known.of(query, kind)
    for place, (source, type_, _) in enumerate(asked):
        expected = [target for one, other, target in edges if (one, other) == (source, type_)]
        assert sorted(answers[number == place].tolist()) == sorted(expected)


@given(
    counts=st.lists(st.integers(0, 9), min_size=16, max_size=16), width=st.integers(0, 3), most=st.integers(1, 120),
    dtype=st.sampled_from([torch.uint8, torch.int32, torch.float64]), largest=st.sampled_from([7, 40, (1 << 31) - 1]),
)  # fmt: skip
def test_rows_in_rounds_and_beyond_an_int(comm, counts, width, most, dtype, largest):
    """Whatever goes to whom: bytes of a round, and of an int, are pretended to be few."""
    table = np.array([counts[(3 * rank + peer) % 16] for rank in range(comm.size) for peer in range(comm.size)])
    table = table.reshape(comm.size, comm.size)
    with same_verdict(comm), mock.patch.object(exchange.np, "iinfo", return_value=SimpleNamespace(max=largest)):
        channel = Channel(comm, max_bytes=most)
        send, receive = table[comm.rank], table[:, comm.rank]
        announced = channel.counts(send)
        values = [np.arange(50 * rank + 7 * peer, 50 * rank + 7 * peer + table[rank, peer]) % 251
                  for rank in range(comm.size) for peer in range(comm.size)]  # fmt: skip
        mine = np.concatenate(values[comm.rank * comm.size : (comm.rank + 1) * comm.size])
        theirs = np.concatenate(values[comm.rank :: comm.size])
        rows, expected = (torch.from_numpy(row).to(dtype)[:, None].expand(-1, width) for row in (mine, theirs))
        moved = channel.rows(rows.contiguous(), send, receive)
        channel.close()
        assert np.array_equal(announced, receive)
        assert torch.equal(moved, expected)
