"""The training step without autograd against the same steps with it."""

import pytest
import torch
from training_runs import assert_same, bipartite, make_config, make_parts, on_rank_0, open_session, record_epoch

from hpcgnn.temporal import step as temporal_link
from hpcgnn.temporal.model.native_step import make_link_step

RICH = {"edge_width": 3}
BY_HAND = {
    "plain": ({}, {}),
    "update at user, three negatives": ({}, {"memory__update_at": "user", "sampling__negatives": 3}),
    "edge features, two layers": (RICH, {"model__layers": 2}),
    "rnn, gradients of three steps": (RICH, {"memory__updater": "rnn", "train__accumulate": 3}),
    "replicated memory": ({}, {"memory__placement": "replicated"}),
    "batches smaller than ranks": ({"num_events": 60}, {"train__batch_size": 2}),
}
WITH_AUTOGRAD = {
    "node features": ({"node_width": 4}, {}),
    "learnt phase": ({}, {"model__learn_phase": True}),
    "mailbox": ({}, {"memory__updater": "transformer", "memory__mailbox_slots": 2}),
    "pair decoder": ({}, {"model__decoder": "pair"}),
}


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """Makes a partition set of a graph with these options. Collective."""

    def make(options):
        graph = mpi_tmp_path / "graph.h5"
        on_rank_0(comm, lambda: bipartite(graph, **options) and None)
        return make_parts(comm, graph, mpi_tmp_path / "parts")

    return make


@pytest.mark.parametrize("case", BY_HAND)
def test_equals_autograd(comm, parts, case, monkeypatch):
    options, changes = BY_HAND[case]
    folder, config = parts(options), make_config(**changes)
    assert make_link_step(open_session(comm, folder, config).model) is not None
    by_hand = record_epoch(comm, folder, config)
    monkeypatch.setattr(temporal_link, "make_link_step", lambda model: None)
    with_autograd = record_epoch(comm, folder, config)
    if comm.rank == 0:
        assert_same(by_hand, with_autograd)


@pytest.mark.parametrize("case", WITH_AUTOGRAD)
def test_other_models_keep_autograd(comm, parts, case):
    options, changes = WITH_AUTOGRAD[case]
    assert make_link_step(open_session(comm, parts(options), make_config(**changes)).model) is None


@pytest.mark.parametrize("joined", [True, False])
def test_gradients_are_added(comm, parts, joined):
    """To gradients that lie in one piece, as the optimizer's do, or anywhere; where there are none they are made."""
    session = open_session(comm, parts({}), make_config())
    parameters = [p for p in session.model.parameters() if p.requires_grad]
    flat, found = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64), []
    for start in (None, 0.0, 2.0):
        session.memory.reset()
        flat.fill_(start or 0.0)
        pieces = [
            piece.view_as(p) for p, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True)
        ]
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = None if start is None else piece if joined else piece.clone()
        with session.plans("train", 0) as plans:
            for plan in plans:
                if plan.step == 0:
                    session.task.train(plan)
        found.append(torch.cat([p.grad.flatten() for p in parameters]) - (start or 0.0))
    assert found[0].abs().max() > 0
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-12)
