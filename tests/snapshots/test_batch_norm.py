"""Batch normalization of snapshots: that of torch over the rows of all ranks, on any number of ranks and groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from snapshot_runs import assert_like_one_rank, make_config, make_parts, one_step, one_thread, open_session
from test_snapshot_resume import StopAfter, lines, run

from hpcgnn.comm.halo import HaloChain, RankRows
from hpcgnn.loop import checkpoint
from hpcgnn.loop.checkpoint_writer import load
from hpcgnn.loop.session import split_metrics
from hpcgnn.nn.batch_norm import MOMENTUM
from hpcgnn.snapshots.model.batch_norm import BatchNorm
from hpcgnn.snapshots.model.frame import Frame, Snapshot

NODES, WIDTH = 11, 3
SHAPES = [2, 1, 3]  # snapshots of the frames


def random(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


class Share:
    """What a rank has of the nodes: the second of several ranks has none, the first of three or more only one."""

    def __init__(self, comm):
        bounds = {1: [0, 11], 2: [0, 11, 11], 3: [0, 1, 1, 11], 4: [0, 1, 1, 5, 11]}[comm.size]
        self.own, self.counts = slice(*bounds[comm.rank : comm.rank + 2]), tuple(np.diff(bounds).tolist())
        self.chain, channel = HaloChain(), one_thread(comm).channel()
        self.everyone = RankRows(self.chain, channel) if comm.size > 1 else None

    def frames(self, uses=()):
        snapshot = Snapshot(0, None, None, torch.arange(NODES)[self.own])
        return [Frame([snapshot] * k, everyone=self.everyone, counts=self.counts, uses=uses[:k]) for k in SHAPES]


def make_norm():
    norm = BatchNorm(WIDTH).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 2, -1]))
        norm.bias.copy_(torch.tensor([1, 0, -2]))
    return norm


def reference(norm):
    found = torch.nn.BatchNorm1d(WIDTH, momentum=1.0, dtype=torch.float64)
    found.load_state_dict({"weight": norm.weight, "bias": norm.bias}, strict=False)
    return found


def test_rows_and_gradients_are_those_of_torch(comm):
    """One rank's loss does not depend on the rows."""
    share, norm = Share(comm), make_norm()
    inputs = [100 + 3 * random(NODES, k, WIDTH) for k in SHAPES]
    mine = [rows[share.own].clone().requires_grad_() for rows in inputs]
    found = norm(share.frames(), mine)
    weights = [torch.cos(rows) for rows in inputs]
    silent = slice(share.counts[0] if comm.size > 2 else 0, None)  # nodes of ranks with a loss
    loss = sum((f * w[share.own]).sum() for f, w in zip(found, weights, strict=True) if comm.size < 3 or comm.rank)
    share.chain.tie(loss + torch.zeros((), dtype=torch.float64)).backward()
    torch_norm, whole = reference(norm), [rows.clone().requires_grad_() for rows in inputs]
    for rows, own, weight, leaf in zip(whole, found, weights, mine, strict=True):
        expected = torch.stack([torch_norm(some) for some in rows.unbind(1)], 1)
        assert torch.allclose(own, expected[share.own], rtol=1e-9)
        (expected * weight)[silent].sum().backward()
        assert torch.allclose(leaf.grad, rows.grad[share.own], rtol=1e-9, atol=1e-12)
    for name, value in norm.named_parameters():
        gradient = np.zeros(WIDTH) if value.grad is None else value.grad.numpy()
        total = one_thread(comm).reduce_array(gradient)
        assert np.allclose(total, getattr(torch_norm, name).grad, rtol=1e-9)


def test_running_statistics_are_means_over_a_step(comm):
    """Moved once a step, by what torch finds in the snapshots, each as often as it is used; then they normalize."""
    share, norm, uses = Share(comm), make_norm(), (2, 1, 3)
    inputs = [5 + random(NODES, k, WIDTH) for k in SHAPES]
    norm(share.frames(uses), [rows[share.own] for rows in inputs])
    assert norm.mean.tolist() == [0, 0, 0]
    norm.settle(None)
    torch_norm, mean, variance, count = reference(norm), 0, 0, 0
    for rows in inputs:
        for some, use in zip(rows.unbind(1), uses, strict=False):
            torch_norm(some)
            mean, variance = mean + use * torch_norm.running_mean, variance + use * torch_norm.running_var
            count += use
    torch_norm.running_mean.copy_(MOMENTUM * mean / count)
    torch_norm.running_var.copy_(1 - MOMENTUM + MOMENTUM * variance / count)
    assert torch.allclose(norm.mean, torch_norm.running_mean, rtol=1e-9)
    assert torch.allclose(norm.variance, torch_norm.running_var, rtol=1e-9)
    norm.eval(), torch_norm.eval()
    for rows, found in zip(inputs, norm(share.frames(), [rows[share.own] for rows in inputs]), strict=True):
        expected = torch.stack([torch_norm(some) for some in rows.unbind(1)], 1)
        assert torch.allclose(found, expected[share.own], rtol=1e-9)


NORMED = {"inputs__lags": 2, "model__norm": "batch", "model__layers": 2}
VARIANTS = {
    "carried": {"model__kind": "roland", "train__batch_size": 3},
    "windows": {
        "model__kind": "mpnn_lstm",
        "sampling__window_size": 3,
        "train__batch_size": 4,
        "sampling__shuffle": True,
    },
    "learned inputs": {"model__kind": "mpnn_lstm", "node_embedding__dim": 3, "train__batch_size": 4},
    "windows with state": {"model__kind": "roland", "sampling__window_size": 2, "train__batch_size": 5},
    "one snapshot a step": {"model__kind": "gcn", "train__batch_size": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_ranks_and_groups_give_one_answer(comm, mpi_tmp_path, variant, groups):
    """Losses and gradients of training, then validation by the running statistics."""
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(**{"comm__time_groups": groups, **NORMED, **VARIANTS[variant]})
    assert_like_one_rank(comm, parts, config, groups)


@pytest.mark.parametrize("kind", ["roland", "gcn"])
def test_evaluation_knows_no_batch(comm, mpi_tmp_path, kind):
    """Twice the same, in other steps the same, and the same on all ranks; training has moved the statistics."""
    parts, found = make_parts(comm, mpi_tmp_path), []
    for size in (2, 2, 3):
        session = open_session(comm, parts, make_config(**NORMED, model__kind=kind, train__batch_size=2))
        with session.plans("train", 0) as plans:
            for plan in plans:
                one_step(session, plan, list(session.model.parameters()))
        session.loaders["val"] = session.loaders["train"].beside("val", session.loaders["val"].snapshots, size)
        scored = [split_metrics(session, "val", session.scores("val")) for _ in range(1 if kind == "roland" else 2)]
        found += scored
        buffers = checkpoint.buffers_of(session.model)
        assert len(buffers) >= 4
        assert all(len(set(comm.allgather(value.numpy().tobytes()))) == 1 for value in buffers.values())
        assert all((value != value.mean().round()).any() for name, value in buffers.items() if "variance" in name)
        session.close()
    assert all(metrics == pytest.approx(found[0], rel=1e-12) for metrics in found)


def test_the_best_checkpoint_has_its_own_statistics(comm, mpi_tmp_path):
    """Measured again it is what the run said; the newest one has others."""
    parts, folder = make_parts(comm, mpi_tmp_path), mpi_tmp_path / "run"
    config = make_config(**NORMED, model__kind="roland", train__batch_size=2, train__epochs=3, train__lr=0.1)
    run(comm, parts, folder, config, StopAfter(10**6))
    told = dict(lines(folder))["test"]
    session = open_session(comm, parts, config)
    load(session, checkpoint.find_best(folder / "checkpoints"))
    best = {name: value.clone() for name, value in checkpoint.buffers_of(session.model).items() if "variance" in name}
    for split in ("val", "test"):
        metrics = split_metrics(session, split, session.scores(split))
        assert {f"{split}_{name}": value for name, value in metrics.items()}.items() <= told.items()
    load(session, checkpoint.find_latest(folder / "checkpoints"))
    newest, last = checkpoint.buffers_of(session.model), told["epoch"] == config.train.epochs - 1
    assert all(torch.equal(value, newest[name]) == last for name, value in best.items())
    session.close()
