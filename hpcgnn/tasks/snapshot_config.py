"""The run file's ``task`` section of snapshot graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hpcgnn.choices import check_choices
from hpcgnn.nn.graph_decoders import DECODERS, TYPED

REGRESSION, NODE, LINK, EDGE, EDGE_REGRESSION = "regression", "node", "link", "edge", "edge_regression"
TASK_KINDS = (REGRESSION, NODE, LINK, EDGE, EDGE_REGRESSION)
DRAWN, ALL, FILTERED = "drawn", "all", "filtered"
DESTINATION, BOTH = "destination", "both"
TIME, NODES = "time", "nodes"
# The first one is what an empty task.loss means.
LOSSES = {
    REGRESSION: ("mse", "mae"),
    EDGE_REGRESSION: ("mse", "mae"),
    NODE: ("cross_entropy",),
    EDGE: ("cross_entropy",),
    LINK: ("binary", "softmax", "margin"),
}


@dataclass
class SnapshotTaskConfig:
    """What is learnt of the snapshots, each from those before it.

    Attributes:
        kind: "regression": a number of every node (column of every snapshot; NaN: not known); "node": the class of
            every node (a column of every snapshot, or one for all; negative: not known); "link": whether two nodes
            have an edge; "edge": the class of every edge, "edge_regression": a number of it (a column of the edges).
        target: name of that column; "degree", where the graph has no such: of regression, log of 1 + in-degree.
        steps: of regression: so many snapshots at once: sampling.horizon later, and those that follow.
        loss: of regression and edge_regression: "mse" or "mae"; of node and edge: "cross_entropy"; of link: "binary",
            "softmax" (of an edge among its negatives), "margin" (an edge must score higher than its negatives by
            margin); empty: the first of these.
        classes: of node and edge: 0: as many as the column says, at least two.
        class_weights: of node and edge: factor of every class's loss; empty: all 1.
        split: of node: "time": training, validation and test follow each other; "nodes": the nodes' column ``split``
            says which is whose, in all snapshots.
        undirected: of link: the graph has every edge in both directions; one of them is learnt.
        new_links: of link: only edges that the snapshot that predictions are made from does not have.
        negatives: of link: drawn for every edge in training.
        eval_negatives: of link: drawn for every edge in evaluation.
        negative_ends: of link: negatives are of the edge's source and a drawn "destination", or "both" are drawn.
        strict: of link: no negative is an edge of the snapshot, nor a node with itself.
        eval_pairs: of link: evaluation against "drawn" negatives; or ranks edges among "all" pairs of nodes (a score
            of every pair is in memory); or "filtered": both ends of an edge among all nodes, the snapshot's other edges
            left out.
        decoder: of link: score of a pair of outputs: "dot", "cosine", "mlp", and with weights by the edges' column
            ``type`` "distmult", "complex".
        temperature: of decoder cosine: scores are divided by it.
        positive_weight: of loss binary: an edge's loss counts so many times the mean of its negatives'.
        margin: of loss margin.
    """

    kind: str = REGRESSION
    target: str = "target"
    steps: int = 1
    loss: str = ""
    classes: int = 0
    class_weights: list[float] = field(default_factory=list)
    split: str = TIME
    undirected: bool = False
    new_links: bool = False
    negatives: int = 1
    eval_negatives: int = 1
    negative_ends: str = DESTINATION
    strict: bool = False
    eval_pairs: str = DRAWN
    decoder: str = "dot"
    temperature: float = 1.0
    positive_weight: float = 1.0
    margin: float = 1.0

    def __post_init__(self):
        check_choices("task", self, {
            "kind": TASK_KINDS, "decoder": DECODERS, "negative_ends": (DESTINATION, BOTH), "split": (TIME, NODES),
            "eval_pairs": (DRAWN, ALL, FILTERED),
        })  # fmt: skip
        self.loss = self.loss or LOSSES[self.kind][0]
        if self.loss not in LOSSES[self.kind]:
            raise ValueError(f"task.loss of kind {self.kind} must be {' or '.join(LOSSES[self.kind])}, got {self.loss}")
        for name in ("steps", "negatives", "eval_negatives"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("temperature", "positive_weight", "margin"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"task.{name} must be above 0, got {getattr(self, name)}")
        if self.split == NODES and self.kind != NODE:
            raise ValueError(f"task.split nodes is for task.kind node, not {self.kind}")
        if self.eval_pairs == ALL and self.decoder in TYPED:
            raise ValueError(f"task.decoder {self.decoder} ranks edges by their types: use task.eval_pairs filtered")
        if self.eval_pairs == FILTERED and self.decoder == "mlp":
            raise ValueError("task.eval_pairs filtered needs a task.decoder other than mlp")
        if self.eval_pairs == ALL and (self.undirected or self.new_links):
            raise ValueError("task.eval_pairs all ranks all edges: leave task.undirected and task.new_links off")
        self._check_classes()

    def _check_classes(self) -> None:
        weights = self.class_weights
        if self.kind not in (NODE, EDGE) and (weights or self.classes):
            raise ValueError(f"task.kind {self.kind} has no classes: leave task.classes and task.class_weights")
        if self.classes < 0 or self.classes == 1:
            raise ValueError(f"task.classes must be 0 (from the data) or at least 2, got {self.classes}")
        if not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(f"task.class_weights must not be negative, got {weights}")
        if weights and self.classes and len(weights) != self.classes:
            raise ValueError(f"task.class_weights has {len(weights)} numbers for task.classes = {self.classes}")
