"""Checks the values of a graph file: ids, times, snapshots, and that features and weights are finite."""

from __future__ import annotations

from collections.abc import Iterator

import h5py
import numpy as np

from data_tools.graph import source as graph_source
from data_tools.graph.source import NodeType, Source
from data_tools.source.event_rows import event_rows
from data_tools.source.file_spec import FINITE_COLUMNS
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError


def validate(source: Source, share: tuple[int, int] = (0, 1)) -> None:
    """Read every id, time, feature and weight once. Raises FileFormatError naming the first row that cannot be used.

    share: (rank, number of ranks): only that rank's contiguous share of every column is read.
    """
    for node_type in source.types:
        for column in node_type.columns:
            check_finite(source.nodes(node_type)[column], share)
    for relation in source.relations:
        group = source.edges(relation)
        check_ids(group["src"], relation.src_type, share)
        check_ids(group["dst"], relation.dst_type, share)
        if source.kind == "temporal":
            check_times(group["time"], share)
        if source.kind == "snapshots":
            check_stamps(group, source.facts["num_snapshots"], share)
        for column in relation.columns:
            check_finite(group[column], share)
    if source.kind == "temporal" and len(source.relations) > 1:
        check_event_rows(source, share)


def check_ids(dataset: h5py.Dataset, node_type: NodeType, share: tuple[int, int] = (0, 1)) -> None:
    """Refuse row ids outside of [0, num_nodes)."""
    for start, ids in column_slabs(dataset, share):
        bad = (ids < 0) | (ids >= node_type.num_nodes)
        if bad.any():
            row = int(np.argmax(bad))
            what = f"id {ids[row]} is outside 0..{node_type.num_nodes - 1} of type {node_type.name!r}"
            refuse(dataset, start + row, f"{what}; number the rows from 0, or convert with the original ids")


def check_times(dataset: h5py.Dataset, share: tuple[int, int] = (0, 1)) -> None:
    """Refuse times that decrease."""
    for start, times in column_slabs(dataset, share):
        before = dataset[start - 1 : start] if start else times[:1]
        previous = np.r_[before, times[:-1]]
        bad = times < previous
        if bad.any():
            row = int(np.argmax(bad))
            refuse(dataset, start + row, f"time {times[row]} comes after {previous[row]}; sort the events by time")


def check_event_rows(source: Source, share: tuple[int, int] = (0, 1)) -> None:
    """Refuse columns ``event`` that do not number the events of all relations in order."""
    groups = [source.edges(relation) for relation in source.relations]
    times = [group["time"] for group in groups]
    for number, group in enumerate(groups):
        for start, rows in column_slabs(group[files.EVENT], share) if files.EVENT in group else ():
            expected = event_rows(times, number, start, start + len(rows))
            bad = rows != expected
            if bad.any():
                row = int(np.argmax(bad))
                what = f"event row {rows[row]}, expected {expected[row]}, the place among the events of all relations"
                refuse(group[files.EVENT], start + row, f"{what}; write the file anew with hpcgnn convert")


def check_stamps(group: h5py.Group, num_snapshots: int, share: tuple[int, int] = (0, 1)) -> None:
    """Refuse snapshots of edges where first decreases, last lies before it, or one is not below ``num_snapshots``."""
    check_times(group["first"], share)
    for start, first in column_slabs(group["first"], share):
        last = group["last"][start : start + len(first)] if "last" in group else first
        bad = (first < 0) | (last < first) | (last >= num_snapshots)
        if bad.any():
            row = int(np.argmax(bad))
            what = f"snapshots {first[row]} to {last[row]} of 0 to {num_snapshots - 1}"
            refuse(group["first"], start + row, f"{what}; write the file anew with hpcgnn snapshots")


def check_finite(dataset: h5py.Dataset, share: tuple[int, int] = (0, 1)) -> None:
    """Refuse features and weights that are not finite."""
    if dataset.dtype.kind != "f" or dataset.name.rsplit("/", 1)[1] not in FINITE_COLUMNS:
        return
    for start, values in column_slabs(dataset, share):
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if bad.any():
            refuse(dataset, start + int(np.argmax(bad)), "NaN or infinite value; fill or drop it before converting")


def refuse(dataset: h5py.Dataset, row: int, what: str) -> None:
    """Raise FileFormatError for one row."""
    raise FileFormatError(f"{dataset.file.filename}: {dataset.name}, row {row}: {what}")


def column_slabs(dataset: h5py.Dataset, share: tuple[int, int] = (0, 1)) -> Iterator[tuple[int, np.ndarray]]:
    """Read a rank's share of a column in slabs: (first row, values)."""
    rank, size = share
    first, last = (dataset.shape[0] * place // size for place in (rank, rank + 1))
    for start, stop in files.slabs(last - first, files.row_bytes(dataset), graph_source.SLAB_BYTES):
        yield first + start, dataset[first + start : first + stop]
