"""Temporal graphs of several relations, and of one relation with a column of edge types.

The events of all relations are merged by hand with NumPy, into the graph that a run must see.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from evaluation_setup import Evaluation
from kept import result
from mpi4py import MPI
from random_graphs import write_graph
from run_commands import asked, asked_for
from scipy.stats import chisquare
from sklearn.metrics import average_precision_score
from training_runs import (
    assert_same,
    bipartite,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    open_trainer,
    record_epoch,
    train_steps,
)

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop.checkpoint_writer import initialize
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.links import best_of_relations
from hpcgnn.loop.session import split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal import predict
from hpcgnn.temporal.graph import open_partition, places_of_features
from hpcgnn.temporal.loader import TemporalGraph, TemporalLoader
from hpcgnn.temporal.predict import (
    answer_nodes,
    links_by_type,
    read_ends,
    read_nodes,
    read_pairs,
    replay,
    score_pairs,
)

USERS, ITEMS = 24, 11
RELATIONS = (("user", "buys", "item"), ("item", "recalls", "user"), ("user", "asks", "user"))
COUNTS, WIDTHS = (260, 90, 150), (2, 0, 3)  # of events, and of their features
COLUMNS = ((0, 1), (), (2, 3, 4))  # of the features in a run; behind them one for each edge type
TICKS = 120  # so few that many events of all relations have one time
SPAN, K = {"user": (0, USERS), "item": (USERS, USERS + ITEMS)}, 5  # flat row ids by type; neighbors of a root


def draw_events(seed: int = 1) -> list[dict[str, np.ndarray]]:
    """The columns of every relation, in order of time."""
    rng, tables = np.random.default_rng(seed), []
    for (source, _, destination), count, width in zip(RELATIONS, COUNTS, WIDTHS, strict=True):
        sizes = [SPAN[kind][1] - SPAN[kind][0] for kind in (source, destination)]
        columns = {
            "src": rng.integers(0, sizes[0], count), "dst": (sizes[1] * rng.random(count) ** 2).astype(np.int64),
            "time": 500 + np.sort(rng.integers(0, TICKS, count)),
        }  # fmt: skip
        tables.append(columns | ({"feat": rng.standard_normal((count, width)).astype(np.float32)} if width else {}))
    return tables


def merge(tables, kinds=RELATIONS) -> dict[str, np.ndarray]:
    """All events in order of (time, relation, row), with flat row ids and the features that a run has."""
    number = np.repeat(np.arange(len(tables)), [len(table["src"]) for table in tables])
    row = np.concatenate([np.arange(len(table["src"])) for table in tables])
    time = np.concatenate([table["time"] for table in tables])
    ends = [
        np.concatenate([table[end] + SPAN[kind[place]][0] for table, kind in zip(tables, kinds, strict=True)])
        for end, place in (("src", 0), ("dst", 2))
    ]
    feature = np.zeros((len(row), 5 + len(tables)))
    for relation, (table, columns) in enumerate(zip(tables, COLUMNS, strict=True)):
        feature[number == relation, 5 + relation] = 1
        if columns:
            feature[np.ix_(number == relation, columns)] = table["feat"]
    order = np.lexsort((row, number, time))
    values = {"type": number, "row": row, "time": time, "src": ends[0], "dst": ends[1], "feat": feature}
    return {name: column[order] for name, column in values.items()}


def write_typed(path, seed: int = 1, node_width: int = 0):
    """The graph file of these relations; users may have features."""
    tables, rng = draw_events(seed), np.random.default_rng(seed)
    merged = merge(tables)
    for relation, table in enumerate(tables):
        table["event"] = np.flatnonzero(merged["type"] == relation)
    nodes = {"user": {"id": 100 + np.arange(USERS)}, "item": {"id": 7 * np.arange(ITEMS)}}
    if node_width:
        nodes["user"]["feat"] = rng.standard_normal((USERS, node_width)).astype(np.float32)
        nodes["item"]["feat"] = rng.standard_normal((ITEMS, node_width + 1)).astype(np.float32)
    return write_graph(path, nodes, dict(zip(RELATIONS, tables, strict=True)))


@pytest.fixture
def parts(comm, mpi_tmp_path) -> Path:
    """A partition set of the graph."""
    on_rank_0(comm, lambda: write_typed(mpi_tmp_path / "graph.h5") and None)
    return make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts")


# name: changes of the configuration
CASES = {
    "mlp": {"sampling__strategy": "uniform", "task__negatives": 3},
    "pair": {"task__decoder": "pair", "memory__update_at": "user", "sampling__batch_by": "time"},
    "clocks": {"task__decoder": "clocks"},
    "dygformer": {"model__readout": "dygformer", "model__layers": 2, "eval__negative_kind": "historical"},
    "tncn": {"model__readout": "tncn", "model__common_hops": 2, "task__negatives": 2},
    "cawn": {"model__readout": "cawn", "model__layers": 2, "sampling__fanouts": [3, 2]},
    "tpnet": {"memory__updater": "walks", "model__readout": "tpnet", "task__decoder": "walks", "task__negatives": 2},
    "embeddings in mails": {"model__message_from": "embedding", "model__layers": 2, "data__new_node_ratio": 0.1},
    "hot": {"memory__hot_ratio": 0.2, "sampling__random_chunks": 3},
    "degrees": {"task__negative_kind": "degree", "task__negatives": 3, "eval__negative_kind": "historical"},
    "inductive": {"eval__negative_kind": "inductive", "task__negatives": 2},
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_change_the_answer(comm, mpi_tmp_path, case):
    on_rank_0(comm, lambda: write_typed(mpi_tmp_path / "graph.h5", node_width=2) and None)
    parts = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts")
    config = make_config(**CASES[case])
    together = record_epoch(comm, parts, config)
    if comm.rank == 0:
        assert len(np.unique(together.losses)) > 5
        assert_same(together, result(lambda: record_epoch(MPI.COMM_SELF, parts, config), parts, config))


def test_samples_are_those_of_the_merged_events(comm, parts):
    """Roots, newest neighbors over all relations with their features, and negatives of the destination's type."""
    record = record_epoch(comm, parts, make_config(sampling__fanouts=[K], task__negatives=4))
    if comm.rank:
        return
    merged, found = merge(draw_events()), record.events
    assert len(found["row"]) == (merged["time"] <= np.quantile(merged["time"], 0.7)).sum()
    assert np.array_equal(found["row"], np.arange(len(found["row"])))
    pool = {kind: {n for n in merged["dst"][found["row"]] if first <= n < last} for kind, (first, last) in SPAN.items()}
    drawn = {kind: set() for kind in SPAN}
    for place, event in enumerate(found["row"]):
        roots, kind = found["root"][place], RELATIONS[merged["type"][event]][2]
        assert roots[:2].tolist() == [merged["src"][event], merged["dst"][event]]
        assert set(roots[2:]) <= pool[kind] - {roots[1]}
        drawn[kind] |= set(roots[2:])
        for role, root in enumerate(roots):
            of_root = (merged["src"] == root) | (merged["dst"] == root)
            newest = np.flatnonzero(of_root & (merged["time"] < merged["time"][event]))[-K:]
            other = np.where(merged["src"][newest] == root, merged["dst"][newest], merged["src"][newest])
            count = len(newest)
            neighbor, dt, edge = (found[name][place, role] for name in ("neighbor", "dt", "edge"))
            assert sorted(neighbor >= 0) == [False] * (K - count) + [True] * count
            seen = neighbor >= 0
            assert np.array_equal(neighbor[seen], other)
            assert np.array_equal(dt[seen], merged["time"][event] - merged["time"][newest])
            np.testing.assert_allclose(edge[seen], merged["feat"][newest], rtol=1e-6)
    assert drawn == pool  # so that the draws above were no accident


def test_a_column_of_types_is_the_same_as_relations(comm, mpi_tmp_path):
    """Three relations between nodes of one type, and their events as one relation with a column: bit for bit."""
    rng = np.random.default_rng(3)
    tables = [
        {"src": rng.integers(0, USERS, n), "dst": rng.integers(0, USERS, n), "time": np.sort(rng.integers(0, 90, n))}
        for n in COUNTS
    ]
    kinds = [("user", name, "user") for name in ("a", "b", "c")]
    number = np.repeat(np.arange(3), COUNTS)
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    order = np.lexsort((np.concatenate([np.arange(n) for n in COUNTS]), number, columns["time"]))
    for relation, table in enumerate(tables):
        table["event"] = np.flatnonzero(number[order] == relation)
    whole = {name: column[order] for name, column in columns.items()} | {"type": number[order].astype(np.int16)}
    nodes, records = {"user": {"id": np.arange(USERS)}}, []
    for name, edges in (("several", dict(zip(kinds, tables, strict=True))), ("one", {kinds[0]: whole})):
        on_rank_0(comm, lambda name=name, edges=edges: write_graph(mpi_tmp_path / f"{name}.h5", nodes, edges) and None)
        folder = make_parts(comm, mpi_tmp_path / f"{name}.h5", mpi_tmp_path / name, 8, "random")
        typed = {"data__type_column": "type"} if name == "one" else {}
        records.append(record_epoch(comm, folder, make_config(**typed)))
    if comm.rank == 0:
        assert_same(*records)
        assert records[0].losses == records[1].losses
        assert records[0].events["edge"].shape[-1] == 3


def test_one_relation_is_as_before(comm, mpi_tmp_path):
    """Samples, bit for bit, and losses of the version before there were edge types."""
    on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "g.h5", ticks=60, edge_width=3, node_width=4) and None)
    folder = make_parts(comm, mpi_tmp_path / "g.h5", mpi_tmp_path / "parts", 8, "random")
    record = record_epoch(comm, folder, make_config(task__negatives=3, sampling__strategy="uniform"))
    if comm.rank == 0:
        names = ("row", "root", "neighbor", "dt")
        samples = b"".join(np.ascontiguousarray(record.events[name], np.int64).tobytes() for name in names)
        assert hashlib.sha256(samples).hexdigest()[:16] == "f39ced2b94e5a296"
        assert sum(record.losses) == pytest.approx(18.15999519692014, rel=1e-9)


def make_trainer(comm, parts: Path, folder: Path) -> Trainer:
    config = make_config(train__batch_size=30, sampling__strategy="uniform")
    return open_trainer(comm, parts, config, folder)


def test_a_run_goes_on_on_another_number_of_ranks(comm, parts, mpi_tmp_path):
    folder = mpi_tmp_path / "run"
    on_rank_0(comm, folder.mkdir)
    first = make_trainer(comm, parts, folder)
    losses = train_steps(first, 0, 4)
    first._save(first.session.memory.saved())
    losses += train_steps(first, 4)
    first.close()
    if comm.rank == 0:
        second = make_trainer(MPI.COMM_SELF, parts, folder)
        second.resume()
        assert second.progress.step == 4
        np.testing.assert_allclose(train_steps(second, 4), losses[4:], rtol=1e-9)
        second.close()


# --------------------------------------------------------------------------------------------- the model and its scores


def test_the_decoder_adds_a_row_of_the_edge_type(comm, parts):
    """Logits by hand, of negatives that share the event's source; the rows are zeros at first, and learned."""
    session = open_session(comm, parts, make_config(task__decoder="dot", model__dropout=0.0))
    model = session.model
    assert not model.edge_type.weight.any()
    assert model.edge_type.weight.shape == (3, 8)
    with torch.no_grad():
        model.edge_type.weight.copy_(torch.arange(24.0).view(3, 8))
    rows, kind = torch.rand(4, 6, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])
    found = model.decode(rows, edge_type=kind)
    expected = ((rows[0] + model.edge_type.weight[kind]) * rows[1:]).sum(2)
    torch.testing.assert_close(found, expected)
    paired = model.decode_pairs(rows[1:3], rows[2:], edge_type=kind)
    torch.testing.assert_close(paired, ((rows[1:3] + model.edge_type.weight[kind]) * rows[2:]).sum(2))
    with torch.no_grad():
        model.edge_type.weight.zero_()
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    train_steps(trainer, 0, 5)
    assert (model.edge_type.weight.abs().sum(1) > 0).all()
    trainer.close()


def test_metrics_of_every_edge_type(comm, parts):
    session = open_session(comm, parts, make_config(task__negatives=2))
    scores = session.scores("val")
    metrics = split_metrics(session, "val", scores)
    columns = scores.columns()
    kinds = session.world.gather_rows(session.batches["val"].events.columns["rel"])
    positive, negative = (session.world.gather_rows(columns[name]) for name in ("positive", "negative"))
    names = [name for name in session.goal.metric_names() if "/" in name]
    session.close()
    assert names == [f"{metric}/{kind}" for kind in ("buys", "recalls", "asks") for metric in ("ap", "auc")]
    if comm.rank == 0:
        for number, name in enumerate(("buys", "recalls", "asks")):
            own = kinds == number
            assert own.sum() > 5
            truth = np.concatenate([np.ones(own.sum()), np.zeros(2 * own.sum())])
            scored = np.concatenate([positive[own], negative[own].ravel()]).astype(np.float32)
            assert metrics[f"ap/{name}"] == pytest.approx(average_precision_score(truth, scored), abs=1e-9)


def test_all_other_nodes_of_the_type(comm, parts):
    """Negatives of kind "all" are the destinations of the type that the source does not meet at the time."""
    evaluation = Evaluation.open(comm, parts)
    found, counts = evaluation.negatives("all"), evaluation.make_negatives("all").counts(slice(None))
    counts = evaluation.by_row(counts)
    if comm.rank:
        return
    merged = merge(draw_events())
    first = len(merged["row"]) - len(found)
    bounds = merged["time"] > np.quantile(merged["time"], 0.85)
    assert bounds.sum() == len(found)
    pool = {kind: sorted({n for n in merged["dst"] if low <= n < high}) for kind, (low, high) in SPAN.items()}
    for place, count in enumerate(counts):
        event = first + place
        same = bounds & (merged["src"] == merged["src"][event]) & (merged["time"] == merged["time"][event])
        nodes = pool[RELATIONS[merged["type"][event]][2]]
        expected = [node for node in nodes if node not in merged["dst"][same]]
        assert found[place, :count, 1].tolist() == expected


@pytest.mark.parametrize("kind", ["historical", "inductive"])
def test_pairs_that_met_have_the_types_of_the_event(comm, parts, kind):
    """By sets of pairs: those of before the batch, of any relation between these types, never of the batch; never seen
    before the split if inductive; the random negative where there is none."""
    evaluation = Evaluation.open(comm, parts, batch_size=25)
    drawn, random = evaluation.negatives(kind, 30), evaluation.negatives("random", 30)
    share = evaluation.make_negatives(kind, 30).met_share
    if comm.rank:
        return
    merged, begin = merge(draw_events()), int(evaluation.splits.bounds[2])
    types_of = [(kind[0], kind[2]) for kind in RELATIONS]
    pairs = list(zip(merged["src"].tolist(), merged["dst"].tolist(), strict=True))
    counts = {"met": 0, "whole": 0}
    for first in range(begin, len(pairs), 25):
        last = min(first + 25, len(pairs))
        for event in range(first, last):
            types = types_of[merged["type"][event]]
            met = {pair for row, pair in enumerate(pairs[:first]) if types_of[merged["type"][row]] == types}
            allowed = met - set(pairs[first:last]) - set(pairs[:begin] if kind == "inductive" else ())
            found = [tuple(pair) for pair in drawn[event - begin].tolist()]
            reserve = [tuple(pair) for pair in random[event - begin].tolist()]
            assert all(pair in allowed or pair == other for pair, other in zip(found, reserve, strict=True))
            counts["met"] += sum(pair in allowed for pair in found) if allowed else 0
            counts["whole"] += len(found) if allowed else 0
            assert not allowed or len(set(found)) > min(len(allowed), 30) / 3
    assert counts["met"] > 0.95 * counts["whole"] > 500
    assert share > 0.9 if kind == "historical" else 0.2 < share


def test_degrees_of_destinations_by_type(comm, parts):
    """A node is drawn in proportion to its training events among the destinations of its type."""
    config = make_config(task__negative_kind="degree", task__negatives=60)
    with closing(open_session(comm, parts, config)) as session:
        batches, rounds = session.batches["train"], [session.loaders["train"].negatives(epoch) for epoch in range(3)]
        flat = np.empty(USERS + ITEMS, np.int64)
        for ids, rows in comm.allgather(
            (session.partition.book.local_to_global(comm.rank), session.partition.flat_row)
        ):
            flat[ids] = rows
        drawn = flat[np.concatenate([negatives.whole().dst for negatives in rounds], axis=1)]
        rows, drawn = session.world.gather_rows(batches.events.row), session.world.gather_rows(drawn)
    if comm.rank:
        return
    merged, kinds = merge(draw_events()), np.array([RELATIONS[k][2] for k in merge(draw_events())["type"]])
    for name, (first, last) in SPAN.items():
        of_type = np.flatnonzero(kinds[: len(rows)] == name)
        degree = np.bincount(merged["dst"][: len(rows)][of_type], minlength=last)[first:last]
        nodes = drawn[np.isin(rows, of_type)]
        assert ((nodes >= first) & (nodes < last)).all()
        own = merged["dst"][rows[np.isin(rows, of_type)]]
        assert not (nodes == own[:, None]).any()
        others = np.where(np.arange(first, last) == own[:, None], 0, degree)  # of each event, but for its own
        expected = (others / others.sum(axis=1, keepdims=True)).sum(axis=0) * nodes.shape[1]
        found = np.bincount(nodes.ravel(), minlength=last)[first:last]
        assert chisquare(found[expected > 0], expected[expected > 0]).pvalue > 1e-4
        assert not found[expected == 0].any()


def test_pairs_are_scored_by_the_names_of_relations(comm, parts):
    """By hand from the embeddings of both ends and the row of the edge type."""
    session = open_session(comm, parts, make_config(task__decoder="dot"))
    with torch.no_grad():
        rows = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        session.model.edge_type.weight.copy_(rows)
    replay(session)
    columns = {
        "src": [103, 103, 14, 100],
        "dst": [14, 105, 103, 101],
        "rel": ["buys", "asks", "recalls", "user.asks.user"],
    }
    answers = score_pairs(session, asked(partial(read_pairs, session), **columns))
    score, shown = (answers.slab(name, 0, session.world) for name in ("score", "rel"))
    nodes = {
        "node": [103, 103, 14, 100, 14, 105, 103, 101],
        "type": ["user"] * 2 + ["item", "user", "item"] + ["user"] * 3,
    }
    embedding = answer_nodes(session, asked(partial(read_nodes, session), **nodes), embeddings=True)
    embedding = embedding.slab("embedding", 0, session.world)
    for changes, message in (
        (
            {"rel": ["buys", "asks", "sells", "asks"]},
            "row 3: rel 'sells' is none of this graph's edge types: buys, rec",
        ),
        ({"dst": [103, 105, 103, 101]}, "row 1: dst '103' is no item"),
    ):
        with pytest.raises(DistributedError, match=message):
            asked(partial(read_pairs, session), **(columns | changes))
    with pytest.raises(DistributedError, match="the run has edge types: name a file with the columns src and rel"):
        predict.answer(session, asked_for(top_k=3))
    session.close()
    if comm.rank == 0:
        assert [str(word) for word in shown] == columns["rel"]
        source, destination = torch.from_numpy(embedding).split(4)
        logit = ((source + rows[[0, 2, 1, 2]]) * destination).sum(1)
        np.testing.assert_allclose(score, torch.sigmoid(logit), rtol=1e-9)


@pytest.mark.parametrize("decoder", ["mlp", "pair"])
@pytest.mark.parametrize(("given", "known"), [("src", "all"), ("src", "train"), ("dst", "")])
def test_best_answers_of_each_relation(comm, parts, given, known, decoder, monkeypatch):
    """Queries of all relations in one file: the pairs that score highest, by hand, among nodes of the answer's type."""
    monkeypatch.setattr(predict, "PAIRS", 70)
    session = open_session(comm, parts, make_config(train__batch_size=17, task__decoder=decoder))
    with torch.no_grad():
        rows = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        session.model.edge_type.weight.copy_(rows)
    replay(session)
    ids = {"user": 100 + np.arange(USERS), "item": 7 * np.arange(ITEMS)}
    pairs = [
        (ids[kind[0]][a], ids[kind[2]][b], kind[1])
        for kind in RELATIONS for a in range(len(ids[kind[0]])) for b in range(len(ids[kind[2]]))
    ]  # fmt: skip
    columns = dict(zip(("src", "dst", "rel"), map(list, zip(*pairs, strict=True)), strict=True))
    score = score_pairs(session, asked(partial(read_pairs, session), **columns)).slab("score", 0, session.world)
    rng, end = np.random.default_rng(2), 0 if given == "src" else 2
    kinds = rng.integers(0, 3, 60)
    nodes = [int(rng.choice(ids[RELATIONS[kind][end]])) for kind in kinds]
    questions = {given: nodes, "rel": [RELATIONS[kind][1] for kind in kinds]}
    queries = asked(partial(read_ends, session, ends=(given,)), **questions)
    answers = best_of_relations(links_by_type(session, given, known), queries, 3, False, 3)
    table = {name: answers.slab(name, 0, session.world) for name in answers.columns}
    bound = session.graph.splits.bounds[1]
    session.close()
    if comm.rank:
        return
    merged, number = merge(draw_events()), 0
    left_out = np.arange(len(merged["row"])) < {"all": 500, "train": bound, "": 0}[known]
    other = "dst" if given == "src" else "src"
    of_pair = {(a, b, relation): value for (a, b, relation), value in zip(pairs, score, strict=True)}
    for kind, node in zip(kinds, nodes, strict=True):
        source, name, destination = RELATIONS[kind]
        wanted = destination if given == "src" else source
        first = SPAN[wanted][0]
        of_type = np.isin(
            merged["type"], [k for k, r in enumerate(RELATIONS) if r[2 if given == "src" else 0] == wanted]
        )
        possible = set(merged[other][of_type] - first)
        met = left_out & (merged["type"] == kind)
        flat = list(ids[RELATIONS[kind][end]]).index(node) + SPAN[RELATIONS[kind][end]][0]
        possible -= set(merged[other][met & (merged[given] == flat)] - first)
        possible -= {flat - first} if source == destination else set()
        ends = [(node, ids[wanted][at]) if given == "src" else (ids[wanted][at], node) for at in sorted(possible)]
        values = np.array([of_pair[(*pair, name)] for pair in ends])
        best = np.argsort(-values, kind="stable")[:3]
        rows = slice(number, number + len(best))
        assert table[given][rows].tolist() == [node] * len(best)
        assert [str(word) for word in table["rel"][rows]] == [name] * len(best)
        assert table["place"][rows].tolist() == list(range(1, 1 + len(best)))
        assert table[other][rows].tolist() == [ends[at][given == "src"] for at in best]
        np.testing.assert_allclose(table["score"][rows], values[best], rtol=1e-6)
        number += len(best)
    assert number == len(table["score"]) > 150


@pytest.mark.parametrize("names", [("buys", "recalls", "asks"), ("buys", "recalls", "tells")])
def test_weights_of_another_run(comm, parts, mpi_tmp_path, names):
    """The head, with its rows of edge types, stays new where these have other names."""
    folder, tables = mpi_tmp_path / "run", draw_events()
    on_rank_0(comm, folder.mkdir)
    config = make_config(train__epochs=1)
    trainer = open_trainer(comm, parts, config, folder)
    trainer.run()
    trained = trainer.session.model.edge_type.weight.detach().clone()
    trainer.close()
    merged = merge(tables)
    for relation, table in enumerate(tables):
        table["event"] = np.flatnonzero(merged["type"] == relation)
    nodes = {"user": {"id": 100 + np.arange(USERS)}, "item": {"id": 7 * np.arange(ITEMS)}}
    edges = {(kind[0], name, kind[2]): table for kind, name, table in zip(RELATIONS, names, tables, strict=True)}
    on_rank_0(comm, lambda: write_graph(mpi_tmp_path / "other.h5", nodes, edges) and None)
    other = make_parts(comm, mpi_tmp_path / "other.h5", mpi_tmp_path / "other", 8, "random")
    session = open_session(comm, other, config)
    initialize(session, folder)
    expected = trained if names[2] == "asks" else torch.zeros_like(trained)
    assert trained.any()
    assert torch.equal(session.model.edge_type.weight.detach(), expected)
    session.close()


# --------------------------------------------------------------------------------------------------------------- labels

LABELED = {"node": "asks", "edge": "buys", "edge_regression": "user.buys.item"}


@pytest.fixture
def labeled(comm, mpi_tmp_path) -> Path:
    """A partition set of the graph with labels of two relations: three classes, some missing, and numbers."""
    rng, path = np.random.default_rng(4), mpi_tmp_path / "labeled.h5"

    def make():
        write_typed(path)
        with h5py.File(path, "r+") as file:
            file["edges/user.asks.user/label"] = rng.integers(-1, 3, COUNTS[2]).astype(np.int16)
            file["edges/user.buys.item/label"] = rng.integers(0, 2, COUNTS[0]).astype(np.float32)

    on_rank_0(comm, make)
    return make_parts(comm, path, mpi_tmp_path / "labeled")


def label_config(kind: str, **changes):
    return make_config(**{"task__kind": kind, "task__relation": LABELED[kind], "train__batch_size": 30} | changes)


@pytest.mark.parametrize("kind", LABELED)
def test_labels_of_one_relation(comm, labeled, kind):
    """Events of other relations have none, and change node memory; losses are those of one rank."""
    steps = {}
    with closing(open_trainer(comm, labeled, label_config(kind))) as trainer:
        session = trainer.session
        events = session.partition.events
        rows, label, rel = (
            session.world.gather_rows(column)
            for column in (events.row, events.columns["label"].astype(float), events.columns["rel"])
        )
        steps["together"] = train_steps(trainer, 0)
        metrics = split_metrics(session, "test", session.scores("test"))
    if comm.rank:
        return
    with closing(open_trainer(MPI.COMM_SELF, labeled, label_config(kind))) as trainer:
        np.testing.assert_allclose(train_steps(trainer, 0), steps["together"], rtol=1e-9)
        alone = split_metrics(trainer.session, "test", trainer.session.scores("test"))
        assert metrics == pytest.approx(alone, rel=1e-9, nan_ok=True)
    own = np.isin(rel, 2 if kind == "node" else 0)
    with h5py.File(labeled.parent / "labeled.h5") as file:
        stored = file[f"edges/{'user.asks.user' if kind == 'node' else 'user.buys.item'}/label"][:]
    assert np.array_equal(label[np.argsort(rows)][own[np.argsort(rows)]], stored)
    missing = label[~own]
    assert np.isnan(missing).all() if kind == "edge_regression" else (missing == -1).all()


def test_labels_of_several_relations_need_a_choice(comm, labeled):
    with pytest.raises(DistributedError, match=r"labels are learned of one relation: set task\.relation to user\.buys"):
        open_session(comm, labeled, label_config("edge", task__relation=""))
    with closing(TemporalGraph(labeled, World(CommConfig(device="cpu", threads=1), comm))) as graph:
        assert "label" not in graph.partition.events.columns
    with pytest.raises(ValueError, match=r"task\.relation is for task\.kind node, edge and edge_regression, .* link"):
        make_config(task__relation="buys")


def test_labels_of_pairs_have_the_features_of_their_type(comm, labeled):
    """The head reads the numbers of a pair, and then the column of its type: by hand."""
    with closing(open_session(comm, labeled, label_config("edge"))) as session:
        replay(session)
        features = {f"feat_{place}": [0.5 * place, -1.0 * place] for place in range(5)}
        columns = {"src": [103, 104], "dst": [14, 21], "rel": ["buys", "buys"], **features}
        answers = score_pairs(session, asked(partial(read_pairs, session), **columns))
        output = answers.slab("output", 0, session.world)
        nodes = {"node": [103, 104, 14, 21], "type": ["user", "user", "item", "item"]}
        embedding = answer_nodes(session, asked(partial(read_nodes, session), **nodes), embeddings=True)
        embedding = embedding.slab("embedding", 0, session.world)
        head = session.model.decoder
    if comm.rank == 0:
        feature = np.column_stack([*features.values(), [1, 1], [0, 0], [0, 0]])
        source, destination = torch.from_numpy(embedding).split(2)
        with torch.no_grad():
            expected = head(torch.cat([source, destination, torch.from_numpy(feature)], 1))
        np.testing.assert_allclose(output, expected.numpy(), rtol=1e-9)


# ------------------------------------------------------------------------------------------------------- graph and file


def test_features_side_by_side():
    assert places_of_features([3, 3, 0]) == ([0, 0, 0], 3)
    assert places_of_features([2, 0, 3]) == ([0, 2, 2], 5)
    assert places_of_features([0, 0]) == ([0, 0], 0)


def test_node_features_of_several_widths(comm, mpi_tmp_path):
    on_rank_0(comm, lambda: write_typed(mpi_tmp_path / "graph.h5", node_width=2) and None)
    parts = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts")
    partition = open_partition(parts, comm.rank, comm.size)
    feature, flat = (np.concatenate(comm.allgather(values)) for values in (partition.node_feature, partition.flat_row))
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        users, items = (file[f"nodes/{kind}/feat"][:] for kind in ("user", "item"))
    expected = np.zeros((USERS + ITEMS, 5), np.float32)
    expected[:USERS, :2], expected[USERS:, 2:] = users, items
    assert np.array_equal(feature[np.argsort(flat)], expected)


def test_loaders_of_a_program(comm, parts):
    """Plans carry the edge types, and a model that is made of the graph reads them."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    graph = TemporalGraph(parts, world)
    config = make_config()
    model = graph.make_model(config.model, config.memory, slots=5)
    loader = TemporalLoader(graph, "train", 40)
    merged = merge(draw_events())
    with loader.plans() as plans:
        for plan in plans:
            assert np.array_equal(plan.columns["rel"].numpy(), merged["type"][plan.event_row])
            assert np.array_equal(plan.event_feature[:, 5:].argmax(1).numpy(), merged["type"][plan.event_row])
    assert model.edge_type.num_embeddings == 3
    graph.close()


REFUSED = {
    "no labels": ({"task__kind": "edge"}, "task.kind edge learns the label of events, but user.buys.item, .*no column"),
    "labels of no relation": (
        {"task__kind": "node", "task__relation": "sells"},
        "task.relation sells: no such relation; the graph has user.buys.item, .*",
    ),
    "file": (
        {"eval__negative_kind": "file", "eval__negatives_file": __file__},
        "eval.negatives_file takes relations between the same two node types, .*random or all",
    ),
    "column": (
        {"data__type_column": "feat"},
        "data.type_column feat is for one relation, .*: leave it out|leave it out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(comm, parts, case):
    changes, message = REFUSED[case]

    def make_negatives():
        open_session(comm, parts, make_config(**changes)).loaders["val"].negatives(0)

    with pytest.raises(DistributedError, match=message):
        make_negatives()


@pytest.mark.parametrize(("column", "message"), [("absent", "has no column absent"), ("far", "2000 is no edge type")])
def test_columns_that_hold_no_types(comm, mpi_tmp_path, column, message):
    events = {name: np.arange(200) % 9 for name in ("src", "dst")} | {"time": np.arange(200), "far": np.full(200, 2000)}
    nodes = {"user": {"id": np.arange(9)}}
    on_rank_0(comm, lambda: write_graph(mpi_tmp_path / "g.h5", nodes, {("user", "a", "user"): events}) and None)
    folder = make_parts(comm, mpi_tmp_path / "g.h5", mpi_tmp_path / "set", 4, "random")
    with pytest.raises(DistributedError, match=message):
        open_session(comm, folder, make_config(data__type_column=column))
