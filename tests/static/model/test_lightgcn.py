"""LightGCN: as PyG computes it, sampled and whole, learned as by dense algebra, on any number of ranks and resumed."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from random_graphs import write_graph
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, whole_and_stopped
from test_graph_links import link_config
from test_graph_training import assert_same_records, run_both

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.session import split_metrics
from hpcgnn.static.config import GraphModelConfig
from hpcgnn.static.inference import infer

USERS, ITEMS = 40, 30
KIND = {
    "model__kind": "lightgcn", "model__layers": 3, "model__dropout": 0.0, "sampling__fanouts": [-1] * 3,
    "task__relation": "user.buys.item", "eval__ranking": "destinations", "node_embedding__lr": 0.01,
}  # fmt: skip
WHOLE = {"train__full_graph": True, "task__loss": "bpr", "train__batch_size": 30}
CCL = {
    "task__loss": "ccl", "task__decoder": "cosine", "task__margin": 0.3, "task__negative_weight": 5.0,
    "task__negative_sharing": "shared", "task__negatives": 20,
}  # fmt: skip


def market(path):
    """Users and items, the edges in both directions; some have none."""
    rng = np.random.default_rng(2)
    pairs = np.unique(np.column_stack([rng.integers(0, USERS - 2, 260), rng.integers(0, ITEMS - 2, 260)]), axis=0)
    src, dst = pairs[rng.permutation(len(pairs))].T
    split = rng.choice([0, 0, 0, 1, 2], len(src)).astype(np.int8)
    edges = {
        ("user", "buys", "item"): {"src": src, "dst": dst, "split": split},
        ("item", "sold_to", "user"): {"src": dst, "dst": src},
    }
    return write_graph(path, {"user": {"id": np.arange(USERS)}, "item": {"id": np.arange(ITEMS)}}, edges, "static")


def training_edges(parts) -> torch.Tensor:
    """Of training, in both directions, between rows of users, then items [2, E]."""
    with h5py.File(parts.parent / "graph.h5") as file:
        group = file["edges/user.buys.item"]
        training = group["split"][...] == 0
        src, dst = (torch.from_numpy(group[name][...][training]).long() for name in ("src", "dst"))
    return torch.stack([torch.cat([src, dst + USERS]), torch.cat([dst + USERS, src])])


def rows_of_all(session, own: torch.Tensor) -> torch.Tensor:
    """Collective. Rows of all nodes by row in the graph file, from those of this rank."""
    out = own.new_empty((USERS + ITEMS, own.shape[1]))
    for rows, values in session.world.allgather((session.partition.flat_row, own.detach())):
        out[torch.from_numpy(rows)] = values
    return out


def embeddings_of_all(session) -> torch.Tensor:
    """Collective. Learnable embeddings by row in the graph file."""
    tables = session.memory.tables
    return rows_of_all(session, torch.cat([tables[kind].weight for kind in sorted(tables)]))


@pytest.mark.parametrize(
    "changes", [{}, {"train__full_graph": True}, {"train__full_graph": True, "sampling__fanouts": []}]
)
def test_outputs_are_those_of_pyg(comm, mpi_tmp_path, changes):
    lightgcn = pytest.importorskip("torch_geometric.nn").LightGCN
    parts = make_static_parts(comm, market, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(**KIND | changes))
    model = lightgcn(USERS + ITEMS, 8, 3).double()
    with torch.no_grad():
        model.embedding.weight.copy_(embeddings_of_all(session))
        expected = model.get_embedding(training_edges(parts))
    torch.testing.assert_close(rows_of_all(session, infer(session)), expected, rtol=1e-6, atol=1e-9)
    assert sum(parameter.numel() for parameter in session.model.parameters()) == 0


def test_sampled_with_all_neighbors_is_exact(comm, mpi_tmp_path):
    parts = make_static_parts(comm, market, mpi_tmp_path)
    changes = KIND | {"eval__ranking": ""}
    sampled, exact = (
        open_graph_session(comm, parts, link_config(**changes, eval__exact=exact)) for exact in (False, True)
    )
    found = split_metrics(sampled, "test", sampled.scores("test"))
    assert found == pytest.approx(split_metrics(exact, "test", exact.scores("test")), rel=1e-9)


def bpr_by_hand(mean, adjacency, src, dst, negative):
    """The loss of pairs and of their negatives, from the outputs of all nodes."""
    pair, other = (mean[src] * mean[dst]).sum(1), torch.einsum("sz,skz->sk", mean[src], mean[negative])
    return torch.log1p(torch.exp(other - pair.unsqueeze(1))).mean(1).mean()


def softmax_by_hand(mean, adjacency, query):
    """The cross entropy of users' items among all items."""
    target = adjacency[query][:, USERS:]
    score = mean[query] @ mean[USERS:].T
    return torch.nn.functional.cross_entropy(score, target / target.sum(1, keepdim=True))


BY_HAND = {
    "bpr": (bpr_by_hand, ("src", "dst", "negative"), {"task__negatives": 3}),
    "k_vs_all": (softmax_by_hand, ("query",), {"train__batch_size": 11}),
}


@pytest.mark.parametrize("loss", BY_HAND)
def test_the_whole_graph_is_learned_as_by_dense_algebra(comm, mpi_tmp_path, loss):
    """Step by step: the same batches and negatives, torch's Adam over all rows."""
    loss_by_hand, names, changes = BY_HAND[loss]
    parts = make_static_parts(comm, market, mpi_tmp_path)
    config = link_config(**KIND | WHOLE | {"task__loss": loss} | changes)
    trainer = open_graph_trainer(comm, parts, mpi_tmp_path, config)
    session = trainer.session
    rows = embeddings_of_all(session).requires_grad_()
    adam = torch.optim.Adam([rows], lr=0.01)
    edges = torch.zeros(USERS + ITEMS, USERS + ITEMS, dtype=torch.float64)
    edges[tuple(training_edges(parts))] = 1
    scale = edges.sum(1).clamp(min=1).rsqrt()
    adjacency = scale.unsqueeze(1) * edges * scale
    row = np.empty(USERS + ITEMS, np.int64)
    for ids, of_rank in comm.allgather((session.partition.book.local_to_global(comm.rank), session.partition.flat_row)):
        row[ids] = of_rank
    for epoch in range(2):
        trainer.start_epoch(epoch)
        batches = session.batches["train"]
        complete = session.goal.training[-1]
        columns = [complete(batches, epoch, step) for step in range(batches.num_steps)]
        with session.plans("train", epoch) as plans:
            for plan, own in zip(plans, columns, strict=True):
                loss, *_ = trainer.train_step(plan)
                whole = (np.concatenate(comm.allgather(own[name])) for name in names)
                layers = [rows]
                for _ in range(3):
                    layers.append(adjacency @ layers[-1])
                mean = torch.stack(layers).mean(0)
                expected = loss_by_hand(mean, edges, *(torch.from_numpy(row[ids]) for ids in whole))
                adam.zero_grad()
                expected.backward()
                adam.step()
                assert float(loss) == pytest.approx(expected.item(), rel=1e-9)
    torch.testing.assert_close(embeddings_of_all(session), rows.detach(), rtol=1e-8, atol=1e-10)


RUNS = {
    "whole": KIND | WHOLE,
    "whole, shared": KIND | WHOLE | CCL,
    "whole, queries": KIND | WHOLE | {"task__loss": "k_vs_all", "train__batch_size": 11},
    "whole, sage": KIND | WHOLE | {"model__kind": "sage", "model__layers": 2, "model__dropout": 0.2},
    "sampled": KIND | {"sampling__fanouts": [4, 3, 2]} | CCL,
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", RUNS)
def test_links_of_a_whole_graph_give_one_answer(comm, mpi_tmp_path, case):
    run_both(comm, make_static_parts(comm, market, mpi_tmp_path), mpi_tmp_path, link_config(**RUNS[case]))


def test_a_stopped_run_resumes_exactly(comm, mpi_tmp_path):
    parts = make_static_parts(comm, market, mpi_tmp_path)
    config = link_config(**KIND | WHOLE | CCL, train__checkpoint_every=2)
    trainer, whole, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 3)
    second = open_graph_trainer(comm, parts, broken, config)
    second.resume()
    assert 0 < second.progress.step
    second.run()
    for kind, table in trainer.session.memory.tables.items():
        torch.testing.assert_close(second.session.memory.tables[kind].weight, table.weight, rtol=0, atol=0)
    if comm.rank == 0:
        assert_same_records(broken, whole)


def test_what_does_not_fit_is_refused():
    for keys in ({"norm": "layer"}, {"dropout": 0.1}, {"residual": True}):
        named = f"lightgcn has nothing between its layers: leave out model.{next(iter(keys))}"
        with pytest.raises(ValueError, match=named):
            GraphModelConfig(kind="lightgcn", **keys)
    for changes, named in (
        ({"eval__message_edges": "train_val"}, "eval.message_edges train_val"),
        ({"task__kind": "edge", "eval__ranking": ""}, "task.kind edge"),
    ):
        with pytest.raises(ValueError, match=named):
            link_config(**KIND | WHOLE | {"task__loss": ""} | changes)


@pytest.mark.parametrize("changes", [{}, WHOLE, {"model__kind": "none", "model__layers": 0, "sampling__fanouts": []}])
def test_a_model_without_weights_is_refused(comm, mpi_tmp_path, changes):
    """On features as wide as its outputs; features of another width are projected."""

    def narrow(path):
        market(path)
        with h5py.File(path, "r+") as file:
            for group in file["nodes"].values():
                group["feat"] = np.ones((group.attrs["num_nodes"], 4), np.float32)

    parts = make_static_parts(comm, narrow, mpi_tmp_path)
    settings = {**KIND, "node_embedding__lr": 0.0, **changes, "model__hidden": 4}
    with pytest.raises(DistributedError, match=r"no weights: .* as its outputs .4.; .* .node_embedding.types"):
        open_graph_session(comm, parts, link_config(**settings))
    open_graph_session(comm, parts, link_config(**settings | {"model__hidden": 6}))
    open_graph_session(comm, parts, link_config(**settings | {"node_embedding__types": ["item"]}))
