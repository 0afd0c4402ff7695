"""Small static graphs and runs on them in this process, for tests."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from kept import partition
from mpi4py import MPI
from random_graphs import write_columns, write_graph
from training_runs import on_rank_0

from data_tools.graph.narrow import narrow_features
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph.narrow import read_encoding
from hpcgnn.kinds import open_session
from hpcgnn.loop.launch import EXIT_REQUEUE, StopRequest
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.static.config import StaticConfig


def typed(path, seed: int = 3):
    """Papers with features and labels, authors without features, three venues; one relation has no edges, some papers
    have no in-edges, few have many."""
    rng = np.random.default_rng(seed)
    papers, authors, venues = 120, 70, 3
    label = rng.integers(0, 3, papers)
    feat = rng.standard_normal((papers, 5)).astype(np.float32)
    feat[:, 0] += label
    nodes = {
        "paper": {"feat": feat, "label": label, "split": rng.choice([-1, 0, 0, 1, 2], papers).astype(np.int8)},
        "author": {"id": 1000 + 3 * np.arange(authors)},
        "venue": {"feat": np.eye(venues, 2, dtype=np.float32)},
    }
    edges = {
        ("paper", "cites", "paper"): _edges(rng, papers, papers, 700),
        ("author", "writes", "paper"): _edges(rng, authors, papers, 300),
        ("paper", "written_by", "author"): _edges(rng, papers, authors, 300),
        ("venue", "prints", "paper"): _edges(rng, venues, papers, 120),
        ("author", "edits", "venue"): _edges(rng, authors, venues, 0),
    }
    return write_graph(path, nodes, edges, "static")


def plain(path, num_nodes: int = 150, num_edges: int = 900, seed: int = 4, width: int = 6):
    """One node type and one relation, stored in both directions, a tenth of its weights 0; four classes."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 4, num_nodes)
    feat = rng.standard_normal((num_nodes, width)).astype(np.float32)
    feat[:, min(1, width - 1)] += label
    split = rng.choice([0, 0, 1, 2], num_nodes).astype(np.int8)
    edges = _edges(rng, num_nodes, num_nodes, num_edges)
    weight = np.where(rng.random(2 * num_edges) < 0.1, 0, rng.random(2 * num_edges)).astype(np.float32)
    both = {"src": np.r_[edges["src"], edges["dst"]], "dst": np.r_[edges["dst"], edges["src"]], "weight": weight}
    nodes = {"node": {"feat": feat, "label": label, "split": split}}
    return write_graph(path, nodes, {("node", "meets", "node"): both}, "static")


def chances(path, column: str = "chance"):
    """The plain graph; the column by which neighbors are drawn, a third of it 0, is not its weight."""
    with h5py.File(plain(path), "r+") as file:
        group = file["edges/node.meets.node"]
        rng = np.random.default_rng(8)
        chance = np.where(rng.random(len(group["weight"])) < 1 / 3, 0, rng.random(len(group["weight"])))
        if column in group:
            del group[column]
        write_columns(group, {column: chance.astype(np.float32)})
    return path


def bare(path, seed: int = 6):
    """Authors, and papers with labels; no type has features."""
    rng = np.random.default_rng(seed)
    split = rng.choice([-1, 0, 0, 1, 2], 120).astype(np.int8)
    nodes = {"paper": {"label": rng.integers(0, 3, 120), "split": split}, "author": {"id": np.arange(70)}}
    edges = {
        ("paper", "cites", "paper"): _edges(rng, 120, 120, 500),
        ("author", "writes", "paper"): _edges(rng, 70, 120, 300),
        ("paper", "written_by", "author"): _edges(rng, 120, 70, 300),
    }
    return write_graph(path, nodes, edges, "static")


def narrow(make, name: str, widened: bool = False):
    """The graph of ``make`` with features in a narrow form; widened: the numbers of that form, as float32."""

    def write(path):
        made = make(path)
        narrow_features(path, path, name)
        if widened:
            with h5py.File(path, "r+") as file:
                for group in [*file["nodes"].values(), *file["edges"].values()]:
                    if "feat" in group:
                        encoding, codes = read_encoding(group["feat"]), group["feat"][()]
                        del group["feat"]
                        write_columns(group, {"feat": encoding.decode(codes)})
        return made

    return write


def _edges(rng, num_src: int, num_dst: int, count: int) -> dict[str, np.ndarray]:
    dst = (rng.random(count) ** 2 * 0.9 * num_dst).astype(np.int64)
    return {"src": rng.integers(0, num_src, count), "dst": dst}


def make_static_parts(comm, make, folder: Path, parts: int = 8, **options) -> Path:
    """Collective. A graph made by ``make(path)`` in ``parts`` random parts."""

    def write() -> None:
        usual = {"method": "random", "cache_ranking": 0.5, "fanouts": (3, 2)}
        folder.mkdir(exist_ok=True)
        make(folder / "graph.h5")
        partition(folder / "graph.h5", folder / "parts", parts, **(usual | options))

    on_rank_0(comm, write)
    return folder / "parts"


def static_config(**changes) -> StaticConfig:
    """A small float64 model of two layers; ``changes`` by key with "__" for the dot."""
    values = {
        "sampling__fanouts": [3, 2], "sampling__prefetch": 2, "sampling__topology": "sharded", "model__layers": 2,
        "model__hidden": 8, "model__heads": 2,
        "model__dropout": 0.2, "train__batch_size": 16, "train__precision": "float64", "train__seed": 5,
        "train__epochs": 2, "train__log_every": 1, "train__early_stopping_patience": 0, "train__checkpoint_every": 0,
        "train__cuda_graphs": "off",
    }  # fmt: skip
    sections: dict[str, dict] = {}
    for key, value in (values | changes).items():
        section, name = key.split("__")
        sections.setdefault(section, {})[name] = value
    return StaticConfig.from_dict(sections)


APART = {"comm__ranks_per_machine": 1}  # each rank is a machine of its own: rows travel in messages


def open_graph_session(comm, parts: Path, config: StaticConfig) -> Session:
    """Collective. A session on a communicator."""
    world = World(CommConfig(device="cpu", threads=1, ranks_per_machine=config.comm.ranks_per_machine), comm)
    return open_session(config, str(parts), world, Watchdog(world, 0))


def open_graph_trainer(comm, parts: Path, folder: Path, config: StaticConfig) -> Trainer:
    """Collective."""
    return Trainer(open_graph_session(comm, parts, config), folder, lambda *_, **__: None, StopRequest())


def whole_and_stopped(comm, parts: Path, folder: Path, config: StaticConfig, steps: int) -> tuple[Trainer, Path, Path]:
    """Collective. A run to the end, its folder, and that of an equal run which a signal stopped after so many steps."""
    whole, broken = folder / "whole", folder / "broken"
    on_rank_0(comm, lambda: (whole.mkdir(), broken.mkdir()) and None)
    trainer = open_graph_trainer(comm, parts, whole, config)
    trainer.run()
    stopped = open_graph_trainer(comm, parts, broken, config)
    asked = iter(range(100))
    stopped._stop = type("Stop", (), {"requested": property(lambda _: next(asked) >= steps)})()
    assert stopped.run() == EXIT_REQUEUE
    return trainer, whole, broken


def reference_run(parts: Path, folder: Path, config: StaticConfig) -> Trainer:
    """A whole run of this rank alone, in a folder of its own."""
    trainer = open_graph_trainer(MPI.COMM_SELF, parts, folder / f"alone-{MPI.COMM_WORLD.rank}", config)
    trainer.start()
    trainer.run()
    return trainer
