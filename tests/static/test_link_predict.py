"""Predictions of runs on links of static graphs: scores are those of evaluation, on any number of ranks."""

from __future__ import annotations

import csv
import json
from functools import partial
from itertools import product

import h5py
import numpy as np
import pytest
import torch
from link_graphs import facts, shop
from mpi4py import MPI
from run_commands import asked, asked_for, run_caught
from static_runs import make_static_parts, open_graph_session
from test_graph_links import BUYS, link_config, rank_of, relation_rows
from training_runs import on_rank_0

from hpcgnn import config as configuration
from hpcgnn.comm.world import DistributedError
from hpcgnn.kinds import KINDS
from hpcgnn.loop.links import best_answers
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.inference import infer
from hpcgnn.static.predict import answer, check, embed_ends, links_of, read_pairs, score_pairs
from hpcgnn.static.step import DESTINATION, SOURCE

CASES = {
    "typed": (facts, {"task__decoder": "distmult", "eval__exact": True}),
    "both directions count": (facts, {"task__decoder": "complex", "eval__exact": True}),
    "two node types": (shop, {"task__decoder": "mlp", "eval__exact": True, "task__relation": BUYS}),
    "out-edges": (shop, {"task__decoder": "mlp", "eval__exact": True, "task__relation": BUYS,
                         "sampling__direction": "out"}),
    "no layers": (facts, {"task__decoder": "distmult", "model__kind": "none", "model__layers": 0,
                          "sampling__fanouts": [], "eval__exact": True}),
}  # fmt: skip


def named(make):
    """A graph whose source nodes have ids of their own."""

    def write(path):
        make(path)
        with h5py.File(path, "r+") as file:
            for name, nodes in file["nodes"].items():
                count = nodes.attrs["num_nodes"]
                if "id" in nodes:
                    del nodes["id"]
                nodes["id"] = np.array([f"{name} {(7 * row) % count}".encode() for row in range(count)])

    return write


def pairs_of_rows(session, edges, rows, src: str, dst: str, sizes, typed: bool):
    """Collective. Pairs of the edges in some rows, by name; and the names."""
    ends = {column: [f"{name} {(7 * row) % size}" for row in edges[column][rows]] for name, size, column in
            ((src, sizes[0], "src"), (dst, sizes[1], "dst"))}  # fmt: skip
    types = {"rel": edges["rel"][rows]} if typed else {}
    return asked(partial(read_pairs, session), **ends, **types), ends


def pairs_of(parts, name: str, session, typed: bool):
    """The test edges of a graph as pairs, in order of row."""
    edges, partition = relation_rows(parts, name), session.partition
    src, _, dst = name.split(".")
    sizes = [int(np.diff(partition.book.type_base())[partition.type_of(kind)]) for kind in (src, dst)]
    return pairs_of_rows(session, edges, np.flatnonzero(edges["split"] == 2), src, dst, sizes, typed)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_evaluation_on_any_number_of_ranks(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts = make_static_parts(comm, named(make), mpi_tmp_path, out_edges=True)
    config = link_config(**changes, eval__nodes_per_pass=7)
    name, typed = (BUYS, False) if make is shop else ("entity.fact.entity", True)
    tables, collected = [], []
    for communicator in (comm, MPI.COMM_SELF):
        session = open_graph_session(communicator, parts, config)
        pairs, names = pairs_of(parts, name, session, typed)
        answers = score_pairs(session, pairs)
        assert list(answers.columns) == ["src", "dst", *(["rel"] if typed else []), "score"]
        tables.append({name: answers.slab(name, 0, session.world) for name in answers.columns})
        batches = session.batches["test"]
        order = session.world.gather_rows(batches.position)
        scores = session.world.gather_rows(session.scores("test").columns()["positive"])
        collected.append(None if scores is None else scores[np.argsort(order)])
    if comm.rank:
        return
    assert tables[0]["src"].tolist() == names["src"]
    assert tables[0]["dst"].tolist() == names["dst"]
    for table, scores in zip(tables, collected, strict=True):
        np.testing.assert_allclose(table["score"], scores, rtol=1e-12)
    np.testing.assert_allclose(tables[0]["score"], tables[1]["score"], rtol=1e-9)


def test_ranks_among_all_nodes_are_those_of_the_scores(comm, mpi_tmp_path):
    """Every destination of a query, asked for as a pair, ranks the edge as evaluation does."""
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(task__decoder="distmult", eval__ranking="filtered"))
    edges = relation_rows(parts, "entity.fact.entity")
    test = np.flatnonzero(edges["split"] == 2)[:5]
    count = session.partition.book.num_nodes
    src, rel = (np.repeat(edges[name][test], count) for name in ("src", "rel"))
    pairs = asked(partial(read_pairs, session), src=src, dst=list(range(count)) * len(test), rel=rel)
    scores = score_pairs(session, pairs).slab("score", 0, session.world)
    position = session.world.gather_rows(session.batches["test"].position)
    ranks = ranks_of_destinations(session)
    if comm.rank:
        return
    assert len(position) >= len(test)
    for number, row in enumerate(test):
        u, v, kind = edges["src"][row], edges["dst"][row], edges["rel"][row]
        true = edges["dst"][(edges["rel"] == kind) & (edges["src"] == u)]
        of_query = torch.from_numpy(scores[number * count : (number + 1) * count])
        assert rank_of(of_query, v, true) in ranks


def ranks_of_destinations(session) -> list[float]:
    """Collective. All ranks that evaluation of the test edges counts, on rank 0."""
    ranks = session.world.gather_rows(session.scores("test").columns()["rank"])
    return [] if ranks is None else ranks.tolist()


def test_embeddings_are_those_of_both_ends(comm, mpi_tmp_path):
    """Users first, then items, in order of row, and nothing of other types."""
    parts = make_static_parts(comm, named(shop), mpi_tmp_path)
    config = link_config(task__relation=BUYS)
    session = open_graph_session(comm, parts, config)
    answers = embed_ends(session)
    table = {name: answers.slab(name, 0, session.world) for name in answers.columns}
    alone = open_graph_session(MPI.COMM_SELF, parts, config)
    rows = np.empty((70, 8))
    rows[alone.partition.flat_row] = infer(alone).numpy()
    if comm.rank:
        return
    assert list(table) == ["node", "type", "embedding"]
    counts = {name: len(alone.partition.global_ids(kind)) for kind, name in enumerate(alone.partition.types)}
    assert table["type"].tolist() == [name for name in counts for _ in range(counts[name])]
    assert table["node"].tolist() == [f"{name} {(7 * row) % count}" for name, count in counts.items()
                                      for row in range(count)]  # fmt: skip
    np.testing.assert_allclose(table["embedding"], rows, rtol=1e-9, atol=1e-12)


def test_words_of_the_graph_are_asked_for_and_answered(comm, mpi_tmp_path):
    """Edge types by name; integers as convert reads them."""

    def make(path):
        facts(path)
        with h5py.File(path, "r+") as file:
            file["edges/entity.fact.entity/rel"].attrs["names"] = json.dumps(["knows", "likes", "hates", "owes"])

    parts = make_static_parts(comm, make, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(task__decoder="distmult"))
    tables = []
    for src, rel in ((["7", "12"], ["likes", "owes"]), (["007", "12.0"], ["1", "3"])):
        rows = "".join(f"{one},{other},9\n" for one, other in zip(src, rel, strict=True))
        on_rank_0(comm, lambda rows=rows: (mpi_tmp_path / "p.csv").write_text(f"src,rel,dst\n{rows}") and None)
        answers = score_pairs(session, read_pairs(session, str(mpi_tmp_path / "p.csv")))
        tables.append({name: answers.slab(name, 0, session.world) for name in answers.columns})
    if comm.rank == 0:
        assert tables[0]["rel"].tolist() == ["likes", "owes"]
        assert tables[1]["rel"].tolist() == [1, 3]
        assert tables[1]["src"].tolist() == ["007", "12.0"]
        assert np.array_equal(tables[0]["score"], tables[1]["score"])


@pytest.mark.parametrize("words", [[], ["knows", "likes", "hates", "owes"]])
@pytest.mark.parametrize("case", ["typed", "both directions count", "no layers"])
def test_the_best_edge_types_are_those_of_all_scores(comm, mpi_tmp_path, case, words):
    """Each pair as an edge of each type, by scores that are asked for one by one; of equal ones the lower number."""
    make, changes = CASES[case]

    def write(path):
        make(path)
        with h5py.File(path, "r+") as file:
            if words:
                file["edges/entity.fact.entity/rel"].attrs["names"] = json.dumps(words)

    parts, given, out = make_static_parts(comm, write, mpi_tmp_path), mpi_tmp_path / "p.csv", mpi_tmp_path / "out.csv"
    on_rank_0(comm, lambda: given.write_text("src,dst\n7,12\n3,3\n0,49\n7,12\n12,7\n") and None)
    session = open_graph_session(comm, parts, link_config(**changes))
    with torch.no_grad():
        for weight in session.goal.head.parameters():
            weight[2] = weight[1]  # the same type twice
    answer(session, asked_for(pairs=str(given), top_k=3, out=str(out), probabilities=True))
    src, dst = [7, 3, 0, 7, 12], [12, 3, 49, 12, 7]
    every = {"src": np.repeat(src, 4), "dst": np.repeat(dst, 4), "rel": [*range(4)] * 5}
    scores = score_pairs(session, asked(partial(read_pairs, session), **every)).slab("score", 0, session.world)
    if comm.rank:
        return
    with open(out, newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == ["src", "dst", "place", "rel", "probability"]
    expected, names = [], words or [*"0123"]
    for source, destination, of_types in zip(src, dst, scores.reshape(5, 4), strict=True):
        order = sorted(range(4), key=lambda kind, of_types=of_types: (-of_types[kind], kind))[:3]
        expected += [(str(source), str(destination), str(place), names[kind], 1 / (1 + np.exp(-of_types[kind])))
                     for place, kind in enumerate(order, 1)]  # fmt: skip
    assert [tuple(row[:4]) for row in rows] == [row[:4] for row in expected]
    np.testing.assert_allclose([float(row[4]) for row in rows], [row[4] for row in expected], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"new_only": True}, "are for the best nodes, and --pairs with --top_k finds the best edge types"),
     ({"sources": "q.csv"}, "are for the best nodes, and --pairs with --top_k finds the best edge types"),
     ({"embeddings": True}, "give one of --pairs")],
)  # fmt: skip
def test_what_does_not_go_with_the_best_edge_types_is_refused(changes, message):
    config = link_config(task__decoder="distmult")
    assert check(asked_for(pairs="p.csv", top_k=2), config)
    with pytest.raises(ValueError, match=message):
        check(asked_for(pairs="p.csv", top_k=2, **changes), config)
    with pytest.raises(ValueError, match="give one of --pairs"):  # no edge types
        check(asked_for(pairs="p.csv", top_k=2), link_config())


def test_unknown_nodes_are_refused(comm, mpi_tmp_path):
    parts = make_static_parts(comm, named(shop), mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(task__relation=BUYS))
    with pytest.raises(DistributedError, match=r"questions\.csv: row 2: dst 'user 3' is no item .* .2 such"):
        asked(partial(read_pairs, session), src=["user 1", "user 3", "user 5"], dst=["item 3", "user 3", "user 3"])


@pytest.mark.parametrize("options", [[], ["--pairs=p.csv", "--embeddings"]])
def test_a_run_on_links_says_what_it_answers(comm, mpi_tmp_path, options):
    config = KINDS["static"].config.from_dict({"task": {"kind": "link"}})
    on_rank_0(comm, lambda: configuration.save(config, {}, mpi_tmp_path / "config.yaml"))
    ended = run_caught("predict", str(mpi_tmp_path), *options, f"--out={mpi_tmp_path / 'x.csv'}")
    assert ended is None or "give one of --pairs, to score pairs of nodes, --top_k and --embeddings" in ended.stderr
    assert ended is None or ended.returncode == 2


@pytest.mark.parametrize("what", ["--pairs", "--embeddings", "--top_k"])
def test_the_command_answers(comm, mpi_tmp_path, what):
    """From a run folder to a file, by rank or by all nodes."""
    parts = make_static_parts(comm, named(shop), mpi_tmp_path)
    pairs, out = mpi_tmp_path / "pairs.csv", mpi_tmp_path / "out.csv"
    on_rank_0(comm, lambda: pairs.write_text("src,dst\nuser 3,item 4\nuser 5,item 0\n") and None)
    train = ["--kind=static", "--task.kind=link", f"--task.relation={BUYS}", "--train.epochs=1", "--model.layers=1",
             "--sampling.fanouts=[3]", "--model.hidden=4", "--comm.threads=1", f"--data.path={parts}",
             f"--output.dir={mpi_tmp_path / 'run'}"]  # fmt: skip
    question = {"--pairs": [f"--pairs={pairs}"], "--top_k": ["--top_k=3", "--new_only"]}.get(what, ["--embeddings"])
    for command in (["train", *train], ["predict", str(mpi_tmp_path / "run"), *question, f"--out={out}"]):
        ended = run_caught(*command)
        assert ended is None or ended.returncode == 0, ended.stderr
    if comm.rank == 0:
        with open(out, newline="") as file:
            heading, *rows = csv.reader(file)
        if what == "--pairs":
            assert heading == ["src", "dst", "score"]
            assert [row[:2] for row in rows] == [["user 3", "item 4"], ["user 5", "item 0"]]
        elif what == "--top_k":
            assert heading == ["src", "place", "dst", "score"]
            users = [f"user {7 * user % 40}" for user in range(40)]
            assert [row[:2] for row in rows] == [[user, str(place)] for user in users for place in (1, 2, 3)]
        else:
            assert heading == ["node", "type", *(f"embedding_{place}" for place in range(4))]
            assert len(rows) == 70


@pytest.mark.parametrize("new_only", [False, True])
@pytest.mark.parametrize("end", [DESTINATION, SOURCE])
@pytest.mark.parametrize("case", ["typed", "both directions count", "two node types", "out-edges"])
def test_the_best_are_those_of_all_scores(comm, mpi_tmp_path, case, end, new_only):
    """Of all nodes, each scored as a pair: sorted by score, known ones left out where asked."""
    make, changes = CASES[case]
    parts = make_static_parts(comm, named(make), mpi_tmp_path, out_edges=True)
    ranking = {"eval__ranking": "filtered"} if new_only else {}
    session = open_graph_session(comm, parts, link_config(**changes, **ranking))
    name, typed = (BUYS, False) if make is shop else ("entity.fact.entity", True)
    edges, partition, learned = relation_rows(parts, name), session.partition, session.goal.learned
    kinds, column = [learned.src_type, learned.dst_type], ("src", "dst")
    sizes = np.diff(partition.book.type_base())[kinds]
    names = [[f"{partition.types[kind]} {(7 * row) % size}" for row in range(size)] for kind, size in
             zip(kinds, sizes, strict=True)]  # fmt: skip
    queries, found = names[1 - end][:9], names[end]
    rels = edges["rel"][:9] if typed else np.zeros(9, np.int64)
    lines = [f"{column[1 - end]},rel", *(f"{query},{rel}" for query, rel in zip(queries, rels, strict=True))]
    given = mpi_tmp_path / "queries.csv"
    on_rank_0(comm, lambda: given.write_text("\n".join(lines) + "\n") and None)
    answers = best_answers(
        links_of(session, "src" if end == DESTINATION else "dst", "all" if new_only else ""), 5, str(given)
    )
    table = {column: answers.slab(column, 0, session.world) for column in answers.columns}
    sides = [[query for query in queries for _ in found], found * 9]
    src, dst = sides if end == DESTINATION else sides[::-1]
    types = {"rel": np.repeat(rels, len(found))} if typed else {}
    pairs = asked(partial(read_pairs, session), src=src, dst=dst, **types)
    scores = score_pairs(session, pairs).slab("score", 0, session.world)
    if comm.rank:
        return
    expected = []
    for number in range(9):
        score = scores[number * len(found) : (number + 1) * len(found)].astype(np.float32)
        if make is facts:  # one node type: the query itself is no answer
            score[number] = -np.inf
        if new_only:
            same = (edges["rel"] == rels[number]) if typed else np.full(len(edges["src"]), True)
            score[edges[column[end]][same & (edges[column[1 - end]] == number)]] = -np.inf
        best = [place for place in np.lexsort((np.arange(len(found)), -score)) if score[place] > -np.inf][:5]
        expected += [(queries[number], order, found[place], score[place]) for order, place in enumerate(best, 1)]
    shown = [table[name].tolist() for name in (column[1 - end], "place", column[end])]
    assert list(zip(*shown, strict=True)) == [row[:3] for row in expected]
    np.testing.assert_allclose(table["score"], [row[3] for row in expected], rtol=1e-6)


def test_recall_of_the_answers_is_that_of_evaluation(comm, mpi_tmp_path):
    """Of the file of best answers without training edges, against the test edges: as LightGCN and others report it."""
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    config = link_config(task__relation=BUYS, task__decoder="mlp", eval__ranking="destinations")
    config = check(asked_for(top_k=20, new_only=True, known="train"), config)
    session = open_graph_session(comm, parts, config)
    metrics = split_metrics(session, "test", session.scores("test"))
    answers = best_answers(links_of(session, "src", "train"), 20)
    table = {name: answers.slab(name, 0, session.world) for name in answers.columns}
    edges = relation_rows(parts, BUYS)
    if comm.rank:
        return
    best = {user: table["dst"][table["src"] == user].tolist() for user in range(40)}
    is_train = edges["split"] == 0
    train = set(zip(edges["src"][is_train].tolist(), edges["dst"][is_train].tolist(), strict=True))
    assert not train & {(user, item) for user in best for item in best[user]}
    rows = np.flatnonzero(edges["split"] == 2)
    found = [[edges["dst"][row] in best[user] for row in rows if edges["src"][row] == user] for user in range(40)]
    recall = np.mean([np.mean(hits) for hits in found if hits])
    assert 0.3 < recall < 0.99

    assert metrics["recall@20"] == pytest.approx(recall, rel=1e-12)


def test_probabilities_are_the_logistic_function_of_scores(comm, mpi_tmp_path):
    """Of pairs, and of best answers, in the same order."""
    parts = make_static_parts(comm, named(shop), mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(task__relation=BUYS))
    pairs, _ = pairs_of(parts, BUYS, session, False)
    answers = [score_pairs(session, pairs, each) for each in (False, True)]
    answers += [best_answers(links_of(session), 3, "", each) for each in (False, True)]
    tables = [{name: answer.slab(name, 0, session.world) for name in answer.columns} for answer in answers]
    if comm.rank:
        return
    for scored, likely in (tables[:2], tables[2:]):
        expected = torch.from_numpy(scored.pop("score")).double().sigmoid()
        np.testing.assert_allclose(likely.pop("probability"), expected, rtol=1e-6)
        assert scored.keys() == likely.keys()
        assert all(np.array_equal(scored[name], likely[name]) for name in scored)


@pytest.mark.serial
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_probabilities_of_links_need_the_loss_that_learns_them(kind):
    for loss, question in product(("binary", "margin", "softmax"), ({"pairs": "p.csv"}, {"top_k": 3})):
        config = KINDS[kind].config.from_dict({"task": {"kind": "link", "loss": loss}})
        opened = partial(KINDS[kind].check, asked_for(probabilities=True, **question), config)
        if loss == "binary":
            assert opened().task.loss == loss
            continue
        with pytest.raises(ValueError, match=f"--probabilities: this run has task.loss {loss}, which compares"):
            opened()


@pytest.mark.serial
@pytest.mark.parametrize(("changes", "message"), [
    ({"known": "train"}, "--known train is for --new_only: give it, too"),
    ({"known": "val", "new_only": True}, "--known must be one of all, train, got 'val'"),
    ({"known": "train", "new_only": True, "destinations": "d.csv"}, "--known train is for the best destinations"),
])  # fmt: skip
def test_known_edges_that_cannot_be_left_out_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        check(asked_for(top_k=3, **changes), link_config())
