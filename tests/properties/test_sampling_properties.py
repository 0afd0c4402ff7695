"""Neighbors drawn from generated lists, against plain Python: static ones, also without held-out edges, and temporal
ones."""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn import native
from hpcgnn.graph.directory import epoch_shuffle, permute
from hpcgnn.native import Random, Stream
from hpcgnn.static.sampling.neighbors import Exclusion, HiddenEdges, NeighborSampler
from hpcgnn.static.sampling.pairs import InLists, PairLists
from hpcgnn.static.sampling.replica import SharedExclusion

pytestmark = pytest.mark.serial

KEYS = st.builds(
    Random, st.integers(0, 9) | st.just((1 << 56) - 1), st.just(Stream.NEIGHBOR), st.integers(0, 5) | st.just(1 << 31),
    st.integers(0, 3), st.integers(0, 2), st.integers(0, 4),
)  # fmt: skip
FANOUTS = st.integers(1, 5) | st.just(native.neighbors.FULL)
FIRST = st.sampled_from([0, 7, 1 << 31, (1 << 47) - 100])  # of the nodes' identities


@st.composite
def in_lists(draw, may_weigh: bool = True):
    """Lists of some nodes with few different sources, parallel edges among them, and who is asked about."""
    degrees = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    total, first = sum(degrees), draw(FIRST)
    many = {"min_size": total, "max_size": total}
    source = draw(st.lists(st.integers(0, 6), **many))
    weight = (
        draw(st.lists(st.sampled_from([0, 1, 2, 5, (1 << 32) - 1]), **many))
        if may_weigh and draw(st.booleans())
        else None
    )
    lists = InLists(
        np.concatenate([[0], np.cumsum(degrees)]), first + np.arange(len(degrees)),
        None if weight is None else np.array(weight, np.uint32), first + np.array(source, np.int64),
    )  # fmt: skip
    nodes = draw(st.lists(st.integers(0, len(degrees) - 1), max_size=8))
    return lists, np.array(nodes, np.int64)


def drawn(lists: InLists, nodes: np.ndarray, fanout, key: Random, mode: str, threads=1, **options) -> list[list[int]]:
    """Positions drawn for every node."""
    offsets, positions = native.sample_neighbors(
        lists.indptr, nodes, lists.identity, fanout, key, mode=mode,
        weight=lists.weight, source_identity=lists.source_identity if mode == "labor" else None, threads=threads,
        **options,
    )  # fmt: skip
    return [positions[begin:end].tolist() for begin, end in pairwise(offsets)]


def entries(lists: InLists, node: int) -> list[int]:
    """Positions that may be drawn for a node."""
    positions = range(lists.indptr[node], lists.indptr[node + 1])
    return [at for at in positions if lists.weight is None or lists.weight[at]]


@given(graph=in_lists(), fanout=FANOUTS, mode=st.sampled_from(["uniform", "replace", "full"]), key=KEYS)
def test_draws_are_entries_of_the_node_and_as_many_as_asked_for(graph, fanout, mode, key):
    lists, nodes = graph
    answers = drawn(lists, nodes, fanout, key, mode)
    for node, positions in zip(nodes, answers, strict=True):
        allowed = entries(lists, node)
        assert set(positions) <= set(allowed)
        if mode == "replace" and fanout > 0:
            assert len(positions) == (fanout if allowed else 0)
        else:
            assert positions == sorted(set(positions))
            everything = mode == "full" or fanout < 0
            assert len(positions) == (len(allowed) if everything else min(fanout, len(allowed)))
    assert drawn(lists, nodes[::-1].copy(), fanout, key, mode, threads=2)[::-1] == answers


@given(graph=in_lists(may_weigh=False), fanout=FANOUTS, key=KEYS)
def test_labor_takes_the_sources_with_the_smallest_numbers(graph, fanout, key):
    """So an order of the sources explains what all nodes take; of parallel edges the first ones are taken."""
    lists, nodes = graph
    after: dict[int, set[int]] = {}
    for node, positions in zip(nodes, drawn(lists, nodes, fanout, key, "labor"), strict=True):
        allowed = entries(lists, node)
        assert positions == sorted(set(positions))
        assert set(positions) <= set(allowed)
        assert len(positions) == (len(allowed) if fanout < 0 else min(fanout, len(allowed)))
        taken = {int(lists.source_identity[at]) for at in positions}
        for at in set(allowed) - set(positions):
            source = int(lists.source_identity[at])
            after.setdefault(source, set()).update(taken - {source})
            assert all(lists.source_identity[other] != source or other < at for other in positions)
    list(TopologicalSorter(after).static_order())


@given(
    graph=in_lists(), fanouts=st.lists(st.just(0) | FANOUTS, min_size=1, max_size=9), key=KEYS, data=st.data(),
    mode=st.sampled_from(["uniform", "replace", "labor", "full"]),
)  # fmt: skip
def test_rows_of_several_relations_are_drawn_as_by_a_call_for_each(graph, fanouts, key, data, mode):
    """Of some relations no row, of some no entry is drawn; in any order of the rows."""
    lists, nodes = graph
    if mode == "labor":
        lists = InLists(lists.indptr, lists.identity, None, lists.source_identity)
    numbers = st.integers(0, len(fanouts) - 1)
    relation = np.array(data.draw(st.lists(numbers, min_size=len(nodes), max_size=len(nodes))), np.int32)
    for order in (np.arange(len(nodes)), np.argsort(relation, kind="stable")):
        found = drawn(lists, nodes[order], fanouts, key, mode, relation=relation[order])
        for node, number, positions in zip(nodes[order], relation[order].tolist(), found, strict=True):
            alone = replace(key, relation=number)
            assert positions == (
                drawn(lists, np.array([node]), fanouts[number], alone, mode)[0] if fanouts[number] else []
            )


@given(
    graph=in_lists(), fanout=FANOUTS, mode=st.sampled_from(["uniform", "labor", "full"]), key=KEYS,
    seeds=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=20), total=st.integers(1, 9),
    batch_size=st.integers(1, 6), epoch=st.none() | st.integers(0, 3), evaluation=st.booleans(),
    shared=st.booleans(),
)  # fmt: skip
def test_edges_that_are_held_out_might_as_well_not_be_there(
    graph, fanout, mode, key, seeds, total, batch_size, epoch, evaluation, shared
):  # fmt: skip
    """Exactly those of the step: seeds on any rank, each edge that goes with one; in evaluation none."""
    lists, nodes = graph
    if mode == "labor":
        lists = InLists(lists.indptr, lists.identity, None, lists.source_identity)
    edges = [(position, place) for position, place in seeds if position < lists.indptr[-1] and place < total]
    edges.sort(key=lambda edge: edge[::-1] if shared else edge)
    kind = SharedExclusion if shared else Exclusion
    position, place = np.array(edges, np.int64).reshape(-1, 2).T
    seeds_of, group = np.unique(place, return_inverse=True)
    hidden = HiddenEdges.of(position, group, seeds_of, np.arange(len(seeds_of)))
    exclusion = kind({0: hidden}, total, batch_size)
    shuffle = None if epoch is None else epoch_shuffle(3, epoch)
    exclusion.start_epoch(shuffle)
    step = key.step % (-(-total // batch_size) + 1)
    key = Random(key.seed, Stream.EVAL_NEIGHBOR if evaluation else key.stream, step, key.epoch, key.hop, key.relation)
    position_of = np.arange(total) if shuffle is None else permute(np.arange(total), total, shuffle)
    lost = {position for position, place in edges if position_of[place] // batch_size == step and not evaluation}
    kept = np.array([at for at in range(lists.indptr[-1]) if at not in lost], np.int64)
    columns = [None if column is None else column[kept] for column in (lists.weight, lists.source_identity)]
    fewer = InLists(np.searchsorted(kept, lists.indptr), lists.identity, *columns)
    sampler = NeighborSampler.__new__(NeighborSampler)
    sampler.mode, sampler.threads, sampler._excluded, sampler._with_edges = mode, 1, exclusion, False
    drawn_from = lists if mode == "labor" else InLists(lists.indptr, lists.identity, lists.weight, None)
    source, relation = np.arange(lists.indptr[-1]), np.zeros(len(lists.identity), np.int64)
    everyone = np.arange(len(relation) + 1)
    sampler.lists = PairLists(drawn_from, source, relation, everyone, everyone[:-1], None, np.zeros(1, np.int64))
    key = replace(key, relation=0)
    pairs, offsets, positions, _ = sampler._sample(nodes, None, [fanout], key)
    expected = [kept[at].tolist() for at in drawn(fewer, nodes, fanout, key, mode)]
    assert [positions[begin:end].tolist() for begin, end in pairwise(offsets)] == [of for of in expected if of]
    assert pairs.place.tolist() == [place for place, of in enumerate(expected) if of]


TIMES = st.integers(-3, 12)
START = st.sampled_from([0, -(1 << 53), 1 << 31, (1 << 53) - 1, (1 << 62)])


@st.composite
def histories(draw):
    """A T-CSR whose entries are in order of event, hence of time, and roots with times around them."""
    start, event, lists = draw(START), 0, []
    degrees = draw(st.lists(st.integers(0, 8), min_size=1, max_size=5))
    times = sorted(draw(st.lists(TIMES, min_size=sum(degrees), max_size=sum(degrees))))
    owners = draw(st.permutations([node for node, degree in enumerate(degrees) for _ in range(degree)]))
    for node in range(len(degrees)):
        lists += [(node, times[event], event * 3) for event, owner in enumerate(owners) if owner == node]
    owner, time, event = np.array(lists, np.int64).reshape(-1, 3).T.copy()
    graph = np.searchsorted(owner, np.arange(len(degrees) + 1)), start + time, event
    nodes = draw(st.lists(st.integers(0, len(degrees) - 1), max_size=6))
    at = start + np.array([draw(TIMES) for _ in nodes], np.int64)
    since = at - np.array([draw(st.integers(-2, 9)) for _ in nodes], np.int64) if draw(st.booleans()) else None
    limit = draw(st.just(native.NO_LIMIT) | st.integers(0, 3 * sum(degrees)))
    return graph, np.array(nodes, np.int64), at, since, limit


@given(drawn=histories(), fanout=st.integers(1, 6), threads=st.integers(1, 2))
def test_recent_neighbors_are_the_last_ones_before_the_time(drawn, fanout, threads):
    graph, nodes, times, since, limit = drawn
    positions, count = native.sample_recent(graph, nodes, times, fanout, limit, since, threads)
    for number, chosen in enumerate(positions.tolist()):
        expected = visible(drawn, number)[-fanout:]
        assert count[number] == len(expected)
        assert chosen == expected + [-1] * (fanout - len(expected))
    other, age, _ = native.temporal_reply(graph[2], graph[1], None, positions, times)
    assert np.array_equal(other, np.where(positions < 0, -1, graph[2][positions] if len(graph[2]) else -1))
    assert (age[positions >= 0] > 0).all()
    assert np.array_equal(age, np.where(positions < 0, 0, times[:, None] - graph[1][positions] if len(graph[1]) else 0))


@given(drawn=histories(), fanout=st.integers(1, 6), replace=st.booleans(), key=KEYS)
def test_uniform_neighbors_are_before_the_time(drawn, fanout, replace, key):
    """No entry twice, all where there are no more than asked for, the same in any order of the roots."""
    graph, nodes, times, since, limit = drawn
    identity = (1 << 40) + np.arange(len(nodes))
    some = {"replace": replace, "event_limit": limit}
    positions, count = native.sample_uniform(graph, nodes, times, identity, fanout, key, since=since, **some)
    for number, chosen in enumerate(positions.tolist()):
        allowed, chosen = visible(drawn, number), chosen[: count[number]]
        assert set(chosen) <= set(allowed)
        assert positions[number, count[number] :].tolist() == [-1] * (fanout - count[number])
        assert count[number] == (fanout if replace and allowed else min(fanout, len(allowed)))
        assert replace or len(set(chosen)) == len(chosen)
    back = np.arange(len(nodes))[::-1].copy()
    since = None if since is None else since[back]
    again, _ = native.sample_uniform(
        graph, nodes[back], times[back], identity[back], fanout, key, since=since, threads=2, **some
    )
    assert np.array_equal(again, positions[back])


def visible(drawn, number: int) -> list[int]:
    """Positions that a root may see."""
    (indptr, time, event), nodes, times, since, limit = drawn
    lowest = -(1 << 63) if since is None else since[number]
    window = range(indptr[nodes[number]], indptr[nodes[number] + 1])
    return [at for at in window if lowest <= time[at] < times[number] and event[at] < limit]
