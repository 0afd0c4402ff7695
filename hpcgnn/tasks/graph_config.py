"""The run file's ``task`` section of static graphs."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices

NODE = "node"
KINDS = (NODE,)


@dataclass
class GraphTaskConfig:
    """What is learnt of the graph.

    Attributes:
        kind: "node": the label (column ``label``) of the nodes that column ``split`` gives to training.
        node_type: whose labels; empty: the only type that has any.
        classes: 0: as many as the labels say, at least two.
    """

    kind: str = NODE
    node_type: str = ""
    classes: int = 0

    def __post_init__(self):
        check_choices("task", self, {"kind": KINDS})
        if self.classes < 0 or self.classes == 1:
            raise ValueError(f"task.classes must be 0 (from the data) or at least 2, got {self.classes}")
