"""Ranks of a machine read each other's node memory in what they share: the answer is that of messages, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import (
    bipartite,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    record_epoch,
    train_steps,
)

from hpcgnn.comm.world import CommConfig, World
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.loader import TemporalGraph, TemporalLoader

RICH = {"edge_width": 3, "node_width": 4}
JODIE = {"memory__updater": "rnn", "model__readout": "time_projection"}

# name: (options of the graph, changes of the configuration)
CASES = {
    "plain": ({}, {}),
    "features": (RICH, {}),
    "float32": (RICH, {"train__precision": "float32"}),
    "at user": (RICH, {"memory__update_at": "user"}),
    "times of mails": ({}, JODIE),
    "hot nodes": (RICH, {"memory__hot_ratio": 0.1}),
    "mailbox": (RICH, {"memory__updater": "transformer", "memory__mailbox_slots": 3}),
    "stale": ({}, {"memory__staleness": 1}),
    "stale, hot nodes": (RICH, {"memory__staleness": 1, "memory__hot_ratio": 0.1}),
    "no memory": (RICH, {"memory__updater": "none"}),
    "replicated": (RICH, {"memory__placement": "replicated"}),
    "frozen": (RICH, {"task__freeze": True, "train__init": "unused"}),
    "in the foreground": (RICH, {"sampling__prefetch": 0}),
}


def make_case(comm, folder: Path, **options) -> Path:
    """Collective. A small graph in 8 parts."""
    on_rank_0(comm, lambda: bipartite(folder / "graph.h5", **{"num_events": 360} | options) and None)
    return make_parts(comm, folder / "graph.h5", folder / "parts", 8, "random")


def test_loaders_bring_features_in_their_dtype(comm, mpi_tmp_path):
    """Each its own; loaders of a dtype share them."""
    graph = TemporalGraph(make_case(comm, mpi_tmp_path, **RICH), World(CommConfig(device="cpu", threads=1), comm))
    for dtype in (torch.float32, torch.float64, torch.float32):
        with TemporalLoader(graph, "train", 60, dtype=dtype).plans() as plans:
            assert {plan.node_feature.dtype for plan in plans} == {dtype}
    assert graph.features(torch.float64) is graph.features(torch.float64)
    graph.close()


@pytest.mark.several_ranks
@pytest.mark.parametrize("ranks_per_machine", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_messages(comm, mpi_tmp_path, case, ranks_per_machine):
    """Losses, validation, memory and parameters."""
    options, changes = CASES[case]
    parts = make_case(comm, mpi_tmp_path, **options)
    shared = record_epoch(comm, parts, make_config(**changes, comm__ranks_per_machine=ranks_per_machine))
    sent = record_epoch(comm, parts, make_config(**changes, comm__ranks_per_machine=1))
    if comm.rank == 0:
        assert shared.losses == sent.losses
        assert np.array_equal(shared.scores, sent.scores)
        assert np.array_equal(shared.parameters, sent.parameters)
        for name, column in shared.memory.items():
            assert np.array_equal(column, sent.memory[name]), name


@pytest.mark.several_ranks
def test_ranks_without_nodes_take_part(comm, mpi_tmp_path):
    """On four ranks there are some."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: homogeneous(graph, num_events=60, num_nodes=3, **RICH) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", 8, "random")
    changes = {"memory__hot_ratio": 0.5}
    shared, sent = (record_epoch(comm, parts, make_config(**changes, comm__ranks_per_machine=each)) for each in (0, 1))
    assert comm.rank or shared.losses == sent.losses


def bytes_of_steps(comm, parts: Path, **changes) -> int:
    """Collective. Bytes that all ranks sent in the steps of an epoch, planning aside."""
    session = open_session(comm, parts, make_config(**changes))
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    before = session.graph.channel.sent_bytes
    train_steps(trainer, 0)
    sent = session.world.total(session.graph.channel.sent_bytes - before)
    trainer.close()
    return sent


@pytest.mark.several_ranks
@pytest.mark.parametrize("update_at", ["owner", "user"])
def test_on_one_node_mails_alone_are_sent(comm, mpi_tmp_path, update_at):
    """Where the owner updates, a mail is what the other endpoint adds; else the state as well."""
    parts = make_case(comm, mpi_tmp_path)
    changes = {"memory__update_at": update_at, "memory__dim": 16, "model__hidden": 16}
    session = open_session(comm, parts, make_config(**changes))
    width, mails = 16 * 8 * (1 if update_at == "owner" else 2), 0
    with session.plans("train", 0) as plans:
        for plan in plans:
            counts = plan.write.route.want_counts.copy()
            counts[comm.rank] = 0
            mails += int(counts.sum())
    expected = session.world.total(mails * width)
    session.close()
    assert bytes_of_steps(comm, parts, **changes) == expected
    assert bytes_of_steps(comm, parts, **changes, comm__ranks_per_machine=1) > 2 * expected


@pytest.mark.several_ranks
@pytest.mark.parametrize("changes", [{}, {"memory__update_at": "user"}, {"memory__updater": "none"}])
def test_features_of_nodes_come_with_plans(comm, mpi_tmp_path, changes):
    """Steps send as much as without them, or nothing where there is no memory."""
    sent = []
    for width in (0, 40):
        folder = mpi_tmp_path / str(width)
        on_rank_0(comm, folder.mkdir)
        parts = make_case(comm, folder, node_width=width)
        sent.append(bytes_of_steps(comm, parts, **changes, comm__ranks_per_machine=1))
    assert sent[0] == sent[1]
    assert (sent[1] == 0) == ("memory__updater" in changes)
