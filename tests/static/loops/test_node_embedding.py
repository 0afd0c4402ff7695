"""Learnable node embeddings of a training loop: torch's embedding and sparse optimizers, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from places import REPOSITORY
from static_runs import bare, make_static_parts, plain

from hpcgnn import NeighborLoader, NodeEmbedding, StaticGraph
from hpcgnn.comm.world import CommConfig, DistributedError, World

PAPERS, WIDTH, STEPS = 120, 5, 12


@pytest.fixture
def parts(comm, mpi_tmp_path):
    return make_static_parts(comm, bare, mpi_tmp_path)


def open_graph(comm, parts) -> StaticGraph:
    """Collective."""
    return StaticGraph(parts, World(CommConfig(device="cpu", threads=1), comm), dtype=torch.float64)


def whole(comm, embedding: NodeEmbedding) -> torch.Tensor:
    """Collective. The rows of all papers, by row."""
    table = torch.full((PAPERS, WIDTH), torch.nan, dtype=torch.float64)
    for state in comm.allgather(embedding.state_dict()):
        table[state["row"]] = state["weight"]
    return table


def wanted(step: int, everything: bool = False) -> list[torch.Tensor]:
    """Two lists of papers that a step looks up, some twice and in both."""
    if everything:
        return [torch.arange(PAPERS), torch.arange(PAPERS)]
    rng = np.random.default_rng(step)
    return [torch.from_numpy(rng.integers(0, PAPERS, count)) for count in (30, 11)]


def loss_of(rows: list[torch.Tensor], nodes: list[torch.Tensor]) -> torch.Tensor:
    """A sum over the looked up rows, whose gradients are no small numbers, beside which an eps would count."""
    return sum((of.exp() * (2 + torch.cos(n))[:, None]).sum() for of, n in zip(rows, nodes, strict=True))


def train(comm, embedding: NodeEmbedding, steps, everything: bool = False) -> None:
    """Collective. Each rank looks up its share, of some steps nothing; lookups without gradients change nothing."""
    for step in steps:
        nodes = [of[comm.rank :: comm.size] if step % 4 else of[:: comm.rank or 1][: len(of) * (comm.rank == 0)]
                 for of in wanted(step, everything)]  # fmt: skip
        with torch.no_grad():
            embedding(torch.arange(7))
        embedding(torch.arange(3))  # no part of the loss
        loss = loss_of([embedding(of) for of in nodes], nodes)
        if loss.requires_grad:
            loss.backward()
        embedding.step()


def learned_by_torch(start: torch.Tensor, optimizer: str, everything: bool, decay: float) -> torch.Tensor:
    """With torch.nn.Embedding; "adam" of single steps by an Adam for each row."""
    table = torch.nn.Embedding.from_pretrained(start.clone(), freeze=False, sparse=not decay)
    apart = [torch.nn.Parameter(row.clone()) for row in start]
    if optimizer == "adagrad":
        learner = torch.optim.Adagrad(table.parameters(), lr=0.05)
    elif everything:
        learner = torch.optim.SparseAdam(table.parameters(), lr=0.05)
    else:
        learners = [torch.optim.Adam([row], lr=0.05, weight_decay=decay) for row in apart]
    for step in range(STEPS):
        nodes = wanted(step, everything)
        if optimizer == "adagrad" or everything:
            learner.zero_grad()
            loss_of([table(of) for of in nodes], nodes).backward()
            learner.step()
            continue
        rows = [torch.stack([apart[node] for node in of]) for of in nodes]
        loss_of(rows, nodes).backward()
        for node in torch.cat(nodes).unique().tolist():
            learners[node].step()
            learners[node].zero_grad()
    return table.weight.detach() if optimizer == "adagrad" or everything else torch.stack(apart).detach()


@pytest.mark.parametrize(
    ("optimizer", "everything", "decay"),
    [("adagrad", False, 0.0), ("adam", True, 0.0), ("adam", False, 0.0), ("adam", False, 0.1)],
)
def test_rows_are_learned_as_by_torch(comm, parts, optimizer, everything, decay):
    embedding = NodeEmbedding(
        open_graph(comm, parts), "paper", WIDTH, lr=0.05, optimizer=optimizer, weight_decay=decay, seed=3
    )
    start = whole(comm, embedding)
    assert start.abs().max() <= np.sqrt(3 / WIDTH)
    train(comm, embedding, range(STEPS), everything)
    expected = learned_by_torch(start, optimizer, everything, decay)
    tolerance = 1e-6 if optimizer == "adam" and everything else 1e-10  # SparseAdam has its eps elsewhere
    torch.testing.assert_close(whole(comm, embedding), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_a_saved_state_continues_on_other_ranks(comm, parts, mpi_tmp_path, optimizer):
    """Files of all ranks, read by a rank alone, and its file by all ranks."""
    graph, options = open_graph(comm, parts), {"lr": 0.05, "optimizer": optimizer}
    embedding = NodeEmbedding(graph, "paper", WIDTH, **options)
    train(comm, embedding, range(5))
    torch.save(embedding.state_dict(), mpi_tmp_path / f"rows-{comm.rank}.pt")
    train(comm, embedding, range(5, 9))
    expected = whole(comm, embedding)
    comm.Barrier()
    alone = NodeEmbedding(open_graph(MPI.COMM_SELF, parts), "paper", WIDTH, seed=1, **options)
    alone.load_state_dict(torch.load(mpi_tmp_path / f"rows-{rank}.pt") for rank in range(comm.size))
    again = NodeEmbedding(graph, "paper", WIDTH, seed=2, **options)
    again.load_state_dict([alone.state_dict()])
    train(MPI.COMM_SELF, alone, range(5, 9))
    train(comm, again, range(5, 9))
    torch.testing.assert_close(whole(MPI.COMM_SELF, alone), expected, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(whole(comm, again), expected, rtol=0, atol=0)


def test_a_loop_over_batches_gives_one_answer(comm, parts):
    """Rows of seeds and of their sampled neighbors, of two types."""

    def learn(who) -> list[torch.Tensor]:
        graph = open_graph(who, parts)
        embeddings = [NodeEmbedding(graph, name, WIDTH, lr=0.1) for name in graph.types]
        for batch in NeighborLoader(graph, "train", [3], 16, seed=2):
            x = [embedding(n_id) for embedding, n_id in zip(embeddings, batch.n_id, strict=True)]
            rows = x[0][: len(batch.seeds)]
            for edges in batch.batch.blocks[0].relations:
                if edges.dst_type == 0:
                    place = torch.repeat_interleave(torch.arange(len(edges.indptr) - 1), edges.indptr.diff())
                    rows = rows.index_add(0, place, x[edges.src_type][edges.source])
            (rows.sigmoid().sum(1) - batch.y).square().sum().div(batch.batch_size).backward()
            for embedding in embeddings:
                embedding.step()
        tables = [of.state_dict() for of in embeddings]
        states = who.allgather(tables)
        return [
            torch.cat([state[kind]["weight"] for state in states])[
                torch.argsort(torch.cat([state[kind]["row"] for state in states]))
            ]
            for kind in range(2)
        ]

    for found, expected in zip(learn(comm), learn(MPI.COMM_SELF), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_what_is_refused(comm, parts):
    graph = open_graph(comm, parts)
    for name, width, options, message in [
        ("venue", 3, {}, "no node type 'venue'"),
        ("paper", 0, {}, "width must be at least 1 and lr above 0, got 0 and 0.01"),
        ("paper", 3, {"lr": -1}, r"lr must be at least 0, got -1"),
        ("paper", 3, {"optimizer": "sgd"}, "must be one of adam, adagrad, got 'sgd'"),
    ]:
        with pytest.raises(DistributedError, match=message):
            NodeEmbedding(graph, name, width, **options)
    embedding = NodeEmbedding(graph, "paper", 3)
    with pytest.raises(ValueError, match="paper has 120 nodes, none of row 4 or 120"):
        embedding(torch.tensor([120, 4]))
    state = embedding.state_dict()
    with pytest.raises(DistributedError, match="the embedding of paper has"):
        embedding.load_state_dict([state | {"weight": state["weight"][:, :2]}])
    with pytest.raises(DistributedError, match=r"the states lack paper \d+: give the states of all ranks"):
        embedding.load_state_dict([{name: column[1:] for name, column in state.items()}])


def test_the_example_gives_one_answer(comm, mpi_tmp_path, monkeypatch):
    """Embeddings, layers of PyTorch Geometric and exact outputs together, with all neighbors."""
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    import pyg_exact

    parts = make_static_parts(comm, plain, mpi_tmp_path)
    options = {"epochs": 3, "batch_size": 16, "fanouts": (-1, -1), "dtype": torch.float64}
    found, alone = (
        pyg_exact.train(parts, world=World(CommConfig(device="cpu", threads=1), who), **options)
        for who in (comm, MPI.COMM_SELF)
    )
    assert found == alone
    assert found["accuracy"] > 0.3
