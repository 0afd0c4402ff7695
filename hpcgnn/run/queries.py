"""What questions about the end of a graph share: files that name nodes by their original ids and times, and plans of
steps without negatives and write-back."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.run.session import Session
from hpcgnn.sample.batches import Batches
from hpcgnn.sample.negatives import no_negatives
from hpcgnn.sample.original_ids import OriginalIds
from hpcgnn.sample.plan import StepPlan
from hpcgnn.store.partition import Events, TemporalPartition


def read_rows(path: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a CSV with a header. Raises ValueError naming file and row for a missing column or field."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        found = reader.fieldnames or ()
        missing = set(columns) - set(found)
        if missing:
            raise ValueError(f"{path}: no column {', '.join(sorted(missing))}; it has {', '.join(found)}")
        rows = list(reader)
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(f"{path}: row {number}: {len(found)} fields expected, as in the header")
    return rows


def read_times(path: str, rows: list[dict[str, str]], after: int) -> np.ndarray:
    """Column ``time`` [n] int64, ``after`` + 1 where it is empty or missing.

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
    """Collective. Global ids [n] of the nodes that a file's column names by original id, each of its type.

    Raises DistributedError naming file and row for an unknown id.
    """
    kinds, found, text = np.array(types, object), np.full(len(names), -1), np.array(names, str)
    for kind in sorted(set(types)):
        places = np.flatnonzero(kinds == kind)
        found[places] = OriginalIds(partition, kind, world).find(text[places])
    with together(world, "look up the nodes"):
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            at = unknown[0]
            raise ValueError(
                f"{path}: row {at + 1}: {column} {names[at]!r} is no {types[at]} of this graph "
                f"({len(unknown)} such rows)"
            )
    return found


def query_plan(
    session: Session, rows: np.ndarray, src: np.ndarray, dst: np.ndarray, time: np.ndarray, size: int
) -> StepPlan:
    """Collective. The plan of a step that only looks: this rank's pairs [n] of ``size``, numbered by ``rows``."""
    columns = _no_features(session, len(rows))
    events = Events(rows.astype(np.int64), src, dst, time, columns)
    end = np.array([session.partition.num_events])
    batches = Batches("queries", events, np.array([0, len(rows)]), np.array([size]), end, np.zeros(len(rows), bool))
    return session.eval_sampler.plan(batches, no_negatives(len(rows)), 0, 0, write=False)


def _no_features(session: Session, count: int) -> dict[str, np.ndarray]:
    width = session.partition.edge_width
    return {"feat": np.zeros((count, width), np.float32)} if width else {}
