"""Passes over whole static graphs: sampling with all neighbors in one batch, on any number of ranks, killed and
resumed; what travels is what the partition says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from random_graphs import write_graph
from static_runs import (
    bare,
    make_static_parts,
    open_graph_session,
    open_graph_trainer,
    plain,
    static_config,
    typed,
    whole_and_stopped,
)
from test_graph_training import BASIS_ROWS, assert_same_records
from test_multilabel import several

from data_tools import convert
from hpcgnn.comm.route import Pull, Route
from hpcgnn.comm.world import DistributedError
from hpcgnn.graph.partition import open_graph_partition
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.model.models import ResidualModel
from hpcgnn.static.predict import predict_nodes

EPOCHS = 3
SAMPLED = {"eval__exact": True, "train__batch_size": 10_000}
DROPOUT = {"model__dropout": 0.3, "model__input_dropout": 0.2}


def ring(path):
    """A ring of 200 nodes with short and a few long ways, and 10 nodes alone: parts of it have deep, border and outer
    nodes. Labels of few nodes, in one stretch of the ring."""
    rng = np.random.default_rng(1)
    near = np.arange(200)
    src = np.concatenate([(near + step) % 200 for step in (1, 2, -1, 3)] + [rng.integers(0, 200, 10)])
    dst = np.concatenate([np.tile(near, 4), rng.integers(0, 200, 10)])
    label = rng.integers(0, 3, 210)
    split = np.full(210, -1, np.int8)
    split[:60] = rng.choice([0, 0, 1, 2], 60)
    feat = rng.standard_normal((210, 4)) + label[:, None]
    nodes = {"node": {"feat": feat.astype(np.float32), "label": label, "split": split}}
    return write_graph(path, nodes, {("node", "meets", "node"): {"src": src, "dst": dst}}, "static")


def tiny(path):
    """Three nodes, one of them alone: of four ranks, one has no node."""
    label, split = np.array([0, 1, 0]), np.array([0, 1, 2], np.int8)
    nodes = {"node": {"feat": np.eye(3, dtype=np.float32), "label": label, "split": split}}
    edges = {"src": np.array([1, 0, 1]), "dst": np.array([0, 1, 1])}
    return write_graph(path, nodes, {("node", "meets", "node"): edges}, "static")


def learn(trainer, epochs: int = EPOCHS) -> list[float]:
    """Collective. Losses of the steps of some epochs, and validation's metrics after them."""
    session, losses = trainer.session, []
    for epoch in range(epochs):
        trainer.start_epoch(epoch)
        with session.plans("train", epoch) as plans:
            losses += [trainer.train_step(plan)[0] for plan in plans]
    return losses + list(split_metrics(session, "val", session.scores("val")).values())


def learnable_rows(session) -> dict[int, torch.Tensor]:
    """Collective. All learnable rows by type, in order of row in the graph file."""
    found = {}
    for kind, table in session.memory.tables.items():
        mine = session.partition.flat_row[session.partition.of_type(kind)], table.weight.cpu().numpy()
        row, weight = (np.concatenate(pieces) for pieces in zip(*session.world.allgather(mine), strict=True))
        found[kind] = torch.from_numpy(weight[np.argsort(row)])
    return found


def assert_whole_is_sampled(comm, parts, folder, changes) -> None:
    """Collective. The run over the whole graph on all ranks is the sampled run of this rank alone."""
    found = open_graph_trainer(comm, parts, folder, static_config(**changes, train__full_graph=True))
    layers = changes.get("model__layers", 2)
    sampled = static_config(**changes, **SAMPLED, sampling__fanouts=[-1] * layers)
    reference = open_graph_trainer(MPI.COMM_SELF, parts, folder, sampled)
    assert learn(found) == pytest.approx(learn(reference), rel=1e-9, nan_ok=True)
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(found.flat.parameter.detach().cpu(), reference.flat.parameter.detach(), **close)
    torch.testing.assert_close(learnable_rows(found.session), learnable_rows(reference.session), **close)


TYPED = {
    "sage": {},
    "rgcn": {"model__kind": "rgcn", "model__bases": 2},
    "low memory": {"model__kind": "rgcn", "model__low_memory": True},
    "rgat": {"model__kind": "rgat", "model__layers": 3},
    "hgt": {"model__kind": "hgt", "model__activation": "gelu"},
    "simple_hgn": {"model__kind": "simple_hgn", "model__activation": "elu"},
    "compgcn": {"model__kind": "compgcn", "model__composition": "corr"},
    "residual": {"model__residual": True, "model__norm": "layer", "model__feed_forward": 2},
    "linear skips": {"model__linear_skip": True},
    "linear output": {"model__kind": "rgat", "model__output_layer": "linear"},
    "residual rgat": {"model__kind": "rgat", "model__residual": True, "model__norm": "layer"},
    "embeddings of all": {"node_embedding__types": ["paper", "author"], "node_embedding__optimizer": "adagrad"},
}


@pytest.mark.parametrize("case", TYPED)
def test_of_a_typed_graph_whole_is_sampled(comm, mpi_tmp_path, case):
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, DROPOUT | TYPED[case])


PLAIN = {
    "sage": {},
    "sage without input dropout": {"model__input_dropout": 0.0, "model__layers": 3},
    "sum": {"model__aggregator": "sum", "features__normalize": True},
    "max": {"model__aggregator": "max", "model__activation": "gelu", "model__norm": "layer"},
    "gcn": {"model__kind": "gcn", "model__layers": 3},
    "gcn without loops": {"model__kind": "gcn", "model__self_loop": False},
    "gat": {"model__kind": "gat"},
    "gatv2": {"model__kind": "gatv2"},
    "linear skips": {"model__kind": "gcn", "model__linear_skip": True, "model__norm": "layer"},
    "residual gat": {"model__kind": "gat", "model__residual": True, "model__norm": "layer"},
    "residual": {"model__residual": True, "model__feed_forward": 1},
    "embeddings": {"node_embedding__types": ["node"]},
}


@pytest.mark.parametrize("case", PLAIN)
def test_of_a_graph_of_one_type_whole_is_sampled(comm, mpi_tmp_path, case):
    parts = make_static_parts(comm, ring, mpi_tmp_path, method="metis")
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, DROPOUT | PLAIN[case])


@pytest.mark.parametrize("case", ["rows of bases", "several labels", "tiny", "no inner node", "out"])
def test_of_other_graphs_too(comm, mpi_tmp_path, case):
    changes, options = {}, {}
    if case == "rows of bases":
        make, changes = bare, BASIS_ROWS
    elif case == "no inner node":
        make, changes = plain, {"model__kind": "gcn"} | DROPOUT
    elif case == "out":
        make, changes, options = typed, {"sampling__direction": "out"}, {"out_edges": True}
    else:
        make = several if case == "several labels" else tiny
    parts = make_static_parts(comm, make, mpi_tmp_path, parts=4, **options)
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, changes)


def edges_by_relation(parts, size: int):
    """By rank and relation: global ids of sources and destinations of the edges."""
    shares = [open_graph_partition(parts, rank, size) for rank in range(size)]
    return shares, [
        [
            (edges.src, share.global_ids(relation.dst_type)[edges.dst])
            for relation, edges in zip(share.relations, share.edges, strict=True)
        ]
        for share in shares
    ]


@pytest.mark.several_ranks
@pytest.mark.parametrize("make", [typed, ring])
def test_what_travels_is_what_the_partition_says(comm, mpi_tmp_path, make):
    """Rows of every hidden layer to each rank with edges from them, and as many gradients back; of the first layer
    learnable rows alone."""
    parts = make_static_parts(comm, make, mpi_tmp_path, method="metis" if make is ring else "random")
    config = static_config(train__full_graph=True, model__layers=3, **DROPOUT)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
    session = trainer.session
    before = session.sent_bytes()
    losses = learn(trainer, 2)
    assert np.isfinite(losses).all()
    shares, edges = edges_by_relation(parts, comm.size)
    passes, expected = 2 + 2 + 1, 0  # two epochs forward and backward, one validation
    for share, relations in zip(shares, edges, strict=True):
        sources = np.unique(np.concatenate([src for src, _ in relations]))
        remote_nodes = sources[share.book.locate(sources)[0] != share.rank]
        base = share.book.type_base()
        learned = sum(
            int(((remote_nodes >= base[kind]) & (remote_nodes < base[kind + 1])).sum())
            for kind in session.memory.tables
        )
        expected += passes * (2 * len(remote_nodes) + learned) * 8 * 8  # hidden numbers of 8 bytes
    assert session.world.total(session.sent_bytes() - before) == expected
    assert expected > 0


def test_nodes_are_inner_or_outer_and_keep_their_edges(comm, mpi_tmp_path):
    """Both halves together have every edge once, the inner one none from a remote node; outer nodes see the border."""
    parts = make_static_parts(comm, ring, mpi_tmp_path, method="metis")
    session = open_graph_session(comm, parts, static_config(train__full_graph=True))
    graph, (share,) = session.loaders["train"].whole, [open_graph_partition(parts, comm.rank, comm.size)]
    (deep, border, outer), n = graph.counts[0], share.num_nodes
    assert (deep + border, outer) == (graph.inner.num_nodes, graph.outer.num_nodes)
    assert comm.size == 1 or min(deep, border, outer) > 0
    found = []
    for half, first in ((graph.inner, 0), (graph.outer, deep + border)):
        (adjacency,) = half.block.relations
        order = torch.argsort(graph.place)[first : first + half.num_nodes]
        assert torch.equal(half.block.own(half.source[0]), order)
        source = half.source[0][adjacency.source]
        assert half is graph.outer or (source < n).all()
        dst = half.source[0][half.block.lists.destination]
        found += [(s, d) for s, d in zip(half.identity[0][adjacency.source].tolist(), dst.tolist(), strict=True)]
    ids, book = share.book.local_to_global(comm.rank), share.book
    flat = np.empty(book.num_nodes, np.int64)
    for rank in range(comm.size):
        flat[book.local_to_global(rank)] = open_graph_partition(parts, rank, comm.size).flat_row
    assert len(ids) == n
    assert sorted(found) == sorted(zip(flat[share.edges[0].src].tolist(), share.edges[0].dst.tolist(), strict=True))
    met = {s for s, d in found if torch.as_tensor(graph.place[d]) >= deep + border}
    inner = flat[ids][np.argsort(graph.place.numpy())][: deep + border]
    assert [row in met for row in inner] == [False] * deep + [True] * border


def test_rows_of_features_are_kept_once(comm, mpi_tmp_path):
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(train__full_graph=True))
    for rows, table, remote_nodes in zip(
        session.graph.rows, session.task.whole.features, session.loaders["train"].whole.num_remote, strict=True
    ):
        if table is None:
            assert "feature" not in rows.tables
            continue
        storage, own = table.untyped_storage(), rows.tables["feature"].untyped_storage()
        assert storage.data_ptr() == own.data_ptr()
        assert len(table) == len(rows.tables["feature"]) + remote_nodes
    assert all(len(edges.src) == 0 for edges in session.partition.edges)


@pytest.mark.parametrize("make", [typed, ring])
def test_a_run_resumes_as_if_it_had_never_stopped(comm, mpi_tmp_path, make):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    config = static_config(train__full_graph=True, train__epochs=4, train__train_metrics=True, **DROPOUT)
    trainer, whole, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 3)
    second = open_graph_trainer(comm, parts, broken, config)
    second.resume()
    assert 0 < second.progress.global_step < 4
    second.run()
    torch.testing.assert_close(second.flat.parameter, trainer.flat.parameter, rtol=0, atol=0)
    if comm.rank == 0:
        assert_same_records(broken, whole)


@pytest.mark.parametrize("embeddings", [False, True])
def test_predictions_are_those_of_inference_in_chunks(comm, mpi_tmp_path, embeddings):
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    found = []
    for whole in (True, False):
        config = static_config(
            train__full_graph=whole, sampling__fanouts=[-1, -1], model__residual=True, eval__nodes_per_pass=17
        )
        nodes = predict_nodes(open_graph_session(comm, parts, config), embeddings)
        found.append({"row": nodes.row, **nodes.columns})
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=1e-9, atol=1e-12)


class Flat(torch.nn.Module):
    """A model that cannot be taken layer by layer."""

    def __init__(self, config, sizes):
        super().__init__()
        self.product = torch.nn.Linear(sizes.inputs[0], sizes.outputs)


def test_a_model_of_ones_own(comm, mpi_tmp_path):
    """It is run layer by layer, or refused."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    own = {"model__class_path": "hpcgnn.static.model.models.ResidualModel"}
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, own | DROPOUT)
    with pytest.raises(DistributedError, match="lacks num_hops, first, step, last"):
        open_graph_session(comm, parts, static_config(train__full_graph=True, model__class_path=f"{__name__}.Flat"))


class Squashed(ResidualModel):
    """Outputs between -1 and 1, by a pass that is not one of a model's layers."""

    def forward(self, batch, inputs):
        return [torch.tanh(rows) for rows in super().forward(batch, inputs)]


@pytest.mark.parametrize(("changes", "reason"), [
    ({"model__class_path": f"{__name__}.Flat"}, "lacks num_hops, first, step, last"),
    ({"model__class_path": f"{__name__}.Squashed"}, "has a forward of its own, .* do there what forward adds"),
])  # fmt: skip
def test_exact_outputs_that_cannot_be_computed_are_refused(comm, mpi_tmp_path, changes, reason):
    """When a run begins."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    with pytest.raises(DistributedError, match=reason):
        open_graph_session(comm, parts, static_config(**changes, eval__exact=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__kind": "edge"}, "task.kind edge"),
        ({"sampling__relation_fanouts": {"a.b.c": [1, 1]}}, "relation_fanouts"),
        ({"features__storage": "file"}, "features.storage"),
        ({"features__cache_ratio": 0.5}, "cache_ratio"),
        ({"comm__sampling_servers": 1}, "sampling_servers"),
    ],
)
def test_what_only_mini_batches_know_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        static_config(train__full_graph=True, **changes)


def test_cora_is_the_sampled_run(comm, mpi_tmp_path, shared_data):
    """GCN of the citation graph: losses, weights and metrics of three epochs."""
    source = shared_data("cora/cora_planetoid.npz")

    def make(path):
        assert convert.main(["--preset", "planetoid", "--set", f"graph={source}", str(path)]) == 0

    parts = make_static_parts(comm, make, mpi_tmp_path, method="metis")
    changes = {"model__kind": "gcn", "model__hidden": 16, "features__normalize": True, "train__lr": 0.01,
               "train__weight_decay": 5e-4, "model__dropout": 0.5, "model__input_dropout": 0.5}  # fmt: skip
    assert_whole_is_sampled(comm, parts, mpi_tmp_path, changes)


def test_inner_nodes_are_computed_while_rows_travel(comm, mpi_tmp_path, monkeypatch):
    """Forward and backward: in every hidden layer the exchange begins, inner nodes follow, then it is waited for."""
    parts = make_static_parts(comm, ring, mpi_tmp_path, method="metis")
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, static_config(train__full_graph=True, model__layers=3))
    session, events = trainer.session, []
    step, inner_block = session.model.step, session.loaders["train"].whole.inner.block

    def noted(name, function):
        def call(*arguments):
            events.append(name)
            return function(*arguments)

        return call

    def noted_step(number, batch, block, rows):
        if number and block is inner_block:
            events.append("inner")
            rows = rows.clone()
            rows.register_hook(noted("inner gradient", lambda _: None))
        return step(number, batch, block, rows)

    monkeypatch.setattr(session.model, "step", noted_step)
    for owner, name in ((Route, "start_pull"), (Pull, "wait"), (Route, "start_push"), (Route, "sum_requests")):
        monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))
    with session.plans("train", 0) as plans:
        for plan in plans:
            session.task.train(plan)
    forward, backward = ["start_pull", "inner", "wait"], ["start_push", "inner gradient", "sum_requests"]
    assert events == 2 * forward + 2 * backward
