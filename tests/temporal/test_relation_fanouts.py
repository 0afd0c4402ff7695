"""Fanouts of single relations of temporal graphs: each relation is drawn by itself, and its neighbors are merged in
order of time. The neighbors are found again with NumPy, event by event."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch
from kept import result
from mpi4py import MPI
from random_graphs import write_graph
from test_edge_types import COUNTS, RELATIONS, USERS, draw_events, merge, parts, write_typed  # noqa: F401
from test_resident import compare_plans, emulated  # noqa: F401
from training_runs import (
    assert_same,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    open_trainer,
    record_epoch,
    train_steps,
)

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.temporal.config import TemporalSamplingConfig
from hpcgnn.temporal.loader import TemporalGraph, TemporalLoader

NAMES = [".".join(relation) for relation in RELATIONS]
FANOUTS = {NAMES[0]: [3], "asks": [2]}  # by full and by short name; recalls has sampling.fanouts
BY_NUMBER = (3, 4, 2)


def by_relation(**changes):
    return make_config(**{"sampling__fanouts": [4], "sampling__relation_fanouts": FANOUTS} | changes)


def newest(merged, node: int, before, fanouts) -> np.ndarray:
    """The rows of the newest events of a node before a time, a few of each relation, in order of time."""
    of_node = ((merged["src"] == node) | (merged["dst"] == node)) & (merged["time"] < before)
    of_types = [np.flatnonzero(of_node & (merged["type"] == kind)) for kind in range(len(fanouts))]
    return np.sort(np.concatenate([rows[max(0, len(rows) - k) :] for rows, k in zip(of_types, fanouts, strict=True)]))


CASES = {
    "recent": {},
    "uniform": {"sampling__strategy": "uniform", "data__new_node_ratio": 0.1},
    "two layers": {
        "model__layers": 2, "sampling__fanouts": [2], "sampling__relation_fanouts": {"buys": [3, 1], "asks": [0, 2]},
        "model__message_from": "embedding",
    },
    "decay": {"sampling__remote_half_life": 20, "sampling__strategy": "window", "sampling__window_length": 60},
    "mixer": {"model__readout": "mixer", "memory__updater": "none"},
    "tncn": {
        "model__readout": "tncn", "model__common_hops": 2,
        "sampling__relation_fanouts": {"buys": [3, 1], "asks": [0, 2]},
    },
    "mails": {
        "memory__updater": "transformer", "memory__mailbox_slots": 3, "memory__deliver_to": "neighbors",
        "task__decoder": "pair", "task__negatives": 3,
    },
}  # fmt: skip


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_change_the_answer(comm, parts, case):  # noqa: F811
    config = by_relation(**CASES[case])
    together = record_epoch(comm, parts, config)
    if comm.rank == 0:
        assert len(np.unique(together.losses)) > 5
        assert_same(together, result(lambda: record_epoch(MPI.COMM_SELF, parts, config), parts, config))


def test_the_newest_events_of_each_relation(comm, parts):  # noqa: F811
    record, merged = record_epoch(comm, parts, by_relation()), merge(draw_events())
    if comm.rank:
        return
    found, seen_types, slots = record.events, set(), sum(BY_NUMBER)
    for place, event in enumerate(found["row"]):
        for role, root in enumerate(found["root"][place]):
            rows = newest(merged, root, merged["time"][event], BY_NUMBER)
            other = np.where(merged["src"][rows] == root, merged["dst"][rows], merged["src"][rows])
            neighbor, dt, edge = (found[name][place, role] for name in ("neighbor", "dt", "edge"))
            assert neighbor.tolist() == other.tolist() + [-1] * (slots - len(rows))
            assert np.array_equal(dt[: len(rows)], merged["time"][event] - merged["time"][rows])
            np.testing.assert_allclose(edge[: len(rows)], merged["feat"][rows], rtol=1e-6)
            seen_types |= set(merged["type"][rows])
    assert seen_types == {0, 1, 2}


@pytest.mark.parametrize("strategy", ["uniform", "recent"])
def test_other_fanouts_in_each_layer(comm, parts, strategy):  # noqa: F811
    """Queries of the second hop are the roots, then the neighbors at the times of their events."""
    layers, changes = ((2, 0, 1), (0, 1, 3)), {"buys": [2, 0], "recalls": [0, 1], "asks": [1, 3]}
    config = by_relation(
        sampling__relation_fanouts=changes, sampling__strategy=strategy, model__layers=2, sampling__prefetch=0
    )
    merged, queries = merge(draw_events()), 0
    with closing(open_session(comm, parts, config)) as session, session.plans("val", 0) as plans:
        for plan in plans:
            (flat,) = plan.route.pull(torch.from_numpy(session.partition.flat_row))
            flat, (lower, upper) = flat.numpy(), plan.query.levels
            nodes, times = flat[plan.query.root.numpy()], plan.query.time.numpy()
            below = np.append(flat[lower.root.numpy()], -1)  # of the second hop
            for level, node, time, fanouts in (
                (upper, nodes, times, layers[0]),
                (lower, below[:-1], _times_below(upper, times), layers[1]),
            ):
                rows_below = below if level is upper else np.append(flat, -1)
                slot, dt = level.attention.slot.numpy(), level.attention.dt.numpy()
                assert slot.shape == (len(node), sum(fanouts))
                for query in range(len(node)):
                    pairs = list(zip(rows_below[slot[query]], time[query] - dt[query], strict=True))
                    pairs = pairs[: (slot[query] >= 0).sum()]
                    _check(pairs, merged, node[query], time[query], fanouts, strategy)
                    queries += len(pairs) > 2
    assert comm.allreduce(queries) > 100


def _times_below(level, times: np.ndarray) -> np.ndarray:
    root, slot = np.nonzero(level.attention.slot.numpy() >= 0)
    return np.concatenate([times, times[root] - level.attention.dt.numpy()[root, slot]])


def _check(pairs, merged, node, time, fanouts, strategy) -> None:
    """Neighbors (node, time of the event) of a query: the newest ones, or as many as there may be of each relation."""
    every = newest(merged, node, time, [len(merged["row"])] * 3)
    other = np.where(merged["src"] == node, merged["dst"], merged["src"])
    if strategy == "recent":
        rows = newest(merged, node, time, fanouts)
        assert pairs == list(zip(other[rows], merged["time"][rows], strict=True))
        return
    rest = [(other[row], merged["time"][row]) for row in every]
    for pair in pairs:
        rest.remove(pair)  # without replacement
    assert [at for _, at in pairs] == sorted(at for _, at in pairs)
    counts = [min(k, (merged["type"][every] == kind).sum()) for kind, k in enumerate(fanouts)]
    assert len(pairs) == sum(counts)


def test_uniform_draws_of_relations_are_independent(comm, mpi_tmp_path):
    """Two relations with the same events: equal draws in both would be the same random numbers twice."""
    table = {name: np.arange(400) % period for name, period in (("src", 5), ("dst", 7))} | {"time": np.arange(400)}
    tables = [table | {"event": 2 * np.arange(400) + number} for number in range(2)]
    edges = {("user", name, "user"): columns for name, columns in zip("ab", tables, strict=True)}
    on_rank_0(comm, lambda: write_graph(mpi_tmp_path / "g.h5", {"user": {"id": np.arange(7)}}, edges) and None)
    folder = make_parts(comm, mpi_tmp_path / "g.h5", mpi_tmp_path / "set", 4, "random")
    config = make_config(sampling__relation_fanouts={"a": [2], "b": [2]}, sampling__strategy="uniform")
    record = record_epoch(comm, folder, config)
    if comm.rank == 0:
        dt, kind = record.events["dt"][100:].reshape(-1, 4), record.events["edge"][100:, ..., 0].reshape(-1, 4)
        draws = [np.sort(dt[kind == value].reshape(len(dt), 2)) for value in (0, 1)]
        assert (draws[0] != draws[1]).any(axis=1).mean() > 0.9


def test_a_column_of_types_is_the_same_as_relations(comm, mpi_tmp_path):
    rng = np.random.default_rng(3)
    number = rng.permutation(np.repeat(np.arange(3), COUNTS)).astype(np.int16)
    count = len(number)
    whole = {name: rng.integers(0, USERS, count) for name in ("src", "dst")} | {"time": np.arange(count) // 3}
    order = np.lexsort((number, whole["time"]))
    whole, number = {name: column[order] for name, column in whole.items()}, number[order]
    kinds = [("user", name, "user") for name in "abc"]
    several = {
        kind: {name: column[number == at] for name, column in whole.items()} | {"event": np.flatnonzero(number == at)}
        for at, kind in enumerate(kinds)
    }
    nodes, records = {"user": {"id": np.arange(USERS)}}, []
    for name, edges in (("several", several), ("one", {kinds[0]: whole | {"type": number}})):
        on_rank_0(comm, lambda name=name, edges=edges: write_graph(mpi_tmp_path / f"{name}.h5", nodes, edges) and None)
        folder = make_parts(comm, mpi_tmp_path / f"{name}.h5", mpi_tmp_path / name, 8, "random")
        changes = {"data__type_column": "type"} if name == "one" else {}
        fanouts = dict(zip("012" if name == "one" else "abc", ([1], [2], [3]), strict=True))
        records.append(record_epoch(comm, folder, make_config(sampling__relation_fanouts=fanouts, **changes)))
    if comm.rank == 0:
        assert_same(*records)
        assert records[0].events["neighbor"].shape[-1] == 6


def test_equal_fanouts_of_one_relation_change_nothing(comm, mpi_tmp_path):
    """A relation by itself is the whole graph."""
    edges = {RELATIONS[0]: draw_events()[0]}
    nodes = {"user": {"id": np.arange(USERS)}, "item": {"id": np.arange(11)}}
    on_rank_0(comm, lambda: write_graph(mpi_tmp_path / "g.h5", nodes, edges) and None)
    folder = make_parts(comm, mpi_tmp_path / "g.h5", mpi_tmp_path / "set", 4, "random")
    config = make_config(sampling__fanouts=[9], sampling__relation_fanouts={"buys": [5]})
    named, plain = (record_epoch(comm, folder, changed) for changed in (config, make_config()))
    if comm.rank == 0:
        assert_same(named, plain)


def test_a_run_goes_on_on_another_number_of_ranks(comm, parts, mpi_tmp_path):  # noqa: F811
    folder, config = mpi_tmp_path / "run", by_relation(train__batch_size=30, sampling__strategy="uniform")
    on_rank_0(comm, folder.mkdir)
    first = open_trainer(comm, parts, config, folder)
    losses = train_steps(first, 0, 4)
    first._save(first.session.memory.saved())
    losses += train_steps(first, 4)
    first.close()
    if comm.rank == 0:
        second = open_trainer(MPI.COMM_SELF, parts, config, folder)
        second.resume()
        np.testing.assert_allclose(train_steps(second, 4), losses[4:], rtol=1e-9)
        second.close()


def test_loaders_of_a_program(comm, parts):  # noqa: F811
    graph = TemporalGraph(parts, World(CommConfig(device="cpu", threads=1), comm))
    sampling = TemporalSamplingConfig(fanouts=[4], relation_fanouts=FANOUTS)
    with TemporalLoader(graph, "train", 40, sampling=sampling).plans() as plans:
        shapes = {plan.query.levels[0].attention.slot.shape[1] for plan in plans}
    graph.close()
    assert shapes == {sum(BY_NUMBER)}


@pytest.mark.serial
@pytest.mark.parametrize("case", ["recent", "uniform", "two layers", "decay"])
def test_plans_of_a_device_are_those_of_the_host(tmp_path, emulated, case):  # noqa: F811
    write_typed(tmp_path / "graph.h5", node_width=2)
    folder = make_parts(MPI.COMM_SELF, tmp_path / "graph.h5", tmp_path / "parts", 8, "random")
    make = lambda planner: open_session(  # noqa: E731
        MPI.COMM_SELF, folder, by_relation(**CASES[case], sampling__prefetch=0, sampling__plan_on=planner)
    )
    on_device, on_host = make("device"), make("host")
    assert on_device.loaders["test"].sampler.on_device
    assert compare_plans(on_device, on_host, (("train", 0), ("val", 0), ("test", 0))) > 10


REFUSED = {
    "unknown": ({"sells": [1]}, "sampling.relation_fanouts: no relation sells; the graph has buys, recalls, asks"),
    "twice": ({"buys": [1], NAMES[0]: [2]}, f"sampling.relation_fanouts: buys and {NAMES[0]} are one relation"),
    "none": (
        {name: [0] for name in ("buys", "recalls", "asks")},
        "leave no neighbor in layer 1: set one of them above",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(comm, parts, case):  # noqa: F811
    fanouts, message = REFUSED[case]
    with pytest.raises(DistributedError, match=message):
        open_session(comm, parts, make_config(sampling__relation_fanouts=fanouts))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relation_fanouts": {"a": [-1]}}, r"sampling.relation_fanouts.a must be at least 0, .*got \[-1\]"),
        ({"relation_fanouts": {"a": []}}, r"sampling.relation_fanouts.a must be .*got \[\]"),
    ],
)
def test_values_that_are_no_fanouts(changes, message):
    with pytest.raises(ValueError, match=message):
        TemporalSamplingConfig(**changes)


@pytest.mark.serial
def test_as_many_numbers_as_layers():
    with pytest.raises(ValueError, match=r"sampling.relation_fanouts.a \[1, 2\] needs one number, or one a layer"):
        make_config(sampling__relation_fanouts={"a": [1, 2]})
