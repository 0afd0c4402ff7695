"""Embeddings of given nodes at given times, by the graph's original ids. n nodes of the file, Z embedding width."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.run.queries import find_nodes, query_plan, read_rows, read_times
from hpcgnn.run.session import Session
from hpcgnn.store import files


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
    """Collective. Embeddings [n, Z] on rank 0 (None elsewhere), from the session's current memory, which stays as it
    is. In float32 for a float32 run, in batches of ``train.batch_size``."""
    world, size = session.world, session.config.train.batch_size
    ids = find_nodes(nodes.path, "node", nodes.node, nodes.type, session.partition, world)
    pieces = [np.empty((0, session.config.model.embed_dim), str(session.dtype).removeprefix("torch."))]
    for begin in range(0, len(nodes), size):
        end = min(begin + size, len(nodes))
        mine = np.arange(begin + world.rank, end, world.size)
        rows = world.gather_rows(_embed_step(session, mine, ids[mine], nodes.time[mine], end - begin))
        if rows is not None:
            order = np.concatenate([np.arange(first, end - begin, world.size) for first in range(world.size)])
            pieces.append(rows[np.argsort(order)])
    return np.concatenate(pieces) if world.rank == 0 else None


@torch.no_grad()
def _embed_step(session: Session, mine: np.ndarray, ids: np.ndarray, time: np.ndarray, size: int) -> np.ndarray:
    """Collective. Embeddings [m, Z] of this rank's nodes of a batch, as sources of events with themselves."""
    return session.task.embed(query_plan(session, mine, ids, ids, time, size))[0].cpu().numpy()


def write_embeddings(path: str, nodes: Nodes, embedding: np.ndarray) -> None:
    """Write node, type (where the graph has several), time and the vector in the order of the file, under a temporary
    name first: as arrays node, type, time, embedding for a path that ends in .npz, as CSV otherwise."""
    temporary = Path(path + ".tmp")
    given = {"node": nodes.node} | ({"type": nodes.type} if nodes.several else {}) | {"time": nodes.time.tolist()}
    if path.endswith(".npz"):
        with open(temporary, "wb") as file:
            arrays: dict[str, Any] = {name: _array(values) for name, values in given.items()}
            np.savez(file, **arrays, embedding=embedding)
    else:
        with open(temporary, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*given, *(f"embedding_{column}" for column in range(embedding.shape[1]))])
            rows = zip(*given.values(), strict=True)
            writer.writerows([*row, *map(str, vector)] for row, vector in zip(rows, embedding, strict=True))
    files.commit(temporary, Path(path))


def _array(values: list) -> np.ndarray:
    """Integers where all values are such, text otherwise."""
    try:
        return np.array([int(value) for value in values], np.int64)
    except (ValueError, OverflowError):
        return np.array(values, dtype=str)
