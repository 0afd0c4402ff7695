"""Baselines of links against SciPy, on any number of ranks; what they rank, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from random_graphs import write_graph
from scipy import sparse
from static_runs import make_static_parts, open_graph_session
from test_graph_links import link_config

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.baselines import run_baseline
from hpcgnn.loop.launch import EXIT_DONE
from hpcgnn.static.session import baseline_metrics
from hpcgnn.task import baselines
from hpcgnn.task.baselines import LinkBaselineConfig

BARE = {"model__kind": "none", "model__layers": 0, "sampling__fanouts": [], "task__relation": "user.buys.item"}
RANKINGS = ("destinations", "filtered")
KINDS = ("popularity", "item_cf", "link_propagation", "ease")
EXPONENTS = [0.3, 0.8, 0.6]
MANY_USERS, MANY_ITEMS = (70, 40), (40, 70)


def market(users: int, items: int, split=(0, 0, 0, 1, 2, -1)):
    """Users buy items, some of them twice; some have no edge of training, and some items are bought by nobody."""

    def write(path):
        rng = np.random.default_rng(users)
        src, dst = rng.integers(0, users - 3, 500), (rng.random(500) ** 2 * (items - 4)).astype(int)
        src, dst = np.append(src, src[:20]), np.append(dst, dst[:20])
        order = rng.permutation(len(src))
        edges = {
            ("user", "buys", "item"): {"src": src, "dst": dst, "split": rng.choice(split, len(src)).astype(np.int8)},
            ("item", "sold_to", "user"): {"src": dst[order], "dst": src[order]},
        }
        return write_graph(path, {"user": {"id": np.arange(users)}, "item": {"id": np.arange(items)}}, edges, "static")

    return write


def edges_of(parts) -> dict[str, np.ndarray]:
    with h5py.File(parts.parent / "graph.h5") as file:
        return {name: column[...] for name, column in file["edges/user.buys.item"].items()}


def config_of(kind: str) -> LinkBaselineConfig:
    options = {"ease": {"l2": 2.0}, "link_propagation": {"exponents": EXPONENTS}}
    return LinkBaselineConfig(kind, **options.get(kind, {}))


def expected_scores(config: LinkBaselineConfig, known: sparse.csr_matrix) -> np.ndarray:
    """Scores of all queries with all answers, by dense algebra, from the pairs of training."""
    kind, l2 = config.kind, config.l2
    if kind == "popularity":
        return np.tile(np.asarray(known.sum(0)), (known.shape[0], 1))
    together = (known.T @ known).toarray()
    if kind == "item_cf":
        degree = np.maximum(together.diagonal(), 1)
        cosine = together / np.sqrt(np.outer(degree, degree))
        np.fill_diagonal(cosine, 0)
        return known @ cosine
    if kind == "link_propagation":
        one, two, three = (
            sparse.diags(np.maximum(np.asarray(known.sum(axis)).ravel(), 1) ** -power)
            for axis, power in zip((0, 1, 0), config.exponents, strict=True)
        )  # fmt: skip
        return (known @ one @ known.T @ two @ known @ three).toarray()
    inverse = np.linalg.inv(together + l2 * np.eye(len(together)))
    weights = -inverse / inverse.diagonal()
    np.fill_diagonal(weights, 0)
    return known @ weights


def training_pairs(parts, shape, reverse: bool) -> sparse.csr_matrix:
    edges = edges_of(parts)
    training = edges["split"] == 0
    ends = edges["src"][training], edges["dst"][training]
    known = sparse.csr_matrix((np.ones(training.sum()), ends), shape)
    known.data[:] = 1
    return (known.T if reverse else known).tocsr()


def test_popularity_by_type_counts_edges_of_a_type(comm, mpi_tmp_path):
    """From both ends; copies of an edge count once."""
    rng = np.random.default_rng(4)
    src, rel, dst, split = (rng.integers(0, most, 400) for most in (30, 3, 25, 3))
    src, rel, dst, split = (np.append(column, column[:30]) for column in (src, rel, dst, split))

    def write(path):
        edges = {"src": src, "dst": dst, "rel": rel.astype(np.int16), "split": split.astype(np.int8)}
        return write_graph(path, {"entity": {"id": np.arange(30)}}, {("entity", "has", "entity"): edges}, "static")

    parts = make_static_parts(comm, write, mpi_tmp_path)
    typed = {"task__decoder": "distmult", "task__relation": "entity.has.entity", "eval__ranking": "filtered"}
    kind = {"baseline__kind": "popularity_by_type"}
    session = open_graph_session(comm, parts, link_config(**BARE | typed | kind))
    made, book = session.goal.make_baselines(session.config.baseline, session.graph), session.partition.book
    own, query = session.partition.flat_row, torch.arange(book.num_nodes)
    facts = np.unique(np.column_stack([src, rel, dst])[split == 0], axis=0)
    for end, rule in made.items():
        found = rule.all_pairs(query, None, torch.from_numpy(query.numpy() % 3), reverse=end == 0).numpy()
        counts = np.zeros((3, 30), np.int64)
        np.add.at(counts, (facts[:, 1], facts[:, 0 if end == 0 else 2]), 1)
        assert np.array_equal(found, counts[query.numpy() % 3][:, own])
    metrics = baseline_metrics(session, session.config.baseline)
    assert 0 < metrics["test_mrr"] < 1
    session.close()


@pytest.mark.parametrize("sizes", [MANY_USERS, MANY_ITEMS])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_scipy(comm, mpi_tmp_path, monkeypatch, kind, sizes):
    """Of users with items and of items with users, a few at a time and all at once."""
    monkeypatch.setattr(baselines, "SCORES", 200)
    parts = make_static_parts(comm, market(*sizes), mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(**BARE, eval__ranking="filtered", baseline__kind=kind))
    config = config_of(kind)
    made, book = session.goal.make_baselines(config, session.graph), session.partition.book
    everyone = comm.allgather((book.local_to_global(comm.rank), session.partition.flat_row))
    row = np.empty(book.num_nodes, np.int64)
    for ids, rows in everyone:
        row[ids] = rows
    for end, rule in made.items():
        query = np.random.default_rng(0).permutation(np.arange(*book.of_type(1 - end).starts[[0, -1]]))
        starts = book.of_type(end).starts
        answers = row[starts[comm.rank] : starts[comm.rank + 1]] - book.type_base()[end]
        found = rule.scores(query).numpy()
        known = training_pairs(parts, sizes, reverse=end == 0)
        scores = expected_scores(config, known)[row[query] - book.type_base()[1 - end]][:, answers]
        assert sorted(made) == [0, 1]
        np.testing.assert_allclose(found, scores, rtol=1e-9, atol=1e-12)


def metrics_of(session, config) -> dict[str, float]:
    return baseline_metrics(session, config.baseline)


@pytest.mark.several_ranks
@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_baselines_give_one_answer(comm, mpi_tmp_path, kind, ranking):
    parts = make_static_parts(comm, market(*MANY_USERS), mpi_tmp_path)
    config = link_config(**BARE, eval__ranking=ranking, baseline__kind=kind)
    found = metrics_of(open_graph_session(comm, parts, config), config)
    alone = metrics_of(open_graph_session(MPI.COMM_SELF, parts, config), config)
    assert found == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("loss", ["one_vs_all", "k_vs_all"])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_the_loss_over_all_nodes_changes_no_rule(comm, mpi_tmp_path, ranking, loss):
    """The seeds of training are queries then; rules score by the edges as before."""
    parts = make_static_parts(comm, market(*MANY_USERS), mpi_tmp_path)
    options = BARE | {"eval__ranking": ranking, "baseline__kind": "item_cf"}
    over_all = link_config(**options, task__loss=loss, task__negatives=0)
    expected, found = (
        metrics_of(open_graph_session(comm, parts, config), config) for config in (link_config(**options), over_all)
    )
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_a_baseline_writes_what_counting_gives(comm, mpi_tmp_path, kind):
    """Recall and gain at 20 of users among all items that they have not in training, user by user."""
    parts = make_static_parts(comm, market(*MANY_ITEMS), mpi_tmp_path)
    config = link_config(**BARE, eval__ranking="destinations", baseline__kind=kind)
    session = open_graph_session(comm, parts, config)
    stop, lines = SimpleNamespace(requested=False), []
    assert run_baseline(session, mpi_tmp_path, lines.append, stop, baseline_metrics) == EXIT_DONE
    if comm.rank > 0:
        return
    (record,) = [json.loads(line) for line in (mpi_tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert record["kind"], record["baseline"] == ("test", kind)
    known = training_pairs(parts, MANY_ITEMS, reverse=False).toarray() > 0
    scores, edges = expected_scores(config.baseline, training_pairs(parts, MANY_ITEMS, False)), edges_of(parts)
    scores = np.round(scores, 9)  # equal ones are tied
    for number, split in enumerate(("val", "test"), 1):
        recall, gain = [], []
        for user in np.unique(edges["src"][edges["split"] == number]):
            answers, ranks = edges["dst"][(edges["split"] == number) & (edges["src"] == user)], []
            for answer in answers:
                others = np.delete(scores[user], np.unique(np.append(np.flatnonzero(known[user]), answer)))
                own = scores[user, answer]
                ranks.append(1 + ((others > own).sum() + (others >= own).sum()) / 2)
            top = np.sort([rank for rank in ranks if rank <= 20])
            recall.append(len(top) / len(answers))
            best = (1 / np.log2(2 + np.arange(min(20, len(answers))))).sum()
            gain.append((1 / np.log2(1 + top)).sum() / best)
        assert record[f"{split}_recall@20"] == pytest.approx(np.mean(recall), rel=1e-9)
        assert record[f"{split}_ndcg@20"] == pytest.approx(np.mean(gain), rel=1e-9)


def test_known_counts_are_worked_by_hand():
    """Three users and three items: who has 0 and 1 also has 2 by one user of two."""
    known = sparse.csr_matrix(np.array([[1, 1, 0], [1, 1, 1], [0, 1, 0]], float))
    scores = expected_scores(LinkBaselineConfig("item_cf"), known)
    assert scores[0, 2] == pytest.approx(1 / np.sqrt(2) + 1 / np.sqrt(3))
    assert expected_scores(LinkBaselineConfig("popularity"), known)[0].tolist() == [2, 3, 1]


def test_what_does_not_go_with_a_baseline_is_refused(comm, mpi_tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="popularity_by_type, item_cf, link_propagation, ease or empty, got 'random'"):
        LinkBaselineConfig("random")
    with pytest.raises(ValueError, match=r"baseline.l2 must be above 0"):
        LinkBaselineConfig("ease", l2=0.0)
    with pytest.raises(ValueError, match=r"baseline.exponents must be three numbers"):
        LinkBaselineConfig("link_propagation", [1.0])
    with pytest.raises(ValueError, match=r"baseline.kind item_cf does not read it"):
        LinkBaselineConfig("item_cf", l2=3.0)
    for changes, named in (
        ({"eval__ranking": ""}, "eval.ranking filtered or destinations"),
        ({"eval__ranking": "destinations", "eval__message_edges": "train_val"}, "leave out eval.message_edges"),
    ):
        with pytest.raises(ValueError, match=named):
            link_config(**BARE, **changes, baseline__kind="item_cf")
    config = link_config(**BARE, eval__ranking="destinations", baseline__kind="ease")
    parts = make_static_parts(comm, market(*MANY_USERS), mpi_tmp_path)
    monkeypatch.setattr(baselines, "free_bytes", lambda: 1000)
    with pytest.raises(DistributedError, match=r"matrix of 3\d rows: it needs 0.0 GB.*or baseline.kind item_cf"):
        metrics_of(open_graph_session(comm, parts, config), config)
    unknown = make_static_parts(comm, market(*MANY_USERS, split=(1, 2)), mpi_tmp_path / "none")
    with pytest.raises(DistributedError, match="no training edges to score by"):
        metrics_of(open_graph_session(comm, unknown, config), config)
