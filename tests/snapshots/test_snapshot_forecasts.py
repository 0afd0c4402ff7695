"""Forecasts of numbers: differences to the newest value, standardized inputs and targets, and rules without a model."""

import numpy as np
import pytest
import torch
from snapshot_runs import assert_like_one_rank, make_config, open_session, random_graph, write_parts
from test_snapshot_predict import opened, trained

from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.checkpoint_writer import load
from hpcgnn.loop.session import split_metrics
from hpcgnn.snapshots.baselines import BASELINES, baseline_metrics
from hpcgnn.snapshots.predict import forecast_nodes

NODES, SNAPSHOTS, SCALE = 24, 20, 70.0
CHANGES = {"data__val_snapshots": 3, "data__test_snapshots": 4, "train__batch_size": 4, "inputs__unknown": "last"}
VARIANTS = {
    "difference": {"task__difference_from": "newest"},
    "difference to a mean": {"task__difference_from": "moving_average", "inputs__lags": 3},
    "standardized": {"task__standardize": True, "inputs__standardize": True, "inputs__lags": 1},
    "both, two steps": {
        "task__difference_from": "newest", "task__standardize": True, "inputs__standardize": True,
        "task__forecast_steps": 2, "inputs__lags": 3, "task__loss": "mae",
    },
}  # fmt: skip


def make_graph(seed=5):
    """Numbers far from 0 that drift, some of them missing, in units of 1 / 70; one feature is constant."""
    graph = random_graph(seed, NODES, SNAPSHOTS, 20)
    rng = np.random.default_rng(seed)
    target = 9 + rng.standard_normal((NODES, 1)) + 0.3 * rng.standard_normal((NODES, SNAPSHOTS)).cumsum(1)
    target[rng.random((NODES, SNAPSHOTS)) < 0.1] = np.nan
    graph.series["target"] = target.astype(np.float32)
    graph.series["feat"][:, :, 1] *= 50
    graph.series["feat"][:, :, 2] = 0.1
    graph.attributes["target"] = {"scale": SCALE}
    return graph


def filled(graph):
    """The last known value of every node and snapshot, 0 before the first, by a plain loop."""
    found = np.zeros((NODES, SNAPSHOTS))
    for node in range(NODES):
        for number in range(SNAPSHOTS):
            value = graph.series["target"][node, number]
            found[node, number] = (found[node, number - 1] if number else 0) if np.isnan(value) else value
    return found


def later(graph, number, steps):
    """What is predicted from a snapshot [N, steps]."""
    return graph.series["target"][:, number + 1 : number + 1 + steps].astype(np.float64)


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_number_of_ranks_gives_one_answer(comm, mpi_tmp_path, variant):
    parts = write_parts(comm, mpi_tmp_path, make_graph())
    assert_like_one_rank(comm, parts, make_config(**CHANGES, **VARIANTS[variant]))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("is_standard", [False, True])
def test_outputs_are_added_to_the_newest_value(comm, mpi_tmp_path, steps, is_standard):
    """By hand: loss of the values themselves, and predictions in units of the source; missing values are left out."""
    graph, number = make_graph(), 6
    config = make_config(
        **CHANGES, task__difference_from="newest", task__forecast_steps=steps, task__standardize=is_standard
    )
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    goal, rows, newest = session.goal, session.partition.flat_row, filled(graph)
    outputs = np.random.default_rng(0).standard_normal((NODES, steps))
    mean, deviation = np.zeros(steps), np.ones(steps)
    if is_standard:
        training = session.loaders["train"].snapshots
        changes = np.concatenate([later(graph, t, steps) - newest[:, t, None] for t in training])
        mean, deviation = np.nanmean(changes, axis=0), np.nanstd(changes, axis=0)
    expected = newest[:, number, None] + mean + deviation * outputs
    mine = torch.from_numpy(outputs[rows])
    loss = goal.loss(goal.score(mine, goal.want("train", 0, number), None))
    errors = expected - later(graph, number, steps)
    assert session.world.total(loss.item()) == pytest.approx(np.nansum(errors**2), rel=1e-9)
    np.testing.assert_allclose(goal.in_units(mine, number), SCALE * expected[rows], rtol=1e-9)
    session.close()


def test_inputs_are_standardized_by_the_training_snapshots(comm, mpi_tmp_path):
    """Features and lags of all nodes; a constant becomes 0, and learnable embeddings stay as they are."""
    graph = make_graph()
    config = make_config(**CHANGES, inputs__lags=2, inputs__standardize=True, node_embedding__dim=2)
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), config)
    known, feat = filled(graph), graph.series["feat"].astype(np.float64)
    inputs = {t: np.column_stack([feat[:, t], known[:, t - 1 : t + 1]]) for t in range(1, SNAPSHOTS)}
    training = np.concatenate([inputs[t] for t in session.loaders["train"].snapshots])
    scaled = (inputs[5] - training.mean(0)) / np.where(training.std(0) < 1e-9, 1, training.std(0))
    plan = session.loaders["train"].planner.plan(session.batches["train"], 0, 1)
    learned = session.task._learned().detach()
    frame = next(f for f in session.task._frames(plan, HaloChain(), learned) if f.snapshots[0].number == 5)
    np.testing.assert_allclose(frame.inputs[:, 0, :5], scaled[session.partition.flat_row], rtol=1e-9, atol=1e-9)
    assert torch.equal(frame.inputs[:, 0, 5:], learned)
    session.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_predictions_give_the_metrics_of_the_test(comm, mpi_tmp_path, variant):
    """In units of the source, from what ``predict`` writes; means and deviations are those of the checkpoint."""
    graph, config = make_graph(), make_config(**CHANGES, **VARIANTS[variant], train__log_every=0)
    parts = write_parts(comm, mpi_tmp_path, graph)
    best = comm.bcast(trained(comm, parts, mpi_tmp_path, config))
    session = opened(comm, parts, config, best)
    split_metrics(session, "val", session.scores("val"))
    metrics, numbers = split_metrics(session, "test", session.scores("test")), session.loaders["test"].snapshots
    nodes = forecast_nodes(opened(comm, parts, config, best), SNAPSHOTS - numbers.start)
    steps, errors = config.task.forecast_steps, []
    for number in numbers:
        of = f"_from_{number}" if steps > 1 else ""
        columns = [nodes.columns[f"snapshot_{number + 1 + step}{of}"] for step in range(steps)]
        errors.append(np.stack(columns, axis=1) - SCALE * later(graph, number, steps)[nodes.row])
    squares, known = np.square(errors), np.isfinite(errors)
    mean = comm.allreduce(np.nansum(squares)) / comm.allreduce(known.sum())
    assert metrics["mse_units"] == pytest.approx(mean, rel=1e-6)
    again = open_session(comm, parts, config)
    for value in again.model.buffers():
        value.fill_(2.0)  # as by another graph's training snapshots
    load(again, best)
    for one, other in zip(session.model.buffers(), again.model.buffers(), strict=True):
        assert torch.equal(one, other)
    assert len(dict(session.model.named_buffers())) == 2 * (config.inputs.standardize + config.task.standardize)
    session.close()
    again.close()


@pytest.mark.parametrize("rule", ["newest", "moving_average"])
def test_no_difference_is_the_rule_again(comm, mpi_tmp_path, rule):
    """A model whose outputs are 0 has the metrics of the rule."""
    config = make_config(**CHANGES, task__difference_from=rule, task__forecast_steps=3, inputs__lags=4)
    parts, found = write_parts(comm, mpi_tmp_path, make_graph()), []
    for baseline in ("", rule):
        config.baseline.kind = baseline
        session = open_session(comm, parts, config)
        for parameter in session.model.output.parameters():
            torch.nn.init.zeros_(parameter)
        if baseline:
            found.append(baseline_metrics(session, config.baseline))
        else:
            found.append({
                f"{split}_{name}": value for split in ("val", "test")
                for name, value in split_metrics(session, split, session.scores(split)).items()
            })  # fmt: skip
        session.close()
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert {"val_mse", "test_mae_units"} <= set(found[1])


def ruled(graph, kind, training, lags, steps):
    """A function of a snapshot that returns the forecast of a rule [N, steps], by NumPy on the whole graph."""
    known, feat = filled(graph), graph.series["feat"].astype(np.float64)
    if kind in ("newest", "moving_average"):
        count = 1 if kind == "newest" else lags
        return lambda t: np.repeat(known[:, t + 1 - count : t + 1].mean(1, keepdims=True), steps, axis=1)
    inputs = lambda t: np.column_stack([feat[:, t], known[:, t + 1 - lags : t + 1], np.ones(NODES)])  # noqa: E731
    x = np.stack([inputs(t) for t in training])
    y = np.stack([later(graph, t, steps) for t in training])
    weight = np.empty((NODES, x.shape[2], steps))
    for node in range(NODES):
        rows = slice(None) if kind == "linear" else slice(node, node + 1)
        for step in range(steps):
            given, wanted = x[:, rows].reshape(-1, x.shape[2]), y[:, rows, step].ravel()
            there = np.isfinite(wanted)
            weight[node, :, step] = np.linalg.lstsq(given[there], wanted[there], rcond=None)[0]
    return lambda t: np.einsum("nf,nfs->ns", inputs(t), weight)


@pytest.mark.parametrize("kind", [kind for kind, row in BASELINES.items() if kind and row.task == "regression"])
@pytest.mark.parametrize("steps", [1, 2])
def test_rules_are_those_of_numpy(comm, mpi_tmp_path, kind, steps):
    """Missing targets, a constant feature beside the constant term, on any number of ranks."""
    graph, lags = make_graph(), 2
    changes = {"inputs__lags": lags, "task__forecast_steps": steps, "baseline__kind": kind}
    session = open_session(comm, write_parts(comm, mpi_tmp_path, graph), make_config(**CHANGES, **changes))
    found = baseline_metrics(session, session.config.baseline)
    splits = {name: session.loaders[name].snapshots for name in ("train", "val", "test")}
    session.close()
    rule = ruled(graph, kind, splits["train"], lags, steps)
    for split in ("val", "test"):
        errors = np.stack([rule(t) - later(graph, t, steps) for t in splits[split]])
        assert found[f"{split}_mse"] == pytest.approx(np.nanmean(errors**2), rel=1e-6)
        assert found[f"{split}_mae_units"] == pytest.approx(SCALE * np.nanmean(abs(errors)), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"task__difference_from": "newest"},
            "task.difference_from: target of the node in row .* leave task.difference_f",
        ),
        ({"baseline__kind": "newest"}, "baseline.kind: target of the node in row .*set inputs.unknown to last"),
        ({"inputs__lags": 0, "baseline__kind": "linear"}, "nodes have no inputs; set inputs.lags above 0"),
    ],
)
def test_missing_values_and_inputs_are_refused(comm, mpi_tmp_path, changes, reason):
    graph = make_graph()
    if "inputs__lags" in changes:
        del graph.series["feat"]
    config = make_config(**changes, node_embedding__dim=2)
    with pytest.raises(DistributedError, match=reason):
        baseline_metrics(open_session(comm, write_parts(comm, mpi_tmp_path, graph), config), config.baseline)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task__difference_from": "newest", "task__horizon": 0}, "with task.horizon 0 the newest value is the target"),
        ({"task__difference_from": "newest", "task__kind": "node"}, "difference_from is for task.kind regression"),
        ({"task__difference_from": "moving_average"}, "moving_average is of the last inputs.lags values: set"),
        ({"task__standardize": True, "task__kind": "edge"}, "task.standardize is for task.kind regression, not edge"),
        ({"baseline__kind": "linear", "task__kind": "link"}, "forecasts numbers of nodes: use task.kind regression"),
        ({"baseline__kind": "moving_average"}, "moving_average is of the last inputs.lags values: set inputs.lags"),
        ({"baseline__kind": "newest", "task__horizon": 0}, "baseline.kind newest forecasts: set task.horizon above 0"),
        ({"baseline__kind": "newest", "comm__time_groups": 2}, "comm.time_groups divides the steps of a model"),
        ({"baseline__kind": "oldest"}, "baseline.kind must be one of newest, .*or empty, got 'oldest'"),
        ({"inputs__unknown": "last"}, "inputs.unknown last is for inputs.lags, which are 0"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        make_config(**changes)
