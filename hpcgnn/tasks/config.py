"""The run file's ``task`` section."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hpcgnn.task.kinds import CLASSIFYING, LINK, TASK_KINDS


@dataclass
class TaskConfig:
    """What is learnt of the events.

    Attributes:
        kind: "link": whether an event happens; "node": the event's label as the state of its source at that time;
            "edge": the event's label from both endpoints and its features; "edge_regression": the label as a number.
        classes: of "node" and "edge"; 0: as many as the labels say, at least two.
        class_weights: factor of every class's loss; empty: all 1.
        balance_classes: weights n / (classes * n_c), from the n labels of training of which n_c are of class c.
        freeze: train the head alone; everything else stays as it comes from init.
        init: folder of a finished run whose best weights everything but the head starts with.
    """

    kind: str = LINK
    classes: int = 0
    class_weights: list[float] = field(default_factory=list)
    balance_classes: bool = False
    freeze: bool = False
    init: str = ""

    def __post_init__(self):
        if self.kind not in TASK_KINDS:
            raise ValueError(f"task.kind must be one of {', '.join(TASK_KINDS)}, got {self.kind!r}")
        if self.classes < 0 or self.classes == 1:
            raise ValueError(f"task.classes must be 0 (from the data) or at least 2, got {self.classes}")
        if self.freeze and not self.init:
            raise ValueError("task.freeze trains the head alone: name the run that the rest comes from with task.init")
        self._check_weights()

    def _check_weights(self) -> None:
        weights = self.class_weights
        if not self.classifies and (weights or self.balance_classes or self.classes):
            raise ValueError(f"task.kind {self.kind} has no classes: leave classes, class_weights and balance_classes")
        if weights and self.balance_classes:
            raise ValueError("task.class_weights and task.balance_classes both weigh the classes: use one")
        if not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(f"task.class_weights must not be negative, got {weights}")
        if weights and self.classes and len(weights) != self.classes:
            raise ValueError(f"task.class_weights has {len(weights)} numbers for task.classes = {self.classes}")

    @property
    def classifies(self) -> bool:
        """Whether labels are classes."""
        return self.kind in CLASSIFYING

    @property
    def has_labels(self) -> bool:
        """Whether events need labels; if not, they need negatives."""
        return self.kind != LINK
