"""Labels of nodes, edges and events: how columns are read, and the head, scores and metrics of models that learn them.

A missing label is -1 (any negative number in the data) where labels are classes, NaN where they are numbers: numbers
may be negative. b roots of a step, e of this rank, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hpcgnn.comm.world import World
from hpcgnn.native.products import linear
from hpcgnn.task.moments import Standard

MISSING = -1
MOST_CLASSES = 1 << 16
NUMBERED = "number them 0, 1, ... by converting the source again with classes: true for the column label"


def is_known(label: np.ndarray) -> np.ndarray:
    """Say which labels are not missing, [e] bool."""
    return ~np.isnan(label) if label.dtype.kind == "f" else label >= 0


def count_classes(label: np.ndarray, wanted: int, world: World) -> int:
    """Collective. Return the number of classes C: ``wanted``, or, where that is 0, one more than the largest label and
    at least 2; of labels [n, C] their width."""
    if label.ndim == 2:
        return label.shape[1]
    return wanted or max(2, 1 + int(max(world.allgather(int(label.max(initial=MISSING))))))


def node_labels(columns: dict[str, np.ndarray], node_type: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the labels int64 and the splits [n] (0 train, 1 val, 2 test, others none) of a rank's nodes of a type.
    Labels are classes [n], -1 where missing, or, several a node, [n, C] of 0 and 1, -1 where missing: below 0 or NaN in
    the data. Floats that are whole numbers are classes, too.

    Raises ValueError for columns that are missing or cannot be used.
    """
    _check_there(columns, node_type)
    label = columns["label"]
    fractions = label.dtype.kind == "f" and label.ndim == 1 and (label[is_known(label)] % 1 != 0).any()
    if label.ndim > 2 or label.dtype.kind not in "iubf" or fractions:
        raise ValueError(
            f"the label of {node_type} must be one integer a node, or a row of 0 and 1, got {label.dtype} "
            f"{label.shape[1:]}; numbers are for task.kind regression"
        )
    split = columns["split"].astype(np.int64)
    if label.ndim == 2:
        return _label_rows(label, node_type, classes), split
    limit = classes or MOST_CLASSES
    known = label >= 0  # not so for NaN
    if (label[known] >= limit).any():
        where = f"task.classes = {classes}" if classes else f"{MOST_CLASSES} classes at most: {NUMBERED}"
        raise ValueError(f"node type {node_type}: label {int(label[known].max())}, but {where}")
    return np.where(known, np.where(known, label, 0).astype(np.int64), MISSING), split


def node_numbers(columns: dict[str, np.ndarray], node_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the numbers [n] float64 to learn, NaN where missing, and the splits [n] of a rank's nodes of a type, as
    ``node_labels`` does. Raises ValueError for columns that are missing or cannot be used."""
    _check_there(columns, node_type)
    label = columns["label"]
    if label.ndim != 1 or label.dtype.kind not in "iufb":
        raise ValueError(f"the label of {node_type} must be one number a node, got {label.dtype} {label.shape[1:]}")
    return read_numbers(label, f"label of {node_type}", 0), columns["split"].astype(np.int64)


def _check_there(columns: dict[str, np.ndarray], node_type: str) -> None:
    for name in ("label", "split"):
        if name not in columns:
            raise ValueError(
                f"node type {node_type} has no column {name}: convert the source again with one"
                + (", or run hpcgnn split" if name == "split" else "")
            )


def edge_labels(columns: dict[str, np.ndarray], relation: str, numbers: bool, classes: int) -> np.ndarray:
    """Read the labels [m] of a rank's edges of a relation: classes int64, -1 where missing, or ``numbers``, float64,
    NaN where missing. Raises ValueError for a column that is missing or cannot be used."""
    if "label" not in columns:
        raise ValueError(f"relation {relation} has no column label: convert the source again with one")
    label, name = columns["label"], f"label of {relation}"
    if numbers:
        return read_numbers(label, name, 0)
    if label.ndim != 1:
        raise ValueError(f"{name} must be one class an edge, got rows {label.shape[1:]}")
    return read_classes(label, name, classes)


def _label_rows(label: np.ndarray, node_type: str, classes: int) -> np.ndarray:
    if label.shape[1] < 2 or classes not in (0, label.shape[1]):
        raise ValueError(f"node type {node_type}: labels of {label.shape[1]} columns, but task.classes = {classes}")
    known = label >= 0  # not so for NaN
    if (strange := label[known & (label != 0) & (label != 1)]).size:
        raise ValueError(f"node type {node_type}: labels in rows are 0 and 1, found {strange[0]}")
    return np.where(known, label == 1, MISSING)


def has_label(label: np.ndarray) -> np.ndarray:
    """Mark the nodes of which a label is known, from the labels of ``node_labels``: [n] bool."""
    return is_known(label if label.ndim == 1 else label.max(axis=1))


def labeled_type(
    columns: Sequence[Mapping[str, np.ndarray]], types: Sequence[str], name: str, setting: str
) -> int:  # fmt: skip
    """Return the number of the node type whose labels are learned: the one that a setting names, else the only one with
    labels. columns: of the nodes of each of ``types``. Raises ValueError."""
    labeled = [kind for kind, of_type in enumerate(columns) if "label" in of_type]
    names = ", ".join(types[kind] for kind in labeled) or "none"
    if name:
        if name not in types:
            raise ValueError(f"{setting}: no node type {name!r}; the graph has {', '.join(types)}")
        kind = types.index(name)
        if kind not in labeled:
            raise ValueError(f"{setting} {name} has no column label; types with labels: {names}")
        return kind
    if not labeled:
        raise ValueError(
            f"{setting}: no node type has a column label to learn: convert the source again with one (words with "
            "classes: true), or give a kind of task that learns something else"
        )
    if len(labeled) != 1:
        raise ValueError(f"{setting} must name the type to learn labels of; types with labels: {names}")
    return labeled[0]


class Head(nn.Module):
    """A network of two layers that makes outputs of embeddings: linear, relu, linear. I inputs, O outputs. standard:
    what these outputs are standardized by, None: not."""

    def __init__(self, width: int, hidden: int, outputs: int, standard: Standard | None = None):
        super().__init__()
        self.width, self.standard = width, standard
        self.hidden, self.out = nn.Linear(width, hidden), nn.Linear(hidden, outputs)

    def forward(self, rows: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """rows [n, I], mask: dropout multipliers [n, hidden]; returns [n, O]."""
        hidden = torch.relu(linear(rows, self.hidden.weight, self.hidden.bias))
        outputs = linear(hidden if mask is None else hidden * mask, self.out.weight, self.out.bias)
        return outputs if self.standard is None else self.standard.undone(outputs)


@dataclass(slots=True)
class LabelScores:
    """Scores of one step: output [b, C] logits, or [b, 1] or [b] predicted numbers; label [b]."""

    output: torch.Tensor
    label: torch.Tensor

    def detach(self) -> LabelScores:
        """Return the scores without their gradients."""
        return LabelScores(self.output.detach(), self.label)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return output float64, of the same shape, and label [b] int64 or float64."""
        return {"output": self.output.double().cpu().numpy(), "label": self.label.cpu().numpy()}


def read_classes(label: np.ndarray, name: str, classes: int) -> np.ndarray:
    """Read a column [...] of classes as int64, -1 where missing. Raises ValueError for a value that is no class below
    ``classes`` (0: below MOST_CLASSES)."""
    if label.dtype.kind not in "iufb":
        raise ValueError(f"{name} must hold classes, integers from 0 on, got {label.dtype}")
    is_present = label >= 0  # not so for NaN
    wrong = is_present & (label >= (classes or MOST_CLASSES))
    if label.dtype.kind == "f":
        wrong |= is_present & (label != np.floor(label))
    if wrong.any():
        limit = f"task.classes = {classes}" if classes else f"{MOST_CLASSES}: {NUMBERED}"
        raise ValueError(f"{name}: {label[wrong][0]} is no class; classes are integers from 0 on, below {limit}")
    return np.where(is_present, np.where(is_present, label, 0).astype(np.int64), MISSING)


def read_numbers(label: np.ndarray, name: str, classes: int) -> np.ndarray:
    """Read a column [r] of numbers as float64. Raises ValueError for what is no number, or infinite."""
    if label.ndim != 1 or label.dtype.kind not in "iufb":
        raise ValueError(f"{name} must hold a number each, got {label.dtype} {label.shape[1:]}")
    if np.isinf(label).any():
        raise ValueError(f"{name} has an infinite number")
    return label.astype(np.float64)


def refuse_words(words: Sequence[str], name: str) -> None:
    """Raise ValueError where the numbers of a column that is learned as numbers stand for ``words``."""
    if words:
        raise ValueError(
            f"{name} was made of words, such as {words[0]!r}, which are classes and no numbers to predict: choose a "
            "task.kind of classes, or convert the source again with numbers"
        )


def class_weights(weights: list[float], classes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Make the weights [C] of the classes' losses; None: all 1. Raises ValueError for another number of weights."""
    if not weights:
        return None
    if len(weights) != classes:
        raise ValueError(f"task.class_weights has {len(weights)} numbers, the data {classes} classes")
    return torch.tensor(weights, dtype=dtype, device=device)
