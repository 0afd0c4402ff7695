"""Runs on snapshots: the losses, gradients and scores of any number of ranks are those of one."""

import numpy as np
import pytest
import torch
from snapshot_runs import (
    assert_like_one_rank,
    make_config,
    make_parts,
    open_session,
    random_graph,
    run_epochs,
    write_parts,
)

from hpcgnn.comm.world import DistributedError

VARIANTS = {
    "carried": {"train__batch_size": 3},
    "carried, whole": {"train__batch_size": 100, "model__kind": "gcn"},
    "windows": {"sampling__window_size": 3, "train__batch_size": 4, "sampling__shuffle": True},
    "learned inputs": {"node_embedding__dim": 4, "model__layers": 2, "model__dropout": 0.2, "train__batch_size": 3},
    "fresh routes": {"sampling__routes": "fresh", "train__batch_size": 3, "inputs__degrees": "log"},
    "ahead": {"sampling__prefetch": 2, "train__batch_size": 2, "inputs__degrees": "onehot"},
    "boundary": {"sampling__halo_ratio": 0.5, "model__layers": 2, "train__batch_size": 3},
    "boundary, windows": {
        "sampling__halo_ratio": 0.3,
        "sampling__window_size": 2,
        "model__layers": 2,
        "train__batch_size": 4,
        "node_embedding__dim": 3,
        "model__edge_weights": False,
    },
    "several steps": {
        "task__forecast_steps": 2,
        "task__loss": "mae",
        "task__horizon": 0,
        "train__batch_size": 5,
        "inputs__lags": 0,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_number_of_ranks_gives_one_answer(comm, mpi_tmp_path, variant):
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(**{"inputs__lags": 2, **VARIANTS[variant]})
    assert_like_one_rank(comm, parts, config)


@pytest.mark.parametrize(("weighted", "unread"), [(True, "color"), (False, "color, weight")])
def test_columns_of_edges_that_nothing_reads_stay_in_the_file(comm, mpi_tmp_path, weighted, unread):
    """And are named at the start."""
    graph = random_graph(5, 24, 9, 20)
    graph.edges["color"] = np.arange(len(graph.src))
    parts = write_parts(comm, mpi_tmp_path, graph, parts=4)
    session = open_session(comm, parts, make_config(model__edge_weights=weighted))
    assert session.partition.edge_columns == ("weight",) * weighted
    assert session.describe()[-1].startswith(f"edge columns not read: {unread} (")
    with pytest.raises(ValueError, match=r"the graph has .*color"):
        session.partition.edge_column("color")
    session.close()


def test_empty_snapshots_and_silent_nodes(comm, mpi_tmp_path):
    """Snapshots without edges, also at both ends; nodes that no snapshot shows; targets that are not known."""
    graph = random_graph(5, 24, 9, 20, empty=(0, 4, 8))
    kept = (graph.src < 20) & (graph.dst < 20)
    graph.src, graph.dst, graph.first = graph.src[kept], graph.dst[kept], graph.first[kept]
    graph.edges["weight"] = graph.edges["weight"][kept]
    graph.series["target"][22] = np.nan
    parts = write_parts(comm, mpi_tmp_path, graph, parts=4)
    assert_like_one_rank(comm, parts, make_config(train__batch_size=2))


def test_degrees_are_learned_where_the_graph_has_no_numbers(comm, mpi_tmp_path):
    """The target ``degree`` is log of 1 + in-degree; the last step of an epoch that is not whole may be left out."""
    graph = random_graph(5, 24, 9, 20, empty=(4,))
    config = make_config(task__target="degree", train__batch_size=2, train__drop_last=True, sampling__window_size=1)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph, parts=4), config)
    degree = np.zeros((24, 9))
    np.add.at(degree, (graph.dst, graph.first), 1)
    assert np.allclose(session.partition.series["degree"], np.log1p(degree)[session.partition.flat_row])
    loader = session.loaders["train"]
    assert len(loader.snapshots) == 5
    assert [len(targets) for targets in loader.batches.targets] == [2, 2]
    assert len(loader) == 2
    session.close()


@pytest.mark.parametrize(("splits", "changes", "expected"), [
    ({"train": (0, 4), "val": (5, 6), "test": (7, 8)}, {}, [(0, 4), (4, 6), (6, 8)]),
    ({"train": (0, 4), "val": (5, 6), "test": (7, 8)}, {"task__horizon": 2}, [(0, 3), (3, 5), (5, 7)]),
    ({"train": (0, 4), "test": (5, 8)}, {"sampling__window_size": 2}, [(1, 4), (4, 4), (4, 8)]),
    ({"train": (0, 4), "val": (5, 6), "test": (7, 8)}, {"data__split_by": "time"}, [(0, 5), (5, 6), (6, 8)]),
])  # fmt: skip
def test_splits_of_the_graph_count_where_they_are_asked_for(comm, mpi_tmp_path, splits, changes, expected):
    """A prediction is of the split of the snapshot that it is for."""
    graph = random_graph(5, 24, 9, 20)
    graph.splits = splits
    session = open_session(
        comm, write_parts(comm, mpi_tmp_path, graph, parts=4), make_config(**{"data__split_by": "graph"} | changes)
    )
    found = [session.loaders[name].snapshots for name in ("train", "val", "test")]
    assert [(snapshots.start, snapshots.stop) for snapshots in found] == expected
    told = any("not the splits of the graph: see data.split_by" in line for line in session.describe())
    assert told == ("data__split_by" in changes)
    session.close()


def half_known():
    """A graph of whose target numbers are missing, one node's all."""
    graph, rng = random_graph(5, 24, 9, 20), np.random.default_rng(3)
    graph.series["target"][rng.random((24, 9)) < 0.4] = np.nan
    graph.series["target"][22] = np.nan
    return graph


def test_numbers_that_are_not_known_are_no_inputs(comm, mpi_tmp_path):
    graph = random_graph(5, 24, 9, 20)
    graph.series["target"][22, 3] = np.nan
    parts = write_parts(comm, mpi_tmp_path, graph, parts=4)
    reason = (
        r"inputs.lags: target of the node in row 22 of the graph file is not known in snapshot 3 \(1 such numbers at "
        "this rank\\): set inputs.unknown to last or zero"
    )
    with pytest.raises(DistributedError, match=reason):
        open_session(comm, parts, make_config(inputs__lags=2))


@pytest.mark.parametrize("unknown", ["last", "zero"])
def test_inputs_that_are_not_known_are_filled_by_what_was(comm, mpi_tmp_path, unknown):
    """Never by later numbers: by a loop over snapshots."""
    graph = half_known()
    config = make_config(inputs__lags=2, inputs__unknown=unknown, node_embedding__dim=0, train__batch_size=2)
    del graph.series["feat"]
    parts = write_parts(comm, mpi_tmp_path, graph, parts=4)
    session = open_session(comm, parts, config)
    expected = np.zeros((24, 9), np.float32)
    for number in range(9):
        value = graph.series["target"][:, number]
        before = expected[:, number - 1] if number and unknown == "last" else 0
        expected[:, number] = np.where(np.isnan(value), before, value)
    for number in range(1, 9):
        found = session.task.inputs(number).numpy()
        assert np.array_equal(found, expected[session.partition.flat_row, number - 1 : number + 1])
    session.close()
    assert_like_one_rank(comm, parts, config)


def test_numbers_that_are_not_known_are_not_learned(comm, mpi_tmp_path):
    """Of several steps those that are known count, one by one: loss and metrics of outputs that are all 0.5."""
    graph = half_known()
    parts = write_parts(comm, mpi_tmp_path, graph, parts=4)
    session = open_session(
        comm, parts, make_config(task__forecast_steps=3, data__val_snapshots=1, data__test_snapshots=1)
    )
    goal, world = session.goal, session.world
    outputs = torch.full((session.partition.num_nodes, 3), 0.5, dtype=torch.float64)
    scores = goal.join([goal.score(outputs, goal.want("train", 0, number), None) for number in (1, 2)], False)
    errors = np.concatenate([graph.series["target"][:, number + 1 : number + 4].ravel() for number in (1, 2)]) - 0.5
    errors = errors[~np.isnan(errors)].astype(np.float64)
    assert goal.roots[1] + goal.roots[2] == len(errors)
    assert world.total(goal.loss(scores).item()) == pytest.approx((errors**2).sum(), rel=1e-6)
    assert goal._measure(scores.arrays(), world)["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-6)
    session.close()


@pytest.mark.serial
@pytest.mark.parametrize(("changes", "reason"), [
    ({"inputs__lags": 1, "task__horizon": 0}, "inputs.lags include the target of the predicted snapshot"),
    ({"inputs__lags": 1, "task__kind": "node", "data__split_by": "nodes"}, "inputs.lags would show the labels"),
    ({"task__kind": "link", "task__horizon": 0}, "messages pass along the edges that task.kind link predicts"),
    (
        {"task__kind": "edge_regression", "task__target": "weight", "task__horizon": 0},
        "messages are multiplied by the task.target weight",
    ),
    ({"data__val_ratio": 0.3, "data__val_snapshots": 2}, "val_ratio is 0.3, data.val_snapshots is 2: give one"),
    ({"data__split_by": "graph", "data__test_snapshots": 2}, "data.test_snapshots has no effect: data.split_by graph"),
    ({"inputs__unknown": "last"}, "inputs.unknown last is for inputs.lags, which are 0"),
    ({"train__drop_last": True}, "train.drop_last leaves snapshots out of the state that is carried on"),
])  # fmt: skip
def test_settings_that_show_or_lose_what_they_should_not_are_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        make_config(**changes)


LINKS = {"task__kind": "link", "task__negatives": 2, "eval__negatives": 3}
TIMED = {
    "roland": {"model__kind": "roland", "model__layers": 2, "train__batch_size": 3},
    "gconv_lstm": {"model__kind": "gconv_lstm", "model__layers": 2, "train__batch_size": 4},
    "evolvegcn_h": {"model__kind": "evolvegcn_h", "model__hidden": 4, "train__batch_size": 3},
    "mpnn_lstm": {"model__kind": "mpnn_lstm", "train__batch_size": 4},
    "links": {**LINKS, "train__batch_size": 3, "inputs__lags": 0},
    "links, one snapshot a step": {**LINKS, "train__batch_size": 1, "inputs__lags": 0},
    "links among all": {"task__kind": "link", "eval__ranking": "all", "train__batch_size": 1, "inputs__lags": 0},
    "answers": {"task__kind": "link", "eval__ranking": "filtered", "train__batch_size": 1, "inputs__lags": 0},
    "carried": {"train__batch_size": 3, "node_embedding__dim": 4},
    "one snapshot a step": {"train__batch_size": 1},
    "no state": {"train__batch_size": 4, "model__kind": "gcn"},
    "windows": {"sampling__window_size": 3, "train__batch_size": 4, "sampling__shuffle": True},
}


@pytest.mark.parametrize("variant", TIMED)
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_that_split_time_give_one_answer(comm, mpi_tmp_path, variant, groups):
    """Steps with fewer snapshots than groups too; where the ranks cannot be split so there are fewer groups."""
    parts = make_parts(comm, mpi_tmp_path)
    config = make_config(**{"inputs__lags": 2, "comm__time_groups": groups, **TIMED[variant]})
    assert_like_one_rank(comm, parts, config, groups)


@pytest.mark.parametrize("history", [0, 2])
def test_stale_rows_give_one_answer(comm, mpi_tmp_path, history):
    """Epochs with fresh rows are those of a run without; the others have the same losses (weights do not move) and
    other gradients."""
    parts = make_parts(comm, mpi_tmp_path)
    keys = {"inputs__lags": 2, "model__layers": 2, "train__batch_size": 3, "sampling__window_size": history}
    config = make_config(sampling__halo_staleness=2, **keys)
    found, _ = assert_like_one_rank(comm, parts, config, epochs=4)
    exact, _ = run_epochs(comm, parts, make_config(**keys), epochs=4)
    epochs, whole = found.reshape(4, -1, found.shape[1]), exact.reshape(4, -1, found.shape[1])
    assert np.allclose(epochs[[0, 3]], whole[[0, 3]], rtol=1e-9, atol=1e-11)
    assert np.allclose(epochs[..., 0], whole[..., 0], rtol=1e-9)
    assert not np.allclose(epochs[1], whole[1], rtol=1e-3)
