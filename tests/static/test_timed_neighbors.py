"""Neighbors that are no newer than the seed they are drawn for, against plain loops over the graph file."""

from __future__ import annotations

from functools import partial

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from random_graphs import write_graph
from run_commands import asked, asked_for
from static_runs import (
    make_static_parts,
    open_graph_session,
    open_graph_trainer,
    static_config,
    whole_and_stopped,
)
from test_graph_training import assert_same_records, run_both
from torch import nn

from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.loop.session import split_metrics
from hpcgnn.loop.source_times import date_texts
from hpcgnn.native import Random, Stream
from hpcgnn.static import predict
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.link_loader import LinkNeighborLoader
from hpcgnn.static.loader import NeighborLoader
from hpcgnn.static.model.blocks import rows_of
from hpcgnn.static.predict import predict_nodes, read_pairs, score_pairs
from hpcgnn.static.sampled import sampled_outputs
from hpcgnn.static.sampling.times import TIME, TimedNeighbors, with_times

PAPERS, AUTHORS = 50, 30
CITES, WRITES, WRITTEN = "paper.cites.paper", "author.writes.paper", "paper.written_by.author"


def library(path, seed: int = 3, floating: bool = False):
    """Papers with times and authors without; citations have times too, the other relations do not. Many times are
    equal, many pairs repeat."""
    rng = np.random.default_rng(seed)
    times = lambda count: rng.integers(0, 20, count) / (4 if floating else 1) - (2 if floating else 0)  # noqa: E731
    nodes = {
        "paper": {
            "feat": rng.standard_normal((PAPERS, 4)).astype(np.float32), "label": rng.integers(0, 3, PAPERS),
            "split": rng.choice([-1, 0, 0, 1, 2], PAPERS).astype(np.int8), "time": times(PAPERS).astype(
                np.float32 if floating else np.int64),
        },
        "author": {"id": 100 + np.arange(AUTHORS)},
    }  # fmt: skip

    def edges(sources: int, destinations: int, count: int) -> dict:
        ends = {"src": rng.integers(0, sources, count), "dst": rng.integers(0, destinations, count) // 2}
        return ends | {"weight": rng.random(count).astype(np.float32) + 0.1}

    cites = edges(PAPERS, PAPERS, 260) | {"time": times(260) if floating else times(260).astype(np.int32)}
    cites["split"] = rng.choice([0, 0, 0, 1, 2], 260).astype(np.int8)
    relations = {
        ("paper", "cites", "paper"): cites, ("author", "writes", "paper"): edges(AUTHORS, PAPERS, 140),
        ("paper", "written_by", "author"): edges(PAPERS, AUTHORS, 140),
    }  # fmt: skip
    return write_graph(path, nodes, relations, "static")


def read(path) -> dict[str, dict[str, np.ndarray]]:
    """Relations by name: src, dst, weight, split where there is one, and the time from which an edge is visible."""
    found = {}
    with h5py.File(path) as file:
        of_node = file["nodes/paper/time"][()].astype(np.float64)
        for name in files.relations(file):
            columns = {key: file[f"edges/{name}/{key}"][()] for key in file[f"edges/{name}"]}
            visible = of_node[columns["src"]] if name.startswith("paper") else np.full(len(columns["src"]), -np.inf)
            found[name] = columns | {"visible": np.maximum(visible, columns.get("time", visible))}
            found[name]["own"] = columns.get("time")
    return found


def open_library(comm, folder, **options):
    parts = make_static_parts(comm, partial(library, **options), folder)
    return StaticGraph(parts, World(CommConfig(device="cpu", threads=1), comm))


# --------------------------------------------------------------------------------------------------- no later edges


@pytest.mark.parametrize("strategy", ["uniform", "replace", "recent", "weighted", "labor"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_every_edge_of_every_hop_is_as_old_as_its_seed(comm, mpi_tmp_path, strategy, disjoint):
    """Blocks are walked from the seeds on; a node takes the time of the seed that it is drawn for."""
    graph, relations = open_library(comm, mpi_tmp_path, floating=disjoint), read(mpi_tmp_path / "graph.h5")
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        of_seed = file["nodes/paper/time"][()]
    loader = NeighborLoader(
        graph, "train", [3, 2, 2], 8, strategy=strategy, time_column="time", disjoint=disjoint, with_edge_ids=True
    )
    assert disjoint == (next(iter(loader)).seed_number != ())
    for batch in loader:
        times = [np.full(len(rows), np.nan) for rows in batch.n_id]
        times[0][: len(batch.seeds)] = of_seed[batch.seeds]
        for block in reversed(batch.batch.blocks):
            for edges in block.relations:
                of, count = relations[graph.relations[edges.relation]], np.diff(edges.indptr)
                rows, source = edges.edge.numpy(), edges.source.numpy()
                destination = np.repeat(np.arange(len(count)), count)
                limit = times[edges.dst_type][destination]
                assert (of["visible"][rows] <= limit).all()
                assert (of["src"][rows] == batch.n_id[edges.src_type].numpy()[source]).all()
                assert (of["dst"][rows] == batch.n_id[edges.dst_type].numpy()[destination]).all()
                former = times[edges.src_type][source]
                assert (np.isnan(former) | (former == limit)).all()
                times[edges.src_type][source] = limit
                check_counts(strategy, block, edges, of, batch, times)
        assert not any(np.isnan(of_type).any() for of_type in times)
    graph.close()


def check_counts(strategy, block, edges, of, batch, times) -> None:
    """As many neighbors as are asked for, or all that are old enough; of the newest ones none is left out."""
    rows = batch.n_id[edges.dst_type].numpy()[: block.num_dst[edges.dst_type]]
    fanout = 3 if block is batch.batch.blocks[-1] else 2
    for place, (row, first, last) in enumerate(zip(rows, edges.indptr[:-1], edges.indptr[1:], strict=True)):
        allowed = np.flatnonzero((of["dst"] == row) & (of["visible"] <= times[edges.dst_type][place]))
        most = fanout if strategy == "replace" and len(allowed) else min(fanout, len(allowed))
        assert last - first == most
        if strategy == "recent" and np.isfinite(of["visible"]).any():
            newest = allowed[np.argsort(of["visible"][allowed], kind="stable")][len(allowed) - int(most) :]
            assert sorted(edges.edge[first:last].tolist()) == sorted(newest.tolist())


# ------------------------------------------------------------------------------------- outputs of all allowed neighbors


class Sums(nn.Module):
    """Twice the own row and the mean of neighbors, which counts a neighbor of many neighbors less."""

    def __init__(self, config, sizes):
        super().__init__()
        self.product = nn.ModuleList(nn.Linear(width or config.hidden, sizes.outputs) for width in sizes.inputs)

    def forward(self, batch, inputs):
        rows = [product(rows_of(of_type)) for product, of_type in zip(self.product, inputs, strict=True)]
        share = [1 / (1 + degree.to(rows[0].dtype)) for degree in batch.degree]
        for block in batch.blocks:
            own = [of_type[:count] for of_type, count in zip(rows, block.num_dst, strict=True)]
            for edges in block.relations:
                degree = edges.indptr.diff()
                destination = torch.repeat_interleave(torch.arange(len(degree)), degree)
                factor = share[edges.src_type][edges.source] / degree[destination]
                messages = rows[edges.src_type][edges.source] * factor[:, None]
                own[edges.dst_type] = own[edges.dst_type].index_add(0, destination, messages)
            rows = own
        return rows


CONFIG = {
    "model__class_path": f"{__name__}.Sums", "sampling__fanouts": [-1, -1], "sampling__time_column": "time",
    "eval__batch_size": 7,
}  # fmt: skip


def first_rows(session, path) -> np.ndarray:
    """Collective. Rows of all papers and authors before the first hop, from features and learned embeddings."""
    partition, learned = session.partition, session.memory.tables[1].weight.detach().numpy()
    authors = np.zeros((AUTHORS, learned.shape[1]))
    for rows, weight in session.world.allgather((partition.flat_row[partition.of_type(1)] - PAPERS, learned)):
        authors[rows] = weight
    with h5py.File(path) as file:
        tables = file["nodes/paper/feat"][()].astype(np.float64), authors
    products = zip(tables, session.model.product, strict=True)
    return np.concatenate([table @ of.weight.detach().numpy().T + of.bias.detach().numpy() for table, of in products])


def outputs_at(rows: np.ndarray, path, time: float, only_train: bool = False, weighs: bool = False) -> np.ndarray:
    """Outputs of all papers at a time, by dense matrices of the edges that are visible then."""
    matrices, degree = [], np.zeros(PAPERS + AUTHORS)
    for name, of in read(path).items():
        kept = of["visible"] <= time
        if only_train and "split" in of:
            kept &= of["split"] == 0
        src, dst = (of["src"] + PAPERS * name.startswith("author"), of["dst"] + PAPERS * name.endswith("author"))
        matrix = np.zeros((len(rows), len(rows)))
        np.add.at(matrix, (dst[kept], src[kept]), 1)
        np.add.at(degree, dst[kept], of["weight"][kept] if weighs else 1)
        matrices.append(matrix / np.maximum(1, matrix.sum(1, keepdims=True)))
    mean = sum(matrices) / (1 + degree)
    for _ in range(2):
        rows = rows + mean @ rows
    return rows[:PAPERS]


@pytest.mark.parametrize("case", [{}, {"floating": True}, {"weighs": True}])
def test_labels_are_scored_by_all_neighbors_at_the_time_of_the_node(comm, mpi_tmp_path, case):
    """And what predict says of every paper is that, after a step that changed the embeddings of authors."""
    weighs, floating = case.get("weighs", False), case.get("floating", False)
    parts = make_static_parts(comm, partial(library, floating=floating), mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(**CONFIG, model__edge_weights=weighs))
    path = mpi_tmp_path / "graph.h5"
    with session.plans("train", 0) as plans:
        session.task.train(next(iter(plans)))
    with h5py.File(path) as file:
        times = file["nodes/paper/time"][()]
    rows = first_rows(session, path)
    wanted = np.stack([outputs_at(rows, path, time, weighs=weighs)[row] for row, time in enumerate(times)])
    with session.plans("val", 0) as plans:
        for plan in plans:
            rows = plan.batch.identity[0][plan.roots[0]].numpy()
            np.testing.assert_allclose(session.task.score(plan).output, wanted[rows], rtol=1e-9, atol=1e-12)
    answers = predict_nodes(session)
    np.testing.assert_allclose(answers.columns["output"], wanted[answers.row], rtol=1e-9, atol=1e-12)
    session.close()


def test_links_are_scored_by_all_neighbors_at_the_time_of_the_edge(comm, mpi_tmp_path):
    """Both ends and all negatives; predict gives the same score to the same pair and time."""
    parts, path = make_static_parts(comm, library, mpi_tmp_path), mpi_tmp_path / "graph.h5"
    config = static_config(**CONFIG, task__kind="link", task__reverse="none", eval__negatives=2)
    session, scored = open_graph_session(comm, parts, config), {}
    first = first_rows(session, path)
    with session.plans("test", 0) as plans:
        for plan in plans:
            scores, ends = session.task.score(plan), [plan.batch.identity[0][roots].numpy() for roots in plan.roots]
            for place, time in enumerate(plan.columns[TIME].tolist()):
                rows = torch.from_numpy(outputs_at(first, path, time, True))
                src, dst, negatives = (rows[rows_of_end[place]] for rows_of_end in ends)
                wanted = session.model.decoder(src[None].expand(3, -1), torch.cat([dst[None], negatives]), None)
                found = torch.cat([scores.positive[place : place + 1], scores.negative[:, place]])
                torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
                scored[ends[0][place], ends[1][place], time] = float(wanted[0])
    scored = {key: score for of_rank in comm.allgather(scored) for key, score in of_rank.items()}
    names = ("src", "dst", "time")
    columns = {name: list(values) for name, values in zip(names, zip(*scored, strict=True), strict=True)}
    answers = score_pairs(session, asked(partial(read_pairs, session), **columns))
    found = answers.columns["score"]
    np.testing.assert_allclose(found, np.array(list(scored.values()))[answers.row], rtol=1e-9, atol=1e-12)
    always = score_pairs(session, asked(partial(read_pairs, session), src=columns["src"], dst=columns["dst"]))
    rows = torch.from_numpy(outputs_at(first, path, np.inf, True))
    ends = (rows[np.array(columns[name])[always.row]] for name in names[:2])
    np.testing.assert_allclose(always.columns["score"], session.model.decoder(*ends, None).detach(), rtol=1e-9)
    session.close()


# --------------------------------------------------------------------------------------------------------- draws


@pytest.mark.serial
def test_draws_are_uniform_over_the_edges_that_are_old_enough(tmp_path):
    """Chi-square of 3 of 8 allowed neighbors, 7 degrees of freedom; and with another context another draw."""

    def write(path):
        edges = {"src": np.arange(12), "dst": np.zeros(12, np.int64), "time": np.arange(12)[::-1].copy()}
        return write_graph(path, {"node": {"id": np.arange(13)}}, {("node", "meets", "node"): edges}, "static")

    graph = StaticGraph(make_static_parts(MPI.COMM_SELF, write, tmp_path), World(CommConfig(device="cpu", threads=1)))
    timed = with_times(graph.partition, "time", graph.world, graph.channel)
    neighbors, (place,) = TimedNeighbors(timed, "uniform", graph.channel), np.flatnonzero(timed.flat_row == 0)
    contexts = np.column_stack([np.full(4000, 7), np.arange(4000)])
    drawn = neighbors.ask([np.full(4000, place)], [3], Random(5, Stream.NEIGHBOR), [contexts])
    source = timed.flat_row[drawn.source]
    assert source.min() == 4  # sources 4 to 11 have the times 7 to 0
    assert len(source) == 12000
    counts, expected = np.bincount(source)[4:], 12000 / 8
    assert ((counts - expected) ** 2 / expected).sum() * 7 / (8 - 3) < 24.3  # 0.1 %
    assert len({tuple(row) for row in source.reshape(-1, 3).tolist()}) == 8 * 7 * 6 // 6
    graph.close()


@pytest.mark.parametrize("disjoint", [False, True])
def test_a_sample_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path, disjoint):
    graph = open_library(comm, mpi_tmp_path)
    alone = StaticGraph(mpi_tmp_path / "parts", World(CommConfig(device="cpu", threads=1), MPI.COMM_SELF))
    found = []
    for each, ranks in ((graph, comm), (alone, MPI.COMM_SELF)):
        loader = NeighborLoader(
            each, "train", [2, 2], 8, time_column="time" if not disjoint else "", disjoint=disjoint, as_data="hetero",
            with_edge_ids=True, strategy="uniform",
        )  # fmt: skip
        edges = set()
        for step, batch in enumerate(loader):
            rows = batch["paper"].input_id.tolist()
            for relation, store in zip(batch.edge_types, batch.edge_stores, strict=True):
                target = store.edge_index[1]
                context = batch[relation[2]].batch[target].tolist() if disjoint else target * 0
                seeds = [rows[int(number)] if disjoint else 0 for number in context]
                edges |= {(step, relation, *edge) for edge in zip(seeds, store.e_id.tolist(), strict=True)}
        found.append(set().union(*ranks.allgather(edges)))
        each.close()
    assert found[0] == found[1]
    assert len(found[0]) > 100


@pytest.mark.parametrize("strategy", ["uniform", "recent"])
def test_edges_of_a_step_and_their_copies_stay_left_out(comm, mpi_tmp_path, strategy):
    """Of all other edges that are old enough none is."""
    graph, of = open_library(comm, mpi_tmp_path), read(mpi_tmp_path / "graph.h5")[CITES]
    loader = LinkNeighborLoader(
        graph, (CITES, np.ones(260, bool)), [-1], 40, strategy=strategy, time_column="time", with_edge_ids=True,
        reverse="none",
    )  # fmt: skip
    pairs, time, n_left = of["src"] * PAPERS + of["dst"], of["own"], 0
    for batch in loader:
        seeds = np.concatenate(comm.allgather(batch.row.numpy()))
        is_left_out = np.isin(pairs, pairs[seeds])
        (block,) = batch.batch.blocks
        edges = next(each for each in block.relations if each.relation == 0)
        ends = [(place, seed) for roots in (batch.src, batch.dst) for place, seed in zip(roots, batch.row, strict=True)]
        for place, seed in ends:
            found = edges.edge[edges.indptr[place] : edges.indptr[place + 1]].tolist()
            allowed = (of["dst"] == int(batch.n_id[0][place])) & (of["visible"] <= time[seed])
            assert sorted(found) == np.flatnonzero(allowed & ~is_left_out).tolist()
            n_left += int((allowed & is_left_out).sum())
    assert comm.allreduce(n_left) > 100
    graph.close()


@pytest.mark.serial
def test_gradients_of_a_node_that_is_there_several_times_are_added_up(tmp_path):
    graph = open_library(MPI.COMM_SELF, tmp_path)
    fetch = graph.rows[0].plan_repeated(np.array([7, 3, 7, 7, 9]), graph.channel)
    rows = torch.arange(10.0).view(5, 2)
    assert fetch.summed(rows).tolist() == [[0 + 4 + 6, 1 + 5 + 7], [2, 3], [8, 9]]
    assert torch.equal(
        graph.rows[0].fetch(fetch, "identity"), torch.from_numpy(graph.partition.flat_row[[7, 3, 7, 7, 9]])
    )
    graph.close()


# --------------------------------------------------------------------------------------------------- disjoint batches


def reachable(relations, row: int, time: float) -> set[tuple[str, int]]:
    """Nodes within two hops of a paper by the edges that are visible at a time."""
    nodes = {("paper", row)}
    for _ in range(2):
        found = set(nodes)
        for name, of in relations.items():
            source, _, destination = name.split(".")
            kept = (of["visible"] <= time) & np.isin(of["dst"], [n for kind, n in nodes if kind == destination])
            found |= {(source, int(n)) for n in of["src"][kept]}
        nodes = found
    return nodes


@pytest.mark.parametrize("given", [False, True])
def test_a_batch_of_nodes_names_the_seed_of_each_node(comm, mpi_tmp_path, given):
    """As PyTorch Geometric's Data.batch; with times of the column or given ones."""
    graph, relations = open_library(comm, mpi_tmp_path), read(mpi_tmp_path / "graph.h5")
    rows = graph.nodes("paper")[::-1].copy()
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        times = file["nodes/paper/time"][()]
    if given:
        times = np.random.default_rng(1).uniform(0, 20, PAPERS)
    options = {"input_time": times[rows]} if given else {}
    loader = NeighborLoader(
        graph, ("paper", rows), [-1, -1], 8, time_column="time", disjoint=True, as_data="pyg", **options
    )
    for batch in loader:
        seeds = batch["paper"].n_id[: batch["paper"].batch_size].tolist()
        assert batch["paper"].batch[: len(seeds)].tolist() == list(range(len(seeds)))
        found = [set() for _ in seeds]
        for kind in ("paper", "author"):
            pairs = list(zip(batch[kind].batch.tolist(), batch[kind].n_id.tolist(), strict=True))
            assert len(set(pairs)) == len(pairs)
            for number, row in pairs:
                found[number].add((kind, row))
        assert found == [reachable(relations, row, times[row]) for row in seeds]
    graph.close()


@pytest.mark.parametrize("kind", ["", "binary", "triplet"])
def test_a_batch_of_links_names_the_pair_of_each_node(comm, mpi_tmp_path, kind):
    """Binary negatives are pairs with the next numbers, drawn destinations have the number of their edge, as in
    PyTorch Geometric; all at the time of the edge, which is given for pairs that are none."""
    graph, relations = open_library(comm, mpi_tmp_path), read(mpi_tmp_path / "graph.h5")
    rng = np.random.default_rng(2)
    pairs, times = rng.integers(0, PAPERS, (2, 40)), rng.integers(0, 20, 40)
    loader = LinkNeighborLoader(
        graph, (CITES, pairs), [-1, -1], 12, neg_sampling=kind, negatives=2 if kind else 1, time_column="time",
        disjoint=True, edge_label_time=times,
    )  # fmt: skip
    for batch in loader:
        n_id, number, count = batch.n_id[0], batch.seed_number[0], len(batch.src)
        ends = [n_id[batch.edge_label_index[end]] for end in (0, 1)]
        wanted = [set(map(int, each)) for each in zip(*ends, strict=True)]
        if kind == "triplet":
            wanted = [{*each, *n_id[batch.negative_dst[at]].tolist()} for at, each in enumerate(wanted)]
        of_edge = np.arange(count) if kind != "binary" else np.r_[np.arange(count), np.repeat(np.arange(count), 2)]
        for at, rows in enumerate(wanted):
            time = times[batch.input_id[of_edge[at]]]
            nodes = set().union(*(reachable(relations, row, time) for row in rows))
            assert {("paper", int(row)) for row in n_id[number == at]} == {n for n in nodes if n[0] == "paper"}
        assert len(wanted) == 0 or int(number.max()) == len(wanted) - 1
    graph.close()


# ------------------------------------------------------------------------------------------------------------ training


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", [
    {"model__kind": "rgcn"}, {"task__kind": "link", "task__negatives": 2, "sampling__strategy": "recent"},
    {"sampling__strategy": "labor", "sampling__in_flight": 2, "comm__ranks_per_machine": 1},
])  # fmt: skip
def test_a_run_with_times_gives_one_answer(comm, mpi_tmp_path, case):
    parts = make_static_parts(comm, library, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(sampling__time_column="time", **case))


def test_a_run_with_times_resumes_exactly(comm, mpi_tmp_path):
    parts = make_static_parts(comm, library, mpi_tmp_path)
    config = static_config(sampling__time_column="time", task__kind="link", train__checkpoint_every=2)
    trainer, whole, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 3)
    second = open_graph_trainer(comm, parts, broken, config)
    second.resume()
    second.run()
    torch.testing.assert_close(second.flat.parameter, trainer.flat.parameter, rtol=0, atol=0)
    if comm.rank == 0:
        assert_same_records(broken, whole)


@pytest.mark.serial
@pytest.mark.parametrize(("column", "low", "high"), [("", 0.99, 1.0), ("time", 0.3, 0.7)])
def test_a_later_neighbor_that_knows_the_label_is_not_seen(tmp_path, column, low, high):
    """Each student has a newer neighbor with the label as a feature, and older ones that know nothing."""
    count, rng = 300, np.random.default_rng(0)
    label = rng.integers(0, 2, count)

    def write(path):
        student = {"feat": np.zeros((count, 1), np.float32), "label": label, "time": rng.integers(0, 50, count)}
        student["split"] = rng.choice(3, count).astype(np.int8)
        tells = {"src": np.arange(count), "dst": np.arange(count), "time": student["time"] + 1}
        noise = {"src": rng.integers(0, count, count), "dst": np.arange(count), "time": student["time"]}
        nodes = {"student": student, "grade": {"feat": 2 * label[:, None].astype(np.float32) - 1},
                 "noise": {"feat": rng.standard_normal((count, 1)).astype(np.float32)}}  # fmt: skip
        relations = {("grade", "of", "student"): tells, ("noise", "of", "student"): noise}
        return write_graph(path, nodes, relations, "static")

    config = static_config(
        sampling__fanouts=[-1], model__layers=1, model__kind="rgcn", sampling__time_column=column, train__lr=0.05,
        train__batch_size=50, train__epochs=8, model__dropout=0.0,
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    trainer = open_graph_trainer(MPI.COMM_SELF, make_static_parts(MPI.COMM_SELF, write, tmp_path), tmp_path, config)
    trainer.start()
    trainer.run()
    assert low <= split_metrics(trainer.session, "test", trainer.session.scores("test"))["accuracy"] <= high


# ------------------------------------------------------------------------------------------------------------ refusals

TIMED = {"sampling__time_column": "time"}
REFUSED = {
    "exact": ({**TIMED, "eval__exact": True}, "leave out eval.exact, or sampling.time_column"),
    "ranking": ({**TIMED, "task__kind": "link", "eval__ranking": "filtered"}, "leave out eval.ranking filtered"),
    "full": ({**TIMED, "train__full_graph": True}, "leave out train.full_graph"),
    "shared": ({**TIMED, "task__kind": "link", "task__negative_sharing": "batch"}, "task.negative_sharing batch"),
    "servers": ({**TIMED, "comm__sampling_servers": 1}, "leave out comm.sampling_servers"),
    "copy": ({**TIMED, "sampling__topology": "replicated"}, "topology replicated: with .*: use sharded"),
    "device": ({**TIMED, "sampling__plan_on": "device"}, "are drawn on the host"),
    "recent": ({"sampling__strategy": "recent"}, "strategy recent needs sampling.time_column"),
}


@pytest.mark.serial
@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_go_with_times_are_refused(case):
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        static_config(**changes)


def spoiled(path, column: str, row: int, value: float):
    library(path, floating=True)
    with h5py.File(path, "r+") as file:
        file[column][row] = value
    return path


def large(path):
    """An integer that does not fit the floating numbers beside it."""
    rng = np.random.default_rng(1)
    nodes = {"node": {"label": np.zeros(20, int), "split": np.zeros(20, np.int8), "time": np.full(20, 1 << 54)}}
    edges = {"src": rng.integers(0, 20, 60), "dst": rng.integers(0, 20, 60), "time": rng.random(60)}
    return write_graph(path, nodes, {("node", "meets", "node"): edges}, "static")


GRAPHS = {
    "no times": (library, {"sampling__time_column": "year"}, "none of their source nodes has a column year; there are"),
    "no time of seeds": (
        library, {**TIMED, "task__kind": "link", "task__relation": WRITES},
        f"relation {WRITES}, from which the seeds are, has no column time; it has weight",
    ),
    "not a number": (
        partial(spoiled, column="nodes/paper/time", row=7, value=np.nan), TIMED,
        "column time of node type paper, row 7, has nan: times must be finite",
    ),
    "infinite": (
        partial(spoiled, column="edges/paper.cites.paper/time", row=11, value=np.inf), TIMED,
        f"column time of relation {CITES}, row 11, has inf: times must be finite",
    ),
    "too large": (large, TIMED, r"type node, row \d+, has 18014398509481984: .* floating .* 53 bits"),
}  # fmt: skip


@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_without_usable_times_are_refused(comm, mpi_tmp_path, case):
    make, changes, message = GRAPHS[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        open_graph_session(comm, parts, static_config(**changes))


OPTIONS = {
    "time of no column": ({"input_time": [0.0]}, "input_time needs time_column"),
    "copy": ({"disjoint": True, "topology": "replicated"}, "with disjoint the owners of nodes draw: use sharded"),
    "induced": ({"time_column": "time", "subgraph_type": "induced"}, "subgraph_type induced has no time_column"),
    "class": (
        {"time_column": "time", "sampler": type("Own", (TimedNeighbors,), {})}, "draws without time_column: leave one"
    ),
    "times of a split": ({"time_column": "time", "input_time": [0.0]}, "input_time is for seeds that are given as row"),
}  # fmt: skip


@pytest.mark.serial
def test_loaders_refuse_what_has_no_times(tmp_path):
    graph = open_library(MPI.COMM_SELF, tmp_path)
    for options, message in OPTIONS.values():
        with pytest.raises(DistributedError, match=message):
            NeighborLoader(graph, "train", [2], 8, **options)
    with pytest.raises(DistributedError, match="given pairs have no times: give edge_label_time"):
        LinkNeighborLoader(graph, (CITES, np.zeros((2, 1), int)), [2], 8, time_column="time")
    with pytest.raises(DistributedError, match=f"relation {WRITES}, .* has no column time; it has weight; or give edg"):
        LinkNeighborLoader(graph, (WRITES, np.arange(3)), [2], 8, time_column="time")
    with pytest.raises(DistributedError, match=r"node type author, .* no column time; it has id; or give input_time"):
        NeighborLoader(graph, ("author", np.arange(3)), [2], 8, time_column="time")
    with pytest.raises(DistributedError, match="input_time: the time at position 1 is nan: give finite numbers"):
        NeighborLoader(graph, ("paper", np.arange(2)), [2], 8, time_column="time", input_time=[0, np.nan])
    graph.close()


@pytest.mark.serial
@pytest.mark.parametrize(("arguments", "message"), [
    ({"top_k": 3, "new_only": True}, "--new_only finds known edges as eval.ranking filtered does, which a run with "),
    ({"embeddings": True}, "--embeddings of a run on labels of nodes are computed once"),
])  # fmt: skip
def test_answers_that_need_one_output_a_node_are_refused(arguments, message):
    config = static_config(**TIMED, task__kind="link" if "top_k" in arguments else "node")
    with pytest.raises(ValueError, match=message):
        predict.check(asked_for(**arguments), config)


@pytest.mark.parametrize(("time", "message"), [
    ("soon", "row 2: time 'soon' is not a number"), ("inf", "row 2: time 'inf' is not a number"),
    ("1e30", "row 2: time 1e30 does not fit 64 bits"), ("1970-01-01", "'1970-01-01' is a date, and the times of this"),
])  # fmt: skip
def test_times_of_pairs_must_be_numbers(comm, mpi_tmp_path, time, message):
    parts = make_static_parts(comm, library, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(**TIMED, task__kind="link"))
    with pytest.raises(DistributedError, match=message):
        asked(partial(read_pairs, session), src=[0, 1], dst=[2, 3], time=[1, time])
    pairs = asked(partial(read_pairs, session), src=[0, 1, 2], dst=[2, 3, 4], time=["-3.5", "", "9"])
    limits = {0: -4, 1: np.iinfo(np.int64).max, 2: 9}
    assert pairs.value["time"].tolist() == [limits[row] for row in pairs.row.tolist()]
    shown = score_pairs(session, pairs).slab("time", 0, session.world)
    assert shown is None or shown.tolist() == ["-3.5", "", "9"]
    session.close()


def test_times_of_pairs_are_dates_where_the_column_has_dates(comm, mpi_tmp_path):
    def dated(path):
        library(path)
        with h5py.File(path, "r+") as file:
            for place in ("nodes/paper/time", f"edges/{CITES}/time"):
                file[place].attrs["zone"] = "Europe/Berlin"

    parts = make_static_parts(comm, dated, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(**TIMED, task__kind="link"))
    read = partial(asked, partial(read_pairs, session), src=[0, 1, 2, 2], dst=[2, 3, 4, 4])
    pairs, numbers = read(time=["1970-01-01T01:00:09", "", "1970-01-01T00:00:11Z", "11"]), read(time=[9, "", 11, 11])
    assert pairs.value["time"].tolist() == numbers.value["time"].tolist()
    answers = score_pairs(session, pairs)
    assert answers.zone == "Europe/Berlin"
    shown = answers.slab("time", 0, session.world)
    as_numbers = score_pairs(session, pairs, times="numbers").slab("time", 0, session.world)
    if comm.rank == 0:
        dates = ["1970-01-01T01:00:09+01:00", "", *["1970-01-01T01:00:11+01:00"] * 2]
        assert date_texts(shown, answers.zone).tolist() == dates
        np.testing.assert_array_equal(as_numbers, [9, np.nan, 11, 11])
    session.close()


def test_nodes_of_links_see_all_neighbors(comm, mpi_tmp_path):
    """Without a pair there is no time: best answers and embeddings."""
    parts = make_static_parts(comm, library, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(**CONFIG, task__kind="link", task__reverse="none"))
    found = sampled_outputs(session)[session.partition.of_type(0)].numpy()
    path = mpi_tmp_path / "graph.h5"
    wanted = outputs_at(first_rows(session, path), path, np.inf, True)
    rows = session.partition.flat_row[session.partition.of_type(0)]
    np.testing.assert_allclose(found, wanted[rows], rtol=1e-9, atol=1e-12)
    session.close()
