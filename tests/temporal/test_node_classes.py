"""Classes of nodes at a time of their own: one answer on any number of ranks, losses and rules by hand, labels that
stay hidden, runs that resume, predictions by name."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from run_commands import asked
from selection import long_but
from test_edge_types import SPAN, draw_events, merge, write_typed
from test_node_property import epoch as run_steps
from test_temporal_tasks import Epoch, assert_same, open_trainer, weights_of
from training_runs import START, bipartite, homogeneous, make_config, make_parts, on_rank_0, open_session

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph.splits import TRAIN_SPLIT
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import scored_splits, split_metrics
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.baselines import baseline_metrics
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.predict import _walk, answer_nodes, embed_all, read_nodes, replay

EVENTS, BATCH, CLASSES = 120, 20, ["art", "law", "math"]


def labeled(path: Path, node_type: str, times: bool, change=lambda columns: None, make=homogeneous) -> None:
    """A graph file whose nodes of one type have labels (a tenth of them missing), splits and, with ``times``, times."""
    make(path, num_events=EVENTS)
    rng = np.random.default_rng(8)
    with h5py.File(path, "r+") as file:
        group = file["nodes"][node_type]
        count = group.attrs["num_nodes"]
        columns = {
            "label": np.where(rng.random(count) < 0.1, -1, rng.choice(3, count, p=[0.2, 0.3, 0.5])),
            "split": rng.choice([0, 1, 2, -1], count, p=[0.5, 0.2, 0.2, 0.1]),
        }
        if times:
            columns["label_time"] = START + rng.integers(0, 4000, count)
        change(columns)
        for name, values in columns.items():
            group[name] = values
        group["label"].attrs["names"] = json.dumps(CLASSES)


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """A callable: the partition set of a labeled graph, by name."""

    def make(name="parts", node_type="person", times=False, num_parts=8, method="random", **options) -> Path:
        path = mpi_tmp_path / f"{name}.h5"
        on_rank_0(comm, lambda: labeled(path, node_type, times, **options))
        return make_parts(comm, path, mpi_tmp_path / name, num_parts, method)

    return make


def config_of(**changes) -> TemporalConfig:
    return make_config(**{"train__batch_size": BATCH, "task__kind": "node_class"} | changes)


ITEMS = {"node_type": "item", "make": bipartite, "times": True}
USERS = {"node_type": "user", "make": lambda path, **_: write_typed(path, node_width=2)}  # of three relations
# name: (options of the graph, changes of the configuration)
CASES = {
    "before events, labels as input": ({}, {"task__label_input": 0.5, "train__train_metrics": True}),
    "once, at given times": ({"times": True}, {"task__train_at": "label", "train__batch_size": 4}),
    "one of two types": (ITEMS, {"task__label_input": 0.3, "task__balance_classes": True}),
    "once, without memory": (
        {}, {"task__train_at": "label", "memory__updater": "none", "model__layers": 2, "task__label_input": 0.5,
             "train__batch_size": 4},
    ),
    "once, mails of embeddings, uniform": (
        {"times": True}, {"task__train_at": "label", "model__message_from": "embedding", "train__batch_size": 4,
                          "sampling__strategy": "uniform", "sampling__in_batch_neighbors": False},
    ),
    "stale": ({}, {"memory__staleness": 1, "task__class_weights": [1.0, 0.5, 2.0]}),
    "several relations": (USERS, {"task__label_input": 0.5, "train__batch_size": 50}),
}  # fmt: skip
SHORT = ("before events, labels as input", "once, at given times", "once, without memory", "several relations")


def run_epoch(comm, parts: Path, config: TemporalConfig) -> Epoch:
    """Collective. An epoch of training, then validation and the test, each from new memory."""
    trainer = open_trainer(comm, parts, config)
    trainer.start()
    losses, session = run_steps(trainer), trainer.session
    metrics = {
        f"{split}_{name}": value for split in ("val", "test")
        for name, value in split_metrics(session, split, session.scores(split)).items()
    }  # fmt: skip
    trained = trainer._scores.metrics() if config.train.train_metrics else {}
    trainer.close()
    return Epoch(losses, weights_of(session), metrics, trained)


@pytest.mark.parametrize("case", long_but(CASES, lambda case: case in SHORT))
def test_ranks_do_not_change_the_answer(comm, parts, case):
    """Losses, weights and metrics, with another partition set on one rank."""
    options, changes = CASES[case]
    config = config_of(**changes)
    found = run_epoch(comm, parts(**options), config)
    other = parts("other", num_parts=4, method="metis", **options)
    assert np.isfinite(list(found.metrics.values())).all()
    assert len(found.losses) > 1
    if comm.rank == 0:
        assert_same(found, run_epoch(MPI.COMM_SELF, other, config))


def hide(columns: dict) -> None:
    """Other labels for the nodes that training does not know."""
    hidden = (columns["split"] != 0) & (columns["label"] >= 0)
    columns["label"] = np.where(hidden, (columns["label"] + 1) % 3, columns["label"])


def outputs_of(session, comm, split: str) -> np.ndarray:
    """Collective. The outputs of a split in order of question."""
    collected = session.scores(split).columns()
    rows = np.concatenate(comm.allgather(session.batches[split].events.row))
    return np.concatenate(comm.allgather(collected["output"]))[np.argsort(rows)]


@pytest.mark.parametrize("changes", [{"task__label_input": 0.5}, {"task__train_at": "label", "train__batch_size": 4}])
def test_hidden_labels_do_not_reach_the_model(comm, parts, changes):
    """With other labels of validation and test nodes, losses, weights and all outputs stay bit for bit the same."""
    found = []
    for name, change in (("first", lambda columns: None), ("second", hide)):
        trainer = open_trainer(comm, parts(name, change=change), config_of(**changes))
        trainer.start()
        losses = run_steps(trainer)
        found.append((losses, [outputs_of(trainer.session, comm, split) for split in ("val", "test")]))
        trainer.close()
    (losses, outputs), (other_losses, other_outputs) = found
    assert losses == other_losses
    for one, other in zip(outputs, other_outputs, strict=True):
        np.testing.assert_array_equal(one, other)


def plain(path: Path, node_type: str = "person") -> dict[str, np.ndarray]:
    """The columns of a graph file that has one node type."""
    with h5py.File(path) as file:
        (edges,), nodes = file["edges"].values(), file["nodes"][node_type]
        columns = {name: edges[name][()] for name in ("src", "dst", "time")}
        return columns | {f"node_{name}": nodes[name][()] for name in nodes}


def asked_times(graph: dict[str, np.ndarray]) -> np.ndarray:
    """When the class of each node is asked for: at its column time, else after its last event."""
    if "node_label_time" in graph:
        return graph["node_label_time"]
    times = np.full(len(graph["node_label"]), graph["time"].max() + 1)
    for node in range(len(times)):
        touched = graph["time"][(graph["src"] == node) | (graph["dst"] == node)]
        times[node] = touched.max() + 1 if len(touched) else times[node]
    return times


@pytest.mark.parametrize("times", [False, True])
def test_every_labeled_node_is_asked_once_at_its_time(comm, parts, mpi_tmp_path, times):
    session = open_session(comm, parts(times=times), config_of(task__train_at="label", train__batch_size=4))
    graph = plain(mpi_tmp_path / "parts.h5")
    for number, split in enumerate(("train", "val", "test")):
        events = session.batches[split].events
        mine = list(zip(events.time.tolist(), events.columns["label"].tolist(), strict=True))
        chosen = (graph["node_split"] == number) & (graph["node_label"] >= 0)
        wanted = zip(asked_times(graph)[chosen].tolist(), graph["node_label"][chosen].tolist(), strict=True)
        assert sorted(pair for pairs in comm.allgather(mine) for pair in pairs) == sorted(wanted)
    session.close()


@pytest.mark.parametrize("in_batch", [True, False])
def test_questions_see_the_events_before_their_time(comm, parts, mpi_tmp_path, in_batch):
    """The number of neighbors of every question of validation, without the batch of its time where that is hidden."""
    changes = {"sampling__fanouts": [EVENTS], "sampling__in_batch_neighbors": in_batch}
    session = open_session(comm, parts(times=True), config_of(**changes))
    graph, found = plain(mpi_tmp_path / "parts.h5"), []
    with session.plans("val", 0) as plans:
        for plan in plans:
            if "label" in plan.columns:
                count = plan.query.levels[0].attention.count[: plan.num_events]
                found += list(zip(plan.query.time[: plan.num_events].tolist(), count.tolist(), strict=True))
            session.task.evaluate(plan)
    wanted = []
    for node in np.flatnonzero((graph["node_split"] == 1) & (graph["node_label"] >= 0)):
        time = graph["node_label_time"][node]
        limit = EVENTS if in_batch else np.searchsorted(graph["time"], time) // BATCH * BATCH
        before = (graph["time"] < time) & (np.arange(EVENTS) < limit)
        ends = (graph["src"] == node) | (graph["dst"] == node)
        wanted.append((int(time), int((before & ends).sum())))
    assert sorted(pair for pairs in comm.allgather(found) for pair in pairs) == sorted(wanted)
    session.close()


def test_questions_see_the_events_of_all_relations(comm, parts, mpi_tmp_path):
    """Times, newest neighbors and edge types of the questions of validation, from events merged by hand."""
    path, k = parts(**USERS), 5
    session = open_session(comm, path, config_of(sampling__fanouts=[k], task__train_at="label"))
    merged, found = merge(draw_events()), []
    with session.plans("val", 0) as plans:
        for plan in plans:
            if "label" in plan.columns:
                level = plan.query.levels[0]
                for root in range(plan.num_events):
                    edge = level.edge[level.attention.edge_of[root, : level.attention.count[root]].long()]
                    found.append((int(plan.query.time[root]), edge[:, 5:].sum(0).tolist()))
            session.task.evaluate(plan)
    session.close()
    with h5py.File(mpi_tmp_path / "parts.h5") as file:
        label, split = (file["nodes/user"][name][()] for name in ("label", "split"))
    wanted = []
    for node in np.flatnonzero((split == 1) & (label >= 0)) + SPAN["user"][0]:
        rows = np.flatnonzero((merged["src"] == node) | (merged["dst"] == node))
        wanted.append((int(merged["time"][rows].max()) + 1, merged["feat"][rows[-k:], 5:].sum(0).tolist()))
    assert sorted(pair for pairs in comm.allgather(found) for pair in pairs) == sorted(wanted)


def test_loss_by_hand(comm, parts, mpi_tmp_path):
    """Training nodes at both ends of the events before the times of their labels, from the embeddings."""
    trainer = open_trainer(comm, parts(times=True), config_of(model__dropout=0.0))
    graph, session = plain(mpi_tmp_path / "parts.h5"), trainer.session
    known = np.where(graph["node_split"] == 0, graph["node_label"], -1)
    num_losses = 0
    with session.plans("train", 0) as plans:
        for plan in plans:
            head = {name: p.detach().numpy() for name, p in session.model.decoder.named_parameters()}
            total = 0.0
            for role, rows in enumerate(session.task.embed(plan).numpy()[:2]):
                node = graph[("src", "dst")[role]][plan.event_row]
                label = np.where(graph["time"][plan.event_row] < graph["node_label_time"][node], known[node], -1)
                hidden = np.maximum(0, rows @ head["hidden.weight"].T + head["hidden.bias"])
                logits = hidden @ head["out.weight"].T + head["out.bias"]
                logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
                total -= logs[np.arange(len(label)), label][label >= 0].sum()
            loss, *_ = trainer.train_step(plan)
            assert loss == pytest.approx(comm.allreduce(total) / BATCH, rel=1e-9)
            num_losses += 1
    before = graph["time"] < graph["node_label_time"][[graph["src"], graph["dst"]]]
    last = np.flatnonzero((before & (known[[graph["src"], graph["dst"]]] >= 0)).any(axis=0)).max()
    assert num_losses == last // BATCH + 1
    trainer.close()


def test_a_shown_label_counts_in_no_loss(comm, parts):
    """Another label of a training node changes a step's loss by its own prediction where the step hides it, and by its
    contacts' where the step shows it: the outputs of a hidden node never depend on its label."""
    outcomes = []
    for name, change in (("first", lambda columns: None), ("second", turn)):
        session = open_session(comm, parts(name, change=change), config_of(task__label_input=0.5))
        session.task._set_mode(training=True)
        with session.plans("train", 0) as plans:
            for plan in plans:
                scores = session.task._score(plan, session.task._embed(plan, session.task._read(plan))[0])
                label = scores.label.reshape(2, -1)
                outcomes.append((plan.columns["label"].numpy().T, label.numpy(), scores.output.detach().numpy()))
        session.close()
    half = len(outcomes) // 2
    shown = [((known >= 0) & (label < 0)).sum() for known, label, _ in outcomes[:half]]
    hidden = [(label >= 0).sum() for _, label, _ in outcomes[:half]]
    assert 0.3 < comm.allreduce(sum(shown)) / comm.allreduce(sum(shown) + sum(hidden)) < 0.7
    changed = 0
    for one, two in zip(outcomes[:half], outcomes[half:], strict=True):
        (known, label, output), (other_known, other, other_output) = one, two
        assert ((label >= 0) == (other >= 0)).all()
        own = known != other_known  # the node whose label is another one
        if (own & (label >= 0)).any():  # the step hides its label from all nodes
            np.testing.assert_array_equal(output, other_output)
        changed += int((output != other_output).any())
    assert comm.allreduce(changed) > 0


def turn(columns: dict) -> None:
    """Another label for the first training node."""
    first = np.flatnonzero((columns["split"] == 0) & (columns["label"] >= 0))[0]
    columns["label"][first] = (columns["label"][first] + 1) % 3


@pytest.mark.parametrize("changes", [{"task__label_input": 0.5}, {"task__train_at": "label", "train__batch_size": 4}])
def test_a_run_resumes_within_an_epoch(comm, parts, mpi_tmp_path, changes):
    config = config_of(train__train_metrics=True, **changes)
    whole = run_epoch(comm, parts(times=True), config)
    folder = mpi_tmp_path / "stopped"
    on_rank_0(comm, folder.mkdir)
    first = Trainer(open_session(comm, mpi_tmp_path / "parts", config), folder, lambda *_, **__: None, StopRequest())
    first.start()
    run_steps(first, 0, 2)
    first._save(first.session.memory.saved())
    first.close()
    again = parts("other", times=True, num_parts=4)
    second = Trainer(open_session(comm, again, config), folder, first.log, StopRequest())
    second.resume()
    assert second.progress.step == 2
    np.testing.assert_allclose(run_steps(second, 2), whole.losses[2:], rtol=1e-9)
    assert second._scores.metrics() == pytest.approx(whole.trained, rel=1e-6)
    second.close()


@pytest.mark.parametrize("changes", [{}, {"memory__updater": "none"}])
def test_scores_of_the_training_split(comm, parts, changes):
    """Once a node, whatever training learns; equal to those of steps that ask once, from the first event on."""
    path, found = parts(times=True), []
    for ranks in (comm, MPI.COMM_SELF):
        config = config_of(eval__train_split=True, task__train_at="label", **changes)
        once = open_session(ranks, path, config)
        collected = once.goal.collector()
        with once.plans("train", 0) as plans:
            for plan in plans:
                collected.take(once.task.evaluate(plan).arrays())
        session = open_session(ranks, path, config_of(eval__train_split=True, **changes))
        metrics = {split: split_metrics(session, split, session.scores(split)) for split in scored_splits(session)}
        found.append(metrics[TRAIN_SPLIT])
        assert found[-1] == pytest.approx(split_metrics(once, "train", collected), rel=1e-12)
        assert found[-1] != metrics["val"]
        once.close()
        session.close()
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def accuracy_of(scores: np.ndarray, label: np.ndarray) -> float:
    return float((scores.argmax(axis=1) == label).mean())


@pytest.mark.parametrize("times", [False, True])
def test_rules_by_hand(comm, parts, mpi_tmp_path, times):
    path = parts(times=times)
    graph = plain(mpi_tmp_path / "parts.h5")
    known, when = np.where(graph["node_split"] == 0, graph["node_label"], -1), asked_times(graph)
    shares, alone = np.bincount(known[known >= 0], minlength=3), 0
    assert shares.argmax() > 0  # what no event at all would give
    for kind in ("most_frequent", "contact_majority"):
        config = config_of(baseline__kind=kind, eval__train_split=True)
        session = open_session(comm, path, config)
        found = baseline_metrics(session, config.baseline)
        for number, split in enumerate(("train", "val", "test")):
            right, nodes = 0, np.flatnonzero((graph["node_split"] == number) & (graph["node_label"] >= 0))
            for node in nodes:
                counts = np.zeros(3)
                for src, dst, time in zip(graph["src"], graph["dst"], graph["time"], strict=True):
                    if time < when[node] and node in (src, dst) and kind == "contact_majority":
                        other = dst if src == node else src
                        counts[known[other]] += known[other] >= 0 and other != node
                alone += kind == "contact_majority" and not counts.any()
                right += int((counts if counts.any() else shares).argmax() == graph["node_label"][node])
            assert found[f"{split}_accuracy"] == pytest.approx(right / len(nodes))
        session.close()
    assert alone > 0 or not times


def test_the_last_label_by_hand(comm, mpi_tmp_path):
    """Of labels of events: the newest label of the source in an earlier batch, else the most frequent one."""

    def write() -> None:
        bipartite(mpi_tmp_path / "g.h5", num_events=EVENTS, num_users=6)
        with h5py.File(mpi_tmp_path / "g.h5", "r+") as file:
            (edges,) = file["edges"].values()
            drawn = np.random.default_rng(3).integers(-1, 4, EVENTS)
            edges["label"] = np.where(drawn < 3, drawn, edges["src"][()] % 3)

    on_rank_0(comm, write)
    config = config_of(task__kind="node", baseline__kind="last_label", train__batch_size=5)
    session = open_session(comm, make_parts(comm, mpi_tmp_path / "g.h5", mpi_tmp_path / "p", 4, "random"), config)
    found = baseline_metrics(session, config.baseline)
    with h5py.File(mpi_tmp_path / "g.h5") as file:
        (edges,) = file["edges"].values()
        source, label = edges["src"][()], edges["label"][()]
    bounds = session.graph.splits.bounds
    frequent = np.bincount(label[: bounds[1]][label[: bounds[1]] >= 0]).argmax()
    for number, split in ((1, "val"), (2, "test")):
        right = []
        for row in range(bounds[number], bounds[number + 1]):
            batch = bounds[number] + (row - bounds[number]) // 5 * 5
            earlier = [label[at] for at in range(batch) if source[at] == source[row] and label[at] >= 0]
            if label[row] >= 0:
                right.append((earlier[-1] if earlier else frequent) == label[row])
        assert found[f"{split}_accuracy"] == pytest.approx(np.mean(right))
    session.close()


def test_predictions_by_name_give_the_metrics(comm, parts, mpi_tmp_path):
    """Asked by their ids at the times of their labels, nodes get the classes that evaluation counted."""
    session = open_session(comm, parts(times=True), config_of(task__label_input=0.5, sampling__prefetch=0))
    graph = plain(mpi_tmp_path / "parts.h5")
    accuracy = split_metrics(session, "test", session.scores("test"))["accuracy"]
    chosen = np.flatnonzero((graph["node_split"] == 2) & (graph["node_label"] >= 0))
    columns = {"node": graph["node_id"][chosen].tolist(), "time": graph["node_label_time"][chosen].tolist()}
    nodes = asked(lambda path: read_nodes(session, path), **columns)
    answers = answer_nodes(session, nodes, False, compute=_walk)
    predicted = answers.slab("class", 0, session.world)
    if comm.rank == 0:
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in predicted]
        assert set(words) <= set(CLASSES)
        right = [CLASSES[label] == word for label, word in zip(graph["node_label"][chosen], words, strict=True)]
        assert np.mean(right) == pytest.approx(accuracy)
    ends_with_all_events(session, graph)
    session.close()


def ends_with_all_events(session, graph: dict[str, np.ndarray]) -> None:
    """Embeddings of all nodes are of the end of the graph, whatever was in memory before, as they are of questions."""
    nodes = asked(lambda path: read_nodes(session, path), node=graph["node_id"].tolist())
    wanted = answer_nodes(session, nodes, True, compute=_walk).slab("embedding", 0, session.world)
    replay(session)
    found = embed_all(session).slab("embedding", 0, session.world)
    if session.world.rank == 0:
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def without(name: str):
    return lambda columns: columns.pop(name)


REFUSED = {
    "no split": ({"change": without("split")}, {}, "node type person has no column split: .*hpcgnn split"),
    "another type": ({}, {"task__node_type": "item"}, "task.node_type: no node type 'item'; the graph has person"),
    "times of fractions": (
        {"change": lambda columns: columns.update(label_time=columns["label"] + 0.5)}, {},
        "column label_time of node type person must hold integers .* got float64",
    ),
    "several labels": (
        {"change": lambda columns: columns.update(label=np.eye(3, dtype=np.int64)[columns["label"]])}, {},
        "several labels a node; task.kind node_class learns one class a node",
    ),
    "weights": ({}, {"task__class_weights": [1.0, 2.0]}, "has 2 numbers, the labels have 3 classes"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_labels_that_cannot_be_used_are_refused(comm, parts, case):
    options, changes, message = REFUSED[case]
    path = parts(**options)
    with pytest.raises(DistributedError, match=message):
        open_session(comm, path, config_of(**changes))


def test_a_graph_without_labels_is_refused(comm, mpi_tmp_path):
    on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "g.h5", num_events=60) and None)
    path = make_parts(comm, mpi_tmp_path / "g.h5", mpi_tmp_path / "parts", 4)
    with pytest.raises(DistributedError, match="no node type has a column label to learn"):
        open_session(comm, path, config_of())


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"data__val_ratio": 0.2}, r"data\.val_ratio splits events, and task\.kind node_class splits nodes"),
     ({"train__drop_last": True}, r"train\.drop_last does not go with task\.kind node_class"),
     ({"task__label_input": 1.0}, r"share of the training nodes, in \[0, 1\), got 1"),
     ({"task__label_input": 0.5, "model__message_from": "embedding"}, "class of a node into its own memory"),
     ({"baseline__kind": "last_label"}, r"for task\.kind node, task\.kind is node_class: use most_frequent or contact"),
     ({"task__kind": "node", "task__train_at": "label"}, r"task\.train_at is for task\.kind node_class")],
)  # fmt: skip
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config_of(**changes)
