"""What of a temporal graph lies on the device, for plans that are made there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import numpy as np
import torch

from hpcgnn.sample.temporal import Placement
from hpcgnn.store.partition import Events, History, TemporalPartition


class ResidentGraph:
    """One rank's history, event features and parts of the nodes on a device; local rows are global ids."""

    def __init__(self, partition: TemporalPartition, history: History, place: Placement, with_parts: bool):
        put = lambda array: torch.from_numpy(array).to(place.device)  # noqa: E731
        self.history = tuple(map(put, (history.indptr, history.time, history.event)))
        self.other = put(history.other)
        self.feature = None if history.feature is None else put(history.feature)
        width = (0, 0) if partition.features is None else partition.features.shape
        features = np.empty(width, np.float32) if partition.features is None else partition.features
        self.features = put(features).to(place.dtype)
        self.part = put(partition.book.part_of(np.arange(partition.num_nodes))) if with_parts else None


class ResidentEvents:
    """The events of one split on the device: row, src, dst, time [e] int64, further columns."""

    def __init__(self, events: Events, device: torch.device):
        put = lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(device)  # noqa: E731
        self.row, self.src, self.dst, self.time = map(put, (events.row, events.src, events.dst, events.time))
        self.columns = {name: put(values) for name, values in events.columns.items() if name == "label"}


def graph_bytes(partition: TemporalPartition, history: History, itemsize: int) -> int:
    """Bytes that `ResidentGraph` takes."""
    columns = (history.indptr, history.other, history.time, history.event, history.feature)
    features = 0 if partition.features is None else partition.features.size * itemsize
    return features + sum(column.nbytes for column in columns if column is not None)


def tensors_of(value) -> Iterator[torch.Tensor]:
    """All tensors of a plan."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(item)
