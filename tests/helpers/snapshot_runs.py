"""Runs on small snapshot graphs, for tests."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from kept import partition, result

from data_tools.snapshots.graph import SnapshotGraph, write_snapshots
from data_tools.synthetic.snapshots import synthesize_snapshots
from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.snapshots import session as sessions
from hpcgnn.snapshots.config import SnapshotConfig

PARTS = 8


def one_thread(comm) -> World:
    return World(CommConfig(device="cpu", threads=1, watchdog_seconds=0), comm)


def make_parts(comm, folder, nodes=60, snapshots=14, seed=3):
    """Collective. The partition set of a synthetic snapshot graph."""
    with together(World(comm=comm), "make the graph"):
        if comm.rank == 0:
            synthesize_snapshots(folder / "graph.h5", nodes, snapshots, seed)
            partition(folder / "graph.h5", folder / "parts", PARTS)
    return folder / "parts"


def write_parts(comm, folder, graph: SnapshotGraph, parts=PARTS):
    """Collective. The partition set of a snapshot graph."""
    with together(World(comm=comm), "make the graph"):
        if comm.rank == 0:
            write_snapshots(folder / "graph.h5", graph, ["test"], "test")
            partition(folder / "graph.h5", folder / "parts", parts)
    return folder / "parts"


def make_config(**changes) -> SnapshotConfig:
    """Float64; keys as section__key=value."""
    values: dict = {"train": {"precision": "float64", "lr": 0.01, "epochs": 2}}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values.setdefault(section, {})[name] = value
    return SnapshotConfig.from_dict(values)


def open_session(comm, parts, config, groups=1) -> Session:
    """Collective. ``groups`` of ranks split time."""
    world = one_thread(comm).split(groups)
    return sessions.open_session(config, str(parts), world, Watchdog(world, 0))


def random_graph(seed: int, nodes: int, snapshots: int, edges: int, weighted=True, empty=()) -> SnapshotGraph:
    """Edges drawn for each snapshot, none in those of ``empty``; features and a target that change."""
    rng = np.random.default_rng(seed)
    first = np.repeat(np.setdiff1d(np.arange(snapshots), empty), edges)
    src, dst = rng.integers(0, nodes, (2, len(first)))
    columns = {"weight": rng.uniform(0.5, 2, len(first)).astype(np.float32)} if weighted else {}
    series = {"target": rng.standard_normal((nodes, snapshots)).astype(np.float32)}
    series["feat"] = rng.standard_normal((nodes, snapshots, 3)).astype(np.float32)
    return SnapshotGraph(nodes, snapshots, src, dst, first, edges=columns, series=series)


def one_step(session, plan, parameters) -> np.ndarray:
    """Loss and gradient, summed over ranks."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    loss = session.task.train(plan)
    gradient = torch.cat([p.grad.reshape(-1) for p in parameters])
    return session.world.job.reduce_array(torch.cat([loss.reshape(1), gradient]).cpu().numpy())


def run_epochs(comm, parts, config, groups=1, epochs=1):
    """Collective. Losses and gradients of the epochs' steps, weights untouched, and the metrics of validation after
    them."""
    session = open_session(comm, parts, config, groups)
    found, parameters = [], list(session.model.parameters())
    for epoch in range(epochs):
        session.start_epoch(epoch)
        session.memory.reset()
        with session.plans("train", epoch) as plans:
            found += [one_step(session, plan, parameters) for plan in plans]
    session.memory.settle()
    metrics = split_metrics(session, "val", session.scores("val"))
    session.close()
    return np.stack(found), metrics


def assert_like_one_rank(comm, parts, config, groups=1, epochs=1, context=nullcontext):
    """Collective. The epochs' losses, gradients and metrics, within a context, are those of one rank; returns losses
    and metrics."""
    with context():
        found, metrics = run_epochs(comm, parts, config, groups, epochs)
    alone = None
    if comm.rank == 0:
        alone = result(lambda: run_epochs(World.alone().mpi, parts, config, 1, epochs), parts, config, epochs)
    expected, expected_metrics = comm.bcast(alone)
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-11)
    assert metrics == pytest.approx(expected_metrics, rel=1e-9, nan_ok=True)
    assert np.isfinite(found).all()
    return found, metrics
