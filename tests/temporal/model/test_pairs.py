"""DyGFormer and TCL against their equations in plain torch, pair by pair, and what they take besides."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from run_commands import asked_for
from torch.nn import functional
from training_runs import (
    assert_same,
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
    record_epoch,
    train_steps,
)

from hpcgnn.comm.world import DistributedError
from hpcgnn.temporal.model import pairs as frame
from hpcgnn.temporal.model.dygformer import DygformerReadout
from hpcgnn.temporal.predict import answer

DYGFORMER = {"model__readout": "dygformer", "memory__updater": "none", "model__layers": 2, "model__channel_dim": 4}
TCL = {"model__readout": "tcl", "memory__updater": "none", "model__layers": 2}
RICH = {"edge_width": 3, "node_width": 4}
CASES = {
    "patches of one place": (RICH, DYGFORMER | {"task__negatives": 3}),
    "patches of two places": (RICH, DYGFORMER | {"model__patch_size": 2, "model__layers": 3}),
    "patches that do not fill": ({"edge_width": 3}, DYGFORMER | {"model__patch_size": 4}),
    "one patch": ({}, DYGFORMER | {"model__patch_size": 9, "model__heads": 1}),
    "sources of their own": ({}, DYGFORMER | {"eval__negative_kind": "historical", "task__negatives": 2}),
    "earlier batches": ({}, DYGFORMER | {"sampling__in_batch_neighbors": False, "task__decoder": "dot"}),
    "labels of events": (RICH, DYGFORMER | {"task__kind": "edge", "model__patch_size": 2}),
    "tcl": (RICH, TCL | {"task__negatives": 2}),
    "tcl without features": ({}, TCL | {"model__layers": 1, "eval__negative_kind": "historical"}),
}


@pytest.fixture
def graph_and_parts(comm, mpi_tmp_path):
    """Makes a graph file, whose events have labels, and its partition set."""

    def write(path, graph, options) -> None:
        graph(path, **{"num_events": 240} | options)
        with h5py.File(path, "r+") as file:
            (events,) = file["edges"].values()
            events["label"] = np.arange(len(events["src"])) % 3.0

    def make(graph=bipartite, **options):
        path = mpi_tmp_path / "graph.h5"
        on_rank_0(comm, lambda: write(path, graph, options))
        return path, make_parts(comm, path, mpi_tmp_path / "parts", 8, "random")

    return make


def history_of(plain, node: int, now: int, limit: int, places: int) -> list[tuple]:
    """Places (node, time difference, event) of a node: itself, then its newest neighbors, the oldest first."""
    found = []
    for event in range(limit):
        ends, time = (int(plain.src[event]), int(plain.dst[event])), int(plain.time[event])
        if node in ends and time < now:
            found.append((ends[1] if ends[0] == node else ends[0], now - time, event))
    return [(node, 0, None), *found[-places:]]


def layer(linear, rows: torch.Tensor) -> torch.Tensor:
    return rows @ linear.weight.T + linear.bias


def patches(linear, rows: torch.Tensor, size: int) -> torch.Tensor:
    """Project patches of consecutive rows [L, d], the last of which is filled with zeros."""
    filled = torch.cat([rows, torch.zeros(-len(rows) % size, rows.shape[1], dtype=rows.dtype)])
    return layer(linear, filled.reshape(len(filled) // size, size * rows.shape[1]))


def features(model, plain, history: list[tuple]) -> list[torch.Tensor]:
    """Features [L, d] of the nodes and of the events of a history, where there are such, and encoded times."""
    (nodes, ages, events), pieces = zip(*history, strict=True), []
    if plain.node_feature is not None:
        feature = torch.from_numpy(plain.node_feature[list(nodes)]).double()
        pieces.append(layer(model.feature, feature))
    if plain.feature.shape[1]:
        none = np.zeros(plain.feature.shape[1], np.float32)
        rows = [none if event is None else plain.feature[event] for event in events]
        pieces.append(torch.from_numpy(np.array(rows)).double())
    frequency = 10.0 ** -torch.linspace(0, 9, model.config.time_dim, dtype=torch.float64)
    phase = model.embedding.time.phase
    return [*pieces, torch.cos(torch.tensor(ages, dtype=torch.float64)[:, None] * frequency + phase)]


def channels(model, plain, history: list[tuple], other: list[tuple]) -> torch.Tensor:
    """The patches [l, W] of a history, next to the other one of the pair."""
    readout, nodes, size = model.embedding, [place[0] for place in history], model.config.patch_size
    times = [[[place[0] for place in one].count(node) for one in (history, other)] for node in nodes]
    first, _, second = readout.count
    encoded = sum(layer(second, torch.relu(layer(first, column[:, None]))) for column in torch.tensor(times).double().T)
    pieces = zip(readout.channels, features(model, plain, history), strict=True)
    columns = [patches(*pair, size) for pair in pieces]
    return torch.cat([*columns, patches(readout.occurrence, encoded, size)], dim=1)


def transform(block, rows: torch.Tensor) -> torch.Tensor:
    """A transformer block over rows [l, W]: attention head by head, then the feed-forward layer."""
    width = rows.shape[1]
    normed = functional.layer_norm(rows, (width,), block.norms[0].weight, block.norms[0].bias)
    query, key, value = layer(block.project, normed).split(width, dim=1)
    heads = []
    for own in torch.arange(width).chunk(block.heads):
        score = query[:, own] @ key[:, own].T / len(own) ** 0.5
        heads.append(torch.softmax(score, dim=1) @ value[:, own])
    rows = rows + layer(block.merge, torch.cat(heads, dim=1))
    normed = functional.layer_norm(rows, (width,), block.norms[1].weight, block.norms[1].bias)
    return rows + layer(block.narrow, functional.gelu(layer(block.widen, normed)))


def read(block, rows: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """A block of TCL over rows [q, Z], which attend to a history [L, Z]."""
    width = rows.shape[1]
    query, key, value = layer(block.query, rows), layer(block.key, history), layer(block.value, history)
    heads = []
    for own in torch.arange(width).chunk(block.heads):
        heads.append(torch.softmax(query[:, own] @ key[:, own].T / len(own) ** 0.5, dim=1) @ value[:, own])
    rows = rows + layer(block.merge, torch.cat(heads, dim=1))
    rows = functional.layer_norm(rows, (width,), block.norms[0].weight, block.norms[0].bias)
    rows = rows + layer(block.narrow, torch.relu(layer(block.widen, rows)))
    return functional.layer_norm(rows, (width,), block.norms[1].weight, block.norms[1].bias)


def embed_tcl(model, plain, *histories: list[tuple]) -> list[torch.Tensor]:
    """The embeddings [Z] of both ends of a pair by TCL."""
    readout, ends = model.embedding, []
    for history in histories:
        depth = readout.depth.weight[[0, *range(len(history) - 1, 0, -1)]]
        pieces = zip(readout.features, features(model, plain, history), strict=True)
        ends.append(depth + sum(layer(*pair) for pair in pieces))
    for block in readout.blocks:
        ends = [read(block, rows, rows) for rows in ends]
        both = [read(block, rows, other) for rows, other in zip(ends, ends[::-1], strict=True)]
    return [layer(readout.out, rows[0]) for rows in both]


def embed(model, plain, one: list[tuple], other: list[tuple]) -> list[torch.Tensor]:
    """The embeddings [Z] of both ends of a pair, from their histories."""
    if model.config.readout == "tcl":
        return embed_tcl(model, plain, one, other)
    first, second = channels(model, plain, one, other), channels(model, plain, other, one)
    rows = torch.cat([first, second])
    for block in model.embedding.blocks:
        rows = transform(block, rows)
    return [layer(model.embedding.out, half.mean(0)) for half in rows.split([len(first), len(second)])]


def expected(session, plain, source, destination, event: int) -> torch.Tensor:
    """The logit of a pair, or the logits of its label."""
    decoder, kind = session.model.decoder, session.config.task
    if kind.has_labels:
        feature = torch.from_numpy(plain.feature[event]).double()
        return layer(decoder.out, torch.relu(layer(decoder.hidden, torch.cat([source, destination, feature]))))
    if kind.decoder == "dot":
        return source @ destination
    return layer(decoder.out, torch.relu(layer(decoder.source, source) + decoder.destination.weight @ destination))


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("graph", [bipartite, homogeneous], ids=["bipartite", "homogeneous"])
def test_scores_are_those_of_the_equations(comm, graph_and_parts, graph, case):
    """Of events and negatives whose pairs met before or not; some events share a time."""
    options, changes = CASES[case]
    path, parts = graph_and_parts(graph, ticks=150, **options)
    config = make_config(train__batch_size=30, **changes)
    session, plain = open_session(comm, parts, config), read_plain(path)
    row_of, places, compared = flat_rows(comm, session), config.sampling.fanouts[0], 0
    pairs_of = pairs_by_step(session, "val") if config.task.kind == "link" else None
    with session.plans("val", 0) as plans:
        for plan in plans:
            first = int(session.batches["val"].first_row[plan.step])
            limit = len(plain.src) if config.sampling.in_batch_neighbors else first
            scores = session.task.score(plan)
            found = scores.output[None] if pairs_of is None else torch.cat([scores.positive[None], scores.negative])
            for number, event in enumerate(plan.event_row.tolist()):
                pairs = [[int(plain.src[event]), int(plain.dst[event])]]
                if pairs_of is not None:
                    pairs = [[row_of[int(node)] for node in pair] for pair in pairs_of[plan.step][:, number]]
                for pair, value in zip(pairs, found[:, number], strict=True):
                    ends = [history_of(plain, node, int(plain.time[event]), limit, places) for node in pair]
                    wanted = expected(session, plain, *embed(session.model, plain, *ends), event)
                    torch.testing.assert_close(value.reshape(-1), wanted.reshape(-1), rtol=1e-9, atol=1e-10)
                    compared += 1
    assert session.world.total(compared) > 30
    session.close()


@pytest.mark.parametrize("pairs", [8, 60])
def test_blocks_of_pairs_do_not_change_the_answer(comm, graph_and_parts, pairs, monkeypatch):
    """Of a pair of some events, or of some pairs of all events; they are computed twice in training."""
    _, parts = graph_and_parts(num_events=120, **RICH)
    config = make_config(train__batch_size=30, task__negatives=3, **DYGFORMER)
    whole, sizes = record_epoch(comm, parts, config), []
    embed_pairs = DygformerReadout.embed_pairs

    def noted(self, dropout, source, *further):
        sizes.append(len(source))
        return embed_pairs(self, dropout, source, *further)

    monkeypatch.setattr(DygformerReadout, "embed_pairs", noted)
    monkeypatch.setattr(frame, "MOST_NUMBERS", pairs * 2 * 6 * 4 * 16)
    pieces = record_epoch(comm, parts, config)
    assert max(sizes) <= pairs
    if comm.rank == 0:
        assert_same(whole, pieces)


def test_a_run_resumes_on_another_number_of_ranks(comm, graph_and_parts, mpi_tmp_path):
    """With the losses of a run that never stopped, to the last bit on one rank."""
    _, parts = graph_and_parts(**RICH)
    config, folder = make_config(train__batch_size=30, **DYGFORMER), mpi_tmp_path / "run"
    on_rank_0(comm, folder.mkdir)
    first = open_trainer(comm, parts, config, folder)
    losses = train_steps(first, 0, 2)
    first._save(first.session.memory.saved())
    losses += train_steps(first, 2)
    first.close()
    assert len(losses) > 4
    if comm.rank == 0:
        second = open_trainer(MPI.COMM_SELF, parts, config, folder)
        second.resume()
        found = train_steps(second, 2)
        second.close()
        assert found == losses[2:] if comm.size == 1 else found == pytest.approx(losses[2:], rel=1e-9)


def test_pairs_have_embeddings_and_nodes_have_none(comm, graph_and_parts):
    _, parts = graph_and_parts()
    session = open_session(comm, parts, make_config(sampling__prefetch=0, **DYGFORMER))
    for arguments in ({"embeddings": True}, {"nodes": "nodes.csv"}):
        with pytest.raises(
            DistributedError, match="embeds pairs of nodes and has no embeddings of nodes: give --pairs"
        ):
            answer(session, asked_for(**arguments))
    session.close()


REFUSED = {
    "divide model.channel_dim": {"model__channel_dim": 5},
    "model.patch_size must be at least 1, got 0": {"model__patch_size": 0},
    r"\[5, 5\] needs one number for model.readout dygformer": {"sampling__fanouts": [5, 5]},
    "task.kind node predicts from one node: use attention": {"task__kind": "node"},
    "mails cannot have the embedding of one": {"memory__updater": "gru", "model__message_from": "embedding"},
    "train.cuda_graphs does not record": {"train__cuda_graphs": True},
    "num_windows > 1 needs model.readout attention": {
        "sampling__strategy": "window", "sampling__window_length": 9, "sampling__num_windows": 2,
    },
    "model.patch_size is for model.readout dygformer, the readout is tcl": {
        "model__readout": "tcl", "model__patch_size": 2,
    },
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_do_not_go_together(message):
    with pytest.raises(ValueError, match=message):
        make_config(**DYGFORMER | REFUSED[message])
