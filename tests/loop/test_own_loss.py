"""Losses by functions of the user's own: equal to the built-in ones on all kinds of graphs and on any number of ranks;
exact resume; predictions without the function; refusals."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import snapshot_runs
import torch
from link_graphs import friends
from mpi4py import MPI
from static_runs import (
    make_static_parts,
    open_graph_session,
    open_graph_trainer,
    plain,
    static_config,
    whole_and_stopped,
)
from torch.nn import functional
from training_runs import bipartite, make_config, make_parts, on_rank_0, train_steps

import hpcgnn
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.kinds import KINDS, open_session
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.trainer import Trainer
from hpcgnn.task.own_loss import OwnLoss


def pairs(positive, negative):
    """Cross entropy of pairs, and the mean over their negatives."""
    there = negative > -math.inf
    against = functional.softplus(negative[there]).new_zeros(negative.shape)
    against[there] = functional.softplus(negative[there])
    return functional.softplus(-positive).sum() + (against.sum(0) / there.sum(0).clamp(min=1)).sum()


def classes(output, label):
    assert bool((label >= 0).all())  # rows without a label are left out before
    return -output.log_softmax(1)[torch.arange(len(label)), label].sum()


def numbers(output, label):
    assert output.shape == label.shape
    assert output.dtype == label.dtype
    return ((output - label) ** 2).sum()


def last_alone(positive, negative):
    return functional.softplus(negative).mean(0).sum()


def mean(output, label):
    return functional.cross_entropy(output, label)


def by_row(output, label):
    return functional.cross_entropy(output, label, reduction="none")


def detached(output, label):
    return functional.cross_entropy(output, label, reduction="sum").detach()


def plain_number(output, label):
    return functional.cross_entropy(output, label, reduction="sum").item()


def infinite(positive, negative):
    return positive.sum() + negative.sum()


def drawing(output, label):
    return (functional.cross_entropy(output, label, reduction="none") * torch.rand(len(output))).sum()


class Failing:
    """Fails on the last rank, in the third step."""

    calls = 0

    def __call__(self, output, label):
        self.calls += 1
        if self.calls > 4 and MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:  # two calls are for halves
            raise ValueError("no such\nclass")
        return classes(output, label)


failing = Failing()


def path(function) -> str:
    return f"{__name__}.{function if isinstance(function, str) else function.__name__}"


def labeled_events(path):
    """Events with three classes, a third of them not known, and features."""
    bipartite(path, num_events=300, edge_width=2)
    with h5py.File(path, "r+") as file:
        label = np.arange(300) % 4 - 1
        file["edges/user.takes.item"].create_dataset("label", data=label)


def numbered_events(path):
    bipartite(path, num_events=300, edge_width=2)
    with h5py.File(path, "r+") as file:
        label = np.where(np.arange(300) % 3, np.sin(np.arange(300)), np.nan)
        file["edges/user.takes.item"].create_dataset("label", data=label)


EDGES = {"task__kind": "link", "train__batch_size": 40, "model__dropout": 0.0}
SHARED = {**EDGES, "task__negative_sharing": "shared", "task__negatives": 7, "task__negative_ends": "both"}
# case: (kind, graph, function, settings)
CASES = {
    "nodes": ("static", plain, classes, {}),
    "whole": ("static", plain, classes, {"train__full_graph": True}),
    "edges": ("static", friends, pairs, {**EDGES, "task__negatives": 3, "task__negative_ends": "both"}),
    "shared": ("static", friends, pairs, SHARED),
    "events": ("temporal", bipartite, pairs, {"task__negatives": 2}),
    "labels": ("temporal", labeled_events, classes, {"task__kind": "edge"}),
    "numbers": ("temporal", numbered_events, numbers, {"task__kind": "edge_regression"}),
    "series": ("snapshots", None, numbers, {"model__hidden": 8, "train__batch_size": 4}),
    "links": ("snapshots", None, pairs, {"task__kind": "link", "task__negative_ends": "pair", "model__hidden": 8}),
}


def losses(comm, kind: str, parts: Path, config) -> list[float]:
    """Collective. The losses of the first steps."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    session = open_session(config, str(parts), world, Watchdog(world, 0))
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    trainer.start_epoch(0)
    session.memory.reset()
    found = train_steps(trainer, 0, min(4, session.batches["train"].num_steps))
    trainer.close()
    session.close()
    return found


@pytest.mark.parametrize("case", CASES)
def test_equals_the_built_in_loss(comm, mpi_tmp_path, case):
    """To rounding, and on one rank and on all."""
    kind, graph, function, settings = CASES[case]
    if kind == "temporal":
        on_rank_0(comm, lambda: graph(mpi_tmp_path / "graph.h5") and None)
        parts, make = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 8, "random"), make_config
    elif kind == "static":
        parts, make = make_static_parts(comm, graph, mpi_tmp_path), static_config
    else:
        parts, make = snapshot_runs.make_parts(comm, mpi_tmp_path), snapshot_runs.make_config
    config = make(**settings, task__loss_path=path(function))
    assert config.task.loss == "custom"
    found = losses(comm, kind, parts, config)
    np.testing.assert_allclose(found, losses(comm, kind, parts, make(**settings)), rtol=1e-12)
    np.testing.assert_allclose(found, losses(World.alone().mpi, kind, parts, config), rtol=1e-9)
    assert KINDS[kind].config.from_dict(config.to_dict()) == config


def test_a_loss_of_negatives_alone(comm, mpi_tmp_path):
    """Whose gradient reaches one end of the pairs only, where candidates are shared."""
    parts = make_static_parts(comm, friends, mpi_tmp_path)
    settings = {**EDGES, "task__negative_sharing": "shared", "task__loss_path": path(last_alone)}
    found = losses(comm, "static", parts, static_config(**settings))
    np.testing.assert_allclose(found, losses(World.alone().mpi, "static", parts, static_config(**settings)), rtol=1e-9)


def test_resumed(comm, mpi_tmp_path):
    """A run that stops and goes on has the weights of one that does not."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(task__loss_path=path(classes))
    whole, _, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, steps=6)
    resumed = open_graph_trainer(comm, parts, broken, config)
    resumed.resume()
    resumed.run()
    assert torch.equal(resumed.flat.parameter, whole.flat.parameter)


@pytest.mark.parametrize(("function", "reason"), [
    ("failing", r"_own_loss.failing': ValueError: no such class \[test_own_loss.py:\d+\] \[training step"),
    ("drawing", r"model sage or task.loss_path .*drawing draws from torch's generator"),
    ("nowhere", r"task.loss_path '.*nowhere': .* has no attribute 'nowhere'; it is package.module.function"),
    ("CASES", "is no function"),
])  # fmt: skip
def test_all_ranks_leave_together(comm, mpi_tmp_path, function, reason):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    failing.calls = 0
    with pytest.raises(DistributedError, match=reason):
        losses(comm, "static", parts, static_config(task__loss_path=path(function), train__batch_size=8))


@pytest.mark.serial
@pytest.mark.parametrize(("function", "reason"), [
    ("mean", r"0.693147 for 5 rows, and 1.38629 for their halves together: it is no sum over rows, and answers would"),
    ("by_row", r"one number is expected, it returned \[5\]: return the sum over rows, as reduction='sum' does"),
    ("detached", "its value has no gradient: compute it by torch"),
    ("plain_number", "a tensor is expected, it returned float"),
])  # fmt: skip
def test_what_is_no_loss_is_refused(function, reason):
    loss, output = OwnLoss(path(function), of_links=False), torch.zeros(5, 2, requires_grad=True)
    label = torch.arange(5) % 2
    loss.find()
    assert loss(output[:0], label[:0]) == 0  # no rows, no call
    assert loss(output, label).isnan()
    with pytest.raises(ValueError, match=reason):
        loss.refuse()


@pytest.mark.serial
def test_infinite_scores_are_named():
    loss, negative = OwnLoss(path(infinite), of_links=True), torch.tensor([[0.0, 1.0], [-math.inf, 2.0]])
    loss.find()
    assert loss(torch.ones(2, requires_grad=True), negative).isnan()
    with pytest.raises(ValueError, match="it returned -inf; negatives are -inf where there is none"):
        loss.refuse()


@pytest.mark.serial
@pytest.mark.parametrize(("make", "settings", "reason"), [
    (static_config, {"task__class_weights": [1.0, 2.0]},
     "task.class_weights: task.loss custom does not read it; use task.loss cross_entropy, or leave it out"),
    (static_config, {"task__loss": "cross_entropy"},
     "task.loss_path: task.loss cross_entropy does not read it; use task.loss custom, or leave it out"),
    (static_config, {"task__kind": "link", "task__margin": 2.0}, "task.margin: task.loss custom does not read it"),
    (static_config, {"train__cuda_graphs": "on"}, "CUDA graphs do not work with task.loss_path; leave it auto"),
    (make_config, {"train__cuda_graphs": "on"}, "CUDA graphs do not work with task.loss_path; leave it auto"),
    (make_config, {"task__kind": "node", "task__balance_classes": True}, "task.loss custom does not weigh classes"),
])  # fmt: skip
def test_keys_that_do_not_go_with_it(make, settings, reason):
    with pytest.raises(ValueError, match=reason):
        make(**settings, task__loss_path="mine.loss")
    if "task__loss" not in settings:
        with pytest.raises(ValueError, match=r"task.loss custom needs task.loss_path"):
            make(task__loss="custom")


def test_a_finished_run_does_not_need_it(comm, mpi_tmp_path, monkeypatch):
    """Evaluated and asked where the function is not there; the class is taken for its path."""
    module = mpi_tmp_path / "gone_loss.py"
    text = "from torch.nn.functional import cross_entropy\n\ndef total(output, label):\n"
    on_rank_0(
        comm, lambda: module.write_text(text + "    return cross_entropy(output, label, reduction='sum')\n") and None
    )
    on_rank_0(comm, lambda: plain(mpi_tmp_path / "graph.h5") and None)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(mpi_tmp_path))
        from gone_loss import total

        config = {"task.loss_path": total, "train.epochs": 1, "comm.device": "cpu"}
        run = hpcgnn.fit(mpi_tmp_path / "graph.h5", config=config, folder=mpi_tmp_path / "run", quiet=True)
    monkeypatch.delitem(sys.modules, "gone_loss")
    assert hpcgnn.load_run(run.folder).config.task.loss_path == "gone_loss.total"
    assert run.evaluate()["test_accuracy"] == pytest.approx(run.metrics()["test_accuracy"].iloc[-1], rel=1e-6)
    answers = run.predict()
    assert comm.rank or len(answers) == 150
    with pytest.raises(DistributedError, match=r"task.loss_path 'gone_loss.total': No module named 'gone_loss'"):
        run.resume({"train.epochs": 2}, quiet=True)


@pytest.mark.several_ranks
def test_files_that_differ_between_ranks(comm, mpi_tmp_path, monkeypatch):
    folder = mpi_tmp_path / f"rank-{comm.rank}"
    folder.mkdir()
    text = "def total(output, label):\n    return output.log_softmax(1)[range(len(label)), label].sum()\n"
    (folder / "loss_here.py").write_text(text + f"# rank {comm.rank}\n")
    monkeypatch.syspath_prepend(str(folder))
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(task__loss_path="loss_here.total")
    session = open_graph_session(comm, parts, config)
    with pytest.raises(DistributedError, match=r"same file of task.loss_path loss_here.total: rank 1"):
        Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
