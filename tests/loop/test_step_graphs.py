"""Steps with padded shapes, and steps done as recorded ones, are the steps they were; `Recording` stands for a CUDA
graph."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import test_graph_training
import test_temporal_tasks
import torch
from mpi4py import MPI
from pretended_device import pretended_device, recording
from selection import long_but
from static_runs import (
    make_static_parts,
    open_graph_session,
    plain,
    static_config,
    typed,
)  # fmt: skip
from test_resident import CASES, emulated  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import assert_same, bipartite, make_config, open_session, record_epoch

from data_tools.partition.command import partition
from hpcgnn import native
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop import step_graphs
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.prefetch import tensors_of
from hpcgnn.loop.settings import TrainConfig
from hpcgnn.loop.step_graphs import CudaGraph, StepGraphs, padded_length
from hpcgnn.loop.trainer import Trainer
from hpcgnn.native import Random, Stream, random
from hpcgnn.native.dispatch import download
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.static import session as graph_session
from hpcgnn.temporal import session as session_module

aten = torch.ops.aten
pytestmark = pytest.mark.serial

MODELS = long_but(
    ("plain", "three negatives", "jodie", "mixer", "tgn of two layers", "window with memory", "pair decoder", "dysat"),
    {"plain", "window with memory"}.__contains__,
)  # fmt: skip
STATIC = {"sage": {}} | {name: test_graph_training.PLAIN[name] for name in ("gcn", "gat", "residual", "three hops")}
LABELS = long_but(("node", "edge without memory", "numbers"), "node".__eq__)


WAITING = {
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten._unique2, aten.unique_dim,
    aten.bincount,
}  # fmt: skip


class Unwaiting(TorchDispatchMode):
    """Refuses operations that wait for a device, which no graph can hold."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        packet, kwargs = function.overloadpacket, kwargs or {}
        by_mask = packet in (aten.index, aten.index_put_) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        repeated = packet is aten.repeat_interleave and kwargs.get("output_size") is None
        if packet in WAITING or by_mask or repeated:
            raise AssertionError(f"{function} waits for the device")
        return function(*args, **kwargs)


class Recording:
    """Like a CUDA graph: what is recorded is not done yet, and what is replayed reads what the recorded plan, masks and
    results lie in."""

    def __init__(self, task):
        memory = task.memory.table.tensors() if hasattr(task, "memory") else ()
        self._state = [*memory, *(p.grad for p in task.model.parameters() if p.requires_grad)]

    def record(self, work):
        before = [tensor.clone() for tensor in self._state]
        self._work = work
        with Unwaiting(), recording():
            self._result = work()
        for tensor, value in zip(self._state, before, strict=True):
            tensor.copy_(value)
        self._masks = [later.mask for later in random._masks.given]
        for mask in self._masks:
            mask.fill_(torch.nan)
        return self._result

    def close(self):
        self._work = None

    def replay(self):
        masks = mock.Mock(side_effect=self._masks)
        with mock.patch.object(native, "dropout_mask", masks), mock.patch.object(random, "dropout_mask", masks):
            for result, value in zip(tensors_of(self._result), tensors_of(self._work()), strict=True):
                result.copy_(value)


@pytest.fixture
def graphs(monkeypatch, request):
    """Sessions' StepGraphs, as a list; they record `Recording` but where there is a device."""
    made, on_device = [], request.node.get_closest_marker("gpu") is not None

    def make(step, timers, required):
        make_graph = None if on_device else lambda: Recording(step.__self__)
        made.append(StepGraphs(step, timers, required, make_graph))
        return made[-1]

    for module in (session_module, graph_session):
        monkeypatch.setattr(module, "StepGraphs", make)
    return made


def make_set(folder, make=bipartite, **options):
    make(folder / "graph.h5", **options)
    partition(folder / "graph.h5", folder / "parts", 8, "random")
    return folder / "parts"


def small(**changes):
    return make_config(
        **{"train__batch_size": 30, "sampling__prefetch": 0, "sampling__plan_on": "device"} | changes
    )  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_recorded_steps_are_the_steps(tmp_path, emulated, graphs, case):  # noqa: F811
    """Losses, samples, memory, scores and weights of an epoch."""
    options, changes = CASES[case]
    parts = make_set(tmp_path, **{"num_events": 300} | options)
    plain = record_epoch(MPI.COMM_SELF, parts, small(**changes))
    assert_same(record_epoch(MPI.COMM_SELF, parts, small(**changes, train__cuda_graphs="on")), plain)
    (found,) = graphs
    assert 0 < found.recorded <= found.replayed


@pytest.mark.parametrize("case", LABELS)
def test_recorded_steps_of_labels(tmp_path, emulated, graphs, case):  # noqa: F811
    labels, options, kind, changes = test_temporal_tasks.CASES[case]
    make = lambda path, **given: test_temporal_tasks.labeled(path, labels, **given)  # noqa: E731
    parts = make_set(tmp_path, make, **{"num_events": 300} | options)
    run = lambda **graphs: test_temporal_tasks.run_epoch(  # noqa: E731
        MPI.COMM_SELF, parts, small(task__kind=kind, model__dropout=0.3, **changes, **graphs)
    )
    test_temporal_tasks.assert_same(run(train__cuda_graphs="on"), run())
    (found,) = graphs
    assert 0 < found.recorded <= found.replayed


@pytest.mark.gpu
@pytest.mark.parametrize("case", MODELS)
def test_graphs_of_a_device_are_the_steps(tmp_path, graphs, case):
    """Losses of two epochs and the weights after them."""
    options, changes = CASES[case]
    parts = make_set(tmp_path, **{"num_events": 300} | options)
    world = World(CommConfig(device="cuda", threads=1), MPI.COMM_SELF)
    (losses, weights), (found, others) = (
        train(
            session_module.open_session(small(**changes, train__cuda_graphs=use), str(parts), world, Watchdog(world, 0))
        )
        for use in ("off", "on")
    )
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    torch.testing.assert_close(others, weights, rtol=1e-7, atol=1e-9)
    assert 0 < graphs[0].recorded <= graphs[0].replayed


@pytest.mark.gpu
@pytest.mark.parametrize("case", STATIC)
def test_graphs_of_a_device_are_the_static_steps(tmp_path, graphs, case):
    parts = make_static_parts(MPI.COMM_SELF, plain, tmp_path)
    (losses, weights), (found, others) = (
        train_static(parts, static_config(**STATIC[case], train__cuda_graphs=use), "cuda") for use in ("off", "on")
    )
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    torch.testing.assert_close(others, weights, rtol=1e-7, atol=1e-9)
    assert 0 < graphs[0].recorded <= graphs[0].replayed


@pytest.mark.gpu
def test_tensors_are_downloaded_while_a_graph_is_recorded():
    """Those of a checkpoint, which is written beside training: more of them than PyTorch has streams."""
    rows, stop, downloaded = torch.ones(10_000, device="cuda"), threading.Event(), []
    pool, stream, graphs = torch.cuda.graph_pool_handle(), torch.cuda.Stream(), []

    def write():
        while not stop.is_set():
            downloaded.append(float(download(rows)[-1]))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(50):
            graphs.append(CudaGraph(pool, stream))  # a pool of which no graph is left takes none any more
            result = graphs[-1].record(lambda: sum((rows * factor for factor in range(1, 40)), start=rows))
            graphs[-1].replay()
            assert result[0].item() == 781
    finally:
        stop.set()
        writer.join()
        for graph in graphs:
            graph.close()
    assert len(downloaded) > 64
    assert set(downloaded) == {1.0}


@pytest.mark.parametrize("case", STATIC)
def test_recorded_static_steps_are_the_steps(tmp_path, emulated, graphs, case):  # noqa: F811
    """Losses of two epochs and the weights after them."""
    parts = make_static_parts(MPI.COMM_SELF, plain, tmp_path)
    (losses, weights), (found, others) = (
        train_static(parts, static_config(**STATIC[case], sampling__plan_on="device", train__cuda_graphs=use))
        for use in ("off", "on")
    )
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    torch.testing.assert_close(others, weights, rtol=1e-7, atol=1e-9)
    (made,) = graphs
    assert 0 < made.recorded <= made.replayed


def train_static(parts, config, device="cpu", kind=graph_session):
    """Losses of two epochs, and the weights."""
    world = World(CommConfig(device=device, threads=1), MPI.COMM_SELF)
    return train(kind.open_session(config, str(parts), world, Watchdog(world, 0)))


def train(session):
    """Losses of two epochs, and the weights."""
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    losses = []
    for epoch in range(2):
        session.memory.reset()
        trainer.start_epoch(epoch)
        with session.plans("train", epoch) as plans:
            losses += [trainer.train_step(plan)[0] for plan in plans]
    trainer.close()
    session.close()
    return losses, trainer.flat.parameter.detach().cpu()


def test_static_steps_that_cannot_be_recorded_are_refused(tmp_path, emulated):  # noqa: F811
    folders = {make: make_static_parts(MPI.COMM_SELF, make, tmp_path / make.__name__) for make in (plain, typed)}
    for make, changes, message in (
        (plain, {"sampling__plan_on": "host"}, "neighbors are drawn on the host"),
        (typed, {}, "the graph is heterogeneous"),
        (plain, {"node_embedding__types": ["node"]}, "do not work with learnable node embeddings"),
        (plain, {"model__kind": "rgcn"}, "depend on the relations in a step"),
        (plain, {"features__storage": "file"}, "features.storage is not device"),
        (plain, {"model__class_path": "hpcgnn.static.model.models.LayeredModel"}, "custom model classes"),
    ):
        with pytest.raises((ValueError, DistributedError), match=message):
            open_graph_session(MPI.COMM_SELF, folders[make], static_config(train__cuda_graphs="on", **changes))


def test_steps_of_several_ranks_are_not_recorded():
    graph = SimpleNamespace(
        world=World(CommConfig(device="cpu", threads=1), MPI.COMM_SELF), tables=SimpleNamespace(storage="device"),
        partition=SimpleNamespace(book=SimpleNamespace(size=2), types=["node"], relations=[0], features=[]),
    )  # fmt: skip
    draw = SimpleNamespace(on_device=True)
    assert not graph_session._records_steps(static_config(train__cuda_graphs="auto"), graph, draw)
    with pytest.raises(DistributedError, match="several ranks fetch rows from one another"):
        graph_session._records_steps(static_config(train__cuda_graphs="on"), graph, draw)


@pytest.mark.parametrize("use", ["auto", "on"])
@pytest.mark.parametrize("case", ["temporal", "static"])
def test_steps_recorded_on_a_device_copy_nothing_to_it(tmp_path, graphs, case, use):
    """Losses of two epochs are those of the host."""
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    if case == "static":
        parts, kind, make = make_static_parts(MPI.COMM_SELF, plain, tmp_path), graph_session, static_config
    else:
        parts, kind, make = str(make_set(tmp_path, num_events=300)), session_module, small
    losses, _ = train_static(parts, make(sampling__plan_on="host"), kind=kind)
    with pretended_device():
        config = make(sampling__plan_on="device", train__cuda_graphs=use)
        recorded, _ = train_static(parts, config, "cuda", kind)
    np.testing.assert_allclose(recorded, losses, rtol=1e-9)
    assert 0 < graphs[0].recorded <= graphs[0].replayed


HINDERED = {
    "off": {"train__cuda_graphs": "off"}, "plans of the host": {"sampling__plan_on": "host"},
    "late writes": {"memory__staleness": 1}, "pairs": {"model__readout": "tncn"}, "checks": {"train__debug": True},
}  # fmt: skip


@pytest.mark.parametrize("case", HINDERED)
def test_what_hinders_leaves_steps_as_they_are(tmp_path, graphs, case):
    """Without a word, where nobody asked for graphs."""
    pytest.importorskip("hpcgnn_native.emulated", reason="built without HPCGNN_EMULATE_CUDA")
    parts = str(make_set(tmp_path, num_events=300))
    with pretended_device():
        config = small(**{"train__cuda_graphs": "auto"} | HINDERED[case])
        losses, _ = train_static(parts, config, "cuda", session_module)
    assert len(losses) > 10
    assert graphs == []


def test_no_parameter_keeps_a_node_of_the_step_before(tmp_path):
    """The node that adds up its gradient would be of the stream of that step, which no recording may wait for."""
    parts = make_static_parts(MPI.COMM_SELF, plain, tmp_path)
    with (
        closing(open_graph_session(MPI.COMM_SELF, parts, static_config())) as session,
        session.plans("train", 0) as plans,
    ):
        for plan in plans:
            session.task.train(plan)
            for parameter in session.model.parameters():
                node = torch.autograd.graph.get_gradient_edge(parameter).node
                assert "step" not in node.metadata
                node.metadata["step"] = plan.step
                del node


def test_other_kinds_have_none():
    with pytest.raises(ValueError, match="on does not work with snapshot graphs"):
        SnapshotConfig(train=TrainConfig(cuda_graphs="on"))
    with pytest.raises(ValueError, match="leave out train"):
        static_config(train__full_graph=True, train__cuda_graphs="on")


def test_lengths_grow_with_the_plan_alone():
    lengths = np.array([padded_length(length) for length in range(5000)])
    assert lengths[0] == 0
    assert (lengths >= np.arange(5000)).all()
    assert (np.diff(lengths) >= 0).all()
    assert (lengths[257:] <= 1.25 * np.arange(257, 5000)).all()
    assert len(np.unique(lengths)) < 30
    assert all(padded_length(length) == length for length in np.unique(lengths).tolist())


def test_masks_filled_later_are_those_of_the_step():
    identity = torch.arange(50)
    drawn = lambda step, epoch: native.dropout_mask(  # noqa: E731
        Random(3, Stream.DROPOUT, step, epoch, 1), identity, 8, 0.5, torch.float64
    )
    with random.noted_masks() as noted:
        drawn(2, 0)
    with random.later_masks(noted) as masks:
        mask = drawn(4, 0)
    (later,) = masks.given
    assert mask is not noted[0]
    for step, epoch in ((4, 0), (5, 0), (4, 1)):
        later.fill(step, epoch)
        assert torch.equal(mask, drawn(step, epoch))


def test_what_cannot_be_recorded_is_refused(tmp_path, emulated):  # noqa: F811
    parts = make_set(tmp_path)
    for changes, message in (
        ({"sampling__plan_on": "host"}, "plans are made on the host"),
        ({"memory__staleness": 1}, r"late writes of node memory \(memory.staleness\)"),
        ({"model__class_path": "hpcgnn.temporal.model.model.TemporalModel"}, "custom model classes"),
    ):
        with pytest.raises((ValueError, DistributedError), match=message):
            open_session(MPI.COMM_SELF, parts, small(train__cuda_graphs="on", **changes))


@dataclass
class Shaped:
    """A plan of one tensor."""

    values: torch.Tensor
    step: int = 0
    epoch: int = 0


def test_no_more_graphs_than_a_device_holds(monkeypatch):
    """Steps of further shapes are done as they are; what cannot be replayed is refused with the remedy."""
    made = []

    class Plain:
        def record(self, work):
            self._work = work
            return work()

        def replay(self):
            made.append(self._work())

    def doubled(plan):
        return {"loss": 2 * plan.values}

    monkeypatch.setattr(step_graphs, "MOST_GRAPHS", 1)
    steps = StepGraphs(doubled, Timers(), True, Plain)
    one, two = (Shaped(torch.ones(length)) for length in (2, 3))
    results = [steps(plan)["loss"].tolist() for plan in (one, one, one, two, two, two)]
    assert results == [[2.0] * 2] * 3 + [[2.0] * 3] * 3
    assert (steps.recorded, steps.replayed, len(made)) == (1, 2, 2)
    weight = torch.ones(2, requires_grad=True)
    steps = StepGraphs(lambda plan: {"loss": weight * plan.values}, Timers(), True, Plain)
    steps(one)
    with pytest.raises(ValueError, match="a task whose results can be differentiated: set train"):
        steps(one)
    key = Random(3, Stream.DROPOUT, 0, 0, 1)
    steps = StepGraphs(
        lambda plan: native.dropout_mask(key, plan.values.long(), 4, 0.5, torch.float64), Timers(), True, Plain
    )
    steps(one)
    with pytest.raises(ValueError, match="a model whose dropout depends on what its step computes: set train"):
        steps(one)


def test_what_cannot_be_recorded_runs_as_it_is():
    """Where graphs were not asked for: with a warning, once, and no step is done twice."""
    done = []

    class Refusing:
        def record(self, work):
            raise RuntimeError("operation not permitted when stream is capturing")

    def doubled(plan):
        done.append(len(plan.values))
        return {"loss": 2 * plan.values}

    steps = StepGraphs(doubled, Timers(), False, Refusing)
    one, two = (Shaped(torch.ones(length)) for length in (2, 3))
    with pytest.warns(UserWarning, match=r"cannot be a CUDA graph: steps run kernel by kernel \(operation not"):
        results = [steps(plan)["loss"].tolist() for plan in (one, one, two, two, one)]
    assert results == [[2.0] * 2] * 2 + [[2.0] * 3] * 2 + [[2.0] * 2]
    assert done == [2, 2, 3, 3, 2]
    assert (steps.recorded, steps.replayed) == (0, 0)
    steps = StepGraphs(doubled, Timers(), True, Refusing)
    steps(one)
    with pytest.raises(RuntimeError, match="not permitted"):
        steps(one)


def test_plans_are_padded_for_training_only(tmp_path, emulated, graphs):  # noqa: F811
    parts = make_set(tmp_path)
    with closing(open_session(MPI.COMM_SELF, parts, small(train__cuda_graphs="on"))) as session:
        for split, padded in (("train", True), ("val", False)):
            with session.plans(split, 0) as plans:
                lengths = [plan.route.num_wanted for plan in plans]
            assert all(padded_length(length) == length for length in lengths) == padded
