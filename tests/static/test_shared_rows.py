"""Rows of nodes in memory that the ranks of a machine share: the answer is that of messages, and nothing is sent."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from link_graphs import friends, shop
from mpi4py import MPI
from static_runs import APART, make_static_parts, open_graph_session, open_graph_trainer, plain, static_config, typed
from test_graph_training import run_both

from hpcgnn.comm import shared
from hpcgnn.comm.shared import MachineColumns, has_neighbors, share_columns
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.static import features
from hpcgnn.static.inference import infer

CASES = {
    "types": (typed, {}),
    "narrow": (plain, {"features__wire": "float16"}),
    "normalized": (plain, {"model__kind": "gcn", "features__normalize": True}),
    "copies": (plain, {"features__cache_ratio": 0.2}),
    "ahead": (plain, {"sampling__prefetch": 3, "sampling__in_flight": 2}),
    "learned": (typed, {"node_embedding__types": ["paper"]}),
    "links": (friends, {"task__kind": "link", "train__batch_size": 40}),
    "bipartite": (shop, {"task__kind": "link", "train__batch_size": 40, "task__negative_ends": "both"}),
    "whole": (plain, {"train__full_graph": True, "model__kind": "gcn", "train__batch_size": 1 << 20}),
}


def make_world(comm, ranks_per_machine: int = 0) -> World:
    """Collective."""
    return World(CommConfig(device="cpu", threads=1, ranks_per_machine=ranks_per_machine), comm)


def steps_of(comm, parts, folder, changes, ranks_per_machine: int):
    """Collective. Losses of an epoch, exact inference after it, and the bytes that all ranks sent for input rows."""
    trainer = open_graph_trainer(
        comm, parts, folder, static_config(**changes, comm__ranks_per_machine=ranks_per_machine)
    )
    trainer.start_epoch(0)
    channel = trainer.session.graph.channel
    before = channel.sent_bytes
    with trainer.session.plans("train", 0) as plans:
        losses = [trainer.train_step(plan)[0] for plan in plans]
    sent = trainer.session.world.total(channel.sent_bytes - before)
    rows = infer(trainer.session)
    trainer.session.close()
    return losses, rows, sent


@pytest.mark.several_ranks
@pytest.mark.parametrize("ranks_per_machine", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_messages(comm, mpi_tmp_path, case, ranks_per_machine):
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    losses, rows, _ = steps_of(comm, parts, mpi_tmp_path, changes, ranks_per_machine)
    expected, expected_rows, _ = steps_of(comm, parts, mpi_tmp_path, changes, 1)
    assert losses == expected
    assert torch.equal(rows, expected_rows)


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", ["types", "learned", "links"])
def test_the_answer_is_that_of_one_rank(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    run_both(comm, make_static_parts(comm, make, mpi_tmp_path), mpi_tmp_path, static_config(**changes))


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", ["narrow", "copies", "links"])
def test_features_come_with_plans_that_are_made_ahead(comm, mpi_tmp_path, case):
    """Steps then send nothing for them; the answer is the same."""
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    losses, _, sent = steps_of(comm, parts, mpi_tmp_path, changes | {"sampling__prefetch": 0}, 1)
    ahead, _, sent_by_steps = steps_of(comm, parts, mpi_tmp_path, changes | {"sampling__prefetch": 2}, 1)
    assert ahead == losses
    assert sent > sent_by_steps == 0


@pytest.mark.several_ranks
def test_learned_rows_are_read_where_they_lie(comm, mpi_tmp_path):
    """A step sends their gradients alone to ranks of its machine; each epoch reads what the one before has learned."""
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    changes = {"node_embedding__types": ["paper"], "sampling__prefetch": 0, "train__batch_size": 20}
    losses, sent = [], []
    for ranks_per_machine in (1, 0):
        trainer = open_graph_trainer(
            comm, parts, mpi_tmp_path, static_config(**changes, comm__ranks_per_machine=ranks_per_machine)
        )
        before, losses_of_run = trainer.session.graph.channel.sent_bytes, []
        for epoch in range(3):
            trainer.start_epoch(epoch)
            with trainer.session.plans("train", epoch) as plans:
                losses_of_run += [trainer.train_step(plan)[0] for plan in plans]
        sent.append(trainer.session.world.total(trainer.session.graph.channel.sent_bytes - before))
        losses.append(losses_of_run)
        before = [table.weight.clone() for table in trainer.session.memory.tables.values()]
        trainer.session.close()
        after = [table.weight for table in trainer.session.memory.tables.values()]
        assert all(map(torch.equal, before, after))  # the rows outlive what is shared
    assert losses[0] == losses[1]
    assert sent[1] < sent[0] / 2


class Enough(Exception):
    """Ends an inference."""


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", ["narrow", "learned"])
def test_exact_inference_sends_rows_of_other_nodes_only(comm, mpi_tmp_path, case):
    """In every layer; one that was ended after a chunk leaves nothing behind."""
    make, changes = CASES[case]
    parts, sent, rows = make_static_parts(comm, make, mpi_tmp_path), [], []

    def enough():
        raise Enough

    for ranks_per_machine in (1, 2, 0):
        config = static_config(**changes, comm__ranks_per_machine=ranks_per_machine, eval__nodes_per_pass=7)
        session = open_graph_session(comm, parts, config)
        with pytest.raises(Enough):
            infer(session, enough)
        before = session.graph.channel.sent_bytes
        rows.append(infer(session))
        sent.append(session.world.total(session.graph.channel.sent_bytes - before))
        session.close()
    assert sent[0] > sent[2] == 0
    assert sent[1] < sent[0]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


@pytest.mark.several_ranks
def test_only_rows_of_other_nodes_are_sent(comm, mpi_tmp_path):
    """Fewer the more ranks a machine has, and none where there is one machine."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    sent = [steps_of(comm, parts, mpi_tmp_path, {"sampling__prefetch": 0}, ranks)[2] for ranks in (1, 2, 0)]
    assert sent[0] > sent[2] == 0
    assert sent[1] < sent[0]


@pytest.mark.ranks(3, 4)
def test_a_row_travels_to_a_node_once(comm, mpi_tmp_path):
    """However many of the machine's ranks want it: what ranks send are the bytes of the rows that machines want of
    others."""
    parts, machine = make_static_parts(comm, plain, mpi_tmp_path), comm.rank // 2
    trainer = open_graph_trainer(
        comm, parts, mpi_tmp_path, static_config(comm__ranks_per_machine=2, sampling__prefetch=0)
    )
    session = trainer.session
    loader, channel, (rows,) = session.loaders["train"], session.graph.channel, session.graph.rows
    wanted = [loader.samplers[0].input_ids(loader.batches, 0, step)[0] for step in range(loader.batches.num_steps)]
    far = comm.allgather([(machine, ids[~rows.is_near(ids)]) for ids in wanted])
    unique = sum(
        len(np.unique(np.concatenate([ids for of, ids in of_step if of == number])))
        for of_step in zip(*far, strict=True) for number in range(2)
    )  # fmt: skip
    before = channel.sent_bytes
    with session.plans("train", 0) as plans:
        for plan in plans:
            trainer.train_step(plan)
    table = rows.tables[features.FEATURE]
    width = table.shape[1] * table.element_size()
    assert unique < sum(len(ids) for of_rank in far for _, ids in of_rank)
    assert session.world.total(channel.sent_bytes - before) == unique * width
    session.close()


@pytest.mark.several_ranks
@pytest.mark.parametrize("why", ["no room", "refused"])
def test_messages_take_their_place(comm, mpi_tmp_path, monkeypatch, why):
    """Where one rank's machine has no room, or MPI refuses."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    expected = steps_of(comm, parts, mpi_tmp_path, {"sampling__prefetch": 0}, 0)
    if why == "no room":
        monkeypatch.setattr(shared, "free_bytes", lambda: 0 if comm.rank == 1 else 1 << 40)
    else:
        monkeypatch.setattr(shared, "MachineMemory", refuse)
    found = steps_of(comm, parts, mpi_tmp_path, {"sampling__prefetch": 0}, 0)
    assert found[0] == expected[0]
    assert found[2] > expected[2] == 0
    session = open_graph_session(comm, parts, static_config())
    assert any(line.startswith("too little shared memory on a machine") for line in session.describe())
    session.close()


def refuse(world: World, *_):
    """Collective. Take the place of MachineMemory."""
    world.agree(ValueError("no shared memory") if world.rank == 0 else None, "share memory")


@pytest.mark.parametrize("ranks_per_machine", [0, 1, 2])
def test_columns_of_a_machine_are_those_of_its_ranks(comm, ranks_per_machine):
    """Of other widths and dtypes, some without rows."""
    world = make_world(comm, ranks_per_machine)
    rng = np.random.default_rng(comm.rank)
    rows = [
        torch.from_numpy(rng.random((5 + comm.rank, 3)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 1 << 40, comm.rank)),
        torch.empty((0, 4), dtype=torch.float64),
        torch.from_numpy(rng.random((2, 1))).to(torch.bfloat16),
    ]
    columns = MachineColumns(world, world.machine(), [(tuple(column.shape), column.dtype) for column in rows])
    for own, column in zip(columns.own, rows, strict=True):
        own.copy_(column)
    columns.publish()
    most = ranks_per_machine or comm.size
    for table, everyone in zip(columns.tables, zip(*comm.allgather(rows), strict=True), strict=True):
        for rank, expected in enumerate(everyone):
            if rank // most != comm.rank // most:
                assert table.first[rank] == -1
                continue
            first = int(table.first[rank])
            assert torch.equal(table.table[first : first + len(expected)], expected)
    del own, table
    columns.close()


@pytest.mark.several_ranks
def test_shared_memory_has_no_name(comm):
    """A killed job leaves none of it behind."""
    world, rows = make_world(comm), (41 << 20) // comm.size
    columns = MachineColumns(world, world.machine(), [((rows,), torch.uint8)])
    columns.own[0][:] = 1
    columns.publish()
    sizes = [path.stat().st_size for path in shared.BACKING.iterdir()]
    assert not [size for size in sizes if 41 << 20 <= size + comm.size < 42 << 20]
    comm.Barrier()
    columns.close()


def test_nothing_is_shared_without_neighbors(comm):
    """On a machine of one rank memory is its own."""
    assert not has_neighbors(make_world(comm, 1))
    assert has_neighbors(make_world(comm)) == (comm.size > 1)


@pytest.mark.parametrize("spare", [-1, 0])
def test_memory_is_shared_where_it_fits(comm, monkeypatch, spare):
    """The rows of all ranks of the machine, and what others may want meanwhile."""
    world, shapes = make_world(comm), [((30, 7), torch.float32), ((5,), torch.int64)]
    needed = comm.size * (30 * 7 * 4 + 5 * 8)
    monkeypatch.setattr(shared, "free_memory", lambda world: needed + shared.SPARE + spare)
    columns = share_columns(world, shapes)
    assert (columns is None) == (spare < 0)
    if columns is not None:
        columns.close()


@pytest.mark.parametrize("spare", [-1, 0])
def test_groups_share_the_room_of_a_machine(comm, monkeypatch, spare):
    """They take it at the same time, and do not hear of each other."""
    group = make_world(comm).split(2)
    needed = group.num_groups * (group.size * 100 + shared.SPARE)
    monkeypatch.setattr(shared, "free_memory", lambda world: needed + spare)
    columns = share_columns(group.apart(), [((100,), torch.uint8)])
    assert (columns is None) == (spare < 0)
    if columns is not None:
        columns.close()


@pytest.mark.several_ranks
@pytest.mark.parametrize("has_room", [True, False])
def test_another_graph_of_the_nodes_has_its_own_degrees(comm, mpi_tmp_path, monkeypatch, has_room):
    """Where there is no room to share these, either."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config())
    partition, world = session.partition, session.world
    if not has_room:
        monkeypatch.setattr(features, "share_columns", lambda *_: None)
    half = tuple(edges.take(edges.src % 2 == 0) for edges in partition.edges)
    other = session.graph.over(replace(partition, edges=half), "half")
    wanted = np.arange(comm.rank, 150, comm.size)
    rows, channel = other.rows[0], world.channel()
    degree = rows.fetch(rows.plan(wanted, channel), "degree")
    expected = np.concatenate(world.allgather(np.diff(half[0].indptr)))
    assert degree.tolist() == expected[wanted].tolist()
    session.close()


@pytest.mark.several_ranks
@pytest.mark.parametrize("closes", ["itself", "another"])
def test_a_closed_graph_reads_no_memory_that_is_freed(comm, mpi_tmp_path, closes):
    """Whichever of the graphs of these nodes was closed."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(sampling__topology="replicated"))
    graph, held = session.graph, session.graph.partition.edges[0].src
    other = graph.over(session.partition, "all")
    assert np.shares_memory(graph._shared["uniform", "weight"]._lists.source, held)
    {"itself": graph, "another": other}[closes].close()
    assert not any(np.shares_memory(held, edges.src) for each in (graph, other) for edges in each.partition.edges)


@pytest.mark.several_ranks
def test_another_graph_shares_no_degrees_where_rows_are_not_shared(comm, mpi_tmp_path, monkeypatch):
    """There may be room for the degrees alone."""
    parts, share = make_static_parts(comm, plain, mpi_tmp_path), features.share_columns
    with monkeypatch.context() as patch:
        patch.setattr(features, "share_columns", lambda *_: None)
        session = open_graph_session(comm, parts, static_config())
    assert features.share_columns is share
    assert session.graph.tables.lacks_room
    other = session.graph.over(session.partition, "all")
    wanted = np.arange(comm.rank, 150, comm.size)
    fetched = []
    for rows in (session.graph.rows[0], other.rows[0]):
        fetch = rows.plan(wanted, session.world.channel())
        fetched.append([rows.fetch(fetch, name) for name in ("identity", "degree", "feature")])
    assert all(torch.equal(*pair) for pair in zip(*fetched, strict=True))
    session.close()


@pytest.mark.several_ranks
@pytest.mark.parametrize("refused", [False, True])
def test_shared_memory_that_another_node_refuses_is_given_back(comm, monkeypatch, refused):
    """And rows lie apart on all machines."""
    world, made, freed = make_world(comm, 1), [], []
    allocate = MPI.Win.Allocate_shared

    class Window:
        def __init__(self, window):
            made.append(self)
            self._window = window

        def __getattr__(self, name):
            return getattr(self._window, name)

        def Free(self):
            freed.append(self)
            self._window.Free()

    def allocate_here(*args, **options):
        if refused and comm.rank == comm.size - 1:
            raise MPI.Exception(MPI.ERR_NO_MEM)
        return Window(allocate(*args, **options))

    monkeypatch.setattr(
        shared, "MPI", SimpleNamespace(**vars(MPI) | {"Win": SimpleNamespace(Allocate_shared=allocate_here)})
    )
    columns = share_columns(world, [((30, 7), torch.float32)])
    assert (columns is None) == refused
    if columns is not None:
        columns.close()
    assert freed == made


@pytest.mark.several_ranks
def test_copies_are_of_rows_that_are_not_near(comm, mpi_tmp_path):
    """There are none of ranks that share memory."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    together, apart = (
        open_graph_session(comm, parts, static_config(features__cache_ratio=0.2, **nodes)) for nodes in ({}, APART)
    )
    assert together.graph.tables.num_copies() == 0
    assert apart.graph.tables.num_copies() > 0
    for session in (together, apart):
        session.close()
