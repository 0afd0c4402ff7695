"""A finished run moved through later events: memory ends where evaluation leaves it, whatever is scored on the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_runs import bipartite, make_config, make_parts, on_rank_0, open_session

from hpcgnn.loop.session import split_metrics
from hpcgnn.temporal.predict import replay

SPLITS = ("val", "test")
UNIFORM = {"sampling__strategy": "uniform", "sampling__fanouts": [3]}
CASES = {
    "tgn": {"eval__negative_kind": "all"},
    "dyrep, uniform": UNIFORM | {
        "memory__updater": "rnn", "model__readout": "attention", "model__message_from": "embedding",
        "eval__negative_kind": "historical", "task__negatives": 3,
    },
    "mails to neighbors, uniform": UNIFORM | {"memory__deliver_to": "neighbors", "task__negatives": 4},
}  # fmt: skip


@pytest.fixture
def parts(comm, mpi_tmp_path) -> Path:
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, num_events=300, edge_width=2) and None)
    return make_parts(comm, graph, mpi_tmp_path / "parts", 8, "random")


def columns(session) -> list[np.ndarray]:
    return [tensor.double().numpy() for tensor in session.memory.table.tensors()]


@pytest.mark.parametrize("case", CASES)
def test_replay_ends_where_evaluation_does(comm, parts, case):
    config = make_config(**CASES[case])
    moved, scored = (open_session(comm, parts, config) for _ in range(2))
    replay(moved)
    for split in SPLITS:
        scored.scores(split)
    for mine, expected in zip(columns(moved), columns(scored), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-12)


def test_replay_needs_no_file_of_negatives(comm, parts):
    session = open_session(comm, parts, make_config(eval__negative_kind="file", eval__negatives_file="moved_away.npz"))
    replay(session)
    total = np.array([np.abs(values).sum() for values in columns(session)])
    assert (session.world.reduce_array(total) > 0).all()


@pytest.mark.parametrize("negatives", ["all", "historical"])
def test_scores_do_not_depend_on_how_many_negatives_a_plan_holds(comm, parts, negatives):
    found = []
    for chunk in (100, 2):
        changes = UNIFORM | {"eval__negative_kind": negatives, "eval__negatives_per_pass": chunk, "task__negatives": 5}
        session = open_session(comm, parts, make_config(**changes))
        found.append([split_metrics(session, split, session.scores(split)) for split in SPLITS])
    for whole, pieces in zip(*found, strict=True):
        assert pieces == pytest.approx(whole, rel=1e-9, nan_ok=True)
