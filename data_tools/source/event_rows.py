"""Numbers the events of several relations in one order: by time, then by relation, then by row.

The number of an event, its event row, is its place in the merge of all relations, which each are in order of time.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from hpcgnn.graph import files
from hpcgnn.graph.files import EVENT, FileFormatError

SLAB_BYTES = 16 << 20


def write_event_rows(file: h5py.File) -> None:
    """Write the column ``event`` of a temporal graph file of several relations. Raises FileFormatError for a relation
    that has a column of that name, and for times in different units."""
    groups = [file["edges"][name] for name in files.relations(file)]
    units = [f"{'dates' if 'zone' in group.attrs else 'numbers'} * {group.attrs['time_scale']:g}" for group in groups]
    if len(set(units)) > 1:
        listed = ", ".join(f"{group.name}: {unit}" for group, unit in zip(groups, units, strict=True))
        raise FileFormatError(
            f"the times of the relations have different units ({listed}), and so no common order: give all relations "
            "the same time_scale, and dates in all of them or in none"
        )
    times = [group["time"] for group in groups]
    for number, group in enumerate(groups):
        if EVENT in group:
            raise FileFormatError(f"{group.name}: the column {EVENT} is for the order of all events: rename it")
        column = files.create_column(group, EVENT, len(times[number]), (), np.int64)
        for start, stop in files.slabs(len(column), 8, SLAB_BYTES):
            column[start:stop] = event_rows(times, number, start, stop)


def event_rows(times: Sequence[Any], number: int, start: int, stop: int) -> np.ndarray:
    """Compute the event rows [stop - start] int64 of events start .. stop - 1 of a relation. times: of every relation,
    columns [E] that do not decrease, read in slabs."""
    own, rows = times[number][start:stop], np.arange(start, stop)
    for other, column in enumerate(times):
        if other != number:
            rows += _count_before(column, own, "right" if other < number else "left")
    return rows


def _count_before(times: Any, own: np.ndarray, side: Any) -> np.ndarray:
    """Count the events of another relation that come before times ``own`` [n], or, on the side "right", up to them."""
    if not len(own):
        return np.zeros(0, np.int64)
    first, last = bisect.bisect_left(times, own[0]), bisect.bisect_right(times, own[-1])
    counts = np.full(len(own), first)
    for start, stop in files.slabs(last - first, 8, SLAB_BYTES):
        counts += np.searchsorted(times[first + start : first + stop], own, side)
    return counts
