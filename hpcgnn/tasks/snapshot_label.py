"""Labels of the nodes and edges of snapshots: what may stand in a column, and what classes weigh.

A missing label is -1 (any negative number in the data) where labels are classes, NaN where they are numbers.
"""

from __future__ import annotations

import numpy as np
import torch

from hpcgnn.tasks.labels import MISSING, MOST_CLASSES


def read_classes(label: np.ndarray, name: str, classes: int) -> np.ndarray:
    """Classes int64 of a column [...], -1 where missing. Raises ValueError for what is none below ``classes`` (0: as
    many as may be)."""
    if label.dtype.kind not in "iufb":
        raise ValueError(f"{name} must hold classes, integers from 0 on, got {label.dtype}")
    known = label >= 0  # not so for NaN
    wrong = known & (label >= (classes or MOST_CLASSES))
    if label.dtype.kind == "f":
        wrong |= known & (label != np.floor(label))
    if wrong.any():
        limit = f"task.classes = {classes}" if classes else f"{MOST_CLASSES}"
        raise ValueError(f"{name}: {label[wrong][0]} is no class; classes are integers from 0 on, below {limit}")
    return np.where(known, np.where(known, label, 0).astype(np.int64), MISSING)


def read_numbers(label: np.ndarray, name: str, classes: int) -> np.ndarray:
    """Numbers float64 of a column [r]. Raises ValueError for what is no number or infinite."""
    if label.ndim != 1 or label.dtype.kind not in "iufb":
        raise ValueError(f"{name} must hold a number each, got {label.dtype} {label.shape[1:]}")
    if np.isinf(label).any():
        raise ValueError(f"{name} has an infinite number")
    return label.astype(np.float64)


def class_weights(weights: list[float], classes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """[C], None: all 1. Raises ValueError."""
    if not weights:
        return None
    if len(weights) != classes:
        raise ValueError(f"task.class_weights has {len(weights)} numbers, the data {classes} classes")
    return torch.tensor(weights, dtype=dtype, device=device)
