"""Labels of nodes and edges in later snapshots: one answer on any number of ranks, and what is refused."""

import numpy as np
import pytest
import torch
from snapshot_runs import assert_like_one_rank, make_config, open_session, random_graph, write_parts
from torch.nn.functional import cross_entropy

from hpcgnn.comm.world import DistributedError

LABELS = {"train__batch_size": 3, "task__target": "label"}
VARIANTS = {
    "node, by time": {"task__kind": "node", "task__class_weights": [1.0, 2.0, 0.5]},
    "node, one class for all": {"task__kind": "node", "task__target": "color", "task__horizon": 0},
    "node, nothing said": {"task__kind": "node"},
    "node, by nodes": {"task__kind": "node", "task__target": "color", "data__split_by": "nodes"},
    "node, windows": {"task__kind": "node", "sampling__window_size": 2},
    "edge": {"task__kind": "edge", "task__target": "sign", "task__class_weights": [0.1, 0.9]},
    "edge, windows": {"task__kind": "edge", "task__target": "sign", "sampling__window_size": 2},
    "edge, number": {"task__kind": "edge_regression", "task__target": "rating", "task__loss": "mae"},
    "edge, own snapshot": {"task__kind": "edge_regression", "task__target": "rating", "task__horizon": 0},
}


def labeled_graph(seed=6, nodes=40, snapshots=12):
    """Few edges: ranks have none of some snapshots; labels that are not known; snapshots without edges."""
    graph, rng = random_graph(seed, nodes, snapshots, 12, empty=(4, 11)), np.random.default_rng(seed)
    graph.series["label"] = rng.integers(-1, 3, (nodes, snapshots)).astype(np.int8)
    graph.nodes["color"] = rng.integers(-1, 2, nodes).astype(np.int16)
    graph.nodes["split"] = rng.integers(0, 3, nodes).astype(np.uint8)
    graph.edges["sign"] = rng.integers(-1, 2, len(graph.src)).astype(np.int8)
    graph.edges["rating"] = np.where(rng.random(len(graph.src)) < 0.2, np.nan, rng.random(len(graph.src)))
    return graph


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_number_of_ranks_gives_one_answer(comm, mpi_tmp_path, variant):
    parts = write_parts(comm, mpi_tmp_path, labeled_graph())
    _, metrics = assert_like_one_rank(comm, parts, make_config(**{**LABELS, **VARIANTS[variant]}))
    assert not np.isnan(next(iter(metrics.values())))


def test_loss_is_the_mean_over_known_labels(comm, mpi_tmp_path):
    """Of nodes one column of classes, weighted; split by nodes: training's alone."""
    graph = labeled_graph()
    config = {**LABELS, "task__kind": "node", "task__class_weights": [1.0, 2.0, 0.5]}
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), make_config(**config))
    torch.manual_seed(0)
    outputs = torch.randn(40, 3, dtype=torch.float64)
    mine = outputs[session.partition.flat_row]
    loss = session.goal.loss(session.goal.score(mine, session.goal.want("train", 0, 2), None))
    label = torch.from_numpy(graph.series["label"][:, 3].astype(np.int64))
    known = label >= 0
    expected = cross_entropy(outputs[known], label[known], torch.tensor([1, 2, 0.5]).double(), reduction="sum")
    assert session.world.total(loss.item()) == pytest.approx(expected.item(), rel=1e-12)
    assert session.goal.roots[2] == known.sum()
    session.close()


def test_edges_are_seen_with_their_own_ends(comm, mpi_tmp_path):
    """Rows of both ends [source | destination] and the label of every edge, from outputs that name the nodes."""
    graph = labeled_graph()
    config = make_config(**{**LABELS, "task__kind": "edge_regression", "task__target": "rating"})
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    flat, wanted = torch.from_numpy(session.partition.flat_row), session.goal.want("train", 0, 1)
    rows = flat if wanted.reach.route is None else wanted.reach.route.pull(flat)[0]
    columns = rows[wanted.source], rows[wanted.destination], wanted.value
    source, destination, value = (np.concatenate(session.world.allgather(c.numpy())) for c in columns)
    session.close()
    here = (graph.first == 2) & ~np.isnan(graph.edges["rating"])
    expected = zip(graph.src[here], graph.dst[here], graph.edges["rating"][here], strict=True)
    assert sorted(zip(source, destination, value, strict=True)) == sorted(expected)


def frozen_graph():
    """What is to be learned is the same in all snapshots, and so are the edges."""
    graph = labeled_graph()
    graph.series |= {
        "fixed": np.repeat(graph.nodes["color"][:, None], 12, axis=1),
        "height": np.repeat(np.arange(40.0)[:, None], 12, axis=1),
    }
    graph.first, graph.last = np.zeros(len(graph.src), np.int64), np.full(len(graph.src), 11)
    return graph


@pytest.mark.parametrize(("changes", "reason"), [
    ({"task__kind": "node", "task__target": "color", "data__split_by": "time"},
     "data.split_by time: .*color is the same"),
    ({"task__kind": "node", "task__target": "fixed", "data__split_by": "time"},
     "data.split_by time: .*fixed is the same"),
    ({"task__kind": "node", "task__target": "fixed", "inputs__lags": 1}, "inputs.lags would show the labels .*fixed"),
    ({"task__kind": "node", "task__target": "fixed", "data__val_ratio": 0.3}, "data.val_ratio has no effect"),
    ({"task__target": "height"}, "task.target height is the same in all snapshots"),
    ({"task__target": "degree"}, "task.target degree is the same in all snapshots"),
    ({"task__target": "degree", "task__horizon": 0}, "task.target degree counts the edges"),
    ({"task__kind": "edge", "task__target": "sign"}, "task.target sign: every later edge is one of training"),
    ({"task__kind": "edge_regression", "task__target": "rating"}, "task.target rating: every later edge"),
])  # fmt: skip
def test_what_does_not_change_is_not_tested_later(comm, mpi_tmp_path, changes, reason):
    """A later snapshot would test what was trained on: a random class at an accuracy far above chance."""
    parts = write_parts(comm, mpi_tmp_path, frozen_graph())
    with pytest.raises(DistributedError, match=reason):
        open_session(comm, parts, make_config(**{**LABELS, **changes}))


@pytest.mark.parametrize("target", ["color", "fixed"])
def test_classes_that_do_not_change_are_split_by_nodes(comm, mpi_tmp_path, target):
    """Unless something else is asked for: no node is in two splits."""
    graph = frozen_graph()
    config = make_config(**{**LABELS, "task__kind": "node", "task__target": target})
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    flat = session.partition.flat_row
    rows = {name: flat[session.goal.want(name, 0, 3).row.numpy()] for name in ("train", "val", "test")}
    for number, (name, mine) in enumerate(rows.items()):
        found = np.concatenate(session.world.allgather(mine))
        expected = np.flatnonzero((graph.nodes["color"] >= 0) & (graph.nodes["split"] == number))
        assert np.array_equal(np.sort(found), expected), name
    assert "split by the nodes' column split" in session.goal.describe()
    session.close()


def test_edges_that_stay_are_told(comm, mpi_tmp_path):
    """Of 12 edges in every later snapshot those that training has had, with the same label, by hand."""
    graph = labeled_graph()
    graph.last = np.minimum(graph.first + 3, 11)
    graph.edges["sign"] = np.zeros_like(graph.edges["sign"])
    config = make_config(**LABELS, task__kind="edge", data__val_snapshots=1, data__test_snapshots=2)
    config.task.target = "sign"
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    splits = {name: loader.snapshots for name, loader in session.loaders.items()}
    assert [(found.start, found.stop) for found in splits.values()] == [(0, 8), (8, 9), (9, 11)]
    trained = {(src, dst) for src, dst, first in zip(graph.src, graph.dst, graph.first, strict=True) if first <= 8}
    later = [
        (src, dst) in trained
        for number in (9, 10, 11)
        for src, dst, first, last in zip(graph.src, graph.dst, graph.first, graph.last, strict=True)
        if first <= number <= last
    ]
    assert f"; {np.mean(later):.0%} of the later edges are in training" in session.goal.describe()
    session.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task__kind": "node", "task__target": "colors"}, "task.target colors: no such column of nodes"),
        ({"task__kind": "node", "task__target": "target"}, "is no class"),
        ({"task__kind": "node", "task__classes": 2}, "below task.classes = 2"),
        ({"task__kind": "node", "task__class_weights": [1.0, 1.0]}, "has 2 numbers, the data 3 classes"),
        ({"task__kind": "edge", "task__target": "signs"}, "signs: no such column of edges"),
        ({"task__kind": "edge", "task__target": "rating"}, "is no class"),
        ({"task__kind": "node", "task__target": "pair"}, r"column pair of nodes must be one class each, got \(2,\)"),
        ({"task__kind": "node", "data__split_by": "nodes"}, "data.split_by nodes needs a column split of the nodes"),
        ({"task__target": "labels"}, "task.target labels: no such column of every snapshot; the graph has .*label"),
        ({"task__target": "labels"}, ": set task.target to one of these"),
        ({"task__kind": "edge", "task__target": "target"}, "target: no such column of edges; .* has .*sign"),
        ({"task__target": "label", "node_embedding__dim": 0}, "nodes have no inputs: set inputs.degrees"),
        (
            {"task__kind": "node", "task__target": "color", "inputs__lags": 2},
            "inputs.lags needs a column color of every",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused(comm, mpi_tmp_path, changes, reason):
    """Of a graph without features, whose nodes are in no split."""
    graph = labeled_graph()
    graph.nodes["pair"] = np.zeros((40, 2), np.int8)
    del graph.nodes["split"], graph.series["feat"]
    with pytest.raises(DistributedError, match=reason):
        open_session(comm, write_parts(comm, mpi_tmp_path, graph), make_config(**{**LABELS, **changes}))


@pytest.mark.parametrize(("kind", "there", "remedy"), [
    ("node", "split, label", "label"), ("regression", "label", "label"),
    ("edge", "weight, rating, sign", "to one of these"),
])  # fmt: skip
def test_a_target_without_its_key_is_named(comm, mpi_tmp_path, kind, there, remedy):
    """A graph whose columns are not called as the default of task.target."""
    graph = labeled_graph()
    del graph.nodes["color"], graph.series["feat"], graph.series["target"]
    said = rf"task.target target: no such column .* has {there}: set task.target {remedy}"
    with pytest.raises(DistributedError, match=said):
        open_session(comm, write_parts(comm, mpi_tmp_path, graph), make_config(task__kind=kind))


@pytest.mark.parametrize(
    ("variant", "described", "names"),
    [
        ("node, by time", "3 classes of nodes, 1 snapshots later", ("accuracy", "macro_f1")),
        ("edge", "2 classes of every edge (column sign), 1 snapshots later", ("accuracy", "macro_f1", "ap", "auc")),
        ("edge, number", "a number of every edge (column rating), 1 snapshots later", ("mse", "mae", "rmse")),
    ],
)
def test_what_is_learned_is_described(comm, mpi_tmp_path, variant, described, names):
    """With the metrics by name; a step without targets, as of a group that has no snapshot of it, adds nothing."""
    parts = write_parts(comm, mpi_tmp_path, labeled_graph())
    session = open_session(comm, parts, make_config(**{**LABELS, **VARIANTS[variant]}))
    goal, outputs = session.goal, torch.ones(2, 3)
    assert goal.describe() == described
    assert goal.metric_names() == names
    assert goal.train_measure()[0] == names
    assert goal.in_units(outputs, 0) is outputs
    nothing = goal.join([], training=True)
    assert nothing.output.shape == (0, max(1, goal.classes))
    assert nothing.label.dtype == (torch.int64 if goal.classes else torch.float32)
    session.close()
