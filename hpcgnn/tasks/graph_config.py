"""The run file's ``task`` section of static graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcgnn.choices import check_choices
from hpcgnn.nn.graph_decoders import DECODERS
from hpcgnn.sample.link_negatives import EDGE, SOURCES
from hpcgnn.sample.typed_edges import MESSAGES, STORED

NODE, LINK = "node", "link"
TASK_KINDS = (NODE, LINK)
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
        messages: of link: the relation's edges as "stored", "typed" by their column ``rel``, a relation a type, or
            "both": typed, and of as many further relations the other way.
        candidates: of link: negatives in training: "edge": drawn for each edge, uniform over all nodes of the type;
            "batch": the destinations of the other edges of the batch; "shared": drawn for a batch, the same for all of
            its edges.
        negatives: of link: how many: drawn for an edge (0: one), destinations of so many edges of the batch (0: of
            all), or drawn for a batch (0: as many as it has edges).
        strict: of link: no negative makes a training edge.
        both_ends: of link: negatives in the place of the source, too.
        decoder: of link: score of a pair of embeddings: "dot", "cosine", "mlp", "distmult", "complex" (the last two
            with weights by edge type, column ``rel``).
        temperature: of decoder cosine: scores are divided by it.
        loss: of link: "binary" (cross entropy), "margin" (triplet: a pair must score higher than its negatives by
            margin), "softmax" (of a pair among its negatives).
        margin: of loss margin.
        adversarial: of losses binary and margin: above 0, negatives weigh by the softmax of so many times their
            scores; 0: all alike.
    """

    kind: str = NODE
    node_type: str = ""
    classes: int = 0
    relation: str = ""
    reverse: str = ""
    messages: str = STORED
    candidates: str = EDGE
    negatives: int = 0
    strict: bool = False
    both_ends: bool = False
    decoder: str = "dot"
    temperature: float = 1.0
    loss: str = "binary"
    margin: float = 1.0
    adversarial: float = 0.0

    def __post_init__(self):
        check_choices("task", self, {
            "kind": TASK_KINDS, "decoder": DECODERS, "loss": LOSSES, "candidates": SOURCES, "messages": MESSAGES,
        })  # fmt: skip
        if self.classes < 0 or self.classes == 1:
            raise ValueError(f"task.classes must be 0 (from the data) or at least 2, got {self.classes}")
        for name in ("negatives", "adversarial"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"task.{name} must be at least 0, got {getattr(self, name)}")
        for name in ("margin", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"task.{name} must be above 0, got {getattr(self, name)}")
        if self.adversarial and self.loss == "softmax":
            raise ValueError("task.adversarial is for the losses binary and margin: softmax weighs negatives itself")
        if self.candidates != EDGE and self.decoder == "mlp":
            raise ValueError(f"task.candidates {self.candidates} needs a task.decoder other than mlp")
        if self.kind == NODE and (self.relation or self.reverse):
            raise ValueError("task.relation and task.reverse are for task.kind link: leave them empty")
        if self.kind == LINK and (self.node_type or self.classes):
            raise ValueError("task.node_type and task.classes are for task.kind node: leave them out")
