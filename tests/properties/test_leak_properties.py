"""Where nothing can be learned nothing is: on graphs of random edges and labels every metric is that of chance.

A metric that is better shows that answers reach the model. The rows of leak_rows.json cover all pairs of choices; those
that take longer than CI may are marked nightly. Leaks that are planted are found.
"""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import unlearnable
from mpi4py import MPI
from random_graphs import write_graph
from selection import long_but
from unlearnable import (
    FURTHER,
    LINKS,
    NEGATIVES,
    config_of,
    factors,
    first_of,
    is_accepted,
    missing_pairs,
    read_rows,
    standing,
)

from data_tools.partition.command import partition
from data_tools.snapshots.graph import SnapshotGraph, write_snapshots
from hpcgnn import kinds, native
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.trainer import Trainer
from hpcgnn.snapshots import link_goal
from hpcgnn.snapshots.recurrency import FactHistory
from hpcgnn.static.sampling import seeds
from hpcgnn.static.sampling.times import TimeOrder
from hpcgnn.task.goal import Collected, measure_events

pytestmark = pytest.mark.serial
WINGS = tuple(FURTHER)
ERRORS = 3.0  # standard errors around chance
IN_SHORT, IN_CI = 48, 24  # one row in so many, and all rows every night
PEOPLE, EVENTS = 14, 1500
NODES, EDGES = 200, 1600
TELLING = 24  # edges from the node that has a node's label
PLACES, SNAPSHOTS = 50, 14


# ------------------------------------------------------------------------------------ graphs where nothing is learnable


def write_events(path: Path, row: dict, rng: np.random.Generator) -> None:
    """Events between random nodes of one type, nearly all of whose pairs meet in training; labels as the task wants, of
    more nodes where nodes have them."""
    kind = row["task.kind"]
    people = NODES if kind == "node_class" else PEOPLE
    src, dst = rng.integers(0, people, (2, EVENTS))
    columns = {
        "src": src, "dst": dst, "time": np.sort(rng.integers(0, 10 * EVENTS, EVENTS)),
        "label": rng.standard_normal(EVENTS) if kind == "edge_regression" else rng.integers(0, 2, EVENTS),
        "feat": rng.standard_normal((EVENTS, 2)).astype(np.float32),
    }  # fmt: skip
    nodes: dict = {"id": np.arange(people)}
    if kind == "node_class":
        nodes |= {"label": rng.integers(0, 2, people), "feat": rng.standard_normal((people, 2)).astype(np.float32)}
        nodes["split"] = rng.choice(3, people, p=[0.5, 0.1, 0.4]).astype(np.int8)
    write_graph(path, {"person": nodes}, {("person", "meets", "person"): columns})


def write_static(path: Path, row: dict, rng: np.random.Generator) -> None:
    """Random edges of three types with a random split, and nodes or edges with random labels; no features where edges
    are learned, so that nodes learn rows of their own."""
    src, dst = rng.integers(0, NODES, (2, EDGES))
    split = rng.choice(3, EDGES, p=[0.6, 0.1, 0.3]).astype(np.int8)
    edges = {("node", "meets", "node"): {"src": src, "dst": dst, "weight": rng.uniform(0.5, 2, EDGES)}}
    nodes = {"id": np.arange(NODES)}
    kind = row["task.kind"]
    if kind in ("node", "regression"):
        labels = rng.integers(0, 2, NODES) if kind == "node" else rng.standard_normal(NODES)
        nodes |= {"label": labels, "split": rng.choice(3, NODES, p=[0.5, 0.1, 0.4]).astype(np.int8)}
        nodes["feat"] = rng.standard_normal((NODES, 8)).astype(np.float32)
    else:
        edges["node", "meets", "node"] |= {"split": split, "rel": rng.integers(0, 3, EDGES)}
    if kind.startswith("edge"):
        labels = rng.integers(0, 2, EDGES) if kind == "edge" else rng.standard_normal(EDGES)
        edges["node", "meets", "node"]["label"] = labels
    if row["sampling.time_column"]:
        add_times(nodes, edges["node", "meets", "node"], rng)
    if row["graph.reverse"]:
        edges["node", "met_by", "node"] = {"src": dst, "dst": src, "weight": edges["node", "meets", "node"]["weight"]}
    write_graph(path, {"node": nodes}, edges, "static")
    for number, name in enumerate(("val", "test"), 1):
        rows = np.flatnonzero(split == number)
        given = {"src": rng.integers(0, NODES, EDGES), "dst": rng.integers(0, NODES, EDGES)}
        if row["eval.ranking"] == "listed":
            given = {"row": rows, "negatives": rng.integers(0, NODES, (len(rows), 20))}
        np.savez(path.with_name(NEGATIVES.replace("{split}", name)), **given)


def add_times(nodes: dict, edges: dict, rng: np.random.Generator) -> None:
    """Times of edges, or of nodes that have labels. Then the next newer node has the label of a node as a feature, and
    edges lead from it to this node, which must not be followed."""
    if "feat" not in nodes:
        edges["time"] = rng.integers(0, EDGES, EDGES)
        return
    nodes["time"] = rng.permutation(NODES)
    by_time = np.argsort(nodes["time"])
    nodes["feat"][by_time[1:], 0] = 3 * nodes["label"][by_time[:-1]]
    further = {"src": np.repeat(by_time[1:], TELLING), "dst": np.repeat(by_time[:-1], TELLING)}
    further["weight"] = rng.uniform(0.5, 2, len(further["src"]))
    edges |= {name: np.concatenate([edges[name], values]) for name, values in further.items()}


def write_sequence(path: Path, row: dict, rng: np.random.Generator) -> None:
    """Snapshots of random edges, with random columns of nodes and edges."""
    first = np.repeat(np.arange(SNAPSHOTS), LINKS)
    src, dst = rng.integers(0, PLACES, (2, len(first)))
    if row["task.undirected"]:
        src, dst, first = np.r_[src, dst], np.r_[dst, src], np.tile(first, 2)
    count = len(first) // (1 + row["task.undirected"])
    edges = {
        "weight": rng.uniform(0.5, 2, count).astype(np.float32), "label": rng.integers(0, 2, count),
        "target": rng.standard_normal(count).astype(np.float32), "rel": rng.integers(0, 3, count).astype(np.int16),
    }  # fmt: skip
    edges = {name: np.tile(values, len(first) // count) for name, values in edges.items()}
    nodes: dict = {"split": rng.choice(3, PLACES, p=[0.5, 0.1, 0.4]).astype(np.int8)}
    series = {"target": rng.standard_normal((PLACES, SNAPSHOTS)).astype(np.float32)}
    series["label"] = rng.integers(0, 2, (PLACES, SNAPSHOTS))
    graph = SnapshotGraph(PLACES, SNAPSHOTS, src, dst, first, edges=edges, nodes=nodes, series=series)
    write_snapshots(path, graph, ["test"], "test")


GRAPHS = {"temporal": write_events, "static": write_static, "snapshots": write_sequence}


def excess(wing: str, row: dict, folder: Path, write=None, seed: int = 0) -> float:
    """Standard errors by which a row's test is better than chance, after training on a graph of random answers."""
    (write or GRAPHS[wing])(folder / "graph.h5", row, np.random.default_rng(seed))
    options = {"out_edges": True} if row.get("sampling.direction") == "out" else {}
    partition(folder / "graph.h5", folder / "parts", 4, "random", **options)
    config, world = config_of(wing, row), World(CommConfig(device="cpu", threads=1), MPI.COMM_SELF)
    if wing == "static" and config.eval.negatives_file:
        config.eval.negatives_file = str(folder / config.eval.negatives_file)
    session = kinds.open_session(config, str(folder / "parts"), world, Watchdog(world, 0))
    if wing == "temporal" and row["eval"] in ("all", "tgb"):  # all scores are kept, not the ranks alone
        session.goal.collector = lambda: Collected(measure_events)
    trainer = Trainer(session, folder, lambda *_, **__: None, StopRequest())
    before = test_scores(session)
    session.memory.reset()
    for epoch in range(config.train.epochs):
        trainer.start_epoch(epoch)
        session.memory.reset()
        with session.plans("train", epoch) as plans:
            for plan in plans:
                trainer.train_step(plan)
    session.memory.settle()
    after = test_scores(session)

    def measure(columns: dict) -> dict[str, float]:
        return after._measure(columns, session.batches["test"], world)

    value = standing(after.columns(), before.columns(), measure)
    if "label" in after.columns():  # of several snapshots and of both directions a target is asked for again
        value /= math.sqrt(row.get("task.forecast_steps", 1) * (1 + row.get("task.undirected", False)))
    trainer.close()
    session.close()
    return value


def test_scores(session) -> Collected:
    """Scores of the test behind those of validation, as a run has them."""
    session.scores("val")
    return session.scores("test")


test_scores.__test__ = False


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


# ------------------------------------------------------------------------------------------------------------- all rows


def cases():
    """Rows by wing and number; most are for the night."""
    for wing in WINGS:
        for number, row in enumerate(read_rows(wing)):
            marks = [pytest.mark.nightly] if number % IN_CI else [pytest.mark.long] if number % IN_SHORT else []
            yield pytest.param(wing, row, id=f"{wing}-{number}", marks=marks)


@pytest.mark.parametrize(("wing", "row"), list(cases()))
def test_nothing_is_learned_where_nothing_can_be(tmp_path, wing, row):
    """A leak shows on every graph; what is three standard errors from chance by chance, once in 370, on one."""
    if (
        row.get("eval") == "inductive" and row["task.kind"] == "link"
    ):  # all pairs met in training: none is left that only later events have
        with pytest.raises(DistributedError, match=r"can be a pair with earlier events .* all would be random"):
            excess(wing, row, make(tmp_path / "first"))
        return
    found = [excess(wing, row, make(tmp_path / "first"))]
    if abs(found[0]) >= ERRORS:
        found.append(excess(wing, row, make(tmp_path / "second"), seed=1))
    assert abs(found[-1]) < ERRORS, f"{found} standard errors from chance: {row}"


@pytest.mark.parametrize("wing", long_but(WINGS, "snapshots".__eq__))
def test_rows_cover_all_pairs_of_accepted_choices(wing):
    """A choice that the configuration takes from now on is missing here until unlearnable.py has been run."""
    rows = read_rows(wing)
    assert [row for row in rows if not is_accepted(wing, row)] == []
    assert {tuple(row) for row in rows} == {tuple(factors(wing))}
    missing = missing_pairs(wing, rows)
    assert not missing, f"python tests/properties/unlearnable.py adds rows for {sorted(missing)[:5]}"


def test_a_new_choice_needs_new_rows(monkeypatch):
    """Whatever its name is. Other factors have their first value alone; the test above goes through all values."""
    own = {name: values[:1] for name, values in factors("static").items()}
    own["task.strict"] = (*factors("static")["task.strict"], "somewhat")
    monkeypatch.setattr(unlearnable, "factors", lambda wing: own)
    new = {pair for pair in missing_pairs("static", read_rows("static")) if ("task.strict", "somewhat") in pair}
    assert len(new) == len(own) - 1


REFUSED = {  # what is known or was trained on, by wing, with the reason
    "links of the messages' snapshot": (
        "snapshots", {"task.kind": "link", "task.horizon": 0}, "messages pass along the edges"
    ),
    "weights of the messages": (
        "snapshots",
        {"task.kind": "edge_regression", "task.target": "weight", "task.horizon": 0, "model.edge_weights": True},
        "messages are multiplied by",
    ),
    "lags of the answer": ("snapshots", {"task.horizon": 0, "inputs.lags": 2}, "inputs.lags include the target"),
    "edges of whole graphs": ("static", {"task.kind": "edge", "train.full_graph": True}, "leave out task.kind edge"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_known_is_no_question(case):
    wing, changes, reason = REFUSED[case]
    with pytest.raises(ValueError, match=reason):
        config_of(wing, row_of(wing) | changes)


@pytest.mark.parametrize(("target", "reason"), [
    ({"task.target": "degree", "task.horizon": 0}, "degree counts the edges"),
    ({"task.kind": "node", "task.target": "fixed", "data.split_by": "time"}, "fixed is the same in all snapshots"),
])  # fmt: skip
def test_what_only_the_graph_tells_is_refused_when_it_is_opened(tmp_path, target, reason):
    def write(path, row, rng):
        write_sequence(path, row, rng)
        with h5py.File(path, "r+") as file:
            file["nodes/node/fixed"] = rng.integers(0, 2, PLACES)

    with pytest.raises(DistributedError, match=reason):
        excess("snapshots", row_of("snapshots") | target, tmp_path, write)


# ------------------------------------------------------------------------------------------------------ planted leaks


def row_of(wing: str, **changes) -> dict:
    """The first value of every factor, but for some."""
    return first_of(wing) | {name.replace("__", "."): value for name, value in changes.items()}


EARLY = {"pair": {"task__decoder": "pair"}, "tncn": {"model__readout": "tncn"}, "cawn": {"model__readout": "cawn"}}


@pytest.mark.parametrize("changes", EARLY.values(), ids=EARLY)
def test_events_that_are_seen_too_early_are_found(tmp_path, monkeypatch, changes):
    """Neighbors at the time of a root, its own event among them, not before it alone."""
    sample = native.sample_recent

    def too_early(graph, local, times, *others):
        return sample(graph, local, times + 1, *others)

    monkeypatch.setattr(native, "sample_recent", too_early)
    row = row_of("temporal", **changes, sampling__in_batch_neighbors=True)
    assert excess("temporal", row, tmp_path) > ERRORS + 1


@pytest.mark.parametrize("strategy", ["uniform", "recent"])
def test_neighbors_that_are_newer_than_their_seeds_are_found(tmp_path, monkeypatch, strategy):
    """By one unit of time."""
    end_of = TimeOrder.end
    monkeypatch.setattr(TimeOrder, "end", lambda order, begin, end, times: end_of(order, begin, end, times + 1))
    row = row_of("static", task__kind="node", sampling__time_column="time", sampling__strategy=strategy)
    assert excess("static", row, tmp_path) > ERRORS + 1


def telling(write, table: str):
    """What writes the usual graph of a wing, with the labels as a feature."""

    def write_labels(path: Path, row: dict, rng: np.random.Generator) -> None:
        write(path, row, rng)
        with h5py.File(path, "r+") as file:
            file[table]["feat"][:, 0] = file[table]["label"][()]

    return write_labels


@pytest.mark.parametrize(("wing", "task", "table"), [
    ("temporal", "edge", "edges/person.meets.person"), ("temporal", "node_class", "nodes/person"),
    ("static", "node", "nodes/node"),
])  # fmt: skip
def test_labels_among_the_features_are_found(tmp_path, wing, task, table):
    assert excess(wing, row_of(wing, task__kind=task), tmp_path, telling(GRAPHS[wing], table)) > ERRORS + 1


def test_labels_among_the_columns_of_edges_are_found(tmp_path):
    """Under another name."""

    def write(path: Path, row: dict, rng: np.random.Generator) -> None:
        write_static(path, row, rng)
        with h5py.File(path, "r+") as file:
            edges = file["edges/node.meets.node"]
            edges["hint"] = edges["label"][()]

    row = row_of("static", task__kind="edge") | {"task.edge_columns": ["hint"]}
    assert excess("static", row, tmp_path, write) > ERRORS + 1


def test_edges_that_are_held_out_among_the_messages_are_found(tmp_path, monkeypatch):
    """All edges carry messages, those of a step too, so that a model learns what a message from the other end means."""
    monkeypatch.setattr(seeds, "_masks", lambda *_: ({}, 0))
    row = row_of("static", task__kind="link", sampling__fanouts=[-1, -1], task__negative_ends="both")
    assert excess("static", row, tmp_path) > ERRORS + 1


def test_edges_that_are_asked_for_among_the_inputs_are_found(tmp_path, monkeypatch):
    """Links of the very snapshot that messages travel on."""
    edges = link_goal.TargetEdges
    monkeypatch.setattr(link_goal, "TargetEdges", lambda partition, horizon, *others: edges(partition, 0, *others))
    row = row_of("snapshots", task__kind="link", task__horizon=1, model__kind="sage", model__edge_weights=False)
    assert excess("snapshots", row, tmp_path) > ERRORS + 1


def test_facts_that_are_asked_for_among_the_known_ones_are_found(tmp_path, monkeypatch):
    """Edges of the snapshot that is predicted, in what a pair had before."""
    find = FactHistory.find
    monkeypatch.setattr(FactHistory, "find", lambda self, query, kind, last: find(self, query, kind, last + 1))
    row = row_of("snapshots", task__kind="link", task__horizon=1, task__recurrency=True)
    assert excess("snapshots", row, tmp_path) > ERRORS + 1
