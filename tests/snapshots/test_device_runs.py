"""Training on a device is training on the host; on any number of ranks, which share the device. Without one, it is
pretended: the CUDA build's kernels run on host threads, and what a device refuses is refused.

What the CPU alone has (whole layers as one call) is left out meanwhile, as on a device.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import snapshot_runs
import test_graph_links
import test_graph_training
import test_temporal_models
import torch
import training_runs
from mpi4py import MPI
from pretended_device import pretended_device
from static_runs import APART, make_static_parts, plain, static_config, typed
from test_graph_training import run_both

from hpcgnn.comm.world import World
from hpcgnn.snapshots.model import MODELS

LATE = {"memory__updater": "transformer", "memory__mailbox_slots": 3, "memory__staleness": 1}
TEMPORAL = {
    "tgn": (test_temporal_models.RICH, {}),
    "learned phase": ({}, {"model__learn_phase": True}),
    "late mails, in slots": (test_temporal_models.RICH, LATE),
} | {
    name: test_temporal_models.CASES[name]
    for name in (
        "jodie",
        "apan",
        "tgat",
        "dysat",
        "boundary decay, uniform",
        "mean of messages",
        "dygformer, memory and clocks",
        "tcl",
        "tncn",
        "tpnet",
        "cawn",
        "walks, attention and clocks",
    )
}
TYPED = ["sage", "rgcn", "rgat", "replace"]
PLAIN = ["gcn", "gat", "labor", "weighted"]
STORED = {
    "copies": {"features__cache_ratio": 0.2, **APART},
    "pinned": {
        "features__storage": "pinned",
        "features__device_ratio": 0.3,
        "features__cache_ratio": 0.2,
        **APART,
    },
    "file": {"features__storage": "file", "features__cache_ratio": 0.2, **APART},
    "exact": {"eval__exact": True, "eval__nodes_per_pass": 17},
}
REPLICATED = {
    "typed": (typed, {}),
    "labor, ahead": (plain, {"sampling__strategy": "labor", "sampling__in_flight": 2}),
    "copies": (plain, {"features__cache_ratio": 0.2, **APART}),
    "pinned": (plain, {"features__storage": "pinned", "features__device_ratio": 0.3}),
    "pinned, typed": (typed, {"features__storage": "pinned", "comm__ranks_per_machine": 2}),
}
LINKS = ["friends", "filtered", "shop, exact"]
SNAPSHOTS = {kind: {"model__kind": kind} for kind in ("tgcn", "evolvegcn_h", "gat", "dysat")} | {
    "boundary": {"sampling__halo_ratio": 0.5, "model__layers": 2}
}

pytestmark = pytest.mark.ranks(1, 2, 4)  # takes a minute


@contextmanager
def real_device():
    """Meanwhile every new World has the first GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "_bind_device", lambda _: torch.device("cuda", 0))
        yield


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "pretended"])
def on_device(request):
    """The context within which sessions are of a device."""
    if request.param == "cuda":
        return real_device
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    return pretended_device


@pytest.mark.parametrize("case", TEMPORAL)
def test_temporal(comm, mpi_tmp_path, on_device, case):
    options, changes = TEMPORAL[case]
    graph = mpi_tmp_path / "graph.h5"
    training_runs.on_rank_0(comm, lambda: training_runs.bipartite(graph, **{"num_events": 200} | options) and None)
    parts = training_runs.make_parts(comm, graph, mpi_tmp_path / "parts", 8, "random")
    config = training_runs.make_config(**{"train__batch_size": 30} | changes)
    with on_device():
        record = training_runs.record_epoch(comm, parts, config)
    if comm.rank == 0:
        training_runs.assert_same(record, training_runs.record_epoch(MPI.COMM_SELF, parts, config))


@pytest.mark.parametrize("case", TYPED + PLAIN)
def test_static(comm, mpi_tmp_path, on_device, case):
    make, cases = (typed, test_graph_training.TYPED) if case in TYPED else (plain, test_graph_training.PLAIN)
    parts = make_static_parts(comm, make, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**cases[case]), on_device)


@pytest.mark.parametrize("case", STORED)
def test_input_rows(comm, mpi_tmp_path, on_device, case):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**STORED[case]), on_device)


@pytest.mark.parametrize("case", REPLICATED)
def test_edges_on_every_device(comm, mpi_tmp_path, on_device, case):
    make, changes = REPLICATED[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(sampling__topology="replicated", **changes), on_device)


@pytest.mark.parametrize("case", LINKS)
def test_links(comm, mpi_tmp_path, on_device, case):
    make, changes = test_graph_links.CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, test_graph_links.link_config(**changes), on_device)


@pytest.mark.parametrize("case", SNAPSHOTS)
def test_snapshots(comm, mpi_tmp_path, on_device, case):
    parts = snapshot_runs.make_parts(comm, mpi_tmp_path)
    changes = {"sampling__window_size": 3} if case in MODELS and MODELS[case].windowed else {}
    config = snapshot_runs.make_config(inputs__lags=2, **SNAPSHOTS[case], **changes)
    snapshot_runs.assert_like_one_rank(comm, parts, config, context=on_device)
