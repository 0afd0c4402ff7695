"""Reads the labels of events, and weighs their classes. e events of this rank, C classes."""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.task.labels import MISSING, MOST_CLASSES
from hpcgnn.temporal.config import TaskConfig
from hpcgnn.temporal.graph import Events


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
    present = label >= 0  # not so for NaN
    wrong = present & (label >= (config.classes or MOST_CLASSES))
    if label.dtype.kind == "f":
        wrong |= present & (label != np.floor(label))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        range_ = f"below task.classes = {config.classes}" if config.classes else f"below {MOST_CLASSES}"
        raise ValueError(
            f"event {events.row[at]}: label {label[at]} is no class; classes are integers from 0 on, {range_}, and a "
            "negative label is a missing one; numbers are for task.kind edge_regression"
        )
    return np.where(present, np.where(present, label, 0).astype(np.int64), MISSING)


def _numbers(label: np.ndarray, events: Events) -> np.ndarray:
    infinite = np.flatnonzero(np.isinf(label))
    if len(infinite):
        raise ValueError(f"event {events.row[infinite[0]]}: label {label[infinite[0]]} is not finite")
    return label.astype(np.float64)


def balanced_weights(label: np.ndarray, classes: int, world: World) -> np.ndarray:
    """Collective. Weights [C] n / (C n_c) of the labels [e] of all ranks; 1 for a class that does not occur."""
    counts = world.reduce_array(np.bincount(label[label >= 0], minlength=classes).astype(np.int64))
    return np.where(counts > 0, counts.sum() / (classes * np.maximum(counts, 1)), 1.0)
