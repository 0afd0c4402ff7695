"""A trained model works on another graph of the same schema: the same graph in another order gives the same answers by
original id, nodes that are new get those of a forward pass over the new graph, and what does not fit is named.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from kept import partition
from mpi4py import MPI
from random_graphs import write_graph
from run_commands import asked
from snapshot_runs import make_config as snapshot_config
from snapshot_runs import write_parts
from static_runs import static_config
from training_runs import make_config as temporal_config
from training_runs import on_rank_0

from data_tools.snapshots.graph import SnapshotGraph
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.kinds import open_session
from hpcgnn.loop import checkpoint
from hpcgnn.loop.checkpoint_writer import Carried, load_elsewhere
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.snapshots.predict import forecast_nodes
from hpcgnn.static.predict import edge_types_of, predict_nodes, read_pairs, score_pairs
from hpcgnn.temporal import predict as temporal_answers

PAPERS, AUTHORS = 80, 30


def library(seed: int = 1) -> tuple[dict, dict]:
    """Papers with features and labels, authors with none: nodes and edges by name."""
    rng = np.random.default_rng(seed)
    nodes = {
        "author": {"id": np.array([f"author {n}".encode() for n in range(AUTHORS)])},
        "paper": {
            "id": 100 + 3 * np.arange(PAPERS), "feat": rng.standard_normal((PAPERS, 5)).astype(np.float32),
            "label": rng.integers(0, 3, PAPERS), "split": rng.choice([0, 0, 1, 2], PAPERS).astype(np.int8),
        },
    }  # fmt: skip
    edges = {
        ("author", "writes", "paper"): ends(rng, AUTHORS, PAPERS, 160),
        ("paper", "cites", "paper"): ends(rng, PAPERS, PAPERS, 300),
        ("paper", "by", "author"): ends(rng, PAPERS, AUTHORS, 160),
    }
    return nodes, edges


def ends(rng, sources: int, destinations: int, count: int) -> dict[str, np.ndarray]:
    return {"src": rng.integers(0, sources, count), "dst": rng.integers(0, destinations, count)}


def shuffled(graph: tuple[dict, dict], new: int = 0, seed: int = 7, leave_out=("label", "split")) -> tuple[dict, dict]:
    """The graph with its nodes and edges in another order, ``new`` papers more, which cite some of the others, and
    without some columns."""
    (nodes, edges), rng = graph, np.random.default_rng(seed)
    nodes = {kind: {k: v for k, v in columns.items() if k not in leave_out} for kind, columns in nodes.items()}
    edges = {name: dict(columns) for name, columns in edges.items()}
    if new:
        papers = nodes["paper"]
        papers["id"] = np.concatenate([papers["id"], 100_000 + np.arange(new)])
        papers["feat"] = np.concatenate([papers["feat"], rng.standard_normal((new, 5)).astype(np.float32)])
        cited, count = edges["paper", "cites", "paper"], 4 * new
        cited["src"] = np.concatenate([cited["src"], rng.integers(0, PAPERS, count)])
        cited["dst"] = np.concatenate([cited["dst"], PAPERS + np.repeat(np.arange(new), 4)])
    places = {}
    for kind, columns in nodes.items():
        order = rng.permutation(len(columns["id"]))
        nodes[kind] = {name: values[order] for name, values in columns.items()}
        places[kind] = np.argsort(order)
    for (src, _, dst), columns in edges.items():
        order = rng.permutation(len(columns["src"]))
        columns |= {name: values[order] for name, values in columns.items()}
        columns["src"], columns["dst"] = places[src][columns["src"]], places[dst][columns["dst"]]
    return nodes, edges


def write(comm, folder: Path, graph: tuple[dict, dict], kind: str = "static", parts: int = 8) -> Path:
    """Collective. The partition set of a graph."""

    def make() -> None:
        folder.mkdir()
        write_graph(folder / "graph.h5", *graph, kind)
        partition(folder / "graph.h5", folder / "parts", parts, "random")

    on_rank_0(comm, make)
    return folder / "parts"


def opened(comm, config, parts: Path, trained=None) -> Session:
    world = World(CommConfig(device="cpu", threads=1), comm)
    return open_session(config, str(parts), world, Watchdog(world, 0), trained=trained)


def trained_run(comm, config, parts: Path, folder: Path) -> Path:
    """Collective. The best checkpoint of a run of few epochs."""
    on_rank_0(comm, lambda: folder.mkdir(exist_ok=True))
    trainer = Trainer(opened(comm, config, parts), folder, lambda *_, **__: None, StopRequest())
    trainer.start()
    trainer.run()
    best = checkpoint.find_best(folder / "checkpoints")
    assert best is not None
    trainer.close()
    trainer.session.close()
    return best


def carried(comm, config, best: Path, home: Path, parts: Path) -> tuple[Session, Carried]:
    """Collective. The model of a checkpoint on another graph."""
    session = opened(comm, config, parts, checkpoint.recorded_schema(best))
    return session, load_elsewhere(session, best, str(home))


def by_id(answers, session, value: str) -> dict[str, np.ndarray]:
    """Collective. The answers by id, on all ranks."""
    ids, values = (answers.slab(name, 0, session.world) for name in ("node", value))
    found = None if ids is None else dict(zip(map(str, ids.tolist()), values, strict=True))
    return session.world.broadcast(found)


CONFIGS = {
    "features and learned rows": {}, "rows of bases": {"model__kind": "rgcn", "model__bases": 2},
    "whole graph": {"train__full_graph": True, "sampling__fanouts": [-1]},
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_nodes_in_another_order_have_the_same_classes(comm, mpi_tmp_path, case):
    config = static_config(**CONFIGS[case])
    home = write(comm, mpi_tmp_path / "a", library())
    best = trained_run(comm, config, home, mpi_tmp_path / "run")
    session, _ = carried(comm, config, best, home, home)
    expected = by_id(predict_nodes(session), session, "output")
    session.close()
    session, found = carried(comm, config, best, home, write(comm, mpi_tmp_path / "b", shuffled(library()), parts=5))
    answers = by_id(predict_nodes(session), session, "output")
    assert found == Carried(AUTHORS, AUTHORS)
    assert answers.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(answers[name], values, rtol=1e-9, atol=1e-12)
    session.close()


def test_new_nodes_have_the_outputs_of_a_plain_forward(comm, mpi_tmp_path):
    """GraphSAGE in dense matrices over the grown graph, of the trained weights."""
    nodes, edges = library()
    small = {"paper": nodes["paper"]}, {("paper", "cites", "paper"): edges["paper", "cites", "paper"]}
    home, config = write(comm, mpi_tmp_path / "a", small), static_config()
    best = trained_run(comm, config, home, mpi_tmp_path / "run")
    grown = shuffled(small, new=15)
    session, found = carried(comm, config, best, home, write(comm, mpi_tmp_path / "b", grown))
    answers = by_id(predict_nodes(session), session, "output")
    assert found.notes() == []
    (papers,), (cites,) = grown[0].values(), grown[1].values()
    expected = dense_sage(checkpoint.load_weights(best), papers["feat"], cites)
    assert len(answers) == PAPERS + 15
    for name, values in zip(papers["id"], expected, strict=True):
        np.testing.assert_allclose(answers[str(name)], values, rtol=1e-9)
    session.close()


def dense_sage(weights: dict, feat: np.ndarray, edges: dict) -> np.ndarray:
    """Two layers of GraphSAGE with means over the in-neighbors, parallel edges counted."""
    rows, matrix = torch.from_numpy(feat).double(), torch.zeros(len(feat), len(feat), dtype=torch.float64)
    matrix.index_put_((torch.from_numpy(edges["dst"]), torch.from_numpy(edges["src"])), torch.ones(()).double(), True)
    matrix /= matrix.sum(1, keepdim=True).clamp(min=1)
    for layer, last in ((0, False), (1, True)):
        weight, bias = (weights[f"layers.{layer}.product.{part}"].double() for part in ("weight", "bias"))
        rows = torch.cat([rows, matrix @ rows], 1) @ weight.T + bias
        rows = rows if last else torch.relu(rows)
    return rows.numpy()


WORDS = ["likes", "knows", "owns"]


def facts(names: list[str], seed: int = 3) -> tuple[dict, dict]:
    """Entities without features and facts of three types, whose numbers stand for ``names``."""
    rng = np.random.default_rng(seed)
    entities = {"id": np.array([f"entity {n}".encode() for n in range(40)])}
    columns = ends(rng, 40, 40, 260) | {"split": rng.choice([0, 0, 0, 1, 2], 260).astype(np.int8)}
    columns["rel"] = np.array([names.index(WORDS[number]) for number in rng.integers(0, 3, 260)])
    return {"entity": entities}, {("entity", "fact", "entity"): columns}


def write_facts(comm, folder: Path, graph, names: list[str]) -> Path:
    """Collective. The partition set of facts whose types have names."""

    def make() -> None:
        folder.mkdir()
        write_graph(folder / "graph.h5", *graph, "static")
        with h5py.File(folder / "graph.h5", "r+") as file:
            file["edges/entity.fact.entity/rel"].attrs["names"] = json.dumps(names)
        partition(folder / "graph.h5", folder / "parts", 4, "random")

    on_rank_0(comm, make)
    return folder / "parts"


def test_facts_follow_the_names_of_entities_and_of_their_types(comm, mpi_tmp_path):
    """Facts in another order, their types in another one, without a split: rows of entities follow their ids."""
    config = static_config(
        task__kind="link", task__decoder="distmult", model__kind="none", model__layers=0, sampling__fanouts=[],
        eval__exact=True, task__negatives=2, node_embedding__optimizer="adagrad",
    )  # fmt: skip
    other = ["owns", "likes", "knows"]
    home = write_facts(comm, mpi_tmp_path / "a", facts(WORDS), WORDS)
    there = write_facts(comm, mpi_tmp_path / "b", shuffled(facts(other), leave_out=()), other)
    best = trained_run(comm, config, home, mpi_tmp_path / "run")
    scores = []
    rng = np.random.default_rng(2)
    src, dst, rel = (rng.integers(0, top, 25) for top in (40, 40, 3))
    for parts in (home, there):
        session, found = carried(comm, config, best, home, parts)
        types, names = edge_types_of(session)
        assert (types, names, found) == (3, WORDS, Carried(40, 40))
        ends = {name: [f"entity {n}" for n in nodes] for name, nodes in (("src", src), ("dst", dst))}
        pairs = asked(partial(read_pairs, session), **ends, rel=rel)
        scores.append(score_pairs(session, pairs).slab("score", 0, session.world))
        session.close()
    if comm.rank == 0:
        np.testing.assert_allclose(*scores, rtol=1e-9)


def purchases(num_events: int = 300, seed: int = 5) -> tuple[dict, dict]:
    """Events of 20 users and 12 items."""
    rng = np.random.default_rng(seed)
    nodes = {"user": {"id": 10 + np.arange(20)}, "item": {"id": np.array([f"i{n}".encode() for n in range(12)])}}
    columns = ends(rng, 20, 12, num_events) | {"time": np.sort(rng.integers(0, 900, num_events))}
    columns["feat"] = rng.standard_normal((num_events, 3)).astype(np.float32)
    return nodes, {("user", "buys", "item"): columns}


def test_memory_is_formed_of_the_events_of_another_graph(comm, mpi_tmp_path):
    """The same events of nodes in another order; and a graph that has grown answers as on one rank."""
    nodes, edges = purchases()
    columns = edges["user", "buys", "item"]
    early = {name: values[:220] for name, values in columns.items()}
    home = write(comm, mpi_tmp_path / "a", (nodes, {("user", "buys", "item"): early}), "temporal")
    config = temporal_config(train__epochs=1)
    best = trained_run(comm, config, home, mpi_tmp_path / "run")
    names = {"src": [10 + n % 20 for n in range(30)], "dst": [f"i{n % 12}" for n in range(30)], "time": [1000] * 30}
    grown, renamed = (
        write(comm, mpi_tmp_path / name, graph, "temporal")
        for name, graph in (("b", (nodes, edges)), ("c", reordered(nodes, columns)))
    )
    tables = []
    for group, parts in ((comm, grown), (comm, renamed), (MPI.COMM_SELF, grown)):
        session, _ = carried(group, config, best, home, parts)
        temporal_answers.replay(session)
        pairs = asked(partial(temporal_answers.read_pairs, session), **names)
        tables.append(temporal_answers.score_pairs(session, pairs).slab("score", 0, session.world))
        session.close()
    if comm.rank == 0:
        assert len(set(tables[0].tolist())) > 10
        np.testing.assert_allclose(tables[1], tables[0], rtol=1e-9)
        np.testing.assert_allclose(tables[2], tables[0], rtol=1e-9)


def reordered(nodes: dict, columns: dict) -> tuple[dict, dict]:
    """The same events of nodes in another order."""
    rng = np.random.default_rng(9)
    orders = {kind: rng.permutation(len(of_kind["id"])) for kind, of_kind in nodes.items()}
    ends = {
        name: np.argsort(orders[kind])[columns[name]] for name, kind in (("src", "user"), ("dst", "item"))
    }  # fmt: skip
    shuffled = {kind: {"id": of_kind["id"][orders[kind]]} for kind, of_kind in nodes.items()}
    return shuffled, {("user", "buys", "item"): columns | ends}


def series(nodes: int, snapshots: int, order: np.ndarray, scale: float) -> SnapshotGraph:
    """Numbers of nodes that change, and the same edges in all snapshots, in an order of the nodes; the numbers were
    divided by ``scale``."""
    rng = np.random.default_rng(4)
    src, dst = rng.integers(0, nodes, (2, 90))
    first = np.repeat(np.arange(snapshots), len(src))
    values = rng.standard_normal((nodes, 40))[:, :snapshots].astype(np.float32) * 3
    place = np.argsort(order)
    return SnapshotGraph(
        nodes, snapshots, place[np.tile(src, snapshots)], place[np.tile(dst, snapshots)], first,
        id=np.array([f"sensor {n}".encode() for n in order]),
        series={"target": (values / scale)[order].astype(np.float32)}, attributes={"target": {"scale": scale}},
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{"inputs__lags": 2}, {"node_embedding__dim": 3, "inputs__lags": 1}, {"sampling__window_size": 3}],
    ids=["state", "embeddings", "windows"],
)  # fmt: skip
def test_forecasts_of_a_series_that_has_grown(comm, mpi_tmp_path, changes):
    """Three snapshots more, sensors in another order, other units: at the snapshot that both graphs have, the same."""
    config = snapshot_config(
        task__kind="regression", task__target="target", model__kind="gconv_gru", model__hidden=4,
        **({"inputs__lags": 1} | changes),
    )  # fmt: skip
    kept, grown = series(15, 14, np.arange(15), 8.0), series(15, 17, np.random.default_rng(1).permutation(15), 5.0)
    home, there = (
        write_parts(comm, made(comm, mpi_tmp_path / name), graph) for name, graph in (("a", kept), ("b", grown))
    )
    best, tables = trained_run(comm, config, home, mpi_tmp_path / "run"), []
    for parts in (home, there):
        session, found = carried(comm, config, best, home, parts)
        assert found == (Carried(15, 15) if "node_embedding__dim" in changes else Carried())
        tables.append(by_id(forecast_nodes(session, 4), session, "snapshot_14"))
        session.close()
    assert len(tables[0]) == 15
    for name, value in tables[0].items():
        assert tables[1][name] == pytest.approx(value, rel=1e-5)  # the stored numbers are float32 in other units


def test_training_starts_with_weights_and_rows_of_another_graph(comm, mpi_tmp_path):
    """The first outputs are those of the run, by id; the head stays where classes are other ones."""
    home, there = (
        write(comm, mpi_tmp_path / name, graph)
        for name, graph in (("a", library()), ("b", shuffled(library(), leave_out=())))
    )
    config = static_config(data__path=str(home))
    best = trained_run(comm, config, home, mpi_tmp_path / "run")
    session, _ = carried(comm, config, best, home, home)
    expected = by_id(predict_nodes(session), session, "output")
    session.close()
    config, said = static_config(train__init=str(mpi_tmp_path / "run")), []
    trainer = Trainer(
        opened(comm, config, there), mpi_tmp_path / "next", lambda text, **_: said.append(text), StopRequest()
    )
    trainer.start()
    answers = by_id(predict_nodes(trainer.session), trainer.session, "output")
    for name, values in expected.items():
        np.testing.assert_allclose(answers[name], values, rtol=1e-9, atol=1e-12)
    assert said[-1].endswith(
        f"{AUTHORS} of {AUTHORS} nodes were in the graph of the run, the others have new embeddings"
    )
    trainer.close()


def test_links_start_with_the_head_of_the_same_task(comm, mpi_tmp_path):
    home = write(comm, mpi_tmp_path / "a", purchases(), "temporal")
    config = temporal_config(train__epochs=1)
    best = trained_run(comm, config, home, mpi_tmp_path / "run")
    config.train.init = str(mpi_tmp_path / "run")
    said: list[str] = []
    trainer = Trainer(opened(comm, config, home), mpi_tmp_path, lambda text, **_: said.append(text), StopRequest())
    trainer.start()
    assert said == [f"weights from {best}"]
    weights = checkpoint.load_weights(best)
    for name, value in trainer.session.model.named_parameters():
        assert torch.equal(value, weights[name]), name
    trainer.close()


def made(comm, folder: Path) -> Path:
    on_rank_0(comm, folder.mkdir)
    return folder


DIFFERENCES = {
    "features": (lambda nodes, _: nodes["paper"].update(feat=nodes["paper"]["feat"][:, :4]),
                 "features of paper: 5 numbers a node, this graph has 4 numbers a node"),
    "relations": (lambda _, edges: edges.pop(("paper", "by", "author")), "relations: .*this graph has "),
    "types": (lambda nodes, _: nodes.update(venue={"id": np.arange(3)}), "node types: author, paper, this graph has"),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENCES)
def test_what_is_not_the_same_is_named(comm, mpi_tmp_path, case):
    change, message = DIFFERENCES[case]
    home, config = write(comm, mpi_tmp_path / "a", library()), static_config(train__epochs=1)
    best = trained_run(comm, config, home, mpi_tmp_path / "run")
    graph = shuffled(library())
    change(*graph)
    there = write(comm, mpi_tmp_path / "b", graph)
    with pytest.raises(DistributedError, match=message):
        carried(comm, config, best, home, there)
