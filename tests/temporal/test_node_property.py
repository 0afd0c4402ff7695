"""Labels of nodes at times: NDCG is scikit-learn's, baselines are TGB's in plain loops, models see all events before a
label and none from its time on, one answer on any number of ranks, and what is refused."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import test_edge_types as typed
import torch
from evaluation_setup import graph_and_parts, module_folder
from mpi4py import MPI
from selection import long_but
from sklearn.metrics import ndcg_score
from training_runs import (
    START,
    bipartite,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    read_plain,
)

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph import files
from hpcgnn.graph.splits import TRAIN_SPLIT
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import scored_splits, split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.task.losses import ranked_weights_loss, soft_class_loss
from hpcgnn.task.metrics import gains_of
from hpcgnn.temporal.baselines import baseline_metrics
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.model.forecaster import VirtualState
from hpcgnn.temporal.predict import _walk_to_times, answer_nodes, read_nodes
from hpcgnn.temporal.properties import answer_labels

USERS, CLASSES, TICKS = 40, 12, 10_000  # of ``bipartite``
SMALL = {"train__batch_size": 25, "sampling__prefetch": 0}
RATE = 0.05


def draw_labels(graph: Path) -> dict[int, dict[int, np.ndarray]]:
    """Labels by time and user. Some are before the first event, after the last one, or at the time of the last event of
    training or validation; users come at some times only."""
    rng, labels, times = np.random.default_rng(0), {}, read_plain(graph).time
    borders = [int(times[times <= limit].max()) - START for limit in np.quantile(times, [0.7, 0.85])]
    for time in sorted({0, 3, *rng.integers(0, TICKS, 14).tolist(), *borders, 2 * TICKS}):
        users = rng.permutation(USERS)[: 3 + int(rng.integers(USERS - 3))]
        labels[START + time] = {int(user): draw_label(rng) for user in users}
    return labels


def draw_label(rng) -> np.ndarray:
    """A vector with few weights, sometimes equal ones, and sometimes none."""
    chosen = rng.permutation(CLASSES)[: int(rng.integers(1, 5))]
    vector = np.zeros(CLASSES)
    vector[chosen] = rng.integers(0, 3, len(chosen)) / 4
    return vector


def write_labels(path: Path, labels, sizes=(USERS, 700), kind: str = "user") -> Path:
    rows = [(time, user, labels[time][user]) for time in sorted(labels) for user in sorted(labels[time])]
    with files.writing(path, files.LABELS, source_name="graph.h5") as file:
        group = file.create_group(f"nodes/{kind}")
        group.attrs["num_classes"], group.attrs["sizes"] = CLASSES, sizes
        group["time"], group["node"] = [row[0] for row in rows], [row[1] for row in rows]
        # Weights of 0 are listed, too, except for some: both are the same label.
        listed = [np.flatnonzero(vector + (np.arange(CLASSES) == user % CLASSES)) for _, user, vector in rows]
        group["indptr"] = np.cumsum([0, *map(len, listed)])
        group["class"] = np.concatenate(listed).astype(np.int32)
        group["weight"] = np.concatenate([row[2][of] for row, of in zip(rows, listed, strict=True)]).astype(np.float32)
    return path


@pytest.fixture(scope="module")
def folder(comm, tmp_path_factory):
    return module_folder(comm, tmp_path_factory)


@pytest.fixture(scope="module")
def graph_parts(comm, folder):
    """Graph file, partition set, and file of labels. Collective."""
    graph, parts = graph_and_parts(comm, folder, bipartite, edge_width=2)
    labels = folder / "labels.h5"
    on_rank_0(comm, lambda: write_labels(labels, draw_labels(graph)) and None)
    return graph, parts, labels


def property_config(labels, **changes) -> TemporalConfig:
    return make_config(**SMALL | {"task__kind": "node_property", "task__labels_file": str(labels)} | changes)


def navis_config(labels, **changes) -> TemporalConfig:
    """A model of earlier labels; changes: of the section ``train``."""
    train = {"batch_size": 9, "precision": "float64", "seed": 5, "lr": RATE, "train_metrics": True} | changes
    task = {"kind": "node_property", "labels_file": str(labels), "loss": "lambda_ndcg"}
    return TemporalConfig.from_dict({"train": train, "task": task, "model": {"forecaster": "navis"}})


@pytest.mark.serial
@pytest.mark.parametrize("classes", [2, 7, 30])
def test_gains_are_those_of_scikit_learn(classes):
    """With many ties, rows of equal outputs, and rows without a weight."""
    rng = np.random.default_rng(classes)
    output = rng.integers(0, 4, (200, classes)) / 8
    output[:9] = 0.5
    label = np.where(rng.random((200, classes)) < 0.3, rng.random((200, classes)), 0)
    label[::10] = 0
    each = [ndcg_score(label[row : row + 1], output[row : row + 1], k=10) for row in range(200)]
    assert np.allclose(gains_of(output, label), each, rtol=0, atol=1e-12)
    output[3, 1] = np.nan
    assert np.isnan(gains_of(output, label)).nonzero()[0].tolist() == [3]


@pytest.mark.serial
def test_loss_is_cross_entropy_with_weights():
    rng = np.random.default_rng(0)
    output, label = rng.standard_normal((5, 4)), rng.random((5, 4))
    expected = -(label * (output - np.log(np.exp(output).sum(axis=1, keepdims=True)))).sum()
    loss = soft_class_loss(torch.tensor(output), torch.tensor(label.astype(np.float32)))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def ranked_loss(output, label, most: int = 20, margin: float = 1e-3):
    """NDCG-Loss2 and margins of one row [c], as scalars of torch, pair by pair."""
    classes = range(len(output))
    by_output = sorted(classes, key=lambda k: (-output[k].item(), k))
    by_weight = sorted(classes, key=lambda k: (-float(label[k]), k))
    chosen = by_output[:most] + [k for k in by_weight[:most] if label[k] > 0 and k not in by_output[:most]]
    place = {k: number for number, k in enumerate(sorted(chosen, key=lambda k: -output[k].item()))}
    best = sum(float(label[k]) / np.log2(2 + number) for number, k in enumerate(by_weight[:most]))
    total, near, pairs = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    for i in chosen:
        for j in chosen:
            if label[i] > label[j]:
                apart = abs(place[i] - place[j])
                delta = 1 / np.log2(1 + apart) - 1 / np.log2(2 + apart)
                gap = output[i] - output[j]
                total = total + float(label[i] - label[j]) / best * delta * torch.log2(1 + torch.exp(-gap))
                near, pairs = near + torch.clamp(margin - gap, min=0), pairs + 1
    return total + near / max(1, pairs)


@pytest.mark.serial
@pytest.mark.parametrize("classes", [3, 30])
def test_loss_of_the_order_equals_plain_loops(classes):
    """With ties of outputs and of weights, rows without a weight, and classes beyond the compared ones."""
    rng = np.random.default_rng(classes)
    output = torch.tensor(rng.integers(0, 9, (8, classes)) / 64, requires_grad=True)
    label = np.where(rng.random((8, classes)) < 0.4, rng.integers(1, 5, (8, classes)) / 8, 0)
    label[3] = 0
    label = torch.tensor(label.astype(np.float32))
    most = min(6, classes)
    losses = [
        ranked_weights_loss(output, label, most),
        sum(ranked_loss(*rows, most) for rows in zip(output, label, strict=True)),
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
    slopes = [torch.autograd.grad(loss, output)[0] for loss in losses]
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-14)


def tgb_order(times, bounds, event_times) -> dict[str, list[int]]:
    """Label times by the split of the first later event."""
    by_split: dict[str, list[int]] = {"train": [], "val": [], "test": [], "": []}
    for time in sorted(times):
        row = int((event_times <= time).sum())
        place = int((bounds[1:] <= row).sum())
        by_split[["train", "val", "test", ""][place]].append(time)
    return by_split


def forecast_like_tgb(labels, by_split, window: int) -> dict[str, float]:
    """PersistantForecaster is MovingAverage with a window of 1; scores by scikit-learn, averaged over times."""
    state: dict[int, np.ndarray] = {}
    means: dict[str, float] = {}
    for split in ("train", "val", "test"):
        scores = []
        for time in by_split[split]:
            users = list(labels[time])
            forecast = [state.get(user, np.zeros(CLASSES)) for user in users]
            scores.append(ndcg_score([labels[time][user] for user in users], forecast, k=10))
            for user in users:
                old, new = state.get(user), labels[time][user]
                state[user] = new if old is None else (old * (window - 1) + new) / window
        means[split] = float(np.mean(scores))
    return means


@pytest.mark.parametrize(("kind", "window"), [("persistent_forecast", 1), ("moving_average", 7), ("moving_average", 2)])
def test_baselines_are_those_of_tgb(comm, graph_parts, monkeypatch, kind, window):
    monkeypatch.setattr("hpcgnn.temporal.node_labels.MOST_WEIGHTS", 5 * CLASSES)  # several groups of nodes
    graph, parts, labels = graph_parts
    options = {"baseline__window": window} if kind == "moving_average" else {}
    session = open_session(comm, parts, property_config(labels, baseline__kind=kind, eval__train_split=True, **options))
    values = baseline_metrics(session, session.config.baseline)
    by_split = tgb_order(draw_labels(graph), session.graph.splits.bounds, read_plain(graph).time)
    session.close()
    assert all(by_split.values()), "every split has a label time, and some are after the last event"
    expected = forecast_like_tgb(draw_labels(graph), by_split, window)
    assert values == {f"{split}_ndcg@10": pytest.approx(expected[split], abs=1e-6) for split in expected}


@pytest.mark.parametrize("forecaster", ["", "navis"])
def test_scores_of_the_training_split(comm, graph_parts, forecaster):
    """Equal to those of the training steps from the first event on, after validation and the test; one answer."""
    _, parts, labels = graph_parts
    config = navis_config(labels, train_metrics=False) if forecaster else property_config(labels)
    config, found = replace(config, eval=replace(config.eval, train_split=True)), []
    for ranks in (comm, MPI.COMM_SELF):
        session = open_session(ranks, parts, config)
        metrics = {split: split_metrics(session, split, session.scores(split)) for split in scored_splits(session)}
        found.append(metrics.pop(TRAIN_SPLIT)["ndcg@10"])
        session.memory.reset()
        collected = session.goal.collector()
        with session.plans("train", 0) as plans:
            for plan in plans:
                collected.add(plan, session.task.evaluate(plan))
        assert split_metrics(session, "train", collected)["ndcg@10"] == pytest.approx(found[-1], rel=1e-12)
        session.close()
    assert found[0] == pytest.approx(found[1], rel=1e-9) != 0


def run(comm, parts, config) -> tuple[list[float], dict[str, float], list[str]]:
    """Collective. The losses of an epoch, metrics of all splits, and the description of the run."""
    session = open_session(comm, parts, config)
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    losses = epoch(trainer)
    metrics = trainer._scores.metrics()
    for split in ("val", "test"):
        found = split_metrics(session, split, session.scores(split))
        metrics |= {f"{split}_{name}": value for name, value in found.items()}
    lines = session.describe()
    trainer.close()
    session.close()
    return losses, metrics, lines


def epoch(trainer: Trainer, first: int = 0, stop: int | None = None) -> list[float]:
    """Collective. The losses of steps of the first epoch; plans of events have none."""
    losses = []
    with trainer.session.plans("train", 0, first) as plans:
        for plan in plans:
            done = trainer.train_step(plan)
            if done is not None:
                losses.append(done[0])
                trainer.progress.step = plan.step + 1
            if trainer.progress.step == stop:
                break
    return losses


SETTINGS = {
    "tgn": {}, "no memory": {"memory__updater": "none"}, "mails of embeddings": {"model__message_from": "embedding"},
    "in the background": {"sampling__prefetch": 3, "memory__update_at": "user"}, "late": {"memory__staleness": 1},
}  # fmt: skip


@pytest.mark.parametrize("case", long_but(SETTINGS, lambda case: case in ("tgn", "in the background")))
def test_one_answer_on_any_number_of_ranks(comm, graph_parts, case):
    graph, parts, labels = graph_parts
    config = property_config(labels, train__train_metrics=True, **SETTINGS[case])
    losses, metrics, lines = run(comm, parts, config)
    alone, metrics_alone, _ = run(MPI.COMM_SELF, parts, config)
    times = [time for time in draw_labels(graph) if time < START + TICKS]
    assert len(losses) > len(times) / 2
    assert np.allclose(losses, alone, rtol=1e-9, atol=0)
    assert set(metrics) == {"train_ndcg@10", "val_ndcg@10", "test_ndcg@10"}
    assert metrics == pytest.approx(metrics_alone, rel=1e-6)
    assert any(line.startswith("task node_property, weights of 12 classes; labels: train ") for line in lines)


class PlainStates:
    """NAViS in plain loops, node by node: states, last labels, and the mean label of the time before."""

    def __init__(self, seed: int):
        torch.manual_seed(seed)
        model = VirtualState(CLASSES).double()
        self.weights = [weight.detach().clone().requires_grad_() for weight in model.parameters()]
        self.adam = torch.optim.Adam(self.weights, lr=RATE)
        self.zero = torch.zeros(CLASSES, dtype=torch.float64)
        self.state: dict[int, torch.Tensor] = {}
        self.last: dict[int, torch.Tensor] = {}
        self.common = self.zero

    def predict(self, user: int) -> torch.Tensor:
        """Predict a label, and move the state on."""
        of_state, state_bias, of_output, output_bias = self.weights
        x, h, g = self.last.get(user, self.zero), self.state.get(user, self.zero), self.common
        a = torch.sigmoid((of_state[0, :CLASSES] * x + of_state[0, CLASSES:] * h).sum() + state_bias[0])
        new = a * h + (1 - a) * x
        read = [part * weight for part, weight in zip((x, h, g), of_output[0].split(CLASSES), strict=True)]
        z = torch.sigmoid(sum(read).sum() + output_bias[0])
        self.state[user] = new.detach()
        return z * new + (1 - z) * x

    def show(self, labels: dict[int, np.ndarray]) -> None:
        """Learn the labels of a time after they were predicted."""
        shown = {user: torch.tensor(label.astype(np.float32)).double() for user, label in labels.items()}
        self.last |= shown
        self.common = torch.stack(list(shown.values())).mean(0)

    def train(self, labels: dict[int, np.ndarray], size: int) -> list[float]:
        """Train on the labels of a time, ``size`` of them in a step; returns the losses of the steps."""
        users, losses = sorted(labels), []
        for begin in range(0, len(users), size):
            step = users[begin : begin + size]
            rows = [ranked_loss(self.predict(user), torch.tensor(labels[user])) for user in step]
            loss = sum(rows) / len(step)
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
            losses.append(loss.item())
        self.show(labels)
        return losses


def test_navis_equals_plain_loops(comm, graph_parts):
    """Losses of an epoch of several steps a time, and NDCG of validation and test after it, on any number of ranks."""
    graph, parts, labels = graph_parts
    losses, metrics, lines = run(comm, parts, navis_config(labels))
    assert any("weights of 12 classes" in line for line in lines)
    if comm.rank > 0:
        return
    drawn, times = draw_labels(graph), read_plain(graph).time
    bounds = np.searchsorted(times, np.quantile(times, [0, 0.7, 0.85, 1]), side="right")
    by_split, plain = tgb_order(drawn, bounds, times), PlainStates(5)
    expected = [loss for time in by_split["train"] for loss in plain.train(drawn[time], 9)]
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    assert len(losses) > 20
    for split in ("val", "test"):
        scores = []
        for time in by_split[split]:
            users = sorted(drawn[time])
            forecast = np.stack([plain.predict(user).detach().numpy() for user in users])
            scores.append(ndcg_score([drawn[time][user] for user in users], forecast, k=10))
            plain.show(drawn[time])
        assert metrics[f"{split}_ndcg@10"] == pytest.approx(np.mean(scores), rel=1e-6)


def draw_regimes() -> dict[int, dict[int, np.ndarray]]:
    """Labels of all users at 80 times. In one half of the time a label is a noisy draw around a user's own mean, in the
    other one it keeps near the label before. Class 0 of a few users shows which one it is, four times at a stretch."""
    rng, labels = np.random.default_rng(3), {}
    means, last = rng.dirichlet([0.5] * (CLASSES - 1), (2, USERS))
    for number in range(80):
        is_noisy = number // 4 % 2
        if is_noisy:
            last = (means + 2 * rng.dirichlet([0.2] * (CLASSES - 1), USERS)) / 3
        else:
            last = (last + rng.dirichlet([0.5] * (CLASSES - 1), USERS)) / 2
        shown = (is_noisy * (np.arange(USERS) % 4 == 0))[:, None].astype(float)
        labels[START + 120 * number] = dict(enumerate(np.hstack([shown, last])))
    return labels


@pytest.mark.serial
def test_navis_learns_when_to_forecast_by_which_rule(graph_parts, folder):
    """It is better than the persistent forecast and the best moving average, of which each is right at some times."""
    _, parts, _ = graph_parts
    path, comm = write_labels(folder / "regimes.h5", draw_regimes()), MPI.COMM_SELF
    scores = {}
    for window in (1, 2, 3, 7):  # 1: the persistent forecast
        config = property_config(path, baseline__kind="moving_average", baseline__window=window)
        with closing(open_session(comm, parts, config)) as session:
            scores[window] = baseline_metrics(session, config.baseline)["test_ndcg@10"]
    with closing(open_session(comm, parts, navis_config(path, batch_size=40))) as session:
        trainer = Trainer(session, folder, lambda *_, **__: None, StopRequest())
        for _ in range(10):
            session.memory.reset()
            epoch(trainer)
            trainer.progress.step = 0
        for split in ("val", "test"):
            metrics = split_metrics(session, split, session.scores(split))
        trainer.close()
    assert metrics["ndcg@10"] > max(scores.values()) + 0.005, scores


def forecasts(comm, parts, labels, count: int) -> dict[int, np.ndarray]:
    """Collective. Outputs of the first ``count`` label times, by time, of NAViS as it is drawn; of all ranks' nodes."""
    with closing(open_session(comm, parts, navis_config(labels))) as session:
        found = []
        for split in ("train", "val", "test"):
            with session.plans(split, 0) as plans:
                for plan in plans:
                    scores = session.task.evaluate(plan)
                    ids = session.partition.flat_row[plan.row.numpy()]
                    found += zip(scores.time.tolist(), ids.tolist(), scores.output.numpy(), strict=True)
    rows = sorted((row for piece in comm.allgather(found) for row in piece), key=lambda row: row[:2])
    return {place: np.stack([row[2] for row in rows if row[0] == place]) for place in range(count)}


def test_navis_reads_no_label_of_the_same_time_or_later(comm, graph_parts, folder):
    """Other labels from a time on change no forecast up to this time, and the forecasts after it."""
    graph, parts, labels = graph_parts
    drawn, number, path = draw_labels(graph), 8, folder / "other-labels.h5"
    for time in sorted(drawn)[number:]:
        drawn[time] = {user: np.roll(vector, 1) + 0.25 for user, vector in drawn[time].items()}
    on_rank_0(comm, lambda: write_labels(path, drawn) and None)
    before, now = (forecasts(comm, parts, each, number + 2) for each in (labels, path))
    for place, rows in before.items():
        assert np.array_equal(rows, now[place]) == (place <= number)


@pytest.mark.parametrize("model", ["tgn", "navis"])
def test_a_run_resumes_within_an_epoch(comm, graph_parts, folder, mpi_tmp_path, model):
    """On another partition set, with the gains of training so far."""
    graph, parts, labels = graph_parts
    other = make_parts(comm, graph, folder / f"other-{model}", 4, "random")
    config = property_config(labels, train__train_metrics=True) if model == "tgn" else navis_config(labels)
    losses, metrics, _ = run(comm, parts, config)
    trainers = [
        Trainer(open_session(comm, each, config), mpi_tmp_path, lambda *_, **__: None, StopRequest())
        for each in (parts, other)
    ]
    trainers[0].start()
    begun = epoch(trainers[0], stop=5)
    trainers[0]._save(trainers[0].session.memory.saved())
    trainers[0].close()
    trainers[1].resume()
    assert trainers[1].progress.step == 5
    assert np.allclose(begun + epoch(trainers[1], first=5), losses, rtol=1e-9, atol=0)
    assert trainers[1]._scores.metrics() == pytest.approx({"train_ndcg@10": metrics["train_ndcg@10"]}, rel=1e-6)
    trainers[1].close()


@pytest.mark.parametrize("model", ["tgn", "navis"])
def test_answers_are_the_forecasts_that_evaluation_scored(comm, graph_parts, mpi_tmp_path, model):
    """NDCG of the answers of ``hpcgnn predict --nodes`` is the one of evaluation, whatever else is asked: at times of
    training labels, at the end, or at times between labels."""
    graph, parts, labels = graph_parts
    config, walk = (property_config, _walk_to_times) if model == "tgn" else (navis_config, answer_labels)
    session = open_session(comm, parts, config(labels))
    trainer = Trainer(session, mpi_tmp_path, lambda *_, **__: None, StopRequest())
    epoch(trainer)
    session.memory.settle()
    trained = [tensor.clone() for tensor in session.memory.table.tensors()]
    by_split, drawn = (
        tgb_order(draw_labels(graph), session.graph.splits.bounds, read_plain(graph).time),
        draw_labels(graph),
    )
    expected = {name: split_metrics(session, name, session.scores(name))["ndcg@10"] for name in ("val", "test")}
    asked = [(time, user) for name in ("val", "test") for time in by_split[name] for user in drawn[time]]
    first = min(drawn)
    for further in (
        [],
        [(first + 50, 3), (by_split["train"][2], 4), (by_split["val"][0] + 200, 5), (first + 3 * TICKS, 6)],
    ):
        for tensor, before in zip(session.memory.table.tensors(), trained, strict=True):
            tensor.copy_(before)
        rows = [*further, *asked]
        text = "node,type,time\n" + "".join(f"{1000 + 3 * user},user,{time}\n" for time, user in rows)
        on_rank_0(comm, lambda text=text: (mpi_tmp_path / "nodes.csv").write_text(text))
        answers = answer_nodes(session, read_nodes(session, str(mpi_tmp_path / "nodes.csv")), False, compute=walk)
        weight = np.empty((len(rows), CLASSES))
        for row, values in comm.allgather((answers.row, answers.columns["weight"])):
            weight[row] = values
        assert np.allclose(weight.sum(axis=1), 1)
        gains: dict[int, list[float]] = {}
        for (time, user), values in zip(asked, weight[len(further) :], strict=True):
            gains.setdefault(time, []).append(ndcg_score([drawn[time][user]], [values], k=10))
        for name, mean in expected.items():
            assert np.mean([np.mean(gains[time]) for time in by_split[name]]) == pytest.approx(mean, rel=1e-6)
    trainer.close()
    session.close()


def outputs(comm, parts, labels) -> dict[int, np.ndarray]:
    """Collective. The outputs of the test's labels by place of their time, of a model that was not trained."""
    session = open_session(comm, parts, property_config(labels))
    found: dict[int, list] = {}
    for split in ("train", "val", "test"):
        with session.plans(split, 0) as plans:
            for plan in plans:
                scores = session.task.evaluate(plan) if plan.final else session.task.score(plan)
                rows = [] if scores.output is None else zip(scores.time, plan.event_row, scores.output, strict=True)
                for time, row, output in rows:
                    found.setdefault(int(time), []).append((int(row), output.numpy()))
    session.close()
    joined: dict[int, list] = {}
    for piece in comm.allgather(found):
        for time, rows in piece.items():
            joined.setdefault(time, []).extend(rows)
    return {time: np.stack([row[1] for row in sorted(rows, key=lambda row: row[0])]) for time, rows in joined.items()}


@pytest.mark.parametrize("after", [True, False])
def test_labels_are_predicted_from_all_events_before(comm, graph_parts, folder, after):
    """Events from a label time on have other destinations: nothing changes up to this time. The last event before it
    has another one: the labels of this time change."""
    graph, parts, labels = graph_parts
    plain, number = read_plain(graph), 9
    time = sorted(draw_labels(graph))[number]
    first = int((plain.time < time).sum())
    changed = folder / f"changed-{after}.h5"

    def write():
        changed.write_bytes(graph.read_bytes())
        with h5py.File(changed, "r+") as file:
            dst = file["edges/user.takes.item/dst"]
            rows = slice(first, None) if after else slice(first - 1, first)
            dst[rows] = (dst[rows] + 1) % 15

    on_rank_0(comm, write)
    before, now = (
        outputs(comm, each, labels)
        for each in (parts, make_parts(comm, changed, folder / f"changed-{after}", 8))
    )  # fmt: skip
    same = {place: np.allclose(before[place], now[place], rtol=1e-9, atol=1e-12) for place in before}
    assert all(same[place] for place in same if place < number)
    assert same[number] == after
    assert not all(same[place] for place in same if place > number)


def test_files_of_another_graph_are_refused(comm, graph_parts, folder):
    graph, parts, _ = graph_parts
    for sizes, kind, message in (
        ((USERS, 699), "user", "written beside another graph, of 40 nodes and 699 events; this one has 40 and 700"),
        ((USERS, 700), "person", "labels of person, and the graph has user, item"),
    ):
        path = folder / f"{kind}-{sizes[1]}.h5"
        on_rank_0(
            comm, lambda path=path, sizes=sizes, kind=kind: write_labels(path, draw_labels(graph), sizes, kind) and None
        )
        with pytest.raises(DistributedError, match=message):
            open_session(comm, parts, property_config(path))


BAD = {
    "no file": ({"task__labels_file": ""}, "task.labels_file goes with task.kind node_property.*labels.h5"),
    "a file": ({"task__kind": "link"}, "task.labels_file goes with.*kind is link: leave it out"),
    "chunks": ({"sampling__random_chunks": 2}, "sampling.random_chunks does not go with"),
    "epochs": ({"train__parallel_epochs": 2}, "train.parallel_epochs does not go with"),
    "hidden": ({"data__new_node_ratio": 0.1}, "data.new_node_ratio does not go with"),
    "classes": ({"task__classes": 3}, "has no classes"),
    "loss": ({"task__loss": "cross_entropy"}, "must be soft_cross_entropy or lambda_ndcg or custom"),
    "ranking": ({"eval__protocol": "tgb"}, "are for task.kind link"),
    "links": ({"baseline__kind": "unlimited"}, "unlimited predicts for task.kind link, .*: use persistent_fore"),
    "events": ({"model__forecaster": "navis"}, "model.time_dim describes a model of events, and"),
    "head": ({"model__forecaster": "navis", "task__freeze": True, "train__init": "run"}, "navis has none"),
    "no labels": ({"model__forecaster": "navis", "task__kind": "link", "task__labels_file": ""}, "predicts labels of"),
    "window": ({"baseline__kind": "persistent_forecast", "baseline__window": 3}, "persistent_forecast does not read"),
    "no window": ({"baseline__kind": "moving_average", "baseline__window": 0}, "baseline.window must be at least 1"),
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("case", BAD)
def test_settings_that_do_not_fit_are_refused(case):
    changes, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        property_config("labels.h5", **changes)
    with pytest.raises(ValueError, match=r"persistent_forecast predicts for task\.kind node_property"):
        make_config(baseline__kind="persistent_forecast")


def test_a_graph_of_several_relations(comm, mpi_tmp_path):
    """Labels of one of its node types, on several ranks as on one; a rule's gains are those of plain loops."""
    rng, path = np.random.default_rng(6), mpi_tmp_path / "labels.h5"
    times = [505, 530, 560, 584, 590, 600, 610, 617]
    drawn = {time: {int(user): draw_label(rng) for user in rng.permutation(typed.USERS)[:9]} for time in times}
    sizes = (typed.USERS, sum(typed.COUNTS))

    def make() -> None:
        typed.write_typed(mpi_tmp_path / "graph.h5", node_width=2)
        write_labels(path, drawn, sizes)

    on_rank_0(comm, make)
    parts = make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts")
    losses, trained, _ = run(comm, parts, property_config(path))
    config = property_config(path, baseline__kind="persistent_forecast")
    with closing(open_session(comm, parts, config)) as session:
        metrics = baseline_metrics(session, config.baseline)
        bounds = session.graph.splits.bounds
    if comm.rank == 0:
        alone, other, _ = run(MPI.COMM_SELF, parts, property_config(path))
        np.testing.assert_allclose(losses, alone, rtol=1e-9)
        assert trained == pytest.approx(other, rel=1e-9, nan_ok=True)
        assert np.isfinite([trained["val_ndcg@10"], trained["test_ndcg@10"], *losses]).all()
        assert len(losses) > 3
        by_split = tgb_order(times, bounds, typed.merge(typed.draw_events())["time"])
        expected = forecast_like_tgb(drawn, by_split, 1)
        assert metrics["test_ndcg@10"] == pytest.approx(expected["test"], abs=1e-6)
