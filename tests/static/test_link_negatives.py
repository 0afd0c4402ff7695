"""Negatives of links: one answer on any number of ranks, what is drawn, what is no negative; models without layers."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from link_graphs import facts, friends, shop
from mpi4py import MPI
from random_graphs import write_graph
from static_runs import APART, make_static_parts, open_graph_session
from test_graph_links import link_config, relation_rows
from test_graph_training import resume_both, run_both

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.inference import infer, last_rows
from hpcgnn.task.losses import softmax_loss

BARE = {"model__kind": "none", "model__layers": 0, "sampling__fanouts": [], "model__input_dropout": 0.2}
BATCH = {"task__negative_sharing": "batch"}
BOTH, PAIRS = {"task__negative_ends": "both"}, {"task__negative_ends": "pair"}
SHARED = {"task__negative_sharing": "shared", "task__negatives": 20}
BY_DEGREE = {"task__negative_kind": "degree"}
CASES = {
    "batch": (friends, BATCH | BOTH | {"task__loss": "softmax", "task__strict": True}),
    "some of a batch": (shop, BATCH | {"task__negatives": 7, "task__adversarial": 0.5, "train__accumulate_steps": 2}),
    "shared": (shop, SHARED | {"task__loss": "margin", "task__decoder": "cosine", "task__temperature": 0.5}),
    "by degree": (shop, BOTH | BY_DEGREE | {"task__strict": True, "task__negatives": 3}),
    "by degree, shared": (friends, SHARED | BY_DEGREE),
    "strict": (shop, BOTH | {"task__strict": True, "task__loss": "margin", "task__negatives": 3}),
    "strict, mlp": (friends, BOTH | {"task__strict": True, "task__decoder": "mlp"}),
    "bare": (facts, BARE | SHARED | BOTH | {
        "task__decoder": "complex", "task__loss": "softmax", "task__strict": True,
        "eval__ranking": "filtered",
    }),
    "bare, without weights": (friends, BARE | BATCH | {"node_embedding__types": ["node"], "eval__exact": True}),
    "bare, projected": (shop, BARE | {"task__negatives": 2, "node_embedding__optimizer": "adagrad"}),
    "pairs, mlp": (shop, PAIRS | {"task__decoder": "mlp", "task__negatives": 3}),
    "pairs, of types": (facts, PAIRS | {"task__decoder": "complex", "eval__exact": True, "eval__negatives": 4}),
    "bare, nothing dropped": (shop, BARE | {"model__input_dropout": 0.0, "model__dropout": 0.0}),
}  # fmt: skip


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_negatives_give_one_answer(comm, mpi_tmp_path, case):
    make, changes = CASES[case]
    run_both(comm, make_static_parts(comm, make, mpi_tmp_path), mpi_tmp_path, link_config(**changes))


@pytest.mark.parametrize("storage", ["file", "pinned"])
def test_inference_without_layers_gathers_features(comm, mpi_tmp_path, storage):
    """In chunks, as from memory."""
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    stored, in_memory = (
        open_graph_session(
            comm, parts, link_config(**BARE, features__storage=kind, eval__exact=True, eval__nodes_per_pass=7)
        )
        for kind in (storage, "device")
    )
    torch.testing.assert_close(last_rows(stored), last_rows(in_memory), rtol=1e-12, atol=1e-12)
    assert split_metrics(stored, "test", stored.scores("test")) == pytest.approx(
        split_metrics(in_memory, "test", in_memory.scores("test")), rel=1e-9
    )


@pytest.mark.parametrize("decoder", ["dot", "mlp", "distmult"])
def test_pairs_of_two_drawn_ends_are_scored_together(comm, mpi_tmp_path, decoder):
    """One by one, in plain loops; never an end of the edge itself; the same in a step and by exact embeddings."""
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    changes = {"task__decoder": decoder, "task__negatives": 5, "sampling__fanouts": [-1, -1], "model__dropout": 0.2}
    sampled, exact = (
        open_graph_session(comm, parts, link_config(**PAIRS, **changes, eval__exact=each)) for each in (False, True)
    )
    embedded, model = infer(sampled), sampled.model.decoder
    whole = torch.empty(50, embedded.shape[1], dtype=torch.float64)
    for rows, piece in sampled.world.allgather((sampled.partition.flat_row, embedded)):
        whole[torch.from_numpy(rows)] = piece
    with sampled.plans("test", 0) as plans, torch.no_grad():
        for plan in plans:
            found = sampled.task.score(plan).arrays()["negative"]
            assert found.shape == (len(plan.columns["row"]), 5)
            identity = plan.batch.identity[0]
            for number, roots in enumerate(zip(*plan.roots, strict=True)):
                src, dst, to, of = (identity[place] for place in roots)
                assert not (to == dst).any()
                assert not (of == src).any()
                for slot in range(5):
                    kind = plan.columns["rel"][number : number + 1]
                    score = model(whole[of[slot : slot + 1]], whole[to[slot : slot + 1]], kind)
                    assert found[number, slot] == pytest.approx(float(score), rel=1e-9, abs=1e-12)
    metrics = [split_metrics(each, "test", each.scores("test")) for each in (sampled, exact)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-9)


def training_pairs(parts, name: str) -> set[tuple[int, int, int]]:
    """(src, type, dst) of the training edges, by row of the nodes."""
    edges = relation_rows(parts, name)
    kinds = edges.get("rel", np.zeros(len(edges["src"]), int))
    training = edges["split"] == 0
    return set(zip(edges["src"][training], kinds[training], edges["dst"][training], strict=True))


def steps(session, split: str, epoch: int = 0):
    """Columns of every step of a split, global ids as rows of nodes."""
    batches, partition = session.batches[split], session.partition
    for step in range(batches.num_steps):
        columns = session.goal.complete(batches, epoch, step)
        for kind, name in session.goal.roots:
            columns[name] = row_of(partition, columns[name]) - partition.book.type_base()[kind]
        yield columns


def row_of(partition, ids: np.ndarray) -> np.ndarray:
    """Collective. Flat row ids of nodes."""
    everyone = MPI.COMM_WORLD.allgather((partition.book.local_to_global(partition.rank), partition.flat_row))
    table = np.empty(partition.book.num_nodes, np.int64)
    for known, rows in everyone:
        table[known] = rows
    return table[ids]


def polls(options: int):
    """Voters choose between so many options."""

    def make(path):
        rng = np.random.default_rng(3)
        src, dst, split = rng.integers(0, 40, 160), rng.integers(0, options, 160), rng.choice([0, 0, 1, 2], 160)
        nodes = {"voter": {"id": np.arange(40)}, "option": {"id": np.arange(options)}}
        columns = {"src": src, "dst": dst, "split": split.astype(np.int8)}
        return write_graph(path, nodes, {("voter", "chose", "option"): columns}, "static")

    return make


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("options", [2, 3, 9])
def test_no_negative_is_the_end_that_it_replaces(comm, mpi_tmp_path, options, strict):
    """Of two nodes it is the other one, of more every other one is as likely."""
    parts = make_static_parts(comm, polls(options), mpi_tmp_path)
    config = link_config(**BARE, task__negative_ends="both", task__negatives=30, task__strict=strict)
    session, offsets = open_graph_session(comm, parts, config), np.zeros(options, np.int64)
    for split in ("train", "val", "test"):
        for columns in steps(session, split):
            assert not (columns["negative_source"] == columns["src"][:, None]).any()
            distance = (columns["negative"] - columns["dst"][:, None]) % options
            offsets += np.bincount(distance.ravel(), minlength=options)
    offsets = comm.allreduce(offsets)
    assert offsets[0] == 0
    assert offsets.sum() == 160 * 30
    if not strict:
        expected = offsets.sum() / (options - 1)
        assert ((offsets[1:] - expected) ** 2).sum() / expected < 30  # chi-square of at most 7 degrees of freedom


def test_draws_by_degree_follow_the_training_edges(comm, mpi_tmp_path):
    """An option as often as voters of training chose it, but never the one that it replaces; the test draws evenly."""
    parts = make_static_parts(comm, polls(5), mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(**BARE, **BY_DEGREE, task__negatives=400))
    edges = relation_rows(parts, "voter.chose.option")
    degree = np.bincount(edges["dst"][edges["split"] == 0], minlength=5)
    for split in ("train", "test"):
        drawn, expected = np.zeros(5, np.int64), np.zeros(5)
        for columns in steps(session, split, epoch=1):
            assert not (columns["negative"] == columns["dst"][:, None]).any()
            drawn += np.bincount(columns["negative"].ravel(), minlength=5)
            for option in columns["dst"].tolist():
                others = np.where(np.arange(5) == option, 0, degree if split == "train" else 1)
                expected += columns["negative"].shape[1] * others / others.sum()
        drawn, expected = comm.allreduce(drawn), comm.allreduce(expected)
        assert ((drawn - expected) ** 2 / expected).sum() < 20  # chi-square of 4 degrees of freedom


def test_a_node_of_all_training_edges_has_negatives_by_degree(comm, mpi_tmp_path):
    """Where draws by degree only ever find an edge's own end, any other node takes its place."""

    def make(path):
        src, split = np.arange(30), np.repeat([0, 1, 2], [20, 5, 5])
        dst = np.where(split == 0, 0, src % 4)
        nodes = {"voter": {"id": np.arange(30)}, "option": {"id": np.arange(4)}}
        columns = {"src": src, "dst": dst, "split": split.astype(np.int8)}
        return write_graph(path, nodes, {("voter", "chose", "option"): columns}, "static")

    session = open_graph_session(comm, make_static_parts(comm, make, mpi_tmp_path), link_config(**BARE, **BY_DEGREE))
    drawn = [columns["negative"].ravel() for columns in steps(session, "train")]
    assert set(np.concatenate(comm.allgather(np.concatenate(drawn))).tolist()) == {1, 2, 3}


def test_a_single_node_to_draw_from_is_refused(comm, mpi_tmp_path):
    parts = make_static_parts(comm, polls(1), mpi_tmp_path)
    with pytest.raises(DistributedError, match="negatives replace the dst of an edge, and there is 1"):
        open_graph_session(comm, parts, link_config(**BARE))


@pytest.mark.parametrize(("make", "name"), [(shop, "user.buys.item"), (facts, "entity.fact.entity")])
def test_strict_draws_make_no_edge(comm, mpi_tmp_path, make, name):
    """Of either end, in training and evaluation; others do."""
    parts = make_static_parts(comm, make, mpi_tmp_path)
    found = {}
    for strict in (False, True):
        config = link_config(task__strict=strict, task__negative_ends="both", task__negatives=40, task__relation=name)
        session, edges = open_graph_session(comm, parts, config), training_pairs(parts, name)
        found[strict] = 0
        for split in ("train", "val"):
            for columns in steps(session, split):
                kinds = columns.get("rel", np.zeros_like(columns["src"]))
                tails = np.stack(np.broadcast_arrays(columns["src"][:, None], kinds[:, None], columns["negative"]), -1)
                heads = np.stack(
                    np.broadcast_arrays(columns["negative_source"], kinds[:, None], columns["dst"][:, None]), -1
                )
                triples = np.concatenate([tails, heads]).reshape(-1, 3).tolist()
                found[strict] += sum(tuple(triple) in edges for triple in triples)
    assert comm.allreduce(found[False]) > 0
    assert comm.allreduce(found[True]) == 0


@pytest.mark.parametrize("changes", [BATCH, BATCH | {"task__negatives": 6}, SHARED])
@pytest.mark.parametrize("strict", [False, True])
def test_candidates_of_a_step(comm, mpi_tmp_path, changes, strict):
    """Those of one rank, each at its owner; hidden are an edge's own ends or, if strict, all edges, and no other
    pairs."""
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    config = link_config(task__negative_ends="both", task__strict=strict, **changes)
    session, alone = open_graph_session(comm, parts, config), open_graph_session(MPI.COMM_SELF, parts, config)
    edges = training_pairs(parts, "entity.fact.entity")
    reference = list(steps_alone(alone))
    for mine, whole in zip(steps(session, "train"), reference, strict=True):
        for column, answer in (("negative", "dst"), ("negative_source", "src")):
            pieces = comm.allgather(mine[column])
            candidates = np.concatenate(pieces)
            assert set(candidates.tolist()) == set(whole[column].tolist())
            assert len(set(candidates.tolist())) == len(candidates)
            assert [len(piece) for piece in pieces] == mine[column + ".counts"].tolist()
            if "shared" not in changes.values():
                everyone = set(np.concatenate(comm.allgather(mine[answer])).tolist())
                few = changes.get("task__negatives", 1000)
                assert set(candidates.tolist()) <= everyone
                assert len(candidates) <= few
                assert few < 1000 or set(candidates.tolist()) == everyone
            hidden = set(map(tuple, mine[column + ".hidden"].tolist()))
            for seed, (src, dst, kind) in enumerate(zip(mine["src"], mine["dst"], mine["rel"], strict=True)):
                for number, node in enumerate(candidates):
                    triple = (src, kind, node) if answer == "dst" else (node, kind, dst)
                    known = triple in edges if strict else node == mine[answer][seed]
                    assert ((seed, number) in hidden) == known


def steps_alone(session):
    """As ``steps`` of training, of a session of this rank alone."""
    partition, batches = session.partition, session.batches["train"]
    flat = np.empty(partition.num_nodes, np.int64)
    flat[partition.book.local_to_global(0)] = partition.flat_row
    for step in range(batches.num_steps):
        columns = session.goal.complete(batches, 0, step)
        yield {name: flat[columns[name]] for name in ("negative", "negative_source")}


def test_loss_of_candidates_is_that_of_scores_one_by_one(comm, mpi_tmp_path):
    """And its gradients those of one graph, from embeddings to loss, without a cut."""
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    shared = {"task__decoder": "distmult", "task__loss": "softmax", "task__negative_ends": "both", "task__strict": True}
    config = link_config(**(BARE | BATCH | shared), train__precision="float64")
    session = open_graph_session(MPI.COMM_SELF, parts, config)
    with session.plans("train", 0) as plans:
        plan = next(iter(plans))
    table, decoder, task = session.memory.tables[0], session.model.decoder, session.task
    rows = table.weight[plan.fetches[0].index].clone().requires_grad_()
    session.model.train()
    (out,) = session.model(plan.batch, [rows])
    src, dst, *candidates = (out[places] for places in plan.roots)
    weight, loss = decoder.relation.weight[plan.columns["rel"]], 0.0
    for stays, others, column in ((src, candidates[0], "negative"), (dst, candidates[1], "negative_source")):
        scores = torch.stack([(stays * weight * other).sum(1) for other in others])
        scores[plan.columns[column + ".hidden"][:, 1], plan.columns[column + ".hidden"][:, 0]] = float("-inf")
        loss = loss + softmax_loss((src * weight * dst).sum(1), scores) / 2 / plan.batch_size
    (expected, for_relation) = torch.autograd.grad(loss, [rows, decoder.relation.weight])
    given = {}
    session.memory.tables[0].apply_all = lambda pushed: given.update(gradient=pushed[0][1])
    decoder.relation.weight.grad = None
    assert task.train(plan).item() == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(given["gradient"], expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(decoder.relation.weight.grad, for_relation, rtol=1e-10, atol=1e-14)


def crowded(path):
    """A node that has edges to all nodes: it has no strict negatives."""
    src, dst = np.r_[np.zeros(12, int), np.arange(1, 12)], np.r_[np.arange(12), np.arange(2, 12), 1]
    columns = {"src": src, "dst": dst, "split": np.zeros(len(src), np.int8)}
    return write_graph(path, {"node": {"id": np.arange(12)}}, {("node", "meets", "node"): columns}, "static")


def test_strict_draws_end_where_there_is_nothing_to_draw(comm, mpi_tmp_path):
    parts = make_static_parts(comm, crowded, mpi_tmp_path, parts=4)
    session = open_graph_session(comm, parts, link_config(task__strict=True, task__negatives=4, task__reverse="none"))
    edges = training_pairs(parts, "node.meets.node")
    for columns in steps(session, "train"):
        for src, nodes in zip(columns["src"], columns["negative"], strict=True):
            assert src == 0 or not any((src, 0, node) in edges for node in nodes)


RESUMED = {
    "weighted": (friends, {"sampling__strategy": "weighted", "train__drop_last": True, "task__strict": True}),
    "cached": (shop, BATCH | BOTH | {"features__cache_ratio": 0.3, **APART, "train__accumulate_steps": 2}),
    "bare": (facts, BARE | SHARED | {"task__decoder": "distmult", "eval__ranking": "filtered"}),
}  # fmt: skip


def weighted(make):
    """The graph with edge weights, some of them 0."""

    def write(path):
        make(path)
        with h5py.File(path, "r+") as file:
            for group in file["edges"].values():
                group["weight"] = (np.arange(len(group["src"])) % 5).astype(np.float32)
        return path

    return write


@pytest.mark.parametrize("case", RESUMED)
def test_links_resume_as_if_never_stopped(comm, mpi_tmp_path, case):
    """Stopped within an epoch, and begun again on all ranks, or on one."""
    make, changes = RESUMED[case]
    parts = make_static_parts(comm, weighted(make), mpi_tmp_path)
    config = link_config(**changes, train__checkpoint_every=2, train__epochs=2)
    resume_both(comm, parts, mpi_tmp_path, config)
