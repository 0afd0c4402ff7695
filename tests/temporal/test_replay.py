"""A finished run moved through later events: memory ends where evaluation leaves it, whatever is scored on the way."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from run_commands import asked
from training_runs import bipartite, homogeneous, make_config, make_parts, on_rank_0, open_session

from hpcgnn.loop.links import best_answers
from hpcgnn.loop.session import split_metrics
from hpcgnn.temporal import predict
from hpcgnn.temporal.predict import links_of, read_pairs, replay, score_pairs

SPLITS = ("val", "test")
UNIFORM = {"sampling__strategy": "uniform", "sampling__fanouts": [3]}
CASES = {
    "tgn": {"eval__negative_kind": "all"},
    "dyrep, uniform": UNIFORM | {
        "memory__updater": "rnn", "model__readout": "attention", "model__message_from": "embedding",
        "eval__negative_kind": "historical", "task__negatives": 3,
    },
    "mails to neighbors, uniform": UNIFORM | {"memory__deliver_to": "neighbors", "task__negatives": 4},
}  # fmt: skip


@pytest.fixture
def parts(comm, mpi_tmp_path) -> Path:
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, num_events=300, edge_width=2) and None)
    return make_parts(comm, graph, mpi_tmp_path / "parts", 8, "random")


def columns(session) -> list[np.ndarray]:
    return [tensor.double().numpy() for tensor in session.memory.table.tensors()]


@pytest.mark.parametrize("case", CASES)
def test_replay_ends_where_evaluation_does(comm, parts, case):
    config = make_config(**CASES[case])
    moved, scored = (open_session(comm, parts, config) for _ in range(2))
    replay(moved)
    for split in SPLITS:
        scored.scores(split)
    for mine, expected in zip(columns(moved), columns(scored), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-12)


def test_replay_needs_no_file_of_negatives(comm, parts):
    session = open_session(comm, parts, make_config(eval__negative_kind="file", eval__negatives_file="moved_away.npz"))
    replay(session)
    total = np.array([np.abs(values).sum() for values in columns(session)])
    assert (session.world.reduce_array(total) > 0).all()


@pytest.mark.parametrize("negatives", ["all", "historical"])
def test_scores_do_not_depend_on_how_many_negatives_a_plan_holds(comm, parts, negatives):
    found = []
    for chunk in (100, 2):
        changes = UNIFORM | {"eval__negative_kind": negatives, "eval__negatives_per_pass": chunk, "task__negatives": 5}
        session = open_session(comm, parts, make_config(**changes))
        found.append([split_metrics(session, split, session.scores(split)) for split in SPLITS])
    for whole, pieces in zip(*found, strict=True):
        assert pieces == pytest.approx(whole, rel=1e-9, nan_ok=True)


MODELS = {
    **{name: {"task__decoder": name} for name in ("mlp", "pair", "clocks")},
    "dygformer": {"model__readout": "dygformer", "model__channel_dim": 4, "task__decoder": "dot"},
    "tncn": {"model__readout": "tncn", "model__common_hops": 2},
    "cawn": {"model__readout": "cawn", "model__layers": 2, "sampling__fanouts": [4, 1]},
    "walks": {"memory__updater": "walks", "model__readout": "identity", "task__decoder": "walks"},
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("given", "known"), [("src", "all"), ("src", "train"), ("dst", "")])
def test_best_answers_are_those_of_all_pairs(comm, parts, given, known, model, monkeypatch):
    """Each user with each item is scored as a pair; the highest of a query, by hand, are its best answers."""
    monkeypatch.setattr(predict, "PAIRS", 70)
    session = open_session(comm, parts, make_config(train__batch_size=17, **MODELS[model]))
    replay(session)
    types, sizes = session.partition.book.node_types, np.diff(session.partition.book.type_base())
    source, _, destination = session.partition.relation.split(".")
    ids = {kind: np.concatenate(comm.allgather(session.partition.node_ids[kind])) for kind in (source, destination)}
    events = session.partition.events
    left_out = events.take(events.row < {"all": 300, "train": session.graph.splits.bounds[1], "": 0}[known])
    met = {
        pair
        for pairs in comm.allgather(list(zip(events.src.tolist(), events.dst.tolist(), strict=True)))
        for pair in pairs
    }
    row = {kind: np.sort(ids[kind]) for kind in ids}
    assert [len(row[kind]) for kind in ids] == [sizes[types.index(kind)] for kind in ids]
    src, dst = (
        names.ravel().astype(str).tolist() for names in np.meshgrid(row[source], row[destination], indexing="ij")
    )
    last = max(comm.allgather(int(events.time.max(initial=0))))
    scores = score_pairs(session, asked(partial(read_pairs, session), src=src, dst=dst, time=[last + 1] * len(src)))
    matrix = scores.slab("score", 0, session.world)
    likely = best_answers(links_of(session, given, known), 3, probabilities=True)
    likely = likely.slab("probability", 0, session.world)
    found = best_answers(links_of(session, given, known), 3)
    table = {name: found.slab(name, 0, session.world) for name in found.columns}
    every = known_pairs(session, met, source, destination)
    pairs = comm.allgather(list(zip(left_out.src.tolist(), left_out.dst.tolist(), strict=True)))
    hidden = known_pairs(session, {pair for piece in pairs for pair in piece}, source, destination)
    session.close()
    if comm.rank:
        return
    assert np.array_equal(likely, table["score"])  # which is one already
    matrix = matrix.reshape(len(row[source]), len(row[destination])).copy()
    for user, item in hidden:
        matrix[np.searchsorted(row[source], user), np.searchsorted(row[destination], item)] = -1
    ends = [np.isin(row[kind], [pair[end] for pair in every]) for end, kind in enumerate((source, destination))]
    if given == "src":  # who was never at the end of an event is no answer
        matrix[:, ~ends[1]] = -1
    else:
        matrix[~ends[0]] = -1
    matrix = matrix if given == "src" else matrix.T
    queries, answers = (row[kind] for kind in ((source, destination) if given == "src" else (destination, source)))
    other = "dst" if given == "src" else "src"
    for number, query in enumerate(queries):
        here = np.flatnonzero(table[given] == query)
        best = np.argsort(-matrix[number], kind="stable")[:3]
        best = best[matrix[number, best] >= 0]
        np.testing.assert_allclose(table["score"][here], matrix[number, best], rtol=1e-6)
        assert table[other][here].tolist() == answers[best].tolist()


def known_pairs(session, met, source: str, destination: str) -> set:
    """Collective. The pairs of global ids as pairs of original ids."""
    names = {}
    for kind in (source, destination):
        start = session.partition.book.of_type(session.partition.book.node_types.index(kind)).starts[session.world.rank]
        own = dict(enumerate(session.partition.node_ids[kind].tolist(), int(start)))
        for piece in session.world.allgather(own):
            names |= piece
    return {(names[user], names[item]) for user, item in met}


@pytest.mark.parametrize("model", MODELS)
def test_no_node_is_an_answer_to_itself(comm, mpi_tmp_path, model):
    """Of one node type, with as many answers as there are other nodes at the end of events."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: homogeneous(graph))
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", 4, "random")
    session = open_session(comm, parts, make_config(**MODELS[model]))
    replay(session)
    found = best_answers(links_of(session), 1000)
    table = {name: found.slab(name, 0, session.world) for name in found.columns}
    session.close()
    if comm.rank:
        return
    assert not (table["src"] == table["dst"]).any()
    names, counts = np.unique(table["src"], return_counts=True)
    ends = np.unique(table["dst"])
    assert len(ends) > 20
    assert counts.tolist() == [len(ends) - (name in ends) for name in names]
