"""Sets of events that a program chooses for a loader, in place of a split: a mask of all events, or their rows.

N events of the graph, k chosen ones. Rows are the places of events in order of time, from 0 on.
"""

from __future__ import annotations

import hashlib

import numpy as np

from hpcgnn.comm.same import same_everywhere
from hpcgnn.comm.world import World
from hpcgnn.temporal.graph import Events, TemporalPartition

CHOSEN = "events"  # the name of batches of chosen events, where these are no training events


def chosen_rows(events: object, num_events: int, world: World) -> np.ndarray:
    """Collective. Return the rows [k] int64 of chosen events, in their order. events: a mask [N] bool, or rows [k]
    integers, as an array, a tensor or a list; the same on every rank.

    Raises ValueError for what is no such set, and DistributedError for ranks with different ones.
    """
    chosen = np.asarray(events)
    digest = hashlib.sha256(np.ascontiguousarray(chosen).tobytes()).hexdigest()[:12]
    facts = {"chosen events": (str(chosen.dtype), chosen.shape, digest)}
    same_everywhere(world, facts, "give the same mask or rows on every rank; the loader divides them")
    if chosen.ndim != 1 or (chosen.dtype.kind not in "biu" and len(chosen)):
        raise ValueError(
            "events are chosen by a split (train, val, test), a mask or rows: booleans or integers in one dimension, "
            f"got {chosen.dtype} of shape {chosen.shape}"
        )
    if chosen.dtype == bool:
        if len(chosen) != num_events:
            raise ValueError(f"a mask has an entry for each of all {num_events} events, by row, got {len(chosen)}")
        return np.flatnonzero(chosen)
    rows = chosen.astype(np.int64)
    wrong = rows[(rows < 0) | (rows >= num_events)]
    if len(wrong):
        raise ValueError(f"event {wrong[0]} is no row of this graph, which has {num_events} events")
    sorted_rows = np.sort(rows)
    twice = sorted_rows[1:][sorted_rows[1:] == sorted_rows[:-1]]
    if len(twice):
        raise ValueError(f"event {twice[0]} is named twice: a set has each event once")
    return rows


def are_sorted(rows: np.ndarray) -> bool:
    """Say whether rows [k] are in order of time."""
    return bool((np.diff(rows) > 0).all())


def own_events(rows: np.ndarray, partition: TemporalPartition) -> tuple[Events, np.ndarray]:
    """Return this rank's events among ``rows`` [k], in order of row, and the place of each in that list."""
    order = np.argsort(rows, kind="stable")
    found = np.searchsorted(rows, partition.events.row, sorter=order)
    is_chosen = found < len(rows)
    is_chosen[is_chosen] = rows[order[found[is_chosen]]] == partition.events.row[is_chosen]
    return partition.events.take(np.flatnonzero(is_chosen)), order[found[is_chosen]]


def by_step_and_row(events: Events, step: np.ndarray) -> tuple[Events, np.ndarray]:
    """Sort events by step [e], and by row within it."""
    order = np.lexsort((events.row, step))
    return events.take(order), step[order]
