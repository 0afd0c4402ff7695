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
from static_runs import make_static_parts, open_graph_session, plain, static_config
from test_graph_training import run_both

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.config import DIRECTIONS
from hpcgnn.static.inference import infer

FRIENDS, BUYS, SOLD = "node.meets.node", "user.buys.item", "item.sold_to.user"
FACTS = "entity.fact.entity"


def link_config(**changes):
    """A small run of link prediction, or of another task on edges."""
    return static_config(**{"task__kind": "link", "train__batch_size": 24, **changes})


CASES = {
    "friends": (friends, {"task__negatives": 2}),
    "labor": (friends, {"sampling__strategy": "labor", "task__loss": "softmax", "task__negatives": 3}),
    "gcn": (friends, {"model__kind": "gcn", "task__decoder": "cosine", "task__loss": "margin"}),
    "shop": (shop, {"task__decoder": "mlp", "eval__negatives": 5}),
    "shop, exact": (shop, {"eval__exact": True, "train__accumulate_steps": 2, "train__train_metrics": True}),
    "facts": (facts, {"task__decoder": "distmult", "task__loss": "softmax", "task__negatives": 4}),
    "filtered": (facts, {"task__decoder": "distmult", "eval__ranking": "filtered", "eval__batch_size": 13}),
    "typed": (facts, {"task__message_edges": "typed", "model__kind": "sage", "task__decoder": "distmult"}),
    "typed both ways": (facts, {"task__message_edges": "both", "model__kind": "rgcn", "eval__ranking": "filtered"}),
    "typed both ways, compgcn": (
        facts, {"task__message_edges": "both", "model__kind": "compgcn", "task__decoder": "complex"},
    ),
    "full": (shop, {"eval__ranking": "destinations", "task__decoder": "cosine"}),
    "filtered, mlp": (shop, {"eval__ranking": "filtered", "task__decoder": "mlp"}),
}  # fmt: skip


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_links_give_one_answer(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, link_config(**changes))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_exact_scores_are_those_of_all_neighbors(comm, mpi_tmp_path, direction):
    """In the graph of training edges."""
    parts = make_static_parts(comm, shop, mpi_tmp_path, out_edges=True)
    shared = {"task__negatives": 5, "task__decoder": "mlp", "sampling__direction": direction}
    sampled = open_graph_session(comm, parts, link_config(**shared, sampling__fanouts=[-1, -1]))
    exact = open_graph_session(comm, parts, link_config(**shared, eval__exact=True, eval__nodes_per_pass=17))
    whole = open_graph_session(comm, parts, link_config(**shared, train__full_graph=True))
    found = split_metrics(exact, "test", exact.scores("test"))
    assert found == pytest.approx(split_metrics(sampled, "test", sampled.scores("test")), rel=1e-9)
    assert found == pytest.approx(split_metrics(whole, "test", whole.scores("test")), rel=1e-9)
    assert list(found) == ["ap", "auc", "mrr", "hits@1", "hits@3", "hits@10"]


@pytest.mark.parametrize(
    ("make", "name", "ranking", "decoder", "direction"),
    [
        (facts, FACTS, "filtered", "distmult", "in"),
        (facts, FACTS, "filtered", "complex", "out"),
        (shop, BUYS, "destinations", "dot", "in"),
        (shop, BUYS, "destinations", "mlp", "in"),
        (shop, BUYS, "destinations", "mlp", "out"),
        (shop, BUYS, "filtered", "mlp", "in"),
    ],
)  # fmt: skip
def test_ranks_among_all_nodes_are_those_of_counting(comm, mpi_tmp_path, make, name, ranking, decoder, direction):
    """Pair by pair, from embeddings of all nodes."""
    parts = make_static_parts(comm, make, mpi_tmp_path, out_edges=True)
    config = link_config(
        eval__ranking=ranking, task__relation=name, task__decoder=decoder, sampling__direction=direction
    )  # fmt: skip
    session = open_graph_session(comm, parts, config)
    found = split_metrics(session, "test", session.scores("test"))
    alone = open_graph_session(MPI.COMM_SELF, parts, config)
    rows, book = torch.empty(infer(alone).shape, dtype=torch.float64), alone.partition.book
    rows[torch.from_numpy(alone.partition.flat_row)] = infer(alone)
    kind = alone.goal.learned
    source, target = (rows[book.type_base()[t] : book.type_base()[t + 1]] for t in (kind.src_type, kind.dst_type))
    edges = relation_rows(parts, name)
    types = edges.get("rel", np.zeros(len(edges["src"]), int))
    score = alone.model.decoder
    ranks, test = defaultdict(list), np.flatnonzero(edges["split"] == 2)
    for u, v, kind in zip(edges["src"][test], edges["dst"][test], types[test], strict=True):
        same = (types == kind) & ((edges["split"] == 0) | (ranking == "filtered"))
        with torch.no_grad():
            tails = score(source[u].expand(len(target), -1), target, torch.full((len(target),), kind))
            heads = score(source, target[v].expand(len(source), -1), torch.full((len(source),), kind))
        ranks[u].append(rank_of(tails, v, edges["dst"][same & (edges["src"] == u)]))
        if ranking == "filtered":
            ranks[u].append(rank_of(heads, u, edges["src"][same & (edges["dst"] == v)]))
    if ranking == "filtered":
        every = np.concatenate(list(ranks.values()))
        hits = {f"hits@{most}": (every <= most).mean() for most in (1, 3, 10)}
        expected = {"mrr": (1 / every).mean()} | hits
    else:
        gains = {u: sum(1 / np.log2(1 + r) for r in found if r <= 20) for u, found in ranks.items()}
        ideal = {u: sum(1 / np.log2(2 + place) for place in range(min(20, len(found)))) for u, found in ranks.items()}
        expected = {
            "recall@20": np.mean([np.mean(np.array(found) <= 20) for found in ranks.values()]),
            "ndcg@20": np.mean([gains[u] / ideal[u] for u in ranks]),
        }
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("make", "ranking"), [(facts, "filtered"), (shop, "destinations")])
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


def joined(columns: dict, typed: bool = False, turned: bool = False) -> list[tuple]:
    """What each edge of a relation joins: its ends, and, typed, how."""
    ends = (columns["dst"], columns["src"]) if turned else (columns["src"], columns["dst"])
    return list(zip(*(column.tolist() for column in (*ends, *([columns["rel"]] if typed else []))), strict=True))


def forward_rows(there: dict, back: dict, typed: bool = False) -> np.ndarray:
    """Of every edge back the row of the edge it goes with: the first with the first, the second with the second, more
    with the last; -1 without."""
    waiting, found = defaultdict(list), []
    for row, key in enumerate(joined(there, typed)):
        waiting[key].append(row)
    for key in joined(back, typed, turned=True):
        rows = waiting.get(key, [-1])
        found.append(rows.pop(0) if len(rows) > 1 else rows[0])
    return np.array(found)


def rows_to_hide(there: dict, back: dict, seeds: np.ndarray, typed: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the edges that join what a seed joins, and of those back."""
    keys = joined(there, typed)
    asked = {keys[row] for row in seeds}
    pairs = keys, joined(back, typed, turned=True)
    copies, reverses = (np.flatnonzero([key in asked for key in each]) for each in pairs)
    return copies, reverses


def pairs_of(columns: dict, rows: np.ndarray, turned: bool = False) -> Counter:
    """How often each (src, dst) occurs among rows; turned: each (dst, src)."""
    ends = (columns[name][rows].tolist() for name in (("dst", "src") if turned else ("src", "dst")))
    return Counter(zip(*ends, strict=True))


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


VISIBLE = {
    "both ways": (friends, FRIENDS, FRIENDS, {}),
    "a relation of reverses": (shop, BUYS, SOLD, {}),
    "named": (shop, BUYS, SOLD, {"task__reverse": SOLD}),
    "few reverses": (facts, FACTS, FACTS, {}),
    "few reverses of a type": (facts, FACTS, FACTS, {"task__decoder": "distmult"}),
    "some lack": (lopsided, FRIENDS, FRIENDS, {}),
    "some lack, named": (lopsided, FRIENDS, FRIENDS, {"task__reverse": FRIENDS}),
    "more than edges": (longer, BUYS, SOLD, {}),
    "reverses told apart": (friends, FRIENDS, None, {"task__reverse": "none"}),
}


def drawn(mode: str) -> dict:
    """Settings that take all neighbors, or draw them."""
    return {"sampling__fanouts": [-1, -1]} if mode == "full" else {"sampling__strategy": mode}


@pytest.mark.parametrize("mode", ["full", "uniform", "replace", "labor"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", VISIBLE)
def test_a_step_sees_no_seed_no_copy_and_no_reverse_of_one(comm, mpi_tmp_path, case, direction, mode):
    """Blocks of all neighbors hold exactly the training edges without these; sampled ones nothing else."""
    make, task, reverse, changes = VISIBLE[case]
    parts, typed = make_static_parts(comm, make, mpi_tmp_path, out_edges=True), "task__decoder" in changes
    config = link_config(task__relation=task, sampling__direction=direction, **drawn(mode), **changes)
    session = open_graph_session(comm, parts, config)
    numbers = {name: session.partition.relation_of(name) for name in (task, reverse) if name}
    columns = {name: relation_rows(parts, name) for name in numbers}
    split = columns[task]["split"]
    held_out = {task: np.flatnonzero(split != 0)}
    if reverse:
        there = forward_rows(columns[task], columns[reverse], typed)
        turned = np.flatnonzero((there >= 0) & (split[there] != 0))
        held_out[reverse] = np.union1d(held_out.get(reverse, turned), turned)
    for name in ("train", "val", "test"):
        with session.plans(name, 0) as plans:
            for plan in plans:
                seeds = np.concatenate(comm.allgather(plan.columns["row"].numpy()))
                assert set(split[seeds]) <= {("train", "val", "test").index(name)}
                hidden = {number: held_out[number] for number in numbers}
                if name == "train":
                    copies, reverses = rows_to_hide(columns[task], columns[reverse or task], seeds, typed)
                    hidden[task] = np.union1d(hidden[task], copies)
                    if reverse:
                        hidden[reverse] = np.union1d(hidden[reverse], reverses)
                for relation, number in numbers.items():
                    rows = np.setdiff1d(np.arange(len(columns[relation]["src"])), hidden[relation])
                    visible = pairs_of(columns[relation], rows, direction == "out")
                    check_blocks(block_pairs(session, plan, number), visible, mode)


@pytest.mark.parametrize("decoder", ["dot", "distmult"])
@pytest.mark.parametrize(("direction", "mode"), [("in", "full"), ("in", "uniform"), ("out", "full")])
def test_typed_messages_follow_the_edges_of_their_type(comm, mpi_tmp_path, direction, mode, decoder):
    """Both ways; seeds and their copies, of other types where the decoder tells no types apart, are in neither."""
    parts = make_static_parts(comm, facts, mpi_tmp_path, out_edges=True)
    changes = {"task__message_edges": "both", "task__reverse": "none", "task__decoder": decoder}
    session = open_graph_session(comm, parts, link_config(sampling__direction=direction, **drawn(mode), **changes))
    columns, types = relation_rows(parts, FACTS), 4
    assert [kind.num_edges for kind in session.partition.relations] == 2 * [
        int(((columns["rel"] == kind) & (columns["split"] == 0)).sum()) for kind in range(types)
    ]
    for name in ("train", "val"):
        with session.plans(name, 0) as plans:
            for plan in plans:
                seeds = np.concatenate(comm.allgather(plan.columns["row"].numpy()))
                visible = np.flatnonzero(columns["split"] == 0)
                if name == "train":
                    visible = np.setdiff1d(visible, rows_to_hide(columns, columns, seeds, decoder == "distmult")[0])
                for number in range(2 * types):
                    rows = visible[columns["rel"][visible] == number % types]
                    pairs = pairs_of(columns, rows, (number < types) == (direction == "out"))
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
        (with_splits(3, 2), {"task__reverse": "none"}, "must hold 0 .train.,.*row 7 has 3: .*hpcgnn split"),
        (with_splits(0, -2), {"task__reverse": "none"}, "must hold 0 .train.,.*row 40 has -2"),
        (shop, {"task__relation": "user.sells.item"}, "task.relation: no relation user.sells.item; the graph has user"),
        (shop, {"task__reverse": "user.sells.item"}, "task.reverse: no relation user.sells.item; the graph has user"),
        (plain, {}, "no relation has a column split, .*: run hpcgnn split --relation NAME, one of node.meets"),
        (shop, {"task__relation": "item.like.item"}, "item.like.item has no column split"),
        (shop, {"task__reverse": "item.like.item"}, "item.like.item does not lead from"),
        (shop, {"task__decoder": "distmult"}, "no column rel"),
        (shop, {"task__decoder": "complex"}, "no column rel"),
        (shop, {"task__message_edges": "typed"}, "no column rel"),
        (untyped, {"task__decoder": "complex"}, "column rel of .*fact.* must hold edge types, integers"),
        (partial(random_links, seed=1), {}, "must name the relation to learn; with a column split: .*user.likes.item"),
        (facts, {"task__decoder": "complex", "model__hidden": 7}, "even width"),
        (mixed, {}, "different splits"),
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
    assert ", reverses carry messages (task.reverse none)" in session.goal.describe()


def test_reverses_are_no_matter_where_nothing_is_sampled(comm, mpi_tmp_path):
    parts = make_static_parts(comm, lopsided, mpi_tmp_path)
    changes = {"model__kind": "none", "model__layers": 0, "sampling__fanouts": []}
    session = open_graph_session(comm, parts, link_config(**changes))
    assert ", no messages" in session.goal.describe()


@pytest.mark.parametrize(
    ("make", "relation", "said"),
    [
        (friends, FRIENDS, f", reverses in {FRIENDS}, "),
        (lopsided, FRIENDS, f", reverses of 298 of 300 edges in {FRIENDS}, "),
        (longer, BUYS, f", reverses in {SOLD}, "),
        (shop, "item.like.item", ", no reverses, "),
    ],
)
def test_reverses_are_counted(comm, mpi_tmp_path, make, relation, said):
    def one_way(path):
        make(path)
        if relation == "item.like.item":
            with h5py.File(path, "r+") as file:
                edges = file["edges"][relation]
                edges["src"][:], edges["dst"][:] = np.arange(90) % 15, 15 + np.arange(90) % 15
                edges["split"] = (np.arange(90) % 3).astype(np.int8)
        return path

    parts = make_static_parts(comm, one_way, mpi_tmp_path)
    assert said in open_graph_session(comm, parts, link_config(task__relation=relation)).goal.describe()


def test_edges_of_training_that_tell_of_held_out_ones_are_counted(comm, mpi_tmp_path):
    """Copies of held-out edges are followed, reverses of them are not."""

    def make(path):
        facts(path)
        with h5py.File(path, "r+") as file:
            edges = file["edges"][FACTS]
            edges["src"][:8], edges["dst"][:8] = [1, 1, 1, 2, 5, 6, 5, 5], [2, 2, 2, 1, 6, 5, 6, 6]
            edges["split"][:8] = [0, 1, 1, 0, 2, 0, 1, 0]
        return path

    columns = relation_rows(parts := make_static_parts(comm, make, mpi_tmp_path), FACTS)
    keys, there, split = joined(columns), forward_rows(columns, columns), columns["split"]
    known = {key for key, number in zip(keys, split, strict=True) if number == 0}
    repeated = sum(key in known for key, number in zip(keys, split, strict=True) if number > 0)
    turned = int(((split == 0) & (there >= 0) & (split[there] != 0)).sum())
    assert repeated >= 4
    assert turned >= 1
    said = open_graph_session(comm, parts, link_config()).goal.describe()
    assert f"{repeated} validation and test edges have a copy in training, which carries messages" in said
    assert f"{turned} training edges are reverses of validation and test edges and carry no messages" in said


def test_columns_that_nothing_uses_stay_in_the_files(comm, mpi_tmp_path, monkeypatch):
    """Of links split and rel are read, of labels none; a model's are read, and the log names the others."""

    def make(path):
        facts(path)
        with h5py.File(path, "r+") as file:
            file["edges"][FACTS]["feat"] = np.ones((200, 3), np.float32)
            file["edges"][FACTS]["year"] = np.arange(200)
            file["nodes/entity/label"], file["nodes/entity/split"] = np.arange(50) % 3, np.zeros(50, np.int8)
        return path

    parts, read, get = make_static_parts(comm, make, mpi_tmp_path), set(), h5py.Dataset.__getitem__

    def counting(dataset, *arguments, **options):
        if f"/edges/{FACTS}/" in dataset.name:
            read.add(dataset.name.rpartition("/")[2])
        return get(dataset, *arguments, **options)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counting)
    own = {"sampling__edge_columns": ["year"], "model__class_path": "hpcgnn.static.model.models.LayeredModel"}
    for changes, used, unread in (
        ({"task__kind": "link"}, {"row", "split", "rel"}, "feat of entity.fact.entity; year of entity.fact.entity"),
        ({"task__kind": "node"}, set(), "feat of entity.fact.entity; rel of entity.fact.entity; year of"),
        ({"task__kind": "node", **own}, {"row", "year"}, "feat of entity.fact.entity; rel of entity.fact.entity ("),
    ):
        read.clear()
        lines = open_graph_session(comm, parts, static_config(**changes)).describe()
        assert read == {"indptr", "src"} | used
        assert [line for line in lines if line.startswith(f"edge columns not read: {unread}")]


def test_edges_without_a_split_are_counted(comm, mpi_tmp_path):
    parts = make_static_parts(comm, friends, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config())
    count = int((relation_rows(parts, FRIENDS)["split"] == -1).sum())
    assert count > 0
    assert f"links of {FRIENDS} ({count} edges without a split are left out), reverses" in session.goal.describe()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__negatives": -1}, "task.negatives"),
        ({"task__temperature": 0.0}, "task.temperature"),
        ({"task__negative_sharing": "all"}, "task.negative_sharing"),
        ({"task__negative_sharing": "batch", "task__decoder": "mlp"}, "task.negative_sharing batch needs"),
        ({"task__negative_sharing": "batch", "train__train_metrics": True}, "train.train_metrics"),
        ({"task__negative_kind": "rare"}, "task.negative_kind must be one of uniform, degree, got 'rare'"),
        (
            {"task__negative_sharing": "batch", "task__negative_kind": "degree"},
            "no effect with task.negative_sharing batch",
        ),
        ({"task__adversarial": 1.0, "task__loss": "softmax"}, "task.adversarial"),
        ({"model__kind": "none"}, "model.layers"),
        ({"model__layers": 0, "sampling__fanouts": []}, "model.layers"),
        (
            {"task__kind": "node", "model__kind": "none", "model__layers": 0, "sampling__fanouts": []},
            "none is",
        ),
        ({"task__margin": 0.0}, "task.margin"),
        ({"task__loss": "hinge"}, "task.loss"),
        ({"task__decoder": "bilinear"}, "task.decoder"),
        ({"task__decoder": "pair"}, "task.decoder pair is for temporal graphs"),
        ({"task__node_type": "user"}, "task.node_type"),
        ({"task__kind": "node", "task__relation": BUYS}, "task.relation"),
        ({"eval__negatives": -1}, "eval.negatives"),
        ({"eval__ranking": "best"}, "eval.ranking"),
        ({"task__kind": "node", "eval__ranking": "destinations"}, "eval.ranking"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        static_config(**{"task__kind": "link", **changes})
