"""Metrics by functions of the user's own: from the scores of all ranks, monitored, resumed, and by evaluate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, balanced_accuracy_score
from static_runs import (
    make_static_parts,
    open_graph_session,
    open_graph_trainer,
    plain,
    static_config,
    whole_and_stopped,
)
from training_runs import bipartite, make_config, make_parts, on_rank_0, open_session

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.own_metrics import own_functions
from hpcgnn.loop.session import split_metrics


def balanced(scores):
    return balanced_accuracy_score(scores["label"], scores["output"].argmax(1))


def right(scores):
    return (scores["output"].argmax(1) == scores["label"]).mean()


def precision(scores):
    label = np.arange(2 * len(scores["positive"])) < len(scores["positive"])
    return average_precision_score(label, np.concatenate([scores["positive"].ravel(), scores["negative"][:, 0]]))


def narrow(scores):
    return float("wide")


def wrong(scores):
    return scores["nothing"]


def path(function) -> str:
    return f"{__name__}.{function.__name__}"


def test_of_all_ranks(comm, mpi_tmp_path):
    """Equal to the built-in ones, on nodes and on events."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(train__metrics=[path(right), path(balanced)]))
    metrics = split_metrics(session, "test", session.scores("test"))
    assert metrics["right"] == pytest.approx(metrics["accuracy"], rel=1e-12)
    assert 0 < metrics["balanced"] < 1
    on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "events.h5", num_events=300) and None)
    parts = make_parts(comm, mpi_tmp_path / "events.h5", mpi_tmp_path / "events", 8, "random")
    session = open_session(comm, parts, make_config(train__metrics=[path(precision)]))
    metrics = split_metrics(session, "val", session.scores("val"))
    assert metrics["precision"] == pytest.approx(metrics["ap"], rel=1e-6)


def test_monitored_and_resumed(comm, mpi_tmp_path):
    """A run that stops and goes on has the same lines of metrics as one that does not."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(train__metrics=[path(balanced)], train__monitor="balanced", train__epochs=3)
    whole, *folders = whole_and_stopped(comm, parts, mpi_tmp_path, config, steps=4)
    resumed = open_graph_trainer(comm, parts, folders[1], config)
    resumed.resume()
    resumed.run()
    assert resumed.progress.best_metric == whole.progress.best_metric
    lines = [json.loads(line) for line in (folders[1] / "metrics.jsonl").read_text().splitlines()]
    best = max(line["val_balanced"] for line in lines if line["kind"] == "epoch")
    assert whole.progress.best_metric == pytest.approx(best, rel=1e-12)
    assert "test_balanced" in lines[-1]


@pytest.mark.parametrize(("paths", "reason"), [
    ([path(wrong)], r"train.metrics '.*wrong': KeyError: 'nothing' \[test_own_metrics.py:"),
    ([path(narrow)], r"train.metrics '.*narrow': ValueError: could not convert .* \[test_own_metrics.py:"),
    (["nowhere.metric"], "train.metrics 'nowhere.metric': No module named 'nowhere'; it is package.module.function"),
    ([path(right), path(right)], "there is a metric right already: give the function another name"),
    (["hpcgnn.loop.own_metrics.KEY"], "is no function"),
])  # fmt: skip
def test_what_does_not_work_is_named(comm, mpi_tmp_path, paths, reason):
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    on_rank_0(comm, lambda: (mpi_tmp_path / "run").mkdir())
    with pytest.raises(DistributedError, match=reason):
        open_graph_trainer(comm, parts, mpi_tmp_path / "run", static_config(train__metrics=paths)).run()


@pytest.mark.serial
def test_names_of_built_in_metrics_are_taken():
    with pytest.raises(ValueError, match="there is a metric right already"):
        own_functions([path(right)], ["right"])
