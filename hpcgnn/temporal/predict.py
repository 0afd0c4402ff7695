"""Answers questions about the end of a graph: scores of pairs, and embeddings of nodes, at given times.

Files name nodes by their original ids. Plans have neither negatives nor write-back. n nodes of a file, Z embedding
width.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import Namespace

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph import durable, files
from hpcgnn.loop.launch import on_first_rank
from hpcgnn.loop.session import Session
from hpcgnn.temporal.batches import Batches, event_times
from hpcgnn.temporal.config import RunConfig
from hpcgnn.temporal.graph import Events, TemporalPartition
from hpcgnn.temporal.negative_file import OriginalIds
from hpcgnn.temporal.negatives import no_negatives
from hpcgnn.temporal.plan import StepPlan


def read_rows(path: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Read the rows of a CSV with a header. Raises ValueError naming file and row for a missing column or field."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        header = reader.fieldnames or ()
        missing = set(columns) - set(header)
        if missing:
            raise ValueError(f"{path}: no column {', '.join(sorted(missing))}; it has {', '.join(header)}")
        rows = list(reader)
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(f"{path}: row {number}: {len(header)} fields expected, as in the header")
    return rows


def read_times(path: str, rows: list[dict[str, str]], after: int) -> np.ndarray:
    """Read column ``time`` [n] int64, ``after`` + 1 where it is empty or missing.

    Raises ValueError naming file and row for a bad time, or one not after ``after``.
    """
    return np.array([_time(path, number, row.get("time"), after) for number, row in enumerate(rows, 1)], np.int64)


def _time(path: str, number: int, text: str | None, after: int) -> int:
    if text is None or not text.strip():
        return after + 1
    try:
        value = int(text)
    except ValueError as error:
        raise ValueError(f"{path}: row {number}: time {text!r} is not an integer") from error
    if value > np.iinfo(np.int64).max:
        raise ValueError(f"{path}: row {number}: time {value} does not fit 64 bits")
    if value <= after:
        raise ValueError(
            f"{path}: row {number}: time {value} is not after the graph's last event ({after}): memory already knows "
            "that time; leave the column empty for the end of the graph"
        )
    return value


def find_nodes(
    path: str, column: str, names: list[str], types: list[str], partition: TemporalPartition, world: World
) -> np.ndarray:
    """Collective. Find the global ids [n] of the nodes that a file's column names by original id, each of its type.

    Raises DistributedError naming file and row for an unknown id.
    """
    kinds, ids, text = np.array(types, object), np.full(len(names), -1), np.array(names, str)
    for kind in sorted(set(types)):
        places = np.flatnonzero(kinds == kind)
        ids[places] = OriginalIds(partition, kind, world).find(text[places])
    with together(world, "look up the nodes"):
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            at = unknown[0]
            raise ValueError(
                f"{path}: row {at + 1}: {column} {names[at]!r} is no {types[at]} of this graph "
                f"({len(unknown)} such rows)"
            )
    return ids


def query_plan(
    session: Session, rows: np.ndarray, src: np.ndarray, dst: np.ndarray, time: np.ndarray, size: int
) -> StepPlan:
    """Collective. Plan a step that changes nothing: this rank's pairs [n] of ``size``, numbered by ``rows``."""
    width = session.partition.edge_width
    columns = {"feat": np.zeros((len(rows), width), np.float32)} if width else {}
    events = Events(rows.astype(np.int64), src, dst, time, columns)
    end = np.array([session.partition.num_events])
    batches = Batches("queries", events, np.array([0, len(rows)]), np.array([size]), end, np.zeros(len(rows), bool))
    return session.loaders["test"].sampler.plan(batches, no_negatives(batches), 0, 0, write=False)


@dataclass(slots=True)
class Nodes:
    """The rows of a nodes file: original ids as text, types, time [n] int64 in the graph's unit. several: whether the
    graph has several node types."""

    path: str
    node: list[str]
    type: list[str]
    time: np.ndarray
    several: bool

    def __len__(self) -> int:
        return len(self.node)


def read_nodes(path: str, types: tuple[str, ...], after: int) -> Nodes:
    """Read a CSV with columns node, type (where the graph has several) and, optionally, time; without it nodes are
    embedded at time ``after`` + 1.

    Raises ValueError naming file and row for a missing column, an unknown type, a bad time, or one not after ``after``.
    """
    several = len(types) > 1
    rows = read_rows(path, ("node", "type") if several else ("node",))
    kinds = [row["type"].strip() if "type" in row else types[0] for row in rows]
    for number, kind in enumerate(kinds, 1):
        if kind not in types:
            raise ValueError(f"{path}: row {number}: type {kind!r} is none of this graph's: {', '.join(types)}")
    return Nodes(path, [row["node"].strip() for row in rows], kinds, read_times(path, rows, after), several)


def embed_nodes(session: Session, nodes: Nodes) -> np.ndarray | None:
    """Collective. Compute embeddings [n, Z] on rank 0 (None elsewhere), from the session's current memory, which stays
    as it is. In float32 for a float32 run, in batches of ``train.batch_size``."""
    world, size = session.world, session.config.train.batch_size
    ids = find_nodes(nodes.path, "node", nodes.node, nodes.type, session.partition, world)
    pieces = [np.empty((0, session.config.model.embed_dim), str(session.dtype).removeprefix("torch."))]
    for begin in range(0, len(nodes), size):
        world.working("embed the nodes", begin)
        end = min(begin + size, len(nodes))
        own = np.arange(begin + world.rank, end, world.size)  # embedded as sources of events with themselves
        plan = query_plan(session, own, ids[own], ids[own], nodes.time[own], end - begin)
        rows = world.gather_rows(session.task.embed(plan)[0].cpu().numpy())
        if rows is not None:
            order = np.concatenate([np.arange(first, end - begin, world.size) for first in range(world.size)])
            pieces.append(rows[np.argsort(order)])
    return np.concatenate(pieces) if world.rank == 0 else None


def write_embeddings(path: str, nodes: Nodes, embedding: np.ndarray) -> None:
    """Write node, type (where the graph has several), time and the vector in the order of the file, under a temporary
    name first: as arrays node, type, time, embedding for a path that ends in .npz, as CSV otherwise."""
    temporary = Path(path + ".tmp")
    columns = {"node": nodes.node} | ({"type": nodes.type} if nodes.several else {}) | {"time": nodes.time.tolist()}
    if path.endswith(".npz"):
        with open(temporary, "wb") as file:
            arrays: dict[str, Any] = {name: _array(values) for name, values in columns.items()}
            np.savez(file, **arrays, embedding=embedding)
    else:
        with open(temporary, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, *(f"embedding_{number}" for number in range(embedding.shape[1]))])
            rows = zip(*columns.values(), strict=True)
            writer.writerows([*row, *map(str, vector)] for row, vector in zip(rows, embedding, strict=True))
    durable.commit(temporary, Path(path))


def _array(values: list) -> np.ndarray:
    """Make integers where all values are such, text otherwise."""
    try:
        return np.array([int(value) for value in values], np.int64)
    except (ValueError, OverflowError):
        return np.array(values, dtype=str)


@dataclass(slots=True)
class AskedPairs:
    """The rows of a pairs file: src, dst original ids as text, time [n] int64 in the graph's unit."""

    path: str
    src: list[str]
    dst: list[str]
    time: np.ndarray

    def __len__(self) -> int:
        return len(self.src)


def read_pairs(path: str, after: int) -> AskedPairs:
    """Read a CSV with columns src, dst and, optionally, time; without it pairs are scored at time ``after`` + 1.

    Raises ValueError naming file and row for a missing column, a bad time, or a time not after ``after``.
    """
    rows = read_rows(path, ("src", "dst"))
    src, dst = ([row[column].strip() for row in rows] for column in ("src", "dst"))
    return AskedPairs(path, src, dst, read_times(path, rows, after))


def write_scores(path: str, pairs: AskedPairs, scores: np.ndarray) -> None:
    """Write src,dst,time,score in the order of the pairs, under a temporary name first."""
    temporary = Path(path + ".tmp")
    with open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["src", "dst", "time", "score"])
        writer.writerows(zip(pairs.src, pairs.dst, pairs.time.tolist(), map(repr, scores.tolist()), strict=True))
    durable.commit(temporary, path)


def score_pairs(session: Session, pairs: AskedPairs) -> np.ndarray:
    """Collective. Compute the probability of an event for every pair, float64 [n], from the session's current memory,
    which stays as it is."""
    partition, world = session.partition, session.world
    source_type, _, destination_type = files.split_relation(partition.relation)
    src = find_nodes(pairs.path, "src", pairs.src, [source_type] * len(pairs), partition, world)
    dst = find_nodes(pairs.path, "dst", pairs.dst, [destination_type] * len(pairs), partition, world)
    size = session.config.train.batch_size
    scores = np.zeros(len(pairs))
    for begin in range(0, len(pairs), size):
        world.working("score the pairs", begin)
        end = min(begin + size, len(pairs))
        own = np.arange(begin + world.rank, end, world.size)
        plan = query_plan(session, own, src[own], dst[own], pairs.time[own], end - begin)
        step_scores: Any = session.task.score(plan)
        scores[own] = torch.sigmoid(step_scores.positive.double()).cpu().numpy()
    return world.reduce_array(scores)


def replay(session: Session) -> None:
    """Collective. Move node memory through validation and test, to the end of the graph."""
    for split in ("val", "test"):
        with session.loaders[split].plans(0, scored=False) as plans:
            for plan in plans:
                session.watchdog.at(split, plan.step)
                session.task.evaluate(plan)


def check(arguments: Namespace, config: RunConfig) -> RunConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.snapshots != 1:
        raise ValueError("--snapshots is for runs on snapshots: leave it out")
    if arguments.embeddings:
        raise ValueError("--embeddings is for runs on static graphs; this one embeds the nodes of a file: --nodes")
    if bool(arguments.pairs) == bool(arguments.nodes):
        raise ValueError("give either --pairs or --nodes")
    return config


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write probabilities of pairs, or embeddings of nodes, of a file, after the end of the graph."""
    world, partition, kind = session.world, session.partition, session.config.task.kind
    last = int(event_times(partition, np.array([partition.num_events - 1]), world)[0])
    if arguments.pairs:
        with together(world, "arguments"):
            if not session.goal.draws_negatives:
                raise ValueError(f"--pairs scores links, but this run learns labels (task.kind {kind}): use --nodes")
        pairs = on_first_rank(world, "read the pairs", lambda: read_pairs(arguments.pairs, last))
        replay(session)
        scores = score_pairs(session, pairs)
        _write(world, arguments.out, f"{len(pairs)} scores", lambda: write_scores(arguments.out, pairs, scores))
        return
    types = partition.book.node_types
    nodes = on_first_rank(world, "read the nodes", lambda: read_nodes(arguments.nodes, types, last))
    replay(session)
    embedding: Any = embed_nodes(session, nodes)
    _write(world, arguments.out, f"{len(nodes)} embeddings", lambda: write_embeddings(arguments.out, nodes, embedding))


def _write(world: World, path: str, what: str, write: Callable[[], None]) -> None:
    """Collective. Rank 0 writes the answer and says ``what`` it is."""
    with together(world, f"write {what}"):
        if world.rank == 0:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write()
            print(f"{path}: {what}")
