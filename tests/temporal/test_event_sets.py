"""Loaders of chosen events: a mask, or rows in any order. What a step has, one answer on any number of ranks, metrics
by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from test_edge_types import write_typed
from training_runs import bipartite, make_parts, on_rank_0, read_plain

from hpcgnn import (
    FlatParameters,
    GradientSum,
    Mailing,
    MemoryConfig,
    NodeMemory,
    TemporalGraph,
    TemporalLoader,
    TemporalModelConfig,
    TemporalSamplingConfig,
    evaluate_links,
)
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.task.metrics import link_metrics
from hpcgnn.temporal.config import TemporalDataConfig

EVENTS, BATCH = 300, 40
RECENT = TemporalSamplingConfig(fanouts=[5], prefetch=0)


def open_graph(comm, parts, **data) -> TemporalGraph:
    return TemporalGraph(parts, World(CommConfig(device="cpu", threads=1), comm), TemporalDataConfig(**data), seed=5)


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """A partition set with features of nodes and events; many events share a time."""
    options = {"num_events": EVENTS, "ticks": 90, "edge_width": 2, "node_width": 3}
    on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "graph.h5", **options) and None)
    return make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 8, "random")


def shuffled(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(count)


def described(comm, loader: TemporalLoader, epoch: int = 0, start: int = 0) -> dict[int, dict]:
    """Collective. What the plans say of every event, by row: its step, roots, times, and the times of neighbors."""
    found: dict[int, dict] = {}
    ids = torch.from_numpy(loader._graph.partition.flat_row)
    with loader.plans(epoch, start) as plans:
        for plan in plans:
            (flat,) = plan.route.pull(ids)
            roots = flat[plan.query.root].view(-1, plan.num_events)
            dt = plan.query.levels[0].attention.dt.view(len(roots), plan.num_events, -1)
            for place, row in enumerate(plan.event_row.tolist()):
                found[row] = {
                    "step": plan.step, "roots": roots[:, place].tolist(), "dt": dt[:, place].tolist(),
                    "feature": plan.event_feature[place].tolist(), "size": plan.batch_size,
                }  # fmt: skip
    return {row: values for one in comm.allgather(found) for row, values in one.items()}


@pytest.mark.parametrize("form", ["mask", "rows", "list"])
def test_all_events_of_a_split_are_the_split(comm, parts, form):
    """Training with memory, and evaluation, plan for plan."""
    graph = open_graph(comm, parts)
    bounds = graph.splits.bounds
    for split, begin, end in (("train", 0, bounds[1]), ("val", bounds[1], bounds[2])):
        rows = np.arange(begin, end)
        given = {"mask": np.isin(np.arange(EVENTS), rows), "rows": torch.from_numpy(rows), "list": rows.tolist()}[form]
        options = {"sampling": RECENT, "negatives": 3, "mailing": Mailing()}
        chosen = TemporalLoader(graph, given, BATCH, evaluation=split == "val", **options)
        named = TemporalLoader(graph, split, BATCH, **options)
        for epoch in (0, 1):
            found = described(comm, chosen, epoch)
            assert found == described(comm, named, epoch)
            assert sorted(found) == rows.tolist()
    graph.close()


@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_follow_the_order_of_rows(comm, parts, drop_last):
    """A step has the next rows. Of an event, neighbors before its time and negatives are as in order of time."""
    graph = open_graph(comm, parts)
    rows = shuffled(200)
    loader = TemporalLoader(graph, rows, BATCH + 5, sampling=RECENT, negatives=2, drop_last=drop_last)
    ordered = described(comm, TemporalLoader(graph, np.arange(200), BATCH, sampling=RECENT, negatives=2))
    assert len(loader) == (4 if drop_last else 5)
    for again in range(2):
        found = described(comm, loader)
        kept = rows[: 180 if drop_last else 200]
        assert sorted(found) == sorted(kept.tolist())
        for place, row in enumerate(rows[: len(kept)].tolist()):
            one, other = found[row], ordered[row]
            assert one["step"] == place // (BATCH + 5)
            assert all(one[name] == other[name] for name in ("roots", "dt", "feature"))
        rows = shuffled(200, seed=1 + again)
        loader.set_events(rows)
    assert described(comm, loader, start=3) == {
        row: values for row, values in described(comm, loader).items() if values["step"] >= 3
    }
    graph.close()


def test_negatives_of_shuffled_events_have_the_type_of_the_destination(comm, mpi_tmp_path):
    """In a graph of several relations, for an event as in order of time."""
    on_rank_0(comm, lambda: write_typed(mpi_tmp_path / "graph.h5") and None)
    graph = open_graph(comm, make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 8))
    count = int(graph.splits.bounds[1])
    found, ordered = (
        described(comm, TemporalLoader(graph, rows, BATCH, sampling=RECENT, negatives=3))
        for rows in (shuffled(count), np.arange(count))
    )
    assert {row: values["roots"] for row, values in found.items()} == {
        row: values["roots"] for row, values in ordered.items()
    }
    graph.close()


def make_scorer(graph: TemporalGraph, memory: MemoryConfig):
    """A model, and what makes logits of a plan and moves node memory, if there is any."""
    config = TemporalModelConfig(time_dim=6, hidden=8, dropout=0.0)
    model = graph.make_model(config, memory, 5, torch.float64, seed=1)
    state = NodeMemory(
        graph.partition.num_nodes, model.state_width, model.mail_width, torch.float64, graph.world.device
    )  # fmt: skip

    def score(plan):
        pulled = plan.route.pull(*state.table.tensors())
        rows = model.update(*pulled) if memory.has_memory else pulled[0][:, :0]
        embedding = model.embed(model.base(rows, plan.node_feature), plan.query)
        if plan.write is not None:
            write, rows = plan.write, rows.detach()
            mail = torch.cat([rows[write.node], rows[write.other], plan.event_feature[write.event]], dim=1)
            mail = write.route.push(mail)
            width = rows.shape[1]
            state.replace(write.rows, mail[:, :width], mail[:, width:], write.time)
        return model.decode(embedding.view(2 + plan.num_negatives, plan.num_events, -1))

    return model, state, score


NONE, GRU = MemoryConfig(updater="none"), MemoryConfig(dim=6)


def train(comm, parts) -> tuple[list[float], dict[str, float]]:
    """Collective. Losses of two epochs over shuffled events, without memory, and metrics of a mask of others."""
    graph = open_graph(comm, parts)
    model, _, score = make_scorer(graph, NONE)
    options = {"sampling": RECENT, "negatives": 2, "dtype": torch.float64}
    loader, losses = TemporalLoader(graph, shuffled(180), BATCH, **options), []
    flat, reduce = FlatParameters(model, num_extras=1), GradientSum(graph.world)
    optimizer = torch.optim.SGD([flat.parameter], lr=0.1)
    for epoch in range(2):
        loader.set_events(shuffled(180, seed=epoch))
        with loader.plans(epoch) as plans:
            for plan in plans:
                logits = score(plan)
                loss = torch.nn.functional.softplus(torch.cat([-logits[:1], logits[1:]])).sum() / plan.batch_size
                flat.zero()
                loss.backward()
                flat.extras[0] = loss.detach()
                flat.sum(reduce)
                losses.append(float(flat.extras[0]))
                optimizer.step()
    later = np.arange(EVENTS) >= 190
    metrics = evaluate_links(TemporalLoader(graph, later, BATCH, evaluation=True, **options), score)
    graph.close()
    return losses, metrics


def test_ranks_do_not_change_the_answer(comm, parts):
    losses, metrics = train(comm, parts)
    if comm.rank == 0:
        alone, of_one = train(MPI.COMM_SELF, parts)
        np.testing.assert_allclose(losses, alone, rtol=1e-9)
        assert metrics == pytest.approx(of_one, rel=1e-9)
        assert len(losses) == 2 * 5
        assert {"ap", "auc", "inductive_ap"} <= metrics.keys()


@pytest.mark.parametrize("ranking", [False, True])
def test_metrics_are_those_of_all_scores(comm, parts, ranking):
    """Of a sorted set, with memory: by the scores of all steps, joined by hand."""
    graph = open_graph(comm, parts)
    score = make_scorer(graph, GRU)[2]
    rows = np.sort(shuffled(EVENTS)[:170])
    loader = TemporalLoader(
        graph, rows, BATCH, sampling=RECENT, negatives=4, mailing=Mailing(), dtype=torch.float64, evaluation=True
    )  # fmt: skip
    joined = []

    def kept(plan):
        logits = score(plan)
        assert not logits.requires_grad
        joined.append(logits.T.numpy())
        return logits

    metrics = evaluate_links(loader, kept, ranking)
    every = np.concatenate(comm.allgather(np.concatenate(joined)))
    assert len(every) == len(rows)
    if ranking:
        above, ties = ((every[:, 1:] > every[:, :1]).sum(1), (every[:, 1:] == every[:, :1]).sum(1))
        assert metrics["mrr"] == pytest.approx(np.mean(1 / (1 + above + ties / 2)), rel=1e-9)
    else:
        alone = World(CommConfig(device="cpu", threads=1), MPI.COMM_SELF)
        expected = link_metrics(every[:, 0], every[:, 1:], alone)
        assert metrics["ap"] == pytest.approx(expected["ap"], rel=1e-9)
        assert metrics["auc"] == pytest.approx(expected["auc"], rel=1e-9)
    graph.close()


def test_memory_moves_through_the_chosen_events_alone(comm, parts, mpi_tmp_path):
    """The last mail of a node is of its last chosen event; other nodes have none."""
    graph = open_graph(comm, parts)
    _, memory, score = make_scorer(graph, GRU)
    rows = np.sort(shuffled(EVENTS)[:60])
    loader = TemporalLoader(graph, rows, 25, sampling=RECENT, mailing=Mailing(), dtype=torch.float64)
    evaluate_links(loader, score)
    plain = read_plain(mpi_tmp_path / "graph.h5")
    expected = np.zeros(plain.num_nodes, np.int64)
    for row in rows:
        expected[[plain.src[row], plain.dst[row]]] = plain.time[row]
    assert np.array_equal(memory.table.mailed[:, 0].numpy(), expected[graph.partition.flat_row])
    assert (expected == 0).any()
    graph.close()


def test_windows_of_time_and_hidden_nodes(comm, parts, mpi_tmp_path):
    """A sorted set is cut by time, too; chosen events are kept where nodes are hidden."""
    graph = open_graph(comm, parts, new_node_ratio=0.1)
    assert graph.world.total(int(graph.splits.hidden.sum()))
    sampling = replace(RECENT, batch_by="span", batch_span=10)
    rows = np.sort(shuffled(EVENTS)[:150])
    found = described(comm, TemporalLoader(graph, rows, EVENTS, sampling=sampling))
    assert sorted(found) == rows.tolist()
    windows = read_plain(mpi_tmp_path / "graph.h5").time[rows] // 10
    assert [found[row]["step"] for row in rows.tolist()] == np.unique(windows, return_inverse=True)[1].tolist()
    graph.close()


def test_refusals(comm, parts):
    graph = open_graph(comm, parts)
    backwards = np.arange(EVENTS)[::-1]
    cases = (
        (backwards, {"mailing": Mailing()}, "node memory cannot move through events that are not in order of time"),
        (backwards, {"sampling": replace(RECENT, batch_by="time")}, "batch_by time: events that are not in order"),
        (backwards, {"sampling": replace(RECENT, in_batch_neighbors=False)}, "in_batch_neighbors false: batches of"),
        ([0, 1, 1], {}, "event 1 is named twice"), ([0, EVENTS], {}, f"event {EVENTS} is no row of this graph"),
        ([-1, 2], {}, "event -1 is no row"), (np.ones(9, bool), {}, f"each of all {EVENTS} events, by row, got 9"),
        ([0.5, 1.0], {}, "booleans or integers in one dimension, got float64"),
        ("val", {"evaluation": True}, "evaluation is for chosen events"),
    )  # fmt: skip
    for events, options, message in cases:
        with pytest.raises(ValueError, match=message):
            TemporalLoader(graph, events, BATCH, **options)
    loader = TemporalLoader(graph, [3, 1], BATCH, sampling=RECENT)
    with pytest.raises(ValueError, match="make another loader for a split"):
        loader.set_events("val")
    with pytest.raises(ValueError, match=r"score returns logits \(2, \d\), got \(1, \d\)"):
        evaluate_links(loader, lambda plan: torch.zeros(1, plan.num_events))
    with pytest.raises(ValueError, match="no events to score"):
        evaluate_links(TemporalLoader(graph, np.zeros(EVENTS, bool), BATCH, evaluation=True), lambda plan: None)
    if comm.size > 1:
        with pytest.raises(DistributedError, match="all ranks must have the same chosen events"):
            TemporalLoader(graph, np.arange(10 + comm.rank), BATCH)
    graph.close()
