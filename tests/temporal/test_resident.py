"""Plans made on the device are those made on the host: bit for bit, epoch by epoch, in training and in evaluation."""

from __future__ import annotations

import warnings
from contextlib import closing
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import test_temporal_models
import torch
from mpi4py import MPI
from training_runs import bipartite, homogeneous, make_config, open_session

from data_tools.partition.command import partition
from hpcgnn.comm.world import DistributedError
from hpcgnn.native import dispatch
from hpcgnn.native.dispatch import Uploads
from hpcgnn.temporal.plan import Level

pytestmark = pytest.mark.serial

RICH = test_temporal_models.RICH
CASES = {
    "plain": ({}, {}),
    "uniform": (RICH, {"sampling__strategy": "uniform"}),
    "in-batch neighbors off": (RICH, {"sampling__in_batch_neighbors": False}),
    "three negatives": ({"ticks": 60}, {"task__negatives": 3, "task__negative_pool": "all"}),
    "many negatives in evaluation": ({}, {"eval__negative_kind": "all", "eval__negatives_per_pass": 4}),
    "hidden nodes, batches by time": ({"ticks": 60}, {"data__new_node_ratio": 0.1, "sampling__batch_by": "time"}),
    "first batch cut": ({}, {"sampling__random_chunks": 4}),
} | {
    name: test_temporal_models.CASES[name]
    for name in (
        "jodie", "tgat", "tgat without features", "tgn of two layers", "dysat of two layers", "window with memory",
        "boundary decay", "boundary decay, uniform", "mixer", "pair decoder", "dysat",
    )
}  # fmt: skip


@pytest.fixture
def emulated():
    """Meanwhile CPU tensors are a device's."""
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    with dispatch.emulation():
        yield


def assert_same(mine, theirs, where: str = "plan") -> None:
    """Equal values, equal dtypes; of event features the rows that neighbors have."""
    if isinstance(theirs, Level):
        assert torch.equal(rows(mine), rows(theirs)), where
        mine, theirs = comparable(mine), comparable(theirs)
    if isinstance(theirs, torch.Tensor | np.ndarray):
        assert mine.dtype == theirs.dtype, where
        assert mine.shape == theirs.shape, where
        assert bool((mine == theirs).all()), where
    elif is_dataclass(theirs):
        for field in fields(theirs):
            if field.name not in ("channel", "device"):
                assert_same(getattr(mine, field.name), getattr(theirs, field.name), f"{where}.{field.name}")
    elif isinstance(theirs, tuple):
        for index, pair in enumerate(zip(mine, theirs, strict=True)):
            assert_same(*pair, f"{where}[{index}]")
    elif isinstance(theirs, dict):
        assert mine.keys() == theirs.keys(), where
        for name in theirs:
            assert_same(mine[name], theirs[name], f"{where}[{name}]")
    else:
        assert mine == theirs, where


def compare_plans(on_device, on_host, passes) -> int:
    """How many plans of passes (split, epoch) of two sessions are the same; closes both."""
    compared = 0
    for split, epoch in passes:
        on_device.start_epoch(epoch)
        on_host.start_epoch(epoch)
        with on_device.plans(split, epoch) as mine, on_host.plans(split, epoch) as theirs:
            for pair in zip(mine, theirs, strict=True):
                assert_same(*pair)
                compared += 1
    on_device.close()
    on_host.close()
    return compared


def comparable(level: Level) -> Level:
    """Without features, and without what is behind the entries of the transpose, which means nothing."""
    plan = level.attention
    order = plan.slot_order[: int(plan.slot_indptr[-1])]
    return replace(level, edge=level.edge[:0], attention=replace(plan, edge_of=plan.slot, slot_order=order))


def rows(level: Level) -> torch.Tensor:
    """Features of a level's neighbors [N, K, F], zeros for padding."""
    padded = torch.cat([level.edge, level.edge.new_zeros((1, level.edge.shape[1]))])
    if level.edge.shape[1] == 0:
        return level.edge.new_empty(0)
    return padded[level.attention.edge_of.long().where(level.attention.edge_of >= 0, torch.tensor(-1))]


def sessions(folder, graph, options, changes):
    """The same run with plans of the device and of the host."""
    graph(folder / "graph.h5", **{"num_events": 300} | options)
    partition(folder / "graph.h5", folder / "parts", 8, "random")
    values = {"train__batch_size": 30, "sampling__prefetch": 0} | changes
    make = lambda planner: open_session(  # noqa: E731
        MPI.COMM_SELF, folder / "parts", make_config(**values, sampling__plan_on=planner)
    )
    return make("device"), make("host")


@pytest.mark.parametrize("graph", [bipartite, homogeneous], ids=["bipartite", "homogeneous"])
@pytest.mark.parametrize("case", CASES)
def test_plans_are_those_of_the_host(tmp_path, emulated, case, graph):
    on_device, on_host = sessions(tmp_path, graph, *CASES[case])
    assert on_device.loaders["test"].sampler.on_device
    assert not on_host.loaders["test"].sampler.on_device
    assert compare_plans(on_device, on_host, (("train", 0), ("train", 1), ("val", 0), ("test", 0))) > 10


def test_auto_takes_the_device(tmp_path, emulated):
    bipartite(tmp_path / "graph.h5")
    partition(tmp_path / "graph.h5", tmp_path / "parts", 4, "random")
    with closing(open_session(MPI.COMM_SELF, tmp_path / "parts", make_config())) as session:
        assert session.loaders["test"].sampler.on_device
    apan = test_temporal_models.APAN
    with closing(open_session(MPI.COMM_SELF, tmp_path / "parts", make_config(**apan))) as session:
        assert not session.loaders["test"].sampler.on_device
    with pytest.raises((ValueError, DistributedError), match="mails go to neighbors"):
        open_session(MPI.COMM_SELF, tmp_path / "parts", make_config(**apan, sampling__plan_on="device"))


def test_arrays_are_brought_once():
    upload, array = Uploads(torch.device("cpu")), np.arange(6.0)
    square = array[:4].reshape(2, 2)
    assert upload(square.T).tolist() != upload(square).tolist()
    assert upload(array) is upload(array[:])
    assert upload(array[:5]) is not upload(array)
    assert upload(array, torch.float32) is upload(array, torch.float32)
    assert [upload(array).dtype, upload(array, torch.float32).dtype] == [torch.float64, torch.float32]


def test_arrays_that_ranks_share_are_brought_without_a_warning():
    array = np.arange(6.0)
    array.flags.writeable = False
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Uploads(torch.device("meta"))(array).shape == (6,)
    finally:
        torch.set_warn_always(False)


def test_the_host_plans_for_the_host(tmp_path):
    bipartite(tmp_path / "graph.h5")
    partition(tmp_path / "graph.h5", tmp_path / "parts", 4, "random")
    with pytest.raises((ValueError, DistributedError), match="plans are made on CUDA devices"):
        open_session(MPI.COMM_SELF, tmp_path / "parts", make_config(sampling__plan_on="device"))
