"""The run file's ``task`` section of snapshot graphs."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices

REGRESSION = "regression"
KINDS = (REGRESSION,)
LOSSES = ("mse", "mae")


@dataclass
class SnapshotTaskConfig:
    """What is learnt of the snapshots.

    Attributes:
        kind: "regression": a number of every node (column of every snapshot; NaN: not known).
        target: name of that column.
        steps: of regression: so many snapshots at once: sampling.horizon later, and those that follow.
        loss: of regression: "mse" or "mae".
    """

    kind: str = REGRESSION
    target: str = "target"
    steps: int = 1
    loss: str = "mse"

    def __post_init__(self):
        check_choices("task", self, {"kind": KINDS, "loss": LOSSES})
        if self.steps < 1:
            raise ValueError(f"task.steps must be at least 1, got {self.steps}")
