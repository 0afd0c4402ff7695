"""What of a temporal graph lies on the device, for plans that are made there."""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.native.dispatch import Uploads
from hpcgnn.store.partition import Events, History, TemporalPartition


class ResidentGraph:
    """One rank's history, event features and parts of the nodes on a device; local rows are global ids."""

    def __init__(
        self, partition: TemporalPartition, history: History, dtype: torch.dtype, with_parts: bool, upload: Uploads
    ):  # fmt: skip
        self.history = tuple(map(upload, (history.indptr, history.time, history.event)))
        self.other = upload(history.other)
        self.feature = None if history.feature is None else upload(history.feature)
        features = partition.features
        self.features = upload(np.empty((0, 0), np.float32) if features is None else features, dtype)
        self.part = upload(partition.book.part_of(np.arange(partition.num_nodes))) if with_parts else None


class ResidentEvents:
    """The events of one split on the device: row, src, dst, time [e] int64, further columns."""

    def __init__(self, events: Events, device: torch.device):
        put = lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(device)  # noqa: E731
        self.row, self.src, self.dst, self.time = map(put, (events.row, events.src, events.dst, events.time))
        self.columns = {name: put(values) for name, values in events.columns.items() if name == "label"}


def graph_bytes(partition: TemporalPartition, itemsize: int) -> int:
    """Bytes that the graphs of training and of evaluation take at most, with different histories."""
    history = partition.history
    columns = (history.indptr, history.other, history.time, history.event, history.feature)
    features = 0 if partition.features is None else partition.features.size * itemsize
    return features + 2 * sum(column.nbytes for column in columns if column is not None)
