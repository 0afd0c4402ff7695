"""Link prediction on static graphs: one answer on any number of ranks, what a step may see, negatives, refusals."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from link_graphs import facts, friends, shop
from mpi4py import MPI
from random_graphs import random_links
from static_runs import make_static_parts, open_graph_session, static_config
from test_graph_training import run_both

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.inference import infer

FRIENDS, BUYS, SOLD = "node.meets.node", "user.buys.item", "item.sold_to.user"


def link_config(**changes):
    """A small run of link prediction."""
    return static_config(task__kind="link", **{"train__batch_size": 24, **changes})


CASES = {
    "friends": (friends, {"task__negatives": 2}),
    "labor": (friends, {"sampling__mode": "labor", "task__loss": "softmax", "task__negatives": 3}),
    "gcn": (friends, {"model__kind": "gcn", "task__decoder": "cosine", "task__loss": "margin"}),
    "shop": (shop, {"task__decoder": "mlp", "eval__negatives": 5}),
    "shop, exact": (shop, {"eval__exact": True, "train__accumulate": 2, "train__train_metrics": True}),
    "facts": (facts, {"task__decoder": "distmult", "task__loss": "softmax", "task__negatives": 4}),
    "filtered": (facts, {"task__decoder": "distmult", "eval__ranking": "filtered", "eval__batch_size": 13}),
    "typed": (facts, {"task__messages": "typed", "model__kind": "sage", "task__decoder": "distmult"}),
    "typed both ways": (facts, {"task__messages": "both", "model__kind": "rgcn", "eval__ranking": "filtered"}),
    "full": (shop, {"eval__ranking": "full", "task__decoder": "cosine"}),
}  # fmt: skip


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_links_give_one_answer(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, link_config(**changes))


def test_exact_scores_are_those_of_all_neighbours(comm, mpi_tmp_path):
    """In the graph of training edges."""
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    shared = {"task__negatives": 5, "task__decoder": "mlp"}
    sampled = open_graph_session(comm, parts, link_config(**shared, sampling__mode="full"))
    exact = open_graph_session(comm, parts, link_config(**shared, eval__exact=True, eval__chunk=17))
    found = split_metrics(exact, "test", exact.scores("test"))
    assert found == pytest.approx(split_metrics(sampled, "test", sampled.scores("test")), rel=1e-9)
    assert list(found) == ["ap", "auc", "mrr"]


@pytest.mark.parametrize(("make", "name", "ranking"), [(facts, "entity.fact.entity", "filtered"), (shop, BUYS, "full")])
def test_ranks_among_all_nodes_are_those_of_counting(comm, mpi_tmp_path, make, name, ranking):
    """Pair by pair, from embeddings of all nodes."""
    parts = make_static_parts(comm, make, mpi_tmp_path)
    decoder = "distmult" if ranking == "filtered" else "dot"
    config = link_config(eval__ranking=ranking, task__relation=name, task__decoder=decoder)
    session = open_graph_session(comm, parts, config)
    found = split_metrics(session, "test", session.scores("test"))
    alone = open_graph_session(MPI.COMM_SELF, parts, config)
    rows, book = torch.empty(infer(alone).shape, dtype=torch.float64), alone.partition.book
    rows[torch.from_numpy(alone.partition.flat_row)] = infer(alone)
    kind = alone.partition.relations[alone.partition.relation_of(name)]
    source, target = (rows[book.type_base()[t] : book.type_base()[t + 1]] for t in (kind.src_type, kind.dst_type))
    edges = relation_rows(parts, name)
    types = edges.get("rel", np.zeros(len(edges["src"]), int))
    weight = alone.model.decoder.relation.weight.detach() if ranking == "filtered" else torch.ones(1, 1)
    ranks, test = defaultdict(list), np.flatnonzero(edges["split"] == 2)
    for u, v, kind in zip(edges["src"][test], edges["dst"][test], types[test], strict=True):
        same = (types == kind) & ((edges["split"] == 0) | (ranking == "filtered"))
        tails = (source[u] * weight[kind] * target).sum(1)
        ranks[u].append(rank_of(tails, v, edges["dst"][same & (edges["src"] == u)]))
        if ranking == "filtered":
            heads = (source * weight[kind] * target[v]).sum(1)
            ranks[u].append(rank_of(heads, u, edges["src"][same & (edges["dst"] == v)]))
    if ranking == "filtered":
        every = np.concatenate(list(ranks.values()))
        expected = {"mrr": (1 / every).mean(), "hits@1": (every <= 1).mean(), "hits@10": (every <= 10).mean()}
    else:
        gains = {u: sum(1 / np.log2(1 + r) for r in found if r <= 20) for u, found in ranks.items()}
        ideal = {u: sum(1 / np.log2(2 + place) for place in range(min(20, len(found)))) for u, found in ranks.items()}
        expected = {
            "recall@20": np.mean([np.mean(np.array(found) <= 20) for found in ranks.values()]),
            "ndcg@20": np.mean([gains[u] / ideal[u] for u in ranks]),
        }
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("make", "ranking"), [(facts, "filtered"), (shop, "full")])
def test_ranks_of_scores_that_are_no_numbers(comm, mpi_tmp_path, make, ranking, value):
    """Refused on all ranks, be it one rank's nodes: they would rank first."""
    relation = {} if ranking == "filtered" else {"task__relation": BUYS}
    parts = make_static_parts(comm, make, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(eval__ranking=ranking, **relation))
    last = session.model.last

    def diverged(rows):
        return torch.full_like(last(rows), value) if comm.rank == comm.size - 1 else last(rows)

    session.model.last = diverged
    with pytest.raises(DistributedError, match="a score is not finite"):
        split_metrics(session, "val", session.scores("val"))


def rank_of(scores: torch.Tensor, answer: int, known: np.ndarray) -> float:
    """Among all that are not known, a tie counts half."""
    others = np.setdiff1d(np.arange(len(scores)), np.append(known, answer))
    values, right = scores.float().numpy()[others], scores.float().numpy()[answer]
    return 1 + 0.5 * ((values > right).sum() + (values >= right).sum())


def relation_rows(parts, name: str) -> dict[str, np.ndarray]:
    """A relation's columns as the graph file has them."""
    with h5py.File(parts.parent / "graph.h5") as file:
        return {key: column[()] for key, column in file["edges"][name].items()}


def reverse_rows(there: dict, back: dict) -> np.ndarray:
    """Of every edge the row of its reverse: the first with the first, the second with the second; -1 without."""
    waiting = defaultdict(list)
    for row, pair in enumerate(zip(back["dst"], back["src"], strict=True)):
        waiting[pair].append(row)
    found = [waiting[pair].pop(0) if waiting[pair] else -1 for pair in zip(there["src"], there["dst"], strict=True)]
    return np.array(found)


def pairs_of(columns: dict, rows: np.ndarray) -> Counter:
    """How often each (src, dst) occurs among rows."""
    return Counter(zip(columns["src"][rows].tolist(), columns["dst"][rows].tolist(), strict=True))


def block_pairs(session, plan, relation: int) -> list[tuple[Counter, set[int]]]:
    """Of each block the edges as row ids of nodes, and the destinations it has lists of."""
    kind, base, found = session.partition.relations[relation], session.partition.book.type_base(), []
    for block in plan.batch.blocks:
        (edges,) = [adjacency for adjacency in block.relations if adjacency.relation == relation]
        src = plan.batch.identity[kind.src_type].numpy()[edges.source.numpy()] - base[kind.src_type]
        nodes = plan.batch.identity[kind.dst_type].numpy()[: len(edges.indptr) - 1] - base[kind.dst_type]
        dst = np.repeat(nodes, np.diff(edges.indptr.numpy()))
        found.append((Counter(zip(src.tolist(), dst.tolist(), strict=True)), set(nodes.tolist())))
    return found


VISIBLE = {
    "both ways": (friends, FRIENDS, FRIENDS, ""),
    "a relation of reverses": (shop, BUYS, SOLD, ""),
    "named": (shop, BUYS, SOLD, SOLD),
    "no reverses": (facts, "entity.fact.entity", None, ""),
    "reverses told apart": (friends, FRIENDS, None, "none"),
}


@pytest.mark.parametrize("mode", ["full", "uniform", "replace", "labor"])
@pytest.mark.parametrize("case", VISIBLE)
def test_a_step_sees_no_seed_and_no_reverse_of_one(comm, mpi_tmp_path, case, mode):
    """Blocks of all neighbours hold exactly the training edges without these; sampled ones nothing else."""
    make, task, reverse, setting = VISIBLE[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    session = open_graph_session(
        comm, parts, link_config(task__relation=task, task__reverse=setting, sampling__mode=mode)
    )
    numbers = {name: session.partition.relation_of(name) for name in (task, reverse) if name}
    columns = {name: relation_rows(parts, name) for name in numbers}
    split = columns[task]["split"]
    back = reverse_rows(columns[task], columns[reverse]) if reverse else np.full(len(split), -1)
    for name in ("train", "val", "test"):
        with session.plans(name, 0) as plans:
            for plan in plans:
                seeds = np.concatenate(comm.allgather(plan.columns["row"].numpy()))
                assert set(split[seeds]) <= {("train", "val", "test").index(name)}
                hidden = np.union1d(np.flatnonzero(split != 0), seeds if name == "train" else seeds[:0])
                for relation, number in numbers.items():
                    gone = [hidden] * (relation == task) + [back[hidden]] * (relation == reverse)
                    rows = np.setdiff1d(np.arange(len(columns[relation]["src"])), np.concatenate(gone))
                    check_blocks(block_pairs(session, plan, number), pairs_of(columns[relation], rows), mode)


@pytest.mark.parametrize("mode", ["full", "uniform"])
def test_typed_messages_follow_the_edges_of_their_type(comm, mpi_tmp_path, mode):
    """Both ways; seeds are left out of both."""
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(task__messages="both", sampling__mode=mode))
    columns, types = relation_rows(parts, "entity.fact.entity"), 4
    turned = {"src": columns["dst"], "dst": columns["src"]}
    assert [kind.num_edges for kind in session.partition.relations] == 2 * [
        int(((columns["rel"] == kind) & (columns["split"] == 0)).sum()) for kind in range(types)
    ]
    for name in ("train", "val"):
        with session.plans(name, 0) as plans:
            for plan in plans:
                seeds = np.concatenate(comm.allgather(plan.columns["row"].numpy()))
                visible = np.flatnonzero(columns["split"] == 0)
                visible = np.setdiff1d(visible, seeds) if name == "train" else visible
                for number in range(2 * types):
                    rows = visible[columns["rel"][visible] == number % types]
                    pairs = pairs_of(columns if number < types else turned, rows)
                    check_blocks(block_pairs(session, plan, number), pairs, mode)


def check_blocks(blocks: list[tuple[Counter, set[int]]], visible: Counter, mode: str) -> None:
    """All visible edges of a block's destinations, or a sample of them."""
    for edges, nodes in blocks:
        if mode == "full":
            assert edges == Counter({pair: count for pair, count in visible.items() if pair[1] in nodes})
        elif mode == "replace":
            assert set(edges) <= set(visible)
        else:
            assert edges <= visible


def by_edge(session, comm, split: str, epoch: int = 0) -> dict[int, list[int]]:
    """Collective. Negatives of every edge of a split on all ranks."""
    batches, mine = session.batches[split], {}
    for step in range(batches.num_steps):
        columns = session.goal.complete(batches, epoch, step)
        mine |= dict(zip(columns["row"].tolist(), columns["negative"].tolist(), strict=True))
    return {row: ids for piece in comm.allgather(mine) for row, ids in piece.items()}


def test_negatives_are_nodes_of_the_type_and_the_same_on_any_ranks(comm, mpi_tmp_path):
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    config = link_config(task__negatives=3, eval__negatives=7)
    session, alone = open_graph_session(comm, parts, config), open_graph_session(MPI.COMM_SELF, parts, config)
    base = session.partition.book.type_base()
    item = session.partition.type_of("item")
    before = {split: by_edge(session, comm, split) for split in session.batches}
    for split, per_edge in (("train", 3), ("val", 7), ("test", 7)):
        drawn = before[split]
        assert drawn == by_edge(alone, MPI.COMM_SELF, split)
        values = np.array(list(drawn.values()))
        assert values.shape == (session.goal.pools[split].total, per_edge)
        assert values.min() >= base[item]
        assert values.max() < base[item + 1]
    assert len(np.unique(list(before["train"].values()))) > 25  # of 30 items
    session.start_epoch(1)
    after = by_edge(session, comm, "train", 1)
    assert after.keys() == before["train"].keys()
    assert after != before["train"]


def mixed(path):
    """Edges whose reverses are in other splits."""
    friends(path)
    with h5py.File(path, "r+") as file:
        column = file["edges"][FRIENDS]["split"]
        column[:] = np.arange(len(column)) % 3
    return path


def lopsided(path):
    """Two edges lack their reverses."""
    friends(path)
    with h5py.File(path, "r+") as file:
        edges = file["edges"][FRIENDS]
        src, dst = edges["src"][()], edges["dst"][()]
        row = np.flatnonzero(src != dst)[0]
        edges["dst"][row] = next(
            node for node in range(60) if node != src[row] and not np.any((src == node) & (dst == src[row]))
            and not np.any((src == src[row]) & (dst == node))
        )  # fmt: skip
    return path


def longer(path):
    """An item was sold once more than it was bought."""
    shop(path)
    with h5py.File(path, "r+") as file:
        edges = file["edges"][SOLD]
        for name in ("src", "dst"):
            column = edges[name][()]
            del edges[name]
            edges[name] = np.append(column, column[:1])
        edges.attrs["num_edges"] += 1
    return path


def with_splits(first: int, second: int):
    """The graph of friends, two of whose edges have other splits."""

    def make(path):
        friends(path)
        with h5py.File(path, "r+") as file:
            file["edges"][FRIENDS]["split"][[7, 40]] = first, second
        return path

    return make


def untyped(path):
    """A graph with an edge whose type is below 0."""
    facts(path)
    with h5py.File(path, "r+") as file:
        file["edges/entity.fact.entity/rel"][7] = -1
    return path


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (with_splits(3, 2), {"task__reverse": "none"}, "must hold 0 .train.,.*row 7 has 3: .*data_tools.split"),
        (with_splits(0, -2), {"task__reverse": "none"}, "must hold 0 .train.,.*row 40 has -2"),
        (lopsided, {}, "have a reverse in node.meets.node, .*2 of 300 edges have none.*: add the missing reverses, or"),
        (longer, {}, f"have a reverse in {SOLD}, .*: set task.reverse {SOLD}, or set task.reverse none"),
        (shop, {"task__relation": "user.sells.item"}, "no relation user.sells.item"),
        (shop, {"task__relation": "item.like.item"}, "item.like.item has no column split"),
        (shop, {"task__reverse": "item.like.item"}, "item.like.item does not lead from"),
        (shop, {"task__decoder": "distmult"}, "no column rel"),
        (shop, {"task__decoder": "complex"}, "no column rel"),
        (shop, {"task__messages": "typed"}, "no column rel"),
        (untyped, {"task__decoder": "complex"}, "column rel of .*fact.* must hold edge types, integers"),
        (partial(random_links, seed=1), {}, "must name the relation to learn; with a column split: .*user.likes.item"),
        (facts, {"task__decoder": "complex", "model__hidden": 7}, "even width"),
        (mixed, {}, "different splits"),
        (lopsided, {"task__reverse": FRIENDS}, "2 of 300 edges of node.meets.node have no reverse in it"),
    ],
)
def test_what_does_not_fit_the_graph_is_refused(comm, mpi_tmp_path, make, changes, message):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, link_config(**changes))


@pytest.mark.parametrize(("make", "count"), [(mixed, 300), (lopsided, 150)])
def test_directions_may_tell_edges_apart(comm, mpi_tmp_path, make, count):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(task__reverse="none"))
    assert sum(pool.total for pool in session.goal.pools.values()) >= count
    assert ", no reverses" in session.goal.describe()


def test_reverses_are_no_matter_where_nothing_is_sampled(comm, mpi_tmp_path):
    parts = make_static_parts(comm, lopsided, mpi_tmp_path)
    changes = {"model__kind": "embedding", "model__layers": 0, "sampling__fanouts": []}
    session = open_graph_session(comm, parts, link_config(**changes))
    assert ", no reverses" in session.goal.describe()


def test_edges_without_a_split_are_counted(comm, mpi_tmp_path):
    parts = make_static_parts(comm, friends, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config())
    count = int((relation_rows(parts, FRIENDS)["split"] == -1).sum())
    assert count > 0
    assert f"links of {FRIENDS} ({count} edges without a split are left out), reverses" in session.goal.describe()


def test_a_longer_relation_holds_the_reverses_if_it_is_named(comm, mpi_tmp_path):
    parts = make_static_parts(comm, longer, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(task__relation=BUYS, task__reverse=SOLD))
    assert f"reverses in {SOLD}" in session.goal.describe()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__negatives": -1}, "task.negatives"),
        ({"task__temperature": 0.0}, "task.temperature"),
        ({"task__candidates": "all"}, "task.candidates"),
        ({"task__candidates": "batch", "task__decoder": "mlp"}, "task.candidates batch needs"),
        ({"task__candidates": "batch", "train__train_metrics": True}, "train.train_metrics"),
        ({"task__adversarial": 1.0, "task__loss": "softmax"}, "task.adversarial"),
        ({"model__kind": "embedding"}, "model.layers"),
        ({"model__layers": 0, "sampling__fanouts": []}, "model.layers"),
        (
            {"task__kind": "node", "model__kind": "embedding", "model__layers": 0, "sampling__fanouts": []},
            "embedding is",
        ),
        ({"task__margin": 0.0}, "task.margin"),
        ({"task__loss": "hinge"}, "task.loss"),
        ({"task__decoder": "bilinear"}, "task.decoder"),
        ({"task__node_type": "user"}, "task.node_type"),
        ({"task__kind": "node", "task__relation": BUYS}, "task.relation"),
        ({"eval__negatives": -1}, "eval.negatives"),
        ({"eval__ranking": "best"}, "eval.ranking"),
        ({"eval__ranking": "full", "task__decoder": "mlp"}, "eval.ranking"),
        ({"task__kind": "node", "eval__ranking": "full"}, "eval.ranking"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        static_config(**{"task__kind": "link", **changes})
