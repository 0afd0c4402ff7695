"""Scores of given pairs at given times, by the graph's original ids."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hpcgnn.comm.world import World
from hpcgnn.run.launch import together
from hpcgnn.run.session import Session
from hpcgnn.sample.batches import Batches
from hpcgnn.sample.negatives import Negatives
from hpcgnn.store import files
from hpcgnn.store.partition import Events, TemporalPartition


@dataclass(slots=True)
class Pairs:
    """The rows of a pairs file: src, dst original ids as text, time [n] int64 in the graph's unit."""

    path: str
    src: list[str]
    dst: list[str]
    time: np.ndarray

    def __len__(self) -> int:
        return len(self.src)


def read_pairs(path: str, after: int) -> Pairs:
    """Read a CSV with columns src, dst and, optionally, time; without it pairs are scored at time ``after`` + 1.

    Raises ValueError naming file and row for a missing column, a bad time, or a time not after ``after``.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        missing = {"src", "dst"} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(
                f"{path}: no column {', '.join(sorted(missing))}; it has {', '.join(reader.fieldnames or ())}"
            )
        rows = list(reader)
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(f"{path}: row {number}: {len(reader.fieldnames)} fields expected, as in the header")
    time = np.array([_time(path, number, row.get("time"), after) for number, row in enumerate(rows, 1)], np.int64)
    return Pairs(path, [row["src"].strip() for row in rows], [row["dst"].strip() for row in rows], time)


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
            "that time; "
            "leave the column empty to score at the end of the graph"
        )
    return value


def write_scores(path: str, pairs: Pairs, scores: np.ndarray) -> None:
    """Write src,dst,time,score in the order of the pairs, under a temporary name first."""
    temporary = Path(path + ".tmp")
    with open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["src", "dst", "time", "score"])
        writer.writerows(zip(pairs.src, pairs.dst, pairs.time.tolist(), map(repr, scores.tolist()), strict=True))
    files.commit(temporary, path)


def score_pairs(session: Session, pairs: Pairs) -> np.ndarray:
    """Collective. Probability of an event for every pair, float64 [n], from the session's current memory, which stays
    as it is."""
    partition, world = session.partition, session.world
    source_type, _, destination_type = files.split_relation(partition.relation)
    src = _global_ids(partition, source_type, pairs, pairs.src, "src", world)
    dst = _global_ids(partition, destination_type, pairs, pairs.dst, "dst", world)
    size = session.config.train.batch_size
    scores = np.zeros(len(pairs))
    for begin in range(0, len(pairs), size):
        mine = np.arange(begin + world.rank, min(begin + size, len(pairs)), world.size)
        logits = _score_step(session, mine, src, dst, pairs.time, min(size, len(pairs) - begin))
        scores[mine] = torch.sigmoid(logits.double()).cpu().numpy()
    return world.reduce_array(scores)


@torch.no_grad()
def _score_step(session: Session, mine, src, dst, time, size: int) -> torch.Tensor:
    """Collective. Logits of this rank's pairs of one batch: a step without negatives and without write-back."""
    events = Events(mine.astype(np.int64), src[mine], dst[mine], time[mine], _no_features(session.partition, len(mine)))
    batches = Batches(
        "pairs",
        events,
        np.array([0, len(mine)]),
        np.array([size]),
        np.array([session.partition.num_events]),
        np.zeros(len(mine), bool),
    )
    none = Negatives(np.empty((len(mine), 0), np.int64))
    plan = session.eval_sampler.plan(batches, none, 0, 0, write=False)
    return session.task.score(plan).positive


def _no_features(partition: TemporalPartition, count: int) -> dict[str, np.ndarray]:
    return {"feat": np.zeros((count, partition.edge_width), np.float32)} if partition.edge_width else {}


def _global_ids(
    partition: TemporalPartition, node_type: str, pairs: Pairs, names: list[str], column: str, world: World
) -> np.ndarray:
    """Collective. Global ids [n]; every rank looks among its own nodes. Raises DistributedError for an unknown id."""
    kind = partition.book.node_types.index(node_type)
    base = partition.book.type_base()
    local = np.flatnonzero((partition.flat_row >= base[kind]) & (partition.flat_row < base[kind + 1]))
    known = [_text(value) for value in partition.node_ids[node_type].tolist()]
    place = dict(zip(known, partition.book.local_to_global(world.rank)[local].tolist(), strict=True))
    found = world.reduce_array(np.array([place.get(name, -1) for name in names], np.int64), "max")
    with together(world, "look up the pairs"):
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            raise ValueError(
                f"{pairs.path}: row {unknown[0] + 1}: {column} {names[unknown[0]]!r} is no {node_type} of this graph "
                f"({len(unknown)} such rows)"
            )
    return found


def _text(value) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
