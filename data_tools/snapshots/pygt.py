"""Reads JSON files of PyTorch Geometric Temporal (Rozemberczki et al., 2021): chickenpox, england_covid, montevideo_bus
and twitter_tennis, with the numbers that its loaders make of them.

N nodes, S snapshots.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from data_tools.snapshots.graph import SnapshotGraph
from data_tools.source.formats.text_stream import TextSource
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.files import FileFormatError

FLOAT, TARGET = np.float32, "target"
SMALLEST_DEVIATION = 1e-10
DEGREE_CLASSES, SHARE_CLASSES = 5, 11  # of the tennis features: log of degrees, tenths of transitivity


def read_json(path: pathlib.Path, raw: bool = False) -> SnapshotGraph:
    """Read a file of one of the sets, which its keys identify. Columns ``target`` [N, S] and, for tennis, ``feat`` [N,
    S, 16].

    raw: numbers as they stand in the file. Otherwise england_covid and montevideo_bus are standardized, every node over
    its whole time; tennis gets logarithms of 1 + target, degrees and transitivity as one-hot classes (raw: feat [N, S,
    2]). Raises FileFormatError.
    """
    try:
        with TextSource(path).open() as file:
            data = decode_json(file.read())
    except ValueError as error:
        raise FileFormatError(f"{path.name}: not JSON ({error}); is it truncated?") from None
    for key, read in READERS.items():
        if isinstance(data, dict) and key in data:
            try:
                return read(data, raw)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
                raise FileFormatError(
                    f"{path.name}: not as the set with key {key} is ({reason}); fetch it again"
                ) from None
    raise FileFormatError(f"{path.name}: none of the keys {', '.join(READERS)} is in it; is it one of these sets?")


def read_chickenpox(data: dict[str, Any], raw: bool) -> SnapshotGraph:
    """Read one graph; its numbers are standardized in the file."""
    target = np.array(data["FX"], FLOAT).T
    return _one_graph(np.array(data["edges"], np.int64), target, {})


def read_bus(data: dict[str, Any], raw: bool) -> SnapshotGraph:
    """Read one graph of bus stops; weight is the road's length."""
    ids = np.array([node["bus_stop"] for node in data["nodes"]], np.int64)
    row = {int(stop): place for place, stop in enumerate(ids)}
    ends = np.array([(row[link["source"]], row[link["target"]]) for link in data["links"]], np.int64)
    weight = np.array([link["weight"] for link in data["links"]], FLOAT)
    target = np.array([node["y"] for node in data["nodes"]], np.float64)
    graph = _one_graph(ends, target if raw else _standardized(target), {"weight": weight})
    graph.id = ids
    return graph


def read_covid(data: dict[str, Any], raw: bool) -> SnapshotGraph:
    """Read a weighted graph a day."""
    target, mapping = np.array(data["y"], np.float64).T, data["edge_mapping"]
    count = int(data["time_periods"])
    ends = [mapping["edge_index"][str(number)] for number in range(count)]
    weight = [mapping["edge_weight"][str(number)] for number in range(count)]
    return _many_graphs(ends, weight, {TARGET: target if raw else _standardized(target)})


def read_tennis(data: dict[str, Any], raw: bool) -> SnapshotGraph:
    """Read a weighted graph an hour; features are degree and transitivity."""
    steps = [data[str(number)] for number in range(int(data["time_periods"]))]
    target = np.stack([step["y"] for step in steps], axis=1).astype(np.float64)
    features = np.stack([step["X"] for step in steps], axis=1).astype(np.float64)
    if not raw:
        target = np.log1p(target)
        degree = np.minimum(np.ceil(np.log1p(features[..., 0])), DEGREE_CLASSES - 1).astype(np.int64)
        share = np.floor(10 * features[..., 1]).astype(np.int64)
        features = np.concatenate([np.eye(DEGREE_CLASSES)[degree], np.eye(SHARE_CLASSES)[share]], axis=2)
    ends, weight = [step["edges"] for step in steps], [step["weights"] for step in steps]
    return _many_graphs(ends, weight, {TARGET: target, "feat": features})


READERS: dict[str, Callable[[dict[str, Any], bool], SnapshotGraph]] = {
    "FX": read_chickenpox, "links": read_bus, "edge_mapping": read_covid, "time_periods": read_tennis
}  # fmt: skip


def _one_graph(ends: np.ndarray, target: np.ndarray, edges: dict[str, np.ndarray]) -> SnapshotGraph:
    """Make a graph with ends [E, 2] in all snapshots of target [N, S]."""
    (nodes, count), first = target.shape, np.zeros(len(ends), np.int64)
    src, dst = ends.T
    return SnapshotGraph(nodes, count, src, dst, first, first + count - 1, edges, series={TARGET: target.astype(FLOAT)})


def _many_graphs(ends: list, weight: list, series: dict[str, np.ndarray]) -> SnapshotGraph:
    """Make a graph of ends [S][e, 2] and weight [S][e] of every snapshot; series [N, S, ...]."""
    src, dst = np.concatenate([np.array(pairs, np.int64).reshape(-1, 2) for pairs in ends]).T
    weights = np.concatenate([np.array(values, FLOAT) for values in weight])
    if len(weights) != len(src):
        raise ValueError(f"{len(src)} edges, but {len(weights)} weights")
    nodes, count = series[TARGET].shape
    first = np.repeat(np.arange(len(ends)), [len(pairs) for pairs in ends])
    stored = {name: column.astype(FLOAT) for name, column in series.items()}
    return SnapshotGraph(nodes, count, src, dst, first, edges={"weight": weights}, series=stored)


def _standardized(values: np.ndarray) -> np.ndarray:
    """Scale rows [N, S] to mean 0 and deviation 1."""
    mean, deviation = values.mean(axis=1, keepdims=True), values.std(axis=1, keepdims=True)
    return (values - mean) / (deviation + SMALLEST_DEVIATION)
