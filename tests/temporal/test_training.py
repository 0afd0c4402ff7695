"""The answer does not depend on the number of ranks or the partition set, and it is the right one.

Every run is made twice: on all ranks of this job, and on rank 0 alone in the same process.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from kept import result
from mpi4py import MPI
from reference_tgn import Graph, Reference, Settings
from scipy.stats import chisquare
from selection import long_but
from sklearn.metrics import average_precision_score, roc_auc_score
from training_runs import (
    ROW_SCALE,
    assert_same,
    bipartite,
    by_flat_row,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    read_plain,
    record_epoch,
)

from data_tools.synthesize import synthesize_events
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.task.metrics import link_metrics
from hpcgnn.temporal.graph import open_partition

PLAIN, TIES, RICH = {}, {"ticks": 60}, {"edge_width": 3, "node_width": 4}

# name: (options of the graph, changes of the configuration)
CASES = {
    "plain": (PLAIN, {}),
    "update at user": (PLAIN, {"memory__update_at": "user"}),
    "uniform": (RICH, {"sampling__strategy": "uniform"}),
    "in-batch neighbors off": (RICH, {"sampling__in_batch_neighbors": False}),
    "uniform, in-batch off, user": (
        RICH,
        {"sampling__strategy": "uniform", "sampling__in_batch_neighbors": False, "memory__update_at": "user"},
    ),
    "ties in time": (TIES, {}),
    "batches by time": (TIES, {"sampling__batch_by": "time"}),
    "batches by span, some cut": (TIES, {"sampling__batch_by": "span", "sampling__batch_span": 7}),
    "hidden nodes, batches by span": (
        PLAIN,
        {"data__new_node_ratio": 0.1, "sampling__batch_by": "span", "sampling__batch_span": 200},
    ),
    "three negatives of all nodes": (PLAIN, {"task__negatives": 3, "task__negative_pool": "all"}),
    "negatives by degree": (PLAIN, {"task__negatives": 3, "task__negative_kind": "degree"}),
    "hidden nodes": (PLAIN, {"data__new_node_ratio": 0.1}),
    "hidden nodes, batches by time": (TIES, {"data__new_node_ratio": 0.1, "sampling__batch_by": "time"}),
    "edge features": ({"edge_width": 6}, {}),
    "node features": ({"node_width": 4}, {"memory__update_at": "user"}),
    "one neighbor, fixed phase": (RICH, {"sampling__fanouts": [1], "model__learn_phase": False}),
    "learned phase": (RICH, {"model__learn_phase": True}),
    "nothing made ahead": (PLAIN, {"sampling__prefetch": 0}),
    "batches smaller than ranks": ({"num_events": 100, **RICH}, {"train__batch_size": 2}),
}


def compare_with_one_rank(comm, parts, config):
    """Collective. Run on all ranks and on rank 0 alone; the records must agree. Returns the first, on rank 0."""
    together = record_epoch(comm, parts, config)
    if comm.rank == 0:
        assert_same(together, result(lambda: record_epoch(MPI.COMM_SELF, parts, config), parts, config))
    return together


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_change_the_answer(comm, mpi_tmp_path, case):
    """Samples, negatives and dropout masks bit for bit; losses, weights, memory and validation scores to rounding."""
    graph_options, changes = CASES[case]
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, **graph_options) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    record = compare_with_one_rank(comm, parts, make_config(**changes))
    if comm.rank == 0:
        assert len(record.losses) > 10
        assert len(np.unique(record.losses)) == len(record.losses)


@pytest.mark.several_ranks
@pytest.mark.parametrize("feature_dim", [0, 6])
def test_synthetic_events(comm, mpi_tmp_path, feature_dim):
    """The built-in generator's graphs, over two epochs' worth of batches."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: synthesize_events(graph, 1500, 75, 15, 1, feature_dim))
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", 8)
    compare_with_one_rank(comm, parts, make_config(train__batch_size=100))


def test_partition_sets_do_not_change_the_answer(comm, mpi_tmp_path):
    """Few parts or many, cut by METIS or at random: all of it bit for bit, on every number of ranks."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, **RICH) and None)
    config, first = make_config(sampling__strategy="uniform", task__negatives=2, data__new_node_ratio=0.1), None
    for parts, method in ((8, "metis"), (16, "metis"), (64, "metis"), (8, "random"), (64, "random")):
        folder = make_parts(comm, graph, mpi_tmp_path / f"{method}-{parts}", parts, method)
        record = record_epoch(comm, folder, config)
        first = first or record
        if comm.rank == 0:
            assert_same(first, record)


@pytest.mark.several_ranks
def test_empty_ranks(comm, mpi_tmp_path):
    """Two nodes, as many parts as ranks: most ranks own nothing and still take part."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, num_events=120, num_users=1, num_items=1, **RICH) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", comm.size, "random")
    compare_with_one_rank(comm, parts, make_config(train__batch_size=10, task__negative_pool="all"))


@pytest.mark.several_ranks
def test_more_ranks_than_parts(comm, mpi_tmp_path):
    """Refused on all ranks, with the remedy."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts", comm.size - 1)
    with pytest.raises(
        DistributedError, match=f"{comm.size} ranks but only {comm.size - 1} parts.*--parts {comm.size}"
    ):
        open_session(comm, parts, make_config())


# -------------------------------------------------------------------------------------------------- against plain loops

REFERENCE_CASES = {
    "bipartite": (bipartite, PLAIN, {"model__dropout": 0.0, "model__learn_phase": True}),
    "ties, features, dropout": (
        bipartite,
        TIES | RICH,
        {"model__dropout": 0.3, "model__learn_phase": True, "memory__update_at": "user"},
    ),
    "uniform": (
        bipartite,
        RICH,
        {"sampling__strategy": "uniform", "task__negatives": 3, "train__seed": (7 << 40) + 9},
    ),
    "in-batch off": (bipartite, PLAIN, {"sampling__in_batch_neighbors": False}),
    "stale memory": (bipartite, RICH, {"memory__staleness": 2}),
    "stale memory at user, self-loops": (
        homogeneous,
        RICH,
        {"memory__staleness": 1, "memory__update_at": "user"},
    ),
    "self-loops": (homogeneous, RICH, {"model__heads": 4}),
    "self-loops, uniform": (
        homogeneous,
        TIES,
        {"sampling__strategy": "uniform", "sampling__in_batch_neighbors": False},
    ),
}


@pytest.mark.parametrize("case", long_but(REFERENCE_CASES, ("ties, features, dropout", "self-loops").__contains__))
def test_training_equals_plain_loops(comm, mpi_tmp_path, case):
    """Losses of the first steps, and node memory after them, equal those of an independent reference."""
    make_graph, graph_options, changes = REFERENCE_CASES[case]
    steps, graph = 6, mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: make_graph(graph, **graph_options) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    config = make_config(**{"train__batch_size": 25, "train__lr": 0.01, **changes})
    initial = dict(open_session(comm, parts, config).model.named_parameters())
    record = record_epoch(comm, parts, config, steps)
    if comm.rank > 0:
        return
    plain = read_plain(graph)
    train_events = int((plain.time <= np.quantile(plain.time, 0.7)).sum())
    settings = Settings(
        config.train.batch_size, train_events, config.sampling.fanout(0), config.model.heads, config.task.negatives,
        config.sampling.strategy, config.sampling.in_batch_neighbors, config.model.dropout, config.train.lr,
        config.train.seed, staleness=config.memory.staleness,
    )  # fmt: skip
    reference = Reference(initial, Graph(**vars(plain)), settings)
    losses = [reference.train_step(step) for step in range(steps)]
    assert len(set(losses)) == steps
    np.testing.assert_allclose(record.losses, losses, rtol=1e-9)


def test_self_loop_is_one_entry_and_one_mail(comm, mpi_tmp_path):
    """In the history an event counts once per distinct endpoint; the mail of a loop is [self | self | event]."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: homogeneous(graph, **RICH) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    config = make_config()
    partition = open_partition(parts, comm.rank, comm.size)
    degree = np.diff(partition.history.indptr)
    session = open_session(comm, parts, config)
    degree = by_flat_row(session, degree)
    record = record_epoch(comm, parts, config)
    if comm.rank > 0:
        return
    plain, width = read_plain(graph), config.memory.dim
    loops = plain.src == plain.dst
    expected = np.bincount(plain.src, minlength=plain.num_nodes) + np.bincount(
        plain.dst[~loops], minlength=plain.num_nodes
    )
    assert np.array_equal(degree, expected)
    last = last_events(plain, len(record.events["row"]))
    ended_in_loop = [node for node, event in last.items() if loops[event]]
    assert ended_in_loop
    for node in ended_in_loop:
        mail = record.memory["mail"][node]
        assert np.array_equal(mail[:width], mail[width : 2 * width])
        np.testing.assert_allclose(mail[2 * width :], plain.feature[last[node]], rtol=1e-7)


def last_events(plain, stop: int, start: int = 0) -> dict[int, int]:
    """The last event of every node among event rows start .. stop - 1."""
    last = {}
    for event in range(start, stop):
        last[int(plain.src[event])] = last[int(plain.dst[event])] = event
    return last


# ----------------------------------------------------------------------------------------------------------- no leakage


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
@pytest.mark.parametrize("in_batch", [True, False])
def test_nothing_comes_from_the_future(comm, mpi_tmp_path, strategy, in_batch):
    """Neighbors are events of the root strictly before its time, and without in-batch neighbors of earlier batches;
    after every step a node's mail is that of its last event so far."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, ticks=200, edge_width=2) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    config = make_config(sampling__strategy=strategy, sampling__in_batch_neighbors=in_batch)
    record = record_epoch(comm, parts, config)
    if comm.rank > 0:
        return
    plain, events, size = read_plain(graph), record.events, config.train.batch_size
    valid = events["neighbor"] >= 0
    neighbor_event = np.rint(events["edge"][..., 0] * ROW_SCALE).astype(np.int64)
    row = np.broadcast_to(events["row"][:, None, None], valid.shape)
    root = np.broadcast_to(events["root"][:, :, None], valid.shape)
    chosen, at = neighbor_event[valid], row[valid]
    assert (plain.time[chosen] < plain.time[at]).all()
    assert np.array_equal(plain.time[at] - plain.time[chosen], events["dt"][valid])
    pair = {(min(a, b), max(a, b)) for a, b in zip(root[valid], events["neighbor"][valid], strict=True)}
    assert pair <= {(min(a, b), max(a, b)) for a, b in zip(plain.src, plain.dst, strict=True)}
    assert ((plain.src[chosen] == root[valid]) | (plain.dst[chosen] == root[valid])).all()
    in_same_batch = chosen // size == at // size
    assert in_same_batch.any() == in_batch
    check_mail_times(plain, record.mailed, size)


def check_mail_times(plain, mailed: list[np.ndarray], batch_size: int) -> None:
    """After step k the mail of a node has the time of its last event in batches 0 .. k."""
    expected, begin = np.full(plain.num_nodes, -1), 0
    train_events = int((plain.time <= np.quantile(plain.time, 0.7)).sum())
    for times in mailed:
        end = min(begin + batch_size, train_events)
        for node, event in last_events(plain, end, begin).items():
            expected[node] = plain.time[event]
        assert np.array_equal(times, expected)
        begin = end


def test_batches_by_time_keep_ties_together(comm, mpi_tmp_path):
    """Equal times are in one step, steps are in order of time, and every training event is in exactly one."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, **TIES) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    record = record_epoch(comm, parts, make_config(sampling__batch_by="time"))
    if comm.rank > 0:
        return
    time = read_plain(graph).time
    rows, step = record.events["row"], record.events["step"]
    assert np.array_equal(rows, np.arange(len(rows)))
    assert (np.diff(step) >= 0).all()
    assert ((np.diff(step) == 0) | (np.diff(time[rows]) > 0)).all()


@pytest.mark.parametrize(("options", "span"), [(PLAIN, 3), (PLAIN, 500), (TIES, 7), ({"start": -5000}, 500)])
def test_batches_are_windows_of_time(comm, mpi_tmp_path, options, span):
    """Windows begin at multiples of the span; empty ones are no steps, and those beyond train.batch_size are cut into
    the fewest nearly equal batches; the log names their number."""
    graph, most = mpi_tmp_path / "graph.h5", 20
    on_rank_0(comm, lambda: bipartite(graph, **options) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    config = make_config(sampling__batch_by="span", sampling__batch_span=span, train__batch_size=most)
    session = open_session(comm, parts, config)
    time, bounds, lines = read_plain(graph).time.tolist(), session.graph.splits.bounds.tolist(), session.describe()
    for split, begin, end in zip(("train", "val", "test"), bounds[:-1], bounds[1:], strict=True):
        windows = Counter(math.floor(time[row] / span) for row in range(begin, end))
        sizes = []
        for window in sorted(windows):
            count, pieces = windows[window], -(-windows[window] // most)
            sizes += np.diff([count * number // pieces for number in range(pieces + 1)]).tolist()
        batches = session.batches[split]
        assert batches.sizes.tolist() == sizes
        assert batches.first_row.tolist() == [begin, *(begin + np.cumsum(sizes)[:-1]).tolist()]
        for step in range(batches.num_steps):
            assert len({when // span for when in batches.events.time[batches.at(step)].tolist()}) <= 1
        if split == "train":
            assert len(sizes) > 10
            assert any(f"{span} units of time: {len(windows)} windows with training" in line for line in lines)
    session.close()


def test_hidden_nodes_are_not_shown(comm, mpi_tmp_path):
    """In training they are no endpoint, no negative and no neighbor, and events of all others are all there."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    record = record_epoch(comm, parts, make_config(data__new_node_ratio=0.15))
    if comm.rank > 0:
        return
    plain, hidden = read_plain(graph), record.hidden
    assert 1 <= len(hidden) <= 0.4 * plain.num_nodes
    assert not hidden & set(record.events["root"].ravel().tolist())
    assert not hidden & set(record.events["neighbor"].ravel().tolist())
    train_events = int((plain.time <= np.quantile(plain.time, 0.7)).sum())
    touched = np.isin(plain.src, list(hidden)) | np.isin(plain.dst, list(hidden))
    assert np.array_equal(record.events["row"], np.flatnonzero(~touched[:train_events]))
    later = set(plain.src[train_events:]) | set(plain.dst[train_events:])
    assert hidden <= later


# --------------------------------------------------------------------------------------------------- batches, negatives


@pytest.mark.parametrize("batch_size", [1, 7, 40, 10_000])
def test_every_event_is_handled_once_and_no_rank_gets_more_than_its_share(comm, mpi_tmp_path, batch_size):
    """At most ceil(B / R) events of a step on a rank, although one user causes most events."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph, num_users=3) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    session = open_session(comm, parts, make_config(train__batch_size=batch_size))
    for name in ("train", "val", "test"):
        batches = session.batches[name]
        mine = np.diff(batches.indptr)
        assert (mine <= -(-batches.sizes // comm.size)).all()
        assert np.array_equal(session.world.reduce_array(mine), batches.sizes)
        rows = session.world.gather_rows(batches.events.row)
        if comm.rank == 0:
            assert len(np.unique(rows)) == len(rows) == batches.sizes.sum()
        step = np.repeat(np.arange(len(mine)), mine)
        begin = batches.first_row[0]
        assert np.array_equal((batches.events.row - begin) // batch_size, step)
    total = sum(int(batches.sizes.sum()) for batches in session.batches.values())
    assert total == session.partition.num_events


@pytest.mark.parametrize("pool", ["destinations", "all"])
def test_negatives_are_uniform_over_the_pool(comm, mpi_tmp_path, pool):
    """Chi-square over all nodes of the pool but each event's own destination, in training; evaluation draws other
    numbers, the same in every epoch."""
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph) and None)
    parts = make_parts(comm, graph, mpi_tmp_path / "parts")
    session = open_session(comm, parts, make_config(task__negatives=40, task__negative_pool=pool))
    partition, world = session.partition, session.world
    drawn = [session.loaders["train"].negatives(epoch).whole().dst for epoch in (0, 1)]
    assert not np.array_equal(*drawn) or len(drawn[0]) == 0
    assert np.array_equal(
        session.loaders["val"].negatives(0).whole().dst, session.loaders["val"].negatives(1).whole().dst
    )
    flat = world.gather_rows(partition.flat_row), world.gather_rows(partition.book.local_to_global(comm.rank))
    ids = world.gather_rows(np.concatenate(drawn).ravel())
    if comm.rank > 0:
        return
    plain = read_plain(graph)
    train_events = int((plain.time <= np.quantile(plain.time, 0.7)).sum())
    members = np.unique(plain.dst[:train_events]) if pool == "destinations" else np.arange(plain.num_nodes)
    flat_of = np.empty(plain.num_nodes, np.int64)
    flat_of[flat[1]] = flat[0]
    counts = np.bincount(flat_of[ids], minlength=plain.num_nodes)
    assert counts.sum() == counts[members].sum() == 2 * 40 * train_events
    others = 1 - np.bincount(plain.dst[:train_events], minlength=plain.num_nodes)[members] / train_events
    assert chisquare(counts[members], counts.sum() * others / (len(members) - 1)).pvalue > 1e-4


def test_metrics_are_exact(comm):
    """Average precision and AUC over the scores of all ranks, ties included, equal scikit-learn's over the whole."""
    world = World(CommConfig(device="cpu", threads=1), comm)
    rng = np.random.default_rng(comm.rank)
    count = 0 if comm.rank == 1 else 50 + 13 * comm.rank
    positive, negative = rng.integers(3, 20, count) / 4, rng.integers(0, 17, (count, 3)) / 4
    inductive = rng.random(count) < 0.3
    result = link_metrics(positive, negative, world, inductive)
    pieces = [np.concatenate(comm.allgather(values)) for values in (positive, negative, inductive)]
    for prefix, keep in (("", np.ones(len(pieces[0]), bool)), ("inductive_", pieces[2])):
        scores = np.concatenate([pieces[0][keep], pieces[1][keep].ravel()])
        labels = np.repeat([1, 0], [keep.sum(), 3 * keep.sum()])
        assert result[prefix + "ap"] == pytest.approx(average_precision_score(labels, scores), rel=1e-12)
        assert result[prefix + "auc"] == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)


def test_a_closed_session_has_no_communicators(comm, mpi_tmp_path):
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph) and None)
    session = open_session(comm, make_parts(comm, graph, mpi_tmp_path / "parts"), make_config())
    trainer = Trainer(session, mpi_tmp_path, lambda *_, **__: None, StopRequest())
    trainer.close()
    session.close()
    left = [
        session.graph.channel.mpi,
        *(channel.mpi for channel in session.loaders["train"].channels()),
        trainer.optimizer._sum._comm,
    ]
    assert left == [MPI.COMM_NULL] * 3


@pytest.mark.parametrize("kind", ["random", "all"])
def test_means_of_batches(comm, mpi_tmp_path, kind):
    """Means over batches are those of scikit-learn's values of each batch, and of the reciprocal ranks."""
    changes = {"eval__negative_kind": kind, "eval__batch_means": True, "eval__batch_size": 7, "task__negatives": 2}
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: homogeneous(graph) and None)
    session = open_session(comm, make_parts(comm, graph, mpi_tmp_path / "parts"), make_config(**changes))
    scores, batches = session.scores("val"), session.batches["val"]
    metrics = split_metrics(session, "val", scores)
    gathered = {name: session.world.gather_rows(column) for name, column in scores.columns().items()}
    step = session.world.gather_rows(np.repeat(np.arange(batches.num_steps), np.diff(batches.indptr)))
    session.close()
    if comm.rank == 0:
        found = []
        for of_step in (step == number for number in range(batches.num_steps)):
            own = {name: values[of_step] for name, values in gathered.items()}
            if kind == "all":
                found.append((1 / own["rank"]).mean())
            else:
                truth = np.repeat([1, 0], [of_step.sum(), 2 * of_step.sum()])
                scored = np.concatenate([own["positive"], own["negative"].ravel()]).astype(np.float32)
                found.append(average_precision_score(truth, scored))
        assert metrics["mrr_per_batch" if kind == "all" else "ap_per_batch"] == pytest.approx(np.mean(found), abs=1e-9)
        assert len(found) > 3
        assert metrics["mrr" if kind == "all" else "ap"] != pytest.approx(np.mean(found), abs=1e-9)


@pytest.mark.parametrize(("kind", "hidden"), [("random", 0.3), ("all", 0.3), ("random", 0.0)])
def test_events_with_one_new_end_and_with_two(comm, mpi_tmp_path, kind, hidden):
    """Metrics of events with one end, and with both, that no training event has, equal a loop over the events of the
    graph file; nothing is reported where a split has no such event."""
    changes = {"data__new_node_ratio": hidden, "eval__negative_kind": kind, "task__negatives": 2}
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: homogeneous(graph) and None)
    session = open_session(comm, make_parts(comm, graph, mpi_tmp_path / "parts"), make_config(**changes))
    world, batches = session.world, session.batches
    names = session.goal.metric_names()
    metrics, scored = {}, {}
    for split in ("val", "test"):
        scores = session.scores(split)
        metrics[split] = split_metrics(session, split, scores)
        rows = {"row": batches[split].events.row} | scores.columns()
        scored[split] = {name: world.gather_rows(column) for name, column in rows.items()}
    trained = world.gather_rows(batches["train"].events.row)
    session.close()
    if comm.rank > 0:
        return
    plain = read_plain(graph)
    seen = set(plain.src[trained].tolist()) | set(plain.dst[trained].tolist())
    for split, columns in scored.items():
        new = [(plain.src[row] not in seen) + (plain.dst[row] not in seen) for row in columns["row"]]
        for prefix, count in (("new_old_", 1), ("new_new_", 2)):
            own = {name: values[np.array(new) == count] for name, values in columns.items()}
            expected = {}
            if kind == "all":
                expected["mrr"] = np.mean([1 / rank for rank in own["rank"]])
            elif len(own["row"]):
                truth = np.repeat([1, 0], [len(own["row"]), 2 * len(own["row"])])
                score = np.concatenate([own["positive"], own["negative"].ravel()]).astype(np.float32)
                expected = {"ap": average_precision_score(truth, score), "auc": roc_auc_score(truth, score)}
            found = {name: value for name, value in metrics[split].items() if name.startswith(prefix)}
            assert set(found) <= set(names)
            assert (hidden > 0) == bool(len(own["row"])) == bool(found)
            for name, value in expected.items():
                assert found[prefix + name] == pytest.approx(value, abs=1e-12)
