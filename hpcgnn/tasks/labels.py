"""Labels of events: what may stand in the column, how many classes there are, and what each weighs.

e events of this rank, C classes. A missing label is -1 (any negative number in the data) where labels are classes, NaN
where they are numbers: numbers may be negative.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.store.graph_partition import GraphPartition
from hpcgnn.store.partition import Events
from hpcgnn.tasks.config import TaskConfig

MISSING = -1
MOST_CLASSES = 1 << 16


def read_labels(events: Events, config: TaskConfig, relation: str) -> np.ndarray:
    """The label column [e]: classes int64 with -1 where missing, or numbers float64 with NaN where missing.

    Raises ValueError when there is none, or when it holds what cannot be used.
    """
    if "label" not in events.columns:
        raise ValueError(
            f"task.kind {config.kind} learns the label of events, but {relation} has no column label: convert the "
            "source again with one, or use task.kind link"
        )
    label = events.columns["label"]
    if label.ndim != 1 or label.dtype.kind not in "iufb":
        raise ValueError(f"the label of {relation} must be one number an event, got {label.dtype} {label.shape[1:]}")
    return _classes(label, events, config) if config.classifies else _numbers(label, events)


def _classes(label: np.ndarray, events: Events, config: TaskConfig) -> np.ndarray:
    known = label >= 0  # not so for NaN
    wrong = known & (label >= (config.classes or MOST_CLASSES))
    if label.dtype.kind == "f":
        wrong |= known & (label != np.floor(label))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        range_ = f"below task.classes = {config.classes}" if config.classes else f"below {MOST_CLASSES}"
        raise ValueError(
            f"event {events.row[at]}: label {label[at]} is no class; classes are integers from 0 on, {range_}, and a "
            "negative label is a missing one; numbers are for task.kind edge_regression"
        )
    return np.where(known, np.where(known, label, 0).astype(np.int64), MISSING)


def _numbers(label: np.ndarray, events: Events) -> np.ndarray:
    infinite = np.flatnonzero(np.isinf(label))
    if len(infinite):
        raise ValueError(f"event {events.row[infinite[0]]}: label {label[infinite[0]]} is not finite")
    return label.astype(np.float64)


def is_known(label: np.ndarray) -> np.ndarray:
    """Whether labels as ``read_labels`` makes them are there, [e] bool."""
    return ~np.isnan(label) if label.dtype.kind == "f" else label >= 0


def count_classes(label: np.ndarray, wanted: int, world: World) -> int:
    """Collective. The number of classes C: ``wanted``, or, for 0, one more than the largest label, at least 2; of
    labels [n, C] their width."""
    if label.ndim == 2:
        return label.shape[1]
    return wanted or max(2, 1 + int(max(world.allgather(int(label.max(initial=MISSING))))))


def balanced_weights(label: np.ndarray, classes: int, world: World) -> np.ndarray:
    """Collective. Weights [C] n / (C n_c) of the labels [e] of all ranks; 1 for a class that does not occur."""
    counts = world.reduce_array(np.bincount(label[label >= 0], minlength=classes).astype(np.int64))
    return np.where(counts > 0, counts.sum() / (classes * np.maximum(counts, 1)), 1.0)


def node_labels(columns: dict[str, np.ndarray], node_type: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels int64 and splits [n] (0 train, 1 val, 2 test, others none) of a rank's nodes of a type. Labels are [n]
    classes, -1 where missing, or, several a node, [n, C] of 0 and 1, a row of -1 where missing.

    Raises ValueError where they are missing or cannot be used.
    """
    for name in ("label", "split"):
        if name not in columns:
            raise ValueError(
                f"node type {node_type} has no column {name}: convert the source again with one"
                + (", or run data_tools.split" if name == "split" else "")
            )
    label = columns["label"]
    if label.ndim > 2 or label.dtype.kind not in "iub":
        raise ValueError(
            f"the label of {node_type} must be one integer a node, or a row of 0 and 1, got {label.dtype} "
            f"{label.shape[1:]}"
        )
    label, split = label.astype(np.int64), columns["split"].astype(np.int64)
    if label.ndim == 2:
        return _label_rows(label, node_type, classes), split
    limit = classes or MOST_CLASSES
    if (label >= limit).any():
        where = f"task.classes = {classes}" if classes else f"{MOST_CLASSES} classes at most"
        raise ValueError(f"node type {node_type}: label {int(label.max())}, but {where}")
    return np.where(label >= 0, label, MISSING), split


def _label_rows(label: np.ndarray, node_type: str, classes: int) -> np.ndarray:
    """[n, C]. Raises ValueError."""
    if label.shape[1] < 2 or classes not in (0, label.shape[1]):
        raise ValueError(f"node type {node_type}: labels of {label.shape[1]} columns, but task.classes = {classes}")
    if (label > 1).any():
        raise ValueError(f"node type {node_type}: labels in rows are 0 and 1, found {int(label.max())}")
    return np.where((label >= 0).all(axis=1, keepdims=True), label, MISSING)


def has_label(label: np.ndarray) -> np.ndarray:
    """Whether nodes have labels as ``node_labels`` gives them, [n] bool."""
    return (label if label.ndim == 1 else label[:, 0]) >= 0


def labelled_type(partition: GraphPartition, name: str, setting: str) -> int:
    """The node type to learn the labels of: the one named by a setting, else the only one with labels. Raises
    ValueError."""
    labelled = [kind for kind, columns in enumerate(partition.columns) if "label" in columns]
    found = ", ".join(partition.types[kind] for kind in labelled) or "none"
    if name:
        kind = partition.type_of(name)
        if kind not in labelled:
            raise ValueError(f"{setting} {name} has no column label; types with labels: {found}")
        return kind
    if len(labelled) != 1:
        raise ValueError(f"{setting} must name the type to learn labels of; types with labels: {found}")
    return labelled[0]
