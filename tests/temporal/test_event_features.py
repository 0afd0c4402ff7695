"""Columns of events: what is read, where features lie, and what of them is sent."""

from __future__ import annotations

import tracemalloc
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pytest
from random_graphs import random_graph, write_graph
from static_runs import narrow
from training_runs import (
    ROW_SCALE,
    bipartite,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    read_plain,
    record_epoch,
)

from data_tools.partition.command import partition
from data_tools.source.event_rows import write_event_rows
from hpcgnn.temporal import features, graph, sampler

WIDTH = 5


def make_case(comm, folder: Path, edge_width: int = WIDTH) -> Path:
    """Collective. A graph whose batches spill, in 8 parts; returns them."""
    folder = folder / str(edge_width)
    on_rank_0(comm, lambda: folder.mkdir() or (bipartite(folder / "graph.h5", 360, edge_width=edge_width) and None))
    return make_parts(comm, folder / "graph.h5", folder / "parts", 8, "random")


# ------------------------------------------------------------------------------------------------------ what is read


def add_columns(path: Path) -> None:
    """Columns that no run reads, and labels."""
    with h5py.File(path, "a") as file:
        events, users = file["edges/user.takes.item"], file["nodes/user"]
        count = len(events["src"])
        events["weight"], events["text"] = np.ones(count, np.float32), np.ones((count, 4))
        events["label"] = np.arange(count) % 2
        users["age"] = np.ones(len(users["id"]))


LABELED = "label (task.kind node, edge and edge_regression read it)"
OTHERS = "text, weight (features are read from feat alone)"


@pytest.mark.parametrize(
    ("changes", "unread"),
    [({}, f"{LABELED}; {OTHERS}"), ({"task__kind": "node"}, OTHERS),
     ({"baseline__kind": "unlimited"}, f"feat (models with node memory or neighbors read it); {LABELED}; {OTHERS}")],
)  # fmt: skip
def test_columns_without_a_use_are_named_and_not_read(comm, mpi_tmp_path, monkeypatch, changes, unread):
    path, read = mpi_tmp_path / "graph.h5", set()
    on_rank_0(comm, lambda: bipartite(path, num_events=200, edge_width=2) and add_columns(path))
    parts = make_parts(comm, path, mpi_tmp_path / "parts")
    get = h5py.Dataset.__getitem__

    def note(data: h5py.Dataset, *key):
        read.add((Path(data.file.filename).stem.partition("-")[0], *data.name.split("/")[1:]))
        return get(data, *key)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", note)
    with closing(open_session(comm, parts, make_config(**changes))) as session:
        lines = session.describe()
    assert f"columns of events that are not read: {unread}" in lines
    assert "columns of nodes that are not read: age (features are read from feat alone)" in lines
    names = {name for file, group, *_, name in read if file == "part" and group in ("edges", "nodes")}
    assert names == {"row", "src", "dst", "time", "id", "feat", "label"} - {
        name for name in ("feat", "label") if f"{name} (" in unread
    }


def opening_bytes(folder: Path, **columns: np.ndarray) -> int:
    """The most bytes that arrays take while a graph of events with further columns, in 8 parts, is opened."""
    rng, count = np.random.default_rng(1), 6000
    src, dst = rng.integers(0, 50, (2, count))
    events = {"src": src, "dst": dst, "time": np.arange(count)} | columns
    folder.mkdir()
    write_graph(folder / "graph.h5", {"node": {"id": np.arange(50)}}, {("node", "meets", "node"): events})
    partition(folder / "graph.h5", folder / "parts", 8, "random")
    tracemalloc.start()
    graph.open_partition(folder / "parts", 0, 1, check_hash=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.serial
def test_opening_holds_neither_columns_without_a_use_nor_features(tmp_path):
    """A column of 6 MB, nearly every row of which lies in two parts."""
    plain, wide = opening_bytes(tmp_path / "plain"), np.ones((6000, 256), np.float32)
    assert opening_bytes(tmp_path / "text", text=wide) < plain + (1 << 18)
    assert opening_bytes(tmp_path / "feat", feat=wide) < plain + (1 << 19)


# ------------------------------------------------------------------------------------------------------ what plans have


def read_plans(session, split: str):
    """Collective. Of each plan of a split: row ids of the neighbors' events, one array a level, and all features
    beside these, which column 0 names."""
    with session.plans(split, 0) as plans:
        for plan in plans:
            rows = [
                level.edge[level.attention.edge_of[level.attention.edge_of >= 0].long()] for level in plan.query.levels
            ]
            rows = [each.double().numpy() for each in (*rows, plan.event_feature)]
            yield plan, [np.round(each[:, 0] * ROW_SCALE).astype(np.int64) for each in rows], rows


NODE_RANKS = [0, 1, 2]
PLACES = {"float32": {"train__precision": "float32"}, "float64": {}, "two layers": {"model__layers": 2}}


@pytest.mark.parametrize("lacks_room", [False, True])
@pytest.mark.parametrize("ranks_per_machine", NODE_RANKS)
@pytest.mark.parametrize("case", PLACES)
def test_plans_have_the_features_of_the_file(comm, mpi_tmp_path, monkeypatch, case, ranks_per_machine, lacks_room):
    """Those of neighbors' events and of the batch's own, some of which another rank hands over."""
    parts = make_case(comm, mpi_tmp_path)
    expected = read_plain(parts.parent / "graph.h5").feature
    if lacks_room:
        monkeypatch.setattr(features, "share_columns", lambda *_: None)
    session, met = open_session(comm, parts, make_config(**PLACES[case], comm__ranks_per_machine=ranks_per_machine)), 0
    with closing(session):
        for split in ("train", "test"):
            for plan, ids, rows in read_plans(session, split):
                assert np.array_equal(ids[-1], plan.event_row)
                for number, row in zip(ids, rows, strict=True):
                    assert np.array_equal(row, expected[number])
                    met += len(number)
    assert met > 0


@pytest.mark.parametrize("changes", [{}, {"train__precision": "float32"}, {"model__layers": 2}])
def test_plans_in_a_row_are_bounded_by_their_bytes(comm, mpi_tmp_path, monkeypatch, changes):
    """As many as without features where these are narrow; the plans of a step take no more than is counted."""
    parts = make_case(comm, mpi_tmp_path)
    with closing(open_session(comm, parts, make_config(**changes, sampling__prefetch=0))) as session:
        loader, most = session.loaders["train"], 0
        in_a_row = lambda: loader.sampler.plans_in_a_row(loader.batches, 1)  # noqa: E731
        neighbors = 3 * 40 * 5 ** changes.get("model__layers", 1)
        assert in_a_row() == min(32, (1 << 20) // neighbors)
        item = 4 if "train__precision" in changes else 8
        for plan, _, _ in read_plans(session, "train"):
            held = [plan.event_feature, *(level.edge for level in plan.query.levels)]
            most = max(most, session.world.total(sum(item * rows.numel() for rows in held)))
        monkeypatch.setattr(sampler, "BYTES_IN_A_ROW", 3 * most - 1)
        assert in_a_row() < 3
        monkeypatch.setattr(sampler, "BYTES_IN_A_ROW", 1)
        assert in_a_row() == 1


# -------------------------------------------------------------------------------------------------------- what is sent


def planning_bytes(comm, parts: Path, **changes) -> int:
    """Collective. Bytes that plans of an epoch of training sent, those within machines apart."""
    with closing(open_session(comm, parts, make_config(**changes))) as session:
        (channel,) = session.loaders["train"].channels()
        session.loaders["train"].negatives(0)
        before = channel.sent_bytes
        with session.plans("train", 0) as plans:
            for _ in plans:
                pass
        return session.world.total(channel.sent_bytes - before)


@pytest.mark.several_ranks
def test_on_one_machine_no_features_are_sent(comm, mpi_tmp_path):
    """However wide they are. Where ranks share no memory, they are."""
    narrow, wide = make_case(comm, mpi_tmp_path, 1), make_case(comm, mpi_tmp_path, 40)
    for ranks_per_machine, are_equal in ((0, True), (1, False)):
        sent = [planning_bytes(comm, parts, comm__ranks_per_machine=ranks_per_machine) for parts in (narrow, wide)]
        assert (sent[0] == sent[1]) == are_equal


def far_events(comm, parts: Path, members: list[int], **changes) -> int:
    """Collective. Count, step by step, the different events of the neighbors in the plans of the ranks ``members`` of
    a machine, without those with an end there, over all machines."""
    plain = read_plain(parts.parent / "graph.h5")
    with closing(open_session(comm, parts, make_config(**changes))) as session:
        rank_of = np.empty(plain.num_nodes, np.int64)
        for rank, flat in enumerate(comm.allgather(session.partition.flat_row)):
            rank_of[flat] = rank
        is_near = np.isin(rank_of[plain.src], members) | np.isin(rank_of[plain.dst], members)
        steps = [set(ids[0].tolist()) for _, ids, _ in read_plans(session, "train")]
    total = 0
    for at_step in zip(*comm.allgather(steps), strict=True):
        total += sum(not is_near[event] for event in set().union(*(at_step[member] for member in members)))
    return sum(total for total, first in comm.allgather((total, members[0] == comm.rank)) if first)


@pytest.mark.several_ranks
@pytest.mark.parametrize("ranks_per_machine", [1, 2])
def test_a_row_travels_to_a_machine_once(comm, mpi_tmp_path, ranks_per_machine):
    """As many as different events that no rank of the machine has, counted by hand in the plans."""
    narrow, wide = make_case(comm, mpi_tmp_path, 1), make_case(comm, mpi_tmp_path, 40)
    changes = {"comm__ranks_per_machine": ranks_per_machine}
    first = comm.rank - comm.rank % ranks_per_machine
    rows = far_events(comm, narrow, list(range(first, min(first + ranks_per_machine, comm.size))), **changes)
    sent = [planning_bytes(comm, parts, **changes) for parts in (narrow, wide)]
    assert sent[1] - sent[0] == rows * 4 * (40 - 1)
    assert (rows > 0) == (comm.size > ranks_per_machine)


# -------------------------------------------------------------------------------------------------- narrow features


def make_narrow(comm, folder: Path, write, name: str, widened: bool = False) -> Path:
    """Collective. Parts of a graph with features in a narrow form; widened: the numbers of that form, as float32."""
    folder = folder / f"{name}-{widened}"
    on_rank_0(comm, lambda: folder.mkdir() or (narrow(write, name, widened)(folder / "graph.h5") and None))
    return make_parts(comm, folder / "graph.h5", folder / "parts", 8, "random")


def featured(path):
    """Features of users and items, of one width, and of events."""
    return bipartite(path, 300, edge_width=WIDTH, node_width=4)


def several(path):
    """Two relations, whose events have features of one width; the types of nodes have some, too."""
    with h5py.File(random_graph(path, 3, sizes=(30, 20, 0), num_edges=300), "r+") as file:
        for group in file["edges"].values():
            group.attrs["time_scale"] = 1
        write_event_rows(file)
    return path


NARROW = {
    "one relation": (featured, {}),
    "two layers apart": (featured, {"model__layers": 2, "sampling__fanouts": [3, 2], "comm__ranks_per_machine": 1}),
    "several relations": (several, {}),
}


@pytest.mark.parametrize("name", ["float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("case", NARROW)
def test_narrow_features_are_wide_ones_rounded(comm, mpi_tmp_path, case, name):
    """Losses, memory and scores of an epoch to the last bit."""
    write, changes = NARROW[case]
    records = [
        record_epoch(comm, make_narrow(comm, mpi_tmp_path, write, name, widened), make_config(**changes))
        for widened in (False, True)
    ]
    if comm.rank == 0:
        stored, rounded = records
        assert stored.losses == rounded.losses
        assert np.array_equal(stored.parameters, rounded.parameters)
        assert np.array_equal(stored.scores, rounded.scores)
        assert np.array_equal(stored.memory["state"], rounded.memory["state"])


@pytest.mark.parametrize(("name", "size"), [("float16", 2), ("bfloat16", 2), ("uint8", 1)])
def test_narrow_features_lie_and_travel_narrow(comm, mpi_tmp_path, name, size):
    """Tables of events and nodes; a wide row sends as many times the bytes as it is wider."""
    parts = make_narrow(comm, mpi_tmp_path, lambda path: bipartite(path, 360, edge_width=40), name)
    with closing(open_session(comm, parts, make_config(comm__ranks_per_machine=1))) as session:
        assert session.partition.features.table.element_size() == size
    on_rank_0(comm, lambda: (mpi_tmp_path / "bare").mkdir())
    bare = make_narrow(comm, mpi_tmp_path / "bare", lambda path: bipartite(path, 360, edge_width=1), "float16")
    changes = {"comm__ranks_per_machine": 1}
    rows = far_events(comm, bare, [comm.rank], **changes)
    sent = [planning_bytes(comm, folder, **changes) for folder in (bare, parts)]
    assert sent[1] - sent[0] == rows * (40 * size - 2)
    assert (rows > 0) == (comm.size > 1)
