"""Copies of hot nodes' memory: the same answer with and without them, fewer bytes, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from training_runs import (
    assert_same,
    bipartite,
    by_flat_row,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    open_trainer,
    read_plain,
    record_epoch,
    train_steps,
)

from hpcgnn.config import check_resumable
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.memory import hottest

RICH = {"edge_width": 3, "node_width": 4}

# name: (graph, options of the graph, changes of the configuration)
CASES = {
    "few": (bipartite, RICH, {"memory__hot_ratio": 0.05}),
    "many": (homogeneous, {}, {"memory__hot_ratio": 0.3}),
    "all": (bipartite, RICH, {"memory__hot_ratio": 1}),
    "at user": (homogeneous, RICH, {"memory__hot_ratio": 0.2, "memory__update_at": "user"}),
    "jodie": (
        bipartite,
        {},
        {"memory__hot_ratio": 0.2, "memory__updater": "rnn", "model__readout": "time_projection"},
    ),
    "dyrep": (
        bipartite,
        {"edge_width": 3},
        {
            "memory__hot_ratio": 0.2,
            "memory__updater": "rnn",
            "model__readout": "identity",
            "model__message_from": "embedding",
        },
    ),
    "hidden nodes": (bipartite, {}, {"memory__hot_ratio": 0.2, "data__new_node_ratio": 0.1}),
    "batches smaller than ranks": (
        homogeneous,
        {"num_events": 60},
        {"memory__hot_ratio": 0.3, "train__batch_size": 2},
    ),
}


def make_case(comm, folder: Path, graph=bipartite, **options) -> Path:
    """Collective. A small graph in 8 parts."""
    on_rank_0(comm, lambda: graph(folder / "graph.h5", **{"num_events": 360} | options) and None)
    return make_parts(comm, folder / "graph.h5", folder / "parts", 8, "random")


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_copies_do_not_change_the_answer(comm, mpi_tmp_path, case):
    """With hot nodes, without them on as many ranks, and without them on one rank."""
    graph, options, changes = CASES[case]
    parts = make_case(comm, mpi_tmp_path, graph, **options)
    changes = {"train__batch_size": 30} | changes
    hot = record_epoch(comm, parts, make_config(**changes))
    plain = make_config(**changes | {"memory__hot_ratio": 0})
    sharded = record_epoch(comm, parts, plain)
    if comm.rank == 0:
        assert_same(hot, sharded)
        assert_same(hot, record_epoch(MPI.COMM_SELF, parts, plain))


@pytest.mark.parametrize("share", [0.01, 0.2, 1.0])
def test_the_hottest_are_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, share):
    """Those with most training events, the smaller row id first among equals; none without an event."""
    parts = make_case(comm, mpi_tmp_path, homogeneous, num_nodes=90)
    session = open_session(comm, parts, make_config())
    channel, before = session.graph.channel, session.graph.channel.sent_bytes
    hot = hottest(share, session.graph.splits.degree(), session.partition, session.world, channel)
    sent = channel.sent_bytes - before
    plain, end = read_plain(mpi_tmp_path / "graph.h5"), session.graph.splits.bounds[1]
    loop = plain.src[:end] == plain.dst[:end]
    count = np.bincount(np.append(plain.src[:end], plain.dst[:end][~loop]), minlength=plain.num_nodes)
    expected = np.lexsort((np.arange(plain.num_nodes), -count))[: round(share * plain.num_nodes)]
    expected = np.sort(expected[count[expected] > 0])
    found = session.partition.flat_row[hot.find(session.partition.book.local_to_global(comm.rank)) >= 0]
    assert sent == 8 * len(found) * (comm.size - 1)  # no other candidates
    found = session.world.gather_rows(found)
    if comm.rank == 0:
        assert np.array_equal(np.sort(found), expected)
    assert len(hot.ids) == len(expected)


def test_no_hot_node_where_the_share_is_less_than_one(comm, mpi_tmp_path):
    parts = make_case(comm, mpi_tmp_path)
    assert open_session(comm, parts, make_config(memory__hot_ratio=1e-3)).memory.layout is None


def make_trainer(comm, parts: Path, folder: Path, hot_ratio: float) -> Trainer:
    """Collective."""
    config = make_config(train__batch_size=30, memory__hot_ratio=hot_ratio)
    return open_trainer(comm, parts, config, folder)


def assert_copies_agree(session: Session) -> None:
    """Collective. The rows of hot nodes are the same on all ranks, bit for bit."""
    layout = session.memory.layout
    if layout is None:
        return
    for table in session.memory.table.tensors():
        first, *others = session.world.allgather(table[layout.first_copy :].numpy())
        assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("shares", [(0.2, 0), (0, 0.2), (0.3, 0.1)])
@pytest.mark.parametrize("more", [True, False])
def test_a_run_goes_on_elsewhere(comm, mpi_tmp_path, shares, more):
    """A checkpoint knows nothing of copies: from all ranks to one or from one to all, with other hot nodes."""
    parts, folder = make_case(comm, mpi_tmp_path, edge_width=2), mpi_tmp_path / "run"
    before, after = (MPI.COMM_SELF, comm) if more else (comm, MPI.COMM_SELF)
    on_rank_0(comm, lambda: folder.mkdir())
    if more <= (comm.rank == 0):
        first = make_trainer(before, parts, folder, shares[0])
        train_steps(first, 0, 4)
        assert_copies_agree(first.session)
        first._save(first.session.memory.saved())
        first.close()
    comm.barrier()
    if more or comm.rank == 0:
        second = make_trainer(after, parts, folder, shares[1])
        second.resume()
        assert_copies_agree(second.session)
        losses = train_steps(second, 4)
        memory = by_flat_row(second.session, second.session.memory.owned().state.numpy())
        second.close()
    if comm.rank == 0:
        whole = make_trainer(MPI.COMM_SELF, parts, folder, 0)
        np.testing.assert_allclose(losses, train_steps(whole, 0)[4:], rtol=1e-9)
        expected = by_flat_row(whole.session, whole.session.memory.owned().state.numpy())
        np.testing.assert_allclose(memory, expected, rtol=1e-9, atol=1e-9)
        whole.close()


def epoch_bytes(comm, parts: Path, config: TemporalConfig) -> int:
    """Collective. Bytes that all ranks sent in the steps of an epoch."""
    session = open_session(comm, parts, config)
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    before = session.sent_bytes()
    train_steps(trainer, 0)
    sent = session.world.total(session.sent_bytes() - before)
    trainer.close()
    return sent


@pytest.mark.several_ranks
@pytest.mark.parametrize("update_at", ["owner", "user"])
def test_copies_of_hubs_save_bytes(comm, mpi_tmp_path, update_at):
    """Few items that every batch asks for, many users."""
    parts = make_case(comm, mpi_tmp_path, num_events=1500, num_users=300)
    config = {"memory__update_at": update_at, "memory__dim": 64, "comm__ranks_per_machine": 1}
    none, some = (epoch_bytes(comm, parts, make_config(memory__hot_ratio=share, **config)) for share in (0, 0.2))
    assert some < 0.9 * none


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hot_ratio": 1.5}, "a share of the nodes, in [0, 1], got 1.5"),
        ({"hot_ratio": 0.1, "placement": "replicated"}, "placement sharded"),
        ({"hot_ratio": 0.1, "placement": "auto"}, "placement sharded"),
        ({"hot_ratio": 0.1, "updater": "none"}, "leave hot_ratio 0"),
    ],
)
def test_refusals(changes, words):
    """The error names the key and what to do."""
    with pytest.raises(ValueError) as caught:
        TemporalConfig.from_dict({"memory": changes})
    assert "memory.hot_ratio" in str(caught.value)
    assert words in str(caught.value)


def test_a_resumed_run_may_change_it():
    check_resumable(make_config(), make_config(memory__hot_ratio=0.1))
