"""Input rows of the nodes of a rank in single snapshots.

n nodes of this rank, F columns.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.sample.snapshot_blocks import reversed_edges
from hpcgnn.sample.snapshot_config import SnapshotInputConfig
from hpcgnn.store.graph_partition import FEATURES
from hpcgnn.store.snapshot_partition import SnapshotPartition


class SnapshotInputs:
    """What is known of the nodes without learning. target: the column that lags are taken of, or empty."""

    def __init__(
        self, config: SnapshotInputConfig, partition: SnapshotPartition, target: str, dtype: torch.dtype,
        device: torch.device,
    ):  # fmt: skip
        """Raises ValueError for lags without a target."""
        if config.lags and target not in partition.series:
            raise ValueError(f"inputs.lags needs a column {target or 'target'} of every snapshot, the graph has none")
        self._config, self._partition, self._target = config, partition, target
        self._dtype, self._device = dtype, device
        self._fixed = partition.columns.get(FEATURES)
        self._changing = partition.series.get(FEATURES)

    @property
    def first(self) -> int:
        """The first snapshot whose inputs are known."""
        return max(0, self._config.lags - 1)

    @property
    def width(self) -> int:
        """F."""
        widths = [self._fixed.shape[1]] if self._fixed is not None else []
        widths += [self._changing.shape[2]] if self._changing is not None else []
        if self._config.lags:
            widths.append(self._config.lags * int(np.prod(self._partition.series[self._target].shape[2:], dtype=int)))
        widths.append({"none": 0, "log": 2, "onehot": 2 * self._config.degree_classes}[self._config.degrees])
        return sum(widths)

    def at(self, number: int, channel: Channel) -> torch.Tensor:
        """Collective where degrees are asked for. Inputs [n, F] of a snapshot."""
        nodes, pieces = self._partition.num_nodes, []
        if self._fixed is not None:
            pieces.append(self._fixed)
        if self._changing is not None:
            pieces.append(self._changing[:, number])
        if self._config.lags:
            lagged = self._partition.series[self._target][:, number - self._config.lags + 1 : number + 1]
            pieces.append(lagged.reshape(nodes, int(np.prod(lagged.shape[1:], dtype=np.int64))))
        if self._config.degrees != "none":
            pieces.append(self._degrees(number, channel))
        if not pieces:
            return torch.empty((nodes, 0), dtype=self._dtype, device=self._device)
        return torch.cat([torch.from_numpy(np.ascontiguousarray(p)).to(self._dtype) for p in pieces], 1).to(
            self._device
        )

    def _degrees(self, number: int, channel: Channel) -> np.ndarray:
        """Collective."""
        edges, nodes = self._partition.edges_at(number), self._partition.num_nodes
        back = reversed_edges(edges, self._partition, channel)
        degree = np.stack([np.bincount(found.dst, minlength=nodes) for found in (edges, back)], axis=1)
        if self._config.degrees == "log":
            return np.log1p(degree)
        classes = self._config.degree_classes
        return np.eye(classes)[np.minimum(degree, classes - 1)].reshape(nodes, 2 * classes)
