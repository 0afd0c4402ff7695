"""Scores of given pairs at given times, by the graph's original ids."""

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
    rows = read_rows(path, ("src", "dst"))
    src, dst = ([row[column].strip() for row in rows] for column in ("src", "dst"))
    return Pairs(path, src, dst, read_times(path, rows, after))


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
    src = find_nodes(pairs.path, "src", pairs.src, [source_type] * len(pairs), partition, world)
    dst = find_nodes(pairs.path, "dst", pairs.dst, [destination_type] * len(pairs), partition, world)
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
    scores: Any = session.task.score(query_plan(session, mine, src[mine], dst[mine], time[mine], size))
    return scores.positive
