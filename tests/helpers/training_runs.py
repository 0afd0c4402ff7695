"""Small graphs, and an epoch of training on them in this process, recorded event by event, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from kept import partition
from random_graphs import write_graph

from hpcgnn import native
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph import files
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.native import Random, Stream
from hpcgnn.task.goal import concatenate
from hpcgnn.temporal import session as sessions
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.negatives import of_step

ROW_SCALE = 1024  # column 0 of the event features is the event's row id divided by this: exact in float32


START = 10**9  # of times


def bipartite(
    path, num_events=700, num_users=40, num_items=15, ticks=10_000, edge_width=0, node_width=0, seed=3, start=START
):
    """Users and items with repeats; with few ``ticks`` many events share a time. Times begin with ``start``."""
    rng = np.random.default_rng(seed)
    src = (num_users * rng.random(num_events) ** 2).astype(np.int64)
    dst = np.where(rng.random(num_events) < 0.6, src % num_items, rng.integers(0, num_items, num_events))
    nodes = {"user": _node_columns(rng, num_users, node_width), "item": _node_columns(rng, num_items, node_width)}
    columns = _event_columns(rng, src, dst, ticks, edge_width, start)
    return write_graph(path, nodes, {("user", "takes", "item"): columns})


def homogeneous(path, num_events=500, num_nodes=30, ticks=10_000, edge_width=0, node_width=0, seed=4):
    """One node type; every fifth event is a self-loop."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, num_events))
    dst = np.where(np.arange(num_events) % 5 == 0, src, dst)
    nodes = {"person": _node_columns(rng, num_nodes, node_width)}
    return write_graph(path, nodes, {("person", "meets", "person"): _event_columns(rng, src, dst, ticks, edge_width)})


def _node_columns(rng, count: int, width: int) -> dict:
    columns = {"id": 1000 + 3 * np.arange(count)}
    return columns | ({"feat": rng.standard_normal((count, width)).astype(np.float32)} if width else {})


def _event_columns(rng, src, dst, ticks: int, width: int, start: int = START) -> dict:
    columns = {"src": src, "dst": dst, "time": start + np.sort(rng.integers(0, ticks, len(src)))}
    if width:
        columns["feat"] = rng.standard_normal((len(src), width)).astype(np.float32)
        columns["feat"][:, 0] = np.arange(len(src)) / ROW_SCALE
    return columns


@dataclass
class Plain:
    """A graph file's events with flat row ids."""

    src: np.ndarray
    dst: np.ndarray
    time: np.ndarray
    feature: np.ndarray
    num_nodes: int
    node_feature: np.ndarray | None


def read_plain(path) -> Plain:
    """Everything of a small graph file."""
    with h5py.File(path) as file:
        types, (relation,) = files.node_types(file), files.relations(file)
        counts = [file["nodes"][name].attrs["num_nodes"] for name in types]
        base = dict(zip(types, np.concatenate(([0], np.cumsum(counts)))[:-1], strict=True))
        source, _, destination = files.split_relation(relation)
        edges = {name: column[()] for name, column in file["edges"][relation].items()}
        features = [file["nodes"][name]["feat"][()] for name in types if "feat" in file["nodes"][name]]
    feature = edges.get("feat", np.empty((len(edges["src"]), 0), np.float32))
    return Plain(
        edges["src"] + base[source], edges["dst"] + base[destination], edges["time"], feature, int(sum(counts)),
        np.concatenate(features) if features else None,
    )  # fmt: skip


def on_rank_0(comm, make):
    """Collective. What ``make()`` returns on rank 0, on all ranks."""
    return comm.bcast(make() if comm.rank == 0 else None)


def make_parts(comm, graph: Path, folder: Path, parts: int = 16, method: str = "metis") -> Path:
    """Collective. A partition set, made by rank 0."""
    on_rank_0(comm, lambda: partition(graph, folder, parts, method))
    return folder


def make_config(**changes) -> TemporalConfig:
    """A small float64 model; ``changes`` by key with "__" for the dot, such as sampling__fanouts=[3]."""
    values = {
        "train__batch_size": 40, "train__precision": "float64", "train__seed": 5, "sampling__fanouts": [5],
        "sampling__prefetch": 3, "train__cuda_graphs": "off",
        "memory__dim": 8, "model__time_dim": 6, "model__hidden": 8, "model__dropout": 0.2,
    }  # fmt: skip
    sections: dict[str, dict] = {}
    for key, value in (values | changes).items():
        section, name = key.split("__")
        sections.setdefault(section, {})[name] = value
    return TemporalConfig.from_dict(sections)


def open_session(comm, parts: Path, config: TemporalConfig) -> Session:
    """Collective. A session on a communicator."""
    world = World(CommConfig(device="cpu", threads=1, ranks_per_machine=config.comm.ranks_per_machine), comm)
    return sessions.open_session(config, str(parts), world.split(config.train.parallel_epochs), Watchdog(world, 0))


def train_steps(trainer: Trainer, first: int, stop: int | None = None) -> list[float]:
    """Collective. Losses of steps of the first epoch, from ``first`` up to ``stop``."""
    losses = []
    with trainer.session.plans("train", 0, first) as plans:
        for plan in plans:
            losses.append(trainer.train_step(plan)[0])
            trainer.progress.step = plan.step + 1
            if trainer.progress.step == stop:
                break
    return losses


@dataclass
class Record:
    """An epoch. losses [steps]; events: by name one array [events, ...] in order of event row; memory: columns in order
    of flat row id; mailed: the mail times of all nodes after each step; scores of validation in order of event row;
    hidden: flat row ids."""

    losses: list[float]
    events: dict[str, np.ndarray]
    memory: dict[str, np.ndarray]
    mailed: list[np.ndarray]
    scores: np.ndarray
    hidden: set[int]
    parameters: np.ndarray


def open_trainer(comm, parts: Path, config: TemporalConfig, folder: Path = Path("unused")) -> Trainer:
    """Collective. A trainer that logs nothing, with a run folder."""
    return Trainer(open_session(comm, parts, config), folder, lambda *_, **__: None, StopRequest())


def record_epoch(comm, parts: Path, config: TemporalConfig, steps: int | None = None) -> Record | None:
    """Collective. Train the first ``steps`` steps (default: all) of epoch 0, then validate; the record is on rank 0."""
    session = open_session(comm, parts, config)
    trainer = Trainer(session, Path("unused"), lambda *_, **__: None, StopRequest())
    losses, pieces, mailed = [], [], []
    session.start_epoch(0)
    with session.plans("train", 0) as plans:
        for plan in plans:
            pieces.append(describe(session, plan))
            losses.append(trainer.train_step(plan)[0])
            mailed.append(by_flat_row(session, _mail_times(session)))
            if len(losses) == steps:
                break
    table = session.memory.owned()
    memory = {name: by_flat_row(session, _one_slot(getattr(table, name).cpu().numpy())) for name in table.__slots__}
    hidden = session.world.gather(session.partition.flat_row[session.graph.splits.hidden])
    events, scores = gather_by_row(session.world, pieces), _validate(session)
    flat = trainer.flat.parameter.detach().cpu().numpy().copy()
    trainer.close()
    session.close()
    if session.world.rank > 0:
        return None
    return Record(losses, events, memory, mailed, scores, set(np.concatenate(hidden).tolist()), flat)


def _mail_times(session: Session) -> np.ndarray:
    table = session.memory.owned()
    return np.where(table.delivered.cpu().numpy() > 0, table.mailed.cpu().numpy().max(axis=1), -1)


def _one_slot(values: np.ndarray) -> np.ndarray:
    """Without the slot axis where there is but one slot."""
    return values[:, 0] if values.ndim > 1 and values.shape[1] == 1 else values


def by_flat_row(session: Session, values: np.ndarray) -> np.ndarray | None:
    """Collective. Local rows of all ranks in order of flat row id, on rank 0."""
    rows = session.world.gather_rows(session.partition.flat_row)
    values = session.world.gather_rows(values)
    return None if rows is None else values[np.argsort(rows)]


def describe(session: Session, plan) -> dict[str, np.ndarray]:
    """Collective. A plan event by event, its nodes as flat row ids."""
    (flat,) = plan.route.pull(_flat_rows(session).to(session.world.device))
    flat, roles = flat.cpu().numpy(), 2 + plan.num_negatives
    columns = {"root": flat[plan.query.root.cpu().numpy()], "mask": _mask(session, plan)}
    if len(plan.query.levels) == 1:
        columns |= _neighbors(plan.query.levels[0], flat, plan.query.windows)
    by_event = {name: _roles_last(values, roles) for name, values in columns.items()}
    return {"row": plan.event_row, "step": np.full(plan.num_events, plan.step), **by_event}


def _flat_rows(session: Session) -> torch.Tensor:
    """Collective. Flat row ids of the node memory's rows."""
    flat, layout = torch.from_numpy(session.partition.flat_row), session.memory.layout
    return flat if layout is None else layout.spread(flat, session.graph.channel)


def _mask(session: Session, plan) -> np.ndarray:
    session.model.train()
    random = Random(session.config.train.seed, Stream.DROPOUT, plan.step, plan.epoch)
    dropout = session.model.dropout(random, plan.query.identity)
    if dropout is None:
        return np.ones((len(plan.query.identity), 1))
    columns = session.config.model.hidden
    return native.dropout_mask(random, plan.query.identity, columns, dropout.p, torch.float64).cpu().numpy()


def _neighbors(level, flat: np.ndarray, windows: int) -> dict[str, np.ndarray]:
    """Neighbors of one level's queries; several windows side by side: [N, W, ...]."""
    attention = level.attention
    slot, edge, width = attention.slot.cpu().numpy(), attention.edge_of.cpu().numpy(), level.edge.shape[1]
    columns = {
        "neighbor": np.where(slot >= 0, np.append(flat, -1)[slot], -1),
        "dt": attention.dt.cpu().numpy(),
        "edge": np.where(edge[..., None] >= 0, np.append(level.edge.cpu().numpy(), np.zeros((1, width)), 0)[edge], 0),
    }
    if windows == 1:
        return columns
    return {name: np.moveaxis(v.reshape(windows, len(v) // windows, *v.shape[1:]), 0, 1) for name, v in columns.items()}


def _roles_last(values: np.ndarray, roles: int) -> np.ndarray:
    """[roles * b, ...] to [b, roles, ...]."""
    return np.moveaxis(values.reshape(roles, len(values) // roles, *values.shape[1:]), 0, 1)


def gather_by_row(world: World, pieces: list[dict]) -> dict[str, np.ndarray] | None:
    merged = {name: world.gather_rows(np.concatenate([piece[name] for piece in pieces])) for name in pieces[0]}
    if world.rank > 0:
        return None
    order = np.argsort(merged["row"], kind="stable")
    return {name: values[order] for name, values in merged.items()}


def _validate(session: Session) -> np.ndarray | None:
    """Collective. Scores [events, 1 + k] of validation, in order of event row, on rank 0."""
    with session.plans("val", 0) as plans:
        scores = [session.task.evaluate(plan) for plan in plans]
    positive, negative = concatenate(scores).values()
    rows = session.world.gather_rows(session.batches["val"].events.row)
    values = session.world.gather_rows(np.concatenate([positive[:, None], negative], axis=1))
    return None if rows is None else values[np.argsort(rows)]


def flat_rows(comm, session: Session) -> dict[int, int]:
    """Collective. Flat row ids of all nodes by global id."""
    partition = session.partition
    ids = partition.book.local_to_global(session.world.rank).tolist()
    pieces = comm.allgather(dict(zip(ids, partition.flat_row.tolist(), strict=True)))
    return {node: row for piece in pieces for node, row in piece.items()}


def pairs_by_step(session: Session, split: str) -> list[np.ndarray]:
    """Collective. Sources and destinations [1 + k, b, 2], global ids, of the pairs of every step."""
    batches, negatives, pairs = session.batches[split], session.loaders[split].negatives(0), []
    for step in range(batches.num_steps):
        events = batches.events.take(batches.at(step))
        some = of_step(negatives, batches, step, slice(None), session.graph.channel)
        dst = np.concatenate([events.dst[None], some.dst.T])
        src = np.tile(events.src, (len(dst), 1))
        if some.src is not None:
            src[1:] = some.src.T
        pairs.append(np.stack([src, dst], axis=2))
    return pairs


def assert_same(one: Record, other: Record) -> None:
    """Samples bit-identical, numbers equal to rounding."""
    assert one.events.keys() == other.events.keys()
    for name, values in one.events.items():
        assert np.array_equal(values, other.events[name]), name
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-9)
    np.testing.assert_allclose(one.parameters, other.parameters, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-8, atol=1e-9)
    for name, values in one.memory.items():
        np.testing.assert_allclose(values, other.memory[name], rtol=1e-9, atol=1e-9, err_msg=name)
    assert one.hidden == other.hidden
    assert all(np.array_equal(a, b) for a, b in zip(one.mailed, other.mailed, strict=True))
