"""DyGFormer, TCL, TNCN and CAWN against their equations in plain torch, pair by pair, and what they take besides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

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
from hpcgnn.temporal.model.cawn import CawnReadout
from hpcgnn.temporal.model.dygformer import DygformerReadout
from hpcgnn.temporal.model.tncn import TncnReadout
from hpcgnn.temporal.predict import answer

DYGFORMER = {"model__readout": "dygformer", "memory__updater": "none", "model__layers": 2, "model__channel_dim": 4}
TCL = {"model__readout": "tcl", "memory__updater": "none", "model__layers": 2}
TNCN = {"model__readout": "tncn", "memory__updater": "none"}
TWO_HOPS = TNCN | {"model__common_hops": 2}
CAWN = {"model__readout": "cawn", "memory__updater": "none", "model__layers": 2, "sampling__fanouts": [3, 2]}
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
    "tncn": (RICH, TNCN | {"task__negatives": 2}),
    "tncn with memory": (RICH, TWO_HOPS | {"memory__updater": "gru", "train__batch_size": 9}),
    "tncn of two hops": (RICH, TWO_HOPS | {"sampling__fanouts": [4, 3], "task__negatives": 2}),
    "tncn of two layers": (RICH, TNCN | {"model__layers": 2, "task__decoder": "dot"}),
    "tncn of two layers and hops": (
        {"node_width": 4},
        TWO_HOPS
        | {
            "model__layers": 2,
            "eval__negative_kind": "historical",
            "sampling__in_batch_neighbors": False,
        },
    ),
    "tncn of three layers": ({"node_width": 4}, TWO_HOPS | {"model__layers": 3, "sampling__fanouts": [2, 3, 2]}),
    "tncn without features": ({}, TWO_HOPS | {"task__kind": "edge"}),
    "cawn": (RICH, CAWN | {"task__negatives": 2}),
    "cawn with memory": (RICH, CAWN | {"memory__updater": "gru", "sampling__fanouts": [4, 1]}),
    "cawn of one step": ({"edge_width": 3}, CAWN | {"model__layers": 1, "sampling__fanouts": [5]}),
    "cawn of three steps": ({}, CAWN | {"model__layers": 3, "sampling__fanouts": [2], "model__heads": 1}),
    "cawn, sources of their own": ({}, CAWN | {"eval__negative_kind": "historical", "task__negatives": 2}),
    "cawn, labels of events": (RICH, CAWN | {"task__kind": "edge", "sampling__in_batch_neighbors": False}),
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


def rows_below(session, plain, plan) -> dict[int, torch.Tensor]:
    """Collective. The rows [D] of a plan's nodes below all layers: the memory that the step reads, and features."""
    memory = session.task._read_all(plan).memory
    (nodes,) = plan.route.pull(torch.from_numpy(session.partition.flat_row))
    rows = dict(zip(nodes.tolist(), memory, strict=True))
    if plain.node_feature is not None:
        features = layer(session.model.feature, torch.from_numpy(plain.node_feature[nodes.numpy()]).double())
        for node, feature in zip(nodes.tolist(), features, strict=True):
            rows[node] = rows[node] + feature if session.model.has_memory else feature
    return rows


def attend(model, plain, rows, node: int, now: int, depth: int, past: Callable) -> torch.Tensor:
    """The row [Z] of a node just before a time, after so many layers of attention, head by head."""
    if depth == 0:
        return rows[node]
    read, hop = model.embedding.attention.layers[depth - 1], len(model.embedding.attention.layers) - depth
    own, (_, *neighbors) = attend(model, plain, rows, node, now, depth - 1, past), past(node, now, hop)
    phase, heads = model.embedding.attention.layers[0].time.phase, []
    frequency = 10.0 ** -torch.linspace(0, 9, len(phase), dtype=torch.float64)
    neighbors_rows = [
        torch.cat([
            attend(model, plain, rows, other, now - age, depth - 1, past),
            torch.from_numpy(plain.feature[event]).double(), torch.cos(age * frequency + phase),
        ])
        for other, age, event in neighbors
    ]  # fmt: skip
    query = layer(read.query, torch.cat([own, torch.cos(phase)])).view(read.heads, -1)
    for head in range(read.heads):
        if not neighbors_rows:
            heads.append(torch.zeros(query.shape[1], dtype=torch.float64))
            continue
        keys, values = (torch.stack(neighbors_rows) @ weight[head].T for weight in (read.key, read.value))
        heads.append(torch.softmax(keys @ query[head] / query.shape[1] ** 0.5, dim=0) @ values)
    merged = torch.relu(layer(read.merge, torch.cat([*heads, own])))
    return functional.layer_norm(merged, merged.shape, read.norm.weight, read.norm.bias)


def walks(node: int, other: int, now: int, hops: int, past: Callable) -> list[Counter]:
    """How often walks of each length from a node, an end of a pair, end at each node."""
    (_, *neighbors), found = past(node, now, 0), [Counter()]
    found += [Counter()] * (hops - 1)
    for middle, age, _ in neighbors:
        found[0][middle] += 1
        for end, _, _ in past(middle, now - age, 1)[1:] if hops == 2 and middle != other else ():
            found[1][end] += end not in (node, other)
    return found


def embed_tncn(model, plain, rows, one: int, other: int, now: int, past: Callable) -> list[torch.Tensor]:
    """The embeddings [Z] of both ends of a pair by TNCN."""
    readout, one_row = model.embedding, torch.ones(1, dtype=torch.float64)
    ends = [attend(model, plain, rows, node, now, len(readout.attention.layers), past) for node in (one, other)]
    from_one, from_other = (walks(*pair, now, readout.hops, past) for pair in ((one, other), (other, one)))
    pieces = [ends[0] * ends[1]]
    pieces += [from_other[0][one] * torch.cat([ends[0], one_row]), from_one[0][other] * torch.cat([ends[1], one_row])]
    for second in from_other:
        for first in from_one:
            pieces.append(torch.zeros(len(rows[one]) + 1, dtype=torch.float64))
            for node in first.keys() & second.keys():
                pieces[-1] += first[node] * second[node] * torch.cat([rows[node], one_row])
    return [ends[0], ends[1] + layer(readout.common, torch.cat(pieces))]


def causal_walks(node: int, now: int, steps: int, past: Callable, hop: int = 0) -> list[list[tuple]]:
    """Walks back in time from a node, without it: places (node, time difference, event); one without places where the
    node has no earlier event."""
    (_, *neighbors), found = past(node, now, hop) if hop < steps else [None], []
    for place in neighbors:
        found += [[place, *rest] for rest in causal_walks(place[0], now - place[1], steps, past, hop + 1)]
    return found or [[]]


def state_of(model, plain, rows, walk: list[tuple], shares: Callable) -> torch.Tensor:
    """The state [C] of an LSTM after a walk. shares: of the walks of an end that are at a node after each number of
    steps, for both ends."""
    readout, state, cell = model.embedding, torch.zeros(model.config.hidden), torch.zeros(model.config.hidden)
    state, cell, (first, _, second) = state.double(), cell.double(), readout.position
    frequency = 10.0 ** -torch.linspace(0, 9, model.config.time_dim, dtype=torch.float64)
    for node, age, event in walk:
        feature = np.zeros(plain.feature.shape[1]) if event is None else plain.feature[event]
        known = [rows[node], torch.from_numpy(feature).double(), torch.cos(age * frequency + readout.time.phase)]
        position = sum(layer(second, torch.relu(layer(first, share))) for share in shares(node))
        gates = layer(readout.known, torch.cat(known)) + readout.counted.weight @ position
        into, keep, new, show = (gates + readout.hidden.weight @ state).chunk(4)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(into) * torch.tanh(new)
        state = torch.sigmoid(show) * torch.tanh(cell)
    return state


def embed_cawn(model, plain, rows, one: int, other: int, now: int, past: Callable) -> list[torch.Tensor]:
    """The embeddings [Z] of both ends of a pair by CAWN."""
    readout, steps, ends = model.embedding, model.config.layers, []
    for node in (one, other):
        ends.append([[(node, 0, None), *walk] for walk in causal_walks(node, now, steps, past)])

    @cache
    def shares(node):
        at = [
            [[place[0] == node for place in walk] + [False] * (steps + 1 - len(walk)) for walk in end] for end in ends
        ]
        return [torch.tensor(of_end).double().mean(0) for of_end in at]

    states = torch.stack([state_of(model, plain, rows, walk, shares) for end in ends for walk in end])
    query, key, value = layer(readout.project, states).chunk(3, dim=1)
    heads = []
    for own in torch.arange(states.shape[1]).chunk(readout.heads):
        heads.append(torch.softmax(query[:, own] @ key[:, own].T / len(own) ** 0.5, dim=1) @ value[:, own])
    halves = torch.cat(heads, dim=1).split([len(end) for end in ends])
    return [layer(readout.out, half.mean(0)) for half in halves]


EMBEDDED = {"tncn": embed_tncn, "cawn": embed_cawn}


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
    config = make_config(**{"train__batch_size": 30} | changes)
    session, plain = open_session(comm, parts, config), read_plain(path)
    row_of, compared = flat_rows(comm, session), 0
    pairs_of = pairs_by_step(session, "val") if config.task.kind == "link" else None
    with session.plans("val", 0) as plans:
        for plan in plans:
            first = int(session.batches["val"].first_row[plan.step])
            limit = len(plain.src) if config.sampling.in_batch_neighbors else first

            @cache
            def past(node, now, hop, limit=limit):
                return history_of(plain, node, now, limit, config.sampling.fanout(hop))

            rows = rows_below(session, plain, plan)
            scores = session.task.evaluate(plan)
            found = scores.output[None] if pairs_of is None else torch.cat([scores.positive[None], scores.negative])
            for number, event in enumerate(plan.event_row.tolist()):
                pairs = [[int(plain.src[event]), int(plain.dst[event])]]
                if pairs_of is not None:
                    pairs = [[row_of[int(node)] for node in pair] for pair in pairs_of[plan.step][:, number]]
                now = int(plain.time[event])
                for pair, value in zip(pairs, found[:, number], strict=True):
                    if config.model.readout in EMBEDDED:
                        ends = EMBEDDED[config.model.readout](session.model, plain, rows, *pair, now, past)
                    else:
                        ends = embed(session.model, plain, *(past(node, now, 0) for node in pair))
                    wanted = expected(session, plain, *ends, event)
                    torch.testing.assert_close(value.reshape(-1), wanted.reshape(-1), rtol=1e-9, atol=1e-10)
                    compared += 1
    assert session.world.total(compared) > 30
    session.close()


BLOCKS = {"dygformer": (DygformerReadout, DYGFORMER, 2 * 6 * 4 * 16), "tncn": (TncnReadout, TWO_HOPS, 122),
          "cawn": (CawnReadout, CAWN, 2 * 6 * 3 * 4 * 8)}  # fmt: skip


@pytest.mark.parametrize("pairs", [8, 60])
@pytest.mark.parametrize("readout", BLOCKS)
def test_blocks_of_pairs_do_not_change_the_answer(comm, graph_and_parts, readout, pairs, monkeypatch):
    """Of a pair of some events, or of some pairs of all events; they are computed twice in training."""
    _, parts = graph_and_parts(num_events=120, **RICH)
    kind, changes, widest = BLOCKS[readout]
    config = make_config(train__batch_size=30, task__negatives=3, **changes)
    whole, sizes = record_epoch(comm, parts, config), []
    embed_pairs = kind.embed_pairs

    def noted(self, first, source, *further):
        sizes.append(len(source))
        return embed_pairs(self, first, source, *further)

    monkeypatch.setattr(kind, "embed_pairs", noted)
    monkeypatch.setattr(frame, "MOST_NUMBERS", pairs * widest)
    pieces = record_epoch(comm, parts, config)
    assert max(sizes) <= pairs
    if comm.rank == 0:
        assert_same(whole, pieces)


@pytest.mark.parametrize(
    "changes", [DYGFORMER, TWO_HOPS | {"memory__updater": "gru"}, CAWN], ids=["dygformer", "tncn", "cawn"]
)
def test_a_run_resumes_on_another_number_of_ranks(comm, graph_and_parts, mpi_tmp_path, changes):
    """With the losses of a run that never stopped, to the last bit on one rank."""
    _, parts = graph_and_parts(**RICH)
    config, folder = make_config(train__batch_size=30, **changes), mpi_tmp_path / "run"
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
    "train.cuda_graphs on does not record": {"train__cuda_graphs": "on"},
    "num_windows > 1 needs model.readout attention": {
        "sampling__strategy": "window", "sampling__window_length": 9, "sampling__num_windows": 2,
    },
    "model.patch_size is for model.readout dygformer, the readout is tcl": {
        "model__readout": "tcl", "model__patch_size": 2,
    },
    "model.common_hops must be 1 or 2, got 3": TNCN | {"model__common_hops": 3},
    "model.common_hops is for model.readout tncn, the readout is dygformer": {"model__common_hops": 2},
    r"\[5, 5\] needs one number for model.readout tncn": TNCN | {"model__layers": 1, "sampling__fanouts": [5, 5]},
    r"\[5, 5, 5\] needs one number, or one a hop, and model.readout tncn has 2": TWO_HOPS | {
        "model__layers": 1, "sampling__fanouts": [5, 5, 5],
    },
    "tncn embeds pairs of nodes, task.kind node_class predicts from one node": TNCN | {"task__kind": "node_class"},
    r"\[3, 2, 2\] needs one number, or one a hop, and model.readout cawn has 2": CAWN | {
        "sampling__fanouts": [3, 2, 2],
    },
    "memory.updater none": TNCN | {
        "sampling__strategy": "window", "sampling__window_length": 9, "sampling__num_windows": 2,
    },
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_do_not_go_together(message):
    with pytest.raises(ValueError, match=message):
        make_config(**DYGFORMER | REFUSED[message])
