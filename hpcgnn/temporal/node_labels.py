"""Labels of nodes at times: vectors of weights of K classes, to be predicted from the events before their time. Their
file is beside the graph file (``hpcgnn-labels`` of ``hpcgnn.graph.files``); a node's owner has its labels.

m labels in the file, r of this rank's nodes, with z weights; T label times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from hpcgnn.comm.exchange import Channel, exchange_columns
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.graph.book import BlockOwnership
from hpcgnn.graph.directory import NodeDirectory
from hpcgnn.graph.splits import NO_SPLIT, SPLITS
from hpcgnn.temporal.batches import Splits, event_times
from hpcgnn.temporal.graph import TemporalPartition

PROPERTY = "node_property"  # the kind of task
STAGE = "read the labels of nodes"
REMEDY = "convert the source again"
MOST_WEIGHTS = 1 << 24  # of the states that a forecast keeps at once


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """Labels of this rank's nodes, in order of (node, time).

    times [T]: all label times, increasing; split [T]: places in SPLITS, NO_SPLIT for times without a later event;
    counts [T]: labels of all ranks. node, time [r]: local row, and place in ``times``; indptr [r + 1] over kind
    (classes) and weight [z]; row [r]: place of the label in the file.
    """

    num_classes: int
    times: np.ndarray
    split: np.ndarray
    counts: np.ndarray
    row: np.ndarray
    node: np.ndarray
    time: np.ndarray
    indptr: np.ndarray
    kind: np.ndarray
    weight: np.ndarray

    def dense(self, chosen: np.ndarray) -> np.ndarray:
        """Return some of the labels [c] as vectors [c, K] float32."""
        table = np.zeros((len(chosen), self.num_classes), np.float32)
        count = self.indptr[chosen + 1] - self.indptr[chosen]
        line = np.repeat(np.arange(len(chosen)), count)
        place = np.arange(len(line)) + np.repeat(self.indptr[chosen] - (np.cumsum(count) - count), count)
        table[line, self.kind[place]] = self.weight[place]
        return table

    def before(self, chosen: np.ndarray) -> np.ndarray:
        """Return the label of the same node before each of some labels [c], as vectors [c, K] float32, 0 where there is
        none."""
        return self._shown(chosen - 1, self.node[chosen])

    def newest_before(self, node: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Return the newest label of nodes, local rows [c], before label times, places [c] or T, as vectors [c, K]
        float32, 0 where there is none."""
        width = len(self.times) + 1
        return self._shown(np.searchsorted(self.node * width + self.time, node * width + time) - 1, node)

    def _shown(self, place: np.ndarray, node: np.ndarray) -> np.ndarray:
        """Return labels [c] as vectors [c, K] where they are of the nodes [c], 0 elsewhere; a place may be -1."""
        has_one, vectors = place >= 0, np.zeros((len(place), self.num_classes), np.float32)
        has_one[has_one] = self.node[place[has_one]] == node[has_one]
        vectors[has_one] = self.dense(place[has_one])
        return vectors

    def forecasts(self, window: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Forecast each label by the labels of its node before: yields places [c] of labels and vectors [c, K] float32.

        A forecast is 0 before the first label, then this label, and after each further one ((window - 1) * forecast +
        label) / window, as ``PersistantForecaster`` (window 1) and ``MovingAverage`` in modules/heuristics.py of TGB
        (github.com/shenyangHuang/TGB, 3b83e5c). Nodes are taken in groups, to bound memory.
        """
        first = np.flatnonzero(np.diff(self.node, prepend=-1))
        count = np.diff(np.append(first, len(self.node)))
        order = np.argsort(-count, kind="stable")  # so that the nodes with a further label come first
        step = max(1, MOST_WEIGHTS // self.num_classes)
        for begin in range(0, len(order), step):
            group = order[begin : begin + step]
            state = np.zeros((len(group), self.num_classes), np.float32)
            for number in range(int(count[group[0]])):
                there = int((count[group] > number).sum())
                chosen = first[group[:there]] + number
                yield chosen, state[:there].copy()
                label = self.dense(chosen)
                state[:there] = label if number == 0 else (state[:there] * (window - 1) + label) / window


def read_node_labels(
    path: str, partition: TemporalPartition, splits: Splits, world: World, channel: Channel
) -> NodeLabels:  # fmt: skip
    """Collective. Read a file of labels, an even block of it on each rank, and send the labels to the owners of their
    nodes. Raises DistributedError for a file that cannot be used, or was written beside another graph."""
    with together(world, STAGE):
        block = _read_block(path, partition, world)
    ids = partition.book.local_to_global(world.rank)
    nodes = NodeDirectory(world, channel, partition.flat_row, ids, partition.book.num_nodes)
    owner, local = partition.book.locate(nodes.lookup(block.node))
    count = np.diff(block.indptr)
    number = np.arange(block.first, block.first + len(count))
    row, node, time, count_of = exchange_columns([number, local, block.time, count], owner, channel)
    of, kind, bits = exchange_columns(
        [np.repeat(number, count), block.kind.astype(np.int64), block.weight.view(np.int32).astype(np.int64)],
        np.repeat(owner, count), channel,
    )  # fmt: skip
    order = np.lexsort((row, node))  # in the file a node's labels are in order of time
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    by_row = np.argsort(row, kind="stable")
    label = position[by_row[np.searchsorted(row[by_row], of)]]
    entries = np.lexsort((kind, label))
    times = np.unique(np.concatenate(world.allgather(np.unique(time))))
    place = np.searchsorted(times, time)
    counts = world.reduce_array(np.bincount(place, minlength=len(times)).astype(np.int64))
    return NodeLabels(
        block.num_classes, times, split_of_times(times, partition, splits, world), counts, row[order], node[order],
        place[order], np.concatenate(([0], np.cumsum(count_of[order]))), kind[entries],
        bits[entries].astype(np.int32).view(np.float32),
    )  # fmt: skip


def split_of_times(times: np.ndarray, partition: TemporalPartition, splits: Splits, world: World) -> np.ndarray:
    """Collective. Find the split of label times [T]: the split of the first event after the time, as TGB's examples
    reach labels on their way through the events (examples/nodeproppred). NO_SPLIT where there is no such event."""
    ends = event_times(partition, splits.bounds[1:] - 1, world)
    place = np.searchsorted(np.maximum.accumulate(ends), times, side="right")
    return np.where(place < len(SPLITS), place, NO_SPLIT)


@dataclass(frozen=True, slots=True)
class _Block:
    """A rank's block of a file, with flat row ids of nodes. first: place of its first label."""

    num_classes: int
    first: int
    time: np.ndarray
    node: np.ndarray
    indptr: np.ndarray
    kind: np.ndarray
    weight: np.ndarray


def _read_block(path: str, partition: TemporalPartition, world: World) -> _Block:
    """Raises FileFormatError, a ValueError."""
    with files.reading(path, files.LABELS, REMEDY) as file:
        (name,) = file["nodes"]
        group = file["nodes"][name]
        base, types = partition.book.type_base(), partition.book.node_types
        if name not in types:
            raise files.FileFormatError(f"{path}: labels of {name}, and the graph has {', '.join(types)}: {REMEDY}")
        kind = types.index(name)
        sizes = [int(base[kind + 1] - base[kind]), partition.num_events]
        if (written := group.attrs["sizes"].tolist()) != sizes:
            raise files.FileFormatError(
                f"{path}: written beside another graph, of {written[0]} nodes and {written[1]} events; this one has "
                f"{sizes[0]} and {sizes[1]}: {REMEDY}, and give the file that was written with this graph"
            )
        return _block_of(group, int(base[kind]), sizes[0], world)


def _block_of(group: h5py.Group, base: int, num_nodes: int, world: World) -> _Block:
    first, stop = BlockOwnership.even(len(group["node"]), world.size).starts[world.rank : world.rank + 2].tolist()
    columns: dict[str, Any] = {name: group[name][first:stop].astype(np.int64) for name in ("time", "node")}
    indptr = group["indptr"][first : stop + 1].astype(np.int64)
    kind, weight = (group[name][int(indptr[0]) : int(indptr[-1])] for name in ("class", "weight"))
    num_classes, node = int(group.attrs["num_classes"]), columns["node"]
    if (node < 0).any() or (node >= num_nodes).any() or (kind < 0).any() or (kind >= num_classes).any():
        raise ValueError("a node or a class is outside its range")
    if not (np.isfinite(weight).all() and (weight >= 0).all() and (np.diff(indptr) >= 0).all()):
        raise ValueError("a weight is negative or not finite, or indptr decreases")
    weight = weight.astype(np.float32)
    return _Block(num_classes, first, columns["time"], node + base, indptr - indptr[0], kind, weight)


def sha256_of_labels(path: str) -> str:
    """Compute the sha256 of a file of labels; empty without one. Raises ValueError for a file that is missing."""
    if path and not os.path.isfile(path):
        raise ValueError(f"task.labels_file: {path}: no such file")
    return files.file_hash(path) if path else ""
