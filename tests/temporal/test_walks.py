"""Random projections of temporal walks against matrices of all walks, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from run_commands import asked_for
from torch.nn import functional
from training_runs import (
    bipartite,
    flat_rows,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    open_trainer,
    pairs_by_step,
    read_plain,
    train_steps,
)

from hpcgnn.comm.world import DistributedError
from hpcgnn.temporal.model.walks import Walks, draw_projections
from hpcgnn.temporal.predict import answer

ALONE = {
    "memory__updater": "walks", "memory__dim": 6, "memory__walk_scales": [3000.0], "model__readout": "identity",
    "task__decoder": "walks", "task__negatives": 3,
}  # fmt: skip
TWO_SCALES = {"memory__walk_scales": [500.0, 20_000.0], "memory__walk_steps": 2}
CASES = {
    "one scale": {},
    "two scales": TWO_SCALES | {"task__decoder": "clocks_walks", "sampling__in_batch_neighbors": False},
    "one step, users": {"memory__walk_steps": 1, "memory__update_at": "user"},
    "sources of their own": TWO_SCALES | {"eval__negative_kind": "historical"},
    "hidden nodes": {"data__new_node_ratio": 0.3},
    "hot nodes": {"memory__hot_ratio": 0.3},
    "replicated": {"memory__placement": "replicated"},
    "all destinations": {"eval__negative_kind": "all"},
}


@pytest.fixture
def graph_and_parts(comm, mpi_tmp_path):
    """Makes a graph file and its partition set."""

    def make(graph, **options) -> tuple[Path, Path]:
        path = mpi_tmp_path / "graph.h5"
        on_rank_0(comm, lambda: graph(path, **{"num_events": 240} | options) and None)
        return path, make_parts(comm, path, mpi_tmp_path / "parts", 8, "random")

    return make


def walk_matrices(plain, batches: list[list[int]], now: int, steps: int, scale: float) -> np.ndarray:
    """Matrices [1 + steps, nodes, nodes] of all walks at a time, of events in batches: entry (u, w) of matrix l sums
    the weights of walks of l steps from u to w, whose events are of ever earlier batches."""
    matrices = np.zeros((1 + steps, plain.num_nodes, plain.num_nodes))
    matrices[0] = np.eye(plain.num_nodes)
    for batch in batches:
        before = matrices.copy()
        for event in batch:
            source, destination = int(plain.src[event]), int(plain.dst[event])
            weight = np.exp(-(now - int(plain.time[event])) / scale)
            for one, other in {(source, destination), (destination, source)}:
                matrices[1:, one] += weight * before[:-1, other]
    return matrices


def numbers_of(projections: np.ndarray, source: int, destination: int) -> list[float]:
    """Numbers of a pair from projections [C, nodes, D]: among those of each node, and of one with the other's."""
    one, other = projections[:, source], projections[:, destination]
    pairs = [(place, second) for place in range(len(one)) for second in range(place + 1)]
    products = [[rows[a] @ rows[b] for a, b in pairs] for rows in (one, other)]
    products.append([a @ b for a in one for b in other])
    return [np.log1p(max(0.0, product)) for each in products for product in each]


def projections_at(plain, drawn: np.ndarray, batches: list[list[int]], now: int, memory) -> np.ndarray:
    """Projections [C, nodes, D] of all nodes at a time, from the matrices of all walks."""
    pieces = [drawn[None]]
    for scale in memory.walk_scales:
        pieces.append(walk_matrices(plain, batches, now, memory.walk_steps, scale)[1:] @ drawn)
    return np.concatenate(pieces)


def layer(linear, rows: torch.Tensor) -> torch.Tensor:
    rows = rows @ linear.weight.T
    return rows if linear.bias is None else rows + linear.bias


def network(rows: torch.Tensor, *layers) -> torch.Tensor:
    """Two layers with ReLU between them."""
    return layer(layers[1], torch.relu(layer(layers[0], rows)))


def numbers_at(projections: np.ndarray, one: int, other: int) -> torch.Tensor:
    return torch.tensor(numbers_of(projections, one, other), dtype=torch.float64)


def embed(model, plain, projections, pair: list[int], end: int, now: int, limit: int, places: int) -> torch.Tensor:
    """The embedding [Z] of an end of a pair by TPNet: tokens of its newest neighbors, places by columns mixed, then
    columns by places, then the mean over all places."""
    readout, tokens = model.embedding, [torch.zeros(model.config.hidden, dtype=torch.float64)] * places
    for event in range(limit):
        ends, time = [int(plain.src[event]), int(plain.dst[event])], int(plain.time[event])
        if end not in ends or time >= now:
            continue
        neighbor = ends[1] if ends[0] == end else ends[0]
        frequency = 10.0 ** -torch.linspace(0, 9, model.config.time_dim, dtype=torch.float64)
        known = [torch.from_numpy(plain.feature[event]).double(), torch.cos((now - time) * frequency)]
        if plain.node_feature is not None:
            known.insert(0, layer(model.feature, torch.from_numpy(plain.node_feature[neighbor]).double()))
        walks = [network(numbers_at(projections, neighbor, node), readout.wide, readout.narrow) for node in pair]
        hidden = torch.relu(layer(readout.known, torch.cat(known)) + layer(readout.relative, torch.cat(walks)))
        tokens = [*tokens[1:], layer(readout.token, hidden)]
    rows = torch.stack(tokens)
    for block in readout.blocks:
        for which, turn in enumerate((lambda rows: rows.T, lambda rows: rows)):
            norm, columns = block.norms[which], turn(rows)
            normed = functional.layer_norm(columns, columns.shape[1:], norm.weight, norm.bias)
            mixed = layer(block.narrow[which], functional.gelu(layer(block.wide[which], normed)))
            rows = rows + turn(mixed)
    return rows.mean(0)


def expected(model, plain, projections, pair: list[int], now: int, limit: int, places: int) -> torch.Tensor:
    """The logit of a pair by TPNet."""
    ends = [embed(model, plain, projections, pair, end, now, limit, places) for end in pair]
    decoder, rows = model.decoder, numbers_at(projections, *pair)
    rows = layer(decoder.pair, network(rows, decoder.wide, decoder.narrow))
    rows = rows + layer(decoder.source, ends[0]) + layer(decoder.destination, ends[1])
    return layer(decoder.out, torch.relu(rows))[0]


def recorded(session, monkeypatch) -> list[torch.Tensor]:
    """The numbers of pairs that the model computes from now on."""
    found, compute = [], session.model.numbers
    monkeypatch.setattr(session.model, "numbers", lambda *given: found.append(compute(*given)) or found[-1])
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("graph", [bipartite, homogeneous], ids=["bipartite", "homogeneous"])
def test_numbers_are_those_of_walk_matrices(comm, graph_and_parts, monkeypatch, graph, case):
    """Through training and validation; some events share a time, and are self-loops."""
    path, parts = graph_and_parts(graph, ticks=2000)
    config = make_config(train__batch_size=30, **ALONE | CASES[case])
    trainer, plain = open_trainer(comm, parts, config), read_plain(path)
    session, memory = trainer.session, config.memory
    row_of, found = flat_rows(comm, session), recorded(session, monkeypatch)
    drawn = draw_projections(np.arange(plain.num_nodes), memory.dim, config.train.seed).numpy()
    earlier, compared = [], 0
    for split in ("train", "val"):
        pairs_of = pairs_by_step(session, split)
        with session.plans(split, 0) as plans:
            for plan in plans:
                if split == "train":
                    trainer.train_step(plan)
                else:
                    (session.task.evaluate if plan.final else session.task.score)(plan)
                for number, event in enumerate(plan.event_row.tolist()):
                    projections = projections_at(plain, drawn, earlier, int(plain.time[event]), memory)
                    pairs, rows = pairs_of[plan.step][:, number].tolist(), found[-1][:, number].tolist()
                    for ends, row in zip(pairs, rows, strict=True):
                        wanted = numbers_of(projections, *(row_of[node] for node in ends))
                        assert row == pytest.approx(wanted, rel=1e-9, abs=1e-12)
                        compared += 1
                earlier.append(sorted(row for rows in comm.allgather(plan.event_row.tolist()) for row in rows))
    assert session.world.total(compared) > 300
    trainer.close()


TPNET = ALONE | {"model__readout": "tpnet", "model__layers": 2, "sampling__fanouts": [4], "train__batch_size": 30}
TPNETS = {
    "features": ({"edge_width": 3, "node_width": 4}, {}),
    "sources of their own": ({}, TWO_SCALES | {"eval__negative_kind": "historical"}),
    "earlier batches": ({"edge_width": 3}, {"sampling__in_batch_neighbors": False, "model__layers": 1}),
}


@torch.no_grad()
@pytest.mark.parametrize("case", TPNETS)
@pytest.mark.parametrize("graph", [bipartite, homogeneous], ids=["bipartite", "homogeneous"])
def test_scores_of_tpnet_are_those_of_its_equations(comm, graph_and_parts, graph, case):
    """From walk matrices of all events before the batch; some nodes have few neighbors, some none."""
    options, changes = TPNETS[case]
    path, parts = graph_and_parts(graph, num_events=160, ticks=2000, **options)
    config = make_config(**TPNET | changes)
    session, plain, compared = open_session(comm, parts, config), read_plain(path), 0
    row_of, pairs_of, earlier = flat_rows(comm, session), pairs_by_step(session, "val"), []
    drawn = draw_projections(np.arange(plain.num_nodes), config.memory.dim, config.train.seed).numpy()
    for split in ("train", "val"):
        with session.plans(split, 0) as plans:
            for plan in plans:
                scores = session.task.evaluate(plan)
                found = torch.cat([scores.positive[None], scores.negative])
                first = int(session.batches[split].first_row[plan.step])
                limit = len(plain.src) if config.sampling.in_batch_neighbors else first
                for number, event in enumerate(plan.event_row.tolist() if split == "val" else ()):
                    now = int(plain.time[event])
                    projections = projections_at(plain, drawn, earlier, now, config.memory)
                    for pair, score in zip(pairs_of[plan.step][:, number].tolist(), found[:, number], strict=True):
                        ends = [row_of[node] for node in pair]
                        wanted = expected(session.model, plain, projections, ends, now, limit, 4)
                        torch.testing.assert_close(score, wanted, rtol=1e-9, atol=1e-10)
                        compared += 1
                earlier.append(sorted(row for rows in comm.allgather(plan.event_row.tolist()) for row in rows))
    assert session.world.total(compared) > 30
    session.close()


@pytest.mark.parametrize("changes", [ALONE | {"memory__hot_ratio": 0.2}, TPNET], ids=["walks alone", "tpnet"])
def test_a_run_resumes_on_another_number_of_ranks(comm, graph_and_parts, mpi_tmp_path, changes):
    """With the losses of a run that never stopped, to the last bit on one rank."""
    _, parts = graph_and_parts(bipartite, edge_width=2)
    config, folder = make_config(**{"train__batch_size": 30} | changes), mpi_tmp_path / "run"
    on_rank_0(comm, folder.mkdir)
    first = open_trainer(comm, parts, config, folder)
    losses = train_steps(first, 0, 3)
    first._save(first.session.memory.saved())
    losses += train_steps(first, 3)
    first.close()
    assert len(losses) > 5
    if comm.rank == 0:
        second = open_trainer(MPI.COMM_SELF, parts, config, folder)
        second.resume()
        found = train_steps(second, 3)
        second.close()
        assert found == losses[3:] if comm.size == 1 else found == pytest.approx(losses[3:], rel=1e-9)


def test_a_new_epoch_begins_without_walks(comm, graph_and_parts):
    """But with the same random projections."""
    _, parts = graph_and_parts(bipartite)
    session = open_session(comm, parts, make_config(train__batch_size=30, **ALONE))
    table = session.memory.table
    before = table.state.clone()
    session.scores("train")
    moved = table.state.clone()
    session.memory.reset()
    assert torch.equal(table.state, before)
    assert not before[:, 6:].any()
    assert int(table.delivered.sum()) == 0
    assert torch.equal(moved[:, :6], before[:, :6])
    assert session.world.total(int((moved[:, 6:] != 0).any(1).sum())) > 20
    session.close()


def test_projections_are_normal_and_almost_orthogonal():
    """Rows of different nodes have products near 0, and each row a length near 1; the numbers of a node do not depend
    on the others."""
    rows = draw_projections(np.arange(100), 4096, 7)
    products = rows @ rows.T - torch.eye(100)
    assert products.abs().max() < 6 / 64
    assert abs(float(rows.mean())) < 1e-4
    assert float((rows * 64).pow(4).mean()) == pytest.approx(3, abs=0.05)
    torch.testing.assert_close(draw_projections(np.array([40, 3]), 4096, 7), rows[[40, 3]], rtol=0, atol=0)
    assert not torch.equal(draw_projections(np.array([3]), 4096, 8)[0], rows[3])
    assert draw_projections(np.array([3]), 5, 8).shape == (1, 5)
    assert draw_projections(np.empty(0, int), 5, 8).shape == (0, 5)


def test_products_of_projections_are_near_those_of_walk_matrices():
    """Of the rows of both nodes, for projections that are wide."""
    rng, walks = np.random.default_rng(3), Walks(4096, 3, (50.0,))
    drawn = draw_projections(np.arange(12), 4096, 1)
    rows = torch.cat([drawn, torch.zeros(12, 3 * 4096, dtype=torch.float64)], 1)
    matrices, last = np.concatenate([np.eye(12)[None], np.zeros((3, 12, 12))]), torch.zeros(12, dtype=torch.int64)
    for time in range(0, 100, 2):
        one, other = rng.choice(12, 2, replace=False)
        pair, times = torch.tensor([one, other]), torch.tensor([time, time])
        came = walks.sent(rows[pair.flip(0)], last[pair.flip(0)], times)
        rows[pair], last[pair] = walks.moved(rows[pair], last[pair], came, times, torch.arange(3))
        matrices = matrices * np.exp(-2 * np.arange(4) / 50)[:, None, None]
        matrices[1:, [one, other]] += matrices[:-1, [other, one]]
    found = walks.among(rows, last, torch.arange(12)[None], torch.arange(12)[None], torch.tensor([98]))[0]
    products = np.einsum("auw,bvw->uvab", matrices, matrices)
    lengths = np.sqrt(np.einsum("auw,auw->ua", matrices, matrices))
    found = torch.expm1(found[..., -16:]).unflatten(2, (4, 4)).numpy()
    error = np.abs(found - products) / (1e-9 + lengths[:, None, :, None] * lengths[None, :, None, :])
    assert error.max() < 0.1
    assert matrices[3].max() > 0.05


def test_long_spans_of_time_leave_finite_numbers(comm, graph_and_parts):
    """Where all earlier events have lost their weight, and where they have it all."""
    _, parts = graph_and_parts(bipartite, ticks=10**15)
    for scale in (1e-3, 1e30):
        changes = ALONE | {"memory__walk_scales": [scale], "train__precision": "float32"}
        session = open_session(comm, parts, make_config(train__batch_size=30, **changes))
        with session.plans("train", 0) as plans:
            scores = [session.task.evaluate(plan) for plan in plans]
        assert all(bool(torch.isfinite(each).all()) for score in scores for each in (score.positive, score.negative))
        assert bool(torch.isfinite(session.memory.table.state).all())
        session.close()


def test_a_model_of_walks_alone_has_no_embeddings(comm, graph_and_parts):
    _, parts = graph_and_parts(bipartite)
    session = open_session(comm, parts, make_config(sampling__prefetch=0, **ALONE))
    assert session.model.decoder.source is None
    with pytest.raises(DistributedError, match="by walks alone and has no embeddings of nodes: give --pairs"):
        answer(session, asked_for(embeddings=True))
    session.close()


REFUSED = {
    "memory.walk_steps must be at least 1, got 0": {"memory__walk_steps": 0},
    "memory.walk_scales must be times above 0": {"memory__walk_scales": []},
    r"in the data's unit, got \[3.0, 0.0\]": {"memory__walk_scales": [3.0, 0.0]},
    "memory.walk_steps is for memory.updater walks, the updater is gru": {
        "memory__updater": "gru", "memory__walk_steps": 2,
    },
    "task.decoder walks reads projections of walks, memory.updater is none": {
        "memory__updater": "none", "memory__walk_scales": [1e6],
    },
    "model.readout tpnet reads projections of walks, memory.updater is gru": {
        "model__readout": "tpnet", "memory__updater": "gru", "memory__walk_scales": [1e6], "task__decoder": "mlp",
    },
    "memory.updater walks is for task.decoder walks or clocks_walks or model.readout tpnet, which are mlp": {
        "task__decoder": "mlp", "model__readout": "attention",
    },
    "readout time_projection shows node memory": {"model__readout": "time_projection"},
    "memory.aggregator mean is about mails": {"memory__aggregator": "mean"},
    "memory.deliver_to neighbors is about mails": {"memory__deliver_to": "neighbors"},
    "memory.staleness 1 is about mails": {"memory__staleness": 1},
    "memory.updater walks reads one mail": {"memory__mailbox_slots": 2},
    "make mails, but memory.updater is walks": {"model__message": "mlp"},
    "task.decoder walks scores links, task.kind is node": {"task__kind": "node"},
    "does not go with model.class_path": {"model__class_path": "own.Model"},
    "memory.updater walks does not go with model.class_path": {
        "model__class_path": "own.Model", "task__decoder": "mlp",
    },
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_do_not_go_together(message):
    with pytest.raises(ValueError, match=message):
        make_config(**ALONE | REFUSED[message])
