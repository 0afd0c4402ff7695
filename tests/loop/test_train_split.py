"""Metrics of the training split, scored as validation is: equal to what predictions give by hand, on any number of
ranks; validation and training stay as they are; refusals."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import snapshot_runs
from mpi4py import MPI
from static_runs import (
    make_static_parts,
    open_graph_session,
    open_graph_trainer,
    plain,
    static_config,
    whole_and_stopped,
)
from training_runs import bipartite, make_config, make_parts, on_rank_0
from training_runs import open_session as open_temporal

import hpcgnn
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph.splits import TRAIN_SPLIT
from hpcgnn.kinds import open_session
from hpcgnn.loop.checkpoint import find_best
from hpcgnn.loop.checkpoint_writer import load
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.snapshots.session import follow

EXACT = {
    "train.epochs": 2,
    "train.precision": "float64",
    "eval.exact": True,
    "comm.device": "cpu",
    "model.dropout": 0.3,
}


def test_equals_the_accuracy_of_predictions(comm, mpi_tmp_path):
    """In the last line, the best epoch's; by evaluate, also of a run without it, with scores of steps."""
    on_rank_0(comm, lambda: plain(mpi_tmp_path / "graph.h5") and None)
    data, found = mpi_tmp_path / "graph.h5", []
    for name, keys in (("with", {"eval.train_split": True}), ("without", {"train.train_metrics": True})):
        run = hpcgnn.fit(data, config={**EXACT, **keys}, folder=mpi_tmp_path / name, quiet=True)
        answers, scores = run.predict(), run.evaluate({"eval.train_split": True})
        found.append((run.metrics(), scores))
        if comm.rank == 0:
            with h5py.File(data) as file:
                label, split = (file[f"nodes/node/{column}"][()] for column in ("label", "split"))
            chosen = answers["class"].to_numpy()[np.argsort(answers["node"].to_numpy())]
            expected = (chosen == label)[split == 0].mean()
            assert scores["train_accuracy"] == pytest.approx(expected, rel=1e-12)
            assert scores["test_accuracy"] == pytest.approx((chosen == label)[split == 2].mean(), rel=1e-12)
    (lines, scores), (others, _) = found
    assert lines["train_accuracy"].iloc[-1] == scores["train_accuracy"]
    assert lines["train_accuracy"].notna().all()
    for name in ("loss", "val_accuracy", "test_accuracy"):  # which are what they are without it
        np.testing.assert_array_equal(lines[name], others[name])


@pytest.mark.parametrize("settings", [{}, {"eval__exact": True}, {"train__full_graph": True}])
def test_nodes_on_any_number_of_ranks(comm, mpi_tmp_path, settings):
    """The first epoch has the metrics of its final weights."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config, found = static_config(eval__train_split=True, train__epochs=1, **settings), []
    for part, folder in ((comm, mpi_tmp_path / "all"), (MPI.COMM_SELF, mpi_tmp_path / f"alone-{comm.rank}")):
        folder.mkdir(exist_ok=True)
        trainer = open_graph_trainer(part, parts, folder, config)
        trainer.run()
        metrics = split_metrics(trainer.session, TRAIN_SPLIT, trainer.session.scores(TRAIN_SPLIT))
        found.append(metrics)
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    epoch, test = [json.loads(line) for line in (mpi_tmp_path / "all" / "metrics.jsonl").read_text().splitlines()][-2:]
    for name, value in found[0].items():
        assert epoch[f"train_{name}"] == test[f"train_{name}"] == pytest.approx(value, rel=1e-9)


def colored_parts(comm, folder):
    """Collective. Nodes with a class that never changes, and a split."""
    rng, graph = np.random.default_rng(4), snapshot_runs.random_graph(4, 40, 9, 80)
    graph.nodes["color"] = rng.integers(0, 3, 40)
    graph.nodes["split"] = rng.integers(0, 3, 40).astype(np.uint8)
    return snapshot_runs.write_parts(comm, folder, graph)


def squared_error(session) -> float:
    """Collective. The error of training, from new memory, with the weights of now."""
    session.memory.reset()
    session.model.eval()
    sums, target = np.zeros(2), session.partition.series["target"]
    for number, outputs in follow(session, session.loaders["train"].snapshots):
        errors = outputs.detach().numpy()[:, 0] - target[:, number + 1]
        sums += (errors**2).sum(), len(errors)
    total, count = session.world.reduce_array(sums)
    return total / count


BY_NODES = {"task__kind": "node", "task__target": "color", "data__split_by": "nodes"}


@pytest.mark.parametrize("settings", [
    {}, {"sampling__window_size": 3}, {"task__kind": "link", "eval__negatives": 3}, BY_NODES,
])  # fmt: skip
def test_snapshots(comm, mpi_tmp_path, settings):
    """From new memory, after training and after the test alike; validation goes on from the same state as without it;
    one answer on all ranks."""
    make = colored_parts if settings is BY_NODES else snapshot_runs.make_parts
    parts, lines = make(comm, mpi_tmp_path), []
    cases = ((comm, True, "all"), (MPI.COMM_SELF, True, f"alone-{comm.rank}"), (comm, False, "without"))
    for part, wanted, name in cases:
        folder = mpi_tmp_path / name
        folder.mkdir(exist_ok=True)
        config = snapshot_runs.make_config(eval__train_split=wanted, model__hidden=8, train__log_every=0, **settings)
        world = World(CommConfig(device="cpu", threads=1), part)
        session = open_session(config, str(parts), world, Watchdog(world, 0))
        Trainer(session, folder, lambda *_, **__: None, StopRequest()).run()
        lines.append([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])
        if wanted and not settings:
            assert lines[-1][-1]["train_mse"] == pytest.approx(squared_error(session), rel=1e-9)
    for one, other, without in zip(*lines, strict=True):
        trained = {name for name in one if name.startswith("train_")} - {"train_seconds"}
        best = lines[0][lines[0][-1]["epoch"]]
        for name in trained:
            assert one[name] == pytest.approx(other[name], rel=1e-9)
            assert one["kind"] == "epoch" or one[name] == pytest.approx(best[name], rel=1e-9)
        assert len(trained) >= 2
        for name in [name for name in without if name.startswith(("val_", "test_"))]:
            assert one[name] == without[name]


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"memory__placement": "replicated"}, {"memory__updater": "none", "sampling__batch_by": "time"},
        {"eval__negative_kind": "all", "eval__batch_size": 25}, {"train__parallel_epochs": 2},
    ],
)  # fmt: skip
def test_temporal_graphs(comm, mpi_tmp_path, settings):
    """From new memory, after training and after the test alike; validation goes on from the memory of training, as
    without it; one answer on all ranks; evaluate gives what training has recorded."""
    graph = on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "graph.h5", 400, edge_width=2))
    parts, lines = make_parts(comm, graph, mpi_tmp_path / "parts", 4), []
    for part, wanted, name in ((comm, True, "all"), (MPI.COMM_SELF, True, f"{comm.rank}"), (comm, False, "without")):
        folder = mpi_tmp_path / name
        folder.mkdir(exist_ok=True)
        config = make_config(eval__train_split=wanted, train__epochs=2, train__log_every=0, **settings)
        trainer = Trainer(open_temporal(part, parts, config), folder, lambda *_, **__: None, StopRequest())
        trainer.run()
        lines.append([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])
        if wanted:
            session = open_temporal(part, parts, config)
            load(session, find_best(folder / "checkpoints"))
            found = {
                f"train_{name}": value
                for name, value in split_metrics(session, TRAIN_SPLIT, session.scores(TRAIN_SPLIT)).items()
            }
            best = lines[-1][lines[-1][-1]["epoch"]]
            assert len(found) >= 2
            for name, value in found.items():
                for line in (best, lines[-1][-1]):
                    assert line[name] == (None if np.isnan(value) else pytest.approx(value, rel=1e-9))
    for one, other, without in zip(*lines, strict=True):
        for name in one.keys() - {"train_seconds", "samples_per_second", "kind", "samples", "monitor", "best"}:
            assert one[name] == (pytest.approx(other[name], rel=1e-9) if other[name] is not None else None)
        for name in [name for name in without if name.startswith(("val_", "test_", "loss"))]:
            assert one[name] == without[name]


def test_stopped_and_resumed(comm, mpi_tmp_path):
    """A signal while the training split is scored."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    config = static_config(eval__train_split=True)
    session = open_graph_session(comm, parts, config)
    steps = session.batches["train"].num_steps
    session.close()
    _, folder, broken = whole_and_stopped(comm, parts, mpi_tmp_path, config, steps=steps + 1)
    resumed = open_graph_trainer(comm, parts, broken, config)
    resumed.resume()
    assert (resumed.progress.epoch, resumed.progress.step) == (0, steps)
    resumed.run()
    texts = [(place / "metrics.jsonl").read_text().splitlines() for place in (folder, broken)]
    for one, other in zip(*[map(json.loads, lines) for lines in texts], strict=True):
        for name in one.keys() - {"train_seconds", "samples_per_second"}:
            assert one[name] == other[name]


@pytest.mark.serial
def test_refusals():
    with pytest.raises(ValueError, match="both report metrics such as train_accuracy: use one"):
        static_config(eval__train_split=True, train__train_metrics=True)
    with pytest.raises(ValueError, match="both report metrics such as train_accuracy: use one"):
        snapshot_runs.make_config(eval__train_split=True, train__train_metrics=True)
    with pytest.raises(ValueError, match=r"scored with itself as a message; .* or use train.train_metrics true"):
        static_config(eval__train_split=True, task__kind="link")
    with pytest.raises(ValueError, match=r"scored with itself as a message; .* or use task.message_splits all"):
        static_config(eval__train_split=True, task__kind="edge")
    static_config(eval__train_split=True, task__kind="edge", task__message_splits="all")
    with pytest.raises(ValueError, match="both report metrics such as train_accuracy: use one"):
        make_config(eval__train_split=True, train__train_metrics=True)
    with pytest.raises(ValueError, match=r"eval\.train_split: with task\.label_input, .*; leave it false"):
        make_config(eval__train_split=True, task__kind="node_class", task__label_input=0.5)
    with pytest.raises(ValueError, match="files of negatives list no training events"):
        make_config(eval__train_split=True, eval__negative_kind="file", eval__negatives_file="negatives.npz")
    changed = make_config(eval__train_split=True).evaluated_by("tgb", "", "", {})
    assert changed.eval.train_split
    assert changed.evaluated_by("", "", "unlimited", {}).eval.train_split
