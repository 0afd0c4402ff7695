"""Numbers to learn are standardized by the moments of training: runs are those on labels that are standardized in the
file, and answers and metrics are in the units of the labels, on any number of ranks."""

from __future__ import annotations

import csv
import json
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from run_commands import run_caught
from selection import long_but
from static_runs import make_static_parts, open_graph_session, open_graph_trainer, static_config, whole_and_stopped
from test_edge_labels import PAYS, numbers
from test_edge_weights import outputs
from test_graph_training import assert_same_records, run_both
from test_multilabel import NODES, prices
from test_several_tasks import library
from training_runs import on_rank_0

from hpcgnn.loop.session import split_metrics
from hpcgnn.static.model.models import LayeredModel
from hpcgnn.static.predict import predict_nodes

MEAN, DEVIATION = 1e4, 500.0


class Own(LayeredModel):
    """A model of a user."""


def change(make, place: str, function, path) -> None:
    """Make a graph, whose labels at a place are changed by a function of the labels and the split."""
    make(path)
    with h5py.File(path, "r+") as file:
        group = file[place]
        label = function(group["label"][()], group["split"][()])
        del group["label"]
        group["label"] = label


def far(label, split):
    return MEAN + DEVIATION * label


def moments_of(label, split) -> tuple[float, float]:
    """Of the known labels of training."""
    training = label[(split == 0) & ~np.isnan(label)]
    return training.mean(), training.std()


def by_hand(label, split):
    mean, deviation = moments_of(far(label, split), split)
    return (far(label, split) - mean) / deviation


def known_moments(make, place: str, folder) -> tuple[float, float]:
    """Of the far labels of a graph."""
    change(make, place, far, folder / "far.h5")
    with h5py.File(folder / "far.h5") as file:
        return moments_of(file[place]["label"][()], file[place]["split"][()])


NODE = {"task__kind": "regression", "model__dropout": 0.1, "train__train_metrics": True}
AGE = {"kind": "regression", "node_type": "author", "batch_size": 5}
HOUSE, EDGES, AUTHOR = "nodes/house", f"edges/{PAYS}", "nodes/author"
CASES = {
    "nodes": (prices, HOUSE, NODE),
    "own model": (prices, HOUSE, NODE | {"model__class_path": f"{__name__}.Own"}),
    "whole graph": (prices, HOUSE, NODE | {"train__full_graph": True}),
    "exact": (prices, HOUSE, NODE | {"eval__exact": True, "model__residual": True}),
    "edges": (numbers, EDGES, {"task__kind": "edge_regression", "task__edge_columns": ["tags"]}),
    "exact edges": (numbers, EDGES, {"task__kind": "edge_regression", "eval__exact": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", long_but(CASES, {"nodes", "edges", "whole graph"}.__contains__))
def test_a_run_is_that_on_labels_standardized_by_hand(comm, mpi_tmp_path, tmp_path, case):
    """With gradient descent, whose step on the far labels is shorter by the variance that the loss is larger by."""
    make, place, changes = CASES[case]
    mean, deviation = known_moments(make, place, tmp_path)
    found = []
    for name, function, standardize, factor in (("far", far, True, deviation), ("hand", by_hand, False, 1.0)):
        folder = mpi_tmp_path / name
        on_rank_0(comm, lambda folder=folder: (folder / "run").mkdir(parents=True))
        parts = make_static_parts(comm, partial(change, make, place, function), folder)
        config = static_config(
            **changes, task__standardize=standardize, train__optimizer="sgd", train__lr=0.05 / factor**2
        )
        trainer = open_graph_trainer(comm, parts, folder / "run", config)
        trainer.start()
        trainer.run()
        metrics = split_metrics(trainer.session, "test", trainer.session.scores("test"))
        found.append((trainer.flat.parameter.detach().clone(), metrics, dict(trainer.session.model.named_buffers())))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-8, atol=1e-10)
    assert found[0][1]["mae"] == pytest.approx(deviation * found[1][1]["mae"], rel=1e-8)
    assert found[0][1]["mse"] == pytest.approx(deviation**2 * found[1][1]["mse"], rel=1e-8)
    kept = {name.rsplit(".", 1)[1]: value.item() for name, value in found[0][2].items() if "standard" in name}
    assert kept == {"mean": pytest.approx(mean, rel=1e-12), "deviation": pytest.approx(deviation, rel=1e-10)}
    assert not any("standard" in name for name in found[1][2])


def test_a_further_task_is_that_on_labels_standardized_by_hand(comm, mpi_tmp_path, tmp_path):
    """Whose loss is smaller by the variance, which its weight makes up for."""
    _, deviation = known_moments(library, AUTHOR, tmp_path)
    found = []
    for name, function, weight in (("far", far, 1 / deviation**2), ("hand", by_hand, 1.0)):
        folder = mpi_tmp_path / name
        on_rank_0(comm, lambda folder=folder: (folder / "run").mkdir(parents=True))
        parts = make_static_parts(comm, partial(change, library, AUTHOR, function), folder)
        more = {"age": AGE | {"weight": weight, "standardize": name == "far"}}
        config = static_config(task__node_type="paper", task__more=more, train__batch_size=8)
        trainer = open_graph_trainer(comm, parts, folder / "run", config)
        trainer.start()
        trainer.run()
        found.append((trainer.flat.parameter.detach().clone(), trainer.session))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=1e-8)
    mae = [split_metrics(session, "val", session.scores("val"))["age_mae"] for _, session in found]
    assert mae[0] == pytest.approx(deviation * mae[1], rel=1e-6)


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", ["nodes", "edges", "whole graph"])
def test_any_number_of_ranks_gives_one_answer(comm, mpi_tmp_path, case):
    make, place, changes = CASES[case]
    parts = make_static_parts(comm, partial(change, make, place, far), mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(**changes, task__standardize=True))


@pytest.mark.parametrize("case", ["nodes", "edges"])
def test_a_stopped_run_resumes_exactly(comm, mpi_tmp_path, case):
    make, place, changes = CASES[case]
    parts = make_static_parts(comm, partial(change, make, place, far), mpi_tmp_path)
    config = static_config(**changes, task__standardize=True)
    trainer, whole, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, 3)
    again = open_graph_trainer(comm, parts, broken, config)
    again.resume()
    again.run()
    assert torch.equal(again.flat.parameter, trainer.flat.parameter)
    if comm.rank == 0:
        assert_same_records(broken, whole)


def test_outputs_are_the_product_of_plain_torch(comm, mpi_tmp_path):
    """Plus the mean, times the deviation; unlike the model's own outputs, which are standardized."""
    parts = make_static_parts(comm, partial(change, prices, HOUSE, far), mpi_tmp_path)
    config = static_config(**NODE, task__standardize=True, eval__exact=True)
    session = open_graph_session(comm, parts, config)
    answers = predict_nodes(session).slab("output", 0, session.world)
    plain = outputs(session)
    if comm.rank:
        return
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        mean, deviation = moments_of(file[HOUSE]["label"][()], file[HOUSE]["split"][()])
    np.testing.assert_allclose(answers, mean + deviation * plain[:, 0].numpy(), rtol=1e-12)


@pytest.mark.serial
def test_large_numbers_are_learned_only_standardized(comm, mpi_tmp_path):
    """In as many epochs, the error falls below a fifth of the deviation; without, it stays at the mean."""
    parts = make_static_parts(comm, partial(change, prices, HOUSE, far), mpi_tmp_path)
    usual = {"task__kind": "regression", "model__dropout": 0.0, "train__lr": 0.02, "train__epochs": 25,
             "eval__exact": True, "sampling__fanouts": [-1, -1]}  # fmt: skip
    errors = {}
    for standardize in (True, False):
        folder = mpi_tmp_path / str(standardize)
        on_rank_0(comm, lambda folder=folder: folder.mkdir())
        trainer = open_graph_trainer(comm, parts, folder, static_config(**usual, task__standardize=standardize))
        trainer.start()
        trainer.run()
        errors[standardize] = split_metrics(trainer.session, "test", trainer.session.scores("test"))["rmse"]
        about = " ".join(trainer.session.describe())
        assert (", learned standardized" in about) == standardize
        assert ("see task.standardize" in about) != standardize
    deviation = DEVIATION * np.nanstd(prices(mpi_tmp_path / f"again-{comm.rank}.h5")[0])
    assert errors[True] < 0.5 * deviation
    assert errors[False] > 5 * deviation


def test_predictions_are_what_evaluation_saw(comm, mpi_tmp_path):
    """From files to a file, by the commands; and on the graph without labels, where the run's moments count."""
    parts, run = make_static_parts(comm, partial(change, prices, HOUSE, far), mpi_tmp_path), mpi_tmp_path / "run"
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        label, split = file[HOUSE]["label"][()], file[HOUSE]["split"][()]

    def unlabeled(path):
        prices(path)
        with h5py.File(path, "r+") as file:
            del file[HOUSE]["label"], file[HOUSE]["split"]

    bare = make_static_parts(comm, unlabeled, mpi_tmp_path / "bare")
    outs = [mpi_tmp_path / name for name in ("own.csv", "bare.csv")]
    train = ["--kind=static", "--task.kind=regression", "--task.standardize=true", "--train.epochs=2",
             "--eval.exact=true", "--model.layers=1", "--sampling.fanouts=[3]", "--comm.threads=1",
             f"--data.path={parts}", f"--output.dir={run}"]  # fmt: skip
    for command in (
        ["train", *train], ["predict", str(run), f"--out={outs[0]}"],
        ["predict", str(run), f"--out={outs[1]}", f"--data.path={bare}"],
    ):  # fmt: skip
        ended = run_caught(*command)
        assert ended is None or ended.returncode == 0, ended.stderr
    ended = run_caught("evaluate", str(run))
    if comm.rank:
        return
    reported = json.loads(ended.stdout.splitlines()[-1])
    answers = []
    for out in outs:
        with open(out, newline="") as file:
            heading, *rows = csv.reader(file)
        assert heading == ["node", "output"]
        answers.append(np.array(rows, float))
    assert answers[0][:, 0].tolist() == list(range(NODES))
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-6)
    tested = (split == 2) & ~np.isnan(label)
    error = answers[0][tested, 1] - label[tested]
    assert reported["test_mse"] == pytest.approx(np.mean(error**2), rel=1e-5)
    assert reported["test_mae"] < 10 * DEVIATION


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["node", "edge", "link"])
def test_other_tasks_have_no_numbers(kind):
    with pytest.raises(ValueError, match=rf"task.standardize is for .*regression, not {kind}: leave it false"):
        static_config(task__kind=kind, task__standardize=True)
