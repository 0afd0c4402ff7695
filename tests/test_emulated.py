"""Training with the CUDA build's kernels, on host threads, is training with the CPU's; on any number of ranks.

What the CPU alone has (whole layers as one call) is left out meanwhile, as on a device.
"""

from __future__ import annotations

import pytest
import snapshot_runs
import test_graph_links
import test_graph_training
import test_temporal_models
import training_runs
from mpi4py import MPI
from static_runs import make_static_parts, plain, static_config, typed
from test_graph_training import run_both

from hpcgnn import native_cuda
from hpcgnn.nn.snapshot_config import WINDOWED_KINDS

TEMPORAL = {"tgn": (test_temporal_models.RICH, {}), "learnt phase": ({}, {"model__learn_phase": True})} | {
    name: test_temporal_models.CASES[name]
    for name in ("jodie", "apan", "tgat", "dysat", "boundary decay, uniform", "mean of messages")
}
TYPED = ["sage", "rgcn", "rgat", "replace"]
PLAIN = ["gcn", "gat", "labor", "weighted"]
LINKS = ["friends", "filtered"]
SNAPSHOTS = ["tgcn", "evolvegcn_h", "gat", "dysat"]

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 3, reason="takes a minute: on 1, 2 and 4 ranks")


@pytest.fixture
def emulation(monkeypatch):
    """The context within which CPU tensors are a device's; some of its kernels must be called."""
    module, backend, calls = (
        pytest.importorskip("hpcgnn._emulated", reason="built without HPCGNN_EMULATE_CUDA"), native_cuda.backend, [],
    )  # fmt: skip

    def counted(tensor):
        kernels, stream = backend(tensor)
        calls.append(kernels is module)
        return kernels, stream

    monkeypatch.setattr(native_cuda, "backend", counted)
    yield native_cuda.emulation
    assert any(calls)


@pytest.mark.parametrize("case", TEMPORAL)
def test_temporal(comm, mpi_tmp_path, emulation, case):
    options, changes = TEMPORAL[case]
    graph = mpi_tmp_path / "graph.h5"
    training_runs.on_rank_0(comm, lambda: training_runs.bipartite(graph, **{"num_events": 200} | options) and None)
    parts = training_runs.make_parts(comm, graph, mpi_tmp_path / "parts", 8, "random")
    config = training_runs.make_config(**{"train__batch_size": 30} | changes)
    with emulation():
        record = training_runs.record_epoch(comm, parts, config)
    if comm.rank == 0:
        training_runs.assert_same(record, training_runs.record_epoch(MPI.COMM_SELF, parts, config))


@pytest.mark.parametrize("case", TYPED + PLAIN)
def test_static(comm, mpi_tmp_path, emulation, case):
    make, cases = (typed, test_graph_training.TYPED) if case in TYPED else (plain, test_graph_training.PLAIN)
    parts = make_static_parts(comm, make, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**cases[case]), emulation)


@pytest.mark.parametrize("case", LINKS)
def test_links(comm, mpi_tmp_path, emulation, case):
    make, changes = test_graph_links.CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, test_graph_links.link_config(**changes), emulation)


@pytest.mark.parametrize("kind", SNAPSHOTS)
def test_snapshots(comm, mpi_tmp_path, emulation, kind):
    parts = snapshot_runs.make_parts(comm, mpi_tmp_path)
    changes = {"sampling__history": 3} if kind in WINDOWED_KINDS else {}
    config = snapshot_runs.make_config(inputs__lags=2, model__kind=kind, **changes)
    snapshot_runs.assert_like_one_rank(comm, parts, config, context=emulation)
