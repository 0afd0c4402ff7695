"""Runs on snapshots: the losses, gradients and scores of any number of ranks are those of one."""

import numpy as np
import pytest
import torch

from hpcgnn.comm.world import World
from hpcgnn.run.scoring import split_metrics
from tests.snapshot_runs import make_config, make_parts, open_session, random_graph, write_parts

VARIANTS = {
    "carried": {"train__batch_size": 3},
    "carried, whole": {"train__batch_size": 100, "model__kind": "gcn"},
    "windows": {"sampling__history": 3, "train__batch_size": 4, "sampling__shuffle": True},
    "learnt inputs": {"inputs__embedding": 4, "model__layers": 2, "model__dropout": 0.2, "train__batch_size": 3},
    "fresh routes": {"sampling__routes": "fresh", "train__batch_size": 3, "inputs__degrees": "log"},
    "ahead": {"sampling__prefetch": 2, "train__batch_size": 2, "inputs__degrees": "onehot"},
    "several steps": {"task__steps": 2, "task__loss": "mae", "sampling__horizon": 0, "train__batch_size": 5},
}


def run(comm, parts, config, groups=1):
    """Losses and gradients of an epoch's steps, weights untouched, and the metrics of validation after it."""
    session = open_session(comm, parts, config, groups)
    found, parameters = [], list(session.model.parameters())
    session.start_epoch(0)
    with session.plans("train", 0) as plans:
        for plan in plans:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            loss = session.task.train(plan)
            gradient = torch.cat([p.grad.reshape(-1) for p in parameters])
            found.append(session.world.job.reduce_array(torch.cat([loss.reshape(1), gradient]).numpy()))
    session.memory.settle()
    metrics = split_metrics(session, "val", session.scores("val"))
    session.close()
    return np.stack(found), metrics


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_number_of_ranks_gives_one_answer(comm, mpi_tmp_path, variant):
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(**{"inputs__lags": 2, **VARIANTS[variant]})
    found, metrics = run(comm, parts, config)
    alone, expected = run(World.alone().mpi, parts, config) if comm.rank == 0 else (None, None)
    alone, expected = comm.bcast((alone, expected))
    assert np.allclose(found, alone, rtol=1e-9, atol=1e-11)
    assert metrics == pytest.approx(expected, rel=1e-9)


def test_empty_snapshots_and_silent_nodes(comm, mpi_tmp_path):
    """Snapshots without edges, also at both ends; nodes that no snapshot shows; targets that are not known."""
    graph = random_graph(5, 24, 9, 20, empty=(0, 4, 8))
    kept = (graph.src < 20) & (graph.dst < 20)
    graph.src, graph.dst, graph.first = graph.src[kept], graph.dst[kept], graph.first[kept]
    graph.edges["weight"] = graph.edges["weight"][kept]
    graph.series["target"][22] = np.nan
    parts = write_parts(comm, mpi_tmp_path, graph, parts=4)
    config = make_config(train__batch_size=2)
    found, metrics = run(comm, parts, config)
    alone, expected = run(World.alone().mpi, parts, config) if comm.rank == 0 else (None, None)
    alone, expected = comm.bcast((alone, expected))
    assert np.allclose(found, alone, rtol=1e-9, atol=1e-11)
    assert np.isfinite(found).all()
    assert metrics == pytest.approx(expected, rel=1e-9)


TIMED = {
    "carried": {"train__batch_size": 3, "inputs__embedding": 4},
    "one snapshot a step": {"train__batch_size": 1},
    "no state": {"train__batch_size": 4, "model__kind": "gcn"},
    "windows": {"sampling__history": 3, "train__batch_size": 4, "sampling__shuffle": True},
}


@pytest.mark.parametrize("variant", TIMED)
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_that_split_time_give_one_answer(comm, mpi_tmp_path, variant, groups):
    """Steps with fewer snapshots than groups too; where the ranks cannot be split so there are fewer groups."""
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(**{"inputs__lags": 2, "comm__time_parallel": groups, **TIMED[variant]})
    found, metrics = run(comm, parts, config, groups)
    alone, expected = run(World.alone().mpi, parts, config) if comm.rank == 0 else (None, None)
    alone, expected = comm.bcast((alone, expected))
    assert np.allclose(found, alone, rtol=1e-9, atol=1e-11)
    assert metrics == pytest.approx(expected, rel=1e-9)
