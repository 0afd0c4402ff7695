"""Negatives from a file: rank 0 reads it in slabs, and every event's line goes where the event is handled.

m listed events, k negatives each. Lines travel by way of homes, even blocks of the split's event rows, so that rank 0
need not know who handles an event.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.splits import SPLITS
from hpcgnn.sample.batches import Batches
from hpcgnn.sample.negative_file import NegativeFile, open_negatives
from hpcgnn.sample.negatives import Negatives
from hpcgnn.sample.original_ids import OriginalIds
from hpcgnn.sample.splits import Splits
from hpcgnn.store import files
from hpcgnn.store.book import BlockOwnership
from hpcgnn.store.partition import TemporalPartition

STAGE = "read the negatives"


def fixed_negatives(
    path: str, batches: Batches, splits: Splits, partition: TemporalPartition, world: World, channel: Channel
) -> Negatives:
    """Collective. The negatives [n, k] that a file lists for this rank's events of a split; ``negative_file`` describes
    the formats. The file may list events of other splits too.

    Raises DistributedError, on all ranks alike and naming file, row and remedy, for a file that cannot be read, an
    unknown id, or an event of the split that is not listed.
    """
    index = SPLITS.index(batches.name)
    begin, end = int(splits.bounds[index]), int(splits.bounds[index + 1])
    file: NegativeFile | None = None
    with together(world, STAGE):
        file = open_negatives(path) if world.rank == 0 else None
    if world.broadcast(file is not None and file.row is None):
        file = _listed_by_row(file, begin, end, partition, world, channel)
    homes = BlockOwnership.even(end - begin, world.size)
    table = _collect(file, homes, begin, end, partition, world, channel)
    _check_complete(path, table, begin + int(homes.starts[world.rank]), batches.name, world)
    (dst,) = Route.plan(homes, batches.events.row - begin, channel).pull(torch.from_numpy(table))
    return Negatives(dst.numpy())


def _collect(file: NegativeFile | None, homes, begin: int, end: int, partition, world, channel) -> np.ndarray:
    """Collective. This rank's home rows, [rows, k] global ids, -1 where the file lists nothing."""
    listed, per_event = world.broadcast(file and (file.num_listed, file.per_event))
    table = np.full((int(homes.starts[world.rank + 1] - homes.starts[world.rank]), per_event), -1, np.int64)
    ids = OriginalIds(partition, files.split_relation(partition.relation)[2], world)
    with together(world, STAGE):
        if file and listed and not 0 <= file.row.min() <= file.row.max() < partition.num_events:
            wrong = file.row[(file.row < 0) | (file.row >= partition.num_events)][0]
            raise ValueError(f"{file.path}: event row {wrong} is outside 0..{partition.num_events - 1} of this graph")
    for start, stop in files.slabs(listed, 8 * per_event):
        rows, lines = np.empty(0, np.int64), np.empty((0, per_event), np.int64)
        with together(world, STAGE):
            if file:
                lines = file.read(start, stop)
        found = ids.find_for_first(lines.ravel() if file else None)
        with together(world, STAGE):
            if file:
                rows, lines = _of_split(file, start, lines, found.reshape(lines.shape), begin, end)
        _send_home(rows - begin, lines, homes, table, channel)
    return table


def _of_split(file: NegativeFile, start: int, lines: np.ndarray, found: np.ndarray, begin: int, end: int):
    """Rows and global ids of the listed events of the split. Raises ValueError for an unknown id."""
    rows = file.row[start : start + len(lines)].astype(np.int64)
    keep = (rows >= begin) & (rows < end)
    unknown = np.argwhere((found < 0) & keep[:, None])
    if len(unknown):
        line, column = unknown[0]
        raise ValueError(
            f"{file.path}: event row {rows[line]}: negative {lines[line, column].item()!r} is no destination "
            f"of this graph ({len(unknown)} such entries); write the ids of the source data"
        )
    return rows[keep], found[keep]


def _send_home(
    places: np.ndarray, lines: np.ndarray, homes: BlockOwnership, table: np.ndarray, channel: Channel
) -> None:
    """Collective. Put lines [m, k] into the homes' tables at places [m]."""
    owner, local = homes.locate(places)
    order = np.argsort(owner, kind="stable")
    send = np.bincount(owner, minlength=channel.size).astype(np.int64)
    got = channel.array(np.column_stack([local, lines])[order], send, channel.counts(send))
    table[got[:, 0]] = got[:, 1:]


def _check_complete(path: str, table: np.ndarray, first_row: int, split: str, world: World) -> None:
    """Collective. Raises DistributedError when an event has no line."""
    missing = np.flatnonzero(table[:, 0] < 0)
    none = np.iinfo(np.int64).max
    first = int(world.reduce_array(np.array([first_row + missing[0] if len(missing) else none]), "min")[0])
    total = int(world.total(len(missing)))
    with together(world, STAGE):
        if total:
            raise ValueError(
                f"{path}: no negatives for event row {first} of {split} ({total} such events); list every event of the "
                "split, with ids and times as in the source data"
            )


def _listed_by_row(file: NegativeFile | None, begin: int, end: int, partition, world, channel) -> NegativeFile | None:
    """Collective. The same negatives by event row, for a file that lists events by (source, destination, time); equal
    events share a line."""
    source, _, destination = files.split_relation(partition.relation)
    columns: Any = file.keys if file else (None, None, None)
    src = OriginalIds(partition, source, world).find_for_first(columns[0])
    dst = OriginalIds(partition, destination, world).find_for_first(columns[1])
    keys = np.empty((0, 4), np.int64)
    if file:
        keys = np.column_stack([src, dst, columns[2], np.arange(file.num_listed)])
        keys = keys[(src >= 0) & (dst >= 0)]
    matches = _match(keys, begin, end, partition, channel)
    if file is None:
        return None
    read = lambda start, stop: _lines(file, matches[start:stop, 1])  # noqa: E731
    return replace(file, num_listed=len(matches), row=matches[:, 0], read=read, keys=None)


def _lines(file: NegativeFile, index: np.ndarray) -> np.ndarray:
    return file.read(0, file.num_listed)[index]


def _match(keys: np.ndarray, begin: int, end: int, partition: TemporalPartition, channel: Channel) -> np.ndarray:
    """Collective. Rows of the split's events with the keys [m, 4] (global src and dst, time, line) that rank 0 brings,
    and their lines: [events, 2] on rank 0, nothing elsewhere. The owners of the sources look."""
    owner, _ = partition.book.locate(keys[:, 0])
    order = np.argsort(owner, kind="stable")
    send = np.bincount(owner, minlength=channel.size).astype(np.int64)
    asked = channel.array(keys[order], send, channel.counts(send))
    events = partition.events
    events = events.take(np.flatnonzero((events.row >= begin) & (events.row < end)))
    triples = np.concatenate([asked[:, :3], np.column_stack([events.src, events.dst, events.time])])
    unique, inverse = np.unique(triples, axis=0, return_inverse=True)
    line_of = np.full(len(unique), -1, np.int64)
    line_of[inverse[: len(asked)]] = asked[:, 3]
    line = line_of[inverse[len(asked) :]]
    found = np.column_stack([events.row, line])[line >= 0]
    send = np.zeros(channel.size, np.int64)
    send[0] = len(found)
    return channel.array(found, send, channel.counts(send))
