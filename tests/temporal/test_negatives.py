"""Negatives of evaluation: what the literature says they are, whatever the number of ranks and the partition set."""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from evaluation_setup import Evaluation, graph_and_parts, module_folder
from mpi4py import MPI
from places import SHARED
from random_graphs import write_graph
from scipy.stats import chisquare
from training_runs import bipartite, homogeneous, make_config, make_parts, on_rank_0, open_session, read_plain

from hpcgnn import native
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.graph.directory import Directory, NodeDirectory
from hpcgnn.graph.negative_file import open_negatives
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.session import split_metrics
from hpcgnn.native import Random, Stream
from hpcgnn.temporal import negatives
from hpcgnn.temporal.baselines import baseline_metrics
from hpcgnn.temporal.eval_config import BaselineConfig
from hpcgnn.temporal.graph import Events
from hpcgnn.temporal.negatives import AllOthers, PairHistory
from hpcgnn.temporal.neighbors import ROOT_KINDS, root_identity

BATCH, ITEMS = 40, 15
ENRON = SHARED / "enron" / "ml_enron.csv.gz"


@pytest.fixture(scope="module")
def graph_parts(comm, tmp_path_factory):
    """The bipartite graph and a partition set of it. Collective."""
    return graph_and_parts(comm, module_folder(comm, tmp_path_factory), bipartite)


@pytest.fixture
def graph(graph_parts):
    return graph_parts[0]


@pytest.fixture
def parts(graph_parts):
    return graph_parts[1]


@pytest.mark.parametrize("make", [bipartite, homogeneous])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_ranks_and_parts_do_not_change_negatives(comm, mpi_tmp_path, make, split):
    """Bit for bit: all ranks and one, METIS parts and random ones."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: make(graph) and None)
    sets = [make_parts(comm, graph, mpi_tmp_path / m, p, m) for m, p in (("metis", 16), ("random", 8))]
    ours = [Evaluation.open(comm, folder, split, new_node_ratio=0.1) for folder in sets]
    results = [{kind: e.negatives(kind, 3) for kind in ("random", "historical", "inductive", "all")} for e in ours]
    if comm.rank > 0:
        return
    alone = Evaluation.open(MPI.COMM_SELF, sets[0], split, new_node_ratio=0.1)
    for kind, expected in results[0].items():
        assert np.array_equal(alone.negatives(kind, 3), expected), kind
        assert np.array_equal(results[1][kind], expected), kind


@pytest.mark.parametrize("kind", ["historical", "inductive"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_pairs_that_met(comm, graph, parts, kind, split):
    """Against sets of pairs: from those of before the batch, never of the batch, never seen before the split if
    inductive; the random negative where there is none; uniform where there are many draws."""
    evaluation = Evaluation.open(comm, parts, split)
    drawn, random = evaluation.negatives(kind, 60), evaluation.negatives("random", 60)
    if comm.rank > 0:
        return
    plain = read_plain(graph)
    pairs = list(zip(plain.src.tolist(), plain.dst.tolist(), strict=True))
    begin, end = evaluation.splits.bounds[["train", "val", "test"].index(split) :][:2]
    fallbacks, pvalues = 0, []
    for first in range(begin, end, BATCH):
        last = min(first + BATCH, end)
        allowed = set(pairs[:first]) - set(pairs[first:last]) - set(pairs[:begin] if kind == "inductive" else ())
        found = [tuple(pair) for pair in drawn[first - begin : last - begin].reshape(-1, 2).tolist()]
        reserve = [tuple(pair) for pair in random[first - begin : last - begin].reshape(-1, 2).tolist()]
        assert all(pair in allowed or pair == other for pair, other in zip(found, reserve, strict=True))
        fallbacks += sum(pair not in allowed for pair in found) if allowed else 0
        if len(allowed) > 20 and last - first == BATCH:
            counts = [found.count(pair) for pair in sorted(allowed)]
            pvalues.append(chisquare(counts).pvalue * (sum(counts) > 0.99 * len(found)))
        if not allowed:
            assert found == reserve
    assert fallbacks < 0.02 * drawn.size
    assert not pvalues or min(pvalues) > 1e-5
    assert pvalues or kind == "inductive"


@pytest.mark.parametrize("at_once", [1, 150])
def test_stretches_of_any_length_draw_the_same(comm, parts, monkeypatch, at_once):
    """Stretches of a step, and of several."""
    evaluation = Evaluation.open(comm, parts)
    expected = evaluation.negatives("random", 3)
    monkeypatch.setattr(negatives, "DRAWN_AT_ONCE", at_once)
    found = evaluation.negatives("random", 3)
    assert comm.rank > 0 or np.array_equal(found, expected)


@pytest.mark.parametrize("batch", [7, BATCH])
@pytest.mark.parametrize("split", SPLITS[1:])
@pytest.mark.parametrize("make", [bipartite, homogeneous])
def test_all_others(comm, tied, make, split, batch):
    """Every destination of the graph once, in order of flat row id, without those that the source meets at that time in
    the split, be it in another batch or at another rank: TGB's filter, event by event."""
    graph, parts = tied[make]
    evaluation = Evaluation.open(comm, parts, split, batch)
    others = evaluation.negatives("all")
    made = evaluation.make_negatives("all", 0)
    counts = evaluation.by_row(made.counts(slice(None)))
    if comm.rank > 0:
        return
    plain = read_plain(graph)
    begin, end = evaluation.splits.bounds[SPLITS.index(split) :][:2]
    src, dst, time = (column[begin:end] for column in (plain.src, plain.dst, plain.time))
    allowed = [np.setdiff1d(plain.dst, dst[(src == u) & (time == t)]) for u, t in zip(src, time, strict=True)]
    assert counts.tolist() == [len(nodes) for nodes in allowed]
    assert len(set(counts.tolist())) > 1
    assert others.shape == (end - begin, counts.max(), 2)
    for line, count, u, nodes in zip(others, counts, src, allowed, strict=True):
        assert np.array_equal(line[:count, 1], nodes)
        assert (line[:, 0] == u).all()


@pytest.fixture(scope="module")
def tied(comm, tmp_path_factory):
    """Graphs with many events at a time, and their parts, by the function that makes them. Collective."""
    folder = module_folder(comm, tmp_path_factory)
    return {make: graph_and_parts(comm, folder, make, ticks=30) for make in (bipartite, homogeneous)}


@pytest.mark.parametrize("chunk", [3, 100])
def test_an_event_that_meets_all_ranks_first(comm, mpi_tmp_path, chunk):
    """User 0 meets all four items at every time, user 1 one of them: TGB's evaluator gives rank 1 to what has no
    negative. A rule that knows it all reaches 1; with other events of the time as negatives it could not."""

    def write(path):
        time = np.repeat(np.arange(60), 5)
        src, dst = np.tile([0, 0, 0, 0, 1], 60), np.tile([0, 1, 2, 3, 2], 60)
        nodes = {"user": {"id": np.arange(2)}, "item": {"id": np.arange(4)}}
        return write_graph(path, nodes, {("user", "takes", "item"): {"src": src, "dst": dst, "time": time}})

    _, parts = graph_and_parts(comm, mpi_tmp_path, write)
    config = make_config(eval__protocol="tgb", eval__negatives_per_pass=chunk)
    session = open_session(comm, parts, config)
    metrics = baseline_metrics(session, BaselineConfig("unlimited"))
    assert metrics["test_mrr"] == 1
    collected = session.scores("test")
    ranks = session.world.gather_rows(collected.columns()["rank"])
    src = session.world.gather_rows(session.partition.book.locate(session.batches["test"].events.src)[1])
    assert comm.rank or comm.size > 1 or ((ranks == 1) | (src == 1)).all()


@pytest.mark.skipif(not ENRON.exists(), reason=f"{ENRON} is missing")
def test_mrr_of_the_baseline_on_mails(comm, mpi_tmp_path):
    """Three test mails of four have another one of the same sender and second. EdgeBank's MRR is 0.1008 by TGB's filter
    (a script apart), 0.0835 where these are negatives."""

    def enron(path):
        with gzip.open(ENRON) as file:
            src, dst, time = np.loadtxt(file, delimiter=",", skiprows=1, usecols=(1, 2, 3)).astype(np.int64).T
        nodes = {"person": {"id": np.arange(max(src.max(), dst.max()) + 1)}}
        return write_graph(path, nodes, {("person", "writes", "person"): {"src": src, "dst": dst, "time": time}})

    _, parts = graph_and_parts(comm, mpi_tmp_path, enron)
    session = open_session(comm, parts, make_config(eval__protocol="tgb"))
    metrics = baseline_metrics(session, BaselineConfig("unlimited"))
    assert metrics["test_mrr"] == pytest.approx(0.1008, abs=1e-4)
    assert metrics["test_hits@10"] == pytest.approx(0.409, abs=1e-3)


@pytest.mark.parametrize("split", ["train", "test"])
def test_no_random_negative_is_the_events_own_destination(comm, graph, parts, split):
    """All other nodes of the pool are as likely; what the first draw gave stays where it was another node."""
    evaluation = Evaluation.open(comm, parts, split)
    drawn = evaluation.negatives("random", 200)
    if comm.rank > 0:
        return
    plain = read_plain(graph)
    begin, end = evaluation.splits.bounds[SPLITS.index(split) :][:2]
    own, pool = plain.dst[begin:end], np.unique(plain.dst)
    assert (drawn[..., 0] == plain.src[begin:end, None]).all()
    assert (drawn[..., 1] != own[:, None]).all()
    for node in pool:
        found = drawn[own == node, :, 1].ravel()
        counts = np.array([(found == other).sum() for other in pool if other != node])
        assert len(found) == 0 or chisquare(counts).pvalue > 1e-5
    random = Random(7, Stream.NEGATIVE if split == "train" else Stream.EVAL_NEGATIVE)
    first = pool[native.random_integers(random, np.arange(begin, end), 200, len(pool))]
    kept = first != own[:, None]
    assert np.array_equal(drawn[..., 1][kept], first[kept])


def test_a_rule_without_errors_has_an_ap_of_1(comm, mpi_tmp_path):
    """Each of three users takes the own item, always (DGL#1458: a third of the negatives would be true)."""

    def write(path):
        ends, time = np.arange(600) % 3, np.arange(600)
        nodes = {"user": {"id": np.arange(3)}, "item": {"id": np.arange(3)}}
        return write_graph(path, nodes, {("user", "takes", "item"): {"src": ends, "dst": ends, "time": time}})

    _, parts = graph_and_parts(comm, mpi_tmp_path, write)
    metrics = baseline_metrics(open_session(comm, parts, make_config()), BaselineConfig("unlimited"))
    assert (metrics["test_ap"], metrics["test_auc"]) == (1, 1)


@pytest.mark.parametrize("kind", ["random", "historical", "inductive", "all"])
def test_empty_split(comm, parts, kind):
    """No event, no negative, and no rank waits for another."""
    drawn = Evaluation.open(comm, parts, "val", val_ratio=0.0).negatives(kind)
    assert comm.rank > 0 or len(drawn) == 0


@pytest.mark.parametrize("kind", ["random", "historical", "inductive", "all", "tgb"])
def test_a_single_destination_is_refused_by_its_name(comm, mpi_tmp_path, kind):
    """Before anything is trained; on two ranks, one of which may have no event. Among all nodes there are others."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, num_events=120, num_users=9, num_items=1) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", 8, "random")
    protocol = {"eval__protocol": "tgb"} if kind == "tgb" else {"eval__negative_kind": kind}
    with pytest.raises(DistributedError, match=r"destinations of events, and there is only one.*negative_pool all"):
        open_session(comm, parts, make_config(**protocol))
    found = open_session(comm, parts, make_config(task__negative_pool="all", **protocol))
    assert found.loaders["train"].negatives(0).whole().dst.shape == (len(found.batches["train"].events), 1)


@pytest.mark.parametrize("kind", ["historical", "inductive"])
def test_negatives_that_would_all_be_random_are_refused(comm, mpi_tmp_path, kind):
    """Every pair meets in every batch of 50 (DyGLib#23: the numbers of random under another name); in smaller batches
    not. Refused before the first step, too."""

    def write(path):
        ends, time = np.arange(900) % 9, np.arange(900)
        nodes = {"user": {"id": np.arange(3)}, "item": {"id": np.arange(3)}}
        columns = {"src": ends // 3, "dst": ends % 3, "time": time}
        return write_graph(path, nodes, {("user", "takes", "item"): columns})

    _, parts = graph_and_parts(comm, mpi_tmp_path, write)
    session = open_session(comm, parts, make_config(eval__negative_kind=kind, train__batch_size=50))
    message = f"eval.negative_kind {kind}: none of the .* of val can be .* eval.negative_kind random, or a smaller"
    with pytest.raises(DistributedError, match=message):
        session.check_training()
    if kind == "historical":
        session = open_session(comm, parts, make_config(eval__negative_kind=kind, eval__batch_size=5))
        session.check_training()
        assert 0.9 < session.loaders["val"].negatives(0).met_share <= 1


@pytest.mark.parametrize("kind", ["historical", "inductive"])
def test_the_share_of_pairs_that_met_is_reported(comm, graph, parts, kind):
    """Counted by sets of pairs; it stands beside the metrics."""
    session = open_session(comm, parts, make_config(eval__negative_kind=kind, task__negatives=2))
    evaluation = Evaluation.open(comm, parts, "val", seed=5)
    drawn = evaluation.negatives(kind, 2)
    metrics = split_metrics(session, "val", session.scores("val"))
    assert any(f"{kind} negatives" in line for line in session.describe())
    if comm.rank > 0:
        return
    plain = read_plain(graph)
    pairs = list(zip(plain.src.tolist(), plain.dst.tolist(), strict=True))
    begin, end = evaluation.splits.bounds[1:3]
    named = 0
    for first in range(begin, end, BATCH):
        last = min(first + BATCH, end)
        allowed = set(pairs[:first]) - set(pairs[first:last]) - set(pairs[:begin] if kind == "inductive" else ())
        named += sum(tuple(pair) in allowed for pair in drawn[first - begin : last - begin].reshape(-1, 2).tolist())
    assert 0 < named
    assert metrics[f"{kind}_share"] == pytest.approx(named / drawn[..., 0].size, abs=0.01)
    new = {name for name in metrics if name.startswith("new_")}
    assert set(metrics) - new == {"ap", "auc", "inductive_ap", "inductive_auc", f"{kind}_share"}


def test_directory(comm):
    """Rows are found by the place of their key; keys that crowd at one end are spread over all ranks."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    keys = 37 + 25 * np.arange(4000)
    mine = keys[np.arange(4000) % comm.size == comm.rank][::-1].copy()
    directory = Directory(world, world.channel(), mine, np.column_stack([mine * 2, -mine]), 1_000_000)
    assert directory.size == 4000
    assert len(directory._rows) < 1.2 * 4000 / comm.size
    places = np.random.default_rng(comm.rank).integers(0, 4000, (50 * comm.rank, 3))
    assert np.array_equal(directory.rows(places), np.stack([2 * keys[places], -keys[places]], axis=2))


def test_pair_history(comm, graph, parts):
    """The last meeting before any row, and the first meetings of all pairs, against a scan."""
    evaluation = Evaluation.open(comm, parts)
    history = PairHistory(evaluation.partition, evaluation.channel)
    plain, global_of = read_plain(graph), np.argsort(evaluation.flat_of)
    rng = np.random.default_rng(comm.rank)
    count = 0 if comm.rank == 1 else 200
    chosen, before = rng.integers(0, len(plain.src), count), rng.integers(0, len(plain.src) + 1, count)
    src, dst = plain.src[chosen], np.where(rng.random(count) < 0.8, plain.dst[chosen], plain.dst[chosen[::-1]])
    row, time = history.last_before(global_of[src], global_of[dst], before)
    for i in range(count):
        met = np.flatnonzero((plain.src[: before[i]] == src[i]) & (plain.dst[: before[i]] == dst[i]))
        assert row[i] == (met[-1] if len(met) else -1)
        assert len(met) == 0 or time[i] == plain.time[met[-1]]
    first = evaluation.world.gather_rows(history.first_events())
    if comm.rank == 0:
        pairs = np.stack([plain.src, plain.dst], axis=1)
        assert np.array_equal(np.sort(first[:, 0]), np.sort(np.unique(pairs, axis=0, return_index=True)[1]))
        assert np.array_equal(evaluation.flat_of[first[:, 1:]], pairs[first[:, 0]])


@pytest.mark.ranks(1)
def test_pairs_of_very_many_nodes_stay_apart(comm):
    """Sources 0 and 4 of 2^62 nodes meet the last node: a key of source times nodes would be the same of both."""
    nodes = 1 << 62
    events = Events(np.arange(3), np.array([0, 4, 4]), np.full(3, nodes - 1), np.arange(3), {})
    book = SimpleNamespace(num_nodes=nodes, locate=lambda ids: (np.zeros(len(ids), np.int64), ids))
    channel = World(CommConfig(device="cpu", threads=1), comm).channel()
    history = PairHistory(SimpleNamespace(events=events, book=book), channel)
    row, _ = history.last_before(np.array([0, 4, 8]), np.full(3, nodes - 1), np.full(3, 3))
    assert row.tolist() == [0, 2, -1]
    assert history.first_events()[:, 0].tolist() == [0, 1]


# ---------------------------------------------------------------------------------------------------------- from a file


def listed(rows: np.ndarray, k: int = 4) -> np.ndarray:
    """Row ids [n, k] of items that the files of these tests list for events."""
    return (rows[:, None] * 7 + 3 * np.arange(k)) % ITEMS


def write_file(path, plain, rows, negatives):
    """Write negatives [n, k] (any ids) in the format that the suffix says."""
    if path.suffix == ".npz":
        np.savez(path, row=rows, negatives=negatives)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["row"], file["negatives"] = rows, negatives
    else:
        src, dst = 1000 + 3 * plain.src[rows], 1000 + 3 * (plain.dst[rows] - plain.num_nodes + ITEMS)
        keys = zip(src, dst, plain.time[rows], strict=True)
        path.write_bytes(pickle.dumps(dict(zip(keys, negatives, strict=True))))


FILES = {
    "npz": (".npz", np.int64),
    "npz of strings": (".npz", "U8"),
    "npz of small integers": (".npz", np.uint16),
    "h5": (".h5", np.int32),
    "h5 of strings": (".h5", "S8"),
    "pickle": (".pkl", np.int64),
    "pickle of floats": (".pkl", np.float64),
}


@pytest.mark.parametrize("case", FILES)
def test_file(comm, graph, parts, mpi_tmp_path, case, monkeypatch):
    """In shuffled order and with events of other splits beside; small slabs."""
    suffix, dtype = FILES[case]
    path = mpi_tmp_path / f"negatives{suffix}"
    evaluation, plain = Evaluation.open(comm, parts), read_plain(graph)
    rows = np.random.default_rng(0).permutation(np.arange(evaluation.splits.bounds[1], len(plain.src)))
    negatives = (1000 + 3 * listed(rows)).astype(dtype)
    on_rank_0(comm, lambda: write_file(path, plain, rows, negatives))
    monkeypatch.setattr(files.slabs, "__defaults__", (1000,))
    found = evaluation.negatives("file", path=path)
    if comm.rank == 0:
        tested = np.arange(evaluation.splits.bounds[2], len(plain.src))
        assert np.array_equal(found[..., 1], plain.num_nodes - ITEMS + listed(tested))
        assert np.array_equal(found[..., 0], np.repeat(plain.src[tested, None], 4, axis=1))


def test_a_pickle_without_one_event_names_it(comm, graph, parts, mpi_tmp_path):
    """TGB #108: of val, in the middle; no score is that of the others."""
    path, plain = mpi_tmp_path / "val_ns.pkl", read_plain(graph)
    evaluation = Evaluation.open(comm, parts, split="val")
    begin, end = evaluation.splits.bounds[1:3]
    rows = np.delete(np.arange(begin, end), 17)
    on_rank_0(comm, lambda: write_file(path, plain, rows, 1000 + 3 * listed(rows)))
    missing = rf"no negatives for event row {begin + 17} of val \(1 such events\); list every event"
    with pytest.raises(DistributedError, match=missing):
        evaluation.negatives("file", path=path)


@pytest.mark.parametrize("written", ["S4", "U4"])
def test_file_of_names(comm, mpi_tmp_path, written):
    """A graph whose nodes have names; equal (source, destination, time) share a line in a pickle."""
    graph, paths = mpi_tmp_path / "graph.h5", [mpi_tmp_path / f"n{suffix}" for suffix in (".npz", ".pkl")]
    names = np.array([f"n{i}" for i in range(9)], written)
    src, dst, time = np.arange(60) % 5, np.arange(60) % 9, np.arange(60) // 10
    src[50:], dst[50:] = src[50:] // 2, 3
    lines = names[(src[:, None] + time[:, None] + np.arange(2)) % 9]

    def write():
        columns = {"src": src, "dst": dst, "time": time}
        write_graph(graph, {"word": {"id": names.astype("S4")}}, {("word", "next", "word"): columns})
        np.savez(paths[0], row=np.arange(60), negatives=lines)
        keys = zip(names[src].astype(str).tolist(), names[dst].astype(str).tolist(), time.tolist(), strict=True)
        paths[1].write_bytes(pickle.dumps(dict(zip(keys, lines.astype(str), strict=True))))

    on_rank_0(comm, write)
    evaluation = Evaluation.open(comm, make_parts(comm, graph, mpi_tmp_path / "parts", 4, "random"))
    for path in paths:
        found = evaluation.negatives("file", path=path)
        if comm.rank == 0:
            begin = evaluation.splits.bounds[2]
            assert np.array_equal(names[found[..., 1]], lines[begin:])


def test_file_of_an_empty_split(comm, parts, mpi_tmp_path):
    """Lines of other splits only: nothing is wanted of them."""
    path = mpi_tmp_path / "negatives.npz"
    on_rank_0(comm, lambda: np.savez(path, row=ROWS, negatives=GOOD))
    found = Evaluation.open(comm, parts, "val", val_ratio=0.0).negatives("file", path=path)
    assert comm.rank > 0 or found.shape == (0, 4, 2)


def test_a_file_for_each_split(comm, graph, parts, mpi_tmp_path):
    plain = read_plain(graph)
    evaluations = {split: Evaluation.open(comm, parts, split) for split in SPLITS[1:]}
    bounds = evaluations["val"].splits.bounds

    def write():
        for split, begin, end in zip(SPLITS[1:], bounds[1:-1], bounds[2:], strict=True):
            rows = np.arange(begin, end)
            write_file(mpi_tmp_path / f"wiki_{split}_ns.pkl", plain, rows, 1000 + 3 * listed(rows))

    on_rank_0(comm, write)
    for split, evaluation in evaluations.items():
        read = evaluation.negatives("file", path=mpi_tmp_path / "wiki_{split}_ns.pkl")
        rows = np.arange(*bounds[SPLITS.index(split) :][:2])
        assert read is None or np.array_equal(read[..., 1], plain.num_nodes - ITEMS + listed(rows))


def test_pickle_of_an_older_numpy(tmp_path):
    """The modules of arrays and scalars had other names before NumPy 2."""
    path, key = tmp_path / "negatives.pkl", (np.int64(1), np.int64(2), np.float64(3))
    content = pickle.dumps({key: GOOD[0]}, protocol=2)
    path.write_bytes(content.replace(b"numpy._core.", b"numpy.core."))
    file = open_negatives(str(path))
    assert np.array_equal(file.read(0, 1), GOOD[:1])
    assert [column.tolist() for column in file.keys] == [[1], [2], [3]]


@pytest.mark.serial
def test_of_all_others_only_the_columns_that_are_asked_for_are_made():
    count = 1_000_001
    world = World.alone(CommConfig(device="cpu"))
    pool_channel = world.own_channel()
    pool = NodeDirectory(world, pool_channel, np.arange(count), np.arange(count)[::-1].copy(), count)
    others = AllOthers.but(pool, np.arange(50), np.ones(50, np.int64), np.arange(50) * 7, count - 1)
    whole = others.at(slice(3, 9), slice(None), pool_channel).dst
    assert all(np.array_equal(others.at(slice(3, 9), part, pool_channel).dst, whole[:, part])
               for part in (slice(None), slice(0, 100), slice(40, 60), slice(999_900, 1_000_100)))  # fmt: skip
    tracemalloc.start()
    others.at(slice(0, 50), slice(500, 600), pool_channel)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.serial
def test_a_plan_of_some_columns_takes_no_memory_for_all(parts):
    """There may be as many negatives as nodes; a plan looks at a few."""
    session = open_session(MPI.COMM_SELF, parts, make_config(eval__negative_kind="all"))
    loader = session.loaders["test"]
    others = loader.negatives(0)
    plan = loader.sampler.plan(loader.batches, replace(others, per_event=10**12), 0, 0, False, slice(2, 5))
    expected = loader.sampler.plan(loader.batches, others, 0, 0, False, slice(2, 5))
    assert torch.equal(plan.query.identity, expected.query.identity)
    assert torch.equal(plan.query.root, expected.query.root)


@pytest.mark.serial
@pytest.mark.parametrize("first", [0, 12_345_678, 999_999_990])
def test_roots_of_very_many_events_tell_their_role(first):
    """Of any negative, though numbers of events and of negatives together need more than 64 bits."""
    rows, numbers = 49_999_999_000 + np.arange(1000), first + np.arange(10)
    identity = root_identity(rows, numbers, 50_000_000_000)
    assert identity.min() >= 0
    assert (identity % ROOT_KINDS).tolist() == np.repeat([0, 1, 2], [1000, 1000, 10_000]).tolist()
    assert len(np.unique(identity)) == len(identity)
    assert np.array_equal(identity, root_identity(*map(torch.from_numpy, (rows, numbers)), 50_000_000_000, torch))


@pytest.mark.serial
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ["<i8", ">i4", "f8", "U5", "S3", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickles_of_all_protocols_and_types(tmp_path, protocol, dtype, order):
    lines = np.arange(24).astype(dtype).reshape(2, 12)
    lines = np.asarray(lines, order=order)  # a line of columns is not contiguous
    content = {(1, 2, 3): lines[0], (np.int32(1), np.int64(2), 4.0): lines[1]}
    path = tmp_path / "negatives.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    read = open_negatives(str(path)).read(0, 2)
    assert read.astype(dtype).tolist() == lines.tolist()


class Made:
    """Pickles as a call of a function, whose result then gets a state."""

    def __init__(self, function, *arguments, state=None):
        self.content = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.content


OBJECTS = (1, (1,), np.dtype("O"), False, [1])
HOSTILE = {
    "addresses": Made(np.ndarray, (1,), np.dtype("O"), b"AAAAAAAA"),
    "memory": Made(np.ndarray, (1 << 33,)),
    "objects": np.array([[1], None], object),
    "objects by state": Made(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=OBJECTS),
    "a size beyond its data": Made(
        np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=(1, (1 << 33,), np.dtype("i8"), False, b"1234")
    ),
    "fields": np.zeros(2, [("a", "i4"), ("b", "O")]),
    "a scalar of objects": Made(np._core.multiarray.scalar, np.dtype("O"), b"AAAAAAAA"),
    "an array without a state": Made(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b"),
    "lists in lists": [[1], [2]],
}


@pytest.mark.serial
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles_are_refused(tmp_path, case):
    path = tmp_path / "negatives.pkl"
    path.write_bytes(pickle.dumps({(1, 2, 3): HOSTILE[case]}))
    command = "import sys; from hpcgnn.graph.negative_file import open_negatives; open_negatives(sys.argv[1])"
    limited = f"ulimit -v {6 << 20}; exec {sys.executable} -c '{command}' {path}"
    result = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=200)
    assert result.returncode == 1
    assert f"ValueError: {path}: " in result.stderr


@pytest.mark.serial
def test_a_memo_of_a_large_number_takes_no_memory(tmp_path):
    path = tmp_path / "negatives.pkl"
    path.write_bytes(b"\x80\x02}(K\x01K\x02K\x03\x87r\xff\xff\xff\x3f]K\x05ar\xff\xff\xff\x1fu.")
    tracemalloc.start()
    assert open_negatives(str(path)).read(0, 1).tolist() == [[5]]
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


class Evil:
    """What a pickle must not be able to do."""

    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


ROWS = np.arange(700)
GOOD = 1000 + 3 * listed(ROWS)


def changed(row: int, value, dtype=np.int64) -> np.ndarray:
    """The good lines with one entry replaced."""
    lines = GOOD.astype(dtype)
    lines[row, 2] = value
    return lines


def npz(**arrays):
    """A writer of an npz file."""
    return ".npz", lambda path: np.savez(path, **arrays)


def pkl(content):
    """A writer of a pickle."""
    return ".pkl", lambda path: path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))


DAMAGED = {
    "unknown id": (npz(row=ROWS, negatives=changed(650, 999)), r"event row 650: negative 999 is no destination"),
    "padding": (
        npz(row=ROWS, negatives=changed(651, -1)),
        r"line 651: -1 is no id; every event must have a negative, and -1",
    ),
    "empty name": (npz(row=ROWS, negatives=changed(652, "", "U5")), r"line 652: b'' is no id"),
    "missing event": (
        npz(row=ROWS[:-3], negatives=GOOD[:-3]),
        r"no negatives for event row 697 of test \(3 such events\)",
    ),
    "row twice": (npz(row=np.append(ROWS, 5), negatives=GOOD[[*ROWS, 5]]), r"event row 5 is listed 2 times"),
    "row outside": (npz(row=ROWS + 1, negatives=GOOD), r"event row 700 is outside 0..699"),
    "ragged": (
        npz(row=ROWS[:2], negatives=np.array([[1], [2, 3]], object)),
        r"lines of fewer negatives than others end with -1",
    ),
    "no row": (npz(negatives=GOOD), r"'row' \[m\] and 'negatives' \[m, k\]"),
    "lengths differ": (npz(row=ROWS, negatives=GOOD[:5]), r"must be \[700, k\], .*got \(5, 4\)"),
    "no columns": (npz(row=ROWS, negatives=GOOD[:, :0]), r"has no columns"),
    "fractions": (npz(row=ROWS, negatives=changed(3, 0.5, float)), r"line 3: 0.5 is no id"),
    "infinity": (npz(row=ROWS, negatives=changed(3, np.inf, float)), r"line 3: inf is no id"),
    "beyond an int64": (npz(row=ROWS, negatives=changed(3, 2**64 - 1, np.uint64)), r"line 3: 18446744073709551615 is"),
    "half a character": (npz(row=ROWS, negatives=changed(650, "\ud800", "U5")), r"negative .* is no destination"),
    "rows of text": (npz(row=ROWS.astype(str), negatives=GOOD), r"'row' must be a vector of integers, got <U"),
    "truncated npz": ((".npz", lambda path: path.write_bytes(b"PK\x03\x04 and no more")), r"cannot read 'row'"),
    "truncated h5": ((".h5", lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n")), r"cannot read 'row'"),
    "other suffix": ((".csv", lambda path: path.write_text("1,2")), r"ending in .npz, .h5, .pkl, not '.csv'"),
    "no file": ((".npz", lambda path: None), r"no such file"),
    "code": (pkl({(1, 2, 3): Evil()}), r"builtins.exec, and only arrays, dicts, tuples, lists and sets"),
    "truncated pickle": (pkl(pickle.dumps({(1, 2, 3): GOOD[0]})[:-9]), r"not a pickled dict"),
    "a list": (pkl([1, 2]), r"must hold a dict"),
    "keys of two": (pkl({(1, 2): GOOD[0]}), r"keys must be \(source, destination, time\), got \(1, 2\)"),
    "no negatives": (pkl({(1, 2, 3): GOOD[0], (1, 2, 4): GOOD[0, :0]}), r"event \(1, 2, 4\): \(0,\) negatives; give"),
    "no negatives in npz": (npz(row=ROWS, negatives=np.full_like(GOOD, -1)), r"line 0: -1 is no id"),
    "one list of nearly all": (
        pkl({(1, 2, time): GOOD[0, :1] for time in range(50)} | {(1, 2, 50): GOOD[:25].ravel()}),
        r"one event has 100 negatives, and 51 events have 150 together",
    ),
    "unknown events": (pkl({(1, 2, 3): GOOD[0]}), r"no negatives for event row \d+ of test"),
    "times of text": (pkl({(1, 2, "3"): GOOD[0]}), r"the time of all keys must be whole numbers"),
    "times without end": (pkl({(1, 2, np.inf): GOOD[0]}), r"the time of all keys must be whole numbers, .* inf"),
    "a pair as a source": (pkl({((1, 2), 2, 3): GOOD[0]}), r"the source of all keys must be whole .* \(1, 2\)"),
    "a pair and a number": (pkl({((1, 2), 2, 3): GOOD[0], (1, 2, 3): GOOD[0]}), r"source of all keys must be whole"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files(comm, parts, mpi_tmp_path, case):
    """One message on all ranks: file, row, remedy."""
    (suffix, write), message = DAMAGED[case]
    path = mpi_tmp_path / f"negatives{suffix}"
    on_rank_0(comm, lambda: write(path) and None)
    with pytest.raises(DistributedError, match=message) as caught:
        Evaluation.open(comm, parts).negatives("file", path=path)
    assert caught.value.user_error
    assert str(path) in str(caught.value)
