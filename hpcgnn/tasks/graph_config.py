"""The run file's ``task`` section of static graphs."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices
from hpcgnn.nn.graph_decoders import DECODERS

NODE, LINK = "node", "link"
KINDS = (NODE, LINK)
LOSSES = ("binary", "margin", "softmax")


@dataclass
class GraphTaskConfig:
    """What is learnt of the graph.

    Attributes:
        kind: "node": the label (column ``label``) of the nodes that column ``split`` gives to training; "link":
            whether there is an edge, from the edges that column ``split`` gives to training.
        node_type: of node: whose labels; empty: the only type that has any.
        classes: of node: 0: as many as the labels say, at least two.
        relation: of link: whose edges (src.rel.dst); empty: the only relation with a column split.
        reverse: of link: the relation that holds the same edges the other way, left out of a step together with its
            seeds; empty: every relation that has a reverse of each edge and no others; "none": none.
        negatives: of link: destinations drawn for an edge, uniform over all nodes of the type.
        decoder: of link: score of a pair of embeddings: "dot", "cosine", "mlp", "distmult" (weights by edge type,
            column ``rel``).
        loss: of link: "binary" (cross entropy), "margin" (a pair must score higher than its negatives by margin),
            "softmax" (of a pair among its negatives).
        margin: of loss margin.
    """

    kind: str = NODE
    node_type: str = ""
    classes: int = 0
    relation: str = ""
    reverse: str = ""
    negatives: int = 1
    decoder: str = "dot"
    loss: str = "binary"
    margin: float = 1.0

    def __post_init__(self):
        check_choices("task", self, {"kind": KINDS, "decoder": DECODERS, "loss": LOSSES})
        if self.classes < 0 or self.classes == 1:
            raise ValueError(f"task.classes must be 0 (from the data) or at least 2, got {self.classes}")
        if self.negatives < 1:
            raise ValueError(f"task.negatives must be at least 1, got {self.negatives}")
        if self.margin <= 0:
            raise ValueError(f"task.margin must be above 0, got {self.margin}")
        if self.kind == NODE and (self.relation or self.reverse):
            raise ValueError("task.relation and task.reverse are for task.kind link: leave them empty")
        if self.kind == LINK and (self.node_type or self.classes):
            raise ValueError("task.node_type and task.classes are for task.kind node: leave them out")
